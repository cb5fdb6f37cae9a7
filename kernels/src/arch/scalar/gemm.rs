//! GEMM in portable Rust.

use crate::arch::TileArgs;
use crate::arch::tiles::row_tiles;

/// Rows of the largest tile, whose rows go one after the other.
pub(crate) const MR: usize = 4;
/// Columns of a panel.
pub(crate) const NR: usize = 16;

/// See [`Tile`](crate::table::Tile). `f32::mul_add` is one rounding everywhere: in software where the
/// processor has no such instruction.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with nr = 16.
pub(crate) unsafe fn f32_gemm_4x16_scalar(block: TileArgs) {
    let TileArgs { m, lda, packed, mut a, mut c, ldc, .. } = block;
    for (tiles, rows) in row_tiles(m, MR) {
        // From row to row, and from step to step.
        let (down, along) = if packed { (1, rows) } else { (lda, 1) };
        for _ in 0..tiles {
            for i in 0..rows {
                let (a, c) = (a.wrapping_add(i * down), c.wrapping_add(i * ldc));
                // SAFETY: row i < m of A and C.
                unsafe { row(&TileArgs { a, c, ..block }, along) };
            }
            a = a.wrapping_add(rows * lda);
            c = c.wrapping_add(rows * ldc);
        }
    }
}

/// One row of A, whose elements lie `along` apart, and of C.
///
/// # Safety
/// As for [`f32_gemm_4x16_scalar`], with t.m = 1 and A as said.
unsafe fn row(t: &TileArgs, along: usize) {
    let &TileArgs { n, k, a, b, ldb, panel, c, accumulate, .. } = t;
    for first in (0..n).step_by(NR) {
        // As many chains as the panel has columns.
        let columns = (n - first).min(NR);
        let mut sum = [0.0f32; NR];
        // SAFETY: first + j < n, p < k: the elements that the caller vouches for.
        unsafe {
            let b = b.add(first / NR * panel);
            let c = c.add(first);
            if accumulate {
                (0..columns).for_each(|j| sum[j] = *c.add(j));
            }
            for p in 0..k {
                let x = *a.add(p * along);
                for (j, sum) in sum[..columns].iter_mut().enumerate() {
                    *sum = x.mul_add(*b.add(p * ldb + j), *sum);
                }
            }
            (0..columns).for_each(|j| *c.add(j) = sum[j]);
        }
    }
}
