//! Packing in portable Rust.

use crate::arch::PackArgs;

/// See [`PackRows`](crate::table::PackRows).
///
/// # Safety
/// As for [`PackRows`](crate::table::PackRows).
pub(crate) unsafe fn f32_pack_rows_scalar(args: PackArgs) {
    // SAFETY: the caller's promise covers all rows and the whole depth.
    unsafe { columns_from(args, 0) };
}

/// The part of the panel from depth `first` on: what vector kernels leave over.
///
/// # Safety
/// As for [`PackRows`](crate::table::PackRows), with `first ≤ depth`.
pub(crate) unsafe fn columns_from(args: PackArgs, first: usize) {
    let PackArgs { rows, depth, from, ld, nr, to, ldt } = args;
    for j in 0..nr.min(ldt) {
        // SAFETY: rows min(j, rows − 1) and p < depth of the source, j < nr of the panel; none of its elements is
        // written twice.
        unsafe {
            let row = from.add(j.min(rows - 1) * ld);
            for p in first..depth {
                *to.add(p * ldt + j) = *row.add(p);
            }
        }
    }
}
