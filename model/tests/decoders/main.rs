//! Decoders and sessions as a whole, over seeded models with drawn options: the bits of every way to compute the same,
//! the life of sequences, causality, what observers see, and errors.

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
use random_models::{LONGEST, Seeded, V};
use std::sync::Arc;
use tiny::Random;

/// Sixteen decoders, half of which nothing is special about but their options.
fn decoders() -> impl Iterator<Item = Seeded> {
    (0..4).map(Seeded::gpt2).chain((0..20).map(Seeded::decoder))
}

fn options() -> SessionOptions {
    let options = SessionOptions::default().with_max_length(LONGEST).with_threads(1);
    options.with_max_tokens(LONGEST).with_max_sequences(8).with_cache_tokens(10 * LONGEST)
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
    let rows = match output {
        Output::AllHidden | Output::AllLogits => tokens.len(),
        _ => 1,
    };
    let sequence = session.add().unwrap();
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
