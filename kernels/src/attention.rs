//! Fused attention: softmax(scale·Q·Kᵀ + bias)·V per head, without the t × s matrix.
//!
//! ("Attention Is All You Need", §3.2.1 equation 1, for all heads of §3.2.2 at once.)
//!
//! A worker takes some queries of a sequence with all heads of a group and packs the group's keys (and, when they
//! are met often enough, its values) into panels; in a [`KvCache`] they lie ready. Then, block of queries by block:
//! whole rows of scores from the GEMM kernel, block × s of them; per row the scale, the cap, the bias, the true
//! maximum, the exponentials and their sum in 32 lanes; the weighted values, unnormalised, as one chain of
//! multiply-adds per element in the order of the keys; one division. No block size, and no split of the work, is
//! part of that definition, so none shows in the bits.
//!
//! Hidden keys are skipped, not multiplied by zero. Keys that no query of a block or a tile sees are not visited;
//! those that only some rows of a tile see, a few along a diagonal, carry a mark in the weights, the sign
//! of −0, by which a kernel passes them over.

pub(crate) mod backward;
mod block;
mod blocking;
mod cache;
mod driver;
mod keys;
mod maps;
mod mask;
mod need;
mod parts;
mod score_rows;
mod segment;
mod spread;

pub use backward::{
    AttentionGradients, BackwardBlocking, attention_backward, attention_backward_blocked,
    attention_backward_blocked_scratch, attention_backward_scratch,
};
pub use blocking::Blocking;
pub use cache::{KvCache, PAGE};
pub use maps::{AttentionOutput, Maps};
pub use mask::{Mask, PerHead, PerHeadMut, Relative};
pub use segment::{AttentionExtent, CachedSegment, Reach, Segment, Source};

use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::scratch::{Need, Stack};
use crate::view::Mat;
use block::{Call, Operands};
use maps::MapRows;
use segment::STEP;

/// Widths and number of the heads, and what becomes of a dot product.
///
/// ```
/// use headrow_kernels::AttentionShape;
/// // Eight heads of queries, two of which share each head of keys and values.
/// let shape = AttentionShape::new(8, 4, 64, 64);
/// assert_eq!(shape.scale, 0.125);
/// assert_eq!(shape.with_softcap(50.0).softcap, Some(50.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
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
    /// With a cap c, the scaled dot product x becomes c·tanh(x/c), before anything is added to it.
    pub softcap: Option<f32>,
}

impl AttentionShape {
    /// Heads with the factor 1/√d_k and no cap.
    pub fn new(heads: usize, kv_heads: usize, d_k: usize, d_v: usize) -> AttentionShape {
        let scale = 1.0 / (d_k.max(1) as f32).sqrt();
        AttentionShape { heads, kv_heads, d_k, d_v, scale, softcap: None }
    }

    /// The same with another factor.
    pub fn with_scale(self, scale: f32) -> AttentionShape {
        AttentionShape { scale, ..self }
    }

    /// The same with a cap.
    ///
    /// # Panics
    /// When it is not a positive number.
    #[track_caller]
    pub fn with_softcap(self, cap: f32) -> AttentionShape {
        assert!(cap > 0.0 && cap < f32::INFINITY, "scores capped at {cap}");
        AttentionShape { softcap: Some(cap), ..self }
    }
}

/// Attention of every head over every segment:
///
/// out\[i\] ← Σ_j p_ij·v_j / Σ_j p_ij with p_ij = exp(s_ij − max_j s_ij), s_ij = scale·(q_i · k_j) + bias_ij,
///
/// over the keys j that query i sees; with a cap c, c·tanh(x/c) stands for x = scale·(q_i · k_j). A query that sees
/// none gives zeros. Keys it does not see never influence it, whatever they hold.
///
/// Shapes: `q` t×h·d_k, `k` s×h_kv·d_k, `v` s×h_kv·d_v, `out` t×h·d_v, over all segments together.
/// Rows of `out` that belong to no segment are left alone.
///
/// NaN or +∞ among the visible scores of a row, or −∞ alone, makes that row NaN. A visible key of weight 0 is a term
/// like others: 0·∞ is NaN.
///
/// Error, to first order in u = 2⁻²⁴: (4·max_j δ_j + 2(s + 16)·u)·Σ_j p_j|v_j| with normalised p and
/// δ_j = (d_k + 4)·u·(|scale|·Σ|q·k_j| + |bias_j|), with d_k + 12 for d_k under a cap. Time
/// O(h·n·(d_k + d_v)) for n pairs of a query and a key that it sees (of a band: those in it); memory for a block of
/// scores and one group's keys and values per worker.
///
/// # Panics
/// When shapes, segments or masks do not fit together, or `stack` is smaller than [`attention_scratch`].
///
/// ```
/// use headrow_kernels::{AttentionExtent, AttentionShape, Cpu, Mask, Mat, MatMut, Par, Scratch, Segment};
/// use headrow_kernels::{attention, attention_scratch};
/// // One head of width 1; three tokens, of which each sees those up to itself.
/// let (q, k, v) = ([0.0; 3], [1.0; 3], [3.0, 5.0, 7.0]);
/// let [q, k, v] = [&q, &k, &v].map(|x| Mat::new(x, 3, 1));
/// let (cpu, shape) = (Cpu::detect(), AttentionShape::new(1, 1, 1, 1));
/// let segments = [Segment::causal(0..3, 0..3)];
/// let need = attention_scratch(cpu, 1, &shape, AttentionExtent::of(&segments));
/// let (mut scratch, mut out) = (Scratch::new(need), [0.0; 3]);
/// let result = MatMut::new(&mut out, 3, 1);
/// attention(cpu, Par::SERIAL, &shape, q, k, v, &segments, &Mask::default(), result, &mut scratch.stack());
/// // Equal scores: the means of 3, of 3 and 5, of all.
/// assert_eq!(out, [3.0, 4.0, 5.0]);
/// ```
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of the operation")]
pub fn attention<'a>(
    cpu: Cpu,
    par: Par<'_>,
    shape: &AttentionShape,
    q: Mat<'_>,
    k: Mat<'_>,
    v: Mat<'_>,
    segments: &[Segment],
    mask: &Mask<'_>,
    out: impl Into<AttentionOutput<'a>>,
    stack: &mut Stack<'_>,
) {
    attend(cpu, par, None, shape, q, Source::rows(k, v, segments), mask, out.into(), stack);
}

/// [`attention()`] over the keys and values in a cache: the same bits as over rows that hold the same. Shapes as
/// there, with no rows of K and V, and so no mask by row of K.
///
/// # Panics
/// When shapes, segments, pages or masks do not fit together, the cache was made for panels of another width, or
/// `stack` is smaller than [`attention_cached_scratch`].
///
/// ```
/// use headrow_kernels::{AttentionExtent, AttentionShape, CachedSegment, Cpu, KvCache, Mask, Mat, MatMut, Par, Scratch};
/// use headrow_kernels::{attention_cached, attention_cached_scratch};
/// let (cpu, shape) = (Cpu::detect(), AttentionShape::new(1, 1, 1, 1));
/// // A sequence whose tokens lie in page 4 of 8: three of them, then one query that sees all.
/// let mut cache = KvCache::try_new(cpu, 1, 1, 1, 8).expect("memory for 8 pages");
/// let (k, v) = ([1.0; 3], [3.0, 5.0, 7.0]);
/// cache.write(Par::SERIAL, &[4], 0, Mat::new(&k, 3, 1), Mat::new(&v, 3, 1));
/// let segments = [CachedSegment::causal(0..1, &[4], 3)];
/// let need = attention_cached_scratch(cpu, 1, &shape, AttentionExtent::of_cached(&segments));
/// let (mut scratch, mut out) = (Scratch::new(need), [0.0]);
/// let (q, result, mask) = (Mat::new(&[0.0], 1, 1), MatMut::new(&mut out, 1, 1), Mask::default());
/// attention_cached(cpu, Par::SERIAL, &shape, q, &cache, &segments, &mask, result, &mut scratch.stack());
/// assert_eq!(out, [5.0]);
/// ```
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of the operation")]
pub fn attention_cached<'a>(
    cpu: Cpu,
    par: Par<'_>,
    shape: &AttentionShape,
    q: Mat<'_>,
    cache: &KvCache,
    segments: &[CachedSegment<'_>],
    mask: &Mask<'_>,
    out: impl Into<AttentionOutput<'a>>,
    stack: &mut Stack<'_>,
) {
    attend(cpu, par, None, shape, q, Source::cache(cache, segments), mask, out.into(), stack);
}

/// [`attention()`] and [`attention_cached`] with given block sizes: for tests, which inject tiny ones so that every
/// edge occurs, and for tuning. The result's bits do not depend on them.
///
/// # Panics
/// As these, with [`attention_blocked_scratch`].
///
/// ```
/// use headrow_kernels::attention::{Blocking, Source, attention_blocked, attention_blocked_scratch};
/// use headrow_kernels::{AttentionExtent, AttentionShape, Cpu, Mask, Mat, MatMut, Par, Scratch, Segment};
/// let (q, k, v) = ([0.0; 3], [1.0; 3], [3.0, 5.0, 7.0]);
/// let [q, k, v] = [&q, &k, &v].map(|x| Mat::new(x, 3, 1));
/// let (cpu, shape) = (Cpu::detect(), AttentionShape::new(1, 1, 1, 1));
/// let segments = [Segment::causal(0..3, 0..3)];
/// let source = Source::rows(k, v, &segments);
/// let blocking = Blocking { rows: 1, keys: 1, ..Blocking::new(cpu, 1, &shape, &source) };
/// let extent = AttentionExtent::of(&segments);
/// let mut scratch = Scratch::new(attention_blocked_scratch(cpu, &blocking, 1, &shape, extent));
/// let (mask, mut out) = (Mask::default(), [0.0; 3]);
/// let (to, stack) = (MatMut::new(&mut out, 3, 1), &mut scratch.stack());
/// attention_blocked(cpu, Par::SERIAL, &blocking, &shape, q, source, &mask, to, stack);
/// assert_eq!(out, [3.0, 4.0, 5.0]);
/// ```
#[expect(clippy::too_many_arguments, reason = "the operands of the operation")]
#[track_caller]
pub fn attention_blocked<'a>(
    cpu: Cpu,
    par: Par<'_>,
    blocking: &Blocking,
    shape: &AttentionShape,
    q: Mat<'_>,
    source: Source<'_>,
    mask: &Mask<'_>,
    out: impl Into<AttentionOutput<'a>>,
    stack: &mut Stack<'_>,
) {
    attend(cpu, par, Some(&blocking.checked()), shape, q, source, mask, out.into(), stack);
}

/// Checks the operands, chooses block sizes unless they are given, and runs.
#[expect(clippy::too_many_arguments, reason = "the operands of the operation")]
#[track_caller]
fn attend(
    cpu: Cpu,
    par: Par<'_>,
    blocking: Option<&Blocking>,
    shape: &AttentionShape,
    q: Mat<'_>,
    source: Source<'_>,
    mask: &Mask<'_>,
    to: AttentionOutput<'_>,
    stack: &mut Stack<'_>,
) {
    let _mode = FloatMode::default_scope();
    let AttentionOutput { mut out, maps } = to;
    check(cpu, shape, q, &source, (out.rows(), out.cols()));
    mask.check(shape.heads, q.rows(), &source);
    let maps = maps.map(|maps| MapRows::new(maps, shape, q.rows(), &source));
    if q.rows() == 0 || shape.heads == 0 || (shape.d_v == 0 && maps.is_none()) {
        return;
    }
    let (ldo, out) = (out.stride(), out.as_mut_ptr());
    let operands = Operands { cpu, shape, q, mask };
    let call = Call { operands, source, out, ldo, maps, cancel: par.cancel() };
    match blocking {
        Some(blocking) => driver::run(&call, par, blocking, stack),
        None => {
            let par = par.limit(Blocking::workers(par.threads(), shape, &source));
            let blocking = Blocking::new(cpu, par.threads(), shape, &source);
            driver::run(&call, par, &blocking, stack);
        }
    }
}

/// Scratch for [`attention()`] with up to `threads` workers over segments no longer than `extent`:
/// grows with `extent`, so that one memory serves all shorter calls too.
///
/// # Panics
/// When the size overflows.
#[track_caller]
pub fn attention_scratch(
    cpu: Cpu,
    threads: usize,
    shape: &AttentionShape,
    extent: AttentionExtent,
) -> Need {
    need::scratch(cpu, None, threads, shape, extent, false)
}

/// Scratch for [`attention_cached`], as [`attention_scratch`]: less by the room for packed keys and values.
///
/// # Panics
/// When the size overflows.
#[track_caller]
pub fn attention_cached_scratch(
    cpu: Cpu,
    threads: usize,
    shape: &AttentionShape,
    extent: AttentionExtent,
) -> Need {
    need::scratch(cpu, None, threads, shape, extent, true)
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
    need::scratch(cpu, Some(&blocking.checked()), threads, shape, extent, false)
}

#[track_caller]
fn check(
    cpu: Cpu,
    shape: &AttentionShape,
    q: Mat<'_>,
    source: &Source<'_>,
    (out_rows, out_cols): (usize, usize),
) {
    let &AttentionShape { heads, kv_heads, d_k, d_v, .. } = shape;
    assert!(
        (heads == 0 && kv_heads == 0) || (kv_heads > 0 && heads % kv_heads == 0),
        "{kv_heads} heads of keys do not divide {heads} heads of queries"
    );
    // A product that overflows is no width: the kernels rely on these.
    let fits = |cols: usize, heads: usize, width| heads.checked_mul(width) == Some(cols);
    let source_fits = match source {
        Source::Rows { k, v, .. } => {
            fits(k.cols(), kv_heads, d_k) && fits(v.cols(), kv_heads, d_v) && k.rows() == v.rows()
        }
        Source::Cache { cache, .. } => {
            assert!(
                cache.nr() == cpu.table.gemm.nr,
                "{cache:?} in panels of {} keys, {cpu:?} wants {}",
                cache.nr(),
                cpu.table.gemm.nr
            );
            cache.shape() == (kv_heads, d_k, d_v)
        }
    };
    assert!(
        fits(q.cols(), heads, d_k)
            && source_fits
            && out_rows == q.rows()
            && fits(out_cols, heads, d_v),
        "attention of Q {}×{} over {} into {out_rows}×{out_cols} does not fit {shape:?}",
        q.rows(),
        q.cols(),
        source.describe(),
    );
    // That query rows do not overlap is what makes the writes of different workers disjoint.
    let mut end = 0;
    for sequence in source.iter() {
        let queries = sequence.start..sequence.end;
        assert!(
            end <= queries.start && queries.start <= queries.end && queries.end <= q.rows(),
            "queries {queries:?} after row {end} of {} rows",
            q.rows()
        );
        end = queries.end;
    }
    source.check_keys();
}
