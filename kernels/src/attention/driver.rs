//! Who computes what: items for the workers.

use super::block::Call;
use super::blocking::{Blocking, row_of_scores};
use super::keys::{Runs, pack_keys, pack_values};
use super::need::{RowNeed, block_need, most_rows, panels_need};
use super::score_rows::{Rows, Span, Weights};
use super::segment::Sequence;
use super::spread::spread;
use super::{AttentionShape, Source};
use crate::par::{Cancel, Par};
use crate::scratch::{Need, Stack};
use std::ops::Range;

/// Attention, shapes checked, with something to compute.
#[track_caller]
pub(super) fn run(call: &Call<'_>, par: Par<'_>, blocking: &Blocking, stack: &mut Stack<'_>) {
    let source = &call.source;
    if blocking.spread && par.threads() > 1 && source.iter().all(|s| s.count() <= 1) {
        for sequence in source.iter().filter(|s| s.count() > 0) {
            spread(call, par, blocking.keys, sequence, stack);
        }
        return;
    }
    let kv_heads = call.operands.shape.kv_heads;
    let items_of = |s: &Sequence<'_>| kv_heads * s.count().div_ceil(blocking.queries);
    let items = source.iter().map(|s| items_of(&s)).sum();
    // In a batch of equals, such as one query each, an item's sequence need not be searched for.
    let each = source.iter().next().map_or(0, |first| items_of(&first));
    let equal = each > 0 && source.iter().all(|s| items_of(&s) == each);
    let extent = source.extent();
    let rows = blocking.rows.min(most_rows(call.operands.shape, extent));
    let width = source.width(rows);
    let row = row_of_scores(call.operands.cpu.table.gemm.nr, width);
    let block = block_need(call.operands.shape.d_k, rows, RowNeed::of(call, width), rows * row);
    let panels = match source {
        Source::Rows { .. } => {
            panels_need(call.operands.cpu, call.operands.shape, source.width(blocking.queries))
        }
        Source::Cache { .. } => Need::NONE,
    };
    par.run_with(items, panels.and(block), stack, &|mut item, stack| {
        let mut place = 0;
        if equal {
            (place, item) = (item / each, item % each);
        } else {
            while item >= items_of(&source.get(place)) {
                item -= items_of(&source.get(place));
                place += 1;
            }
        }
        let sequence = source.get(place);
        // The last queries first: under a causal mask they have most to do.
        let chunks = items_of(&sequence) / kv_heads;
        let first = (chunks - 1 - item / kv_heads) * blocking.queries;
        let queries = first..sequence.count().min(first.saturating_add(blocking.queries));
        one_item(call, blocking, sequence, item % kv_heads, queries, stack);
    });
}

/// Some queries of a sequence with all heads that share the keys and values of `kv_head`.
fn one_item(
    call: &Call<'_>,
    blocking: &Blocking,
    sequence: Sequence<'_>,
    kv_head: usize,
    queries: Range<usize>,
    mut stack: Stack<'_>,
) {
    let &AttentionShape { heads, kv_heads, .. } = call.operands.shape;
    let group = heads / kv_heads;
    let over_heads = queries.len() == 1;
    let (rounds, count) = if over_heads { (1, group) } else { (group, queries.len()) };
    with_keys(call, blocking, sequence, kv_head, &queries, &mut stack, |keys, values, stack| {
        for round in 0..rounds {
            for first in (0..count).step_by(blocking.rows) {
                // An item may be all queries of a long sequence.
                if call.cancel.is_some_and(Cancel::is_cancelled) {
                    return;
                }
                let (head, query) = if over_heads { (first, 0) } else { (round, first) };
                let count = blocking.rows.min(count - first);
                let at = (kv_head * group + head, queries.start + query);
                let rows = Rows::new(&call.operands, sequence, at, count, over_heads);
                one_block(call, blocking, rows, keys, values, stack);
            }
        }
    });
}

/// Calls `work` with the keys and values of `kv_head` that these queries see: from the cache, or packed here.
fn with_keys(
    call: &Call<'_>,
    blocking: &Blocking,
    sequence: Sequence<'_>,
    kv_head: usize,
    queries: &Range<usize>,
    stack: &mut Stack<'_>,
    mut work: impl FnMut(Runs<'_>, Runs<'_>, &mut Stack<'_>),
) {
    let &AttentionShape { heads, kv_heads, d_k, d_v, .. } = call.operands.shape;
    let (k, v) = match call.source {
        Source::Rows { k, v, .. } => (k, v),
        Source::Cache { cache, .. } => {
            let pages = sequence.pages;
            return work(cache.keys(kv_head, pages), cache.values(kv_head, pages), stack);
        }
    };
    let nr = call.operands.cpu.table.gemm.nr;
    // What no query here sees is not even packed.
    let keys = sequence.keys_for(queries.clone());
    let rows = sequence.row + keys.start..sequence.row + keys.end;
    let k = k.rows_range(rows.clone()).columns(kv_head * d_k..(kv_head + 1) * d_k);
    let v = v.rows_range(rows).columns(kv_head * d_v..(kv_head + 1) * d_v);
    let (panels, mut stack) = stack.take::<f32>(keys.len().next_multiple_of(nr) * d_k);
    pack_keys(call.operands.cpu, k, panels);
    let packed = queries.len() * (heads / kv_heads) >= blocking.pack_values;
    let columns = if packed { d_v.next_multiple_of(nr) } else { 0 };
    let (values, mut stack) = stack.take::<f32>(keys.len() * columns);
    let run = |base, ld, panel| Runs { base, first: keys.start, ld, panel, pages: None };
    let values = if packed {
        pack_values(v, nr, values);
        run(values.as_ptr(), nr, keys.len() * nr)
    } else {
        run(v.as_ptr(), v.stride(), nr)
    };
    work(run(panels.as_ptr(), d_k, 0), values, &mut stack);
}

/// Scores, weights and weighted values of one block of rows.
fn one_block(
    call: &Call<'_>,
    blocking: &Blocking,
    rows: Rows<'_>,
    keys: Runs<'_>,
    values: Runs<'_>,
    stack: &mut Stack<'_>,
) {
    let width = rows.keys.len();
    let ld = row_of_scores(call.operands.cpu.table.gemm.nr, width);
    let need = RowNeed::of(call, width);
    let (scores, mut stack) = stack.take::<f32>(rows.count * ld);
    let (sums, mut stack) = stack.take::<f32>(rows.count);
    let (seen, mut stack) = stack.take::<usize>(3 * rows.count);
    let (visible, mut stack) = stack.take::<u8>(need.marks);
    let (added, mut stack) = stack.take::<f32>(need.added);
    let (copy, _) = stack.take::<f32>(rows.count * call.operands.shape.d_k);
    let rows = if width < blocking.copy_queries {
        rows
    } else {
        rows.copied(call.operands.shape.d_k, copy)
    };
    let (seen, _) = seen.as_chunks_mut::<3>();
    for (r, seen) in seen.iter_mut().enumerate() {
        *seen = call.operands.see(&rows, r, visible);
    }
    let span = Span::of(seen);
    // SAFETY: `keys` are all that some row of the item sees, those of these rows among them; rows of
    // scores, ours alone, have room for whole panels of that many keys.
    unsafe { call.operands.scores(&rows, seen, &span, keys, scores.as_mut_ptr(), ld) };
    for (r, (sum, &seen)) in sums.iter_mut().zip(seen.iter()).enumerate() {
        let scores = &mut scores[r * ld..][..ld];
        // SAFETY: an item is one worker's, and no other has these queries with these heads.
        *sum = unsafe { call.weigh(&rows, r, seen, span.all.clone(), scores, added) };
    }
    let weights = Weights { seen, span, weights: scores, ld, sums };
    // SAFETY: `values` are those of `keys`; queries and heads are ours, as above.
    unsafe { call.weigh_values(&rows, 0..call.operands.shape.d_v, blocking.keys, weights, values) };
}
