//! The 32 virtual lanes: sums and maxima over a row with the same bits on every instruction set.
//!
//! | | registers | lanes of a register |
//! |---|---|---|
//! | AVX-512 | 2 | 16 |
//! | AVX2 | 4 | 8 |
//! | NEON | 8 | 4 |
//! | scalar | 32 | 1 |
//!
//! Element i of a row is added to lane i mod 32, in ascending i. At the end lane i is combined with lane i + 16,
//! then i + 8, i + 4, i + 2, i + 1: first whole registers, then the halves of one.

use super::pack::Pack;
use crate::arch::vector::Vector;
use crate::view::{Mat, MatMut};

/// Virtual lanes of a reduction: element i of a row belongs to lane i mod 32.
pub(crate) const LANES: usize = 32;

/// 32 lanes in R registers.
#[derive(Clone, Copy)]
pub(super) struct Lanes<S: Vector, const R: usize>(pub(super) [S::f32s; R]);

impl<S: Vector, const R: usize> Lanes<S, R> {
    const WIDTH: usize = S::F32_LANES;

    #[inline(always)]
    pub(super) fn splat(simd: S, value: f32) -> Self {
        const { assert!(R * Self::WIDTH == LANES) };
        Lanes([simd.splat_f32s(value); R])
    }

    /// The sum of all lanes: lane i with i + 16, then 8, 4, 2, 1.
    #[inline(always)]
    pub(super) fn sum(self, simd: S) -> f32 {
        let mut lanes = self.0;
        let mut width = R;
        while width > 1 {
            width /= 2;
            for r in 0..width {
                lanes[r] = simd.add_f32s(lanes[r], lanes[r + width]);
            }
        }
        simd.fold_sum(lanes[0])
    }

    /// The largest lane, in the same order; lanes never hold NaN.
    #[inline(always)]
    pub(super) fn largest(self, simd: S) -> f32 {
        let mut lanes = self.0;
        let mut width = R;
        while width > 1 {
            width /= 2;
            for r in 0..width {
                lanes[r] = simd.larger(lanes[r], lanes[r + width]);
            }
        }
        simd.fold_larger(lanes[0])
    }
}

/// The whole blocks of 32 elements of a row, and the rest: fewer than 32 elements.
#[inline(always)]
pub(super) fn blocks<S: Vector, const R: usize>(row: &[f32]) -> (&[[S::f32s; R]], &[f32]) {
    let (registers, _) = S::as_simd_f32s(row);
    let (blocks, _) = pulp::as_arrays::<R, _>(registers);
    (blocks, &row[blocks.len() * LANES..])
}

/// As [`blocks`], writable.
#[inline(always)]
pub(super) fn blocks_mut<S: Vector, const R: usize>(
    row: &mut [f32],
) -> (&mut [[S::f32s; R]], &mut [f32]) {
    let (whole, rest) = row.split_at_mut(row.len() / LANES * LANES);
    let (registers, _) = S::as_mut_simd_f32s(whole);
    let (blocks, _) = pulp::as_arrays_mut::<R, _>(registers);
    (blocks, rest)
}

/// Registers that go through an element-wise function side by side: enough to hide its latency, few enough
/// to stay in registers.
const ABREAST: usize = 4;

/// A function of every element by itself.
///
/// A trait and not a closure: a closure that is passed on by reference goes through a shim that is compiled
/// without the processor's features, and every intrinsic in it becomes a call.
pub(super) trait Elementwise<S: Vector>: Copy {
    fn of<const N: usize>(self, x: Pack<S, N>) -> Pack<S, N>;
}

/// `f` of every element, in place.
#[inline(always)]
pub(super) fn map<S: Vector>(simd: S, mut x: MatMut<'_>, f: impl Elementwise<S>) {
    if let Some(all) = x.as_contiguous() {
        return map_row(simd, all, f);
    }
    for i in 0..x.rows() {
        map_row(simd, x.row_mut(i), f);
    }
}

/// `f` of every element of a row, in place.
#[inline(always)]
pub(super) fn map_row<S: Vector>(simd: S, row: &mut [f32], f: impl Elementwise<S>) {
    let (registers, rest) = S::as_mut_simd_f32s(row);
    let (packs, single) = pulp::as_arrays_mut::<ABREAST, _>(registers);
    for x in packs {
        *x = f.of(Pack::new(simd, *x)).registers;
    }
    for x in single {
        [*x] = f.of(Pack::new(simd, [*x])).registers;
    }
    if !rest.is_empty() {
        let end = rest.len() as isize;
        let [y] = f.of(Pack::new(simd, [simd.load(rest, 0, end)])).registers;
        simd.store(rest, 0, end, y);
    }
}

/// out ← `f`(x)·y, element by element; the shapes are equal.
#[inline(always)]
pub(super) fn map_times<S: Vector>(
    simd: S,
    x: Mat<'_>,
    y: Mat<'_>,
    mut out: MatMut<'_>,
    f: impl Elementwise<S>,
) {
    for i in 0..out.rows() {
        map_times_row(simd, x.row(i), y.row(i), out.row_mut(i), f);
    }
}

#[inline(always)]
fn map_times_row<S: Vector>(
    simd: S,
    x: &[f32],
    y: &[f32],
    out: &mut [f32],
    f: impl Elementwise<S>,
) {
    let ((x, x_rest), (y, y_rest)) = (S::as_simd_f32s(x), S::as_simd_f32s(y));
    let (out, out_rest) = S::as_mut_simd_f32s(out);
    let (xs, x_single) = pulp::as_arrays::<ABREAST, _>(x);
    let (ys, y_single) = pulp::as_arrays::<ABREAST, _>(y);
    let (outs, out_single) = pulp::as_arrays_mut::<ABREAST, _>(out);
    for ((x, y), out) in xs.iter().zip(ys).zip(outs) {
        *out = (f.of(Pack::new(simd, *x)) * Pack::new(simd, *y)).registers;
    }
    for ((x, y), out) in x_single.iter().zip(y_single).zip(out_single) {
        [*out] = (f.of(Pack::new(simd, [*x])) * Pack::new(simd, [*y])).registers;
    }
    if !out_rest.is_empty() {
        let end = out_rest.len() as isize;
        let x = Pack::new(simd, [simd.load(x_rest, 0, end)]);
        let y = Pack::new(simd, [simd.load(y_rest, 0, end)]);
        let [result] = (f.of(x) * y).registers;
        simd.store(out_rest, 0, end, result);
    }
}

/// `$f` as an [`Elementwise`] function.
macro_rules! elementwise {
    ($name:ident, $f:path) => {
        #[derive(Clone, Copy)]
        struct $name;
        impl<S: $crate::arch::vector::Vector> $crate::rows::lanes::Elementwise<S> for $name {
            #[inline(always)]
            fn of<const N: usize>(
                self,
                x: $crate::rows::pack::Pack<S, N>,
            ) -> $crate::rows::pack::Pack<S, N> {
                $f(x)
            }
        }
    };
}
pub(super) use elementwise;

/// Multiplies by a number.
#[derive(Clone, Copy)]
pub(super) struct Times(pub(super) f32);

impl<S: Vector> Elementwise<S> for Times {
    #[inline(always)]
    fn of<const N: usize>(self, x: Pack<S, N>) -> Pack<S, N> {
        x * x.all(self.0)
    }
}
