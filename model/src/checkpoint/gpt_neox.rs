//! GPT-NeoX and Pythia folders: attention and feed-forward side by side, rotary positions for a part of each head.

use super::layers::{output, qkv_width, usual_field};
use super::{Family, Part, Reader, Reading};
use crate::config::{Biases, Config, Fields, Input, RelativePositions, StackConfig, TokenInput};
use crate::decoder::{Decoder, DecoderLayer};
use crate::embedding::Embedding;
use crate::error::Result;
use crate::sublayer::NormPlacement;
use crate::transformer::Transformer;
use std::ops::Range;

pub(super) const GPT_NEOX: Reading = Reading {
    family: Family::GptNeoX,
    name: "GPT-NeoX",
    words: &["gpt_neox"],
    config,
    field: usual_field,
    canonical: |name| name.strip_prefix("gpt_neox.").unwrap_or(name).to_owned(),
    build,
    harmless,
};

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    let d_model = fields.size("hidden_size", None)?;
    let tokens = TokenInput::words(fields.size("vocab_size", None)?, d_model);
    let (activation, activation_word) = fields.activation("hidden_act", "gelu")?;
    let paper = StackConfig::paper(
        Input::Tokens(tokens),
        fields.size("num_hidden_layers", None)?,
        d_model,
        fields.size("num_attention_heads", None)?,
        fields.size("intermediate_size", None)?,
    );
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
    buffer || (config.read_out.tied && name == "embed_out.weight")
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
    let stack = config.decoder()?;
    let tokens = stack.token_input()?;
    let (d, d_ff, tied) = (config.d_model, stack.d_ff, config.read_out.tied);
    let words = reader.words("embed_in.weight", tokens.vocabulary, d, tied)?;
    let layers = (0..reader.layers("layers.", stack.layers)).map(|layer| {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let qkv = Part::new(name("attention.query_key_value"), qkv_width(stack), d)
            .with_bias(stack.biases.queries_keys_values)
            .only(by_kind(stack));
        let output = output(stack, d, &name("attention.dense"));
        let inner = Part::new(name("mlp.dense_h_to_4h"), d_ff, d);
        let outer = Part::new(name("mlp.dense_4h_to_h"), d, d_ff);
        Ok(DecoderLayer {
            placement: stack.placement,
            attention: reader.self_attention(stack, layer, &[qkv], output)?,
            attention_norm: reader.stack_norm(stack, d, &name("input_layernorm"))?,
            cross: None,
            feed_forward: reader.feed_forward(stack, &[inner], outer)?,
            feed_forward_norm: reader.stack_norm(stack, d, &name("post_attention_layernorm"))?,
        })
    });
    let layers = layers.collect::<Result<Vec<DecoderLayer>>>()?;
    let final_norm = Some(reader.stack_norm(stack, d, "final_layer_norm")?);
    let read_out =
        reader.read_out(tied.then_some(&words), "embed_out.weight", tokens.vocabulary, d)?;
    let embedding = Embedding::plain(words, tokens);
    let decoder = Decoder { layers, final_norm, buckets: Vec::new() };
    Ok(Transformer::decoder_only(embedding, decoder, read_out))
}
