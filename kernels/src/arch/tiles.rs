//! How a block of a product falls into register tiles: the same walk for every instruction set.

use crate::arch::{Distance, TileArgs};

/// The tiles of one instruction set, as the walk needs to know them.
pub(crate) struct Shape {
    /// Rows of the largest tile.
    pub(crate) mr: usize,
    /// Columns of a panel.
    pub(crate) nr: usize,
    /// Panels that a tile of r rows takes at once, at `[r - 1]`: few rows need several so that enough
    /// independent chains are in flight to hide the latency of a fused multiply-add.
    pub(crate) panels: &'static [usize],
    /// Most rows of a B in main memory that a tile takes of one panel before it turns to the next ones of a group; 0
    /// when it takes whole panels.
    pub(crate) turn: usize,
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
    /// Rows of each panel to ask for each time; a row of a panel is a cache line, or a few.
    rows: usize,
    ldb: usize,
    /// Panels to ask for.
    panels: usize,
    panel: usize,
    /// Rows of each tile of the run.
    pub(crate) tile: usize,
}

/// Below this many rows nothing is asked for in advance, unless panels take turns.
const FEW: usize = 5;
/// Lines that are asked for at a time at most, or near loads wait behind them.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
const LINES: usize = 8;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
impl Ahead {
    /// For `tiles` tiles above each other that go down whole panels. Where the rows of the next group lie is still to
    /// be set, here and in [`Ahead::in_turns`].
    #[inline(always)]
    fn down_panels(block: &TileArgs, tiles: usize) -> Ahead {
        // With few rows the kernel waits for B all the time, and asking only lengthens the queue.
        let far = block.from != Distance::Near && block.m >= FEW;
        let (steps, rows) = match tiles {
            _ if !far => (usize::MAX, 0),
            1 => (LINES, LINES),
            2 => (2 * LINES, LINES),
            _ => (32, 32usize.div_ceil(tiles)),
        };
        Ahead::every(steps, rows, block)
    }

    /// For tiles that meet a part of a group of `group` panels in `passes` passes, each of which asks for its share of
    /// the next part in all panels.
    #[inline(always)]
    fn in_turns(block: &TileArgs, group: usize, passes: usize) -> Ahead {
        let rows = (LINES / group).max(1);
        Ahead::every(rows * passes, rows, block)
    }

    #[inline(always)]
    fn every(steps: usize, rows: usize, block: &TileArgs) -> Ahead {
        let &TileArgs { b: next, ldb, panel, .. } = block;
        Ahead { next, steps, rows, ldb, panels: 0, panel, tile: 0 }
    }

    /// Calls `prefetch` for the rows that are due.
    #[inline(always)]
    pub(crate) fn ask(&self, prefetch: impl Fn(*const u8)) {
        for panel in 0..self.panels {
            for row in 0..self.rows {
                let at = panel * self.panel + row * self.ldb;
                prefetch(self.next.wrapping_add(at).cast());
            }
        }
    }

    /// On to the rows that are due next.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.next = self.next.wrapping_add(self.rows * self.ldb);
    }

    /// How far [`Ahead::advance`] gets within a tile of `depth`.
    #[inline(always)]
    fn asked(&self, depth: usize) -> usize {
        depth.div_ceil(self.steps) * self.rows * self.ldb
    }
}

/// Into what tiles of at most `mr` rows a block of m rows falls: so many of so many rows each, the longer ones first.
///
/// They are equal but for one row, so that 7 rows are 4 + 3 and not 6 + 1, whose last tile would wait for its own
/// results.
#[inline(always)]
pub(crate) fn row_tiles(m: usize, mr: usize) -> [(usize, usize); 2] {
    let tiles = m.div_ceil(mr);
    let (rows, longer) = (m / tiles, m % tiles);
    [(longer, rows + 1), (tiles - longer, rows)]
}

impl Shape {
    /// Calls `run(panels, args, ahead)` for runs of tiles of `block`. A run is `args.m / rows` tiles of
    /// `ahead.tile` = `rows` rows above each other (1 ≤ rows ≤ mr); its n columns begin at a panel and fill
    /// `panels` whole ones, or a part of one.
    ///
    /// Rows are cut by [`row_tiles`]. A group of panels meets all rows before the next group is begun, and mostly over the
    /// whole depth. But several streams come from main memory faster than one: there, one or two tiles take some rows of
    /// each panel of a larger group in turns, and ask for the rows that come next in all of them. Their sums are stored
    /// and loaded again between, which rounds nothing.
    #[inline(always)]
    pub(crate) fn walk(&self, block: TileArgs, mut run: impl FnMut(usize, &TileArgs, Ahead)) {
        let Shape { mr, nr, panels, turn } = *self;
        let runs = row_tiles(block.m, mr);
        let tiles = runs[0].0 + runs[1].0;
        // The smallest tile decides how many panels go together.
        let at_once = panels[runs[1].1 - 1];
        let in_turns = turn > 0
            && block.from == Distance::Memory
            && (2..=2 * mr).contains(&block.m)
            && !block.packed;
        let (group, turn, asking) = match in_turns {
            true => {
                // Equal turns: in a longer one the rows of a shorter next one would be asked for too late.
                let turns = block.k.div_ceil(turn).max(1);
                let turn = block.k.div_ceil(turns).next_multiple_of(LINES);
                (2 * at_once, turn, Ahead::in_turns(&block, 2 * at_once, 2 * tiles))
            }
            false => (at_once, block.k, Ahead::down_panels(&block, tiles)),
        };
        let mut first = 0;
        while first < block.n {
            let columns = (block.n - first).min(group * nr);
            let b = block.b.wrapping_add(first / nr * block.panel);
            let mut p = 0;
            loop {
                let depth = turn.min(block.k - p);
                let args = TileArgs {
                    k: depth,
                    a: block.a.wrapping_add(p),
                    b: b.wrapping_add(p * block.ldb),
                    c: block.c.wrapping_add(first),
                    accumulate: block.accumulate || p > 0,
                    ..block
                };
                // Further down, or the next group.
                let (next, left) = match p + depth < block.k {
                    true => (args.b.wrapping_add(depth * block.ldb), columns),
                    false => (b.wrapping_add(group * block.panel), block.n - first - columns),
                };
                let mut ahead = Ahead { next, panels: left.div_ceil(nr).min(group), ..asking };
                // What a tile moves on by in asking.
                let asked = ahead.asked(depth);
                across(nr, at_once, columns, args, |_, args| {
                    let mut args = *args;
                    for (count, rows) in runs {
                        if count > 0 {
                            args.m = count * rows;
                            ahead.tile = rows;
                            across(nr, panels[rows - 1], args.n, args, |panels, args| {
                                run(panels, args, ahead);
                            });
                            ahead.next = ahead.next.wrapping_add(count * asked);
                            args.a = args.a.wrapping_add(args.m * args.lda);
                            args.c = args.c.wrapping_add(args.m * args.ldc);
                        }
                    }
                });
                p += depth;
                if p >= block.k {
                    break;
                }
            }
            first += columns;
        }
    }
}

/// Calls `run(panels, args)` over `columns` columns: `at_once` panels while there are as many, then single ones.
#[inline(always)]
fn across(
    nr: usize,
    at_once: usize,
    columns: usize,
    mut args: TileArgs,
    mut run: impl FnMut(usize, &TileArgs),
) {
    let mut done = 0;
    while done * nr < columns {
        let left = columns - done * nr;
        let panels = if left >= at_once * nr { at_once } else { 1 };
        args.n = left.min(panels * nr);
        run(panels, &args);
        args.b = args.b.wrapping_add(panels * args.panel);
        args.c = args.c.wrapping_add(panels * nr);
        done += panels;
    }
}
