//! What hides keys, and what is added to scores.

use super::Source;
use super::segment::Sequence;
use crate::view::{Mat, MatMut};

/// A t × s matrix of mask values, one for all heads or one per head.
///
/// Rows go by the row of Q, columns by the index of the key within its segment; a matrix may have
/// more columns than a segment has keys.
#[derive(Clone, Copy, Debug)]
pub enum PerHead<'a, T> {
    /// Row = row of Q.
    Shared(Mat<'a, T>),
    /// Row = head · (rows of Q) + row of Q.
    Each(Mat<'a, T>),
}

impl<'a, T: Copy> PerHead<'a, T> {
    /// The row for one head and one row of a Q with `queries` rows.
    pub(crate) fn row(&self, queries: usize, head: usize, row: usize) -> &'a [T] {
        match self {
            PerHead::Shared(mat) => mat.row(row),
            PerHead::Each(mat) => mat.row(head * queries + row),
        }
    }

    #[track_caller]
    fn check(&self, what: &str, heads: usize, queries: usize, longest: usize) {
        let (mat, rows) = match self {
            PerHead::Shared(mat) => (mat, Some(queries)),
            PerHead::Each(mat) => (mat, heads.checked_mul(queries)),
        };
        assert!(
            Some(mat.rows()) == rows && mat.cols() >= longest,
            "{what} of {}×{}, expected {rows:?} rows and at least {longest} columns \
             ({heads} heads, {queries} queries)",
            mat.rows(),
            mat.cols()
        );
    }
}

/// As [`PerHead`], to write to.
#[derive(Debug)]
pub enum PerHeadMut<'a> {
    /// Row = row of Q.
    Shared(MatMut<'a>),
    /// Row = head · (rows of Q) + row of Q.
    Each(MatMut<'a>),
}

/// A bias that depends on the head and on how far a key lies from the query's position, as in T5 or ALiBi:
/// one row per head instead of a t × s matrix.
#[derive(Clone, Copy, Debug)]
pub struct Relative<'a> {
    /// heads × distances: the key at distance δ from the query's position, δ = j − (i + offset), is given
    /// column `zero` + δ. The offset is that of the segment's [`Reach`](super::Reach).
    pub table: Mat<'a>,
    /// The column of the query's own position.
    pub zero: usize,
}

impl<'a> Relative<'a> {
    /// The entry for key `j` of a query at `position`.
    pub(crate) fn at(&self, head: usize, position: isize, j: usize) -> f32 {
        self.table.row(head)[self.column(position, j)]
    }

    fn column(&self, position: isize, j: usize) -> usize {
        ((j as isize).saturating_sub(position) as usize).wrapping_add(self.zero)
    }

    /// Columns that a sequence can ask for must exist.
    #[track_caller]
    fn check(&self, heads: usize, sequence: &Sequence<'_>) {
        let Relative { table, zero } = self;
        assert!(table.rows() == heads, "relative bias of {} rows, {heads} heads", table.rows());
        let signed = |n: usize| isize::try_from(n).unwrap_or(isize::MAX);
        for i in [0, sequence.count().wrapping_sub(1)] {
            if i >= sequence.count() || sequence.first_for(i) >= sequence.end_for(i) {
                continue;
            }
            let position = sequence.reach.position(i);
            let (first, last) = (sequence.first_for(i), sequence.end_for(i) - 1);
            let [first, last] = [first, last].map(|j| signed(j).saturating_sub(position));
            let column = |distance: isize| signed(*zero).checked_add(distance);
            assert!(
                column(first).is_some_and(|c| c >= 0)
                    && column(last).is_some_and(|c| c < signed(table.cols())),
                "relative bias of {} columns, that of distance 0 being {zero}, for distances {first} to {last}",
                table.cols()
            );
        }
    }
}

/// What hides keys, and what is added to scores. All parts combine, also with the segments' reach.
///
/// ```
/// use headrow_kernels::{AttentionExtent, AttentionShape, Cpu, Mask, Mat, MatMut, Par, Scratch, Segment};
/// use headrow_kernels::{attention, attention_scratch};
/// // One query over three keys with equal scores, the last of them padding.
/// let (q, k, v) = ([0.0], [1.0; 3], [3.0, 5.0, f32::NAN]);
/// let (q, k, v) = (Mat::new(&q, 1, 1), Mat::new(&k, 3, 1), Mat::new(&v, 3, 1));
/// let (cpu, shape) = (Cpu::detect(), AttentionShape::new(1, 1, 1, 1));
/// let segments = [Segment::full(0..1, 0..3)];
/// let need = attention_scratch(cpu, 1, &shape, AttentionExtent::of(&segments));
/// let (mut scratch, mut out) = (Scratch::new(need), [0.0]);
/// let mask = Mask { keys: Some(&[true, true, false]), ..Mask::default() };
/// let (to, stack) = (MatMut::new(&mut out, 1, 1), &mut scratch.stack());
/// attention(cpu, Par::SERIAL, &shape, q, k, v, &segments, &mask, to, stack);
/// assert_eq!(out, [4.0]);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Mask<'a> {
    /// By row of K: `true` = visible. Not with a cache, which has no such rows.
    pub keys: Option<&'a [bool]>,
    /// By query and key: `true` = visible.
    pub visible: Option<PerHead<'a, bool>>,
    /// Added to the scaled scores. Only −∞ hides a key; any other number, however low, is arithmetic.
    pub bias: Option<PerHead<'a, f32>>,
    /// Added likewise. With both, their sum is added: −∞ in either hides, and a sum of others that would be −∞ is the
    /// lowest number.
    pub relative: Option<Relative<'a>>,
}

/// What one query sees: `[first, end, count]`, that is `count` of the keys `first..end`, the first and the
/// last of them included. Without holes, `count = end − first`; seeing nothing is `[0, 0, 0]`.
pub(super) type Seen = [usize; 3];

/// One query of one head.
#[derive(Clone, Copy)]
pub(super) struct Query<'a> {
    pub(super) sequence: Sequence<'a>,
    pub(super) head: usize,
    /// Its number within the sequence.
    pub(super) index: usize,
    /// Rows of Q.
    pub(super) of: usize,
    /// The key from which on keys are counted here.
    pub(super) base: usize,
}

impl Query<'_> {
    /// The row of Q.
    pub(super) fn row(&self) -> usize {
        self.sequence.start + self.index
    }

    /// The entries of a matrix of mask values, from key `base` on.
    fn entries<'m, T: Copy>(&self, mask: PerHead<'m, T>) -> &'m [T] {
        &mask.row(self.of, self.head, self.row())[self.base..]
    }

    /// The column of a relative bias for key `first`, counted from `base`; those of later keys follow.
    pub(super) fn column(&self, relative: &Relative<'_>, first: usize) -> usize {
        relative.column(self.sequence.reach.position(self.index), self.base + first)
    }

    /// The entries of a relative bias for the keys from `first` on, counted from `base`.
    fn relative<'m>(&self, relative: &Relative<'m>, first: usize) -> &'m [f32] {
        &relative.table.row(self.head)[self.column(relative, first)..]
    }
}

/// Whether some entry is −∞; looks at all of them, a register at a time.
fn hides(bias: &[f32]) -> bool {
    bias.iter().fold(false, |hides, &b| hides | (b == f32::NEG_INFINITY))
}

impl<'a> Mask<'a> {
    /// Whether nothing but the reach hides keys.
    pub(super) fn is_none(&self) -> bool {
        self.keys.is_none()
            && self.visible.is_none()
            && self.bias.is_none()
            && self.relative.is_none()
    }

    /// Shapes against the operands.
    #[track_caller]
    pub(super) fn check(&self, heads: usize, queries: usize, source: &Source<'_>) {
        let longest = source.extent().keys;
        match (self.keys, source) {
            (Some(keys), Source::Rows { k, .. }) => {
                assert_eq!(keys.len(), k.rows(), "key mask against the rows of K");
            }
            (Some(_), Source::Cache { .. }) => {
                panic!("a mask by row of K, and a cache without rows")
            }
            (None, _) => {}
        }
        if let Some(visible) = &self.visible {
            visible.check("boolean mask", heads, queries, longest);
        }
        if let Some(bias) = &self.bias {
            bias.check("bias", heads, queries, longest);
        }
        if let Some(relative) = &self.relative {
            source.iter().for_each(|sequence| relative.check(heads, &sequence));
        }
    }

    /// What a query sees, in keys counted from its base. See [`Mask::seen_through`].
    #[inline(always)]
    pub(super) fn seen(&self, query: &Query<'_>, visible: &mut [u8]) -> Seen {
        let first = query.sequence.first_for(query.index);
        let end = query.sequence.end_for(query.index);
        if first >= end {
            return [0, 0, 0];
        }
        let (first, end) = (first - query.base, end - query.base);
        if self.is_none() {
            [first, end, end - first]
        } else {
            self.seen_through(query, first, end, visible)
        }
    }

    /// What a query sees of the keys `first..end`. Writes 1 or 0 per key to `visible[first..end]`.
    #[inline(never)]
    fn seen_through(
        &self,
        query: &Query<'_>,
        first: usize,
        end: usize,
        visible: &mut [u8],
    ) -> Seen {
        let bias = self.bias.map(|bias| &query.entries(bias)[first..end]);
        let relative = self.relative.as_ref().map(|r| &query.relative(r, first)[..end - first]);
        let biases = [bias, relative];
        // Most biases hide nothing, and then there is nothing to mark.
        let open = self.keys.is_none() && self.visible.is_none();
        if open && !biases.iter().flatten().any(|bias| hides(bias)) {
            return [first, end, end - first];
        }
        let visible = &mut visible[first..end];
        match self.keys(query) {
            Some(keys) => {
                visible.iter_mut().zip(&keys[first..]).for_each(|(v, &key)| *v = u8::from(key));
            }
            None => visible.fill(1),
        }
        if let Some(mask) = self.visible(query) {
            visible.iter_mut().zip(&mask[first..]).for_each(|(v, &key)| *v &= u8::from(key));
        }
        for bias in biases.into_iter().flatten() {
            let sees = |&b: &f32| u8::from(b != f32::NEG_INFINITY);
            visible.iter_mut().zip(bias).for_each(|(v, b)| *v &= sees(b));
        }
        match visible.iter().position(|&v| v != 0) {
            Some(low) => {
                let high = visible.iter().rposition(|&v| v != 0).map_or(low, |last| last + 1);
                let count = visible[low..high].iter().map(|&v| usize::from(v)).sum();
                [first + low, first + high, count]
            }
            None => [0, 0, 0],
        }
    }

    /// The mask by row of K, from the query's base on.
    pub(super) fn keys(&self, query: &Query<'_>) -> Option<&'a [bool]> {
        self.keys.map(|keys| &keys[query.sequence.row + query.base..])
    }

    /// The boolean mask, from the query's base on.
    pub(super) fn visible(&self, query: &Query<'_>) -> Option<&'a [bool]> {
        self.visible.map(|visible| query.entries(visible))
    }

    /// What is added to the scores of keys `first..end`, indexed by key: a row that is there, or is
    /// written to `row[first..end]`.
    pub(super) fn added<'r>(
        &self,
        query: &Query<'_>,
        [first, end, _]: Seen,
        row: &'r mut [f32],
    ) -> Option<&'r [f32]>
    where
        'a: 'r,
    {
        let bias = self.bias.map(|bias| query.entries(bias));
        let Some(relative) = &self.relative else { return bias };
        let relative = query.relative(relative, first);
        let to = &mut row[first..end];
        match bias {
            None => to.copy_from_slice(&relative[..to.len()]),
            Some(bias) => {
                // −∞ + ∞, or a NaN beside −∞, would make a hidden key a visible NaN; two that do not hide come to −∞
                // when they overflow.
                let low = f32::NEG_INFINITY;
                for (to, (&r, &b)) in to.iter_mut().zip(relative.iter().zip(&bias[first..])) {
                    let (hidden, sum) = (r == low || b == low, r + b);
                    *to = match hidden {
                        true => low,
                        false if sum == low => f32::MIN,
                        false => sum,
                    };
                }
            }
        }
        Some(row)
    }
}
