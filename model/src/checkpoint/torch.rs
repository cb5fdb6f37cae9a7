//! State dicts of `torch.nn.Transformer`, with a `config.json` that has its arguments by their names. Both stacks read vectors
//! and end in a norm, wherever their layers have theirs.

use super::layers::output;
use super::parts::{CrossParts, LayerParts};
use super::{Family, Part, Reader, Reading};
use crate::config::{Biases, Config, Fields, Input, StackConfig};
use crate::decoder::Decoder;
use crate::encoder::Encoder;
use crate::error::Result;
use crate::head::Heads;
use crate::sublayer::NormPlacement;
use crate::transformer::{Entrance, Transformer};

pub(super) const TORCH: Reading = Reading {
    family: Family::Torch,
    name: "torch.nn.Transformer",
    words: &["torch.nn.Transformer"],
    config,
    field,
    canonical: |name| name.strip_prefix("transformer.").unwrap_or(name).to_owned(),
    build,
    harmless: |_, _| false,
};

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
    let (d, encoder, decoder) = (config.d_model, config.encoder()?, config.decoder()?);
    let layers = reader.encoder_layers((encoder, d), "encoder.layers.", |layer| {
        parts(encoder, d, &format!("encoder.layers.{layer}."), false)
    })?;
    let encoder = Encoder {
        depth: encoder.layers,
        layers,
        final_norm: Some(reader.stack_norm(encoder, d, "encoder.norm")?),
        buckets: Vec::new(),
    };
    let layers = reader.decoder_layers((decoder, d), "decoder.layers.", |layer| {
        parts(decoder, d, &format!("decoder.layers.{layer}."), true)
    })?;
    let final_norm = Some(reader.stack_norm(decoder, d, "decoder.norm")?);
    let decoder = Decoder { layers, final_norm, buckets: Vec::new() };
    Ok(Transformer {
        encoder: Some((Entrance::Vectors, encoder)),
        decoder: Some((Entrance::Vectors, decoder)),
        read_out: None,
        heads: Heads::default(),
    })
}

/// Queries, keys and values are rows of one matrix, also of attention to the encoder.
fn parts(stack: &StackConfig, d: usize, prefix: &str, cross: bool) -> LayerParts {
    let name = |part: &str| format!("{prefix}{part}");
    let (queries, keys) = (stack.heads * stack.d_k, stack.kv_heads * stack.d_k);
    let all = queries + keys + stack.kv_heads * stack.d_v;
    let projection = |attention: &str| {
        let bias = format!("{prefix}{attention}.in_proj_bias");
        let part =
            Part::new("", all, d).named(name(&format!("{attention}.in_proj_weight")), Some(bias));
        part.with_bias(stack.biases.queries_keys_values)
    };
    let map = |part: &str, outputs, inputs| {
        Part::new(name(part), outputs, inputs).with_bias(stack.biases.feed_forward)
    };
    let cross = cross.then(|| CrossParts {
        qkv: [0..queries, queries..queries + keys, queries + keys..all]
            .map(|rows| projection("multihead_attn").only(vec![rows])),
        output: output(stack, d, &name("multihead_attn.out_proj")),
        norm: name("norm2"),
    });
    LayerParts {
        qkv: vec![projection("self_attn")],
        output: output(stack, d, &name("self_attn.out_proj")),
        attention_norm: name("norm1"),
        feed_forward_norm: name(if cross.is_some() { "norm3" } else { "norm2" }),
        cross,
        inner: vec![map("linear1", stack.d_ff, d)],
        outer: map("linear2", d, stack.d_ff),
    }
}
