//! Fused attention: softmax(scale·Q·Kᵀ + bias)·V per head, without the t × s matrix.
//!
//! ("Attention Is All You Need", §3.2.1 equation 1, for all heads of §3.2.2 at once.)
//!
//! A worker takes some queries of a sequence with all heads of a group and packs the group's keys (and, when
//! they are met often enough, its values) into panels. Then, block of queries by block: whole rows of scores from
//! the GEMM kernel, block × s of them; per row the scale, the bias, the true maximum, the exponentials and
//! their sum in 32 lanes; the weighted values, unnormalised, as one chain of multiply-adds per
//! element in the order of the keys; one division. No block size, and no split of the work, is part of that
//! definition, so none shows in the bits.
//!
//! Hidden keys are skipped, not multiplied by zero. Keys that no query of a block or a tile sees are not visited;
//! those that only some rows of a tile see, a few along a diagonal, carry a mark in the weights, the sign
//! of −0, by which a kernel passes them over.

mod block;
mod blocking;
mod driver;
mod keys;
mod mask;

pub use blocking::Blocking;

use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::scratch::{Need, Stack};
use crate::view::{Mat, MatMut};
use block::Call;
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
/// NaN or +∞ among the visible scores of a row, or −∞ alone, makes that row NaN. A visible key of weight 0 is a term
/// like others: 0·∞ is NaN.
///
/// Error, to first order in u = 2⁻²⁴: (4·max_j δ_j + 2(s + 16)·u)·Σ_j p_j|v_j| with normalised p and
/// δ_j = (d_k + 4)·u·(|scale|·Σ|q·k_j| + |bias_j|). Time O(h·t·s·(d_k + d_v)) over visible keys; memory
/// for a block of scores and one group's keys and values per worker.
///
/// # Panics
/// When shapes, segments or masks do not fit together, or `stack` is smaller than [`attention_scratch`].
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of the operation")]
pub fn attention(
    cpu: Cpu,
    par: Par<'_>,
    shape: &AttentionShape,
    q: Mat<'_>,
    k: Mat<'_>,
    v: Mat<'_>,
    segments: &[Segment],
    mask: &Mask<'_>,
    out: MatMut<'_>,
    stack: &mut Stack<'_>,
) {
    let par = par.limit(Blocking::workers(par.threads(), shape, segments));
    let blocking = Blocking::new(cpu, par.threads(), shape, segments);
    attention_blocked(cpu, par, &blocking, shape, q, k, v, segments, mask, out, stack);
}

/// [`attention()`] with given block sizes: for tests, which inject tiny ones so that every edge occurs, and
/// for tuning. The result's bits do not depend on them.
///
/// # Panics
/// As [`attention()`], with [`attention_blocked_scratch`].
#[expect(clippy::too_many_arguments, reason = "the operands of the operation")]
#[track_caller]
pub fn attention_blocked(
    cpu: Cpu,
    par: Par<'_>,
    blocking: &Blocking,
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
    if q.rows() == 0 || shape.heads * shape.d_v == 0 {
        return;
    }
    let (ldo, out) = (out.stride(), out.as_mut_ptr());
    let call = Call { cpu, shape, q, k, v, mask, out, ldo };
    driver::run(&call, par, &blocking.checked(), segments, stack);
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
#[track_caller]
pub fn attention_scratch(
    cpu: Cpu,
    threads: usize,
    shape: &AttentionShape,
    extent: AttentionExtent,
) -> Need {
    driver::scratch(cpu, None, threads, shape, extent)
}

/// The scratch memory of [`attention_blocked`] with up to `threads` workers.
///
/// # Panics
/// When the size overflows.
#[track_caller]
pub fn attention_blocked_scratch(
    cpu: Cpu,
    blocking: &Blocking,
    threads: usize,
    shape: &AttentionShape,
    extent: AttentionExtent,
) -> Need {
    driver::scratch(cpu, Some(&blocking.checked()), threads, shape, extent)
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
    // A product that overflows is no width: the kernels rely on these.
    let fits = |cols: usize, heads: usize, width| heads.checked_mul(width) == Some(cols);
    assert!(
        fits(q.cols(), heads, d_k)
            && fits(k.cols(), kv_heads, d_k)
            && fits(v.cols(), kv_heads, d_v)
            && k.rows() == v.rows()
            && out.rows() == q.rows()
            && fits(out.cols(), heads, d_v),
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
