//! Packing with 256-bit vectors.

use super::super::prefetch_near;
use crate::arch::PackArgs;
use crate::arch::scalar::pack::columns_from;
use std::arch::x86_64::*;

/// Values in a cache line.
const LINE: usize = 16;

/// See [`PackRows`](crate::table::PackRows): blocks of 8 rows by 8 values are transposed in registers.
///
/// # Safety
/// As for [`PackRows`](crate::table::PackRows) with nr a multiple of 8, on a machine with AVX2.
pub(crate) unsafe fn f32_pack_rows_8x8_avx2(args: PackArgs) {
    // SAFETY: the caller's promise.
    unsafe { pack(args) }
}

/// # Safety
/// As for [`f32_pack_rows_8x8_avx2`].
#[target_feature(enable = "avx2")]
unsafe fn pack(args: PackArgs) {
    let PackArgs { rows, depth, from, ld, nr, to, ldt } = args;
    if depth < 8 {
        // SAFETY: the caller's promise.
        return unsafe { columns_from(args, 0) };
    }
    let below = rows.min(8);
    for first in (0..nr).step_by(8) {
        // Columns beyond the last row repeat it.
        let row = |j: usize| from.wrapping_add((first + j).min(rows - 1) * ld);
        let mut p = 0;
        loop {
            // What is packed next lies below, most of the time: a line of each row.
            if p % LINE == 0 {
                for j in below..below + 8 {
                    prefetch_near(from.wrapping_add((first + j) * ld + p).cast());
                }
            }
            // SAFETY: 8 values from p ≤ depth − 8 on of existing rows; columns first..first + 8 ≤ nr. Of
            // columns beyond ldt the next row overwrites what this one leaves, in this block or the next.
            unsafe {
                transpose(
                    [0, 1, 2, 3, 4, 5, 6, 7].map(|j| row(j).add(p)),
                    to.add(p * ldt + first),
                    ldt,
                )
            };
            if p + 8 == depth {
                break;
            }
            // The last block overlaps its neighbour: the same values are written twice.
            p = (p + 8).min(depth - 8);
        }
    }
}

/// Row i of `to`, `ld` apart, becomes value i of the 8 rows.
///
/// # Safety
/// Valid for 8 reads at each row, and 8 rows of 8 writes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transpose(rows: [*const f32; 8], to: *mut f32, ld: usize) {
    // Halves of two rows that lie four apart share a register, so that only shuffles within
    // halves are left.
    // SAFETY: `at + 4` ≤ 8 values of each row.
    let pair = |i: usize, at: usize| unsafe {
        let low = _mm256_castps128_ps256(_mm_loadu_ps(rows[i].add(at)));
        _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(rows[i + 4].add(at)))
    };
    for at in [0, 4] {
        let (a, b, c, d) = (pair(0, at), pair(1, at), pair(2, at), pair(3, at));
        let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        let columns = [
            _mm256_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low),
            _mm256_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low),
            _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
            _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
        ];
        for (i, column) in columns.into_iter().enumerate() {
            // SAFETY: row at + i < 8 of the target.
            unsafe { _mm256_storeu_ps(to.add((at + i) * ld), column) };
        }
    }
}
