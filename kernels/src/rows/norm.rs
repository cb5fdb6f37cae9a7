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
pub(crate) mod forward;

pub use backward::{layer_norm_backward, rms_norm_backward};

use super::rows_per_chunk;
use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::view::{Mat, MatMut};
use forward::Written;

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

/// What normalised a row, kept for its backward pass: x̂ = ((x·scale − mean) − correction)·inverse.
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

/// What a norm writes. A matrix alone becomes one without moments.
#[derive(Debug)]
pub struct NormOutput<'a> {
    out: MatMut<'a>,
    moments: Option<&'a mut [Moments]>,
}

impl<'a> From<MatMut<'a>> for NormOutput<'a> {
    fn from(out: MatMut<'a>) -> NormOutput<'a> {
        NormOutput { out, moments: None }
    }
}

impl<'a> NormOutput<'a> {
    /// The same with the [`Moments`] of the rows, one for each, which the backward pass wants. They cost no bit of the
    /// result.
    pub fn with_moments(self, moments: &'a mut [Moments]) -> NormOutput<'a> {
        NormOutput { moments: Some(moments), ..self }
    }
}

/// out ← LayerNorm(x), row by row: x and out rows × d.
///
/// Error ≤ (d/32 + 20)·u·(|x̂·γ| + |β|) + 4·u·|x|max/√(σ² + ε)·|γ| elementwise, x̂ the normalised value,
/// u = 2⁻²⁴: the last term is what the rounding of x itself costs. A constant row gives exactly β; a NaN or ∞ makes its
/// own row NaN. O(rows·d), four passes over a row in the nearest cache.
///
/// # Panics
/// When shapes differ, γ or β is not as long as a row, ε is not positive and finite, or there are not as many moments
/// as rows.
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
pub fn layer_norm<'a>(
    cpu: Cpu,
    par: Par<'_>,
    norm: &LayerNorm<'_>,
    x: Mat<'_>,
    out: impl Into<NormOutput<'a>>,
) {
    run(cpu, par, norm.into(), x, None, None, out.into());
}

/// out ← LayerNorm(x + residual); the sum, rounded to f32, is also written to `sum` when asked for.
///
/// The same bits as adding first and then calling [`layer_norm`]; its error bound holds for the rounded sum. Shapes as
/// there. One pass more.
///
/// # Panics
/// As [`layer_norm`].
///
/// ```
/// use headrow_kernels::{Cpu, LayerNorm, Mat, MatMut, Par, add_layer_norm};
/// let norm = LayerNorm { gamma: &[1.0, 1.0], beta: None, epsilon: 1e-5 };
/// let (x, mut sum, mut y) = ([1.0, 2.0], [0.0; 2], [0.0; 2]);
/// let (x, out) = (Mat::new(&x, 1, 2), MatMut::new(&mut y, 1, 2));
/// let to_sum = Some(MatMut::new(&mut sum, 1, 2));
/// add_layer_norm(Cpu::detect(), Par::SERIAL, &norm, x, x, to_sum, out);
/// assert_eq!(sum, [2.0, 4.0]);
/// assert!((y[0] + 1.0).abs() < 1e-4 && (y[1] - 1.0).abs() < 1e-4);
/// ```
#[track_caller]
pub fn add_layer_norm<'a>(
    cpu: Cpu,
    par: Par<'_>,
    norm: &LayerNorm<'_>,
    x: Mat<'_>,
    residual: Mat<'_>,
    sum: Option<MatMut<'_>>,
    out: impl Into<NormOutput<'a>>,
) {
    run(cpu, par, norm.into(), x, Some(residual), sum, out.into());
}

/// out ← RMSNorm(x), row by row: x and out rows × d.
///
/// Error ≤ (d/64 + 6)·u relative to each element. A NaN or ∞ makes its own row NaN. O(rows·d), two passes.
///
/// # Panics
/// As [`layer_norm`].
///
/// ```
/// use headrow_kernels::{Cpu, Mat, MatMut, Par, RmsNorm, rms_norm};
/// let norm = RmsNorm { gamma: &[1.0, 2.0], epsilon: 1e-6 };
/// // The mean of the squares is 5².
/// let (x, mut y) = ([1.0, 7.0], [0.0; 2]);
/// rms_norm(Cpu::detect(), Par::SERIAL, &norm, Mat::new(&x, 1, 2), MatMut::new(&mut y, 1, 2));
/// assert!((y[0] - 0.2).abs() < 1e-6 && (y[1] - 2.8).abs() < 1e-6);
/// ```
#[track_caller]
pub fn rms_norm<'a>(
    cpu: Cpu,
    par: Par<'_>,
    norm: &RmsNorm<'_>,
    x: Mat<'_>,
    out: impl Into<NormOutput<'a>>,
) {
    run(cpu, par, norm.into(), x, None, None, out.into());
}

/// out ← RMSNorm(x + residual); the sum, rounded to f32, is also written to `sum` when asked for.
///
/// The same bits as adding first and then calling [`rms_norm`]. Shapes as there. One pass more.
///
/// # Panics
/// As [`layer_norm`].
///
/// ```
/// use headrow_kernels::{Cpu, Mat, MatMut, Par, RmsNorm, add_rms_norm};
/// let norm = RmsNorm { gamma: &[1.0, 1.0], epsilon: 1e-6 };
/// let (x, residual, mut y) = ([0.0, 3.0], [1.0, 4.0], [0.0; 2]);
/// let [x, residual] = [&x, &residual].map(|x| Mat::new(x, 1, 2));
/// let out = MatMut::new(&mut y, 1, 2);
/// add_rms_norm(Cpu::detect(), Par::SERIAL, &norm, x, residual, None, out);
/// assert!((y[0] - 0.2).abs() < 1e-6 && (y[1] - 1.4).abs() < 1e-6);
/// ```
#[track_caller]
pub fn add_rms_norm<'a>(
    cpu: Cpu,
    par: Par<'_>,
    norm: &RmsNorm<'_>,
    x: Mat<'_>,
    residual: Mat<'_>,
    sum: Option<MatMut<'_>>,
    out: impl Into<NormOutput<'a>>,
) {
    run(cpu, par, norm.into(), x, Some(residual), sum, out.into());
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

/// All the norms: checks the shapes and shares the rows out.
#[track_caller]
fn run(
    cpu: Cpu,
    par: Par<'_>,
    norm: Norm<'_>,
    x: Mat<'_>,
    residual: Option<Mat<'_>>,
    sum: Option<MatMut<'_>>,
    to: NormOutput<'_>,
) {
    let _mode = FloatMode::default_scope();
    let NormOutput { out, moments } = to;
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
    let kept = moments.as_ref().map_or(rows, |moments| moments.len());
    assert!(kept == rows, "moments of {kept} rows to be kept of {rows}×{cols}");
    norm.check(cols);
    let sum = sum.unwrap_or(MatMut::new(&mut [], rows, 0));
    // What is not asked for has no columns.
    let saved = match moments {
        Some(moments) => MatMut::new(moments, rows, 1),
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
