//! Normalisation over the features of each row, also of a sum of two matrices.
//!
//! LayerNorm's variance is taken by the corrected two-pass method: with a first mean µ₁ = Σx/d, its
//! own rounding error r = Σ(x − µ₁)/d is removed from every deviation D = (x − µ₁) − r before the squares
//! are summed. A constant row then has D = 0 exactly, and a large mean costs no digits. (Chan, Golub and LeVeque,
//! "Algorithms for computing the sample variance", 1983; never E\[x²\] − µ².)
//!
//! When squares overflow, a row of finite numbers is done once more after an exact multiplication
//! by 2⁻⁸⁰; other rows are not affected.

pub(crate) mod backward;

pub use backward::{layer_norm_backward, rms_norm_backward};

use super::lanes::{LANES, Lanes, Times, blocks, blocks_mut, map_row};
use super::rows_per_chunk;
use crate::arch::FloatMode;
use crate::arch::vector::Vector;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::view::{Mat, MatMut};

/// Layer normalisation: y = (x − µ)/√(σ² + ε)·γ + β over the features of a row, with the biased variance.
/// (Ba, Kiros and Hinton, "Layer Normalization", 2016; "Attention Is All You Need", §3.1.)
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// γ, one per feature.
    pub gamma: &'a [f32],
    /// β, one per feature, or none.
    pub beta: Option<&'a [f32]>,
    /// ε > 0, inside the root.
    pub epsilon: f32,
}

/// Root-mean-square normalisation: y = x/√(mean(x²) + ε)·γ over the features of a row.
/// (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.)
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    /// γ, one per feature.
    pub gamma: &'a [f32],
    /// ε > 0, inside the root.
    pub epsilon: f32,
}

/// Either norm, as the kernels see it.
#[derive(Clone, Copy)]
pub(crate) struct Norm<'a> {
    /// Subtract the mean.
    centred: bool,
    gamma: &'a [f32],
    beta: Option<&'a [f32]>,
    epsilon: f32,
}

impl<'a> From<&LayerNorm<'a>> for Norm<'a> {
    fn from(norm: &LayerNorm<'a>) -> Norm<'a> {
        let LayerNorm { gamma, beta, epsilon } = *norm;
        Norm { centred: true, gamma, beta, epsilon }
    }
}

impl<'a> From<&RmsNorm<'a>> for Norm<'a> {
    fn from(norm: &RmsNorm<'a>) -> Norm<'a> {
        let RmsNorm { gamma, epsilon } = *norm;
        Norm { centred: false, gamma, beta: None, epsilon }
    }
}

/// out ← LayerNorm(x), row by row.
///
/// Error ≤ (d/32 + 20)·u·(|x̂·γ| + |β|) + 4·u·|x|max/√(σ² + ε)·|γ| elementwise, x̂ the normalised value,
/// u = 2⁻²⁴: the last term is what the rounding of x itself costs. A constant row gives exactly β; a NaN or ∞ makes its own row NaN.
/// O(rows·d), four passes over a row in the nearest cache.
///
/// # Panics
/// When shapes differ, γ or β is not as long as a row, or ε is not positive and finite.
///
/// ```
/// use headrow_kernels::{Cpu, LayerNorm, Mat, MatMut, Par, layer_norm};
/// let norm = LayerNorm { gamma: &[1.0, 1.0], beta: Some(&[0.0, 10.0]), epsilon: 1e-5 };
/// // A row with µ = 3 and σ² = 1, and a constant one.
/// let (x, mut y) = ([2.0, 4.0, 7.0, 7.0], [0.0; 4]);
/// layer_norm(Cpu::detect(), Par::SERIAL, &norm, Mat::new(&x, 2, 2), MatMut::new(&mut y, 2, 2));
/// assert!((y[0] + 1.0).abs() < 1e-4 && (y[1] - 11.0).abs() < 1e-4);
/// assert_eq!(y[2..], [0.0, 10.0]);
/// ```
#[track_caller]
pub fn layer_norm(cpu: Cpu, par: Par<'_>, norm: &LayerNorm<'_>, x: Mat<'_>, out: MatMut<'_>) {
    let places = Places { sum: None, saved: None, out };
    run(cpu, par, norm.into(), x, None, places);
}

/// out ← LayerNorm(x + residual); the sum, rounded to f32, is also written to `sum` when asked for.
///
/// The same bits as adding first and then calling [`layer_norm`]; its error bound holds for the rounded sum.
///
/// # Panics
/// As [`layer_norm`].
#[track_caller]
pub fn add_layer_norm(
    cpu: Cpu,
    par: Par<'_>,
    norm: &LayerNorm<'_>,
    x: Mat<'_>,
    residual: Mat<'_>,
    sum: Option<MatMut<'_>>,
    out: MatMut<'_>,
) {
    let places = Places { sum, saved: None, out };
    run(cpu, par, norm.into(), x, Some(residual), places);
}

/// out ← RMSNorm(x), row by row.
///
/// Error ≤ (d/64 + 6)·u relative to each element. A NaN or ∞ makes its own row NaN. O(rows·d).
///
/// # Panics
/// As [`layer_norm`].
#[track_caller]
pub fn rms_norm(cpu: Cpu, par: Par<'_>, norm: &RmsNorm<'_>, x: Mat<'_>, out: MatMut<'_>) {
    let places = Places { sum: None, saved: None, out };
    run(cpu, par, norm.into(), x, None, places);
}

/// out ← RMSNorm(x + residual); the sum, rounded to f32, is also written to `sum` when asked for.
///
/// The same bits as adding first and then calling [`rms_norm`].
///
/// # Panics
/// As [`layer_norm`].
#[track_caller]
pub fn add_rms_norm(
    cpu: Cpu,
    par: Par<'_>,
    norm: &RmsNorm<'_>,
    x: Mat<'_>,
    residual: Mat<'_>,
    sum: Option<MatMut<'_>>,
    out: MatMut<'_>,
) {
    let places = Places { sum, saved: None, out };
    run(cpu, par, norm.into(), x, Some(residual), places);
}

/// [`layer_norm`], which also keeps each row's [`Moments`] for [`layer_norm_backward`].
///
/// The same bits; one `Moments` a row.
///
/// # Panics
/// As [`layer_norm`], and when `saved` has another length than `out` has rows.
#[track_caller]
pub fn layer_norm_saving(
    cpu: Cpu,
    par: Par<'_>,
    norm: &LayerNorm<'_>,
    x: Mat<'_>,
    saved: &mut [Moments],
    out: MatMut<'_>,
) {
    let places = Places { sum: None, saved: Some(saved), out };
    run(cpu, par, norm.into(), x, None, places);
}

/// [`add_layer_norm`], which also keeps each row's [`Moments`] for [`layer_norm_backward`].
///
/// # Panics
/// As [`layer_norm_saving`].
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of the operation and what it keeps")]
pub fn add_layer_norm_saving(
    cpu: Cpu,
    par: Par<'_>,
    norm: &LayerNorm<'_>,
    x: Mat<'_>,
    residual: Mat<'_>,
    sum: Option<MatMut<'_>>,
    saved: &mut [Moments],
    out: MatMut<'_>,
) {
    let places = Places { sum, saved: Some(saved), out };
    run(cpu, par, norm.into(), x, Some(residual), places);
}

/// [`rms_norm`], which also keeps each row's [`Moments`] for [`rms_norm_backward`].
///
/// # Panics
/// As [`layer_norm_saving`].
#[track_caller]
pub fn rms_norm_saving(
    cpu: Cpu,
    par: Par<'_>,
    norm: &RmsNorm<'_>,
    x: Mat<'_>,
    saved: &mut [Moments],
    out: MatMut<'_>,
) {
    let places = Places { sum: None, saved: Some(saved), out };
    run(cpu, par, norm.into(), x, None, places);
}

/// [`add_rms_norm`], which also keeps each row's [`Moments`] for [`rms_norm_backward`].
///
/// # Panics
/// As [`layer_norm_saving`].
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of the operation and what it keeps")]
pub fn add_rms_norm_saving(
    cpu: Cpu,
    par: Par<'_>,
    norm: &RmsNorm<'_>,
    x: Mat<'_>,
    residual: Mat<'_>,
    sum: Option<MatMut<'_>>,
    saved: &mut [Moments],
    out: MatMut<'_>,
) {
    let places = Places { sum, saved: Some(saved), out };
    run(cpu, par, norm.into(), x, Some(residual), places);
}

/// Where a norm writes.
struct Places<'a> {
    sum: Option<MatMut<'a>>,
    saved: Option<&'a mut [Moments]>,
    out: MatMut<'a>,
}

/// [`Places`] for some of the rows. `sum` and `saved` (one column) have no columns when they are not asked for.
pub(crate) struct Written<'a> {
    sum: MatMut<'a>,
    saved: MatMut<'a, Moments>,
    out: MatMut<'a>,
}

impl Norm<'_> {
    /// Panics unless this is a norm of rows of `cols` features.
    #[track_caller]
    fn check(&self, cols: usize) {
        let (gamma, beta) = (self.gamma.len(), self.beta.map_or(cols, <[f32]>::len));
        assert!(
            gamma == cols && beta == cols,
            "γ of {gamma} and β of {beta} values for rows of {cols}"
        );
        assert!(
            self.epsilon > 0.0 && self.epsilon.is_finite(),
            "ε = {} is not positive and finite",
            self.epsilon
        );
    }
}

#[track_caller]
fn run(
    cpu: Cpu,
    par: Par<'_>,
    norm: Norm<'_>,
    x: Mat<'_>,
    residual: Option<Mat<'_>>,
    places: Places<'_>,
) {
    let _mode = FloatMode::default_scope();
    let Places { sum, saved, out } = places;
    let (rows, cols) = (out.rows(), out.cols());
    let shapes = [
        Some((x.rows(), x.cols())),
        residual.map(|residual| (residual.rows(), residual.cols())),
        sum.as_ref().map(|sum| (sum.rows(), sum.cols())),
    ];
    assert!(
        shapes.iter().flatten().all(|&shape| shape == (rows, cols)),
        "norm of [x, residual, sum] {shapes:?} into {rows}×{cols}"
    );
    let kept = saved.as_ref().map_or(rows, |saved| saved.len());
    assert!(kept == rows, "moments of {kept} rows to be kept of {rows}×{cols}");
    norm.check(cols);
    let sum = sum.unwrap_or(MatMut::new(&mut [], rows, 0));
    let saved = match saved {
        Some(saved) => MatMut::new(saved, rows, 1),
        None => MatMut::new(&mut [], rows, 0),
    };
    let work = |first, sum: MatMut<'_>, saved: MatMut<'_, Moments>, out: MatMut<'_>| {
        let rows = first..first + out.rows();
        let residual = residual.map(|residual| residual.rows_range(rows.clone()));
        let written = Written { sum, saved, out };
        (cpu.table.rows.norm)(&norm, x.rows_range(rows), residual, written);
    };
    match rows_per_chunk(par, rows, cols) {
        None => work(0, sum, saved, out),
        Some(grain) => par.for_rows_of_three(sum, saved, out, grain, &work),
    }
}

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
                add(simd, x, residual.row(i), out);
                None
            }
            (Some(residual), sum) => {
                add(simd, x, residual.row(i), sum);
                Some(&*sum)
            }
        };
        let moments = row::<S, R>(simd, norm, x, out);
        saved.row_mut(i).fill(moments);
    }
}

/// sum ← a + b.
#[inline(always)]
fn add<S: Vector>(simd: S, a: &[f32], b: &[f32], sum: &mut [f32]) {
    let (a, a_rest) = S::as_simd_f32s(a);
    let (b, b_rest) = S::as_simd_f32s(b);
    let (sum, sum_rest) = S::as_mut_simd_f32s(sum);
    for ((sum, &a), &b) in sum.iter_mut().zip(a).zip(b) {
        *sum = simd.add_f32s(a, b);
    }
    if !sum_rest.is_empty() {
        let end = sum_rest.len() as isize;
        let total = simd.add_f32s(simd.load(a_rest, 0, end), simd.load(b_rest, 0, end));
        simd.store(sum_rest, 0, end, total);
    }
}

/// What normalised a row, kept by the `…_saving` norms for their backward pass: x̂ = ((x·scale − mean) −
/// correction)·inverse.
#[derive(Clone, Copy, Debug)]
pub struct Moments {
    /// 1; 2⁻⁸⁰ when squares would leave the range of f32; 0 for a constant row of that kind, whose x̂ is 0.
    scale: f32,
    mean: f32,
    correction: f32,
    inverse: f32,
}

/// Of no row yet: moments to be overwritten.
impl Default for Moments {
    fn default() -> Moments {
        Moments { scale: 1.0, mean: 0.0, correction: 0.0, inverse: 0.0 }
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
        match x {
            Some(x) => apply::<S, R, true>(simd, norm, moments, x, out),
            None => apply::<S, R, false>(simd, norm, moments, &[], out),
        }
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
    apply::<S, R, false>(simd, norm, moments, &[], out);
    if moments.scale == 0.0 {
        // Beside a constant that is multiplied by 0 there is no mean either.
        (moments.mean, moments.correction) = (0.0, 0.0);
    }
    moments
}

/// 2⁻⁸⁰: squares of the largest f32 become about 10²⁹, those that overflowed before stay above 10⁻¹².
const SHRINK: f32 = 8.271806e-25;

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
    if norm.centred {
        mean = total::<S, R>(
            simd,
            x,
            #[inline(always)]
            |sum, x| simd.add_f32s(sum, x),
        ) / d;
        let m = simd.splat_f32s(mean);
        // What rounding left in the mean. In a constant row x − µ₁ is a few units of x's last place, whose multiples
        // are exact, so this is x − µ₁ itself.
        correction = total::<S, R>(
            simd,
            x,
            #[inline(always)]
            |sum, x| simd.add_f32s(sum, simd.sub_f32s(x, m)),
        ) / d;
    }
    let (m, r) = (simd.splat_f32s(mean), simd.splat_f32s(correction));
    let square = if norm.centred {
        total::<S, R>(
            simd,
            x,
            #[inline(always)]
            |sum, x| {
                let deviation = simd.sub_f32s(simd.sub_f32s(x, m), r);
                simd.mul_add_f32s(deviation, deviation, sum)
            },
        )
    } else {
        total::<S, R>(
            simd,
            x,
            #[inline(always)]
            |sum, x| simd.mul_add_f32s(x, x, sum),
        )
    } / d;
    let inverse = 1.0 / (square + epsilon).sqrt();
    (Moments { scale: 1.0, mean, correction, inverse }, square)
}

/// `step` over the elements in their lanes, folded; lanes that the last block lacks keep their sum.
#[inline(always)]
fn total<S: Vector, const R: usize>(
    simd: S,
    x: &[f32],
    step: impl Fn(S::f32s, S::f32s) -> S::f32s,
) -> f32 {
    let (blocks, rest) = blocks::<S, R>(x);
    let mut sum = Lanes::<S, R>::splat(simd, 0.0);
    for block in blocks {
        for r in 0..R {
            sum.0[r] = step(sum.0[r], block[r]);
        }
    }
    for r in 0..R {
        let at = r * S::F32_LANES;
        if at < rest.len() {
            let rest = &rest[at..];
            let end = rest.len() as isize;
            let next = step(sum.0[r], simd.load(rest, 0, end));
            sum.0[r] = simd.select_f32s(simd.lanes(0, end), next, sum.0[r]);
        }
    }
    sum.sum(simd)
}

/// Writes the normalised row, from `x` or (without `FROM_X`) in place.
#[inline(always)]
fn apply<S: Vector, const R: usize, const FROM_X: bool>(
    simd: S,
    norm: &Norm<'_>,
    moments: Moments,
    x: &[f32],
    out: &mut [f32],
) {
    // y = (D·inverse)·γ + β: one product, then one fused multiply-add.
    match (norm.centred, norm.beta) {
        (true, Some(beta)) => {
            let (mean, correction) =
                (simd.splat_f32s(moments.mean), simd.splat_f32s(moments.correction));
            let inverse = simd.splat_f32s(moments.inverse);
            write::<S, R, FROM_X, true>(
                simd,
                x,
                norm.gamma,
                beta,
                out,
                #[inline(always)]
                |x, gamma, beta| {
                    let d = simd.sub_f32s(simd.sub_f32s(x, mean), correction);
                    simd.mul_add_f32s(simd.mul_f32s(d, inverse), gamma, beta)
                },
            );
        }
        (true, None) => {
            let (mean, correction) =
                (simd.splat_f32s(moments.mean), simd.splat_f32s(moments.correction));
            let inverse = simd.splat_f32s(moments.inverse);
            write::<S, R, FROM_X, false>(
                simd,
                x,
                norm.gamma,
                &[],
                out,
                #[inline(always)]
                |x, gamma, _| {
                    let d = simd.sub_f32s(simd.sub_f32s(x, mean), correction);
                    simd.mul_f32s(simd.mul_f32s(d, inverse), gamma)
                },
            );
        }
        (false, _) => {
            let inverse = simd.splat_f32s(moments.inverse);
            write::<S, R, FROM_X, false>(
                simd,
                x,
                norm.gamma,
                &[],
                out,
                #[inline(always)]
                |x, gamma, _| simd.mul_f32s(simd.mul_f32s(x, inverse), gamma),
            );
        }
    }
}

/// out ← f(x or out, γ, β or 0).
#[inline(always)]
fn write<S: Vector, const R: usize, const FROM_X: bool, const BETA: bool>(
    simd: S,
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    out: &mut [f32],
    f: impl Fn(S::f32s, S::f32s, S::f32s) -> S::f32s,
) {
    let (gammas, gamma_rest) = blocks::<S, R>(gamma);
    let (betas, beta_rest) = blocks::<S, R>(beta);
    let (xs, x_rest) = blocks::<S, R>(x);
    let (outs, out_rest) = blocks_mut::<S, R>(out);
    let zero = simd.splat_f32s(0.0);
    for (i, (out, gamma)) in outs.iter_mut().zip(gammas).enumerate() {
        let x = if FROM_X { xs[i] } else { *out };
        for r in 0..R {
            out[r] = f(x[r], gamma[r], if BETA { betas[i][r] } else { zero });
        }
    }
    let width = S::F32_LANES;
    for at in (0..out_rest.len()).step_by(width) {
        let end = (out_rest.len() - at) as isize;
        let x = if FROM_X {
            simd.load(&x_rest[at..], 0, end)
        } else {
            simd.load(&out_rest[at..], 0, end)
        };
        let gamma = simd.load(&gamma_rest[at..], 0, end);
        let beta = if BETA { simd.load(&beta_rest[at..], 0, end) } else { zero };
        simd.store(&mut out_rest[at..], 0, end, f(x, gamma, beta));
    }
    const { assert!(LANES == R * S::F32_LANES) };
}
