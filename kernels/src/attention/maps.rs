//! Where results go: the weighted values, and the weights themselves when somebody wants to look at them.

use super::mask::Seen;
use super::{AttentionShape, Source};
use crate::view::MatMut;

/// Attention maps: the weights p of some heads, each row summing to 1.
///
/// ```
/// use headrow_kernels::{AttentionExtent, AttentionOutput, AttentionShape, Cpu, Maps, Mask, Mat, MatMut};
/// use headrow_kernels::{Par, Scratch, Segment, attention, attention_scratch};
/// // Two tokens with equal scores, the first of which does not see the second.
/// let (q, k, v) = ([0.0; 2], [1.0; 2], [3.0, 5.0]);
/// let [q, k, v] = [&q, &k, &v].map(|x| Mat::new(x, 2, 1));
/// let (cpu, shape) = (Cpu::detect(), AttentionShape::new(1, 1, 1, 1));
/// let segments = [Segment::causal(0..2, 0..2)];
/// let need = attention_scratch(cpu, 1, &shape, AttentionExtent::of(&segments));
/// let (mut scratch, mut out, mut weights) = (Scratch::new(need), [0.0; 2], [0.0; 4]);
/// let maps = Maps { heads: &[0], out: MatMut::new(&mut weights, 2, 2) };
/// let to = AttentionOutput::from(MatMut::new(&mut out, 2, 1)).with_maps(maps);
/// let (mask, stack) = (Mask::default(), &mut scratch.stack());
/// attention(cpu, Par::SERIAL, &shape, q, k, v, &segments, &mask, to, stack);
/// assert_eq!(weights, [1.0, 0.0, 0.5, 0.5]);
/// ```
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
