//! GEMM with 128-bit vectors.
//!
//! A tile of 8×8 keeps 16 accumulators, 2 vectors of B and 8 of A in the 32 registers. The multiply-add takes one
//! lane of a vector of A, so four steps of the depth load each row of A once, and one step all rows of a packed A.
//! 16 chains are what cores with 4 units of latency 4 ask for; with fewer rows a tile takes more panels.

#![expect(clippy::needless_range_loop, reason = "rows and vectors of a tile, by number")]

use crate::arch::TileArgs;
use crate::arch::tiles::Shape;
use std::arch::aarch64::*;

/// Columns of a panel: two vectors.
pub(crate) const NR: usize = 8;
/// Rows of the largest tile.
pub(crate) const MR: usize = 8;

const SHAPE: Shape = Shape { mr: MR, nr: NR, panels: &[4, 4, 2, 2, 1, 1, 1, 1], turn: 0 };

/// See [`Tile`](crate::table::Tile).
///
/// # Safety
/// As for [`Tile`](crate::table::Tile) with nr = 8.
pub(crate) unsafe fn f32_gemm_8x8_neon(block: TileArgs) {
    SHAPE.walk(block, |panels, t, ahead| {
        // SAFETY: the walk names rows and columns of the block only, which the caller vouches for.
        unsafe {
            match t.packed {
                false => tiles::<false>(ahead.tile, panels, t),
                true => tiles::<true>(ahead.tile, panels, t),
            }
        }
    });
}

/// Tiles of so many rows above each other of some panels, or of a part of one.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with t.packed = `PACKED`, and t.m a multiple of `rows` ≤ 8.
#[inline(always)]
unsafe fn tiles<const PACKED: bool>(rows: usize, panels: usize, t: &TileArgs) {
    // SAFETY: the caller's promise; V is the number of vectors in t.n columns, and a partial vector has the slow path.
    unsafe {
        match (rows, panels, t.n) {
            (1, 4, _) => tile::<1, 8, false, PACKED>(t),
            (2, 4, _) => tile::<2, 8, false, PACKED>(t),
            (3, 2, _) => tile::<3, 4, false, PACKED>(t),
            (4, 2, _) => tile::<4, 4, false, PACKED>(t),
            (_, _, 8) => one_panel::<2, false, PACKED>(rows, t),
            (_, _, 4) => one_panel::<1, false, PACKED>(rows, t),
            (_, _, 5..) => one_panel::<2, true, PACKED>(rows, t),
            (_, _, _) => one_panel::<1, true, PACKED>(rows, t),
        }
    }
}

/// One panel, or the first V vectors of one, the last of them partial when `TAIL`.
///
/// # Safety
/// As for [`tile`], `rows` ≤ 8 being M.
#[target_feature(enable = "neon")]
unsafe fn one_panel<const V: usize, const TAIL: bool, const PACKED: bool>(
    rows: usize,
    t: &TileArgs,
) {
    // SAFETY: the caller's promise; M is `rows`.
    unsafe {
        match rows {
            1 => tile::<1, V, TAIL, PACKED>(t),
            2 => tile::<2, V, TAIL, PACKED>(t),
            3 => tile::<3, V, TAIL, PACKED>(t),
            4 => tile::<4, V, TAIL, PACKED>(t),
            5 => tile::<5, V, TAIL, PACKED>(t),
            6 => tile::<6, V, TAIL, PACKED>(t),
            7 => tile::<7, V, TAIL, PACKED>(t),
            _ => tile::<8, V, TAIL, PACKED>(t),
        }
    }
}

/// Tiles of M rows by V vectors above each other; two vectors make a panel. When `TAIL`, the last holds only 1 to 3
/// values.
///
/// # Safety
/// As for [`Tile`](crate::table::Tile), with t.m a multiple of M, t.n = 4·V or, when `TAIL`, 4·(V − 1) < t.n < 4·V, and
/// t.packed = `PACKED`.
#[target_feature(enable = "neon")]
unsafe fn tile<const M: usize, const V: usize, const TAIL: bool, const PACKED: bool>(t: &TileArgs) {
    let &TileArgs { m, n, k, mut a, lda, b, ldb, panel, mut c, ldc, accumulate, .. } = t;
    for _ in 0..m / M {
        let (mut b, ldb) = (b, if PACKED { NR } else { ldb });
        let mut sum = [[vdupq_n_f32(0.0); V]; M];
        // SAFETY: rows i < M of A and C from this tile on, rows p < k of B, and the columns below t.n: the
        // caller vouches for them.
        unsafe {
            let load = |from: *const f32, v: usize| {
                if TAIL && v == V - 1 { load_part(from, n % 4) } else { vld1q_f32(from) }
            };
            if accumulate {
                for i in 0..M {
                    for v in 0..V {
                        sum[i][v] = load(c.add(i * ldc + 4 * v), v);
                    }
                }
            }
            // One step of the depth by one lane of four values of A per row.
            macro_rules! step {
                ($x:ident, $lane:literal, $b:expr) => {
                    for v in 0..V {
                        let y = load($b.add(v / 2 * panel + v % 2 * 4), v);
                        for i in 0..M {
                            sum[i][v] = vfmaq_laneq_f32::<$lane>(sum[i][v], y, $x[i]);
                        }
                    }
                };
            }
            let mut p = 0;
            // A packed step has the rows of the tile beside each other: in two vectors, which overlap with less than 8.
            while PACKED && M >= 4 && p < k {
                let x = [vld1q_f32(a.add(p * M)), vld1q_f32(a.wrapping_add(p * M + M).sub(4))];
                for v in 0..V {
                    let y = load(b.add(v / 2 * panel + v % 2 * 4), v);
                    for i in 0..M {
                        let (x, lane) = if i < 4 { (x[0], i) } else { (x[1], i + 4 - M) };
                        sum[i][v] = match lane {
                            0 => vfmaq_laneq_f32::<0>(sum[i][v], y, x),
                            1 => vfmaq_laneq_f32::<1>(sum[i][v], y, x),
                            2 => vfmaq_laneq_f32::<2>(sum[i][v], y, x),
                            _ => vfmaq_laneq_f32::<3>(sum[i][v], y, x),
                        };
                    }
                }
                b = b.wrapping_add(ldb);
                p += 1;
            }
            while !PACKED && p + 4 <= k {
                let mut x = [vdupq_n_f32(0.0); M];
                for i in 0..M {
                    x[i] = vld1q_f32(a.add(i * lda + p));
                }
                step!(x, 0, b);
                step!(x, 1, b.add(ldb));
                step!(x, 2, b.add(2 * ldb));
                step!(x, 3, b.add(3 * ldb));
                b = b.wrapping_add(4 * ldb);
                p += 4;
            }
            while p < k {
                let mut x = [vdupq_n_f32(0.0); M];
                for i in 0..M {
                    let at = if PACKED { p * M + i } else { i * lda + p };
                    x[i] = vdupq_n_f32(*a.add(at));
                }
                step!(x, 0, b);
                b = b.wrapping_add(ldb);
                p += 1;
            }
            for i in 0..M {
                for v in 0..V {
                    let c = c.add(i * ldc + 4 * v);
                    if TAIL && v == V - 1 {
                        store_part(c, n % 4, sum[i][v]);
                    } else {
                        vst1q_f32(c, sum[i][v]);
                    }
                }
            }
        }
        a = a.wrapping_add(M * lda);
        c = c.wrapping_add(M * ldc);
    }
}

/// The first `n` values, the other lanes zero.
///
/// # Safety
/// `n ≤ 4` values at `from` are readable.
#[target_feature(enable = "neon")]
unsafe fn load_part(from: *const f32, n: usize) -> float32x4_t {
    let mut values = [0.0f32; 4];
    // SAFETY: n ≤ 4 values, readable by the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, values.as_mut_ptr(), n);
        vld1q_f32(values.as_ptr())
    }
}

/// The first `n` lanes.
///
/// # Safety
/// `n ≤ 4` values at `to` are writable.
#[target_feature(enable = "neon")]
unsafe fn store_part(to: *mut f32, n: usize, lanes: float32x4_t) {
    let mut values = [0.0f32; 4];
    // SAFETY: n ≤ 4 values, writable by the caller's promise.
    unsafe {
        vst1q_f32(values.as_mut_ptr(), lanes);
        std::ptr::copy_nonoverlapping(values.as_ptr(), to, n);
    }
}
