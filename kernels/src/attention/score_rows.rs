//! Which rows of scores a block has, and what they see.
//!
//! Rows are the queries of one head, or, for a single query, the heads that share their keys: a
//! matrix either way, only with another row stride.

use super::block::Operands;
use super::mask::{Query, Seen};
use super::segment::Sequence;
use std::ops::Range;

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
    pub(super) fn stride(&self, width: usize, stride: usize) -> usize {
        if self.over_heads { width } else { stride }
    }
}

/// What a block of rows has come to before the values weigh in.
#[derive(Clone)]
pub(super) struct Weights<'a> {
    pub(super) seen: &'a [Seen],
    pub(super) span: Span,
    /// Unnormalised weights, rows `ld` apart, hidden keys marked by −0; and their sums.
    pub(super) weights: &'a [f32],
    pub(super) ld: usize,
    pub(super) sums: &'a [f32],
}

/// What the rows of a block see, taken together.
#[derive(Clone)]
pub(super) struct Span {
    /// From the first key that some row sees to the last.
    pub(super) all: Range<usize>,
    /// From the last beginning to the first end: holes apart, every row sees these. `0..0` when there are none.
    pub(super) shared: Range<usize>,
    /// Whether some row has hidden keys among those that it sees.
    pub(super) holes: bool,
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

    /// Whether every row sees the same keys, holes apart.
    pub(super) fn uniform(&self) -> bool {
        self.all == self.shared
    }
}

/// Cuts `count` rows into tiles of at most `mr`, as equal as can be.
pub(super) fn tiles(count: usize, mr: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = count.div_ceil(mr);
    (0..parts).map(move |i| i * count / parts..(i + 1) * count / parts)
}
