//! The kernel of both norms: the moments of a row, then the row made from them.

use super::{Moments, Norm};
use crate::arch::vector::Vector;
use crate::rows::lanes::{Combine, Elements, Summed, Times, combine, map_row, sums_along};
use crate::rows::pack::Pack;
use crate::view::{Mat, MatMut};

/// Where some rows of a norm go. What is not asked for has no columns: `sum`, and `saved`, which else has one.
pub(crate) struct Written<'a> {
    pub(super) sum: MatMut<'a>,
    pub(super) saved: MatMut<'a, Moments>,
    pub(super) out: MatMut<'a>,
}

/// 2⁻⁸⁰: squares of the largest f32 become about 10²⁹, those that overflowed before stay above 10⁻¹².
pub(super) const SHRINK: f32 = 8.271806e-25;

/// Rows of x, or of x + residual, normalised into `out`; the sum and the moments also go where they are asked for.
///
/// A row passes through the nearest cache four times: (sum,) mean, correction, squares, result.
#[inline(always)]
pub(crate) fn kernel<S: Vector, const R: usize>(
    simd: S,
    norm: &Norm<'_>,
    x: Mat<'_>,
    residual: Option<Mat<'_>>,
    written: Written<'_>,
) {
    let Written { mut sum, mut saved, mut out } = written;
    for i in 0..out.rows() {
        let x = x.row(i);
        let out = out.row_mut(i);
        // The row to normalise, or none when `out` holds it already.
        let x = match (residual, sum.row_mut(i)) {
            (None, _) => Some(x),
            (Some(residual), []) => {
                combine(simd, [x, residual.row(i)], [out], Sum);
                None
            }
            (Some(residual), sum) => {
                combine(simd, [x, residual.row(i)], [sum], Sum);
                Some(&*sum)
            }
        };
        let moments = row::<S, R>(simd, norm, x, out);
        saved.row_mut(i).fill(moments);
    }
}

/// One row: from `x`, or from what `out` holds.
#[inline(always)]
fn row<S: Vector, const R: usize>(
    simd: S,
    norm: &Norm<'_>,
    x: Option<&[f32]>,
    out: &mut [f32],
) -> Moments {
    let (mut moments, square) = moments::<S, R>(simd, norm, x.unwrap_or(out), norm.epsilon);
    if square.is_finite() {
        apply(simd, norm, moments, x, out);
        return moments;
    }
    // The squares, or the sum, left the range of f32; or the row holds a NaN or ∞. Rare, so it may cost.
    if let Some(x) = x {
        out.copy_from_slice(x);
    }
    let finite = out.iter().all(|x| x.is_finite());
    map_row(simd, out, Times(SHRINK));
    // An ordinary ε·2⁻¹⁶⁰ is 0, which vanishes beside squares of this size; a constant row has D = 0 whatever the
    // factor.
    let square;
    (moments, square) = self::moments::<S, R>(simd, norm, out, norm.epsilon * SHRINK * SHRINK);
    moments.scale = SHRINK;
    if !finite {
        moments.inverse = f32::NAN;
    } else if square == 0.0 {
        let inverse = 1.0 / norm.epsilon.sqrt();
        moments = Moments { scale: 0.0, inverse, ..moments };
    }
    apply(simd, norm, moments, None, out);
    if moments.scale == 0.0 {
        // Beside a constant that is multiplied by 0 there is no mean either.
        (moments.mean, moments.correction) = (0.0, 0.0);
    }
    moments
}

/// The moments of a row, and the mean square that went into them.
#[inline(always)]
fn moments<S: Vector, const R: usize>(
    simd: S,
    norm: &Norm<'_>,
    x: &[f32],
    epsilon: f32,
) -> (Moments, f32) {
    let d = x.len() as f32;
    // Divisions by d, not products with 1/d: of a constant row the correction is then exact.
    let (mut mean, mut correction) = (0.0, 0.0);
    let square = if norm.centred {
        let [sum] = sums_along::<S, R, 1, 1>(simd, [x], Elements);
        mean = sum / d;
        // What rounding left in the mean. In a constant row x − µ₁ is a few units of x's last place, whose multiples
        // are exact, so this is x − µ₁ itself.
        let [sum] = sums_along::<S, R, 1, 1>(simd, [x], Deviations { mean });
        correction = sum / d;
        let [sum] = sums_along::<S, R, 1, 1>(simd, [x], CentredSquares { mean, correction });
        sum / d
    } else {
        let [sum] = sums_along::<S, R, 1, 1>(simd, [x], Squares);
        sum / d
    };
    let inverse = 1.0 / (square + epsilon).sqrt();
    (Moments { scale: 1.0, mean, correction, inverse }, square)
}

/// Writes the normalised row, from `x` or in place.
#[inline(always)]
fn apply<S: Vector>(
    simd: S,
    norm: &Norm<'_>,
    moments: Moments,
    x: Option<&[f32]>,
    out: &mut [f32],
) {
    let Norm { centred, gamma, beta, .. } = *norm;
    if centred {
        write(simd, Normal::<true>(moments), x, gamma, beta, out);
    } else {
        write(simd, Normal::<false>(moments), x, gamma, beta, out);
    }
}

/// [`apply`], one copy of the loop for each set of operands.
#[inline(always)]
fn write<S: Vector, const CENTRED: bool>(
    simd: S,
    normal: Normal<CENTRED>,
    x: Option<&[f32]>,
    gamma: &[f32],
    beta: Option<&[f32]>,
    out: &mut [f32],
) {
    match (x, beta) {
        (Some(x), Some(beta)) => combine(simd, [x, gamma, beta], [out], normal),
        (Some(x), None) => combine(simd, [x, gamma], [out], normal),
        (None, Some(beta)) => combine(simd, [gamma, beta], [out], InPlace(normal)),
        (None, None) => combine(simd, [gamma], [out], InPlace(normal)),
    }
}

/// x + residual.
#[derive(Clone, Copy)]
struct Sum;

impl<S: Vector> Combine<S, 2, 1> for Sum {
    #[inline(always)]
    fn of<const N: usize>(
        self,
        [x, residual]: [Pack<S, N>; 2],
        _: [Pack<S, N>; 1],
    ) -> [Pack<S, N>; 1] {
        [x + residual]
    }
}

/// x − µ₁.
#[derive(Clone, Copy)]
struct Deviations {
    mean: f32,
}

impl<S: Vector> Summed<S, 1, 1> for Deviations {
    #[inline(always)]
    fn add<const N: usize>(self, [x]: [Pack<S, N>; 1], [sum]: [Pack<S, N>; 1]) -> [Pack<S, N>; 1] {
        [sum + (x - x.all(self.mean))]
    }
}

/// D² with D = (x − µ₁) − r.
#[derive(Clone, Copy)]
struct CentredSquares {
    mean: f32,
    correction: f32,
}

impl<S: Vector> Summed<S, 1, 1> for CentredSquares {
    #[inline(always)]
    fn add<const N: usize>(self, [x]: [Pack<S, N>; 1], [sum]: [Pack<S, N>; 1]) -> [Pack<S, N>; 1] {
        let deviation = x - x.all(self.mean) - x.all(self.correction);
        [deviation.mul_add(deviation, sum)]
    }
}

/// x².
#[derive(Clone, Copy)]
struct Squares;

impl<S: Vector> Summed<S, 1, 1> for Squares {
    #[inline(always)]
    fn add<const N: usize>(self, [x]: [Pack<S, N>; 1], [sum]: [Pack<S, N>; 1]) -> [Pack<S, N>; 1] {
        [x.mul_add(x, sum)]
    }
}

/// (D·inverse)·γ + β, the last two operations fused; without β only the products; D = x unless `CENTRED`.
#[derive(Clone, Copy)]
struct Normal<const CENTRED: bool>(Moments);

impl<const CENTRED: bool> Normal<CENTRED> {
    /// D·inverse.
    #[inline(always)]
    fn scaled<S: Vector, const N: usize>(self, x: Pack<S, N>) -> Pack<S, N> {
        let Moments { mean, correction, inverse, .. } = self.0;
        let deviation = if CENTRED { x - x.all(mean) - x.all(correction) } else { x };
        deviation * x.all(inverse)
    }
}

impl<S: Vector, const CENTRED: bool> Combine<S, 3, 1> for Normal<CENTRED> {
    #[inline(always)]
    fn of<const N: usize>(
        self,
        [x, gamma, beta]: [Pack<S, N>; 3],
        _: [Pack<S, N>; 1],
    ) -> [Pack<S, N>; 1] {
        [self.scaled(x).mul_add(gamma, beta)]
    }
}

impl<S: Vector, const CENTRED: bool> Combine<S, 2, 1> for Normal<CENTRED> {
    #[inline(always)]
    fn of<const N: usize>(
        self,
        [x, gamma]: [Pack<S, N>; 2],
        _: [Pack<S, N>; 1],
    ) -> [Pack<S, N>; 1] {
        [self.scaled(x) * gamma]
    }
}

/// [`Normal`] of what is there.
#[derive(Clone, Copy)]
struct InPlace<const CENTRED: bool>(Normal<CENTRED>);

impl<S: Vector, const CENTRED: bool> Combine<S, 2, 1> for InPlace<CENTRED> {
    #[inline(always)]
    fn of<const N: usize>(
        self,
        [gamma, beta]: [Pack<S, N>; 2],
        [x]: [Pack<S, N>; 1],
    ) -> [Pack<S, N>; 1] {
        [self.0.scaled(x).mul_add(gamma, beta)]
    }
}

impl<S: Vector, const CENTRED: bool> Combine<S, 1, 1> for InPlace<CENTRED> {
    #[inline(always)]
    fn of<const N: usize>(self, [gamma]: [Pack<S, N>; 1], [x]: [Pack<S, N>; 1]) -> [Pack<S, N>; 1] {
        [self.0.scaled(x) * gamma]
    }
}
