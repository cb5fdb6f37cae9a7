//! What comes back through softmax and its logarithm, from the results of the forward pass.

use crate::arch::FloatMode;
use crate::arch::vector::Vector;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::rows::elementary::exp;
use crate::rows::for_rows;
use crate::rows::lanes::{Combine, Elements, Summed, combine, sums_along};
use crate::rows::pack::Pack;
use crate::view::{Mat, MatMut};

/// d ← y ⊙ (d − Σ_k d_k·y_k), row by row: the gradient of [`softmax`](super::softmax) whose result was `y`.
///
/// Hidden elements of a masked softmax have y = 0 and get 0. Error ≤ (n/32 + 12)·u·y_j·(|d_j| + Σ_k |d_k|·y_k).
/// A NaN in a row makes the row NaN. Two passes.
///
/// # Panics
/// When the shapes differ.
///
/// ```
/// use headrow_kernels::{Cpu, Mat, MatMut, Par, softmax_backward};
/// let (y, mut d) = ([0.5, 0.5], [1.0, 0.0]);
/// let to = MatMut::new(&mut d, 1, 2);
/// softmax_backward(Cpu::detect(), Par::SERIAL, Mat::new(&y, 1, 2), to);
/// assert_eq!(d, [0.25, -0.25]);
/// ```
#[track_caller]
pub fn softmax_backward(cpu: Cpu, par: Par<'_>, y: Mat<'_>, d: MatMut<'_>) {
    run(par, y, d, cpu.table.rows.softmax_backward);
}

/// d ← d − e^y·Σ_k d_k, row by row: the gradient of [`log_softmax`](super::log_softmax) whose result was `y`.
///
/// Error ≤ (n/32 + 12)·u·(|d_j| + e^y_j·Σ_k |d_k|). A NaN in a row of d makes the row NaN. Two passes.
///
/// # Panics
/// When the shapes differ.
///
/// ```
/// use headrow_kernels::{Cpu, Mat, MatMut, Par, log_softmax_backward};
/// let (y, mut d) = ([-std::f32::consts::LN_2; 2], [1.0, 0.0]);
/// let to = MatMut::new(&mut d, 1, 2);
/// log_softmax_backward(Cpu::detect(), Par::SERIAL, Mat::new(&y, 1, 2), to);
/// assert!((d[0] - 0.5).abs() < 1e-6 && (d[1] + 0.5).abs() < 1e-6);
/// ```
#[track_caller]
pub fn log_softmax_backward(cpu: Cpu, par: Par<'_>, y: Mat<'_>, d: MatMut<'_>) {
    run(par, y, d, cpu.table.rows.log_softmax_backward);
}

#[track_caller]
fn run(par: Par<'_>, y: Mat<'_>, d: MatMut<'_>, kernel: fn(Mat<'_>, MatMut<'_>)) {
    let _mode = FloatMode::default_scope();
    assert!(
        (y.rows(), y.cols()) == (d.rows(), d.cols()),
        "softmax backward: results {y:?} for gradients {d:?}"
    );
    for_rows(par, d, &|first, block| {
        kernel(y.rows_range(first..first + block.rows()), block);
    });
}

/// See [`softmax_backward`].
#[inline(always)]
pub(crate) fn softmax_kernel<S: Vector, const R: usize>(simd: S, y: Mat<'_>, mut d: MatMut<'_>) {
    for i in 0..d.rows() {
        let (y, d) = (y.row(i), d.row_mut(i));
        let [sum] = sums_along::<S, R, 2, 1>(simd, [y, d], Products);
        combine(simd, [y], [d], Softmax(sum));
    }
}

/// See [`log_softmax_backward`].
#[inline(always)]
pub(crate) fn log_softmax_kernel<S: Vector, const R: usize>(
    simd: S,
    y: Mat<'_>,
    mut d: MatMut<'_>,
) {
    for i in 0..d.rows() {
        let (y, d) = (y.row(i), d.row_mut(i));
        let [sum] = sums_along::<S, R, 1, 1>(simd, [d], Elements);
        combine(simd, [y], [d], LogSoftmax(sum));
    }
}

/// y·d.
#[derive(Clone, Copy)]
struct Products;

impl<S: Vector> Summed<S, 2, 1> for Products {
    #[inline(always)]
    fn add<const N: usize>(
        self,
        [y, d]: [Pack<S, N>; 2],
        [sum]: [Pack<S, N>; 1],
    ) -> [Pack<S, N>; 1] {
        [y.mul_add(d, sum)]
    }
}

/// y·(d − Σ).
#[derive(Clone, Copy)]
struct Softmax(f32);

impl<S: Vector> Combine<S, 1, 1> for Softmax {
    #[inline(always)]
    fn of<const N: usize>(self, [y]: [Pack<S, N>; 1], [d]: [Pack<S, N>; 1]) -> [Pack<S, N>; 1] {
        [y * (d - d.all(self.0))]
    }
}

/// d − e^y·Σ.
#[derive(Clone, Copy)]
struct LogSoftmax(f32);

impl<S: Vector> Combine<S, 1, 1> for LogSoftmax {
    #[inline(always)]
    fn of<const N: usize>(self, [y]: [Pack<S, N>; 1], [d]: [Pack<S, N>; 1]) -> [Pack<S, N>; 1] {
        [(-exp(y)).mul_add(d.all(self.0), d)]
    }
}
