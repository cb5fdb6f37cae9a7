//! Products with marked weights in portable Rust.

use crate::arch::TileArgs;
use crate::arch::marked::MARK;

/// See [`GemmKernels::marked`](crate::table::GemmKernels::marked).
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with nr = 16.
pub(crate) unsafe fn f32_gemm_marked_scalar(block: TileArgs) {
    let TileArgs { m, n, k, a, lda, b, ldb, panel, c, ldc, .. } = block;
    for i in 0..m {
        for j in 0..n {
            // SAFETY: i < m, j < n, p < k: the elements that the caller vouches for.
            unsafe {
                let b = b.add(j / 16 * panel + j % 16);
                let c = c.add(i * ldc + j);
                for p in 0..k {
                    let x = *a.add(i * lda + p);
                    if x.to_bits() != MARK {
                        *c = x.mul_add(*b.add(p * ldb), *c);
                    }
                }
            }
        }
    }
}
