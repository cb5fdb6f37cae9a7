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

/// What a tile asks for in advance while it works: the rows of B that come next.
///
/// The tiles above each other in one group of panels share the work: of r tiles each asks for an r-th
/// of the next group, so that the far caches deliver all the time and not in one burst.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) struct Ahead {
    next: *const f32,
    /// Steps of the depth from one asking to the next.
    pub(crate) steps: usize,
    /// Rows to ask for each time; a row of a panel is a cache line, or a few.
    rows: usize,
    ldb: usize,
    /// Rows of each tile of the run.
    pub(crate) tile: usize,
}

/// Below this many rows nothing is asked for in advance.
const FEW: usize = 5;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
impl Ahead {
    /// For `tiles` tiles above each other; `next` is still to be set.
    #[inline(always)]
    fn new(block: &TileArgs, tiles: usize) -> Ahead {
        // With few rows the kernel waits for B all the time, and asking only lengthens the queue.
        let far = block.far && block.m >= FEW;
        // Eight lines at a time at most, or near loads wait behind them.
        let (steps, rows) = match tiles {
            _ if !far => (usize::MAX, 0),
            1 => (8, 8),
            2 => (16, 8),
            _ => (32, 32usize.div_ceil(tiles)),
        };
        Ahead { next: block.b, steps, rows, ldb: block.ldb, tile: 0 }
    }

    /// Calls `prefetch` for the rows that are due, `panel` values further on.
    #[inline(always)]
    pub(crate) fn ask(&self, panel: usize, prefetch: impl Fn(*const u8)) {
        for row in 0..self.rows {
            prefetch(self.next.wrapping_add(panel + row * self.ldb).cast());
        }
    }

    /// On to the rows that are due next.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.next = self.next.wrapping_add(self.rows * self.ldb);
    }
}

impl Shape {
    /// Calls `run(panels, args, ahead)` for runs of tiles of `block`. A run is `args.m / rows` tiles of
    /// `ahead.tile` = `rows` rows above each other (1 ≤ rows ≤ mr); its n columns begin at a panel and fill
    /// `panels` whole ones, or a part of one.
    ///
    /// Rows are cut into equal parts, so that 7 rows are 4 + 3 and not 6 + 1, whose last tile would
    /// wait for its own results. A group of panels meets all rows before the next group is begun.
    #[inline(always)]
    pub(crate) fn walk(&self, block: TileArgs, mut run: impl FnMut(usize, &TileArgs, Ahead)) {
        let Shape { mr, nr, panels } = *self;
        let tiles = block.m.div_ceil(mr);
        let (rows, longer) = (block.m / tiles, block.m % tiles);
        // The smallest tile decides how many panels go together.
        let group = panels[rows - 1];
        let asking = Ahead::new(&block, tiles);
        // What a tile moves on by in asking.
        let asked = block.k.div_ceil(asking.steps) * asking.rows * block.ldb;
        let mut first = 0;
        while first < block.n {
            let columns = (block.n - first).min(group * nr);
            let mut args = TileArgs {
                b: block.b.wrapping_add(first / nr * block.panel),
                c: block.c.wrapping_add(first),
                ..block
            };
            let next = args.b.wrapping_add(group * block.panel);
            let mut ahead = Ahead { next, ..asking };
            // The longer tiles, then the others.
            for (count, rows) in [(longer, rows + 1), (tiles - longer, rows)] {
                if count > 0 {
                    args.m = count * rows;
                    ahead.tile = rows;
                    across(nr, panels[rows - 1], columns, args, ahead, &mut run);
                    ahead.next = ahead.next.wrapping_add(count * asked);
                    args.a = args.a.wrapping_add(args.m * args.lda);
                    args.c = args.c.wrapping_add(args.m * args.ldc);
                }
            }
            first += columns;
        }
    }
}

/// One run over `columns` columns: `at_once` panels while there are as many, then single ones.
#[inline(always)]
fn across(
    nr: usize,
    at_once: usize,
    columns: usize,
    mut args: TileArgs,
    mut ahead: Ahead,
    run: &mut impl FnMut(usize, &TileArgs, Ahead),
) {
    let mut left = columns;
    while left > 0 {
        let panels = if left >= at_once * nr { at_once } else { 1 };
        args.n = left.min(panels * nr);
        run(panels, &args, ahead);
        ahead.next = ahead.next.wrapping_add(panels * args.panel);
        args.b = args.b.wrapping_add(panels * args.panel);
        args.c = args.c.wrapping_add(panels * nr);
        left -= args.n;
    }
}
