//! GEMM with 512-bit vectors.
//!
//! A tile of 6×64 keeps 24 accumulators, 4 vectors of B and 1 broadcast of A in the 32 registers: 24 fused
//! multiply-adds for 10 loads. Tails are masked: a masked load or store touches no element outside.

#![expect(clippy::needless_range_loop, reason = "rows and vectors of a tile, by number")]

use super::super::{prefetch, prefetch_near};
use crate::arch::TileArgs;
use crate::arch::tiles::{Ahead, Shape};
use std::arch::x86_64::*;

/// Columns of a panel: four vectors.
pub(crate) const NR: usize = 64;
/// Rows of the largest tile.
pub(crate) const MR: usize = 6;

/// One row has four chains in a panel; the latency of 4 cycles on 2 units asks for 8.
const SHAPE: Shape = Shape { mr: MR, nr: NR, panels: &[2, 1, 1, 1, 1, 1], turn: 0 };

/// See [`Tile`](crate::table::Tile).
///
/// # Safety
/// As for [`Tile`](crate::table::Tile) with nr = 64, on a machine with AVX-512F.
pub(crate) unsafe fn f32_gemm_6x64_avx512(block: TileArgs) {
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
        match (panels, t.n.div_ceil(16)) {
            (2, _) => tile::<1, 8, PACKED>(t, ahead),
            (_, 1) => rows::<1, PACKED>(t, ahead),
            (_, 2) => rows::<2, PACKED>(t, ahead),
            (_, 3) => rows::<3, PACKED>(t, ahead),
            (_, _) => rows::<4, PACKED>(t, ahead),
        }
    }
}

/// One panel, or the first V vectors of one.
///
/// # Safety
/// As for [`tiles`], and 16·(V − 1) < t.n ≤ 16·V.
#[target_feature(enable = "avx512f")]
unsafe fn rows<const V: usize, const PACKED: bool>(t: &TileArgs, ahead: Ahead) {
    // SAFETY: the caller's promise; M is the rows of a tile.
    unsafe {
        match ahead.tile {
            1 => tile::<1, V, PACKED>(t, ahead),
            2 => tile::<2, V, PACKED>(t, ahead),
            3 => tile::<3, V, PACKED>(t, ahead),
            4 => tile::<4, V, PACKED>(t, ahead),
            5 => tile::<5, V, PACKED>(t, ahead),
            _ => tile::<6, V, PACKED>(t, ahead),
        }
    }
}

/// Tiles of M rows by V vectors above each other, the last vector possibly a part of one; four vectors
/// make a panel.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with t.m a multiple of M, 16·(V − 1) < t.n ≤ 16·V and t.packed = `PACKED`.
#[target_feature(enable = "avx512f")]
#[inline(never)]
unsafe fn tile<const M: usize, const V: usize, const PACKED: bool>(t: &TileArgs, mut ahead: Ahead) {
    let &TileArgs { m, n, k, mut a, lda, b, ldb, panel, mut c, ldc, accumulate, .. } = t;
    // Whole vectors have a constant mask, which the compiler drops.
    let mut mask: [__mmask16; V] = [!0; V];
    mask[V - 1] = !0 >> (16 * V - n);
    let mut left = m;
    while left > 0 {
        let mut sum = [[_mm512_setzero_ps(); V]; M];
        // SAFETY: rows i < M of A and C from this tile on, rows p < k of B, and of the columns those
        // below t.n: the caller vouches for them, and the mask leaves out the others.
        unsafe {
            if accumulate {
                for i in 0..M {
                    for v in 0..V {
                        sum[i][v] = _mm512_maskz_loadu_ps(mask[v], c.add(i * ldc + 16 * v));
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
                    for v in 0..V {
                        prefetch_near(c.wrapping_add(i * ldc + 16 * v).cast());
                    }
                }
            }
            let mut step = |p: usize, b: *const f32| {
                let mut row = [_mm512_setzero_ps(); V];
                for v in 0..V {
                    let b = b.add(v / 4 * panel + v % 4 * 16);
                    row[v] = _mm512_maskz_loadu_ps(mask[v], b);
                }
                for i in 0..M {
                    let x = _mm512_set1_ps(*rows[i].add(p * along));
                    for v in 0..V {
                        sum[i][v] = _mm512_fmadd_ps(x, row[v], sum[i][v]);
                    }
                }
            };
            let (mut b, mut p) = (b, 0);
            while p < k {
                ahead.ask(|row| (0..4).for_each(|v| prefetch(row.wrapping_add(64 * v))));
                ahead.advance();
                let end = k.min(p.saturating_add(ahead.steps));
                while p + 2 <= end {
                    step(p, b);
                    step(p + 1, b.add(ldb));
                    b = b.wrapping_add(2 * ldb);
                    p += 2;
                }
                while p < end {
                    step(p, b);
                    b = b.wrapping_add(ldb);
                    p += 1;
                }
            }
            for i in 0..M {
                for v in 0..V {
                    _mm512_mask_storeu_ps(c.add(i * ldc + 16 * v), mask[v], sum[i][v]);
                }
            }
        }
        a = a.wrapping_add(M * lda);
        c = c.wrapping_add(M * ldc);
        left -= M;
    }
}
