//! Fused attention: softmax(scale·Q·Kᵀ + bias)·V per head, without the t × s matrix.
//!
//! ("Attention Is All You Need", §3.2.1 equation 1, for all heads of §3.2.2 at once.)

use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::scratch::{Need, Stack};
use crate::view::{Mat, MatMut};
use std::ops::Range;

/// Widths and number of the heads, and the factor of the scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Heads of the queries, h.
    pub heads: usize,
    /// Heads of keys and values, a divisor of `heads`: head i reads head ⌊i / (heads / kv_heads)⌋.
    pub kv_heads: usize,
    /// Columns of a head in Q and K.
    pub d_k: usize,
    /// Columns of a head in V and in the result.
    pub d_v: usize,
    /// Factor of the dot products, 1/√d_k in the paper.
    pub scale: f32,
}

/// One sequence of a ragged batch: which rows of Q attend to which rows of K and V.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Rows of Q and of the result. In a list of segments these ascend without overlap.
    pub queries: Range<usize>,
    /// Rows of K and V. Segments may share them.
    pub keys: Range<usize>,
    /// With a diagonal, query i of the segment sees the segment's keys j ≤ i + diagonal. Any number
    /// is allowed: with t queries and s keys, 0 aligns the first rows, s − t the last ones.
    pub diagonal: Option<isize>,
}

impl Segment {
    /// Every query sees every key.
    pub fn full(queries: Range<usize>, keys: Range<usize>) -> Segment {
        Segment { queries, keys, diagonal: None }
    }

    /// The last query sees all keys, each earlier one sees one key less (aligned at the end):
    /// query i of t sees keys j ≤ i + s − t.
    pub fn causal(queries: Range<usize>, keys: Range<usize>) -> Segment {
        let diagonal = keys.len() as isize - queries.len() as isize;
        Segment { queries, keys, diagonal: Some(diagonal) }
    }
}

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
            PerHead::Shared(mat) => (mat, queries),
            PerHead::Each(mat) => (mat, heads * queries),
        };
        assert!(
            mat.rows() == rows && mat.cols() >= longest,
            "{what} of {}×{}, expected {rows} rows and at least {longest} columns \
             ({heads} heads, {queries} queries)",
            mat.rows(),
            mat.cols()
        );
    }
}

/// What hides keys, and what is added to scores. All parts combine, also with the segments' diagonals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mask<'a> {
    /// By row of K: `true` = visible.
    pub keys: Option<&'a [bool]>,
    /// By query and key: `true` = visible.
    pub visible: Option<PerHead<'a, bool>>,
    /// Added to the scaled scores. Only −∞ hides a key; any other number, however low, is arithmetic.
    pub bias: Option<PerHead<'a, f32>>,
}

/// Attention of every head over every segment:
///
/// out\[i\] ← Σ_j p_ij·v_j / Σ_j p_ij with p_ij = exp(s_ij − max_j s_ij), s_ij = scale·(q_i · k_j) + bias_ij,
///
/// over the keys j that query i sees. A query that sees none gives zeros. Keys it does not see never
/// influence it, whatever they hold.
///
/// Shapes: `q` t×h·d_k, `k` s×h_kv·d_k, `v` s×h_kv·d_v, `out` t×h·d_v, over all segments together.
/// Rows of `out` that belong to no segment are left alone.
///
/// # Panics
/// When shapes, segments or masks do not fit together, or `stack` is smaller than [`attention_scratch`].
#[track_caller]
#[allow(clippy::too_many_arguments)]
pub fn attention(
    cpu: Cpu,
    par: Par<'_>,
    shape: &AttentionShape,
    q: Mat<'_>,
    k: Mat<'_>,
    v: Mat<'_>,
    segments: &[Segment],
    mask: &Mask<'_>,
    mut out: MatMut<'_>,
    stack: &mut Stack<'_>,
) {
    let _mode = FloatMode::default_scope();
    check(shape, q, k, v, segments, mask, &out);
    let _ = (cpu, par);
    let &AttentionShape { heads, kv_heads, d_k, d_v, scale } = shape;
    for segment in segments {
        let keys = segment.keys.len();
        let (scores, _) = stack.take::<f32>(keys);
        for (i, row) in segment.queries.clone().enumerate() {
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let query = &q.row(row)[head * d_k..][..d_k];
                let result = &mut out.row_mut(row)[head * d_v..][..d_v];
                let sees = |j: usize| {
                    segment.diagonal.is_none_or(|d| (j as isize).saturating_sub(d) <= i as isize)
                        && mask.keys.is_none_or(|keys| keys[segment.keys.start + j])
                        && mask.visible.is_none_or(|v| v.row(q.rows(), head, row)[j])
                        && mask
                            .bias
                            .is_none_or(|b| b.row(q.rows(), head, row)[j] != f32::NEG_INFINITY)
                };
                let mut max = f32::NEG_INFINITY;
                for (j, score) in scores.iter_mut().enumerate().filter(|(j, _)| sees(*j)) {
                    let key = &k.row(segment.keys.start + j)[kv_head * d_k..][..d_k];
                    *score =
                        query.iter().zip(key).fold(0.0, |sum, (q, k)| q.mul_add(*k, sum)) * scale;
                    if let Some(bias) = mask.bias {
                        *score += bias.row(q.rows(), head, row)[j];
                    }
                    max = max.max(*score);
                }
                let mut sum = 0.0;
                result.fill(0.0);
                for (j, score) in scores.iter().enumerate().filter(|(j, _)| sees(*j)) {
                    let p = libm::expf(*score - max);
                    sum += p;
                    let value = &v.row(segment.keys.start + j)[kv_head * d_v..][..d_v];
                    result.iter_mut().zip(value).for_each(|(out, v)| *out = p.mul_add(*v, *out));
                }
                if (0..keys).any(sees) {
                    result.iter_mut().for_each(|out| *out /= sum);
                }
            }
        }
    }
}

/// The longest segments of a call, or of all calls that one scratch memory is to serve.
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
        segments.iter().fold(AttentionExtent::default(), |extent, segment| AttentionExtent {
            queries: extent.queries.max(segment.queries.len()),
            keys: extent.keys.max(segment.keys.len()),
        })
    }
}

/// Scratch for [`attention()`] with up to `threads` workers over segments no longer than `extent`:
/// grows with `extent`, so that one memory serves all shorter calls too.
pub fn attention_scratch(
    cpu: Cpu,
    threads: usize,
    shape: &AttentionShape,
    extent: AttentionExtent,
) -> Need {
    let _ = (cpu, threads, shape);
    Need::of::<f32>(extent.keys)
}

#[track_caller]
fn check(
    shape: &AttentionShape,
    q: Mat<'_>,
    k: Mat<'_>,
    v: Mat<'_>,
    segments: &[Segment],
    mask: &Mask<'_>,
    out: &MatMut<'_>,
) {
    let &AttentionShape { heads, kv_heads, d_k, d_v, .. } = shape;
    assert!(
        (heads == 0 && kv_heads == 0) || (kv_heads > 0 && heads % kv_heads == 0),
        "{kv_heads} heads of keys do not divide {heads} heads of queries"
    );
    assert!(
        q.cols() == heads * d_k
            && k.cols() == kv_heads * d_k
            && v.cols() == kv_heads * d_v
            && k.rows() == v.rows()
            && out.rows() == q.rows()
            && out.cols() == heads * d_v,
        "attention of Q {}×{}, K {}×{}, V {}×{} into {}×{} does not fit {shape:?}",
        q.rows(),
        q.cols(),
        k.rows(),
        k.cols(),
        v.rows(),
        v.cols(),
        out.rows(),
        out.cols(),
    );
    // That query rows do not overlap is what makes the writes of different workers disjoint.
    let mut end = 0;
    for Segment { queries, keys, .. } in segments {
        assert!(
            end <= queries.start && queries.start <= queries.end && queries.end <= q.rows(),
            "queries {queries:?} after row {end} of {} rows",
            q.rows()
        );
        assert!(
            keys.start <= keys.end && keys.end <= k.rows(),
            "keys {keys:?} of {} rows",
            k.rows()
        );
        end = queries.end;
    }
    let longest = AttentionExtent::of(segments).keys;
    if let Some(keys) = mask.keys {
        assert_eq!(keys.len(), k.rows(), "key mask against the rows of K");
    }
    if let Some(visible) = &mask.visible {
        visible.check("boolean mask", heads, q.rows(), longest);
    }
    if let Some(bias) = &mask.bias {
        bias.check("bias", heads, q.rows(), longest);
    }
}
