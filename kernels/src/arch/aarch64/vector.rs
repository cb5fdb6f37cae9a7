//! The row kernels' vectors: four lanes.

use crate::arch::vector::{Vector, clamp};
use pulp::aarch64::Neon;
use pulp::{Simd, f32x4, i32x4, m32x4, u32x4};

const INDEX: i32x4 = i32x4(0, 1, 2, 3);

impl Vector for Neon {
    #[inline(always)]
    fn larger(self, a: f32x4, b: f32x4) -> f32x4 {
        // Not the maximum instruction, which prefers NaN and +0.
        self.select_f32s(self.greater_than_f32s(a, b), a, b)
    }

    #[inline(always)]
    fn smaller(self, a: f32x4, b: f32x4) -> f32x4 {
        self.select_f32s(self.less_than_f32s(a, b), a, b)
    }

    #[inline(always)]
    fn lanes(self, first: isize, end: isize) -> m32x4 {
        let end = self.splat_i32s(clamp(end, 4) as i32);
        let first = self.splat_i32s(clamp(first, 4) as i32 - 1);
        self.and_m32s(self.greater_than_i32s(end, INDEX), self.greater_than_i32s(INDEX, first))
    }

    #[inline(always)]
    fn load(self, from: &[f32], first: isize, end: isize) -> f32x4 {
        if let (Some(&[a, b, c, d]), true) = (from.first_chunk::<4>(), first <= 0 && end >= 4) {
            return f32x4(a, b, c, d);
        }
        let mut lanes = [0.0; 4];
        for i in clamp(first, 4)..clamp(end, 4).min(from.len()) {
            lanes[i] = from[i];
        }
        pulp::cast!(lanes)
    }

    #[inline(always)]
    fn store(self, to: &mut [f32], first: isize, end: isize, value: f32x4) {
        let lanes: [f32; 4] = pulp::cast!(value);
        if let (Some(to), true) = (to.first_chunk_mut::<4>(), first <= 0 && end >= 4) {
            *to = lanes;
            return;
        }
        for i in clamp(first, 4)..clamp(end, 4).min(to.len()) {
            to[i] = lanes[i];
        }
    }

    #[inline(always)]
    fn truths(self, from: &[bool]) -> m32x4 {
        let at = |i: usize| u32::from(from.get(i).copied().unwrap_or(false));
        let ones = u32x4(at(0), at(1), at(2), at(3));
        self.greater_than_u32s(ones, self.splat_u32s(0))
    }
}
