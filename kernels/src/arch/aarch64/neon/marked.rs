//! Products with marked weights, in 128-bit vectors.

#![expect(clippy::needless_range_loop, reason = "rows and vectors of a tile, by number")]

use super::gemm::NR;
use crate::arch::TileArgs;
use crate::arch::marked::{MARK, walk};
use std::arch::aarch64::*;

/// Rows of a tile.
const MR: usize = 8;

/// See [`GemmKernels::marked`](crate::table::GemmKernels::marked).
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with nr = 8.
pub(crate) unsafe fn f32_gemm_marked_8x8_neon(block: TileArgs) {
    walk(block, MR, NR, 8, |t| {
        // SAFETY: the caller's promise; the tile has t.m ≤ 8 rows and t.n ≤ 8 columns.
        unsafe {
            match (t.m, t.n) {
                (1, 8) => tile::<1>(t),
                (2, 8) => tile::<2>(t),
                (3, 8) => tile::<3>(t),
                (4, 8) => tile::<4>(t),
                (5, 8) => tile::<5>(t),
                (6, 8) => tile::<6>(t),
                (7, 8) => tile::<7>(t),
                (_, 8) => tile::<8>(t),
                _ => tail(t),
            }
        }
    });
}

/// M rows by 8 columns.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with t.m = M and t.n = 8.
unsafe fn tile<const M: usize>(t: &TileArgs) {
    let &TileArgs { k, a, lda, b, ldb, c, ldc, .. } = t;
    // SAFETY: rows i < M of A and C, rows p < k of B, 8 columns: the caller vouches for them; NEON is part
    // of aarch64.
    unsafe {
        let mut sum = [[vdupq_n_f32(0.0); 2]; M];
        for i in 0..M {
            sum[i] = [vld1q_f32(c.add(i * ldc)), vld1q_f32(c.add(i * ldc + 4))];
        }
        for p in 0..k {
            let row = [vld1q_f32(b.add(p * ldb)), vld1q_f32(b.add(p * ldb + 4))];
            for i in 0..M {
                let x = vld1q_dup_f32(a.add(i * lda + p));
                // Marked, a weight leaves the sum as it was.
                let marked = vceqq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(MARK));
                for v in 0..2 {
                    let with = vfmaq_f32(sum[i][v], x, row[v]);
                    sum[i][v] = vbslq_f32(marked, sum[i][v], with);
                }
            }
        }
        for i in 0..M {
            vst1q_f32(c.add(i * ldc), sum[i][0]);
            vst1q_f32(c.add(i * ldc + 4), sum[i][1]);
        }
    }
}

/// Fewer than 8 columns.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with t.n < 8.
unsafe fn tail(t: &TileArgs) {
    let &TileArgs { m, n, k, a, lda, b, ldb, c, ldc, .. } = t;
    for i in 0..m {
        for j in 0..n {
            // SAFETY: i < m, j < n, p < k: the elements that the caller vouches for.
            unsafe {
                let c = c.add(i * ldc + j);
                for p in 0..k {
                    let x = *a.add(i * lda + p);
                    if x.to_bits() != MARK {
                        *c = x.mul_add(*b.add(p * ldb + j), *c);
                    }
                }
            }
        }
    }
}
