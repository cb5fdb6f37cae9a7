//! Decoders and sessions as a whole, over seeded models with drawn options: the bits of every way to compute the same,
//! the life of sequences, causality, what observers see, and errors.

#[path = "../support/general.rs"]
mod general;
#[path = "../support/random_models.rs"]
mod random_models;
#[path = "../support/tiny.rs"]
mod tiny;

mod bits;
mod causal;
mod errors;
mod generation;
mod walk;

use headrow::{Chunk, Model, Output, Session, SessionOptions};
use random_models::{LONGEST, Seeded, V, begin};
use std::sync::Arc;
use tiny::Random;

/// Models with a decoder, and some with an encoder too.
fn decoders() -> impl Iterator<Item = Seeded> {
    let alone = (0..4).map(Seeded::gpt2).chain((0..20).map(Seeded::decoder));
    let alone = alone.chain((0..15).map(Seeded::family));
    alone.chain((0..12).map(Seeded::seq2seq)).chain((0..30).map(Seeded::general))
}

/// What the decoder attends to, where it attends to a source.
const SOURCE: [u32; 70] = {
    let mut source = [0; 70];
    let mut i = 0;
    while i < 70 {
        source[i] = (i * i % 59) as u32;
        i += 1;
    }
    source
};

fn options() -> SessionOptions {
    let options = SessionOptions::default().with_max_length(LONGEST).with_threads(1);
    options
        .with_max_tokens(LONGEST)
        .with_max_sequences(8)
        .with_cache_tokens(10 * LONGEST)
        .with_source_tokens(16 * 128)
}

fn session(model: &Arc<Model>) -> Session {
    Session::new(model, &options()).unwrap()
}

fn tokens(random: &mut Random, count: usize) -> Vec<u32> {
    (0..count).map(|_| random.below(V) as u32).collect()
}

/// Numbers of a row of `output`.
fn width(session: &Session, output: Output) -> usize {
    match output {
        Output::None => 0,
        Output::LastHidden | Output::AllHidden => session.model().config().d_model,
        _ => V,
    }
}

fn to_bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// The bits of `output` for all chunks, which are extended in one call.
fn extend(session: &mut Session, chunks: &[Chunk<'_>], rows: usize, output: Output) -> Vec<u32> {
    let mut out = vec![f32::NAN; rows * width(session, output)];
    session.extend(chunks, output, &mut out).unwrap();
    to_bits(&out)
}

/// The bits of `output` for a sequence of its own.
fn fresh(session: &mut Session, tokens: &[u32], output: Output) -> Vec<u32> {
    fresh_from(session, &SOURCE, tokens, output)
}

/// The same, with a source where there are sources.
fn fresh_from(session: &mut Session, source: &[u32], tokens: &[u32], output: Output) -> Vec<u32> {
    let rows = match output {
        Output::AllHidden | Output::AllLogits => tokens.len(),
        _ => 1,
    };
    let sequence = begin(session, source).unwrap();
    let bits = extend(session, &[Chunk::new(sequence, tokens)], rows, output);
    session.remove(sequence).unwrap();
    bits
}

/// Borders that cut `length` tokens into pieces.
fn cuts(random: &mut Random, length: usize, longest: usize) -> Vec<usize> {
    let (mut cuts, mut at) = (Vec::new(), 0);
    while at < length {
        at = length.min(at + 1 + random.below(longest));
        cuts.push(at);
    }
    cuts
}
