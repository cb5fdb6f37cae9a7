//! One block of rows against the keys and values of one head: scores, exponentials, weighted values.
//!
//! Rows are the queries of one head, or, for a single query, the heads that share their keys: a
//! matrix either way, only with another row stride.

use super::keys::Runs;
use super::maps::MapRows;
use super::mask::{Query, Seen};
use super::segment::Sequence;
use super::{AttentionShape, Mask, Source};
use crate::arch::{Distance, Tile, TileArgs};
use crate::cpu::Cpu;
use crate::par::Cancel;
use crate::rows::softmax::{Scores, cap_scores, exp_scores};
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

// SAFETY: all is read only, but for the result and the maps: workers write to it through `Rows`, whose blocks of rows and
// columns of heads are cut disjointly by the driver.
unsafe impl Sync for Call<'_> {}

/// Some rows of scores of one sequence: `count` queries of one head, or one query's heads of one group.
#[derive(Clone)]
pub(super) struct Rows<'a> {
    pub(super) sequence: Sequence<'a>,
    /// The keys that some row sees, from a multiple of `STEP` on. Rows of scores, and all numbers of keys
    /// here, begin with the first of them.
    pub(super) keys: Range<usize>,
    pub(super) count: usize,
    /// The first row's head, and query within the segment.
    pub(super) head: usize,
    pub(super) query: usize,
    /// Whether the next row is the next head of the same query.
    pub(super) over_heads: bool,
    /// The first row's d_k elements of Q, or of a copy, and how far apart rows are there.
    pub(super) q: *const f32,
    pub(super) ldq: usize,
}

impl<'a> Rows<'a> {
    /// Rows of Q where they lie.
    ///
    /// # Panics
    /// When they are not within the segment's queries and the heads.
    pub(super) fn new(
        operands: &Operands<'_>,
        sequence: Sequence<'a>,
        (head, query): (usize, usize),
        count: usize,
        over_heads: bool,
    ) -> Rows<'a> {
        let (heads, queries) = if over_heads { (count, 1) } else { (1, count) };
        assert!(
            head + heads <= operands.shape.heads && query + queries <= sequence.count(),
            "{heads} heads from {head} on, {queries} queries from {query} on"
        );
        let row = sequence.start + query;
        let keys = sequence.keys_for(query..query + queries);
        let d_k = operands.shape.d_k;
        // Rows and heads exist in Q; with d_k = 0 nothing is read there.
        let q = operands.q.as_ptr().wrapping_add(row * operands.q.stride() + head * d_k);
        let ldq = if over_heads { d_k } else { operands.q.stride() };
        Rows { sequence, keys, count, head, query, over_heads, q, ldq }
    }

    /// The same rows, their part of Q copied to `to`, one after the other: rows of a wide matrix fall into few
    /// sets of the first-level cache.
    pub(super) fn copied(mut self, d_k: usize, to: &mut [f32]) -> Rows<'a> {
        assert!(to.len() == self.count * d_k);
        for (r, to) in to.chunks_exact_mut(d_k.max(1)).enumerate() {
            // SAFETY: row r < count of Q, or of the head's neighbours: d_k elements (`Rows::new`).
            let from = unsafe { std::slice::from_raw_parts(self.q.add(r * self.ldq), d_k) };
            to.copy_from_slice(from);
        }
        (self.q, self.ldq) = (to.as_ptr(), d_k);
        self
    }

    /// The same rows of another matrix, of which this is the first row's part.
    pub(super) fn over(&self, first: *const f32, ld: usize) -> Rows<'a> {
        Rows { q: first, ldq: ld, ..self.clone() }
    }

    /// Row r of a Q with `of` rows.
    pub(super) fn at(&self, r: usize, of: usize) -> Query<'a> {
        let Rows { sequence, head, query, .. } = *self;
        let (head, index) = if self.over_heads { (head + r, query) } else { (head, query + r) };
        Query { sequence, head, index, of, base: self.keys.start }
    }

    /// Elements from one row to the next, in a matrix of heads of `width` columns and this stride.
    fn stride(&self, width: usize, stride: usize) -> usize {
        if self.over_heads { width } else { stride }
    }
}

/// What a block of rows has come to before the values weigh in.
#[derive(Clone)]
pub(super) struct Weights<'a> {
    pub(super) seen: &'a [Seen],
    pub(super) span: Span,
    /// Unnormalised weights, rows `ld` apart, hidden keys marked as [`Call::weigh`] does; and their sums.
    pub(super) weights: &'a [f32],
    pub(super) ld: usize,
    pub(super) sums: &'a [f32],
}

/// What the rows of a block see, taken together.
#[derive(Clone)]
pub(super) struct Span {
    /// From the first key that some row sees to the last.
    all: Range<usize>,
    /// From the last beginning to the first end: holes apart, every row sees these. `0..0` when there are none.
    shared: Range<usize>,
    holes: bool,
}

impl Span {
    pub(super) fn of(seen: &[Seen]) -> Span {
        let (mut start, mut last) = (usize::MAX, 0);
        let (mut shared, mut holes) = (0..usize::MAX, false);
        for &[first, end, count] in seen {
            if count > 0 {
                start = start.min(first);
            }
            last = last.max(end);
            shared = shared.start.max(first)..shared.end.min(end);
            holes |= count < end - first;
        }
        if shared.start >= shared.end {
            shared = 0..0;
        }
        Span { all: start.min(last)..last, shared, holes }
    }

    /// From the first key that some row sees to the last.
    pub(super) fn all(&self) -> Range<usize> {
        self.all.clone()
    }

    /// Whether every row sees the same keys, holes apart.
    pub(super) fn uniform(&self) -> bool {
        self.all == self.shared
    }
}

/// Cuts `count` rows into tiles of at most `mr`, as equal as can be.
fn tiles(count: usize, mr: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = count.div_ceil(mr);
    (0..parts).map(move |i| i * count / parts..(i + 1) * count / parts)
}

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
                    b,
                    ldb: nr,
                    panel: width * nr,
                    c: scores.add(part.start * ld + keys.start - base),
                    ldc: ld,
                    accumulate: false,
                    from: Distance::Near,
                    goes_on: false,
                });
            }
        }
    }

    /// Turns a row of scores into unnormalised weights and gives their sum, in lanes key mod 32. Keys
    /// of `within` that the row does not see are marked by the weight −0. `added` is room for a row of biases. With a cap, `capped`
    /// gets the capped scores of the keys from the first to the last that the row sees.
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
        let Weights { seen, span, weights, ld, sums } = weights;
        let Span { all, shared, holes } = span;
        let gemm = &self.operands.cpu.table.gemm;
        let ldc = rows.stride(self.operands.shape.d_v, self.ldo);
        let row = rows.sequence.start + rows.query;
        let n = columns.len();
        assert!(
            seen.len() == rows.count
                && sums.len() == rows.count
                && columns.start.is_multiple_of(gemm.nr)
        );
        assert!((rows.count - 1) * ld + all.end <= weights.len());
        // SAFETY: the first element of these columns in the first of these rows.
        let out = unsafe {
            self.out.add(row * self.ldo + rows.head * self.operands.shape.d_v + columns.start)
        };
        let base = rows.keys.start;
        let values = values.columns_from(columns.start / gemm.nr);
        let product = |kernel: Tile, part: Range<usize>, keys: Range<usize>, accumulate: bool| {
            for (run, b) in values.cut(base + keys.start..base + keys.end, depth) {
                let accumulate = accumulate || run.start > base + keys.start;
                // SAFETY: rows below `count`, keys that one of them sees: within the weights (asserted) and,
                // as the caller promises, the values and the result. `Cpu` proves the instruction set.
                unsafe {
                    kernel(TileArgs {
                        m: part.len(),
                        n,
                        k: run.len(),
                        a: weights.as_ptr().add(part.start * ld + run.start - base),
                        lda: ld,
                        b,
                        ldb: values.ld,
                        panel: values.panel,
                        c: out.add(part.start * ldc),
                        ldc,
                        accumulate,
                        from: Distance::Near,
                        goes_on: false,
                    });
                }
            }
        };
        // SAFETY: row r < count of the result, these columns.
        let result = |r: usize| unsafe { std::slice::from_raw_parts_mut(out.add(r * ldc), n) };
        // Keys that some rows see and some do not: what all rows of a tile see by the plain product, the
        // rest, a few keys along a diagonal, by the one that passes marked weights over.
        let by_tile = |within: Range<usize>| {
            if within.is_empty() {
                return;
            }
            for tile in tiles(rows.count, gemm.mr) {
                let Span { all, shared, holes } = Span::of(&seen[tile.clone()]);
                let clip = |keys: Range<usize>| {
                    keys.start.clamp(within.start, within.end)
                        ..keys.end.clamp(within.start, within.end)
                };
                let (all, shared) = (clip(all), clip(shared));
                if holes || shared.is_empty() {
                    product(gemm.marked, tile, all, true);
                } else {
                    product(gemm.marked, tile.clone(), all.start..shared.start, true);
                    product(gemm.tile, tile.clone(), shared.clone(), true);
                    product(gemm.marked, tile, shared.end..all.end, true);
                }
            }
        };

        // Of a band narrow against the block, what all rows see is not worth a round of its own.
        if holes || shared.len() <= all.len() / 2 {
            (0..rows.count).for_each(|r| result(r).fill(0.0));
            by_tile(all);
        } else {
            let at_once = shared.start == all.start;
            if !at_once {
                (0..rows.count).for_each(|r| result(r).fill(0.0));
                by_tile(all.start..shared.start);
            }
            product(gemm.tile, 0..rows.count, shared.clone(), !at_once);
            by_tile(shared.end..all.end);
        }
        for (r, (&sum, seen)) in sums.iter().zip(seen).enumerate() {
            if seen[2] > 0 {
                result(r).iter_mut().for_each(|x| *x /= sum);
            }
        }
    }
}
