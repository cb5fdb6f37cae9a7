//! One block of rows against the keys and values of one head: scores, exponentials, weighted values.

use super::keys::Runs;
use super::maps::MapRows;
use super::mask::{Query, Seen};
use super::score_rows::{Rows, Span, Weights, tiles};
use super::{AttentionShape, Mask, Source};
use crate::arch::{Distance, Tile, TileArgs};
use crate::cpu::Cpu;
use crate::par::Cancel;
use crate::rows::softmax::scores::{Scores, cap_scores, exp_scores};
use crate::view::Mat;
use std::ops::Range;

/// What scores and weights are made of.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) cpu: Cpu,
    pub(super) shape: &'a AttentionShape,
    pub(super) q: Mat<'a>,
    pub(super) mask: &'a Mask<'a>,
}

/// The operands of one call, as every worker sees them.
pub(super) struct Call<'a> {
    pub(super) operands: Operands<'a>,
    pub(super) source: Source<'a>,
    /// First element of the result, whose rows are `ldo` apart.
    pub(super) out: *mut f32,
    pub(super) ldo: usize,
    pub(super) maps: Option<MapRows<'a>>,
    /// Asked between the blocks of an item.
    pub(super) cancel: Option<&'a Cancel>,
}

// SAFETY: all is read only, but for the result and the maps: workers write to it through `Rows`, whose blocks of
// rows and columns of heads are cut disjointly by the driver.
unsafe impl Sync for Call<'_> {}

impl Operands<'_> {
    /// What row r sees; marks per key go to `visible` when there is more than a diagonal.
    #[inline(always)]
    pub(super) fn see(&self, rows: &Rows<'_>, r: usize, visible: &mut [u8]) -> Seen {
        self.mask.seen(&rows.at(r, self.q.rows()), visible)
    }

    /// Scores of all rows for every panel of keys of which the rows of the tile see something.
    ///
    /// `panels` are the sequence's keys.
    ///
    /// # Safety
    /// As [`Operands::score_keys`] for every key of `seen`.
    pub(super) unsafe fn scores(
        &self,
        rows: &Rows<'_>,
        seen: &[Seen],
        span: &Span,
        panels: Runs<'_>,
        scores: *mut f32,
        ld: usize,
    ) {
        let (mr, nr) = (self.cpu.table.gemm.mr, self.cpu.table.gemm.nr);
        let down = |key: usize| key / nr * nr;
        // SAFETY: keys within those the caller vouches for; `seen` has an entry per row.
        let score = |part: Range<usize>, keys: Range<usize>| unsafe {
            self.score_keys(rows, part, keys, panels, scores, ld);
        };
        let Span { all, shared, .. } = span;
        let all = down(all.start)..all.end;
        if span.uniform() {
            return score(0..rows.count, all);
        }
        // Whole panels that all rows see are met by the block together, the rest tile by tile: of a causal
        // mask, what lies right of the block's first row.
        let shared = shared.start.next_multiple_of(nr)..down(shared.end);
        let shared =
            if down(span.shared.start) == all.start { all.start..shared.end } else { shared };
        if shared.is_empty() {
            for tile in tiles(rows.count, mr) {
                let all = &Span::of(&seen[tile.clone()]).all;
                score(tile, down(all.start)..all.end);
            }
            return;
        }
        score(0..rows.count, shared.clone());
        for tile in tiles(rows.count, mr) {
            let all = &Span::of(&seen[tile.clone()]).all;
            score(tile.clone(), down(all.start)..all.end.min(shared.start));
            score(tile, shared.end.max(down(all.start))..all.end);
        }
    }

    /// Scores of some of the rows for some keys: chains over the width of a key, neither scaled nor masked.
    ///
    /// The keys start at a panel. Scores of what follows them in the last panel may be written too.
    ///
    /// # Safety
    /// `panels` hold `keys`, counted as those of `rows`; at `scores` lie rows `ld` apart that nobody else uses in
    /// those columns, each with room for whole panels. `part` lies within the rows.
    pub(super) unsafe fn score_keys(
        &self,
        rows: &Rows<'_>,
        part: Range<usize>,
        keys: Range<usize>,
        panels: Runs<'_>,
        scores: *mut f32,
        ld: usize,
    ) {
        if part.is_empty() {
            return;
        }
        let (width, nr) = (panels.ld, self.cpu.table.gemm.nr);
        let base = rows.keys.start;
        for (keys, b) in panels.cut(base + keys.start..base + keys.end, usize::MAX) {
            // Whole vectors, as far as the panel goes.
            let whole = keys.len().next_multiple_of(16).min(keys.len().next_multiple_of(nr));
            // SAFETY: the part's rows of Q are there (`Rows`), the rest is the caller's promise; the width may be
            // 0, when nothing of Q or the keys is read. `Cpu` proves the instruction set.
            unsafe {
                (self.cpu.table.gemm.tile)(TileArgs {
                    m: part.len(),
                    n: whole,
                    k: width,
                    a: rows.q.wrapping_add(part.start * rows.ldq),
                    lda: rows.ldq,
                    packed: false,
                    b,
                    ldb: nr,
                    panel: width * nr,
                    c: scores.add(part.start * ld + keys.start - base),
                    ldc: ld,
                    accumulate: false,
                    from: Distance::Near,
                });
            }
        }
    }

    /// Turns a row of scores into unnormalised weights and gives their sum, in lanes key mod 32. Keys of `within`
    /// that the row does not see are marked by the weight −0. `added` is room for a row of biases. With a cap,
    /// `capped` gets the capped scores of the keys from the first to the last that the row sees.
    pub(super) fn weigh(
        &self,
        query: &Query<'_>,
        seen: Seen,
        within: Range<usize>,
        scores: &mut [f32],
        added: &mut [f32],
        capped: Option<&mut [f32]>,
    ) -> f32 {
        let [first, end, count] = seen;
        if within.start < first {
            scores[within.start..first.min(within.end)].fill(-0.0);
        }
        if end < within.end {
            scores[end.max(within.start)..within.end].fill(-0.0);
        }
        if count == 0 {
            return 0.0;
        }
        let visible = if count == end - first {
            [None, None]
        } else {
            [self.mask.keys(query), self.mask.visible(query)]
        };
        let mut scale = self.shape.scale;
        if let Some(cap) = self.shape.softcap {
            cap_scores(self.cpu, scale, cap, &mut scores[first..end]);
            scale = 1.0;
            if let Some(to) = capped {
                to[first..end].copy_from_slice(&scores[first..end]);
            }
        }
        let bias = self.mask.added(query, seen, added);
        // −0 is a mark: no weight is negative.
        let scores_of = Scores { scale, first, end, bias, visible, hidden: -0.0 };
        exp_scores(self.cpu, &scores_of, scores)
    }
}

impl Call<'_> {
    /// [`Operands::weigh`], and the row of the maps.
    ///
    /// # Safety
    /// Nobody else handles this query with this head.
    pub(super) unsafe fn weigh(
        &self,
        rows: &Rows<'_>,
        r: usize,
        seen: Seen,
        within: Range<usize>,
        scores: &mut [f32],
        added: &mut [f32],
    ) -> f32 {
        let query = rows.at(r, self.operands.q.rows());
        let sum = self.operands.weigh(&query, seen, within, scores, added, None);
        if let Some(maps) = &self.maps {
            // SAFETY: the caller's promise.
            unsafe { maps.write((query.head, query.row()), query.base, seen, scores, sum) };
        }
        sum
    }

    /// Columns of the result: out\[r, c\] ← (Σ_j p_rj·v_jc) / Σ_j p_rj over the keys j that row r sees, the
    /// first sum as one chain in their order. Rows that see none become 0.
    ///
    /// The columns start at a panel. Up to `depth` keys are met by all rows before the next ones.
    ///
    /// # Safety
    /// `values` is valid for the keys of `rows` and the columns, which lie below d_v; nobody else uses
    /// these columns of these rows of the result.
    pub(super) unsafe fn weigh_values(
        &self,
        rows: &Rows<'_>,
        columns: Range<usize>,
        depth: usize,
        weights: Weights<'_>,
        values: Runs<'_>,
    ) {
        if columns.is_empty() {
            return;
        }
        let cpu = self.operands.cpu;
        let (nr, d_v) = (cpu.table.gemm.nr, self.operands.shape.d_v);
        assert!(
            weights.seen.len() == rows.count
                && weights.sums.len() == rows.count
                && columns.start.is_multiple_of(nr)
                && (rows.count - 1) * weights.ld + weights.span.all.end <= weights.weights.len()
        );
        let row = rows.sequence.start + rows.query;
        let result = Columns {
            cpu,
            base: rows.keys.start,
            // SAFETY: the first element of these columns in the first of these rows.
            out: unsafe { self.out.add(row * self.ldo + rows.head * d_v + columns.start) },
            ldc: rows.stride(d_v, self.ldo),
            columns: columns.len(),
            depth,
            values: values.columns_from(columns.start / nr),
            weights,
        };
        // SAFETY: the caller's promise.
        unsafe { result.compute() };
    }
}

/// Some columns of the result of a block of rows, and what they are made of.
struct Columns<'a> {
    cpu: Cpu,
    weights: Weights<'a>,
    /// From the first of the columns on.
    values: Runs<'a>,
    /// The key with which rows of weights begin.
    base: usize,
    /// Most keys of one product.
    depth: usize,
    /// The first element, and how far apart rows are.
    out: *mut f32,
    ldc: usize,
    columns: usize,
}

impl Columns<'_> {
    /// All rows of it.
    ///
    /// # Safety
    /// The values hold the columns of the keys that `weights` name; the result has these rows and columns, which nobody
    /// else uses.
    unsafe fn compute(&self) {
        let Weights { seen, span: Span { all, shared, holes }, sums, .. } = &self.weights;
        let tile = self.cpu.table.gemm.tile;
        // SAFETY: (of each block below) the caller's promise, for rows of `weights` and keys of their span.
        let clear = || (0..seen.len()).for_each(|r| unsafe { self.row(r) }.fill(0.0));
        // Of a band narrow against the block, what all rows see is not worth a round of its own.
        if *holes || shared.len() <= all.len() / 2 {
            clear();
            // SAFETY: as above.
            unsafe { self.add_by_tile(all.clone()) };
        } else {
            let at_once = shared.start == all.start;
            // SAFETY: as above.
            unsafe {
                if !at_once {
                    clear();
                    self.add_by_tile(all.start..shared.start);
                }
                self.product(tile, 0..seen.len(), shared.clone(), !at_once);
                self.add_by_tile(shared.end..all.end);
            }
        }
        for (r, (&sum, seen)) in sums.iter().zip(*seen).enumerate() {
            if seen[2] > 0 {
                // SAFETY: as above.
                unsafe { self.row(r) }.iter_mut().for_each(|x| *x /= sum);
            }
        }
    }

    /// Adds keys that some rows see and some do not: what all rows of a tile see by the plain product, the rest, a few
    /// keys along a diagonal, by the one that passes marked weights over.
    ///
    /// # Safety
    /// As [`Columns::compute`].
    unsafe fn add_by_tile(&self, within: Range<usize>) {
        if within.is_empty() {
            return;
        }
        let gemm = &self.cpu.table.gemm;
        let seen = self.weights.seen;
        let clip = |keys: Range<usize>| {
            keys.start.clamp(within.start, within.end)..keys.end.clamp(within.start, within.end)
        };
        for tile in tiles(seen.len(), gemm.mr) {
            let Span { all, shared, holes } = Span::of(&seen[tile.clone()]);
            let (all, shared) = (clip(all), clip(shared));
            // SAFETY: the caller's promise.
            unsafe {
                if holes || shared.is_empty() {
                    self.product(gemm.marked, tile, all, true);
                } else {
                    self.product(gemm.marked, tile.clone(), all.start..shared.start, true);
                    self.product(gemm.tile, tile.clone(), shared.clone(), true);
                    self.product(gemm.marked, tile, shared.end..all.end, true);
                }
            }
        }
    }

    /// Some rows ← (or +=) their weights of some keys times the values.
    ///
    /// # Safety
    /// As [`Columns::compute`].
    unsafe fn product(
        &self,
        kernel: Tile,
        rows: Range<usize>,
        keys: Range<usize>,
        accumulate: bool,
    ) {
        let &Columns { ref weights, values, base, out, ldc, columns, .. } = self;
        let first = base + keys.start;
        for (run, b) in values.cut(first..base + keys.end, self.depth) {
            // SAFETY: rows and keys of the weights; as the caller promises, the values and the result have them too.
            // `Cpu` proves the instruction set.
            unsafe {
                kernel(TileArgs {
                    m: rows.len(),
                    n: columns,
                    k: run.len(),
                    a: weights.weights.as_ptr().add(rows.start * weights.ld + run.start - base),
                    lda: weights.ld,
                    packed: false,
                    b,
                    ldb: values.ld,
                    panel: values.panel,
                    c: out.add(rows.start * ldc),
                    ldc,
                    accumulate: accumulate || run.start > first,
                    from: Distance::Near,
                });
            }
        }
    }

    /// Row r of it.
    ///
    /// # Safety
    /// As [`Columns::compute`]; no other reference to this row is alive.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that there is one at a time")]
    unsafe fn row(&self, r: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.out.add(r * self.ldc), self.columns) }
    }
}
