//! Block sizes: chosen for the caches and the shape, injectable by tests.

use super::segment::Sequence;
use super::{AttentionExtent, AttentionShape, Source};
use crate::cpu::Cpu;

/// How attention is cut into items for the workers and blocks for the caches.
///
/// No field changes a bit of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// Queries whose whole score rows are in memory at a time.
    pub rows: usize,
    /// Keys met by all rows of a block before the next ones, when values weigh in: that many values of
    /// nr columns should stay in the first-level cache.
    pub keys: usize,
    /// Queries that a worker takes at a time, with all heads of a group.
    pub queries: usize,
    /// From this many rows on (queries × heads of a group), values are copied into panels.
    pub pack_values: usize,
    /// From this many keys on, the queries of a block are copied side by side.
    pub copy_queries: usize,
    /// One query at a time over many keys, and fewer heads than workers: scores are shared out by panels
    /// of keys, and the weighted values by columns.
    pub spread: bool,
}

/// Multiply-adds that one thread does sooner than it could share them out.
const WORTH_SHARING: usize = 1 << 17;
/// Items per worker: enough that a late or slow one leaves little for the others to wait for.
const ITEMS_PER_WORKER: usize = 4;
/// Every item packs its keys anew, which costs about as much as two queries.
const FEWEST_QUERIES: usize = 40;
/// Most rows in a block.
pub(super) const MOST_ROWS: usize = 84;

/// Elements from one row of scores to the next: whole panels, and an odd number of cache lines, so
/// that the rows of a tile do not fall into the same cache sets.
pub(super) fn row_of_scores(nr: usize, keys: usize) -> usize {
    let line = 16;
    let whole = keys.checked_next_multiple_of(nr).and_then(|k| k.checked_next_multiple_of(line));
    let whole = whole.expect("scratch size overflows");
    if (whole / line).is_multiple_of(2) { whole + line } else { whole }
}

/// Elements of a block of scores that leave room in the second level for keys and values.
fn scores_in_cache(cpu: Cpu) -> usize {
    cpu.caches().l2 / 2 / size_of::<f32>()
}

/// Most elements that a block of at most `rows` rows of scores takes, for any number of keys up to this one.
pub(super) fn most_scores(cpu: Cpu, rows: usize, keys: usize) -> usize {
    let gemm = &cpu.table.gemm;
    let row = row_of_scores(gemm.nr, keys);
    // The first term covers shorter segments in larger blocks, the second longer ones in the smallest.
    scores_in_cache(cpu).max(gemm.mr * row).min(rows * row)
}

impl Blocking {
    /// The sizes that [`attention()`](super::attention()) uses on up to `threads` workers.
    pub fn new(cpu: Cpu, threads: usize, shape: &AttentionShape, source: &Source<'_>) -> Blocking {
        let AttentionExtent { queries: longest, .. } = source.extent();
        let (mr, nr) = (cpu.table.gemm.mr, cpu.table.gemm.nr);
        let width = source.width(MOST_ROWS.max(mr));
        let rows = scores_in_cache(cpu) / row_of_scores(nr, width).max(1);
        let rows = (rows.min(MOST_ROWS) / mr * mr).max(mr);
        // Of equal blocks none is small. One query's heads make a block too.
        let (longest_queries, longest) =
            (longest, longest.max(shape.heads / shape.kv_heads.max(1)));
        let rows = longest.div_ceil(longest.div_ceil(rows).max(1)).next_multiple_of(mr).min(rows);
        // Keys and values of a band that an item packs should stay in the second level too.
        let whole = |queries: usize| queries.checked_next_multiple_of(rows).unwrap_or(usize::MAX);
        let mut queries = whole(source.span().saturating_mul(2).max(4 * rows));
        let mut spread = false;
        if threads > 1 {
            let all: usize = source.iter().map(|s| s.count() * shape.kv_heads).sum();
            let share = all.div_ceil(threads * ITEMS_PER_WORKER).max(FEWEST_QUERIES);
            queries = queries.min(whole(share));
            spread = all < threads && longest_queries <= 1;
        }
        Blocking { rows, keys: 256, queries, pack_values: 4 * mr, copy_queries: 96, spread }
    }

    /// The same with every size at least 1.
    pub(super) fn checked(self) -> Blocking {
        Blocking {
            rows: self.rows.max(1),
            keys: self.keys.max(1),
            queries: self.queries.max(1),
            ..self
        }
    }

    /// How many workers these sequences are worth.
    pub(super) fn workers(threads: usize, shape: &AttentionShape, source: &Source<'_>) -> usize {
        let AttentionShape { heads, d_k, d_v, .. } = *shape;
        // An exponential costs about as much as two dozen multiply-adds.
        let each = d_k + d_v + 24;
        let scores = |s: Sequence<'_>| s.count().saturating_mul(s.width(1));
        let work = source.iter().map(scores).fold(0, usize::saturating_add);
        if work.saturating_mul(heads * each) < WORTH_SHARING { 1 } else { threads }
    }
}
