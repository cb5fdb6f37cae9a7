//! Products with marked weights, in 256-bit vectors.

#![expect(clippy::needless_range_loop, reason = "rows and vectors of a tile, by number")]

use super::gemm::NR;
use crate::arch::TileArgs;
use crate::arch::marked::{MARK, walk};
use std::arch::x86_64::*;

/// Rows of a tile: 12 sums, 2 vectors of B, a weight and a new sum fill the 16 registers.
const MR: usize = 6;

/// See [`GemmKernels::marked`](crate::table::GemmKernels::marked).
///
/// # Safety
/// As for [`Tile`](crate::table::Tile) with nr = 16, on a machine with AVX2 and FMA.
pub(crate) unsafe fn f32_gemm_marked_6x16_avx2(block: TileArgs) {
    walk(block, MR, NR, 16, |t| {
        // SAFETY: the caller's promise; the tile has t.m ≤ 6 rows and t.n ≤ 16 columns.
        unsafe {
            match (t.m, t.n) {
                (1, 16) => tile::<1, true>(t),
                (2, 16) => tile::<2, true>(t),
                (3, 16) => tile::<3, true>(t),
                (4, 16) => tile::<4, true>(t),
                (5, 16) => tile::<5, true>(t),
                (_, 16) => tile::<6, true>(t),
                // Tails are rare enough to go row by row.
                (m, _) => {
                    for i in 0..m {
                        let (a, c) = (t.a.add(i * t.lda), t.c.add(i * t.ldc));
                        tile::<1, false>(&TileArgs { m: 1, a, c, ..*t });
                    }
                }
            }
        }
    });
}

/// M rows by 16 columns, or, when not `WHOLE`, the first t.n of them by masked loads and stores.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with t.m = M and t.n ≤ 16.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const M: usize, const WHOLE: bool>(t: &TileArgs) {
    let &TileArgs { n, k, a, lda, b, ldb, c, ldc, .. } = t;
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let mask = [0, 8].map(|v| _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32 - v), lanes));
    // SAFETY: (both) the columns below n of a row that the caller vouches for.
    let load = |from: *const f32, v: usize| unsafe {
        let from = from.wrapping_add(8 * v);
        if WHOLE { _mm256_loadu_ps(from) } else { _mm256_maskload_ps(from, mask[v]) }
    };
    let mark = _mm256_set1_epi32(MARK as i32);
    let mut sum = [[_mm256_setzero_ps(); 2]; M];
    for i in 0..M {
        sum[i] = [0, 1].map(|v| load(c.wrapping_add(i * ldc), v));
    }
    for p in 0..k {
        let row = [0, 1].map(|v| load(b.wrapping_add(p * ldb), v));
        for i in 0..M {
            // SAFETY: row i < M, p < k of A.
            let x = unsafe { _mm256_broadcast_ss(&*a.add(i * lda + p)) };
            // Marked, the sum stays as it was.
            let marked = _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_castps_si256(x), mark));
            for v in 0..2 {
                let with = _mm256_fmadd_ps(x, row[v], sum[i][v]);
                sum[i][v] = _mm256_blendv_ps(with, sum[i][v], marked);
            }
        }
    }
    for i in 0..M {
        for v in 0..2 {
            let to = c.wrapping_add(i * ldc + 8 * v);
            // SAFETY: the columns below n of row i of C.
            unsafe {
                if WHOLE {
                    _mm256_storeu_ps(to, sum[i][v]);
                } else {
                    _mm256_maskstore_ps(to, mask[v], sum[i][v]);
                }
            }
        }
    }
}
