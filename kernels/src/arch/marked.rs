//! How a product with marked weights falls into register tiles: the same walk for every instruction set.

use crate::arch::TileArgs;

/// The bits of −0, by which an element of A says that it takes no part.
pub(crate) const MARK: u32 = 1 << 31;

/// Calls `tile` for each part of `block` of at most `mr` rows and `width` columns, a divisor of nr.
#[inline(always)]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
pub(crate) fn walk(
    block: TileArgs,
    mr: usize,
    nr: usize,
    width: usize,
    mut tile: impl FnMut(&TileArgs),
) {
    let parts = block.m.div_ceil(mr);
    let mut first = 0;
    for part in 0..parts {
        // Equal parts, as the plain product has them.
        let m = (block.m - first) / (parts - part);
        for column in (0..block.n).step_by(width) {
            tile(&TileArgs {
                m,
                n: width.min(block.n - column),
                a: block.a.wrapping_add(first * block.lda),
                b: block.b.wrapping_add(column / nr * block.panel + column % nr),
                c: block.c.wrapping_add(first * block.ldc + column),
                ..block
            });
        }
        first += m;
    }
}
