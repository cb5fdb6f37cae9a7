//! The paper's Transformer with all options of this library: a family of its own, `headrow-transformer`, whose folders say
//! everything in the words of [`Config`].
//!
//! | tensor | shape |
//! |---|---|
//! | `words.weight`, or `encoder.words.weight` and `decoder.words.weight` where they are not shared | v × width |
//! | `encoder.positions.weight` of learned positions | rows × width, or × d_model where only the words are widened |
//! | `encoder.types.weight` | types × as much |
//! | `encoder.input_norm.weight`, `.bias` | as much |
//! | `encoder.projection.weight` where the width is not d_model | d_model × width |
//! | `encoder.buckets.weight` of learned biases by offset | buckets × h |
//! | `encoder.layers.N.attention.{query,key,value,output}.weight`, `.bias` | outputs × inputs |
//! | `encoder.layers.N.attention_norm.weight`, `.bias` | d_model |
//! | `encoder.layers.N.feed_forward.{gate,inner,outer}.weight`, `.bias` | outputs × inputs |
//! | `encoder.layers.N.feed_forward_norm.weight`, `.bias` | d_model |
//! | `encoder.norm.weight`, `.bias` behind the last layer | d_model |
//! | the same of `decoder`, and `decoder.layers.N.cross_attention.…`, `cross_attention_norm.…` beside an encoder | |
//! | `read_out.weight` where it is not tied | v × d_model |
//! | `read_out.projection.weight` where it is tied to words of another width than d_model | width × d_model |
//! | `read_out.bias` | v |
//!
//! A gate is the map that is activated. Biases and β are there where the config says so.

mod json;

pub(crate) use json::to_json;

use super::names::{CrossNames, LayerNames, StackNames};
use super::{Family, Reader, Reading};
use crate::config::{Config, Input, StackConfig, TokenInput};
use crate::embedding::{Embedding, ReadOut, Words};
use crate::error::{Error, Result};
use crate::head::Heads;
use crate::origin::Initial;
use crate::transformer::{Entrance, Transformer};
use std::sync::Arc;

pub(super) const PAPER: Reading = Reading {
    family: Family::Paper,
    name: "Transformer",
    words: &["headrow-transformer"],
    config: json::read,
    field: |field| field,
    canonical: str::to_owned,
    build,
    harmless: |_, _| false,
};

const ENCODER: StackNames = StackNames {
    prefix: "encoder.",
    positions: Some("positions"),
    types: Some("types"),
    input_norm: Some("input_norm"),
    projection: Some("projection"),
    final_norm: Some("norm"),
    buckets: Some("buckets"),
    ..StackNames::PLAIN
};

const DECODER: StackNames = StackNames { prefix: "decoder.", ..ENCODER };

/// A layer that attends to itself alone.
const LAYER: LayerNames = LayerNames {
    qkv: ["attention.query", "attention.key", "attention.value"],
    attention_output: "attention.output",
    attention_norm: "attention_norm",
    cross: None,
    inner: "feed_forward.inner",
    gated: Some(["feed_forward.gate", "feed_forward.inner"]),
    outer: "feed_forward.outer",
    feed_forward_norm: "feed_forward_norm",
};

/// A layer beside an encoder.
const CROSS_LAYER: LayerNames = LayerNames {
    cross: Some(CrossNames {
        qkv: ["cross_attention.query", "cross_attention.key", "cross_attention.value"],
        output: "cross_attention.output",
        norm: "cross_attention_norm",
    }),
    ..LAYER
};

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    let (mut encoder, mut decoder, mut read_out) = (None, None, None);
    let (mut shared, tied) = (None, config.read_out.tied);
    if let Some(stack) = &config.encoder {
        // One table, packed for the decoder's read-out too where that is tied.
        let packed = config.shares_words() && tied;
        let entrance = entrance(config, stack, &ENCODER, packed, &mut shared, reader)?;
        encoder = Some((entrance, reader.encoder(config, &ENCODER, |layer| layer.parts(&LAYER))?));
    }
    if let Some(stack) = &config.decoder {
        let entrance = entrance(config, stack, &DECODER, tied, &mut shared, reader)?;
        if let (Entrance::Embedding(embedding), Some(tokens)) = (&entrance, stack.tokens()) {
            read_out = Some(build_read_out(config, tokens, embedding, reader)?);
        }
        let names = if config.encoder.is_some() { &CROSS_LAYER } else { &LAYER };
        decoder = Some((entrance, reader.decoder(config, &DECODER, |layer| layer.parts(names))?));
    }
    Ok(Transformer { encoder, decoder, read_out, heads: Heads::default() })
}

/// What a stack reads. `shared` is the table of words once it was read for both.
fn entrance(
    config: &Config,
    stack: &StackConfig,
    names: &StackNames,
    packed: bool,
    shared: &mut Option<Arc<Words>>,
    reader: &mut Reader<'_>,
) -> Result<Entrance> {
    let tokens = match &stack.input {
        Input::Tokens(tokens) => tokens,
        Input::Vectors => return Ok(Entrance::Vectors),
        other => {
            let expected = "tokens or vectors";
            return Err(Error::WrongInput { expected, actual: other.name() });
        }
    };
    let (vocabulary, width) = (tokens.vocabulary, tokens.width);
    let words = match shared.take() {
        Some(words) => words,
        None if config.shares_words() => {
            Arc::clone(shared.insert(reader.words("words.weight", vocabulary, width, packed)?))
        }
        None => reader.words(&names.whole("words.weight"), vocabulary, width, packed)?,
    };
    reader.embedding(config, stack, words, names).map(Entrance::Embedding)
}

fn build_read_out(
    config: &Config,
    tokens: &TokenInput,
    embedding: &Embedding,
    reader: &mut Reader<'_>,
) -> Result<ReadOut> {
    let (d, options) = (config.d_model, &config.read_out);
    let tied = options.tied.then_some(&embedding.words);
    let mut read_out = reader.read_out(tied, "read_out.weight", tokens.vocabulary, d)?;
    read_out.scale = options.scale;
    let narrowing = options.tied.then(|| "read_out.projection".to_owned());
    read_out.projection = reader.resized(narrowing, tokens.width, d)?;
    if options.bias {
        read_out.bias =
            Some(reader.tensor("read_out.bias", &[tokens.vocabulary], Initial::Zeros)?);
    }
    Ok(read_out)
}
