//! Normalisation over the features of each row.

use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::view::{Mat, MatMut};

/// Layer normalisation: y = (x − µ)/√(σ² + ε)·γ + β over the features of a row, with the biased variance.
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
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    /// γ, one per feature.
    pub gamma: &'a [f32],
    /// ε > 0, inside the root.
    pub epsilon: f32,
}

#[track_caller]
fn run(
    x: Mat<'_>,
    residual: Option<Mat<'_>>,
    mut sum: Option<MatMut<'_>>,
    mut out: MatMut<'_>,
    norm: &dyn Fn(&mut [f32]),
) {
    let _mode = FloatMode::default_scope();
    for i in 0..out.rows() {
        let row = out.row_mut(i);
        row.copy_from_slice(x.row(i));
        if let Some(residual) = residual {
            row.iter_mut().zip(residual.row(i)).for_each(|(x, r)| *x += r);
        }
        if let Some(sum) = &mut sum {
            sum.row_mut(i).copy_from_slice(row);
        }
        norm(row);
    }
}

fn layer(norm: &LayerNorm<'_>, row: &mut [f32]) {
    let d = row.len() as f64;
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / d;
    let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / d;
    let inverse = 1.0 / (variance + f64::from(norm.epsilon)).sqrt();
    for (j, x) in row.iter_mut().enumerate() {
        let beta = norm.beta.map_or(0.0, |beta| beta[j]);
        let y = (f64::from(*x) - mean) * inverse * f64::from(norm.gamma[j]) + f64::from(beta);
        *x = y as f32;
    }
}

fn rms(norm: &RmsNorm<'_>, row: &mut [f32]) {
    let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / row.len() as f64;
    let inverse = 1.0 / (mean + f64::from(norm.epsilon)).sqrt();
    for (x, &gamma) in row.iter_mut().zip(norm.gamma) {
        *x = (f64::from(*x) * inverse * f64::from(gamma)) as f32;
    }
}

/// Layer normalisation of every row.
#[track_caller]
pub fn layer_norm(_: Cpu, _: Par<'_>, norm: &LayerNorm<'_>, x: Mat<'_>, out: MatMut<'_>) {
    run(x, None, None, out, &|row| layer(norm, row));
}

/// Layer normalisation of x + residual; the sum, rounded to f32, is written to `sum` when asked for.
#[track_caller]
pub fn add_layer_norm(
    _: Cpu,
    _: Par<'_>,
    norm: &LayerNorm<'_>,
    x: Mat<'_>,
    residual: Mat<'_>,
    sum: Option<MatMut<'_>>,
    out: MatMut<'_>,
) {
    run(x, Some(residual), sum, out, &|row| layer(norm, row));
}

/// Root-mean-square normalisation of every row.
#[track_caller]
pub fn rms_norm(_: Cpu, _: Par<'_>, norm: &RmsNorm<'_>, x: Mat<'_>, out: MatMut<'_>) {
    run(x, None, None, out, &|row| rms(norm, row));
}

/// Root-mean-square normalisation of x + residual; the sum, rounded to f32, is written to `sum` when
/// asked for.
#[track_caller]
pub fn add_rms_norm(
    _: Cpu,
    _: Par<'_>,
    norm: &RmsNorm<'_>,
    x: Mat<'_>,
    residual: Mat<'_>,
    sum: Option<MatMut<'_>>,
    out: MatMut<'_>,
) {
    run(x, Some(residual), sum, out, &|row| rms(norm, row));
}
