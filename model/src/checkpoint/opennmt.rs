//! Transformers of OpenNMT's form under BART's names: pre-norm, sinusoids from position 1, two vocabularies, and a read-out of its
//! own with a bias.

use super::bart::{self, DECODER_WORDS, ENCODER_WORDS, embedding_scale};
use super::{Family, Reader, Reading};
use crate::config::{Config, Fields, Input, NormPlacement, Positions, StackConfig, TokenInput};
use crate::embedding::ReadOut;
use crate::error::Result;
use crate::origin::Initial;
use crate::position::SinusoidLayout;
use crate::transformer::Transformer;

pub(super) const OPENNMT: Reading = Reading {
    family: Family::OpenNmt,
    name: "OpenNMT",
    words: &["opennmt-transformer"],
    config,
    field,
    build,
    harmless: |_, _| false,
    ..bart::BART
};

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    // These describe in words what is computed here.
    fields.expect_word("norm", "pre, final layer_norm in both stacks")?;
    fields.expect_word(
        "positions",
        "sinusoidal, halves [sin|cos], timescale log(10000)/(half-1), first position = 1",
    )?;
    fields.expect_word("decoder_start", "<s>")?;
    fields.expect_flag("tied", false)?;
    fields.expect_flag("lm_head_bias", true)?;
    let d_model = fields.size("d_model", None)?;
    let source = TokenInput {
        scale: embedding_scale(fields, d_model, true)?,
        positions: Positions::Sinusoidal { layout: SinusoidLayout::Tensor2Tensor, first: 1 },
        ..TokenInput::words(fields.size("src_vocab", None)?, d_model)
    };
    let target = TokenInput { vocabulary: fields.size("tgt_vocab", None)?, ..source.clone() };
    let (activation, activation_word) = fields.activation("activation", "relu")?;
    let (heads, d_ff) = (fields.size("attention_heads", None)?, fields.size("ffn_dim", None)?);
    let epsilon = fields.number("layer_norm_eps", 1e-5)? as f32;
    let stack = |tokens, layers| -> Result<StackConfig> {
        let layers = fields.size(layers, None)?;
        Ok(StackConfig {
            activation,
            activation_word: activation_word.clone(),
            epsilon,
            placement: NormPlacement::Pre,
            final_norm: true,
            ..StackConfig::paper(Input::Tokens(tokens), layers, d_model, heads, d_ff)
        })
    };
    let mut config = Config::empty(family, d_model);
    config.encoder = Some(stack(source, "encoder_layers")?);
    config.decoder = Some(stack(target, "decoder_layers")?);
    config.shared_words = false;
    config.read_out.tied = false;
    config.special.begin = fields.id("bos_id")?;
    config.special.end = fields.id("eos_id")?.into_iter().collect();
    config.special.padding = fields.id("pad_id")?;
    config.special.decoder_start = config.special.begin;
    Ok(config)
}

fn field(field: &'static str) -> &'static str {
    match field {
        "vocabulary" => "src_vocab or tgt_vocab",
        "heads" => "attention_heads",
        "d_ff" => "ffn_dim",
        "epsilon" => "layer_norm_eps",
        "eos_token_id" => "eos_id",
        "decoder_start_token_id" => "bos_id",
        other => bart::field(other),
    }
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    let transformer = bart::build_with(config, reader, [ENCODER_WORDS, DECODER_WORDS])?;
    let bias = Some(reader.tensor("lm_head.bias", &[config.vocabulary()], Initial::Zeros)?);
    let read_out = transformer.read_out.map(|read_out| ReadOut { bias, ..read_out });
    Ok(Transformer { read_out, ..transformer })
}
