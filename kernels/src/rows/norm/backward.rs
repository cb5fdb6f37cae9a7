//! What comes back through a norm: gradients of its input, row by row, and of γ and β, column by column.
//!
//! With g = dy·γ and the normalised row x̂ that the forward pass's [`Moments`] give again,
//! dx = (g − mean(g) − x̂·mean(g·x̂))/√(σ² + ε), without mean(g) for RMSNorm; dγ = Σ dy·x̂ and dβ = Σ dy over the rows.

use super::forward::SHRINK;
use super::{LayerNorm, Moments, Norm, RmsNorm};
use crate::arch::FloatMode;
use crate::arch::vector::Vector;
use crate::cpu::Cpu;
use crate::gemm::Write;
use crate::par::Par;
use crate::rows::lanes::{Combine, Summed, combine, sums_along};
use crate::rows::pack::Pack;
use crate::rows::rows_per_chunk;
use crate::rows::sums::{ColumnStep, down_columns, for_columns};
use crate::view::{Mat, MatMut};

/// Gradients of [`layer_norm`](super::layer_norm): `dx` ← (or +=) dL/dx, dγ += Σ dy·x̂, dβ += Σ dy, from dy = dL/dy.
///
/// `x` is what was normalised (after a sum: the sum) and `saved` the moments that the forward pass kept of its rows
/// ([`NormOutput`](super::NormOutput)). The sums of dγ and dβ are chains in ascending order of the rows, from what
/// they held: fused multiply-adds for dγ. With r = 1/√(σ² + ε), the error of a dx is ≤ r·(d/16 + 40)·u·(|g| +
/// mean|g| + |x̂|·mean|g·x̂|) + 4·u·r²·|x|max·(mean|g·x̂| + |x̂|·mean|g|), the last term being what the rounding of
/// x itself costs. A NaN or ∞ in a row of x makes its dx and the whole of dγ NaN, one in dy its row of dx and its
/// column of the sums. Right also for rows whose squares overflow. Two passes over rows in the nearest cache for
/// dx, one over all rows by columns for the sums.
///
/// # Panics
/// When shapes differ, there are not as many moments as rows, or the norm does not fit (as in the forward pass).
///
/// ```
/// use headrow_kernels::{Cpu, LayerNorm, Mat, MatMut, Moments, NormOutput, Par, Write};
/// use headrow_kernels::{layer_norm, layer_norm_backward};
/// let norm = LayerNorm { gamma: &[1.0, 1.0], beta: Some(&[0.0, 0.0]), epsilon: 1e-5 };
/// let (cpu, par, x) = (Cpu::detect(), Par::SERIAL, Mat::new(&[2.0, 4.0], 1, 2));
/// let (mut saved, mut y) = ([Moments::default()], [0.0; 2]);
/// layer_norm(cpu, par, &norm, x, NormOutput::from(MatMut::new(&mut y, 1, 2)).with_moments(&mut saved));
/// let [mut dx, mut d_gamma, mut d_beta] = [[0.0; 2]; 3];
/// let (dy, to, write) = (Mat::new(&[1.0, 1.0], 1, 2), MatMut::new(&mut dx, 1, 2), Write::Replace);
/// layer_norm_backward(cpu, par, &norm, &saved, x, dy, write, to, &mut d_gamma, Some(&mut d_beta));
/// // What moves all results alike is a matter of β alone.
/// assert!(dx.iter().all(|dx| dx.abs() < 1e-4));
/// assert_eq!(d_gamma, y);
/// assert_eq!(d_beta, [1.0, 1.0]);
/// ```
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of the operation and their gradients")]
pub fn layer_norm_backward(
    cpu: Cpu,
    par: Par<'_>,
    norm: &LayerNorm<'_>,
    saved: &[Moments],
    x: Mat<'_>,
    dy: Mat<'_>,
    write: Write,
    dx: MatMut<'_>,
    d_gamma: &mut [f32],
    d_beta: Option<&mut [f32]>,
) {
    run(cpu, par, norm.into(), saved, [x, dy], write, dx, d_gamma, d_beta);
}

/// Gradients of [`rms_norm`](super::rms_norm): `dx` ← (or +=) dL/dx, dγ += Σ dy·x̂, as [`layer_norm_backward`]
/// without means.
///
/// # Panics
/// As [`layer_norm_backward`].
///
/// ```
/// use headrow_kernels::{Cpu, Mat, MatMut, Moments, NormOutput, Par, RmsNorm, Write};
/// use headrow_kernels::{rms_norm, rms_norm_backward};
/// let norm = RmsNorm { gamma: &[1.0, 1.0], epsilon: 1e-6 };
/// let (cpu, par, x) = (Cpu::detect(), Par::SERIAL, Mat::new(&[1.0, 7.0], 1, 2));
/// let (mut saved, mut y) = ([Moments::default()], [0.0; 2]);
/// rms_norm(cpu, par, &norm, x, NormOutput::from(MatMut::new(&mut y, 1, 2)).with_moments(&mut saved));
/// let [mut dx, mut d_gamma] = [[0.0; 2]; 2];
/// let (dy, to) = (Mat::new(&[7.0, -1.0], 1, 2), MatMut::new(&mut dx, 1, 2));
/// rms_norm_backward(cpu, par, &norm, &saved, x, dy, Write::Replace, to, &mut d_gamma);
/// // Across x the length does not change: dx = dy/5.
/// assert!((dx[0] - 1.4).abs() < 1e-5 && (dx[1] + 0.2).abs() < 1e-5);
/// ```
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of the operation and their gradients")]
pub fn rms_norm_backward(
    cpu: Cpu,
    par: Par<'_>,
    norm: &RmsNorm<'_>,
    saved: &[Moments],
    x: Mat<'_>,
    dy: Mat<'_>,
    write: Write,
    dx: MatMut<'_>,
    d_gamma: &mut [f32],
) {
    run(cpu, par, norm.into(), saved, [x, dy], write, dx, d_gamma, None);
}

#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of the operation and their gradients")]
fn run(
    cpu: Cpu,
    par: Par<'_>,
    norm: Norm<'_>,
    saved: &[Moments],
    [x, dy]: [Mat<'_>; 2],
    write: Write,
    dx: MatMut<'_>,
    d_gamma: &mut [f32],
    d_beta: Option<&mut [f32]>,
) {
    let _mode = FloatMode::default_scope();
    let (rows, cols) = (dx.rows(), dx.cols());
    assert!(
        [x, dy].iter().all(|x| (x.rows(), x.cols()) == (rows, cols)) && saved.len() == rows,
        "norm backward: {x:?} with {} moments and {dy:?} into {dx:?}",
        saved.len()
    );
    let beta = d_beta.as_ref().map_or(cols, |beta| beta.len());
    assert!(
        d_gamma.len() == cols && beta == cols,
        "gradients of {} γ and {beta} β for rows of {cols}",
        d_gamma.len()
    );
    norm.check(cols);
    let work = |first, dx: MatMut<'_>| {
        let rows = first..first + dx.rows();
        let read = [x, dy].map(|x| x.rows_range(rows.clone()));
        (cpu.table.rows.norm_backward)(&norm, &saved[rows], read, write, dx);
    };
    match rows_per_chunk(par, rows, cols) {
        None => work(0, dx),
        Some(grain) => par.for_rows(dx, grain, &work),
    }
    for_columns(par, rows, [d_gamma, d_beta.unwrap_or_default()], &|columns, sums| {
        let read = [x, dy].map(|x| x.columns(columns.clone()));
        (cpu.table.rows.norm_sums)(saved, read, sums);
    });
}

/// x̂ from x and the moments.
#[inline(always)]
fn normal<S: Vector, const N: usize>(x: Pack<S, N>, moments: &Moments) -> Pack<S, N> {
    let Moments { scale, mean, correction, inverse } = *moments;
    (x * x.all(scale) - x.all(mean) - x.all(correction)) * x.all(inverse)
}

/// The rows of dx.
#[inline(always)]
pub(crate) fn kernel<S: Vector, const R: usize>(
    simd: S,
    norm: &Norm<'_>,
    saved: &[Moments],
    [x, dy]: [Mat<'_>; 2],
    write: Write,
    mut dx: MatMut<'_>,
) {
    for (i, moments) in saved.iter().enumerate() {
        let (x, dy, dx) = (x.row(i), dy.row(i), dx.row_mut(i));
        let read = [x, dy, norm.gamma];
        let [g, gx] = sums_along::<S, R, 3, 2>(simd, read, Terms(*moments));
        let d = x.len() as f32;
        let step = Row { moments: *moments, g: if norm.centred { g / d } else { 0.0 }, gx: gx / d };
        match write {
            Write::Replace => combine(simd, read, [dx], step),
            Write::Accumulate => combine(simd, read, [dx], Added(step)),
        }
    }
}

/// g and g·x̂.
#[derive(Clone, Copy)]
struct Terms(Moments);

impl<S: Vector> Summed<S, 3, 2> for Terms {
    #[inline(always)]
    fn add<const N: usize>(
        self,
        [x, dy, gamma]: [Pack<S, N>; 3],
        [sum, with_x]: [Pack<S, N>; 2],
    ) -> [Pack<S, N>; 2] {
        let g = dy * gamma;
        [sum + g, g.mul_add(normal(x, &self.0), with_x)]
    }
}

/// (g − mean(g) − x̂·mean(g·x̂))·inverse, and once more the factor of a row that was shrunk.
#[derive(Clone, Copy)]
struct Row {
    moments: Moments,
    g: f32,
    gx: f32,
}

impl<S: Vector> Combine<S, 3, 1> for Row {
    #[inline(always)]
    fn of<const N: usize>(
        self,
        [x, dy, gamma]: [Pack<S, N>; 3],
        _: [Pack<S, N>; 1],
    ) -> [Pack<S, N>; 1] {
        let shrunk = if self.moments.scale == SHRINK { SHRINK } else { 1.0 };
        let normal = normal(x, &self.moments);
        let centred = dy * gamma - x.all(self.g);
        let across = (-normal).mul_add(x.all(self.gx), centred);
        [across * x.all(self.moments.inverse) * x.all(shrunk)]
    }
}

/// The old value + what the step gives.
#[derive(Clone, Copy)]
struct Added<F>(F);

impl<S: Vector, F: Combine<S, 3, 1>> Combine<S, 3, 1> for Added<F> {
    #[inline(always)]
    fn of<const N: usize>(self, read: [Pack<S, N>; 3], [old]: [Pack<S, N>; 1]) -> [Pack<S, N>; 1] {
        let [new] = self.0.of(read, [old]);
        [old + new]
    }
}

/// Some columns of dγ and, unless it is empty, dβ.
#[inline(always)]
pub(crate) fn sums_kernel<S: Vector>(
    simd: S,
    saved: &[Moments],
    read: [Mat<'_>; 2],
    [d_gamma, d_beta]: [&mut [f32]; 2],
) {
    match d_beta {
        [] => down_columns(simd, saved.len(), read, [d_gamma], Factors(saved)),
        d_beta => down_columns(simd, saved.len(), read, [d_gamma, d_beta], Factors(saved)),
    }
}

/// dy·x̂, and dy where it is asked for.
#[derive(Clone, Copy)]
struct Factors<'a>(&'a [Moments]);

impl<S: Vector> ColumnStep<S, 2, 1> for Factors<'_> {
    #[inline(always)]
    fn add<const N: usize>(
        self,
        i: usize,
        [x, dy]: [Pack<S, N>; 2],
        [gamma]: [Pack<S, N>; 1],
    ) -> [Pack<S, N>; 1] {
        [dy.mul_add(normal(x, &self.0[i]), gamma)]
    }
}

impl<S: Vector> ColumnStep<S, 2, 2> for Factors<'_> {
    #[inline(always)]
    fn add<const N: usize>(
        self,
        i: usize,
        [x, dy]: [Pack<S, N>; 2],
        [gamma, beta]: [Pack<S, N>; 2],
    ) -> [Pack<S, N>; 2] {
        [dy.mul_add(normal(x, &self.0[i]), gamma), beta + dy]
    }
}
