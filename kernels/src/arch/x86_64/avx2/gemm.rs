//! GEMM with 256-bit vectors.
//!
//! A tile of 6×16 keeps 12 accumulators, 2 vectors of B and 1 broadcast of A in the 16 registers: 12 fused
//! multiply-adds for 8 loads, with 12 chains to hide a latency of 4 cycles on 2 units. With fewer rows
//! a tile takes more panels.

#![expect(clippy::needless_range_loop, reason = "rows and vectors of a tile, by number")]

use super::super::{prefetch, prefetch_near};
use crate::arch::TileArgs;
use crate::arch::tiles::{Ahead, Shape};
use std::arch::x86_64::*;

/// Columns of a panel: two vectors.
pub(crate) const NR: usize = 16;
/// Rows of the largest tile.
pub(crate) const MR: usize = 6;

const SHAPE: Shape = Shape { mr: MR, nr: NR, panels: &[4, 2, 1, 1, 1, 1], turn: 256 };

/// See [`Tile`](crate::table::Tile).
///
/// # Safety
/// As for [`Tile`](crate::table::Tile) with nr = 16, on a machine with AVX2 and FMA.
pub(crate) unsafe fn f32_gemm_6x16_avx2(block: TileArgs) {
    SHAPE.walk(block, |panels, t, ahead| {
        // SAFETY: the walk names rows and columns of the block only, which the caller vouches for.
        unsafe {
            match t.packed {
                false => tiles::<false>(panels, t, ahead),
                true => tiles::<true>(panels, t, ahead),
            }
        }
    });
}

/// Tiles above each other of some panels, or of a part of one.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with t.packed = `PACKED`, in runs of tiles of `ahead.tile` ≤ 6 rows.
#[inline(always)]
unsafe fn tiles<const PACKED: bool>(panels: usize, t: &TileArgs, ahead: Ahead) {
    // SAFETY: the caller's promise; V is the number of vectors in t.n columns.
    unsafe {
        match (ahead.tile, panels, t.n % NR) {
            (1, 4, 0) => tile::<1, 8, PACKED>(t, ahead),
            (2, 2, 0) => tile::<2, 4, PACKED>(t, ahead),
            (1, _, 0) => tile::<1, 2, PACKED>(t, ahead),
            (2, _, 0) => tile::<2, 2, PACKED>(t, ahead),
            (3, _, 0) => tile::<3, 2, PACKED>(t, ahead),
            (4, _, 0) => tile::<4, 2, PACKED>(t, ahead),
            (5, _, 0) => tile::<5, 2, PACKED>(t, ahead),
            (_, _, 0) => tile::<6, 2, PACKED>(t, ahead),
            (1, _, 1..=8) => edge::<1, 1>(t),
            (2, _, 1..=8) => edge::<2, 1>(t),
            (3, _, 1..=8) => edge::<3, 1>(t),
            (4, _, 1..=8) => edge::<4, 1>(t),
            (5, _, 1..=8) => edge::<5, 1>(t),
            (_, _, 1..=8) => edge::<6, 1>(t),
            (1, _, _) => edge::<1, 2>(t),
            (2, _, _) => edge::<2, 2>(t),
            (3, _, _) => edge::<3, 2>(t),
            (4, _, _) => edge::<4, 2>(t),
            (5, _, _) => edge::<5, 2>(t),
            (_, _, _) => edge::<6, 2>(t),
        }
    }
}

/// Tiles of M rows by V whole vectors above each other; two vectors make a panel.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with t.m a multiple of M, t.n = 8·V and t.packed = `PACKED`.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const M: usize, const V: usize, const PACKED: bool>(t: &TileArgs, mut ahead: Ahead) {
    let &TileArgs { m, k, mut a, lda, b, ldb, panel, mut c, ldc, accumulate, .. } = t;
    let mut left = m;
    while left > 0 {
        let mut sum = [[_mm256_setzero_ps(); V]; M];
        // SAFETY: rows i < M of A and C from this tile on, rows p < k and columns < 8·V of B: the caller
        // vouches for them.
        unsafe {
            if accumulate {
                for i in 0..M {
                    for v in 0..V {
                        sum[i][v] = _mm256_loadu_ps(c.add(i * ldc + 8 * v));
                    }
                }
            }
            // From row to row of A, and from step to step of A and B.
            let (down, along, ldb) = if PACKED { (1, M, NR) } else { (lda, 1, ldb) };
            let mut rows = [a; M];
            for i in 1..M {
                rows[i] = a.wrapping_add(i * down);
            }
            // The tile below will want its C.
            if left > M {
                for i in M..2 * M {
                    prefetch_near(c.wrapping_add(i * ldc).cast());
                    prefetch_near(c.wrapping_add(i * ldc + 8 * V - 1).cast());
                }
            }
            let mut step = |p: usize, b: *const f32| {
                let from_b = |v: usize| _mm256_loadu_ps(b.add(v / 2 * panel + v % 2 * 8));
                let from_a = |i: usize| _mm256_broadcast_ss(&*rows[i].add(p * along));
                // Hold whichever is fewer, the vectors of B or the broadcasts of A, and pass the others by.
                if V <= M {
                    let mut row = [_mm256_setzero_ps(); V];
                    for v in 0..V {
                        row[v] = from_b(v);
                    }
                    for i in 0..M {
                        let x = from_a(i);
                        for v in 0..V {
                            sum[i][v] = _mm256_fmadd_ps(x, row[v], sum[i][v]);
                        }
                    }
                } else {
                    let mut column = [_mm256_setzero_ps(); M];
                    for i in 0..M {
                        column[i] = from_a(i);
                    }
                    for v in 0..V {
                        let y = from_b(v);
                        for i in 0..M {
                            sum[i][v] = _mm256_fmadd_ps(column[i], y, sum[i][v]);
                        }
                    }
                }
            };
            let (mut b, mut p) = (b, 0);
            while p < k {
                // Not within the steps: the compiler would load their operands in advance and spill sums.
                ahead.ask(prefetch);
                ahead.advance();
                let end = k.min(p.saturating_add(ahead.steps));
                while p + 4 <= end {
                    step(p, b);
                    step(p + 1, b.add(ldb));
                    step(p + 2, b.add(2 * ldb));
                    step(p + 3, b.add(3 * ldb));
                    b = b.wrapping_add(4 * ldb);
                    p += 4;
                }
                while p < end {
                    step(p, b);
                    b = b.wrapping_add(ldb);
                    p += 1;
                }
            }
            for i in 0..M {
                for v in 0..V {
                    _mm256_storeu_ps(c.add(i * ldc + 8 * v), sum[i][v]);
                }
            }
        }
        a = a.wrapping_add(M * lda);
        c = c.wrapping_add(M * ldc);
        left -= M;
    }
}

/// Tiles of M rows by V vectors, of which the last is cut off: masked loads and stores touch no neighbour.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with t.m a multiple of M and 8·(V − 1) < t.n ≤ 8·V.
#[target_feature(enable = "avx2,fma")]
unsafe fn edge<const M: usize, const V: usize>(t: &TileArgs) {
    let &TileArgs { m, n, k, mut a, lda, packed, b, ldb, mut c, ldc, accumulate, .. } = t;
    let (down, along) = if packed { (1, M) } else { (lda, 1) };
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let mut mask = [_mm256_setzero_si256(); V];
    for v in 0..V {
        mask[v] = _mm256_cmpgt_epi32(_mm256_set1_epi32((n - 8 * v) as i32), lanes);
    }
    for _ in 0..m / M {
        let mut sum = [[_mm256_setzero_ps(); V]; M];
        // SAFETY: as in `tile`; the masks leave out columns from t.n on.
        unsafe {
            if accumulate {
                for i in 0..M {
                    for v in 0..V {
                        sum[i][v] = _mm256_maskload_ps(c.add(i * ldc + 8 * v), mask[v]);
                    }
                }
            }
            let mut b = b;
            for p in 0..k {
                let mut row = [_mm256_setzero_ps(); V];
                for v in 0..V {
                    row[v] = _mm256_maskload_ps(b.wrapping_add(8 * v), mask[v]);
                }
                for i in 0..M {
                    let x = _mm256_broadcast_ss(&*a.add(i * down + p * along));
                    for v in 0..V {
                        sum[i][v] = _mm256_fmadd_ps(x, row[v], sum[i][v]);
                    }
                }
                b = b.wrapping_add(ldb);
            }
            for i in 0..M {
                for v in 0..V {
                    _mm256_maskstore_ps(c.add(i * ldc + 8 * v), mask[v], sum[i][v]);
                }
            }
        }
        a = a.wrapping_add(M * lda);
        c = c.wrapping_add(M * ldc);
    }
}
