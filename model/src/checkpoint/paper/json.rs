//! `config.json` of this library's own family, read and written. What is absent is as in the paper; an unknown field or word is
//! an error.

use crate::config::{
    Biases, Config, Family, Fields, Gating, Input, NormKind, NormPlacement, Positions,
    ReadOutConfig, RelativePositions, ScoreScale, StackConfig, TokenInput, Widening,
};
use crate::error::{Error, Result};
use crate::position::{Rotary, RotaryScaling, SinusoidLayout};
use headrow_kernels::{Activation, RopeLayout};
use serde_json::{Map, Value, json};

type Words<T> = [(&'static str, T)];

const ACTIVATIONS: &Words<Activation> = &[
    ("relu", Activation::Relu),
    ("gelu", Activation::GeluErf),
    ("gelu_new", Activation::GeluTanh),
    ("quick_gelu", Activation::GeluQuick),
    ("silu", Activation::Silu),
];
const SCORE_SCALES: &Words<ScoreScale> = &[
    ("paper", ScoreScale::Paper),
    ("one", ScoreScale::One),
    ("paper_by_layer", ScoreScale::PaperByLayer),
];
const GATINGS: &Words<Gating> = &[("none", Gating::None), ("gated", Gating::Gated)];
const NORMS: &Words<NormKind> = &[("layer", NormKind::Layer), ("rms", NormKind::Rms)];
const WIDENINGS: &Words<Widening> = &[("sum", Widening::Sum), ("words", Widening::Words)];
const PLACEMENTS: &Words<NormPlacement> = &[
    ("post", NormPlacement::Post),
    ("pre", NormPlacement::Pre),
    ("parallel", NormPlacement::Parallel),
];
const LAYOUTS: &Words<SinusoidLayout> = &[
    ("paper", SinusoidLayout::Paper),
    ("marian", SinusoidLayout::Marian),
    ("tensor2tensor", SinusoidLayout::Tensor2Tensor),
];
const ROPES: &Words<RopeLayout> =
    &[("half_split", RopeLayout::HalfSplit), ("interleaved", RopeLayout::Interleaved)];

/// The word of a value. A table has all values that are computed here.
fn word<T: PartialEq>(words: &Words<T>, value: &T) -> &'static str {
    words.iter().find(|(_, known)| known == value).map_or("unnamed", |(word, _)| word)
}

/// The decimal number of fewest digits that is `x` again.
fn short(x: f32) -> Value {
    json!(x.to_string().parse::<f64>().unwrap_or(f64::from(x)))
}

pub(super) fn read(fields: &Fields<'_>, family: Family) -> Result<Config> {
    fields.only(&[
        "model_type",
        "architectures",
        "id2label",
        "d_model",
        "encoder",
        "decoder",
        "shared_words",
        "read_out",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "decoder_start_token_id",
    ])?;
    let d_model = fields.size("d_model", None)?;
    let mut config = Config::empty(family, d_model);
    config.encoder = fields.within("encoder", |fields| read_stack(fields, d_model))?;
    config.decoder = fields.within("decoder", |fields| read_stack(fields, d_model))?;
    config.shared_words = fields.flag("shared_words", true)?;
    let read_out = fields.within("read_out", |fields| {
        fields.only(&["tied", "scale", "bias"])?;
        Ok(ReadOutConfig {
            tied: fields.flag("tied", true)?,
            scale: fields.number("scale", 1.0)? as f32,
            bias: fields.flag("bias", false)?,
        })
    })?;
    config.read_out = read_out.unwrap_or_default();
    config.special = fields.special_tokens()?;
    Ok(config)
}

fn read_stack(fields: &Fields<'_>, d_model: usize) -> Result<StackConfig> {
    fields.only(&[
        "input",
        "layers",
        "distinct_layers",
        "heads",
        "kv_heads",
        "d_k",
        "d_v",
        "score_scale",
        "softcap",
        "relative",
        "window",
        "d_ff",
        "activation",
        "gating",
        "biases",
        "norm",
        "epsilon",
        "placement",
        "final_norm",
    ])?;
    let input = fields.within("input", |fields| read_input(fields, d_model))?;
    let input = input.ok_or_else(|| fields.wrong("input", "missing"))?;
    let (layers, heads) = (fields.size("layers", None)?, fields.size("heads", None)?);
    let paper = StackConfig::paper(input, layers, d_model, heads, fields.size("d_ff", None)?);
    let d_k = fields.size("d_k", Some(paper.d_k))?;
    let (activation, activation_word) = fields.activation("activation", "relu")?;
    let placement = fields.choice("placement", NormPlacement::Post, PLACEMENTS)?;
    Ok(StackConfig {
        distinct_layers: fields.size("distinct_layers", Some(layers))?,
        kv_heads: fields.size("kv_heads", Some(heads))?,
        d_k,
        d_v: fields.size("d_v", Some(d_k))?,
        scale: fields.choice("score_scale", ScoreScale::Paper, SCORE_SCALES)?,
        softcap: match fields.get("softcap") {
            Some(_) => Some(fields.number("softcap", 0.0)? as f32),
            None => None,
        },
        relative: fields.within("relative", read_relative)?.unwrap_or_default(),
        window: match fields.get("window") {
            Some(_) => Some(fields.size("window", None)?),
            None => None,
        },
        activation,
        activation_word,
        gating: fields.choice("gating", Gating::None, GATINGS)?,
        biases: fields.within("biases", read_biases)?.unwrap_or(Biases::ALL),
        norm: fields.choice("norm", NormKind::Layer, NORMS)?,
        epsilon: fields.number("epsilon", 1e-5)? as f32,
        placement,
        final_norm: fields.flag("final_norm", placement != NormPlacement::Post)?,
        ..paper
    })
}

fn read_input(fields: &Fields<'_>, d_model: usize) -> Result<Input> {
    if fields.word("kind", Some("tokens"))? == "vectors" {
        fields.only(&["kind"])?;
        return Ok(Input::Vectors);
    }
    fields.expect_word("kind", "tokens")?;
    fields.only(&[
        "kind",
        "vocabulary",
        "width",
        "widening",
        "scale",
        "token_types",
        "positions",
        "norm",
    ])?;
    let positions = fields.within("positions", read_positions)?;
    let paper = TokenInput::paper(fields.size("vocabulary", None)?, d_model);
    Ok(Input::Tokens(TokenInput {
        width: fields.size("width", Some(d_model))?,
        widening: fields.choice("widening", Widening::Sum, WIDENINGS)?,
        scale: fields.number("scale", f64::from(paper.scale))? as f32,
        token_types: fields.size("token_types", Some(0))?,
        positions: positions.unwrap_or(paper.positions),
        norm: fields.flag("norm", false)?,
        ..paper
    }))
}

fn read_positions(fields: &Fields<'_>) -> Result<Positions> {
    let first = fields.size("first", Some(0))?;
    match fields.word("kind", None)?.as_str() {
        "none" => fields.only(&["kind"]).map(|()| Positions::None),
        "learned" => {
            fields.only(&["kind", "rows", "first", "padding"])?;
            let (rows, padding) = (fields.size("rows", None)?, fields.id("padding")?);
            Ok(Positions::Learned { rows, first, padding })
        }
        "sinusoidal" => {
            fields.only(&["kind", "layout", "first"])?;
            let layout = fields.choice("layout", SinusoidLayout::Paper, LAYOUTS)?;
            Ok(Positions::Sinusoidal { layout, first })
        }
        other => Err(fields.unsupported("kind", other, " (expected none, learned or sinusoidal)")),
    }
}

fn read_relative(fields: &Fields<'_>) -> Result<RelativePositions> {
    match fields.word("kind", None)?.as_str() {
        "none" => fields.only(&["kind"]).map(|()| RelativePositions::None),
        "alibi" => fields.only(&["kind"]).map(|()| RelativePositions::Alibi),
        "buckets" => {
            fields.only(&["kind", "buckets", "max_distance"])?;
            let buckets = fields.size("buckets", None)?;
            let max_distance = fields.size("max_distance", Some(128))?;
            Ok(RelativePositions::Buckets { buckets, max_distance })
        }
        "rotary" => {
            fields.only(&["kind", "base", "width", "layout", "scaling", "max_position"])?;
            let width = fields.size("width", None)?;
            let max_position = fields.size("max_position", Some(StackConfig::UNLIMITED))?;
            Ok(RelativePositions::Rotary(Rotary {
                layout: fields.choice("layout", RopeLayout::HalfSplit, ROPES)?,
                scaling: fields.within("scaling", read_scaling)?.unwrap_or_default(),
                ..Rotary::new(fields.number("base", 10_000.0)?, width, max_position)
            }))
        }
        other => {
            Err(fields.unsupported("kind", other, " (expected none, rotary, buckets or alibi)"))
        }
    }
}

fn read_scaling(fields: &Fields<'_>) -> Result<RotaryScaling> {
    let kind = fields.word("kind", None)?;
    if kind == "none" {
        return fields.only(&["kind"]).map(|()| RotaryScaling::None);
    }
    let factor = fields.real("factor")?;
    match kind.as_str() {
        "linear" => fields.only(&["kind", "factor"]).map(|()| RotaryScaling::Linear { factor }),
        "dynamic" => fields.only(&["kind", "factor"]).map(|()| RotaryScaling::Dynamic { factor }),
        "yarn" => {
            let names = ["beta_fast", "beta_slow", "truncate", "attention_factor"];
            fields.only(&[&["kind", "factor", "original"], &names[..]].concat())?;
            Ok(RotaryScaling::Yarn {
                factor,
                original: fields.size("original", None)?,
                beta_fast: fields.number("beta_fast", 32.0)?,
                beta_slow: fields.number("beta_slow", 1.0)?,
                truncate: fields.flag("truncate", true)?,
                attention_factor: fields.real("attention_factor")?,
            })
        }
        "llama3" => {
            fields.only(&["kind", "factor", "low", "high", "original"])?;
            let (low, high) = (fields.real("low")?, fields.real("high")?);
            Ok(RotaryScaling::Llama3 {
                factor,
                low,
                high,
                original: fields.size("original", None)?,
            })
        }
        other => {
            let known = " (expected none, linear, dynamic, yarn or llama3)";
            Err(fields.unsupported("kind", other, known))
        }
    }
}

fn read_biases(fields: &Fields<'_>) -> Result<Biases> {
    fields.only(&["queries_keys_values", "keys", "attention_output", "feed_forward", "norms"])?;
    Ok(Biases {
        queries_keys_values: fields.flag("queries_keys_values", true)?,
        keys: fields.flag("keys", true)?,
        attention_output: fields.flag("attention_output", true)?,
        feed_forward: fields.flag("feed_forward", true)?,
        norms: fields.flag("norms", true)?,
    })
}

/// The text of a `config.json` that reads as `config` again.
pub(crate) fn to_json(config: &Config) -> Result<String> {
    let mut all = Map::new();
    all.insert("model_type".to_owned(), json!("headrow-transformer"));
    all.insert("d_model".to_owned(), json!(config.d_model));
    for (side, stack) in config.stacks() {
        all.insert(side.to_owned(), write_stack(stack)?);
    }
    all.insert("shared_words".to_owned(), json!(config.shared_words));
    let ReadOutConfig { tied, scale, bias } = config.read_out;
    let read_out = json!({"tied": tied, "scale": short(scale), "bias": bias});
    all.insert("read_out".to_owned(), read_out);
    let special = &config.special;
    for (name, id) in [
        ("bos_token_id", special.begin),
        ("pad_token_id", special.padding),
        ("decoder_start_token_id", special.decoder_start),
    ] {
        if let Some(id) = id {
            all.insert(name.to_owned(), json!(id));
        }
    }
    if !special.end.is_empty() {
        all.insert("eos_token_id".to_owned(), json!(special.end));
    }
    if !config.architectures.is_empty() {
        all.insert("architectures".to_owned(), json!(config.architectures));
    }
    if !config.labels.is_empty() {
        let labels = config.labels.iter().enumerate();
        let labels: Map<String, Value> =
            labels.map(|(id, label)| (id.to_string(), json!(label))).collect();
        all.insert("id2label".to_owned(), Value::Object(labels));
    }
    serde_json::to_string_pretty(&Value::Object(all)).map_err(|error| Error::file("config", error))
}

fn write_stack(stack: &StackConfig) -> Result<Value> {
    let Biases { queries_keys_values, keys, attention_output, feed_forward, norms } = stack.biases;
    // Two words for one activation stay as they were read.
    let known = ACTIVATIONS.iter().any(|&(word, _)| word == stack.activation_word);
    let activation = match known {
        false if !stack.activation_word.is_empty() => stack.activation_word.as_str(),
        _ => word(ACTIVATIONS, &stack.activation),
    };
    Ok(json!({
        "input": write_input(&stack.input)?,
        "layers": stack.layers,
        "distinct_layers": stack.distinct_layers,
        "heads": stack.heads,
        "kv_heads": stack.kv_heads,
        "d_k": stack.d_k,
        "d_v": stack.d_v,
        "score_scale": word(SCORE_SCALES, &stack.scale),
        "softcap": stack.softcap.map(short),
        "relative": write_relative(&stack.relative),
        "window": stack.window,
        "d_ff": stack.d_ff,
        "activation": activation,
        "gating": word(GATINGS, &stack.gating),
        "biases": {
            "queries_keys_values": queries_keys_values,
            "keys": keys,
            "attention_output": attention_output,
            "feed_forward": feed_forward,
            "norms": norms,
        },
        "norm": word(NORMS, &stack.norm),
        "epsilon": short(stack.epsilon),
        "placement": word(PLACEMENTS, &stack.placement),
        "final_norm": stack.final_norm,
    }))
}

fn write_input(input: &Input) -> Result<Value> {
    match input {
        Input::Tokens(tokens) => Ok(json!({
            "kind": "tokens",
            "vocabulary": tokens.vocabulary,
            "width": tokens.width,
            "widening": word(WIDENINGS, &tokens.widening),
            "scale": short(tokens.scale),
            "token_types": tokens.token_types,
            "positions": match tokens.positions {
                Positions::None => json!({"kind": "none"}),
                Positions::Learned { rows, first, padding } => {
                    json!({"kind": "learned", "rows": rows, "first": first, "padding": padding})
                }
                Positions::Sinusoidal { layout, first } => {
                    json!({"kind": "sinusoidal", "layout": word(LAYOUTS, &layout), "first": first})
                }
            },
            "norm": tokens.norm,
        })),
        Input::Vectors => Ok(json!({"kind": "vectors"})),
        other => Err(Error::WrongInput { expected: "tokens or vectors", actual: other.name() }),
    }
}

fn write_relative(relative: &RelativePositions) -> Value {
    match relative {
        RelativePositions::None => json!({"kind": "none"}),
        RelativePositions::Alibi => json!({"kind": "alibi"}),
        RelativePositions::Buckets { buckets, max_distance } => {
            json!({"kind": "buckets", "buckets": buckets, "max_distance": max_distance})
        }
        RelativePositions::Rotary(rotary) => json!({
            "kind": "rotary",
            "base": rotary.base,
            "width": rotary.width,
            "layout": word(ROPES, &rotary.layout),
            "max_position": rotary.max_position,
            "scaling": write_scaling(&rotary.scaling),
        }),
    }
}

fn write_scaling(scaling: &RotaryScaling) -> Value {
    match *scaling {
        RotaryScaling::None => json!({"kind": "none"}),
        RotaryScaling::Linear { factor } => json!({"kind": "linear", "factor": factor}),
        RotaryScaling::Dynamic { factor } => json!({"kind": "dynamic", "factor": factor}),
        RotaryScaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            truncate,
            attention_factor,
        } => json!({
            "kind": "yarn",
            "factor": factor,
            "original": original,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "truncate": truncate,
            "attention_factor": attention_factor,
        }),
        RotaryScaling::Llama3 { factor, low, high, original } => json!({
            "kind": "llama3", "factor": factor, "low": low, "high": high, "original": original,
        }),
    }
}
