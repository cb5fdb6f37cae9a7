//! Which rows of Q attend to which keys, and how far each query sees.

use super::KvCache;
use crate::view::Mat;
use std::fmt;
use std::ops::Range;

/// Where the queries of a sequence stand among its keys, and how far they see from there.
///
/// Query i stands at position i + offset and sees the keys j with
/// i + offset − behind ≤ j ≤ i + offset + ahead; a bound that is `None` is none. So a causal mask
/// is `ahead = Some(0)`, and a sliding window of w keys, its own among them, `behind = Some(w − 1)`.
///
/// ```
/// use headrow_kernels::Reach;
/// // Three new tokens behind five older ones: the first new one is the sixth.
/// let reach = Reach::causal(3, 8);
/// assert_eq!((reach.offset, reach.ahead), (5, Some(0)));
/// assert_eq!(reach.with_window(4).behind, Some(3));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Position of the first query, counted in keys of the sequence. Any number is allowed: with t queries
    /// and s keys, 0 aligns the first of each, s − t the last ones.
    pub offset: isize,
    /// How many keys before its own position a query sees.
    pub behind: Option<usize>,
    /// How many keys after its own position a query sees.
    pub ahead: Option<usize>,
}

impl Reach {
    /// Every query sees every key, and the first one stands at the first key.
    pub const ALL: Reach = Reach { offset: 0, behind: None, ahead: None };

    /// The last query stands at the last key, and none sees what comes after it: query i of t sees the
    /// keys j ≤ i + s − t.
    pub fn causal(queries: usize, keys: usize) -> Reach {
        Reach { offset: keys as isize - queries as isize, behind: None, ahead: Some(0) }
    }

    /// The last query stands at the last key, and each sees `behind` keys before its own and `ahead` after.
    pub fn banded(queries: usize, keys: usize, behind: usize, ahead: usize) -> Reach {
        Reach { behind: Some(behind), ahead: Some(ahead), ..Reach::causal(queries, keys) }
    }

    /// Of what lies up to its own position a query sees the last `window` keys, its own among them.
    ///
    /// # Panics
    /// When the window is empty.
    #[track_caller]
    pub fn with_window(self, window: usize) -> Reach {
        assert!(window > 0, "a window of no key");
        Reach { behind: Some(window - 1), ..self }
    }

    /// Position of query `i`.
    pub(super) fn position(&self, i: usize) -> isize {
        (i as isize).saturating_add(self.offset)
    }

    /// The first of `keys` keys that query `i` can see, or more than the last.
    pub(super) fn first_for(&self, i: usize, keys: usize) -> usize {
        self.behind.map_or(0, |behind| {
            let first = self.position(i).saturating_sub(signed(behind));
            first.clamp(0, keys as isize) as usize
        })
    }

    /// The end of those of `keys` keys that query `i` can see.
    pub(super) fn end_for(&self, i: usize, keys: usize) -> usize {
        self.ahead.map_or(keys, |ahead| {
            let end = self.position(i).saturating_add(signed(ahead)).saturating_add(1);
            end.clamp(0, keys as isize) as usize
        })
    }

    /// Whether query `i` sees key `j`.
    pub(crate) fn sees(&self, i: usize, j: usize) -> bool {
        self.first_for(i, j + 1) <= j && self.end_for(i, j + 1) > j
    }

    /// Most keys that one query sees.
    pub(super) fn span(&self) -> usize {
        match (self.behind, self.ahead) {
            (Some(behind), Some(ahead)) => behind.saturating_add(ahead).saturating_add(1),
            _ => usize::MAX,
        }
    }
}

fn signed(n: usize) -> isize {
    isize::try_from(n).unwrap_or(isize::MAX)
}

/// One sequence of a ragged batch: which rows of Q attend to which rows of K and V.
///
/// ```
/// use headrow_kernels::{Reach, Segment};
/// // Two sequences of a batch: all of the first sees all of it, of the second each what came before.
/// let batch = [Segment::full(0..4, 0..4), Segment::causal(4..9, 4..9)];
/// assert_eq!(batch[0].reach, Reach::ALL);
/// assert_eq!(batch[1].reach, Reach { ahead: Some(0), ..Reach::ALL });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// Rows of Q and of the result. In a list of segments these ascend without overlap.
    pub queries: Range<usize>,
    /// Rows of K and V. Segments may share them.
    pub keys: Range<usize>,
    /// Which of these keys each query sees.
    pub reach: Reach,
}

impl Segment {
    /// Every query sees every key.
    pub fn full(queries: Range<usize>, keys: Range<usize>) -> Segment {
        Segment { queries, keys, reach: Reach::ALL }
    }

    /// The last query sees all keys, each earlier one sees one key less (aligned at the end):
    /// query i of t sees keys j ≤ i + s − t.
    pub fn causal(queries: Range<usize>, keys: Range<usize>) -> Segment {
        let reach = Reach::causal(queries.len(), keys.len());
        Segment { queries, keys, reach }
    }

    /// Query i of t sees the key at its own position, i + s − t, `behind` keys before it and `ahead` after.
    pub fn banded(
        queries: Range<usize>,
        keys: Range<usize>,
        behind: usize,
        ahead: usize,
    ) -> Segment {
        let reach = Reach::banded(queries.len(), keys.len(), behind, ahead);
        Segment { queries, keys, reach }
    }

    /// The same with a sliding window: see [`Reach::with_window`].
    ///
    /// # Panics
    /// When the window is empty.
    #[track_caller]
    pub fn with_window(self, window: usize) -> Segment {
        Segment { reach: self.reach.with_window(window), ..self }
    }

    /// The same rows with another reach.
    pub fn with_reach(self, reach: Reach) -> Segment {
        Segment { reach, ..self }
    }
}

/// One sequence of a batch whose keys and values lie in a [`KvCache`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedSegment<'a> {
    /// Rows of Q and of the result. In a list of segments these ascend without overlap.
    pub queries: Range<usize>,
    /// The pages that hold the sequence, in order; pages beyond its last key are not looked at.
    pub pages: &'a [u32],
    /// Keys of the sequence.
    pub keys: usize,
    /// Which of these keys each query sees.
    pub reach: Reach,
}

impl<'a> CachedSegment<'a> {
    /// Every query sees every key.
    pub fn full(queries: Range<usize>, pages: &'a [u32], keys: usize) -> CachedSegment<'a> {
        CachedSegment { queries, pages, keys, reach: Reach::ALL }
    }

    /// The last query sees all keys, each earlier one sees one key less, as in [`Segment::causal`].
    pub fn causal(queries: Range<usize>, pages: &'a [u32], keys: usize) -> CachedSegment<'a> {
        let reach = Reach::causal(queries.len(), keys);
        CachedSegment { queries, pages, keys, reach }
    }

    /// The same with a sliding window: see [`Reach::with_window`].
    ///
    /// # Panics
    /// When the window is empty.
    #[track_caller]
    pub fn with_window(self, window: usize) -> CachedSegment<'a> {
        CachedSegment { reach: self.reach.with_window(window), ..self }
    }

    /// The same rows and keys with another reach.
    pub fn with_reach(self, reach: Reach) -> CachedSegment<'a> {
        CachedSegment { reach, ..self }
    }
}

/// Where the keys and values of a call lie.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Source<'a> {
    /// In rows of matrices.
    #[non_exhaustive]
    Rows {
        /// s × h_kv·d_k.
        k: Mat<'a>,
        /// s × h_kv·d_v.
        v: Mat<'a>,
        /// The sequences.
        segments: &'a [Segment],
    },
    /// In pages of a cache.
    #[non_exhaustive]
    Cache {
        /// The cache of one layer.
        cache: &'a KvCache,
        /// The sequences.
        segments: &'a [CachedSegment<'a>],
    },
}

impl<'a> Source<'a> {
    /// Keys and values in rows of matrices.
    pub fn rows(k: Mat<'a>, v: Mat<'a>, segments: &'a [Segment]) -> Source<'a> {
        Source::Rows { k, v, segments }
    }

    /// Keys and values in a cache.
    pub fn cache(cache: &'a KvCache, segments: &'a [CachedSegment<'a>]) -> Source<'a> {
        Source::Cache { cache, segments }
    }

    /// Number of sequences.
    pub(super) fn len(&self) -> usize {
        match self {
            Source::Rows { segments, .. } => segments.len(),
            Source::Cache { segments, .. } => segments.len(),
        }
    }

    /// Sequence `i`.
    pub(super) fn get(&self, i: usize) -> Sequence<'a> {
        match self {
            Source::Rows { segments, .. } => Sequence::from(&segments[i]),
            Source::Cache { segments, .. } => Sequence::from(&segments[i]),
        }
    }

    /// The shapes of the operands, for messages.
    pub(super) fn describe(&self) -> impl fmt::Display {
        let source = *self;
        fmt::from_fn(move |f| match source {
            Source::Rows { k, v, .. } => {
                write!(f, "K {}×{}, V {}×{}", k.rows(), k.cols(), v.rows(), v.cols())
            }
            Source::Cache { cache, .. } => write!(f, "{cache:?}"),
        })
    }

    /// The keys that the segments name must exist.
    #[track_caller]
    pub(super) fn check_keys(&self) {
        match self {
            Source::Rows { k, segments, .. } => {
                for Segment { keys, .. } in *segments {
                    assert!(
                        keys.start <= keys.end && keys.end <= k.rows(),
                        "keys {keys:?} of {} rows",
                        k.rows()
                    );
                }
            }
            Source::Cache { cache, segments } => {
                segments.iter().for_each(|segment| cache.check(segment.pages, segment.keys));
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Sequence<'a>> {
        let source = *self;
        (0..self.len()).map(move |i| source.get(i))
    }

    /// Most keys that a block of up to `rows` rows of scores has.
    pub(super) fn width(&self, rows: usize) -> usize {
        self.iter().map(|sequence| sequence.width(rows)).max().unwrap_or(0)
    }

    /// Most keys between the first and the last that one query sees.
    pub(super) fn span(&self) -> usize {
        self.iter().map(|sequence| sequence.reach.span()).max().unwrap_or(0)
    }

    /// The extent of the sequences.
    pub(super) fn extent(&self) -> AttentionExtent {
        self.iter().fold(AttentionExtent::default(), AttentionExtent::with)
    }
}

/// One sequence, wherever its keys lie.
#[derive(Clone, Copy)]
pub(super) struct Sequence<'a> {
    /// The first row of Q, and the end of the rows.
    pub(super) start: usize,
    pub(super) end: usize,
    /// The row of K that holds the first key; 0 in a cache.
    pub(super) row: usize,
    pub(super) keys: usize,
    pub(super) pages: &'a [u32],
    pub(super) reach: Reach,
}

impl<'a> From<&'a Segment> for Sequence<'a> {
    fn from(segment: &'a Segment) -> Sequence<'a> {
        let Segment { queries, keys, reach } = segment;
        let (start, end, row) = (queries.start, queries.end, keys.start);
        Sequence { start, end, row, keys: keys.len(), pages: &[], reach: *reach }
    }
}

impl<'a> From<&'a CachedSegment<'a>> for Sequence<'a> {
    fn from(segment: &'a CachedSegment<'a>) -> Sequence<'a> {
        let &CachedSegment { ref queries, pages, keys, reach } = segment;
        Sequence { start: queries.start, end: queries.end, row: 0, keys, pages, reach }
    }
}

/// Rows of scores begin at a multiple of this key: of the 32 lanes of the sums, of every panel and of a page.
pub(super) const STEP: usize = 64;

impl Sequence<'_> {
    /// Number of queries.
    pub(super) fn count(&self) -> usize {
        self.end - self.start
    }

    /// The first key that query `i` sees; not below [`Sequence::end_for`] when it sees none.
    pub(super) fn first_for(&self, i: usize) -> usize {
        self.reach.first_for(i, self.keys)
    }

    /// The end of the keys that query `i` sees.
    pub(super) fn end_for(&self, i: usize) -> usize {
        self.reach.end_for(i, self.keys)
    }

    /// The keys that some of these queries see, from a multiple of [`STEP`] on.
    pub(super) fn keys_for(&self, queries: Range<usize>) -> Range<usize> {
        let end = self.end_for(queries.end - 1);
        self.first_for(queries.start).min(end) / STEP * STEP..end
    }

    /// Most keys in [`Sequence::keys_for`] that up to `queries` queries see.
    pub(super) fn width(&self, queries: usize) -> usize {
        let width = self.reach.span().saturating_add(queries).saturating_add(STEP);
        width.min(self.keys)
    }
}

/// The longest segments of a call, or of all calls that one scratch memory is to serve.
///
/// ```
/// use headrow_kernels::{AttentionExtent, Segment};
/// let extent = AttentionExtent::of(&[Segment::full(0..4, 0..9), Segment::full(4..11, 9..11)]);
/// assert_eq!(extent, AttentionExtent { queries: 7, keys: 9 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionExtent {
    /// Queries of the segment that has most.
    pub queries: usize,
    /// Keys of the segment that has most.
    pub keys: usize,
}

impl AttentionExtent {
    /// The extent of these segments.
    pub fn of(segments: &[Segment]) -> AttentionExtent {
        segments.iter().map(Sequence::from).fold(AttentionExtent::default(), AttentionExtent::with)
    }

    /// The extent of these segments of a cache.
    pub fn of_cached(segments: &[CachedSegment<'_>]) -> AttentionExtent {
        segments.iter().map(Sequence::from).fold(AttentionExtent::default(), AttentionExtent::with)
    }

    /// Extended to one more sequence.
    fn with(self, sequence: Sequence<'_>) -> AttentionExtent {
        AttentionExtent {
            queries: self.queries.max(sequence.count()),
            keys: self.keys.max(sequence.keys),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaches_of_any_size_are_clamped() {
        let causal = |offset| Reach { offset, behind: None, ahead: Some(0) };
        let ends = |reach: Reach| [0, 1, 2, 3].map(|i| reach.end_for(i, 5));
        assert_eq!(ends(Reach::ALL), [5; 4]);
        assert_eq!(ends(causal(-2)), [0, 0, 1, 2]);
        assert_eq!(ends(causal(3)), [4, 5, 5, 5]);
        assert_eq!(ends(causal(isize::MAX)), [5; 4]);
        assert_eq!(ends(causal(isize::MIN)), [0; 4]);
        assert_eq!(ends(Reach { ahead: Some(usize::MAX), ..causal(-9) }), [5; 4]);
        let firsts = |reach: Reach| [0, 1, 2, 3].map(|i| reach.first_for(i, 5));
        assert_eq!(firsts(causal(3)), [0; 4]);
        assert_eq!(firsts(causal(3).with_window(1)), [3, 4, 5, 5]);
        assert_eq!(firsts(causal(0).with_window(3)), [0, 0, 0, 1]);
        assert_eq!(firsts(causal(isize::MIN).with_window(usize::MAX)), [0; 4]);
        assert_eq!(firsts(causal(isize::MAX).with_window(2)), [5; 4]);
    }

    #[test]
    fn keys_of_a_block_are_those_its_queries_see() {
        for behind in [None, Some(0), Some(70), Some(200)] {
            for ahead in [None, Some(0), Some(90)] {
                for offset in [-150, -3, 0, 40, 400] {
                    let reach = Reach { offset, behind, ahead };
                    let s = Sequence { start: 0, end: 120, row: 0, keys: 300, pages: &[], reach };
                    let keys = s.keys_for(20..50);
                    let seen = |j: &usize| (20..50).any(|i| reach.sees(i, *j));
                    if let (Some(first), Some(last)) =
                        ((0..300).find(seen), (0..300).rev().find(seen))
                    {
                        assert_eq!(keys, first / STEP * STEP..last + 1, "{reach:?}");
                    }
                    assert!(keys.len() <= s.width(30), "{reach:?}");
                }
            }
        }
    }
}
