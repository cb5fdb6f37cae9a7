//! What follows the product on a strip of C that is still in a near cache.

use super::Epilogue;
use crate::cpu::Cpu;
use crate::rows::activation::{self, Activation};

impl Epilogue<'_> {
    #[track_caller]
    pub(super) fn check(&self, m: usize, n: usize) {
        if let Some(bias) = self.bias {
            assert!(bias.len() == n, "gemm: a bias of {} values for C of {m}×{n}", bias.len());
        }
        if let Some(r) = &self.residual {
            let (rows, cols) = (r.rows(), r.cols());
            assert!(rows == m && cols == n, "gemm: a residual of {rows}×{cols} for C of {m}×{n}");
        }
    }

    /// Whether nothing follows the product.
    pub(super) fn is_none(&self) -> bool {
        self.alpha.is_none()
            && self.bias.is_none()
            && self.activation == Activation::Identity
            && self.residual.is_none()
    }

    /// Finishes row `i` of C from column `first` on.
    pub(super) fn finish(&self, cpu: Cpu, i: usize, first: usize, row: &mut [f32]) {
        let columns = first..first + row.len();
        let alpha = self.alpha;
        let bias = self.bias.map(|bias| &bias[columns.clone()]);
        let residual = self.residual.as_ref().map(|residual| &residual.row(i)[columns]);
        let finish = cpu.table.rows.finish;
        if self.activation == Activation::Identity {
            finish(row, &Finish { alpha, bias, residual });
            return;
        }
        if alpha.is_some() || bias.is_some() {
            finish(row, &Finish { alpha, bias, residual: None });
        }
        activation::activate_row(cpu, self.activation, row);
        if residual.is_some() {
            finish(row, &Finish { alpha: None, bias: None, residual });
        }
    }
}

/// The linear part of an epilogue on a piece of a row: x ← alpha·x + bias + residual, a rounding each. The slices
/// are as long as the row.
pub(crate) struct Finish<'a> {
    alpha: Option<f32>,
    bias: Option<&'a [f32]>,
    residual: Option<&'a [f32]>,
}

/// The kernel behind [`Epilogue::finish`]; the table compiles it for each instruction set. Products and sums are
/// never contracted, so that the bits are those of separate operations.
#[inline(always)]
pub(crate) fn finish_kernel(row: &mut [f32], how: &Finish<'_>) {
    match *how {
        // One pass each for what layers do: a bias, and a bias with the residual.
        Finish { alpha: None, bias: Some(bias), residual: None } => add(row, bias),
        Finish { alpha: None, bias: None, residual: Some(residual) } => add(row, residual),
        Finish { alpha: None, bias: Some(bias), residual: Some(residual) } => {
            for ((x, b), r) in row.iter_mut().zip(bias).zip(residual) {
                *x = (*x + b) + r;
            }
        }
        Finish { alpha, bias, residual } => {
            if let Some(alpha) = alpha {
                row.iter_mut().for_each(|x| *x *= alpha);
            }
            bias.into_iter().chain(residual).for_each(|y| add(row, y));
        }
    }
}

#[inline(always)]
fn add(row: &mut [f32], other: &[f32]) {
    row.iter_mut().zip(other).for_each(|(x, y)| *x += y);
}
