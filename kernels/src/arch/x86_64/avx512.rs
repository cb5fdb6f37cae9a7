//! x86-64-v4: 512-bit vectors with masks.

pub(crate) mod gemm;
pub(crate) mod marked;
