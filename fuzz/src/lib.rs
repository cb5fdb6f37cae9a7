//! The bodies of the fuzz targets: plain functions over bytes, so that a stable compiler can replay a corpus.
//!
//! Each compares a kernel with its f64 definition, on whichever instruction set the input names, or a loader
//! with its promise: a typed error in bounded time and memory, never a panic.

mod activation;
mod attention;
mod beam;
mod checkpoint;
mod config;
mod decoding;
mod gemm;
#[path = "../../model/tests/support/general.rs"]
mod general;
mod halves;
mod index;
mod memory;
mod norm;
mod safetensors;
mod seeds;
mod session;
mod softmax;
#[path = "../../model/tests/support/tiny.rs"]
mod tiny;
#[path = "../../model/tests/support/tiny_seq2seq.rs"]
mod tiny_seq2seq;
mod tokenizer;
mod toy;
mod values;

use arbitrary::Unstructured;
use headrow_kernels::{Need, Par, Team};
pub use seeds::{Seed, seeds};

/// What a fuzzer calls.
pub type Target = fn(&[u8]);

/// A function for each target, and the list of all.
macro_rules! targets {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Every target by name.
        pub const TARGETS: &[(&str, Target)] = &[$((stringify!($name), $name)),*];

        $(
            $(#[$doc])*
            pub fn $name(data: &[u8]) {
                // An input that is too short to describe a case is no case.
                let _ = $name::check(&mut Unstructured::new(data));
            }
        )*
    };
}

targets! {
    /// Activation functions and gates.
    activation,
    /// Attention: heads, lengths, diagonals, masks.
    attention,
    /// Beam search over small models, beside an exhaustive search.
    beam,
    /// `config.json` of every family.
    config,
    /// Options of decoding, over logits that may be no numbers.
    decoding,
    /// Matrix products: shapes, strides, operand kinds, write modes and epilogues.
    gemm,
    /// Weights in 16 bits, read and written.
    halves,
    /// Models in several files, and the index that says what lies where.
    index,
    /// LayerNorm and RMSNorm, plain and with a residual.
    norm,
    /// Loading a model from hostile bytes.
    safetensors,
    /// The life of sequences in a session, beside reading each anew.
    session,
    /// Softmax, log-softmax and masked softmax.
    softmax,
    /// `tokenizer.json`, and texts into tokens and back.
    tokenizer,
}

/// The whole input, when it is a file from outside and no list of choices: it begins as JSON does.
fn whole_file<'a>(u: &mut Unstructured<'a>) -> Option<&'a [u8]> {
    let file = u.peek_bytes(1) == Some(b"{");
    file.then(|| u.bytes(u.len()).expect("as many as there are"))
}

/// A file that is JSON in one line, and what follows the line.
fn split_line(file: &[u8]) -> (&[u8], &[u8]) {
    match file.iter().position(|&byte| byte == b'\n') {
        Some(at) => (&file[..at], &file[at + 1..]),
        None => (file, &[]),
    }
}

/// The message of an error is one line of bounded length.
fn one_line(error: &headrow::Error) {
    let message = error.to_string();
    assert!(!message.contains('\n') && message.len() < 8000, "{message:?}");
}

/// Runs `call` alone or with helpers; the bits must not tell.
fn with_par<R>(threads: usize, call: impl FnOnce(Par<'_>) -> R) -> R {
    if threads == 1 { call(Par::SERIAL) } else { Team::new(threads).open(call) }
}

/// Exactly the scratch that was asked for, so that a need that is too small shows.
fn scratch(need: Need) -> headrow_kernels::Scratch {
    headrow_kernels::Scratch::new(need)
}
