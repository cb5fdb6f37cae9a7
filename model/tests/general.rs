//! The general family: every mixture of options against a forward pass in f64, its files, and the families that are special cases
//! of it.

#[path = "support/general.rs"]
mod general;
#[path = "support/reference.rs"]
mod reference;
#[path = "support/tiny.rs"]
mod tiny;

use general::{General, random_config};
use headrow::{
    Batch, Chunk, Config, Family, Input, Model, NormPlacement, Output, Positions,
    RelativePositions, Session, SessionOptions, StackConfig,
};
use reference::{Given, Reference, Rows};
use serde_json::{Value, json};
use std::sync::Arc;
use tiny::{Random, Tensor};

/// Longest sequence of the sessions here.
const LONGEST: usize = 32;

fn session(model: Model) -> Session {
    let options = SessionOptions::default()
        .with_max_tokens(LONGEST)
        .with_max_length(LONGEST)
        .with_max_sequences(4)
        .with_cache_tokens(1024)
        .with_source_tokens(1024)
        .with_threads(1);
    Session::new(&Arc::new(model), &options).unwrap()
}

/// What one stack reads.
struct Content {
    ids: Vec<u32>,
    vectors: Vec<f32>,
}

impl Content {
    fn new(stack: &StackConfig, d_model: usize, length: usize, random: &mut Random) -> Content {
        match &stack.input {
            Input::Tokens(tokens) => {
                let ids = (0..length).map(|_| random.below(tokens.vocabulary) as u32).collect();
                Content { ids, vectors: Vec::new() }
            }
            _ => {
                let vectors = (0..length * d_model).map(|_| random.unit()).collect();
                Content { ids: Vec::new(), vectors }
            }
        }
    }

    fn given(&self) -> Given<'_> {
        match self.ids.is_empty() {
            true => Given::Vectors(&self.vectors),
            false => Given::Ids(&self.ids),
        }
    }

    fn batch<'a>(&'a self, lengths: &'a [usize]) -> Batch<'a> {
        match self.ids.is_empty() {
            true => Batch::vectors(&self.vectors, lengths),
            false => Batch::ragged(&self.ids, lengths),
        }
    }

    fn chunk(&self, sequence: headrow::Sequence) -> Chunk<'_> {
        match self.ids.is_empty() {
            true => Chunk::vectors(sequence, &self.vectors),
            false => Chunk::new(sequence, &self.ids),
        }
    }
}

fn assert_close(what: &str, actual: &[f32], expected: &Rows) {
    let expected: Vec<f64> = expected.iter().flatten().copied().collect();
    assert_eq!(actual.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    for (i, (&a, e)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(a) - e).abs() / largest;
        assert!(error < 2e-5, "{what}: number {i} is {a}, expected {e}");
    }
}

/// What the encoder gives, what the decoder gives and the scores, as far as there are such.
fn outputs(session: &mut Session, source: &Content, target: &Content) -> [Vec<f32>; 3] {
    let config = session.model().config().clone();
    let d = config.d_model;
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    let length = source.ids.len().max(source.vectors.len() / d);
    let lengths = [length];
    if config.encoder.is_some() {
        all[0] = vec![0.0; length * d];
        session.encode(&source.batch(&lengths), &mut all[0]).unwrap();
    }
    let Some(stack) = &config.decoder else { return all };
    let rows = target.ids.len().max(target.vectors.len() / d);
    let scores = rows * stack.vocabulary();
    for (output, place, numbers) in
        [(Output::AllHidden, 1, rows * d), (Output::AllLogits, 2, scores)]
    {
        if numbers == 0 {
            continue;
        }
        let sequence = match config.encoder {
            Some(_) => session.add_sources(&source.batch(&lengths)).unwrap()[0],
            None => session.add().unwrap(),
        };
        all[place] = vec![0.0; numbers];
        session.extend(&[target.chunk(sequence)], output, &mut all[place]).unwrap();
        session.remove(sequence).unwrap();
    }
    all
}

fn contents(config: &Config, random: &mut Random) -> [Content; 2] {
    let mut content = |stack: &Option<StackConfig>| {
        let length = 1 + random.below(13);
        let none = Content { ids: Vec::new(), vectors: Vec::new() };
        stack.as_ref().map_or(none, |stack| Content::new(stack, config.d_model, length, random))
    };
    [content(&config.encoder), content(&config.decoder)]
}

/// Compares a whole model with its definition.
fn check(config: &Config, seed: u64) {
    let mut random = Random(seed);
    let general = General::new(config, seed);
    let reference = Reference::new(&general, LONGEST);
    let mut session = session(general.model().unwrap());
    let [source, target] = contents(config, &mut random);
    let [encoded, decoded, scores] = outputs(&mut session, &source, &target);
    let memory = config.encoder.as_ref().map(|_| reference.encode(source.given()));
    if let Some(memory) = &memory {
        assert_close(&format!("seed {seed}: encoder of {config:?}"), &encoded, memory);
    }
    let Some(stack) = &config.decoder else { return };
    let states = reference.decode(target.given(), memory.as_ref());
    assert_close(&format!("seed {seed}: decoder of {config:?}"), &decoded, &states);
    if stack.vocabulary() > 0 {
        let expected = reference.scores(&states);
        assert_close(&format!("seed {seed}: scores of {config:?}"), &scores, &expected);
    }
}

#[test]
fn models_of_any_mixture_of_options_are_their_definition_in_f64() {
    for seed in 0..300 {
        check(&random_config(&mut Random(seed)), seed);
    }
}

/// Each kind of positions alone in an otherwise plain encoder–decoder.
#[test]
fn every_kind_of_positions_is_its_definition_in_f64() {
    let rotary = headrow::Rotary::new(10_000.0, 4, 64);
    let kinds = [
        RelativePositions::Alibi,
        RelativePositions::Buckets { buckets: 8, max_distance: 6 },
        RelativePositions::Rotary(rotary),
        RelativePositions::None,
    ];
    for (seed, kind) in kinds.into_iter().enumerate() {
        for window in [None, Some(3)] {
            let mut config = small();
            for stack in [&mut config.encoder, &mut config.decoder].into_iter().flatten() {
                (stack.relative, stack.window) = (kind.clone(), window);
            }
            check(&config, seed as u64);
        }
    }
}

/// The paper's Transformer, small.
fn small() -> Config {
    let mut config = Config::base(29, 29);
    config.d_model = 24;
    for stack in [&mut config.encoder, &mut config.decoder].into_iter().flatten() {
        let input = Input::Tokens(headrow::TokenInput::paper(29, 24));
        *stack = StackConfig::paper(input, 2, 24, 3, 40);
    }
    config
}

#[test]
fn a_config_is_the_same_after_it_was_written_and_read() {
    for seed in 0..500 {
        let config = random_config(&mut Random(seed));
        let text = config.to_json().unwrap();
        assert_eq!(Config::from_json(text.as_bytes()).unwrap(), config, "seed {seed}: {text}");
    }
    let mut config = Config::base(100, 90);
    config.special.end = vec![3, 4];
    config.special.decoder_start = Some(5);
    config.architectures = vec!["Mine".to_owned()];
    config.labels = vec!["a".to_owned(), "b".to_owned()];
    let text = config.to_json().unwrap();
    assert_eq!(Config::from_json(text.as_bytes()).unwrap(), config);
}

#[test]
fn what_a_config_leaves_out_is_as_in_the_paper() {
    let stack = json!({"input": {"vocabulary": 29}, "layers": 2, "heads": 3, "d_ff": 40});
    let json = json!({
        "model_type": "headrow-transformer", "d_model": 24, "encoder": stack, "decoder": stack,
    });
    assert_eq!(Config::from_json(json.to_string().as_bytes()).unwrap(), small());
}

#[test]
fn the_papers_models_have_the_papers_sizes() {
    // Rows of tables, d_model, d_ff and what is exact: 6·(4d² + 4d + 2·d·d_ff + d_ff + d + 2·2d) in the encoder and as much in
    // the decoder with another 4d² + 4d + 2d for each layer.
    for (config, d, d_ff) in
        [(Config::base(37_000, 37_000), 512, 2048), (Config::big(37_000, 37_000), 1024, 4096)]
    {
        let attention = 4 * d * d + 4 * d;
        let layer = attention + 2 * d * d_ff + d_ff + d + 4 * d;
        let expected = 37_000 * d + 12 * layer + 6 * (attention + 2 * d);
        let tensors = config.tensors().unwrap();
        let count = |shape: &[usize]| shape.iter().product::<usize>();
        assert_eq!(tensors.iter().map(|(_, shape)| count(shape)).sum::<usize>(), expected);
        // Three uses of one table.
        let words = tensors.iter().filter(|(_, shape)| shape.contains(&37_000)).count();
        assert_eq!(words, 1);
    }
    let separate = Config::base(100, 90).tensors().unwrap();
    let names: Vec<&str> = separate.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"encoder.words.weight") && names.contains(&"decoder.words.weight"));
    assert!(!names.contains(&"read_out.weight") && !names.contains(&"words.weight"));
}

#[test]
fn listed_tensors_are_what_a_model_is_made_of() {
    for seed in 0..60 {
        let general = General::new(&random_config(&mut Random(seed)), seed);
        let listed: usize = general.tensors.iter().map(|t| t.shape.iter().product::<usize>()).sum();
        let model = general.model().unwrap();
        let parameters: usize = model.parameters().iter().map(|(_, count)| count).sum();
        assert_eq!(parameters, listed, "seed {seed}");
        for index in 0..general.tensors.len() {
            let (mut less, mut other) = (general.clone(), general.clone());
            let name = less.tensors.remove(index).name;
            let error = less.model().unwrap_err().to_string();
            // Without its only tensor a layer is not seen in the file.
            assert!(error.contains(&name) || error.contains("layers"), "{name}: {error}");
            let tensor = other.tensor(&name);
            tensor.shape.push(1);
            let error = other.model().unwrap_err().to_string();
            assert!(error.contains(&format!("{name} has shape")), "{error}");
        }
        let mut more = general.clone();
        more.tensors.push(Tensor { name: "more".to_owned(), ..general.tensors[0].clone() });
        let error = more.model().unwrap_err().to_string();
        assert!(error.contains("more is unexpected"), "{error}");
    }
}

#[test]
fn what_cannot_be_computed_is_refused_by_name() {
    let text = small().to_json().unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let cases = [
        ("/encoder/heads", json!(5), "encoder: kv_heads: 3 do not divide 5 heads"),
        ("/encoder/kv_heads", json!(2), "kv_heads: 2 do not divide 3 heads"),
        ("/decoder/placement", json!("parallel"), "placement: side by side"),
        ("/decoder/placement", json!("before"), "placement: before is not supported"),
        ("/decoder/distinct_layers", json!(1), "distinct_layers: every layer of a decoder"),
        ("/decoder/activation", json!("mish"), "activation: mish"),
        ("/decoder/epsilon", json!(0), "epsilon"),
        ("/decoder/window", json!(0), "window: must not be 0"),
        ("/decoder/relative", json!({"kind": "near"}), "kind: near"),
        ("/decoder/relative", json!({"kind": "alibi", "slope": 1}), "slope: not a field"),
        ("/decoder/relative", json!({"kind": "rotary", "width": 3}), "3 of the 8 features"),
        ("/decoder/relative", json!({"kind": "buckets", "buckets": 1}), "1 buckets leave none"),
        ("/encoder/input", json!({"kind": "images"}), "kind: images"),
        ("/encoder/input/vocabulary", json!(30), "shared_words: the tables differ"),
        ("/encoder/input/positions", json!({"kind": "learned"}), "rows: missing"),
        (
            "/decoder/input/positions",
            json!({"kind": "learned", "rows": 9, "first": 1, "padding": 0}),
            "padding: a decoder's positions",
        ),
        ("/read_out", json!({"tie": true}), "tie: not a field"),
        ("/encoder", json!(3), "encoder: expected an object"),
        ("/d_model", json!(0), "d_model: must not be 0"),
    ];
    for (pointer, value, expected) in cases {
        let mut json = json.clone();
        *json.pointer_mut(pointer).unwrap() = value;
        let error = Config::from_json(json.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{pointer}: {error}");
    }
    let mut other = small();
    other.family = Family::Gpt2;
    assert!(other.to_json().unwrap_err().to_string().contains("family: "));
    let mut images = small();
    images.encoder.as_mut().unwrap().input = Input::Patches { image: 4, patch: 2, channels: 1 };
    assert!(images.to_json().unwrap_err().to_string().contains("not images"));
    assert!(images.tensors().unwrap_err().to_string().contains("not images"));
    let mut deep = small();
    let stack = deep.encoder.as_mut().unwrap();
    (stack.layers, stack.distinct_layers) = (1 << 20, 1 << 20);
    assert!(deep.tensors().unwrap_err().to_string().contains("beyond any model"));
}

fn t5_config(more: Value) -> Value {
    let mut config = json!({
        "model_type": "t5", "vocab_size": 29, "d_model": 24, "d_kv": 10, "d_ff": 40, "num_layers": 2,
        "num_decoder_layers": 3, "num_heads": 3, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 10,
    });
    for (field, value) in more.as_object().unwrap() {
        config[field] = value.clone();
    }
    config
}

fn parse(json: &Value) -> headrow::Result<Config> {
    Config::from_json(json.to_string().as_bytes())
}

/// A name of T5's in the general family.
fn from_t5(name: &str) -> String {
    if let Some(side) =
        name.strip_suffix(".block.0.layer.0.SelfAttention.relative_attention_bias.weight")
    {
        return format!("{side}.buckets.weight");
    }
    let last = if name.starts_with("encoder") { 1 } else { 2 };
    let mut name = name.to_owned();
    for (from, to) in [
        ("shared.weight", "words.weight".to_owned()),
        ("lm_head.weight", "read_out.weight".to_owned()),
        ("final_layer_norm", "norm".to_owned()),
        (".block.", ".layers.".to_owned()),
        (".layer.0.layer_norm", ".attention_norm".to_owned()),
        (&format!(".layer.{last}.layer_norm"), ".feed_forward_norm".to_owned()),
        (".layer.1.layer_norm", ".cross_attention_norm".to_owned()),
        (".layer.0.SelfAttention", ".attention".to_owned()),
        (".layer.1.EncDecAttention", ".cross_attention".to_owned()),
        (&format!(".layer.{last}.DenseReluDense"), ".feed_forward".to_owned()),
        (".wi_0.", ".gate.".to_owned()),
        (".wi_1.", ".inner.".to_owned()),
        (".wi.", ".inner.".to_owned()),
        (".wo.", ".outer.".to_owned()),
        (".q.", ".query.".to_owned()),
        (".k.", ".key.".to_owned()),
        (".v.", ".value.".to_owned()),
        (".o.", ".output.".to_owned()),
    ] {
        name = name.replace(from, &to);
    }
    name
}

/// The same model under the general family's names must have the same bits, and is its definition.
fn check_as_general(general: General, rename: impl Fn(Tensor) -> Vec<Tensor>, seed: u64) {
    let mut config = general.config.clone();
    config.family = Family::Paper;
    let [source, target] = contents(&config, &mut Random(seed));
    let own = outputs(&mut session(general.model().unwrap()), &source, &target);
    let renamed = general.renamed(&config, rename);
    let same = outputs(&mut session(renamed.model().unwrap()), &source, &target);
    assert_eq!(own, same);
    check(&config, seed);
}

#[test]
fn t5_is_the_general_family_under_other_names() {
    let versions = [
        json!({}),
        json!({"feed_forward_proj": "gated-gelu", "tie_word_embeddings": false}),
        json!({"feed_forward_proj": "gated-silu", "tie_word_embeddings": false}),
        json!({"architectures": ["T5EncoderModel"], "feed_forward_proj": "gelu"}),
    ];
    for (seed, version) in versions.into_iter().enumerate() {
        let general = General::new(&parse(&t5_config(version)).unwrap(), seed as u64);
        let alone = general.config.decoder.is_none();
        let rename = |tensor: Tensor| {
            let name = match tensor.name.as_str() {
                "shared.weight" if alone => "encoder.words.weight".to_owned(),
                name => from_t5(name),
            };
            vec![Tensor { name, ..tensor }]
        };
        check_as_general(general, rename, seed as u64);
    }
}

#[test]
fn t5_reads_what_its_files_say_of_the_read_out() {
    let tied = parse(&t5_config(json!({}))).unwrap();
    assert_eq!(tied.read_out.scale, 1.0 / 24f32.sqrt());
    let untied = parse(&t5_config(json!({"tie_word_embeddings": false}))).unwrap();
    assert_eq!((untied.read_out.scale, untied.read_out.tied), (1.0, false));
    let unscaled = parse(&t5_config(json!({"scale_decoder_outputs": false}))).unwrap();
    assert_eq!((unscaled.read_out.scale, unscaled.read_out.tied), (1.0, true));
    let [source, target] = contents(&tied, &mut Random(1));
    let scores = |general: &General| {
        let [_, _, scores] = outputs(&mut session(general.model().unwrap()), &source, &target);
        scores
    };
    // Untied in the config and without a matrix of its own: the words.
    let shared = General::new(&tied, 3);
    let expected = scores(&General { config: unscaled.clone(), ..shared.clone() });
    assert_eq!(scores(&General { config: untied, ..shared.clone() }), expected);
    // A matrix in the file is what is meant, also where the config ties.
    let mut own = shared.clone();
    own.config = unscaled;
    let mut words = own.tensor("shared.weight").clone();
    words.name = "lm_head.weight".to_owned();
    own.tensors.push(words);
    assert_eq!(scores(&own), expected);
    own.tensor("lm_head.weight").data[7] ^= 1;
    assert_ne!(scores(&own), expected);
    // The words under their second and third name.
    let expected = scores(&shared);
    let mut copies = shared;
    for name in ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"] {
        let words = Tensor { name: name.to_owned(), ..copies.tensor("shared.weight").clone() };
        copies.tensors.push(words);
    }
    assert_eq!(scores(&copies), expected);
}

#[test]
fn t5_refuses_by_name() {
    for (more, expected) in [
        (json!({"feed_forward_proj": "mish"}), "feed_forward_proj: mish"),
        (json!({"feed_forward_proj": "open-relu"}), "feed_forward_proj: open-relu"),
        (json!({"dense_act_fn": "tanh"}), "dense_act_fn: tanh"),
        (json!({"is_decoder": true}), "is_decoder"),
        (json!({"is_encoder_decoder": false}), "is_encoder_decoder"),
        (json!({"relative_attention_num_buckets": 3}), "relative_attention_num_buckets: 3"),
        (json!({"relative_attention_max_distance": 2}), "relative_attention_max_distance: 2"),
        (json!({"num_heads": 0}), "num_heads: must not be 0"),
        (json!({"layer_norm_epsilon": -1}), "layer_norm_epsilon"),
    ] {
        let error = parse(&t5_config(more)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    for (word, activation, gated) in [
        ("relu", "relu", false),
        ("gelu", "gelu", false),
        ("gated-gelu", "gelu_new", true),
        ("gated-relu", "relu", true),
    ] {
        let config = parse(&t5_config(json!({"feed_forward_proj": word}))).unwrap();
        let stack = config.decoder.unwrap();
        assert_eq!(
            (stack.activation_word.as_str(), stack.gating == headrow::Gating::Gated),
            (activation, gated)
        );
    }
}

fn torch_config(more: Value) -> Value {
    let mut config = json!({
        "model_type": "torch.nn.Transformer", "d_model": 24, "nhead": 3, "num_encoder_layers": 2,
        "num_decoder_layers": 3, "dim_feedforward": 40,
    });
    for (field, value) in more.as_object().unwrap() {
        config[field] = value.clone();
    }
    config
}

/// A tensor of `torch.nn.Transformer` in the general family: one matrix of queries, keys and values is three.
fn from_torch(tensor: Tensor) -> Vec<Tensor> {
    let cross = if tensor.name.starts_with("encoder") { "" } else { "norm3" };
    let mut name = tensor.name.clone();
    for (from, to) in [
        (".self_attn.", ".attention."),
        (".multihead_attn.", ".cross_attention."),
        (".out_proj.", ".output."),
        (".linear1.", ".feed_forward.inner."),
        (".linear2.", ".feed_forward.outer."),
        (".norm1.", ".attention_norm."),
        (".norm3.", ".feed_forward_norm."),
    ] {
        name = name.replace(from, to);
    }
    let second = if cross.is_empty() { ".feed_forward_norm." } else { ".cross_attention_norm." };
    name = name.replace(".norm2.", second);
    let Some((attention, kind)) = name.split_once(".in_proj_") else {
        return vec![Tensor { name, ..tensor }];
    };
    let third = tensor.data.len() / 3;
    let parts = ["query", "key", "value"].into_iter().zip(tensor.data.chunks(third));
    parts
        .map(|(part, data)| {
            let mut shape = tensor.shape.clone();
            shape[0] /= 3;
            let name = format!("{attention}.{part}.{kind}");
            Tensor { name, dtype: tensor.dtype, shape, data: data.to_vec() }
        })
        .collect()
}

#[test]
fn torch_nn_transformer_is_the_general_family_under_other_names() {
    let versions = [
        json!({}),
        json!({"norm_first": true, "activation": "gelu"}),
        json!({"norm_first": true, "bias": false, "layer_norm_eps": 1e-6}),
    ];
    for (seed, version) in versions.into_iter().enumerate() {
        let config = parse(&torch_config(version)).unwrap();
        assert_eq!(config.encoder.as_ref().unwrap().placement == NormPlacement::Pre, seed > 0);
        check_as_general(General::new(&config, seed as u64), from_torch, seed as u64);
    }
}

#[test]
fn torch_nn_transformer_refuses_by_name() {
    for (more, expected) in [
        (json!({"activation": "silu"}), "activation: silu"),
        (json!({"nhead": 5}), "nhead: 5 heads do not divide 24"),
        (json!({"norm_first": 1}), "norm_first: expected true or false"),
        (json!({"layer_norm_eps": 0}), "layer_norm_eps"),
        (json!({"dim_feedforward": 0}), "dim_feedforward: must not be 0"),
    ] {
        let error = parse(&torch_config(more)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut general = General::new(&parse(&torch_config(json!({}))).unwrap(), 1);
    general.tensors.retain(|tensor| tensor.name != "decoder.norm.bias");
    let error = general.model().unwrap_err().to_string();
    assert!(error.contains("decoder.norm.bias is missing"), "{error}");
}

#[test]
fn an_encoder_without_learned_positions_has_no_longest_sequence() {
    let config = small();
    assert_eq!(config.max_length(), StackConfig::UNLIMITED);
    let mut learned = config;
    let stack = learned.decoder.as_mut().unwrap();
    if let Input::Tokens(tokens) = &mut stack.input {
        tokens.positions = Positions::Learned { rows: 12, first: 2, padding: None };
    }
    assert_eq!(learned.max_length(), 10);
}
