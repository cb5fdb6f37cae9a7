//! GPT-2 folders. Its linear maps are stored inputs first, queries, keys and values in one.

use super::layers::{output, qkv_width, usual_field};
use super::{Family, Part, Reader, Reading};
use crate::config::{Config, Fields, Input, Positions, ScoreScale, StackConfig, TokenInput};
use crate::decoder::{Decoder, DecoderLayer};
use crate::embedding::Embedding;
use crate::error::Result;
use crate::sublayer::NormPlacement;
use crate::transformer::Transformer;

pub(super) const GPT2: Reading = Reading {
    family: Family::Gpt2,
    name: "GPT-2",
    words: &["gpt2"],
    config,
    field,
    canonical: |name| name.strip_prefix("transformer.").unwrap_or(name).to_owned(),
    build,
    harmless,
};

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    fields.expect_flag("add_cross_attention", false)?;
    fields.expect_flag("scale_attn_weights", true)?;
    let d_model = fields.size("n_embd", None)?;
    let rows = fields.size("n_positions", None)?;
    let tokens = TokenInput {
        positions: Positions::Learned { rows, first: 0, padding: None },
        ..TokenInput::words(fields.size("vocab_size", None)?, d_model)
    };
    let d_ff = fields.size("n_inner", Some(d_model.saturating_mul(4)))?;
    let (activation, activation_word) = fields.activation("activation_function", "gelu_new")?;
    let mut config = Config::empty(family, d_model);
    config.decoder = Some(StackConfig {
        activation,
        activation_word,
        scale: match fields.flag("scale_attn_by_inverse_layer_idx", false)? {
            true => ScoreScale::PaperByLayer,
            false => ScoreScale::Paper,
        },
        epsilon: fields.number("layer_norm_epsilon", 1e-5)? as f32,
        placement: NormPlacement::Pre,
        final_norm: true,
        ..StackConfig::paper(
            Input::Tokens(tokens),
            fields.size("n_layer", None)?,
            d_model,
            fields.size("n_head", None)?,
            d_ff,
        )
    });
    config.read_out.tied = fields.flag("tie_word_embeddings", true)?;
    config.special = fields.special_tokens()?;
    Ok(config)
}

fn field(field: &'static str) -> &'static str {
    match field {
        "positions" => "n_positions",
        "d_model" | "width" => "n_embd",
        "layers" => "n_layer",
        "heads" => "n_head",
        "d_ff" => "n_inner",
        "epsilon" => "layer_norm_epsilon",
        other => usual_field(other),
    }
}

/// Masks that older versions saved, and a tied read-out saved twice.
fn harmless(config: &Config, name: &str) -> bool {
    let mask = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    mask || (config.read_out.tied && name == "lm_head.weight")
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    let stack = config.decoder()?;
    let tokens = stack.token_input()?;
    let (d, d_ff, tied) = (config.d_model, stack.d_ff, config.read_out.tied);
    let words = reader.words("wte.weight", tokens.vocabulary, d, tied)?;
    let positions = reader.positions(tokens, d, "wpe")?;
    let layers = (0..reader.layers("h.", stack.layers)).map(|layer| {
        let name = |part: &str| format!("h.{layer}.{part}");
        let inputs_first =
            |part, outputs, inputs| Part::new(name(part), outputs, inputs).inputs_first();
        let qkv = inputs_first("attn.c_attn", qkv_width(stack), d);
        let output = output(stack, d, &name("attn.c_proj")).inputs_first();
        let (inner, outer) =
            (inputs_first("mlp.c_fc", d_ff, d), inputs_first("mlp.c_proj", d, d_ff));
        Ok(DecoderLayer {
            placement: stack.placement,
            attention: reader.self_attention(stack, layer, &[qkv], output)?,
            attention_norm: reader.stack_norm(stack, d, &name("ln_1"))?,
            cross: None,
            feed_forward: reader.feed_forward(stack, &[inner], outer)?,
            feed_forward_norm: reader.stack_norm(stack, d, &name("ln_2"))?,
        })
    });
    let layers = layers.collect::<Result<Vec<DecoderLayer>>>()?;
    let final_norm = Some(reader.stack_norm(stack, d, "ln_f")?);
    let read_out =
        reader.read_out(tied.then_some(&words), "lm_head.weight", tokens.vocabulary, d)?;
    let embedding = Embedding { positions, ..Embedding::plain(words, tokens) };
    let decoder = Decoder { layers, final_norm, buckets: Vec::new() };
    Ok(Transformer::decoder_only(embedding, decoder, read_out))
}
