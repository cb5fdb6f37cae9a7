//! How a block of a product falls into register tiles: the same walk for every instruction set.

use crate::table::TileArgs;

/// The tiles of one instruction set, as the walk needs to know them.
pub(crate) struct Shape {
    /// Rows of the largest tile.
    pub(crate) mr: usize,
    /// Columns of a panel.
    pub(crate) nr: usize,
    /// Panels that a tile of r rows takes at once, at `[r - 1]`: few rows need several so that enough
    /// independent chains are in flight to hide the latency of a fused multiply-add.
    pub(crate) panels: &'static [usize],
}

impl Shape {
    /// Calls `tile(panels, args)` for each tile of `block`; `args` has 1 ≤ m ≤ mr, and its n columns begin
    /// at a panel and fill `panels` whole ones, or a part of one.
    ///
    /// Rows are cut into equal parts, so that 7 rows are 4 + 3 and not 6 + 1, whose last tile would
    /// wait for its own results. A group of panels meets all rows before the next group is begun.
    #[inline(always)]
    pub(crate) fn walk(&self, block: TileArgs, mut tile: impl FnMut(usize, &TileArgs)) {
        let Shape { mr, nr, panels } = *self;
        let blocks = block.m.div_ceil(mr);
        let (rows, longer) = (block.m / blocks, block.m % blocks);
        // The smallest tile decides how many panels go together.
        let group = panels[rows - 1];
        let mut first = 0;
        while first < block.n {
            let columns = (block.n - first).min(group * nr);
            let mut args = TileArgs {
                b: block.b.wrapping_add(first / nr * block.panel),
                c: block.c.wrapping_add(first),
                ..block
            };
            for i in 0..blocks {
                args.m = rows + usize::from(i < longer);
                across(nr, panels[args.m - 1], columns, args, &mut tile);
                args.a = args.a.wrapping_add(args.m * args.lda);
                args.c = args.c.wrapping_add(args.m * args.ldc);
            }
            first += columns;
        }
    }
}

/// One row of tiles over `columns` columns: `at_once` panels while there are as many, then single ones.
#[inline(always)]
fn across(
    nr: usize,
    at_once: usize,
    columns: usize,
    mut args: TileArgs,
    tile: &mut impl FnMut(usize, &TileArgs),
) {
    let mut left = columns;
    while left > 0 {
        let panels = if left >= at_once * nr { at_once } else { 1 };
        args.n = left.min(panels * nr);
        tile(panels, &args);
        args.b = args.b.wrapping_add(panels * args.panel);
        args.c = args.c.wrapping_add(panels * nr);
        left -= args.n;
    }
}
