//! Packing with 128-bit vectors.

use crate::arch::PackArgs;
use crate::arch::scalar::pack::columns_from;
use std::arch::aarch64::*;

/// See [`PackRows`](crate::table::PackRows): blocks of 8 rows by 4 values are transposed in registers.
///
/// # Safety
/// As for [`PackRows`](crate::table::PackRows).
pub(crate) unsafe fn f32_pack_rows_8x4_neon(args: PackArgs) {
    let PackArgs { rows, depth, from, ld, nr, to, ldt } = args;
    if depth < 4 {
        // SAFETY: the caller's promise.
        return unsafe { columns_from(args, 0) };
    }
    for first in (0..nr).step_by(8) {
        // Columns beyond the last row repeat it.
        let row = |j: usize| from.wrapping_add((first + j).min(rows - 1) * ld);
        let mut p = 0;
        loop {
            // SAFETY: 4 values from p ≤ depth − 4 on of existing rows; columns first..first + 8 ≤ nr. Of
            // columns beyond ldt the next row overwrites what this one leaves, in this block or the next.
            unsafe {
                let left = transpose([0, 1, 2, 3].map(|j| row(j).add(p)));
                let right = transpose([4, 5, 6, 7].map(|j| row(j).add(p)));
                for i in 0..4 {
                    let to = to.add((p + i) * ldt + first);
                    vst1q_f32(to, left[i]);
                    vst1q_f32(to.add(4), right[i]);
                }
            }
            if p + 4 == depth {
                break;
            }
            // The last block overlaps its neighbour: the same values are written twice.
            p = (p + 4).min(depth - 4);
        }
    }
}

/// Vector i: value i of each of the 4 rows.
///
/// # Safety
/// Valid for 4 reads at each row.
#[inline]
unsafe fn transpose(rows: [*const f32; 4]) -> [float32x4_t; 4] {
    // SAFETY: the caller's promise; NEON is part of aarch64.
    unsafe {
        let [a, b, c, d] = rows.map(|row| vld1q_f32(row));
        let (ab_even, ab_odd) = (vtrn1q_f32(a, b), vtrn2q_f32(a, b));
        let (cd_even, cd_odd) = (vtrn1q_f32(c, d), vtrn2q_f32(c, d));
        [
            vcombine_f32(vget_low_f32(ab_even), vget_low_f32(cd_even)),
            vcombine_f32(vget_low_f32(ab_odd), vget_low_f32(cd_odd)),
            vcombine_f32(vget_high_f32(ab_even), vget_high_f32(cd_even)),
            vcombine_f32(vget_high_f32(ab_odd), vget_high_f32(cd_odd)),
        ]
    }
}
