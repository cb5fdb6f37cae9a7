//! x86-64: AVX2 with FMA, AVX-512.

pub(crate) mod avx2;
