//! SIMD kernels for Transformers on CPUs.
//!
//! # The contract of every kernel
//!
//! 1. Matrices are row-major views with column stride 1 and any row stride ([`Mat`], [`MatMut`]). A head is
//!    a range of columns.
//! 2. Callers align nothing. Packed weights and scratch memory are aligned to 64 bytes.
//! 3. Exactly the elements of the views are read and written.
//! 4. Output that is replaced is never read.
//! 5. NaN and ∞ follow IEEE 754 and surface: in every output that depends on them, and in no other.
//! 6. Masks are structural: a hidden key weighs exactly 0 and never influences the result; a query
//!    that sees no key gives zeros. Of an additive mask only a true −∞ hides.
//! 7. Wrong shapes are bugs of the caller and panic with the shapes in the message.
//! 8. Each operation has an `…_scratch` function beside it ([`Need`]) and allocates nothing ([`Stack`]).
//! 9. For f32 the result's bits are the same on every instruction set ([`Cpu`]), with any number of
//!    threads ([`Par`]), and for a row alone or among others.
#![deny(missing_docs)]

mod arch;
pub mod attention;
pub mod cpu;
pub mod embedding;
pub mod gemm;
pub mod par;
pub mod reference;
pub mod rope;
pub mod rows;
pub mod scratch;
mod table;
mod view;

pub use attention::{
    AttentionExtent, AttentionGradients, AttentionOutput, AttentionShape, CachedSegment, KvCache,
    Maps, Mask, PerHead, PerHeadMut, Reach, Relative, Segment, attention, attention_backward,
    attention_backward_scratch, attention_cached, attention_cached_scratch, attention_scratch,
};
pub use cpu::{Cpu, Isa};
pub use embedding::{Lookup, embed, embed_backward};
pub use gemm::{Epilogue, Left, LeftKind, PackedB, Right, RightKind, Write, gemm, gemm_scratch};
pub use par::{Cancel, Par, Team};
pub use rope::{Rope, RopeLayout, rope, rope_backward};
pub use rows::activation::{Activation, activate, activate_backward, gate, gate_backward};
pub use rows::dropout::{Dropout, add_dropout, dropout, dropout_into};
pub use rows::loss::{
    CrossEntropy, Smoothing, TokenLoss, cross_entropy, cross_entropy_backward, nll, nll_backward,
};
pub use rows::norm::{
    LayerNorm, Moments, NormOutput, RmsNorm, add_layer_norm, add_rms_norm, layer_norm,
    layer_norm_backward, rms_norm, rms_norm_backward,
};
pub use rows::optimizer::{Adagrad, Adam, Look, Momentum, adagrad, adam, momentum};
pub use rows::softmax::{
    Visible, log_softmax, log_softmax_backward, masked_softmax, softmax, softmax_backward,
};
pub use rows::sums::{add_column_sums, sum_of_squares};
pub use scratch::{Need, Scratch, Stack};
pub use view::{Mat, MatMut};
