//! Damaged and hostile files end in an error that names the place: no panic, no hang, no absurd allocation.

#[path = "support/tiny.rs"]
mod tiny;

use headrow::{Config, Error, Input, Model, Positions, StackConfig, TokenInput};
use serde_json::{Value, json};
use tiny::{D, FAMILIES, Folder, Random, Tensor, Tiny, V, file, with_header};

/// The error of a config with one field changed.
fn config_error(family: &str, field: &str, value: Value) -> String {
    Tiny::new(family).set(field, value).config().unwrap_err().to_string()
}

#[test]
fn fields_of_a_config_that_make_no_sense_are_refused_by_name() {
    let wrong = [
        ("model_type", json!("gpt3")),
        ("model_type", json!(7)),
        ("model_type", json!(null)),
        ("hidden_act", json!("gelu_fast")),
        ("hidden_act", json!("GELU")),
        ("hidden_act", json!(1)),
        ("position_embedding_type", json!("relative_key")),
        ("is_decoder", json!(true)),
        ("is_decoder", json!("false")),
        ("add_cross_attention", json!(true)),
        ("layer_norm_eps", json!(0)),
        ("layer_norm_eps", json!(-1e-12)),
        ("layer_norm_eps", json!(1e-300)),
        ("layer_norm_eps", json!(1e300)),
        ("layer_norm_eps", json!("small")),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-24)),
        ("hidden_size", json!(24.5)),
        ("hidden_size", json!("24")),
        ("hidden_size", json!(null)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!([2])),
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(5)),
        ("intermediate_size", json!(0)),
        ("vocab_size", json!(0)),
        ("vocab_size", json!(1e30)),
        ("max_position_embeddings", json!(0)),
        ("max_position_embeddings", json!(1u64 << 40)),
        ("type_vocab_size", json!(-1)),
        ("tie_word_embeddings", json!(1)),
        ("architectures", json!("BertModel")),
        ("id2label", json!({"0": "a", "2": "b"})),
        ("id2label", json!(["a"])),
    ];
    for (field, value) in wrong {
        let error = config_error("bert", field, value.clone());
        assert!(error.contains(field), "{field} = {value}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
    for (field, value) in [("pad_token_id", json!(33)), ("pad_token_id", json!(u64::MAX))] {
        let error = config_error("roberta", field, value);
        assert!(error.contains("max_position_embeddings"), "{error}");
    }
    for (field, value) in [("n_heads", json!(7)), ("dim", json!(0)), ("activation", json!("tanh"))]
    {
        let error = config_error("distilbert", field, value);
        assert!(error.contains(field), "{error}");
    }
}

fn stack(config: &mut Config) -> &mut StackConfig {
    config.encoder.as_mut().unwrap()
}

fn tokens(config: &mut Config) -> &mut TokenInput {
    let Input::Tokens(tokens) = &mut stack(config).input else { panic!("no tokens") };
    tokens
}

fn rows(config: &mut Config) -> &mut usize {
    let Positions::Learned { rows, .. } = &mut tokens(config).positions else { panic!("no table") };
    rows
}

fn first(config: &mut Config) -> &mut usize {
    let Positions::Learned { first, .. } = &mut tokens(config).positions else {
        panic!("no table")
    };
    first
}

#[test]
fn a_config_that_was_changed_after_it_was_read_is_checked_again() {
    type Change = fn(&mut Config);
    let changes: [(&str, &str, Change); 10] = [
        ("bert", "num_attention_heads", |config| stack(config).heads = 0),
        ("distilbert", "n_heads", |config| stack(config).heads = 0),
        ("bert", "num_hidden_layers", |config| stack(config).layers = 0),
        ("bert", "hidden_size", |config| config.d_model = 0),
        ("bert", "max_position_embeddings", |config| *first(config) = usize::MAX),
        ("roberta", "max_position_embeddings", |config| *rows(config) = 2),
        ("roberta", "first_position", |config| *first(config) = 0),
        ("bert", "layer_norm_eps", |config| stack(config).epsilon = 0.0),
        ("roberta", "layer_norm_eps", |config| stack(config).epsilon = f32::NAN),
        ("distilbert", "layer_norm_eps", |config| stack(config).epsilon = f32::INFINITY),
    ];
    for (family, name, change) in changes {
        let tiny = Tiny::new(family);
        let mut config = tiny.config().unwrap();
        change(&mut config);
        let error = Model::from_bytes(&config, &file(&tiny.tensors)).unwrap_err();
        assert!(matches!(&error, Error::Config { field, .. } if field == name), "{error}");
    }
    // Types that the file does not have are a matter of its tensors.
    for (family, types) in [("bert", 0), ("bert", 3), ("distilbert", 1)] {
        let tiny = Tiny::new(family);
        let mut config = tiny.config().unwrap();
        tokens(&mut config).token_types = types;
        let error = Model::from_bytes(&config, &file(&tiny.tensors)).unwrap_err();
        assert!(matches!(error, Error::Weights { .. }), "{error}");
    }
}

#[test]
fn a_config_that_is_no_json_object_is_refused() {
    let deep = "[".repeat(1 << 20);
    for text in ["", "{", "[]", "7", "\"bert\"", "{\"a\":}", "\u{feff}{}", "{}", &deep] {
        let error = Config::from_json(text.as_bytes()).unwrap_err().to_string();
        assert!(error.len() < 300 && !error.contains('\n'), "{error}");
    }
    assert!(Config::from_json(&[0xff; 100]).is_err());
}

#[test]
fn sizes_that_the_file_does_not_bear_out_are_refused_before_anything_is_allocated() {
    let absurd = [1 << 20, 1 << 31, 1 << 40, u64::MAX >> 1, u64::MAX];
    let fields = ["vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"];
    let others = ["max_position_embeddings", "type_vocab_size"];
    for size in absurd {
        for field in fields.into_iter().chain(others) {
            let size = if field == "hidden_size" { size - size % 3 } else { size };
            let error = Tiny::new("bert").set(field, json!(size)).model().unwrap_err().to_string();
            let named =
                error.contains("shape") || error.contains("layers") || error.contains(field);
            assert!(named, "{field} = {size}: {error}");
        }
    }
}

#[test]
fn headers_that_lie_are_refused() {
    let tensor = |shape: &str, begin: u64, end: u64| {
        format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[{begin},{end}]}}}}"#)
    };
    let two = |first: [u64; 2], second: [u64; 2]| {
        format!(
            r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{first:?}}},
                "b":{{"dtype":"F32","shape":[2],"data_offsets":{second:?}}}}}"#
        )
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", vec![]),
        ("seven bytes", vec![0; 7]),
        ("a length of 2^63", (1u64 << 63).to_le_bytes().to_vec()),
        ("the largest length", [0xff; 8].to_vec()),
        ("a length beyond the file", [&[200u8, 0, 0, 0, 0, 0, 0, 0][..], b"{}"].concat()),
        ("no header", with_header("", &[])),
        ("no JSON", with_header("hello", &[])),
        ("no object", with_header("[1,2]", &[])),
        ("no UTF-8", [&[3u8, 0, 0, 0, 0, 0, 0, 0][..], &[0xff, 0xfe, 0xfd]].concat()),
        ("deep nesting", with_header(&"[".repeat(1 << 20), &[])),
        ("an unknown type", with_header(&tensor("[1]", 0, 4).replace("F32", "F31"), &[0; 4])),
        ("a negative size", with_header(&tensor("[-1]", 0, 4), &[0; 4])),
        ("data that is not there", with_header(&tensor("[2]", 0, 8), &[0; 4])),
        ("data beyond the tensors", with_header(&tensor("[1]", 0, 4), &[0; 8])),
        ("a gap before the data", with_header(&tensor("[1]", 4, 8), &[0; 8])),
        ("offsets in reverse", with_header(&tensor("[1]", 4, 0), &[0; 4])),
        ("a length unlike the shape", with_header(&tensor("[3]", 0, 8), &[0; 8])),
        (
            "a shape that overflows",
            with_header(&tensor("[4294967296,4294967296,4294967296]", 0, 0), &[]),
        ),
        ("a shape whose bytes overflow", with_header(&tensor("[4611686018427387904]", 0, 0), &[])),
        (
            "offsets near the end of numbers",
            with_header(&tensor("[1]", u64::MAX - 4, u64::MAX), &[]),
        ),
        ("tensors that overlap", with_header(&two([0, 8], [4, 12]), &[0; 12])),
        ("two tensors in one place", with_header(&two([0, 8], [0, 8]), &[0; 8])),
        ("a gap between tensors", with_header(&two([0, 8], [12, 20]), &[0; 20])),
    ];
    let config = Tiny::new("bert").config().unwrap();
    for (name, bytes) in cases {
        match Model::from_bytes(&config, &bytes) {
            Err(error @ Error::File { .. }) => {
                let error = error.to_string();
                assert!(error.len() < 400 && !error.contains('\n'), "{name}: {error}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_file_that_ends_early_is_refused_wherever_it_ends() {
    let tiny = Tiny::new("distilbert");
    let (config, bytes) = (tiny.config().unwrap(), file(&tiny.tensors));
    let mut random = Random(1);
    let ends = (0..300).chain((0..300).map(|_| random.below(bytes.len())));
    for end in ends.collect::<Vec<usize>>() {
        assert!(Model::from_bytes(&config, &bytes[..end]).is_err(), "{end} bytes");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(Model::from_bytes(&config, &longer).is_err());
}

#[test]
fn missing_extra_misshaped_and_mistyped_tensors_are_reported_together() {
    let mut tiny = Tiny::new("bert");
    tiny.remove("bert.encoder.layer.1.attention.self.key.bias");
    tiny.tensor("bert.encoder.layer.0.intermediate.dense.weight").shape.reverse();
    let norm = tiny.tensor("bert.embeddings.LayerNorm.weight");
    (norm.dtype, norm.data) = ("I64", vec![0; 8 * D]);
    tiny.floats("bert.encoder.layer.0.adapter.weight", &[D], &mut Random(3));
    let Error::Weights { problems, .. } = tiny.model().unwrap_err() else { panic!() };
    assert_eq!(
        problems.first(),
        [
            "embeddings.LayerNorm.weight has type I64, expected F32, F16 or BF16",
            "encoder.layer.0.intermediate.dense.weight has shape [24, 40], expected [40, 24]",
            "encoder.layer.1.attention.self.key.bias is missing",
            "encoder.layer.0.adapter.weight is unexpected",
        ]
    );
    assert_eq!(problems.count(), 4);
}

#[test]
fn of_many_problems_the_first_twenty_and_the_count_are_told() {
    let mut tiny = Tiny::new("bert");
    for index in 0..100 {
        tiny.floats(&format!("stray\n{index}{}", "x".repeat(500)), &[1], &mut Random(4));
    }
    let error = tiny.model().unwrap_err();
    let Error::Weights { problems, .. } = &error else { panic!() };
    assert_eq!((problems.first().len(), problems.count()), (20, 100));
    let error = error.to_string();
    assert!(error.ends_with("and 80 more (100 problems)"), "{error}");
    assert!(error.len() < 20 * 200 && !error.contains('\n'), "{error}");
}

#[test]
fn a_layer_count_that_differs_from_the_file_is_one_problem() {
    let error = Tiny::new("bert").set("num_hidden_layers", json!(3)).model().unwrap_err();
    assert!(
        error.to_string().ends_with("the config has 3 layers, the file 2 at encoder.layer."),
        "{error}"
    );
    let error = Tiny::new("bert").set("num_hidden_layers", json!(1)).model().unwrap_err();
    let Error::Weights { problems, .. } = error else { panic!() };
    assert_eq!(problems.first()[0], "the config has 1 layers, the file 2 at encoder.layer.");
    // Layers 0 and 2, not 0 and 1.
    let mut gap = Tiny::new("bert");
    for tensor in &mut gap.tensors {
        tensor.name = tensor.name.replace("layer.1.", "layer.2.");
    }
    let error = gap.model().unwrap_err().to_string();
    assert!(error.contains("encoder.layer.1.attention.self.query.weight is missing"), "{error}");
    assert!(error.contains("(32 problems)"), "{error}");
}

#[test]
fn every_single_tensor_is_needed() {
    for family in FAMILIES {
        let tiny = Tiny::new(family);
        for Tensor { name, .. } in &tiny.tensors {
            let mut tiny = tiny.clone();
            tiny.remove(name);
            let short = name.strip_prefix(&format!("{family}.")).unwrap_or(name);
            let error = tiny.model().unwrap_err().to_string();
            assert!(error.contains(&format!("{short} is missing")), "{name}: {error}");
        }
    }
}

#[test]
fn the_same_tensor_under_two_names_is_refused() {
    let mut tiny = Tiny::new("bert");
    let mut copy = tiny.tensor("bert.pooler.dense.bias").clone();
    copy.name = "pooler.dense.bias".to_owned();
    tiny.tensors.push(copy);
    let error = tiny.model().unwrap_err().to_string();
    assert!(error.contains("under two names"), "{error}");
}

#[test]
fn folders_that_are_not_there_or_not_files_are_refused() {
    let folder = Folder::new("absent");
    let text = |error: Error| {
        let error = error.to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    };
    let error = text(Model::from_dir(folder.0.join("nowhere")).unwrap_err());
    assert!(error.contains("nowhere") && error.contains("config.json"), "{error}");
    Tiny::new("bert").write(&folder.0);
    std::fs::remove_file(folder.0.join("model.safetensors")).unwrap();
    let error = text(Model::from_dir(&folder.0).unwrap_err());
    assert!(error.contains("model.safetensors"), "{error}");
    std::fs::create_dir(folder.0.join("model.safetensors")).unwrap();
    let error = text(Model::from_dir(&folder.0).unwrap_err());
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn huge_numbers_and_nans_in_weights_are_numbers_like_others() {
    // What the weights are is the checkpoint's affair; it must load, run, and not panic.
    let mut tiny = Tiny::new("bert");
    let words = tiny.tensor("bert.embeddings.word_embeddings.weight");
    words.data[..4 * V].copy_from_slice(&f32::NAN.to_le_bytes().repeat(V));
    words.data[4 * V..8 * V].copy_from_slice(&f32::MAX.to_le_bytes().repeat(V));
    let model = std::sync::Arc::new(tiny.model().unwrap());
    let options = headrow::SessionOptions::default();
    let mut session = headrow::Session::new(&model, &options).unwrap();
    let ids: Vec<u32> = (0..V as u32).take(30).collect();
    let mut hidden = vec![0.0; ids.len() * D];
    session.encode(&headrow::Batch::one(&ids), &mut hidden).unwrap();
    assert!(hidden.iter().any(|x| x.is_nan()));
}
