//! x86-64: AVX2 with FMA, AVX-512.
