//! Whisper folders: spectrograms through two convolutions into an encoder, and a decoder that writes what was said.

use super::bart::{
    BART, DECODER, DECODER_LAYER, DECODER_WORDS, ENCODER, ENCODER_LAYER, embedding_scale,
    field as shared_field, stack_config,
};
use super::{Family, Part, Reader, Reading};
use crate::config::{
    Biases, Config, Fields, Input, NormPlacement, Positions, StackConfig, TokenInput,
};
use crate::error::{Error, Result};
use crate::head::Heads;
use crate::spectrogram::{Spectrogram, TAPS};
use crate::transformer::{Entrance, Transformer};

const READ_OUT: &str = "proj_out.weight";

pub(super) const WHISPER: Reading = Reading {
    family: Family::Whisper,
    name: "Whisper",
    words: &["whisper"],
    config,
    field,
    build,
    harmless: |config, name| config.read_out.tied && name == READ_OUT,
    ..BART
};

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    fields.expect_flag("is_encoder_decoder", true)?;
    fields.expect_flag("is_decoder", false)?;
    let d_model = fields.size("d_model", None)?;
    let spectrogram = Input::Spectrogram {
        bands: fields.size("num_mel_bins", Some(80))?,
        frames: fields.size("max_source_positions", Some(1500))?,
    };
    let tokens = TokenInput {
        scale: embedding_scale(fields, d_model, false)?,
        positions: Positions::Learned {
            rows: fields.size("max_target_positions", Some(448))?,
            first: 0,
            padding: None,
        },
        ..TokenInput::words(fields.size("vocab_size", None)?, d_model)
    };
    let stack = |side, input| -> Result<StackConfig> {
        Ok(StackConfig {
            biases: Biases { keys: false, ..Biases::ALL },
            placement: NormPlacement::Pre,
            final_norm: true,
            ..stack_config(fields, side, d_model, input, "gelu")?
        })
    };
    let mut config = Config::empty(family, d_model);
    config.encoder = Some(stack("encoder", spectrogram)?);
    config.decoder = Some(stack("decoder", Input::Tokens(tokens))?);
    config.read_out.tied = fields.flag("tie_word_embeddings", true)?;
    config.special = fields.special_tokens()?;
    Ok(config)
}

fn field(field: &'static str) -> &'static str {
    match field {
        "positions" => "max_target_positions",
        other => shared_field(other),
    }
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    let (stack, tied) = (config.decoder()?, config.read_out.tied);
    let entrance = Entrance::Spectrogram(spectrogram(config, reader)?);
    let &TokenInput { vocabulary, width, .. } = stack.token_input()?;
    let words = reader.words(DECODER_WORDS, vocabulary, width, tied)?;
    let read_out = reader.read_out(tied.then_some(&words), READ_OUT, vocabulary, width)?;
    let embedding = Entrance::Embedding(reader.embedding(config, stack, words, &DECODER)?);
    let encoder = reader.encoder(config, &ENCODER, |layer| layer.parts(&ENCODER_LAYER))?;
    let decoder = reader.decoder(config, &DECODER, |layer| layer.parts(&DECODER_LAYER))?;
    Ok(Transformer {
        encoder: Some((entrance, encoder)),
        decoder: Some((embedding, decoder)),
        read_out: Some(read_out),
        heads: Heads::default(),
    })
}

fn spectrogram(config: &Config, reader: &mut Reader<'_>) -> Result<Spectrogram> {
    let (stack, d) = (config.encoder()?, config.d_model);
    let &Input::Spectrogram { bands, frames } = &stack.input else {
        return Err(Error::WrongInput { expected: "spectrograms", actual: stack.input.name() });
    };
    Ok(Spectrogram {
        bands,
        frames,
        first: reader.linear(&[Part::convolution("encoder.conv1", d, bands, TAPS)])?,
        second: reader.linear(&[Part::convolution("encoder.conv2", d, d, TAPS)])?,
        positions: reader.fixed("encoder.embed_positions.weight", &[frames, d])?,
    })
}
