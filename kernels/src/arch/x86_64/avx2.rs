//! x86-64-v3: 256-bit vectors, fused multiply-add.

pub(crate) mod gemm;
pub(crate) mod marked;
pub(crate) mod pack;
