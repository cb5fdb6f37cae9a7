//! What the row kernels need beyond pulp's `Simd`.
//!
//! pulp's own partial loads are calls through a table of functions, and its minima treat NaN as each
//! instruction set does. The operations here are one or two instructions each, masked where
//! the processor has masks, and defined bit for bit.

use pulp::{Scalar, Simd};

/// A token that proves an instruction set, with the operations of the row kernels.
pub(crate) trait Vector: Simd {
    /// a > b ? a : b, lane by lane: b when either is NaN.
    fn larger(self, a: Self::f32s, b: Self::f32s) -> Self::f32s;

    /// a < b ? a : b, lane by lane: b when either is NaN.
    fn smaller(self, a: Self::f32s, b: Self::f32s) -> Self::f32s;

    /// The lanes i with first ≤ i < end. Either may lie outside the register.
    fn lanes(self, first: isize, end: isize) -> Self::m32s;

    /// Lane i holds `from[i]` for 0 ≤ first ≤ i < min(end, `from.len()`), else +0. Nothing else is read.
    fn load(self, from: &[f32], first: isize, end: isize) -> Self::f32s;

    /// `to[i]` becomes lane i for 0 ≤ first ≤ i < min(end, `to.len()`). Nothing else is written.
    fn store(self, to: &mut [f32], first: isize, end: isize, value: Self::f32s);

    /// The lanes i with i < `from.len()` and `from[i]`.
    fn truths(self, from: &[bool]) -> Self::m32s;

    /// Adds lanes that lie half a register apart, then a quarter, and so on down to one number.
    #[inline(always)]
    fn fold_sum(self, a: Self::f32s) -> f32 {
        fold::<Self>(
            a,
            #[inline(always)]
            |a, b| a + b,
        )
    }

    /// As [`Vector::fold_sum`] with `a > b ? a : b`.
    #[inline(always)]
    fn fold_larger(self, a: Self::f32s) -> f32 {
        fold::<Self>(
            a,
            #[inline(always)]
            |a, b| if a > b { a } else { b },
        )
    }
}

#[inline(always)]
fn fold<S: Simd>(a: S::f32s, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; 16];
    let mut width = S::F32_LANES;
    lanes[..width].copy_from_slice(pulp::bytemuck::cast_slice(&[a]));
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] = combine(lanes[i], lanes[i + width]);
        }
    }
    lanes[0]
}

impl Vector for Scalar {
    #[inline(always)]
    fn larger(self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }

    #[inline(always)]
    fn smaller(self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }

    #[inline(always)]
    fn lanes(self, first: isize, end: isize) -> bool {
        first <= 0 && 0 < end
    }

    #[inline(always)]
    fn load(self, from: &[f32], first: isize, end: isize) -> f32 {
        if self.lanes(first, end) { from.first().copied().unwrap_or(0.0) } else { 0.0 }
    }

    #[inline(always)]
    fn store(self, to: &mut [f32], first: isize, end: isize, value: f32) {
        if let (true, Some(to)) = (self.lanes(first, end), to.first_mut()) {
            *to = value;
        }
    }

    #[inline(always)]
    fn truths(self, from: &[bool]) -> bool {
        from.first().copied().unwrap_or(false)
    }
}

/// How many of `lanes` lanes lie below `bound`, whatever its sign.
#[inline(always)]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
pub(super) fn clamp(bound: isize, lanes: usize) -> usize {
    bound.clamp(0, lanes as isize) as usize
}
