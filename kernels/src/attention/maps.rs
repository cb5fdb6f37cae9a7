//! Where results go: the weighted values, and the weights themselves when somebody wants to look at them.

use super::mask::Seen;
use super::{AttentionShape, Source};
use crate::view::MatMut;

/// Attention maps: the weights p of some heads, each row summing to 1.
#[derive(Debug)]
pub struct Maps<'a> {
    /// The heads that are wanted, ascending.
    pub heads: &'a [usize],
    /// (heads wanted · rows of Q) × (keys of the longest segment or more): row = place in `heads` · (rows of Q) +
    /// row of Q, column = index of the key within its segment. Hidden keys and columns past a segment's keys
    /// become 0; rows of Q that belong to no segment are left alone.
    pub out: MatMut<'a>,
}

/// What a call writes. A matrix alone becomes one without maps.
#[derive(Debug)]
pub struct AttentionOutput<'a> {
    /// The weighted values, t × h·d_v.
    pub out: MatMut<'a>,
    /// The weights, when they are wanted. They cost one pass more over the rows of scores, and no bit of `out`.
    pub maps: Option<Maps<'a>>,
}

impl<'a> From<MatMut<'a>> for AttentionOutput<'a> {
    fn from(out: MatMut<'a>) -> AttentionOutput<'a> {
        AttentionOutput { out, maps: None }
    }
}

impl<'a> AttentionOutput<'a> {
    /// The same with maps.
    pub fn with_maps(self, maps: Maps<'a>) -> AttentionOutput<'a> {
        AttentionOutput { maps: Some(maps), ..self }
    }
}

/// [`Maps`] as workers see them.
pub(super) struct MapRows<'a> {
    heads: &'a [usize],
    queries: usize,
    first: *mut f32,
    ld: usize,
    cols: usize,
}

impl<'a> MapRows<'a> {
    /// Checks the shape.
    #[track_caller]
    pub(super) fn new(
        maps: Maps<'a>,
        shape: &AttentionShape,
        queries: usize,
        source: &Source<'_>,
    ) -> MapRows<'a> {
        let Maps { heads, mut out } = maps;
        assert!(
            heads.is_sorted_by(|a, b| a < b) && heads.last().is_none_or(|&head| head < shape.heads),
            "maps of the heads {heads:?} of {}",
            shape.heads
        );
        let longest = source.extent().keys;
        assert!(
            Some(out.rows()) == heads.len().checked_mul(queries) && out.cols() >= longest,
            "maps of {}×{} for {} heads of {queries} queries and up to {longest} keys",
            out.rows(),
            out.cols(),
            heads.len()
        );
        let (ld, cols, first) = (out.stride(), out.cols(), out.as_mut_ptr());
        MapRows { heads, queries, first, ld, cols }
    }

    /// Writes a row, when its head is wanted: the weights of the keys from `base` on that the query sees,
    /// divided by their sum.
    ///
    /// # Safety
    /// `row` is a row of Q that nobody else handles for this head.
    pub(super) unsafe fn write(
        &self,
        (head, row): (usize, usize),
        base: usize,
        [first, end, count]: Seen,
        weights: &[f32],
        sum: f32,
    ) {
        let Ok(place) = self.heads.binary_search(&head) else { return };
        assert!(row < self.queries);
        // SAFETY: a row of the matrix, whose shape was checked; ours by the caller's promise.
        let to = unsafe {
            let first = self.first.add((place * self.queries + row) * self.ld);
            std::slice::from_raw_parts_mut(first, self.cols)
        };
        to.fill(0.0);
        if count > 0 {
            for (to, &weight) in to[base + first..base + end].iter_mut().zip(&weights[first..end]) {
                // −0 marks a hidden key.
                *to = if weight.to_bits() == (-0f32).to_bits() { 0.0 } else { weight / sum };
            }
        }
    }
}
