//! GEMM in portable Rust.

use crate::arch::TileArgs;

/// See [`Tile`](crate::table::Tile). `f32::mul_add` is one rounding everywhere: in software where the
/// processor has no such instruction.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with nr = 16.
pub(crate) unsafe fn f32_gemm_1x16_scalar(tile: TileArgs) {
    let TileArgs { m, n, k, a, lda, b, ldb, panel, c, ldc, accumulate, .. } = tile;
    for i in 0..m {
        for first in (0..n).step_by(16) {
            // One row of one panel: as many chains as the panel has columns.
            let columns = (n - first).min(16);
            let mut sum = [0.0f32; 16];
            // SAFETY: i < m, first + j < n, p < k: the elements that the caller vouches for.
            unsafe {
                let b = b.add(first / 16 * panel);
                let c = c.add(i * ldc + first);
                if accumulate {
                    (0..columns).for_each(|j| sum[j] = *c.add(j));
                }
                for p in 0..k {
                    let x = *a.add(i * lda + p);
                    for (j, sum) in sum[..columns].iter_mut().enumerate() {
                        *sum = x.mul_add(*b.add(p * ldb + j), *sum);
                    }
                }
                (0..columns).for_each(|j| *c.add(j) = sum[j]);
            }
        }
    }
}
