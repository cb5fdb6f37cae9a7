//! One query over many keys, with fewer heads than workers: the work of a head is shared out too.

use super::block::Call;
use super::blocking::row_of_scores;
use super::keys::{Runs, pack_keys};
use super::mask::Seen;
use super::need::RowNeed;
use super::parts::Parts;
use super::score_rows::{Rows, Span, Weights};
use super::segment::Sequence;
use super::{AttentionShape, Source};
use crate::par::Par;
use crate::scratch::{Need, Stack};
use std::ops::Range;

/// Three phases, shared out over panels of keys, over heads, and over columns of values; no sum is split. Up to `depth`
/// values are met by all heads of a group before the next ones.
#[track_caller]
pub(super) fn spread(
    call: &Call<'_>,
    par: Par<'_>,
    depth: usize,
    sequence: Sequence<'_>,
    stack: &mut Stack<'_>,
) {
    let heads = call.operands.shape.heads;
    let keys = sequence.keys_for(0..1);
    let ld = row_of_scores(call.operands.cpu.table.gemm.nr, keys.len());
    let all = heads.checked_mul(ld).expect("scratch size overflows");
    let (scores, mut stack) = stack.take::<f32>(all);
    let (sums, mut stack) = stack.take::<f32>(heads);
    let (seen, mut stack) = stack.take::<usize>(3 * heads);
    let (seen, _) = seen.as_chunks_mut::<3>();
    let query = Spread { call, sequence, keys, ld };
    query.score(par, scores, &mut stack);
    query.weigh(par, scores, seen, sums, &mut stack);
    query.weigh_values(par, depth, scores, seen, sums);
}

/// One query, with a row of scores for each head, `ld` apart.
struct Spread<'a> {
    call: &'a Call<'a>,
    sequence: Sequence<'a>,
    /// The keys that it sees.
    keys: Range<usize>,
    ld: usize,
}

impl Spread<'_> {
    /// Heads that share keys and values.
    fn group(&self) -> usize {
        let AttentionShape { heads, kv_heads, .. } = *self.call.operands.shape;
        heads / kv_heads
    }

    /// The heads that read `kv_head`.
    fn rows(&self, kv_head: usize) -> Rows<'_> {
        let group = self.group();
        Rows::new(&self.call.operands, self.sequence, (kv_head * group, 0), group, true)
    }

    /// Scores: an item is a few panels of one group's keys, packed when they are not yet.
    #[track_caller]
    fn score(&self, par: Par<'_>, scores: &mut [f32], stack: &mut Stack<'_>) {
        let Spread { call, sequence, ref keys, ld } = *self;
        let AttentionShape { kv_heads, d_k, .. } = *call.operands.shape;
        let (nr, group, width) = (call.operands.cpu.table.gemm.nr, self.group(), keys.len());
        let panels = width.div_ceil(nr);
        let some = panels.div_ceil(4 * par.threads()).max(2);
        let across = panels.div_ceil(some);
        let shared = Parts::new(scores);
        let each = match call.source {
            Source::Rows { .. } => Need::of::<f32>(d_k * nr),
            Source::Cache { .. } => Need::NONE,
        };
        par.run_with(kv_heads * across, each, stack, &|item, mut stack| {
            let (kv_head, first) = (item / across, item % across * some);
            let rows = self.rows(kv_head);
            let score = |part: Range<usize>, keys: Runs<'_>| {
                // SAFETY: keys that `keys` holds, and their columns in the rows of this group, that no other item has.
                unsafe {
                    let at = shared.at(kv_head * group * ld);
                    call.operands.score_keys(&rows, 0..group, part, keys, at, ld);
                }
            };
            let part = |panel: usize, end: usize| panel * nr..width.min(end * nr);
            let end = panels.min(first + some);
            match call.source {
                Source::Cache { cache, .. } => {
                    score(part(first, end), cache.keys(kv_head, sequence.pages));
                }
                Source::Rows { k, .. } => {
                    let k = k.columns(kv_head * d_k..(kv_head + 1) * d_k);
                    let (packed, _) = stack.take::<f32>(d_k * nr);
                    for panel in first..end {
                        let part = part(panel, panel + 1);
                        let start = keys.start + part.start;
                        let at = sequence.row + start;
                        pack_keys(call.operands.cpu, k.rows_range(at..at + part.len()), packed);
                        let base = packed.as_ptr();
                        score(part, Runs { base, first: start, ld: d_k, panel: 0, pages: None });
                    }
                }
            }
        });
    }

    /// Weights and their sums: an item is one head's row.
    #[track_caller]
    fn weigh(
        &self,
        par: Par<'_>,
        scores: &mut [f32],
        seen: &mut [Seen],
        sums: &mut [f32],
        stack: &mut Stack<'_>,
    ) {
        let Spread { call, sequence, ref keys, ld } = *self;
        let heads = call.operands.shape.heads;
        let need = RowNeed::of(call, keys.len());
        let (shared, shared_seen) = (Parts::new(scores), Parts::new(seen));
        let shared_sums = Parts::new(sums);
        par.run_with(heads, need.need(), stack, &|head, mut stack| {
            // SAFETY: row `head` of each, which no other item has.
            let (scores, seen, sum) = unsafe {
                (
                    shared.part(head * ld, ld),
                    &mut shared_seen.part(head, 1)[0],
                    &mut shared_sums.part(head, 1)[0],
                )
            };
            let (visible, mut stack) = stack.take::<u8>(need.marks);
            let (added, _) = stack.take::<f32>(need.added);
            let all = Rows::new(&call.operands, sequence, (0, 0), heads, true);
            *seen = call.operands.see(&all, head, visible);
            // SAFETY: an item is one head's.
            *sum = unsafe { call.weigh(&all, head, *seen, 0..keys.len(), scores, added) };
        });
    }

    /// Weighted values: an item is one panel of columns for one group.
    fn weigh_values(
        &self,
        par: Par<'_>,
        depth: usize,
        scores: &[f32],
        seen: &[Seen],
        sums: &[f32],
    ) {
        let Spread { call, sequence, ld, .. } = *self;
        let AttentionShape { kv_heads, d_v, .. } = *call.operands.shape;
        let nr = call.operands.cpu.table.gemm.nr;
        let across = d_v.div_ceil(nr);
        par.run(kv_heads * across, &|item, _| {
            let (kv_head, first) = (item / across, item % across * nr);
            let group = kv_head * self.group()..(kv_head + 1) * self.group();
            let weights = Weights {
                span: Span::of(&seen[group.clone()]),
                seen: &seen[group.clone()],
                weights: &scores[group.start * ld..group.end * ld],
                ld,
                sums: &sums[group],
            };
            let values = match call.source {
                Source::Cache { cache, .. } => cache.values(kv_head, sequence.pages),
                Source::Rows { v, .. } => {
                    let rows = sequence.row..sequence.row + sequence.keys;
                    let v = v.rows_range(rows).columns(kv_head * d_v..(kv_head + 1) * d_v);
                    Runs { base: v.as_ptr(), first: 0, ld: v.stride(), panel: nr, pages: None }
                }
            };
            let columns = first..d_v.min(first + nr);
            // SAFETY: V where it lies, and columns of the result that no other item has.
            unsafe { call.weigh_values(&self.rows(kv_head), columns, depth, weights, values) };
        });
    }
}
