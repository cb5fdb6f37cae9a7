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
        if let Some(alpha) = self.alpha {
            row.iter_mut().for_each(|x| *x *= alpha);
        }
        if let Some(bias) = self.bias {
            row.iter_mut().zip(&bias[columns.clone()]).for_each(|(x, b)| *x += b);
        }
        activation::activate_row(cpu, self.activation, row);
        if let Some(residual) = &self.residual {
            row.iter_mut().zip(&residual.row(i)[columns]).for_each(|(x, r)| *x += r);
        }
    }
}
