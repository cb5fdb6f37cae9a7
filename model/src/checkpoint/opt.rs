//! OPT folders: learned positions from 2 on, pre- or post-norm, and for one size words narrower than the model.

use super::bart::ENCODER_LAYER;
use super::names::{DecoderNames, LM_HEAD, StackNames, sized, usual_field, without};
use super::{Family, Reader, Reading};
use crate::config::{
    Biases, Config, Fields, Input, NormPlacement, Positions, StackConfig, TokenInput, Widening,
};
use crate::error::Result;
use crate::transformer::Transformer;

pub(super) const OPT: Reading = Reading {
    family: Family::Opt,
    name: "OPT",
    words: &["opt"],
    config,
    field,
    canonical: |name| without("decoder.", &without("model.", name)),
    build,
    harmless: |config, name| config.read_out.tied && name == LM_HEAD,
};

const NAMES: DecoderNames = DecoderNames {
    words: "embed_tokens.weight",
    stack: StackNames {
        positions: Some("embed_positions"),
        projection: Some("project_in"),
        final_norm: Some("final_layer_norm"),
        ..StackNames::PLAIN
    },
    narrowing: Some("project_out"),
    read_out: LM_HEAD,
};

/// Rows of the table of positions that no token has.
const FIRST: usize = 2;

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    fields.expect_flag("layer_norm_elementwise_affine", true)?;
    let d_model = fields.size("hidden_size", None)?;
    let longest = fields.size("max_position_embeddings", None)?;
    let tokens = TokenInput {
        width: fields.size("word_embed_proj_dim", Some(d_model))?,
        widening: Widening::Words,
        positions: Positions::Learned {
            rows: longest.saturating_add(FIRST),
            first: FIRST,
            padding: None,
        },
        ..TokenInput::words(fields.size("vocab_size", None)?, d_model)
    };
    let (activation, activation_word) = fields.activation("activation_function", "relu")?;
    let pre = fields.flag("do_layer_norm_before", true)?;
    let bias = fields.flag("enable_bias", true)?;
    let mut config = Config::empty(family, d_model);
    config.decoder = Some(StackConfig {
        activation,
        activation_word,
        placement: if pre { NormPlacement::Pre } else { NormPlacement::Post },
        final_norm: pre && !fields.flag("_remove_final_layer_norm", false)?,
        biases: Biases {
            queries_keys_values: bias,
            keys: true,
            attention_output: bias,
            feed_forward: bias,
            norms: true,
        },
        ..sized(fields, field, Input::Tokens(tokens), d_model)?
    });
    config.read_out.tied = fields.flag("tie_word_embeddings", true)?;
    config.special = fields.special_tokens()?;
    Ok(config)
}

fn field(field: &'static str) -> &'static str {
    match field {
        "width" => "word_embed_proj_dim",
        "d_ff" => "ffn_dim",
        other => usual_field(other),
    }
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    // A layer has BART's names.
    reader.decoder_only(config, &NAMES, |layer| layer.parts(&ENCODER_LAYER))
}
