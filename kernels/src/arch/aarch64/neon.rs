//! NEON: 128-bit vectors, part of every 64-bit Arm.

pub(crate) mod gemm;
pub(crate) mod marked;
pub(crate) mod pack;
