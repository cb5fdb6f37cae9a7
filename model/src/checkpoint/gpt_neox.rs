//! GPT-NeoX and Pythia folders: attention and feed-forward side by side, rotary positions for a part of each head.

use super::names::{DecoderNames, StackNames, sized, usual_field, without};
use super::parts::LayerParts;
use super::{Family, Reader, Reading};
use crate::config::{
    Biases, Config, Fields, Input, NormPlacement, RelativePositions, StackConfig, TokenInput,
};
use crate::error::Result;
use crate::transformer::Transformer;
use std::ops::Range;

pub(super) const GPT_NEOX: Reading = Reading {
    family: Family::GptNeoX,
    name: "GPT-NeoX",
    words: &["gpt_neox"],
    config,
    field: usual_field,
    canonical: |name| without("gpt_neox.", name),
    build,
    harmless,
};

const NAMES: DecoderNames = DecoderNames {
    words: "embed_in.weight",
    stack: StackNames { final_norm: Some("final_layer_norm"), ..StackNames::PLAIN },
    narrowing: None,
    read_out: "embed_out.weight",
};

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    let d_model = fields.size("hidden_size", None)?;
    let tokens = TokenInput::words(fields.size("vocab_size", None)?, d_model);
    let (activation, activation_word) = fields.activation("hidden_act", "gelu")?;
    let paper = sized(fields, usual_field, Input::Tokens(tokens), d_model)?;
    let attention_bias = fields.flag("attention_bias", true)?;
    let mut config = Config::empty(family, d_model);
    config.decoder = Some(StackConfig {
        activation,
        activation_word,
        relative: RelativePositions::Rotary(fields.rotary(paper.d_k)?),
        epsilon: fields.number("layer_norm_eps", 1e-5)? as f32,
        placement: match fields.flag("use_parallel_residual", true)? {
            true => NormPlacement::Parallel,
            false => NormPlacement::Pre,
        },
        final_norm: true,
        biases: Biases {
            queries_keys_values: attention_bias,
            attention_output: attention_bias,
            ..Biases::ALL
        },
        ..paper
    });
    config.read_out.tied = fields.flag("tie_word_embeddings", false)?;
    config.special = fields.special_tokens()?;
    Ok(config)
}

/// Masks and frequencies that older versions saved, and a tied read-out saved twice.
fn harmless(config: &Config, name: &str) -> bool {
    let buffers = [".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"];
    let buffer = buffers.iter().any(|buffer| name.ends_with(buffer));
    buffer || (config.read_out.tied && name == NAMES.read_out)
}

/// Rows of the fused tensor, which has query, key and value of the first head, then those of the second, and so
/// on: all queries, all keys, all values.
fn by_kind(stack: &StackConfig) -> Vec<Range<usize>> {
    let StackConfig { heads, d_k, d_v, .. } = *stack;
    let kinds = [0..d_k, d_k..2 * d_k, 2 * d_k..2 * d_k + d_v];
    let of_heads = |kind: Range<usize>| {
        (0..heads).map(move |head| {
            let first = head * (2 * d_k + d_v);
            first + kind.start..first + kind.end
        })
    };
    kinds.into_iter().flat_map(of_heads).collect()
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    reader.decoder_only(config, &NAMES, |layer| LayerParts {
        qkv: vec![layer.fused("attention.query_key_value").only(by_kind(layer.stack))],
        output: layer.output("attention.dense"),
        attention_norm: layer.name("input_layernorm"),
        cross: None,
        inner: vec![layer.inner("mlp.dense_h_to_4h")],
        outer: layer.outer("mlp.dense_4h_to_h"),
        feed_forward_norm: layer.name("post_attention_layernorm"),
    })
}
