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

use super::layers::{output, projections};
use super::parts::{CrossParts, LayerParts};
use super::{Family, Part, Reader, Reading};
use crate::config::{Config, Gating, Input, StackConfig, TokenInput, Widening};
use crate::decoder::Decoder;
use crate::embedding::{Embedding, Projection, ReadOut, Words};
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::head::Heads;
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

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    let d = config.d_model;
    let (mut encoder, mut decoder, mut read_out) = (None, None, None);
    let mut shared = None;
    if let Some(stack) = &config.encoder {
        // One table, packed for the decoder's read-out too where that is tied.
        let packed = config.shares_words() && config.read_out.tied;
        let entrance = entrance((stack, d), "encoder", packed, &mut shared, config, reader)?;
        encoder = Some((entrance, build_encoder(stack, d, reader)?));
    }
    if let Some(stack) = &config.decoder {
        let tied = config.read_out.tied;
        let entrance = entrance((stack, d), "decoder", tied, &mut shared, config, reader)?;
        if let (Entrance::Embedding(embedding), Some(tokens)) = (&entrance, stack.tokens()) {
            read_out = Some(build_read_out(config, tokens, embedding, reader)?);
        }
        decoder = Some((entrance, build_decoder(stack, config, reader)?));
    }
    Ok(Transformer { encoder, decoder, read_out, heads: Heads::default() })
}

/// What a stack reads. `shared` is the table of words once it was read for both.
fn entrance(
    (stack, d_model): (&StackConfig, usize),
    side: &str,
    packed: bool,
    shared: &mut Option<Arc<Words>>,
    config: &Config,
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
        None => reader.words(&format!("{side}.words.weight"), vocabulary, width, packed)?,
    };
    let name = |part: &str| format!("{side}.{part}");
    let mut embedding = Embedding::plain(words, tokens);
    embedding.positions = reader.positions(tokens, d_model, &name("positions"))?;
    let added = tokens.sum_width(d_model);
    if tokens.token_types > 0 {
        embedding.types = reader.tensor(&name("types.weight"), &[tokens.token_types, added])?;
    }
    if tokens.norm {
        embedding.norm = Some(reader.stack_norm(stack, added, &name("input_norm"))?);
    }
    if width != d_model {
        let part = Part::new(name("projection"), d_model, width).with_bias(false);
        let map = reader.linear(&[part])?;
        embedding.projection = Some(match tokens.widening {
            Widening::Sum => Projection::Sum(map),
            Widening::Words => Projection::Words(map),
        });
    }
    Ok(Entrance::Embedding(embedding))
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
    if options.tied && tokens.width != d {
        let part = Part::new("read_out.projection", tokens.width, d).with_bias(false);
        read_out.projection = Some(reader.linear(&[part])?);
    }
    if options.bias {
        read_out.bias = Some(reader.tensor("read_out.bias", &[tokens.vocabulary])?);
    }
    Ok(read_out)
}

fn build_encoder(stack: &StackConfig, d: usize, reader: &mut Reader<'_>) -> Result<Encoder> {
    let layers = reader.encoder_layers((stack, d), "encoder.layers.", |layer| {
        parts(stack, d, &format!("encoder.layers.{layer}."), false)
    })?;
    let final_norm = reader.final_norm(stack, d, "encoder.norm")?;
    let buckets = reader.buckets(stack, "encoder.buckets")?;
    Ok(Encoder { depth: stack.layers, layers, final_norm, buckets })
}

fn build_decoder(stack: &StackConfig, config: &Config, reader: &mut Reader<'_>) -> Result<Decoder> {
    let (d, cross) = (config.d_model, config.encoder.is_some());
    let layers = reader.decoder_layers((stack, d), "decoder.layers.", |layer| {
        parts(stack, d, &format!("decoder.layers.{layer}."), cross)
    })?;
    let final_norm = reader.final_norm(stack, d, "decoder.norm")?;
    Ok(Decoder { layers, final_norm, buckets: reader.buckets(stack, "decoder.buckets")? })
}

/// The parts of a layer, whose names follow `prefix`; `cross` where it attends to an encoder.
fn parts(stack: &StackConfig, d: usize, prefix: &str, cross: bool) -> LayerParts {
    let name = |part: &str| format!("{prefix}{part}");
    let maps = |attention: &str| {
        projections(
            stack,
            d,
            ["query", "key", "value"].map(|map| name(&format!("{attention}.{map}"))),
        )
    };
    let output = |attention: &str| output(stack, d, &name(&format!("{attention}.output")));
    let map = |part: &str, outputs, inputs| {
        let part = Part::new(name(&format!("feed_forward.{part}")), outputs, inputs);
        part.with_bias(stack.biases.feed_forward)
    };
    let inner: &[&str] =
        if stack.gating == Gating::Gated { &["gate", "inner"] } else { &["inner"] };
    LayerParts {
        qkv: maps("attention").into(),
        output: output("attention"),
        attention_norm: name("attention_norm"),
        cross: cross.then(|| CrossParts {
            qkv: maps("cross_attention"),
            output: output("cross_attention"),
            norm: name("cross_attention_norm"),
        }),
        inner: inner.iter().map(|part| map(part, stack.d_ff, d)).collect(),
        outer: map("outer", d, stack.d_ff),
        feed_forward_norm: name("feed_forward_norm"),
    }
}
