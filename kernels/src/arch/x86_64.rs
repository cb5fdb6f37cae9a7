//! x86-64: AVX2 with FMA, AVX-512.

pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod vector;

/// Asks for a cache line to be brought into the second-level cache. Any address may be named.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: a hint: it faults on no address and changes no memory; SSE is part of x86-64.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
}

/// [`prefetch`] into the first-level cache.
#[inline(always)]
pub(crate) fn prefetch_near(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: as above.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
}
