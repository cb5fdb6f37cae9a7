//! GPT-2 folders. Its linear maps are stored inputs first, queries, keys and values in one.

use super::names::{DecoderNames, LM_HEAD, StackNames, usual_field, without};
use super::parts::LayerParts;
use super::{Family, Reader, Reading};
use crate::config::{
    Config, Fields, Input, NormPlacement, Positions, ScoreScale, StackConfig, TokenInput,
};
use crate::error::Result;
use crate::transformer::Transformer;

pub(super) const GPT2: Reading = Reading {
    family: Family::Gpt2,
    name: "GPT-2",
    words: &["gpt2"],
    config,
    field,
    canonical: |name| without("transformer.", name),
    build,
    harmless,
};

const NAMES: DecoderNames = DecoderNames {
    words: "wte.weight",
    stack: StackNames {
        positions: Some("wpe"),
        layers: "h.",
        final_norm: Some("ln_f"),
        ..StackNames::PLAIN
    },
    narrowing: None,
    read_out: LM_HEAD,
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
    mask || (config.read_out.tied && name == LM_HEAD)
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    reader.decoder_only(config, &NAMES, |layer| LayerParts {
        qkv: vec![layer.fused("attn.c_attn").inputs_first()],
        output: layer.output("attn.c_proj").inputs_first(),
        attention_norm: layer.name("ln_1"),
        cross: None,
        inner: vec![layer.inner("mlp.c_fc").inputs_first()],
        outer: layer.outer("mlp.c_proj").inputs_first(),
        feed_forward_norm: layer.name("ln_2"),
    })
}
