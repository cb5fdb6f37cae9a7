//! The row kernels' vectors: eight lanes with AVX2, sixteen with AVX-512.

use crate::arch::vector::{Vector, clamp};
use pulp::x86::{V3, V4};
use pulp::{Simd, b16, f32x8, f32x16, i32x8, m32x8};
use std::arch::x86_64::{__m128, __m256, __m256i};

const INDEX: i32x8 = i32x8(0, 1, 2, 3, 4, 5, 6, 7);

impl Vector for V3 {
    #[inline(always)]
    fn larger(self, a: f32x8, b: f32x8) -> f32x8 {
        // The instruction gives its second operand when either is NaN, or both are zeros.
        pulp::cast!(self.avx._mm256_max_ps(pulp::cast!(a), pulp::cast!(b)))
    }

    #[inline(always)]
    fn smaller(self, a: f32x8, b: f32x8) -> f32x8 {
        pulp::cast!(self.avx._mm256_min_ps(pulp::cast!(a), pulp::cast!(b)))
    }

    #[inline(always)]
    fn lanes(self, first: isize, end: isize) -> m32x8 {
        let end = self.splat_i32s(clamp(end, 8) as i32);
        let below = self.greater_than_i32s(end, INDEX);
        if first <= 0 {
            return below;
        }
        let first = self.splat_i32s(clamp(first, 8) as i32 - 1);
        self.and_m32s(below, self.greater_than_i32s(INDEX, first))
    }

    #[inline(always)]
    fn load(self, from: &[f32], first: isize, end: isize) -> f32x8 {
        let mask: __m256i = pulp::cast!(self.lanes(first, end.min(from.len() as isize)));
        // SAFETY: reads the lanes of the mask, which lie inside the slice; lanes outside the mask are
        // not accessed.
        pulp::cast!(unsafe { self.avx._mm256_maskload_ps(from.as_ptr(), mask) })
    }

    #[inline(always)]
    fn store(self, to: &mut [f32], first: isize, end: isize, value: f32x8) {
        // By halves: the masked store is microcode on some processors, twenty times as slow.
        let lanes: [f32; 8] = pulp::cast!(value);
        let (mut at, end) = (clamp(first, 8), clamp(end, 8).min(to.len()));
        if at == 0 {
            for half in [8, 4, 2, 1] {
                if end & half != 0 {
                    to[at..at + half].copy_from_slice(&lanes[at..at + half]);
                    at += half;
                }
            }
        } else if at < end {
            to[at..end].copy_from_slice(&lanes[at..end]);
        }
    }

    #[inline(always)]
    fn truths(self, from: &[bool]) -> m32x8 {
        let mut bytes = [0; 16];
        match from.first_chunk::<8>() {
            Some(all) => bytes.iter_mut().zip(all).for_each(|(to, &from)| *to = u8::from(from)),
            None => bytes.iter_mut().zip(from).for_each(|(to, &from)| *to = u8::from(from)),
        }
        let wide = self.avx2._mm256_cvtepu8_epi32(pulp::cast!(bytes));
        self.greater_than_i32s(pulp::cast!(wide), self.splat_i32s(0))
    }

    #[inline(always)]
    fn fold_sum(self, a: f32x8) -> f32 {
        fold(
            self,
            a,
            #[inline(always)]
            |a, b| self.sse._mm_add_ps(a, b),
        )
    }

    #[inline(always)]
    fn fold_larger(self, a: f32x8) -> f32 {
        fold(
            self,
            a,
            #[inline(always)]
            |a, b| self.sse._mm_max_ps(a, b),
        )
    }
}

/// Combines the two halves of a register, then what lies two lanes apart, then one.
#[inline(always)]
fn fold(simd: V3, a: f32x8, combine: impl Fn(__m128, __m128) -> __m128) -> f32 {
    let a: __m256 = pulp::cast!(a);
    let four = combine(simd.avx._mm256_castps256_ps128(a), simd.avx._mm256_extractf128_ps::<1>(a));
    let two = combine(four, simd.sse._mm_movehl_ps(four, four));
    let one = combine(two, simd.sse3._mm_movehdup_ps(two));
    simd.sse._mm_cvtss_f32(one)
}

impl Vector for V4 {
    #[inline(always)]
    fn larger(self, a: f32x16, b: f32x16) -> f32x16 {
        // The instruction gives its second operand when either is NaN, or both are zeros.
        pulp::cast!(self.avx512f._mm512_max_ps(pulp::cast!(a), pulp::cast!(b)))
    }

    #[inline(always)]
    fn smaller(self, a: f32x16, b: f32x16) -> f32x16 {
        pulp::cast!(self.avx512f._mm512_min_ps(pulp::cast!(a), pulp::cast!(b)))
    }

    #[inline(always)]
    fn lanes(self, first: isize, end: isize) -> b16 {
        let below = |bound| (1u32 << clamp(bound, 16)) - 1;
        b16((below(end) & !below(first)) as u16)
    }

    #[inline(always)]
    fn load(self, from: &[f32], first: isize, end: isize) -> f32x16 {
        let mask = self.lanes(first, end.min(from.len() as isize)).0;
        // SAFETY: reads the lanes of the mask, which lie inside the slice; lanes outside the mask are
        // not accessed.
        pulp::cast!(unsafe { self.avx512f._mm512_maskz_loadu_ps(mask, from.as_ptr()) })
    }

    #[inline(always)]
    fn store(self, to: &mut [f32], first: isize, end: isize, value: f32x16) {
        let mask = self.lanes(first, end.min(to.len() as isize)).0;
        // SAFETY: writes the lanes of the mask, which lie inside the slice; lanes outside the mask are
        // not accessed.
        unsafe { self.avx512f._mm512_mask_storeu_ps(to.as_mut_ptr(), mask, pulp::cast!(value)) }
    }

    #[inline(always)]
    fn truths(self, from: &[bool]) -> b16 {
        let mut bytes = [0; 16];
        match from.first_chunk::<16>() {
            Some(all) => bytes.iter_mut().zip(all).for_each(|(to, &from)| *to = u8::from(from)),
            None => bytes.iter_mut().zip(from).for_each(|(to, &from)| *to = u8::from(from)),
        }
        let wide = self.avx512f._mm512_cvtepu8_epi32(pulp::cast!(bytes));
        b16(self.avx512f._mm512_test_epi32_mask(wide, wide))
    }

    #[inline(always)]
    fn fold_sum(self, a: f32x16) -> f32 {
        let [low, high] = halves(self, a);
        V3::fold_sum(*self, pulp::cast!(self.avx._mm256_add_ps(low, high)))
    }

    #[inline(always)]
    fn fold_larger(self, a: f32x16) -> f32 {
        let [low, high] = halves(self, a);
        V3::fold_larger(*self, pulp::cast!(self.avx._mm256_max_ps(low, high)))
    }
}

#[inline(always)]
fn halves(simd: V4, a: f32x16) -> [__m256; 2] {
    let low = simd.avx512f._mm512_castps512_ps256(pulp::cast!(a));
    [low, simd.avx512dq._mm512_extractf32x8_ps::<1>(pulp::cast!(a))]
}
