//! Families of checkpoints: what each config says, which tensors it asks for, and what is refused.

#[path = "support/tiny.rs"]
mod tiny;

use headrow::{
    Batch, Chunk, Config, Error, Head, Model, NormPlacement, Output, Positions, RelativePositions,
    ScoreScale, Session, SessionOptions, StackConfig, Widening,
};
use serde_json::{Value, json};
use std::sync::Arc;
use tiny::{D, DECODERS, POSITIONS, Random, Tiny, V, file, sequences};

/// Scores of the word after each of eleven tokens.
fn logits(tiny: &Tiny) -> Vec<f32> {
    let model = Arc::new(tiny.model().unwrap());
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let ids = sequences(5, &[11]);
    let sequence = session.add().unwrap();
    let mut out = vec![f32::NAN; ids.len() * V];
    session.extend(&[Chunk::new(sequence, &ids)], Output::AllLogits, &mut out).unwrap();
    assert!(out.iter().all(|x| x.is_finite()));
    out
}

fn error(tiny: &Tiny) -> Error {
    tiny.model().unwrap_err()
}

fn decoder(tiny: &Tiny) -> StackConfig {
    tiny.config().unwrap().decoder.unwrap()
}

/// The values of a tensor.
fn numbers(tiny: &mut Tiny, name: &str) -> Vec<f32> {
    let data = &tiny.tensor(name).data;
    data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn assert_close(actual: &[f32], expected: &[f32], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    for (actual, expected) in actual.iter().zip(expected) {
        assert!((actual - expected).abs() <= 2e-5 * largest, "{what}: {actual}, {expected}");
    }
}

#[test]
fn decoders_load_with_weights_of_any_float_type() {
    for family in DECODERS {
        let tiny = Tiny::new(family);
        let expected = logits(&tiny);
        for dtype in ["F16", "BF16"] {
            assert_eq!(logits(&tiny.clone().stored_as(dtype)), expected, "{family} in {dtype}");
        }
    }
}

#[test]
fn parameters_are_those_of_the_file() {
    for family in DECODERS.into_iter().chain(["vit", "albert"]) {
        let tiny = Tiny::new(family);
        let in_file: usize = tiny.tensors.iter().map(|t| t.shape.iter().product::<usize>()).sum();
        let model = tiny.model().unwrap();
        assert_eq!(model.parameters().iter().map(|(_, count)| count).sum::<usize>(), in_file);
    }
}

#[test]
fn names_are_found_without_the_prefix_of_the_family() {
    let prefixes = [
        ("gpt2", "transformer."),
        ("gpt_neox", "gpt_neox."),
        ("opt", "model."),
        ("opt", "model.decoder."),
        ("llama", "model."),
    ];
    for (family, prefix) in prefixes {
        let tiny = Tiny::new(family);
        let expected = logits(&tiny);
        let bare = |name: &str| name.strip_prefix(prefix).unwrap_or(name).to_owned();
        assert_eq!(logits(&tiny.renamed(bare)), expected, "{family}");
    }
    let tiny = Tiny::new("vit");
    let bare = |name: &str| name.strip_prefix("vit.").unwrap_or(name).to_owned();
    assert_eq!(predict(&tiny.clone().renamed(bare), Head::Pooler), predict(&tiny, Head::Pooler));
}

/// The name of a family's table of words, and of its read-out when that is another one.
fn ends(family: &str) -> (&'static str, &'static str) {
    match family {
        "gpt2" => ("transformer.wte.weight", "lm_head.weight"),
        "gpt_neox" => ("gpt_neox.embed_in.weight", "embed_out.weight"),
        "opt" => ("model.decoder.embed_tokens.weight", "lm_head.weight"),
        _ => ("model.embed_tokens.weight", "lm_head.weight"),
    }
}

#[test]
fn a_read_out_is_the_words_or_its_own_as_the_config_says() {
    for family in DECODERS {
        let (words, read_out) = ends(family);
        let mut tied = Tiny::new(family).set("tie_word_embeddings", json!(true));
        tied.tensors.retain(|tensor| tensor.name != read_out);
        let expected = logits(&tied);
        let mut copy = tied.tensor(words).clone();
        copy.name = read_out.to_owned();
        copy.data[3] ^= 0x80;
        // A tied read-out that is saved twice is passed over.
        tied.tensors.push(copy.clone());
        assert_eq!(logits(&tied), expected, "{family}");
        let mut untied = tied.set("tie_word_embeddings", json!(false));
        assert_ne!(logits(&untied), expected, "{family}");
        untied.tensor(read_out).data[3] ^= 0x80;
        assert_eq!(logits(&untied), expected, "{family}");
        untied.remove(read_out);
        let message = error(&untied).to_string();
        assert!(message.contains(&format!("{read_out} is missing")), "{message}");
    }
}

#[test]
fn each_tensor_is_asked_for_with_its_shape_and_no_other() {
    for family in DECODERS.into_iter().chain(["vit", "albert"]) {
        let tiny = Tiny::new(family);
        let config = tiny.config().unwrap();
        let refusal = |tiny: &Tiny, name: &str| {
            let error = Model::from_bytes(&config, &file(&tiny.tensors)).unwrap_err();
            assert!(matches!(error, Error::Weights { .. }), "{family}, {name}: {error}");
            error.to_string()
        };
        for at in 0..tiny.tensors.len() {
            let mut damaged = tiny.clone();
            let tensor = damaged.tensors.remove(at);
            // The last two words of its name, whatever prefix the family has.
            let tail = tensor.name.rmatch_indices('.').nth(1).map_or(0, |(at, _)| at + 1);
            let missing = format!("{} is missing", &tensor.name[tail..]);
            assert!(refusal(&damaged, &tensor.name).contains(&missing), "{family}: {missing}");
            let mut damaged = tiny.clone();
            *damaged.tensors[at].shape.last_mut().unwrap() += 1;
            damaged.tensors[at].data =
                vec![0; 4 * damaged.tensors[at].shape.iter().product::<usize>()];
            assert!(refusal(&damaged, &tensor.name).contains("has shape"), "{}", tensor.name);
        }
        let mut more = tiny.clone();
        more.floats("somewhere.weight", &[3], &mut Random(1));
        assert!(refusal(&more, "more").contains("somewhere.weight is unexpected"));
    }
}

#[test]
fn what_families_are_known_to_leave_in_their_files_does_no_harm() {
    let extras = [
        ("gpt2", "transformer.h.0.attn.bias"),
        ("gpt2", "transformer.h.1.attn.masked_bias"),
        ("gpt_neox", "gpt_neox.layers.1.attention.bias"),
        ("gpt_neox", "gpt_neox.layers.0.attention.masked_bias"),
        ("gpt_neox", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
    ];
    for (family, name) in extras {
        let mut tiny = Tiny::new(family);
        let expected = logits(&tiny);
        tiny.floats(name, &[1, 1, 3, 3], &mut Random(1));
        assert_eq!(logits(&tiny), expected, "{name}");
    }
    // Options of other kinds of models that say nothing.
    let silent = [("alibi", json!(false)), ("pruned_heads", json!({})), ("qk_norm", json!(null))];
    let mut bert = Tiny::new("bert");
    for (field, value) in silent {
        bert = bert.set(field, value);
    }
    assert!(bert.model().is_ok());
    let mut vit = Tiny::new("vit");
    vit.floats("vit.embeddings.mask_token", &[1, 1, D], &mut Random(1));
    assert!(vit.model().is_ok());
}

#[test]
fn configs_that_say_what_is_not_computed_are_refused_by_field() {
    let wrong: &[(&str, &str, Value)] = &[
        ("gpt2", "activation_function", json!("mish")),
        ("gpt2", "scale_attn_weights", json!(false)),
        ("gpt2", "add_cross_attention", json!(true)),
        ("gpt2", "n_head", json!(5)),
        ("gpt2", "n_positions", json!(0)),
        ("gpt2", "n_embd", json!("24")),
        ("gpt2", "vocab_size", json!(null)),
        ("gpt2", "layer_norm_epsilon", json!(0)),
        ("gpt2", "eos_token_id", json!(-1)),
        ("gpt2", "eos_token_id", json!([1, "2"])),
        ("gpt_neox", "hidden_act", json!("gelu_fast")),
        ("gpt_neox", "rotary_pct", json!(0)),
        ("gpt_neox", "rotary_pct", json!(1.5)),
        ("gpt_neox", "rotary_emb_base", json!("far")),
        ("gpt_neox", "use_parallel_residual", json!("yes")),
        ("gpt_neox", "max_position_embeddings", json!(null)),
        ("gpt_neox", "rope_scaling", json!({"type": "mixed", "factor": 2.0})),
        ("gpt_neox", "num_attention_heads", json!(5)),
        ("opt", "layer_norm_elementwise_affine", json!(false)),
        ("opt", "activation_function", json!("gelu_10")),
        ("opt", "word_embed_proj_dim", json!(0)),
        ("opt", "ffn_dim", json!(null)),
        ("opt", "do_layer_norm_before", json!(1)),
        ("llama", "rope_scaling", json!({"rope_type": "longrope", "factor": 2.0})),
        ("llama", "rope_scaling", json!({"rope_type": "llama3", "factor": 2.0})),
        ("llama", "rope_parameters", json!({"rope_type": "default", "spiral": 1})),
        ("llama", "rope_theta", json!(-1)),
        ("llama", "num_key_value_heads", json!(3)),
        ("llama", "num_key_value_heads", json!(0)),
        ("llama", "head_dim", json!(7)),
        ("llama", "head_dim", json!(0)),
        ("llama", "hidden_act", json!("swiglu")),
        ("llama", "rms_norm_eps", json!(-1e-6)),
        ("mistral", "sliding_window", json!(0)),
        ("mistral", "sliding_window", json!("none")),
        ("mistral", "attention_bias", json!(true)),
        ("mistral", "mlp_bias", json!(true)),
        ("qwen2", "use_sliding_window", json!(true)),
        ("qwen2", "layer_types", json!(["full_attention", "sliding_attention"])),
        ("qwen2", "mlp_bias", json!(true)),
        ("albert", "inner_group_num", json!(2)),
        ("albert", "num_hidden_groups", json!(3)),
        ("albert", "num_hidden_groups", json!(0)),
        ("albert", "num_hidden_groups", json!(8)),
        ("albert", "embedding_size", json!(0)),
        ("albert", "position_embedding_type", json!("relative_key")),
        ("albert", "is_decoder", json!(true)),
        ("vit", "patch_size", json!(4)),
        ("vit", "patch_size", json!([5, 3])),
        ("vit", "image_size", json!([15, 20])),
        ("vit", "image_size", json!([15.5, 15.5])),
        ("vit", "image_size", json!(0)),
        ("vit", "num_channels", json!(0)),
        ("vit", "pooler_act", json!("relu")),
        ("vit", "pooler_output_size", json!(12)),
        ("vit", "hidden_act", json!("tanh")),
        ("vit", "num_attention_heads", json!(5)),
        // Options of other kinds of models.
        ("llama", "attention_multiplier", json!(0.02)),
        ("llama", "num_local_experts", json!(8)),
        ("qwen2", "use_qk_norm", json!(true)),
        ("gpt2", "logit_scale", json!(0.5)),
        ("bert", "alibi", json!(true)),
        ("bert", "pruned_heads", json!({"0": [1]})),
        ("opt", "quantization_config", json!({"bits": 4})),
    ];
    for (family, field, value) in wrong {
        let error = Tiny::new(family).set(field, value.clone()).config().unwrap_err();
        let named = match &error {
            Error::Config { field, .. } | Error::Unsupported { field, .. } => field.clone(),
            _ => panic!("{family}: {field} = {value}: {error}"),
        };
        let relative = ["rotary_pct", "rope_scaling", "rope_parameters", "head_dim"];
        // What is wrong inside these is named by what it means.
        assert!(
            named.contains(field) || relative.contains(field),
            "{family}: {field} = {value} is called {named}: {error}"
        );
    }
}

#[test]
fn options_of_gpt2_reach_the_layers() {
    let tiny = Tiny::new("gpt2");
    let stack = decoder(&tiny);
    assert_eq!((stack.placement, stack.final_norm), (NormPlacement::Pre, true));
    assert_eq!(stack.activation_word, "gelu_new");
    assert_eq!(stack.max_length(), POSITIONS);
    let scaled = tiny.clone().set("scale_attn_by_inverse_layer_idx", json!(true));
    assert_eq!(decoder(&scaled).scale, ScoreScale::PaperByLayer);
    assert_ne!(logits(&scaled), logits(&tiny));
    let config = tiny.set("n_inner", json!(null)).config().unwrap();
    assert_eq!(config.decoder.unwrap().d_ff, 4 * D);
    let ends = Tiny::new("gpt2").set("eos_token_id", json!([3, 4])).set("bos_token_id", json!(2));
    let special = ends.config().unwrap().special;
    assert_eq!((special.begin, special.end), (Some(2), vec![3, 4]));
}

#[test]
fn options_of_gpt_neox_reach_the_layers() {
    let tiny = Tiny::new("gpt_neox");
    let stack = decoder(&tiny);
    assert_eq!((stack.placement, stack.final_norm), (NormPlacement::Parallel, true));
    let RelativePositions::Rotary(rotary) = stack.relative else { panic!("no rotary") };
    assert_eq!((rotary.width, rotary.base), (4, 10000.0));
    let expected = logits(&tiny);
    let one_by_one = tiny.clone().set("use_parallel_residual", json!(false));
    assert_eq!(decoder(&one_by_one).placement, NormPlacement::Pre);
    assert_ne!(logits(&one_by_one), expected);
    // The same numbers under the names of newer files.
    let mut newer = tiny.clone().set("rope_parameters", json!({"partial_rotary_factor": 0.5}));
    newer.config.as_object_mut().unwrap().remove("rotary_pct");
    assert_eq!(logits(&newer), expected);
    // Silence means a quarter, here a single pair.
    newer.config.as_object_mut().unwrap().remove("rope_parameters");
    let RelativePositions::Rotary(rotary) = decoder(&newer).relative else { panic!("no rotary") };
    assert_eq!(rotary.width, 2);
    let bare = Tiny::of(tiny.set("attention_bias", json!(false)).config, 7);
    assert!(!bare.tensors.iter().any(|t| t.name.ends_with("attention.dense.bias")));
    logits(&bare);
}

#[test]
fn a_fused_map_has_query_key_and_value_of_one_head_after_another() {
    // Without positions and parallel residuals, a NeoX of one head is a NeoX whose fused map is plainly [Q K V];
    // with three heads the rows must be dealt out. Exchanging two heads everywhere changes nothing but roundings.
    let mut tiny = Tiny::new("gpt_neox");
    let expected = logits(&tiny);
    let d_k = D / 3;
    for layer in 0..2 {
        for (part, width) in [("weight", D), ("bias", 1)] {
            let name = format!("gpt_neox.layers.{layer}.attention.query_key_value.{part}");
            let block = 3 * d_k * width * 4;
            let data = &mut tiny.tensor(&name).data;
            let (first, second) = data.split_at_mut(block);
            first.swap_with_slice(&mut second[..block]);
        }
        let name = format!("gpt_neox.layers.{layer}.attention.dense.weight");
        for row in tiny.tensor(&name).data.chunks_mut(4 * D) {
            let (first, second) = row.split_at_mut(4 * d_k);
            first.swap_with_slice(&mut second[..4 * d_k]);
        }
    }
    assert_close(&logits(&tiny), &expected, "heads exchanged");
}

#[test]
fn options_of_opt_reach_the_layers() {
    let tiny = Tiny::new("opt");
    let stack = decoder(&tiny);
    let tokens = stack.tokens().unwrap();
    assert_eq!((tokens.width, tokens.widening), (17, Widening::Words));
    assert_eq!((stack.max_length(), stack.final_norm), (POSITIONS, true));
    let Positions::Learned { rows, first, .. } = tokens.positions else { panic!("no table") };
    assert_eq!((rows, first), (POSITIONS + 2, 2));
    let cases = [
        ("do_layer_norm_before", json!(false), NormPlacement::Post, false),
        ("_remove_final_layer_norm", json!(true), NormPlacement::Pre, false),
        ("enable_bias", json!(false), NormPlacement::Pre, true),
        ("word_embed_proj_dim", json!(D), NormPlacement::Pre, true),
    ];
    for (field, value, placement, final_norm) in cases {
        let changed = Tiny::of(tiny.clone().set(field, value).config, 7);
        let stack = decoder(&changed);
        assert_eq!((stack.placement, stack.final_norm), (placement, final_norm), "{field}");
        logits(&changed);
    }
}

/// a (rows × inner) times bᵀ (columns × inner), in f64.
fn product(a: &[f32], b: &[f32], inner: usize) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    a.chunks(inner).flat_map(|a| b.chunks(inner).map(move |b| dot(a, b) as f32)).collect()
}

#[test]
fn narrow_words_and_the_maps_around_the_layers_are_wide_words_multiplied_out() {
    let mut narrow = Tiny::new("opt");
    let mut wide = Tiny::of(narrow.clone().set("word_embed_proj_dim", json!(D)).config, 7)
        .set("tie_word_embeddings", json!(false));
    let words = numbers(&mut narrow, "model.decoder.embed_tokens.weight");
    let inwards = numbers(&mut narrow, "model.decoder.project_in.weight");
    let outwards = numbers(&mut narrow, "model.decoder.project_out.weight");
    // v × 17 by (d × 17)ᵀ, and v × 17 by 17 × d.
    let entering = product(&words, &inwards, 17);
    let columns: Vec<f32> =
        (0..D).flat_map(|j| outwards.chunks(D).map(move |row| row[j])).collect();
    let leaving = product(&words, &columns, 17);
    for tensor in &narrow.tensors {
        if !tensor.name.contains("project_") && !tensor.name.ends_with("embed_tokens.weight") {
            *wide.tensor(&tensor.name) = tensor.clone();
        }
    }
    let bytes =
        |values: Vec<f32>| values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    wide.tensor("model.decoder.embed_tokens.weight").data = bytes(entering);
    wide.floats("lm_head.weight", &[V, D], &mut Random(1));
    wide.tensor("lm_head.weight").data = bytes(leaving);
    assert_close(&logits(&narrow), &logits(&wide), "narrow words");
}

#[test]
fn options_of_llama_mistral_and_qwen2_reach_the_layers() {
    let stack = decoder(&Tiny::new("llama"));
    assert_eq!((stack.heads, stack.kv_heads, stack.d_k, stack.d_v), (4, 2, 10, 10));
    let biases = stack.biases;
    assert!(!biases.queries_keys_values && !biases.attention_output && !biases.feed_forward);
    assert_eq!(stack.window, None);
    // Llama has no windows, whatever its file says.
    let ignored = Tiny::new("llama").set("sliding_window", json!(3));
    assert_eq!(decoder(&ignored).window, None);
    let config = Tiny::new("llama").set("attention_bias", json!(true)).set("mlp_bias", json!(true));
    let biased = Tiny::of(config.config, 7);
    let biases = decoder(&biased).biases;
    assert!(biases.queries_keys_values && biases.attention_output && biases.feed_forward);
    logits(&biased);
    let alone = Tiny::new("llama").set("num_key_value_heads", json!(null));
    assert_eq!(decoder(&alone).kv_heads, 4);

    let mistral = Tiny::new("mistral");
    assert_eq!((decoder(&mistral).window, decoder(&mistral).kv_heads), (Some(5), 1));
    let all = mistral.clone().set("sliding_window", json!(null));
    assert_eq!(decoder(&all).window, None);
    // The first five tokens see the same with a window of five and without; the sixth does not.
    let (windowed, whole) = (logits(&mistral), logits(&all));
    assert_eq!(windowed[..5 * V], whole[..5 * V]);
    assert_ne!(windowed[5 * V..6 * V], whole[5 * V..6 * V]);
    let mut silent = mistral;
    silent.config.as_object_mut().unwrap().remove("sliding_window");
    assert_eq!(decoder(&silent).window, Some(4096));

    let qwen2 = Tiny::new("qwen2").set("sliding_window", json!(2));
    let biases = decoder(&qwen2).biases;
    assert!(biases.queries_keys_values && !biases.attention_output);
    assert_eq!(decoder(&qwen2).window, None);
    let types = json!(["full_attention", "full_attention"]);
    assert_eq!(logits(&qwen2.clone().set("layer_types", types)), logits(&qwen2));
}

/// What a head makes of three sequences, or of two images.
fn predict(tiny: &Tiny, head: Head) -> Vec<f32> {
    let model = Arc::new(tiny.model().unwrap());
    let mut session = Session::new(&model, &SessionOptions::default().with_max_tokens(40)).unwrap();
    session.warm_up().unwrap();
    let lengths = [7, 3, 12];
    let ids = sequences(1, &lengths);
    let pixels = pixels(2);
    let batch = match model.config().encoder.as_ref().unwrap().tokens() {
        Some(_) => Batch::ragged(&ids, &lengths),
        None => Batch::images(&pixels, 2),
    };
    let tokens = session.rows_of(&batch).unwrap();
    let (rows, cols) = model.output_shape(head, tokens, batch.sequences()).unwrap();
    let mut out = vec![f32::NAN; rows * cols];
    session.predict(&batch, head, &mut out).unwrap();
    out
}

/// Images of [`Tiny::new`]'s ViT.
fn pixels(count: usize) -> Vec<f32> {
    let mut random = Random(3);
    (0..count * 2 * 15 * 15).map(|_| random.unit()).collect()
}

#[test]
fn groups_of_albert_are_layers_that_share_their_weights() {
    let mut tiny = Tiny::new("albert");
    let config = tiny.config().unwrap().encoder.unwrap();
    assert_eq!((config.layers, config.distinct_layers), (4, 2));
    assert_eq!(config.tokens().unwrap().width, 16);
    let apart = predict(&tiny, Head::MaskedLm);
    // With two equal groups it is the model with one group for as many layers.
    let groups = |group| format!("albert.encoder.albert_layer_groups.{group}.");
    let first: Vec<tiny::Tensor> =
        tiny.tensors.iter().filter(|t| t.name.starts_with(&groups(0))).cloned().collect();
    for tensor in first {
        tiny.tensor(&tensor.name.replace(&groups(0), &groups(1))).data = tensor.data;
    }
    let together = predict(&tiny, Head::MaskedLm);
    assert_ne!(together, apart);
    let mut one = tiny.set("num_hidden_groups", json!(1));
    one.tensors.retain(|tensor| !tensor.name.starts_with(&groups(1)));
    assert_eq!(predict(&one, Head::MaskedLm), together);
}

#[test]
fn images_have_the_same_bits_alone_and_together_and_a_classifier_on_their_first_token() {
    let mut tiny = Tiny::new("vit");
    let model = Arc::new(tiny.model().unwrap());
    let options = SessionOptions::default().with_max_tokens(20).with_max_sequences(2);
    let mut session = Session::new(&model, &options).unwrap();
    let pixels = pixels(2);
    let mut states = vec![f32::NAN; 2 * 10 * D];
    session.encode(&Batch::images(&pixels, 2), &mut states).unwrap();
    for (image, states) in pixels.chunks(2 * 15 * 15).zip(states.chunks(10 * D)) {
        let mut alone = vec![f32::NAN; 10 * D];
        session.encode(&Batch::images(image, 1), &mut alone).unwrap();
        assert_eq!(alone, states);
    }
    let first: Vec<f32> = states.chunks(10 * D).flat_map(|image| &image[..D]).copied().collect();
    let weight = numbers(&mut tiny, "classifier.weight");
    let bias = numbers(&mut tiny, "classifier.bias");
    let expected = product(&first, &weight, D);
    let expected: Vec<f32> = expected.iter().zip(bias.iter().cycle()).map(|(x, b)| x + b).collect();
    assert_close(&predict(&tiny, Head::SequenceClassifier), &expected, "classifier");
    let weight = numbers(&mut tiny, "vit.pooler.dense.weight");
    let bias = numbers(&mut tiny, "vit.pooler.dense.bias");
    let expected = product(&first, &weight, D);
    let expected: Vec<f32> =
        expected.iter().zip(bias.iter().cycle()).map(|(x, b)| (x + b).tanh()).collect();
    assert_close(&predict(&tiny, Head::Pooler), &expected, "pooler");
}

#[test]
fn inputs_of_the_wrong_kind_or_size_are_refused() {
    let model = Arc::new(Tiny::new("vit").model().unwrap());
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let pixels = pixels(2);
    let mut states = vec![0.0; 10 * D];
    let refused = session.encode(&Batch::one(&[1, 2]), &mut states).unwrap_err();
    assert!(matches!(refused, Error::WrongInput { expected: "images", actual: "tokens" }));
    let refused = session.encode(&Batch::images(&pixels[1..], 2), &mut states).unwrap_err();
    assert!(matches!(refused, Error::Lengths { expected: 900, actual: 899, .. }), "{refused}");
    let refused = session.encode(&Batch::images(&pixels, 2), &mut states).unwrap_err();
    assert!(matches!(refused, Error::BatchTooLarge { .. }), "{refused}");
    session.encode(&Batch::images(&pixels[..450], 1), &mut states).unwrap();
    assert!(session.add().is_err());
    // And images are nothing to a reader of texts.
    let model = Arc::new(Tiny::new("albert").model().unwrap());
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let refused = session.encode(&Batch::images(&pixels, 2), &mut states).unwrap_err();
    assert!(matches!(refused, Error::WrongInput { expected: "tokens", .. }), "{refused}");
}

#[test]
fn a_config_that_was_changed_to_another_stack_is_refused_when_it_is_loaded() {
    let swap = |config: &mut Config| std::mem::swap(&mut config.encoder, &mut config.decoder);
    for family in DECODERS.into_iter().chain(["vit", "bert"]) {
        let tiny = Tiny::new(family);
        let mut config = tiny.config().unwrap();
        swap(&mut config);
        let error = Model::from_bytes(&config, &file(&tiny.tensors)).unwrap_err();
        assert!(matches!(error, Error::NoStack { .. }), "{family}: {error}");
    }
    // Nor is there a second stack because the config speaks of one.
    for family in DECODERS.into_iter().chain(["vit", "bert"]) {
        let tiny = Tiny::new(family);
        let mut config = tiny.config().unwrap();
        let only = config.encoder.clone().or(config.decoder.clone());
        (config.encoder, config.decoder) = (only.clone(), only);
        let error = Model::from_bytes(&config, &file(&tiny.tensors)).unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{family}: {error}");
    }
    // Heads that do not fit the file are a matter of its tensors.
    for family in DECODERS {
        let tiny = Tiny::new(family);
        let mut config = tiny.config().unwrap();
        config.decoder.as_mut().unwrap().kv_heads = 1;
        let same = tiny.config().unwrap() == config;
        let result = Model::from_bytes(&config, &file(&tiny.tensors));
        assert_eq!(result.is_ok(), same, "{family}");
    }
}
