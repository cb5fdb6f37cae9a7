//! Folders in all the forms they come in: other types, other names, shards, heads.

#[path = "support/tiny.rs"]
mod tiny;

use headrow::{Activation, Batch, Head, LoadOptions, Model, Session, SessionOptions};
use serde_json::json;
use std::sync::Arc;
use tiny::{D, FAMILIES, Folder, POSITIONS, Random, Tiny, V, file, sequences};

fn outputs(model: Model, heads: &[Head]) -> Vec<Vec<f32>> {
    let model = Arc::new(model);
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let lengths = [7, 3, 12];
    let ids = sequences(1, &lengths);
    let batch = Batch::ragged(&ids, &lengths);
    let mut hidden = vec![0.0; ids.len() * D];
    session.encode(&batch, &mut hidden).unwrap();
    let mut all = vec![hidden];
    for &head in heads {
        let (rows, cols) = model.output_shape(head, ids.len(), lengths.len()).unwrap();
        let mut out = vec![0.0; rows * cols];
        session.predict(&batch, head, &mut out).unwrap();
        all.push(out);
    }
    all
}

fn heads_of(family: &str) -> &'static [Head] {
    match family {
        "bert" | "albert" => &[Head::Pooler, Head::MaskedLm, Head::NextSentence],
        _ => &[Head::MaskedLm],
    }
}

#[test]
fn half_precision_weights_are_widened_exactly() {
    for family in FAMILIES {
        let tiny = Tiny::new(family);
        let expected = outputs(tiny.model().unwrap(), heads_of(family));
        for dtype in ["F16", "BF16"] {
            let model = tiny.clone().stored_as(dtype).model().unwrap();
            assert_eq!(model.stored_types(), [dtype]);
            assert_eq!(outputs(model, heads_of(family)), expected, "{family} in {dtype}");
        }
    }
}

/// Matrices and tables that are read in several pieces.
#[test]
fn any_number_of_threads_loads_the_same_model() {
    let mut config = Tiny::new("bert").config;
    for (field, size) in [("hidden_size", 192), ("intermediate_size", 400), ("vocab_size", 700)] {
        config[field] = json!(size);
    }
    let tiny = Tiny::of(config, 3);
    let outputs = |threads: Option<usize>| {
        let options = LoadOptions::default().with_threads(threads);
        let (config, bytes) = (tiny.config().unwrap(), file(&tiny.tensors));
        let model = Arc::new(Model::from_bytes_with(&config, &bytes, &options).unwrap());
        let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
        let mut hidden = vec![0.0; 5 * 192];
        session.encode(&Batch::one(&[3, 699, 41, 0, 350]), &mut hidden).unwrap();
        hidden
    };
    let expected = outputs(Some(1));
    assert!(expected.iter().all(|x| x.is_finite() && *x != 0.0));
    for threads in [None, Some(0), Some(2), Some(5)] {
        assert_eq!(outputs(threads), expected, "{threads:?} threads");
    }
}

#[test]
fn a_folder_and_the_same_bytes_give_the_same_model() {
    let folder = Folder::new("same");
    let tiny = Tiny::new("bert");
    tiny.write(&folder.0);
    let from_folder = outputs(Model::from_dir(&folder.0).unwrap(), heads_of("bert"));
    assert_eq!(from_folder, outputs(tiny.model().unwrap(), heads_of("bert")));
}

#[test]
fn shards_are_found_through_their_index() {
    let folder = Folder::new("shards");
    let tiny = Tiny::new("roberta");
    std::fs::write(folder.0.join("config.json"), tiny.config_json()).unwrap();
    let mut map = serde_json::Map::new();
    for (shard, tensors) in tiny.tensors.chunks(10).enumerate() {
        let name = format!("model-{shard}.safetensors");
        std::fs::write(folder.0.join(&name), file(tensors)).unwrap();
        map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), json!(name))));
    }
    let index = folder.0.join("model.safetensors.index.json");
    std::fs::write(&index, json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
    let sharded = outputs(Model::from_dir(&folder.0).unwrap(), heads_of("roberta"));
    assert_eq!(sharded, outputs(tiny.model().unwrap(), heads_of("roberta")));

    std::fs::remove_file(folder.0.join("model-1.safetensors")).unwrap();
    let error = Model::from_dir(&folder.0).unwrap_err().to_string();
    assert!(error.contains("model-1.safetensors"), "{error}");
    for outside in ["../model-1.safetensors", "/dev/zero", "a/b", "..", ""] {
        map.insert("somewhere".to_owned(), json!(outside));
        std::fs::write(&index, json!({"weight_map": map}).to_string()).unwrap();
        let error = Model::from_dir(&folder.0).unwrap_err().to_string();
        assert!(error.contains("somewhere"), "{error}");
    }
}

#[test]
fn names_are_found_with_and_without_the_prefix_and_under_their_first_names() {
    for family in FAMILIES {
        let tiny = Tiny::new(family);
        let expected = outputs(tiny.model().unwrap(), heads_of(family));
        let prefix = format!("{family}.");
        let bare = |name: &str| name.strip_prefix(&prefix).unwrap_or(name).to_owned();
        let model = tiny.clone().renamed(bare).model().unwrap();
        assert_eq!(outputs(model, heads_of(family)), expected, "{family}");
        let first = |name: &str| {
            let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
            name.replace("LayerNorm.bias", "LayerNorm.beta")
        };
        let model = tiny.renamed(first).model().unwrap();
        assert_eq!(outputs(model, heads_of(family)), expected, "{family}");
    }
}

#[test]
fn what_a_family_is_known_to_leave_in_its_files_does_no_harm() {
    let extras: [(&str, &[&str]); 4] = [
        ("bert", &["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"]),
        ("roberta", &["lm_head.decoder.weight", "lm_head.decoder.bias"]),
        ("distilbert", &["vocab_projector.weight"]),
        ("albert", &["predictions.decoder.weight", "predictions.decoder.bias"]),
    ];
    for (family, names) in extras {
        let mut tiny = Tiny::new(family);
        let expected = outputs(tiny.model().unwrap(), heads_of(family));
        let mut random = Random(9);
        for name in names {
            let shape: &[usize] = if name.ends_with("weight") { &[V, D] } else { &[V] };
            tiny.floats(name, shape, &mut random);
        }
        tiny.floats("qa_outputs.weight", &[2, D], &mut random);
        tiny.floats("qa_outputs.bias", &[2], &mut random);
        tiny.tensors.push(tiny::Tensor {
            name: format!("{family}.embeddings.position_ids"),
            dtype: "I64",
            shape: vec![1, POSITIONS],
            data: vec![0; 8 * POSITIONS],
        });
        assert_eq!(outputs(tiny.model().unwrap(), heads_of(family)), expected, "{family}");
    }
}

#[test]
fn a_read_out_of_its_own_is_used_when_the_config_unties_it() {
    let mut tied = Tiny::new("bert");
    let mut words = tied.tensor("bert.embeddings.word_embeddings.weight").clone();
    words.name = "cls.predictions.decoder.weight".to_owned();
    let expected = outputs(tied.model().unwrap(), &[Head::MaskedLm]);
    tied.tensors.push(words);
    let mut untied = tied.set("tie_word_embeddings", json!(false));
    // The same numbers, once through the table of words, once packed.
    assert_eq!(outputs(untied.model().unwrap(), &[Head::MaskedLm]), expected);
    untied.tensor("cls.predictions.decoder.weight").data[3] ^= 0x80;
    assert_ne!(outputs(untied.model().unwrap(), &[Head::MaskedLm]), expected);
    untied.remove("cls.predictions.decoder.weight");
    let error = untied.model().unwrap_err().to_string();
    assert!(error.contains("cls.predictions.decoder.weight is missing"), "{error}");
}

#[test]
fn classifiers_and_taggers_are_told_apart() {
    // Family, what the last layer stands on, its name, the head.
    let cases: [(&str, Option<&str>, &str, Head); 8] = [
        ("bert", None, "classifier", Head::SequenceClassifier),
        ("roberta", Some("classifier.dense"), "classifier.out_proj", Head::SequenceClassifier),
        ("distilbert", Some("pre_classifier"), "classifier", Head::SequenceClassifier),
        ("bert", None, "classifier", Head::TokenTagger),
        ("roberta", None, "classifier", Head::TokenTagger),
        ("distilbert", None, "classifier", Head::TokenTagger),
        ("albert", None, "classifier", Head::SequenceClassifier),
        ("albert", None, "classifier", Head::TokenTagger),
    ];
    for (family, dense, name, head) in cases {
        let mut tiny = Tiny::new(family);
        let mut random = Random(11);
        if let Some(dense) = dense {
            tiny.linear(dense, D, D, &mut random);
        }
        tiny.linear(name, 5, D, &mut random);
        if matches!(family, "bert" | "albert") && head == Head::TokenTagger {
            tiny = tiny.set("architectures", json!(["AForTokenClassification"]));
        }
        let model = tiny.model().unwrap();
        let other = match head {
            Head::TokenTagger => Head::SequenceClassifier,
            _ => Head::TokenTagger,
        };
        assert!(model.has(head) && !model.has(other), "{family} {head:?}");
        let results = outputs(model, &[head]);
        let rows = if head == Head::TokenTagger { 22 } else { 3 };
        assert_eq!(results[1].len(), rows * 5, "{family} {head:?}");
        assert!(results[1].iter().all(|x| x.is_finite()));

        let names = json!({"0": "a", "1": "b", "2": "c", "3": "d"});
        let error = tiny.set("id2label", names).model().unwrap_err().to_string();
        assert!(error.contains("5 labels, the config names 4"), "{error}");
    }
}

#[test]
fn a_sequence_classifier_equals_its_formula() {
    for (family, dense, name) in [
        ("bert", "bert.pooler.dense", "classifier"),
        ("roberta", "classifier.dense", "classifier.out_proj"),
        ("distilbert", "pre_classifier", "classifier"),
        ("albert", "albert.pooler", "classifier"),
    ] {
        let mut tiny = Tiny::new(family);
        let mut random = Random(12);
        if !matches!(family, "bert" | "albert") {
            tiny.linear(dense, D, D, &mut random);
        }
        tiny.linear(name, 3, D, &mut random);
        let mut numbers = |name: &str| -> Vec<f64> {
            let data = &tiny.tensor(name).data;
            data.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
        };
        let (w1, b1) = (numbers(&format!("{dense}.weight")), numbers(&format!("{dense}.bias")));
        let (w2, b2) = (numbers(&format!("{name}.weight")), numbers(&format!("{name}.bias")));
        let linear = |w: &[f64], b: &[f64], x: &[f64]| -> Vec<f64> {
            let rows = w.chunks(x.len()).zip(b);
            rows.map(|(w, b)| b + w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>()).collect()
        };
        let results = outputs(tiny.model().unwrap(), &[Head::SequenceClassifier]);
        for (sequence, start) in [0, 7, 10].into_iter().enumerate() {
            let first: Vec<f64> = results[0][start * D..][..D].iter().map(|&x| x.into()).collect();
            let mut pooled = linear(&w1, &b1, &first);
            for x in &mut pooled {
                *x = if family == "distilbert" { x.max(0.0) } else { x.tanh() };
            }
            let expected = linear(&w2, &b2, &pooled);
            for (actual, expected) in results[1][sequence * 3..][..3].iter().zip(expected) {
                assert!((f64::from(*actual) - expected).abs() < 1e-5, "{family}");
            }
        }
    }
}

#[test]
fn xlm_roberta_and_camembert_are_roberta() {
    let tiny = Tiny::new("roberta");
    let expected = outputs(tiny.model().unwrap(), &[]);
    for name in ["xlm-roberta", "camembert"] {
        let model = tiny.clone().set("model_type", json!(name)).model().unwrap();
        assert_eq!(outputs(model, &[]), expected);
    }
}

#[test]
fn roberta_counts_positions_from_behind_its_padding_id() {
    let model = Tiny::new("roberta").model().unwrap();
    assert_eq!(model.config().max_length(), POSITIONS - 2);
    let moved = Tiny::new("roberta").set("pad_token_id", json!(3)).model().unwrap();
    assert_eq!(moved.config().max_length(), POSITIONS - 4);
    assert_ne!(outputs(moved, &[]), outputs(model, &[]));
    // Changing the rows that no token uses changes nothing; changing the first one used does.
    let name = "roberta.embeddings.position_embeddings.weight";
    let expected = outputs(Tiny::new("roberta").model().unwrap(), &[]);
    for (row, same) in [(0, true), (1, true), (2, false), (13, false), (14, true)] {
        let mut tiny = Tiny::new("roberta");
        tiny.tensor(name).data[4 * row * D + 2] ^= 0x40;
        assert_eq!(outputs(tiny.model().unwrap(), &[]) == expected, same, "row {row}");
    }
}

#[test]
fn activations_go_by_their_exact_words() {
    for (word, activation) in [
        ("gelu", Activation::GeluErf),
        ("gelu_new", Activation::GeluTanh),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("quick_gelu", Activation::GeluQuick),
        ("relu", Activation::Relu),
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
    ] {
        let config = Tiny::new("bert").set("hidden_act", json!(word)).config().unwrap();
        let stack = config.encoder.unwrap();
        assert_eq!((stack.activation, stack.activation_word.as_str()), (activation, word));
        let config = Tiny::new("distilbert").set("activation", json!(word)).config().unwrap();
        assert_eq!(config.encoder.unwrap().activation, activation);
    }
}

#[test]
fn parameters_and_bytes_are_those_of_the_file() {
    for family in FAMILIES {
        let tiny = Tiny::new(family);
        let model = tiny.model().unwrap();
        let in_file: usize = tiny.tensors.iter().map(|t| t.shape.iter().product::<usize>()).sum();
        let counted: usize = model.parameters().iter().map(|(_, count)| count).sum();
        assert_eq!(counted, in_file, "{family}");
        assert!(model.bytes() >= 4 * in_file && model.bytes() < 16 * in_file, "{family}");
    }
}
