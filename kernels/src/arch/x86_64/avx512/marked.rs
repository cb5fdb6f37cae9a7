//! Products with marked weights, in 512-bit vectors.

#![expect(clippy::needless_range_loop, reason = "rows and vectors of a tile, by number")]

use super::gemm::NR;
use crate::arch::TileArgs;
use crate::arch::marked::{MARK, walk};
use std::arch::x86_64::*;

/// Rows of a tile.
const MR: usize = 6;

/// See [`GemmKernels::marked`](crate::table::GemmKernels::marked).
///
/// # Safety
/// As for [`Tile`](crate::table::Tile) with nr = 64, on a machine with AVX-512F.
pub(crate) unsafe fn f32_gemm_marked_6x32_avx512(block: TileArgs) {
    walk(block, MR, NR, 32, |t| {
        // SAFETY: the caller's promise; the tile has t.m ≤ 6 rows and t.n ≤ 32 columns.
        unsafe {
            match t.m {
                1 => tile::<1>(t),
                2 => tile::<2>(t),
                3 => tile::<3>(t),
                4 => tile::<4>(t),
                5 => tile::<5>(t),
                _ => tile::<6>(t),
            }
        }
    });
}

/// M rows by up to 32 columns; loads and stores are masked.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with t.m = M and t.n ≤ 32.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const M: usize>(t: &TileArgs) {
    let &TileArgs { n, k, a, lda, b, ldb, c, ldc, .. } = t;
    let columns = (1u64 << n) - 1;
    let mask = [columns as __mmask16, (columns >> 16) as __mmask16];
    // SAFETY: a masked load touches the columns below n only, of a row that the caller vouches for.
    let load = |from: *const f32, v: usize| unsafe {
        _mm512_maskz_loadu_ps(mask[v], from.wrapping_add(16 * v))
    };
    let mark = _mm512_set1_epi32(MARK as i32);
    let mut sum = [[_mm512_setzero_ps(); 2]; M];
    for i in 0..M {
        sum[i] = [0, 1].map(|v| load(c.wrapping_add(i * ldc), v));
    }
    for p in 0..k {
        let row = [0, 1].map(|v| load(b.wrapping_add(p * ldb), v));
        for i in 0..M {
            // SAFETY: row i < M, p < k of A.
            let x = _mm512_set1_ps(unsafe { *a.add(i * lda + p) });
            // Marked, a weight leaves the sum as it was.
            let takes_part = _mm512_cmpneq_epi32_mask(_mm512_castps_si512(x), mark);
            for v in 0..2 {
                sum[i][v] = _mm512_mask3_fmadd_ps(x, row[v], sum[i][v], takes_part);
            }
        }
    }
    for i in 0..M {
        for v in 0..2 {
            // SAFETY: the columns below n of row i of C.
            unsafe { _mm512_mask_storeu_ps(c.wrapping_add(i * ldc + 16 * v), mask[v], sum[i][v]) };
        }
    }
}
