//! Portable kernels. They run on every machine and define the bits of all others.

pub(crate) mod gemm;
pub(crate) mod marked;
pub(crate) mod pack;
