//! The bodies of the fuzz targets: plain functions over bytes, so that a stable compiler can replay a corpus.
//!
//! Each compares a kernel with its f64 definition, on whichever instruction set the input names, or a loader
//! with its promise: a typed error in bounded time and memory, never a panic.

mod attention;
mod checkpoint;
mod gemm;
mod memory;
mod norm;
mod safetensors;
mod softmax;
mod values;

use arbitrary::Unstructured;
use headrow_kernels::{Need, Par, Team};

/// What a fuzzer calls.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: [(&str, Target); 5] = [
    ("attention", attention),
    ("gemm", gemm),
    ("norm", norm),
    ("safetensors", safetensors),
    ("softmax", softmax),
];

/// Matrix products: shapes, strides, operand kinds, write modes and epilogues.
pub fn gemm(data: &[u8]) {
    // An input that is too short to describe a case is no case.
    let _ = gemm::check(&mut Unstructured::new(data));
}

/// Softmax, log-softmax and masked softmax.
pub fn softmax(data: &[u8]) {
    let _ = softmax::check(&mut Unstructured::new(data));
}

/// LayerNorm and RMSNorm, plain and with a residual.
pub fn norm(data: &[u8]) {
    let _ = norm::check(&mut Unstructured::new(data));
}

/// Attention: heads, lengths, diagonals, masks.
pub fn attention(data: &[u8]) {
    let _ = attention::check(&mut Unstructured::new(data));
}

/// Loading a model from hostile bytes.
pub fn safetensors(data: &[u8]) {
    let _ = safetensors::check(&mut Unstructured::new(data));
}

/// Runs `call` alone or with helpers; the bits must not tell.
fn with_par<R>(threads: usize, call: impl FnOnce(Par<'_>) -> R) -> R {
    if threads == 1 { call(Par::SERIAL) } else { Team::new(threads).open(call) }
}

/// Exactly the scratch that was asked for, so that a need that is too small shows.
fn scratch(need: Need) -> headrow_kernels::Scratch {
    headrow_kernels::Scratch::new(need)
}
