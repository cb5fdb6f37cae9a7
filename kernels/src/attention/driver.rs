//! Who computes what: items for the workers, and a way for one query over a long cache.

use super::block::{Call, Rows, Span, Values, Weights};
use super::blocking::{Blocking, MOST_ROWS, most_scores, row_of_scores};
use super::keys::{pack_keys, pack_values};
use super::mask::Seen;
use super::{AttentionExtent, AttentionShape, Segment};
use crate::cpu::Cpu;
use crate::par::Par;
use crate::scratch::{Need, Stack};
use std::ops::Range;

/// Room for `rows` rows of `keys` keys, with `scores` elements for their scores.
#[track_caller]
fn block_need(d_k: usize, rows: usize, keys: usize, scores: usize) -> Need {
    let queries = rows.checked_mul(d_k).expect("scratch size overflows");
    Need::of::<f32>(scores)
        .and(Need::of::<f32>(rows))
        .and(Need::of::<usize>(3 * rows))
        .and(Need::of::<u8>(keys))
        .and(Need::of::<f32>(queries))
}

/// Room for the keys and values of one head.
#[track_caller]
fn panels_need(cpu: Cpu, shape: &AttentionShape, keys: usize) -> Need {
    let nr = cpu.table.gemm.nr;
    let round = |n: usize| n.checked_next_multiple_of(nr).expect("scratch size overflows");
    let product = |a: usize, b: usize| a.checked_mul(b).expect("scratch size overflows");
    Need::of::<f32>(product(round(keys), shape.d_k))
        .and(Need::of::<f32>(product(keys, round(shape.d_v))))
}

/// Most rows that a block can have, whatever the block sizes: all queries, or a single one's heads.
fn most_rows(shape: &AttentionShape, extent: AttentionExtent) -> usize {
    extent.queries.max(shape.heads / shape.kv_heads.max(1))
}

/// What [`run`] takes from its stack, for any segments within `extent`: with the block sizes of the call's own
/// choice, or given ones.
#[track_caller]
pub(super) fn scratch(
    cpu: Cpu,
    blocking: Option<&Blocking>,
    threads: usize,
    shape: &AttentionShape,
    extent: AttentionExtent,
) -> Need {
    let keys = extent.keys;
    let row = row_of_scores(cpu.table.gemm.nr, keys);
    let rows = blocking.map_or(MOST_ROWS.max(cpu.table.gemm.mr), |blocking| blocking.rows);
    let rows = rows.min(most_rows(shape, extent));
    let scores = match blocking {
        Some(_) => rows.checked_mul(row),
        None => Some(most_scores(cpu, rows, keys)),
    };
    let scores = scores.expect("scratch size overflows");
    let each = panels_need(cpu, shape, keys).and(block_need(shape.d_k, rows, keys, scores));
    let spread =
        block_need(0, shape.heads, keys, shape.heads.checked_mul(row).expect("scratch size"));
    let spread = if threads > 1 { spread } else { Need::NONE };
    each.times(threads.max(1)).and(spread)
}

/// Attention, shapes checked, with something to compute.
#[track_caller]
pub(super) fn run(
    call: &Call<'_>,
    par: Par<'_>,
    blocking: &Blocking,
    segments: &[Segment],
    stack: &mut Stack<'_>,
) {
    if blocking.spread && par.threads() > 1 && segments.iter().all(|s| s.queries.len() <= 1) {
        for segment in segments.iter().filter(|s| !s.queries.is_empty()) {
            spread(call, par, blocking, segment, stack);
        }
        return;
    }
    let kv_heads = call.shape.kv_heads;
    let items_of = |s: &Segment| kv_heads * s.queries.len().div_ceil(blocking.queries);
    let items = segments.iter().map(items_of).sum();
    let extent = AttentionExtent::of(segments);
    let (keys, rows) = (extent.keys, blocking.rows.min(most_rows(call.shape, extent)));
    let row = row_of_scores(call.cpu.table.gemm.nr, keys);
    let marks = if call.mask.is_none() { 0 } else { keys };
    let block = block_need(call.shape.d_k, rows, marks, rows * row);
    let each = panels_need(call.cpu, call.shape, keys).and(block);
    par.run_with(items, each, stack, &|mut item, stack| {
        let mut segments = segments.iter();
        let mut segment = segments.next().expect("an item of some segment");
        while item >= items_of(segment) {
            item -= items_of(segment);
            segment = segments.next().expect("an item of some segment");
        }
        // The last queries first: under a causal mask they have most to do.
        let chunks = items_of(segment) / kv_heads;
        let first = (chunks - 1 - item / kv_heads) * blocking.queries;
        let queries = first..segment.queries.len().min(first.saturating_add(blocking.queries));
        one_item(call, blocking, segment, item % kv_heads, queries, stack);
    });
}

/// Some queries of a segment with all heads that share the keys and values of `kv_head`.
fn one_item(
    call: &Call<'_>,
    blocking: &Blocking,
    segment: &Segment,
    kv_head: usize,
    queries: Range<usize>,
    mut stack: Stack<'_>,
) {
    let &AttentionShape { heads, kv_heads, d_k, d_v, .. } = call.shape;
    let nr = call.cpu.table.gemm.nr;
    let group = heads / kv_heads;
    // Of a causal segment, what no query here sees is not even packed.
    let end = segment.end_for(queries.end - 1);
    let keys = segment.keys.start..segment.keys.start + end;
    let k = call.k.rows_range(keys.clone()).columns(kv_head * d_k..(kv_head + 1) * d_k);
    let v = call.v.rows_range(keys).columns(kv_head * d_v..(kv_head + 1) * d_v);
    let (panels, mut stack) = stack.take::<f32>(end.next_multiple_of(nr) * d_k);
    pack_keys(call.cpu, k, panels);
    let packed = queries.len() * group >= blocking.pack_values;
    let columns = if packed { d_v.next_multiple_of(nr) } else { 0 };
    let (values, mut stack) = stack.take::<f32>(end * columns);
    let values = if packed {
        pack_values(v, nr, values);
        Values { base: values.as_ptr(), ld: nr, panel: end * nr }
    } else {
        Values { base: v.as_ptr(), ld: v.stride(), panel: nr }
    };
    let over_heads = queries.len() == 1;
    let (rounds, count) = if over_heads { (1, group) } else { (group, queries.len()) };
    for round in 0..rounds {
        for first in (0..count).step_by(blocking.rows) {
            let (head, query) = if over_heads { (first, 0) } else { (round, first) };
            let count = blocking.rows.min(count - first);
            let (head, query) = (kv_head * group + head, queries.start + query);
            let rows = Rows::new(call, segment, head, query, count, over_heads);
            one_block(call, blocking, rows, panels, values, end, &mut stack);
        }
    }
}

/// Scores, weights and weighted values of one block of rows.
fn one_block(
    call: &Call<'_>,
    blocking: &Blocking,
    rows: Rows<'_>,
    panels: &[f32],
    values: Values,
    end: usize,
    stack: &mut Stack<'_>,
) {
    let ld = row_of_scores(call.cpu.table.gemm.nr, end);
    let marks = if call.mask.is_none() { 0 } else { end };
    let (scores, mut stack) = stack.take::<f32>(rows.count * ld);
    let (sums, mut stack) = stack.take::<f32>(rows.count);
    let (seen, mut stack) = stack.take::<usize>(3 * rows.count);
    let (visible, mut stack) = stack.take::<u8>(marks);
    let (copy, _) = stack.take::<f32>(rows.count * call.shape.d_k);
    let rows = &if end < blocking.copy_queries { rows } else { rows.copied(call.shape.d_k, copy) };
    let (seen, _) = seen.as_chunks_mut::<3>();
    for (r, seen) in seen.iter_mut().enumerate() {
        *seen = call.see(rows, r, visible);
    }
    let span = Span::of(seen);
    // SAFETY: `panels` holds every key below `end`, beyond which no row of the item sees; rows of
    // scores, ours alone, have room for whole panels of that many keys.
    unsafe { call.scores(rows, seen, &span, panels.as_ptr(), scores.as_mut_ptr(), ld) };
    for (r, (sum, &seen)) in sums.iter_mut().zip(seen.iter()).enumerate() {
        *sum = call.weigh(rows, r, seen, span.all(), &mut scores[r * ld..][..ld]);
    }
    let weights = Weights { seen, span, weights: scores, ld, sums };
    // SAFETY: `values` covers all keys below `end`; an item is one worker's, and no other has these
    // queries with these heads.
    unsafe { call.weigh_values(rows, 0..call.shape.d_v, blocking.keys, weights, values) };
}

/// A shared slice of which each worker writes a part of its own.
struct Parts<T>(*mut T);

// SAFETY: the parts are disjoint: see the uses.
unsafe impl<T: Send> Sync for Parts<T> {}

impl<T> Parts<T> {
    /// Address of element `index`.
    ///
    /// # Safety
    /// It lies inside the slice.
    unsafe fn at(&self, index: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(index) }
    }

    /// Elements `first..first + len`.
    ///
    /// # Safety
    /// They lie inside the slice, and nobody else uses them meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that parts are disjoint")]
    unsafe fn part(&self, first: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(first), len) }
    }
}

/// One query over many keys, with fewer heads than workers: three phases, shared out over panels of
/// keys, over heads, and over columns of values. No sum is split.
#[track_caller]
fn spread(
    call: &Call<'_>,
    par: Par<'_>,
    blocking: &Blocking,
    segment: &Segment,
    stack: &mut Stack<'_>,
) {
    let &AttentionShape { heads, kv_heads, d_k, d_v, .. } = call.shape;
    let nr = call.cpu.table.gemm.nr;
    let group = heads / kv_heads;
    let end = segment.end_for(0);
    let ld = row_of_scores(nr, end);
    let marks = if call.mask.is_none() { 0 } else { end };
    let (scores, mut stack) =
        stack.take::<f32>(heads.checked_mul(ld).expect("scratch size overflows"));
    let (sums, mut stack) = stack.take::<f32>(heads);
    let (seen, mut stack) = stack.take::<usize>(3 * heads);
    let (seen, _) = seen.as_chunks_mut::<3>();
    let rows = |kv_head: usize| Rows::new(call, segment, kv_head * group, 0, group, true);
    let keys = call.k.rows_range(segment.keys.start..segment.keys.start + end);
    let values = call.v.rows_range(segment.keys.start..segment.keys.start + end);

    // Scores: an item is a few panels of one group's keys.
    let panels = end.div_ceil(nr);
    let some = panels.div_ceil(4 * par.threads()).max(2);
    let across = panels.div_ceil(some);
    let shared = Parts(scores.as_mut_ptr());
    let each = Need::of::<f32>(d_k * nr);
    par.run_with(kv_heads * across, each, &mut stack, &|item, mut stack| {
        let (kv_head, first) = (item / across, item % across * some);
        let keys = keys.columns(kv_head * d_k..(kv_head + 1) * d_k);
        let (packed, _) = stack.take::<f32>(d_k * nr);
        for panel in first..panels.min(first + some) {
            let keys = keys.rows_range(panel * nr..end.min((panel + 1) * nr));
            pack_keys(call.cpu, keys, packed);
            // SAFETY: a packed panel, and its columns in the rows of this group, that no other item
            // has; `panel` is counted from `packed` on.
            unsafe {
                let at = shared.at(kv_head * group * ld + panel * nr);
                call.score_keys(&rows(kv_head), 0..group, 0..keys.rows(), packed.as_ptr(), at, ld);
            }
        }
    });

    // Weights: an item is one head's row.
    let (shared, shared_seen) = (Parts(scores.as_mut_ptr()), Parts(seen.as_mut_ptr()));
    let shared_sums = Parts(sums.as_mut_ptr());
    par.run_with(heads, Need::of::<u8>(marks), &mut stack, &|head, mut stack| {
        // SAFETY: row `head` of each, which no other item has.
        let (scores, seen, sum) = unsafe {
            (
                shared.part(head * ld, ld),
                &mut shared_seen.part(head, 1)[0],
                &mut shared_sums.part(head, 1)[0],
            )
        };
        let (visible, _) = stack.take::<u8>(marks);
        let all = Rows::new(call, segment, 0, 0, heads, true);
        *seen = call.see(&all, head, visible);
        *sum = call.weigh(&all, head, *seen, 0..end, scores);
    });

    // Weighted values: an item is one panel of columns for one group.
    let (scores, seen, sums): (&[f32], &[Seen], &[f32]) = (scores, seen, sums);
    let across = d_v.div_ceil(nr);
    par.run(kv_heads * across, &|item, _| {
        let (kv_head, first) = (item / across, item % across * nr);
        let v = values.columns(kv_head * d_v..(kv_head + 1) * d_v);
        let group = kv_head * group..(kv_head + 1) * group;
        let weights = Weights {
            span: Span::of(&seen[group.clone()]),
            seen: &seen[group.clone()],
            weights: &scores[group.start * ld..group.end * ld],
            ld,
            sums: &sums[group],
        };
        let values = Values { base: v.as_ptr(), ld: v.stride(), panel: nr };
        let columns = first..d_v.min(first + nr);
        // SAFETY: V in place, and columns of the result that no other item has.
        unsafe { call.weigh_values(&rows(kv_head), columns, blocking.keys, weights, values) };
    });
}
