//! GEMM tiles in portable Rust.

use crate::table::TileArgs;

/// See [`Tile`](crate::table::Tile). `f32::mul_add` is one rounding everywhere: in software where the
/// processor has no such instruction.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with mr = 4 and nr = 16.
pub(crate) unsafe fn f32_gemm_4x16_scalar(tile: TileArgs) {
    let TileArgs { m, n, k, a, lda, b, ldb, c, ldc, accumulate } = tile;
    for i in 0..m {
        for j in 0..n {
            // SAFETY: i < m, j < n, p < k: the elements that the caller vouches for.
            unsafe {
                let c = c.add(i * ldc + j);
                let mut sum = if accumulate { *c } else { 0.0 };
                for p in 0..k {
                    sum = (*a.add(i * lda + p)).mul_add(*b.add(p * ldb + j), sum);
                }
                *c = sum;
            }
        }
    }
}
