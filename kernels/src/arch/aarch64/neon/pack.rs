//! Packing with 128-bit vectors.

use crate::arch::PackArgs;
use crate::arch::scalar::pack::columns_from;
use std::arch::aarch64::*;

/// See [`PackRows`](crate::table::PackRows): blocks of 4 rows by 4 values are transposed in registers.
///
/// # Safety
/// As for [`PackRows`](crate::table::PackRows) with nr a multiple of 4.
pub(crate) unsafe fn f32_pack_rows_4x4_neon(args: PackArgs) {
    let PackArgs { rows, depth, from, ld, nr, to, ldt } = args;
    if depth < 4 {
        // SAFETY: the caller's promise.
        return unsafe { columns_from(args, 0) };
    }
    for first in (0..nr).step_by(4) {
        // Columns beyond the last row repeat it.
        let row = |j: usize| from.wrapping_add((first + j).min(rows - 1) * ld);
        let mut p = 0;
        loop {
            // SAFETY: 4 values from p ≤ depth − 4 on of existing rows; columns first..first + 4 ≤ nr.
            unsafe { transpose([0, 1, 2, 3].map(|j| row(j).add(p)), to.add(p * ldt + first), ldt) };
            if p + 4 == depth {
                break;
            }
            // The last block overlaps its neighbour: the same values are written twice.
            p = (p + 4).min(depth - 4);
        }
    }
}

/// Row i of `to`, `ld` apart, becomes value i of the 4 rows.
///
/// # Safety
/// Valid for 4 reads at each row, and 4 rows of 4 writes.
#[inline]
unsafe fn transpose(rows: [*const f32; 4], to: *mut f32, ld: usize) {
    // SAFETY: the caller's promise; NEON is part of aarch64.
    unsafe {
        let [a, b, c, d] = rows.map(|row| vld1q_f32(row));
        let (ab_even, ab_odd) = (vtrn1q_f32(a, b), vtrn2q_f32(a, b));
        let (cd_even, cd_odd) = (vtrn1q_f32(c, d), vtrn2q_f32(c, d));
        vst1q_f32(to, vcombine_f32(vget_low_f32(ab_even), vget_low_f32(cd_even)));
        vst1q_f32(to.add(ld), vcombine_f32(vget_low_f32(ab_odd), vget_low_f32(cd_odd)));
        vst1q_f32(to.add(2 * ld), vcombine_f32(vget_high_f32(ab_even), vget_high_f32(cd_even)));
        vst1q_f32(to.add(3 * ld), vcombine_f32(vget_high_f32(ab_odd), vget_high_f32(cd_odd)));
    }
}
