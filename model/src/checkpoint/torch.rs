//! State dicts of `torch.nn.Transformer`, with a `config.json` that has its arguments by their names. Both stacks read vectors
//! and end in a norm, wherever their layers have theirs.

use super::names::{StackNames, without};
use super::parts::{CrossParts, Layer, LayerParts};
use super::{Family, Part, Reader, Reading};
use crate::config::{Biases, Config, Fields, Input, NormPlacement, StackConfig};
use crate::error::Result;
use crate::head::Heads;
use crate::transformer::{Entrance, Transformer};

pub(super) const TORCH: Reading = Reading {
    family: Family::Torch,
    name: "torch.nn.Transformer",
    words: &["torch.nn.Transformer"],
    config,
    field,
    canonical: |name| without("transformer.", name),
    build,
    harmless: |_, _| false,
};

const ENCODER: StackNames =
    StackNames { prefix: "encoder.", final_norm: Some("norm"), ..StackNames::PLAIN };

const DECODER: StackNames = StackNames { prefix: "decoder.", ..ENCODER };

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    let d_model = fields.size("d_model", Some(512))?;
    let bias = fields.flag("bias", true)?;
    let (activation, activation_word) = match fields.word("activation", Some("relu"))?.as_str() {
        "relu" | "gelu" => fields.activation("activation", "relu")?,
        other => return Err(fields.unsupported("activation", other, " (expected relu or gelu)")),
    };
    let heads = fields.size("nhead", Some(8))?;
    let d_ff = fields.size("dim_feedforward", Some(2048))?;
    let encoder = StackConfig {
        activation,
        activation_word,
        biases: if bias { Biases::ALL } else { Biases::NONE },
        epsilon: fields.number("layer_norm_eps", 1e-5)? as f32,
        placement: match fields.flag("norm_first", false)? {
            true => NormPlacement::Pre,
            false => NormPlacement::Post,
        },
        final_norm: true,
        ..StackConfig::paper(
            Input::Vectors,
            fields.size("num_encoder_layers", Some(6))?,
            d_model,
            heads,
            d_ff,
        )
    };
    let layers = fields.size("num_decoder_layers", Some(6))?;
    let mut config = Config::empty(family, d_model);
    config.decoder = Some(StackConfig { layers, distinct_layers: layers, ..encoder.clone() });
    config.encoder = Some(encoder);
    Ok(config)
}

fn field(field: &'static str) -> &'static str {
    match field {
        "heads" | "kv_heads" => "nhead",
        "d_ff" => "dim_feedforward",
        "epsilon" => "layer_norm_eps",
        other => other,
    }
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    let encoder = reader.encoder(config, &ENCODER, encoder_layer)?;
    let decoder = reader.decoder(config, &DECODER, decoder_layer)?;
    Ok(Transformer {
        encoder: Some((Entrance::Vectors, encoder)),
        decoder: Some((Entrance::Vectors, decoder)),
        read_out: None,
        heads: Heads::default(),
    })
}

fn encoder_layer(layer: &Layer<'_>) -> LayerParts {
    LayerParts {
        qkv: vec![projection(layer, "self_attn")],
        output: layer.output("self_attn.out_proj"),
        attention_norm: layer.name("norm1"),
        cross: None,
        inner: vec![layer.inner("linear1")],
        outer: layer.outer("linear2"),
        feed_forward_norm: layer.name("norm2"),
    }
}

/// The norms are numbered, and attention to the encoder has the second one.
fn decoder_layer(layer: &Layer<'_>) -> LayerParts {
    let StackConfig { heads, kv_heads, d_k, d_v, .. } = *layer.stack;
    let (queries, keys) = (heads * d_k, heads * d_k + kv_heads * d_k);
    let cross = CrossParts {
        qkv: [0..queries, queries..keys, keys..keys + kv_heads * d_v]
            .map(|rows| projection(layer, "multihead_attn").only(vec![rows])),
        output: layer.output("multihead_attn.out_proj"),
        norm: layer.name("norm2"),
    };
    let feed_forward_norm = layer.name("norm3");
    LayerParts { cross: Some(cross), feed_forward_norm, ..encoder_layer(layer) }
}

/// Queries, keys and values, which are rows of one matrix, also of attention to the encoder.
fn projection(layer: &Layer<'_>, attention: &str) -> Part {
    let name = |part: &str| layer.name(&format!("{attention}.{part}"));
    let part = layer.fused(attention).named(name("in_proj_weight"), Some(name("in_proj_bias")));
    part.with_bias(layer.stack.biases.queries_keys_values)
}
