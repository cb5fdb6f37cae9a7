//! The gradients of attention: the way back through equation 1, for all heads at once.
//!
//! With x = scale·q·k, s = x or c·tanh(x/c) under a cap c, and p = softmax(s + bias):
//!
//! - dV_j = Σ_i p_ij·dO_i
//! - dP_ij = dO_i·V_j, and δ_i = Σ_j p_ij·dP_ij
//! - dS_ij = p_ij·(dP_ij − δ_i), which is the gradient of the bias too
//! - dX_ij = dS_ij·(1 − (s_ij/c)²)
//! - dQ_i = scale·Σ_j dX_ij·K_j, dK_j = scale·Σ_i dX_ij·Q_i
//!
//! No weight is kept from the forward pass: a block of queries computes its whole rows of them again, with the
//! forward's bits. (δ is also dO_i·O_i: Dao et al., "FlashAttention", 2022, appendix B.4. But where one key has all
//! the weight, dP_ij − δ_i is 0, and only the sum of the very dP_ij says so: the product of rows leaves a rounding,
//! which large keys then multiply.) A unit of work is a sequence with one head of keys and values: it packs these
//! once, and adds its queries' parts to dK and dV, head by head of the group, block by block, each of them a
//! continued chain of multiply-adds.
//!
//! A pair that is hidden takes no part. Within the keys that a block visits it carries the mark −0 in the rows of p
//! and dX. While all its operands are finite, −0 times them changes at most the sign of a zero, and the results, in
//! which −0 becomes +0, do not show it; else the products pass marks over, as those of the forward do.

mod row;
mod unit;

pub(crate) use row::{Part, Weighed, finite_kernel, gradient_kernel, scale_kernel};

use super::block::Operands;
use super::blocking::Blocking;
use super::segment::{Segment, Sequence};
use super::{AttentionExtent, AttentionShape, Mask, PerHead, PerHeadMut, Source};
use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::scratch::{Need, Stack};
use crate::view::{Mat, MatMut};
use std::ops::Range;
use unit::Call;

/// Where the gradients of [`attention_backward`] go.
#[derive(Debug)]
pub struct AttentionGradients<'a> {
    to: Layout<'a>,
    relative: Option<MatMut<'a>>,
    bias: Option<PerHeadMut<'a>>,
}

#[derive(Debug)]
enum Layout<'a> {
    Apart { dq: MatMut<'a>, dk: MatMut<'a>, dv: MatMut<'a> },
    SideBySide(MatMut<'a>),
    WithSource { dq: MatMut<'a>, d_kv: MatMut<'a> },
}

impl<'a> From<Layout<'a>> for AttentionGradients<'a> {
    fn from(to: Layout<'a>) -> AttentionGradients<'a> {
        AttentionGradients { to, relative: None, bias: None }
    }
}

impl<'a> AttentionGradients<'a> {
    /// Three matrices, shaped as Q, K and V.
    pub fn new(dq: MatMut<'a>, dk: MatMut<'a>, dv: MatMut<'a>) -> AttentionGradients<'a> {
        AttentionGradients::from(Layout::Apart { dq, dk, dv })
    }

    /// The columns \[Q K V\] of one matrix, as one projection of the same rows makes them.
    pub fn side_by_side(d_qkv: MatMut<'a>) -> AttentionGradients<'a> {
        AttentionGradients::from(Layout::SideBySide(d_qkv))
    }

    /// Those of Q, and the columns \[K V\] of another matrix, as queries over a source have them.
    pub fn with_source(dq: MatMut<'a>, d_kv: MatMut<'a>) -> AttentionGradients<'a> {
        AttentionGradients::from(Layout::WithSource { dq, d_kv })
    }

    /// The same with those of the table of [`Mask::relative`], heads × distances, which are added to what is there.
    pub fn with_relative(self, d_table: MatMut<'a>) -> AttentionGradients<'a> {
        AttentionGradients { relative: Some(d_table), ..self }
    }

    /// The same with those of [`Mask::bias`], laid out as that is, which are added to what is there.
    pub fn with_bias(self, d_bias: PerHeadMut<'a>) -> AttentionGradients<'a> {
        AttentionGradients { bias: Some(d_bias), ..self }
    }

    /// Of Q, K and V.
    #[track_caller]
    fn places(&mut self, shape: &AttentionShape, t: usize, s: usize) -> [Place; 3] {
        let [q, k, v] =
            [shape.heads * shape.d_k, shape.kv_heads * shape.d_k, shape.kv_heads * shape.d_v];
        let expect = |what: &str, mat: &MatMut<'_>, rows: usize, cols: usize| {
            let (found_rows, found) = (mat.rows(), mat.cols());
            assert!(
                (found_rows, found) == (rows, cols),
                "{what} of {found_rows}×{found}, expected {rows}×{cols} for {shape:?}"
            );
        };
        match &mut self.to {
            Layout::Apart { dq, dk, dv } => {
                expect("gradient of Q", dq, t, q);
                expect("gradient of K", dk, s, k);
                expect("gradient of V", dv, s, v);
                [Place::new(dq, 0), Place::new(dk, 0), Place::new(dv, 0)]
            }
            Layout::SideBySide(all) => {
                assert!(t == s, "gradients side by side of {t} queries and {s} keys");
                expect("gradient of [Q K V]", all, t, q + k + v);
                [0, q, q + k].map(|column| Place::new(all, column))
            }
            Layout::WithSource { dq, d_kv } => {
                expect("gradient of Q", dq, t, q);
                expect("gradient of [K V]", d_kv, s, k + v);
                [Place::new(dq, 0), Place::new(d_kv, 0), Place::new(d_kv, k)]
            }
        }
    }

    /// Of what is added to scores, which the mask must have.
    #[track_caller]
    fn added(&mut self, mask: &Mask<'_>) -> Added {
        let relative = self.relative.as_mut().map(|d_table| {
            let found = (d_table.rows(), d_table.cols());
            let table =
                mask.relative.map(|relative| (relative.table.rows(), relative.table.cols()));
            assert!(Some(found) == table, "gradient of a table {found:?} for one of {table:?}");
            Place::new(d_table, 0)
        });
        let (shared, d_bias) = match &mut self.bias {
            None => return Added { relative, bias: None, shared: false },
            Some(PerHeadMut::Shared(d_bias)) => (true, d_bias),
            Some(PerHeadMut::Each(d_bias)) => (false, d_bias),
        };
        let found = (shared, d_bias.rows(), d_bias.cols());
        let bias = mask.bias.map(|bias| match bias {
            PerHead::Shared(bias) => (true, bias.rows(), bias.cols()),
            PerHead::Each(bias) => (false, bias.rows(), bias.cols()),
        });
        assert!(
            Some(found) == bias,
            "gradient of a bias (shared, rows, columns) {found:?} for one of {bias:?}"
        );
        Added { relative, bias: Some(Place::new(d_bias, 0)), shared }
    }
}

/// The gradients of what is added to scores.
#[derive(Clone, Copy)]
struct Added {
    relative: Option<Place>,
    bias: Option<Place>,
    /// Whether the heads share the bias.
    shared: bool,
}

/// A matrix that workers write to in disjoint parts.
#[derive(Clone, Copy)]
struct Place {
    base: *mut f32,
    ld: usize,
}

impl Place {
    /// The columns of a matrix from one on.
    fn new(mat: &mut MatMut<'_>, column: usize) -> Place {
        // Wrapping, since a matrix without elements has none to point at.
        Place { ld: mat.stride(), base: mat.as_mut_ptr().wrapping_add(column) }
    }

    /// Address of an element.
    fn at(self, row: usize, column: usize) -> *mut f32 {
        self.base.wrapping_add(row * self.ld + column)
    }

    /// Columns of some rows.
    fn part(self, rows: Range<usize>, column: usize, cols: usize) -> Part {
        let first = self.at(rows.start, column);
        Part { first, rows: rows.len(), cols, ld: self.ld }
    }

    /// A part of a row.
    ///
    /// # Safety
    /// It lies in the matrix, which is borrowed for `'r`, and nobody else uses it meanwhile.
    unsafe fn row<'r>(self, row: usize, column: usize, len: usize) -> &'r mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(row, column), len) }
    }
}

/// How a unit of work is cut into blocks for the caches. No field changes a bit of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackwardBlocking {
    /// Queries whose whole rows of scores are in memory at a time.
    pub rows: usize,
    /// Keys that meet a block of queries before the next ones do.
    pub keys: usize,
    /// From this many rows on (queries × heads of a group), keys are copied into panels once more, as values.
    pub pack_keys: usize,
    /// From this many keys on, the rows of Q and of dO of a block are copied side by side.
    pub copy_rows: usize,
}

/// Rows of a block, if the kernel's tiles divide it: products over the queries of a block store and load their sums
/// once for so many steps, and twice as many were no faster.
const ROWS: usize = 48;

impl BackwardBlocking {
    /// The sizes that [`attention_backward`] uses.
    pub fn new(cpu: Cpu) -> BackwardBlocking {
        let mr = cpu.table.gemm.mr;
        BackwardBlocking { rows: ROWS / mr * mr, keys: 256, pack_keys: 4 * mr, copy_rows: 96 }
    }

    /// The same with every size at least 1.
    fn checked(self) -> BackwardBlocking {
        BackwardBlocking { rows: self.rows.max(1), keys: self.keys.max(1), ..self }
    }
}

/// The gradients of [`attention()`](super::attention()) for its operands, from those for its result:
///
/// dV_j = Σ_i p_ij·dO_i, dQ_i = scale·Σ_j dX_ij·K_j, dK_j = scale·Σ_i dX_ij·Q_i,
///
/// with dX_ij = p_ij·(dP_ij − Σ_l p_il·dP_il), dP_ij = dO_i·V_j, times 1 − (s_ij/c)² under a cap c; the sums of dK
/// and dV go over the heads that share a head of keys, then over the queries, both ascending. A bias gets dX_ij
/// without that factor, head by head where they share it, and a table of relative biases, at each distance, the sum
/// of that over the pairs at that distance, segment by segment; both are added to what is there.
///
/// `q`, `k`, `v`, `segments` and `mask` as the forward had them; `d_out` is the gradient for its result, t×h·d_v.
/// The gradients are replaced in the rows that segments name; other rows are left alone. What is hidden takes no
/// part, whatever it holds: a key that no query sees and a query that sees no key get zeros.
///
/// A NaN or ∞ reaches what depends on it and nothing else: in K_j or V_j the queries that see key j, and what those
/// reach.
///
/// Error: that of the weights, (4·max_j ε_j + 2(s + 17)·u) relative to each p_ij, with ε_j the bound of a score as
/// in [`attention()`](super::attention()), carried through the sums above, each of which adds at most (terms + 2)·u
/// times the sum of its terms' absolute values;
/// [`reference::attention::attention_backward`](crate::reference::attention::attention_backward) writes it out.
/// Five products of h·n·d multiply-adds for n pairs of a query and a key that it sees; memory for blocks of whole
/// rows of scores and one head's keys and values, per worker.
///
/// # Panics
/// When shapes, segments or masks do not fit together, keys of the segments do not ascend without overlap, or
/// `stack` is smaller than [`attention_backward_scratch`].
///
/// ```
/// use headrow_kernels::{AttentionExtent, AttentionGradients, AttentionShape, Cpu, Mask, Mat, MatMut, Par};
/// use headrow_kernels::{Scratch, Segment, attention_backward, attention_backward_scratch};
/// // One query over two keys that weigh 1/2 each.
/// let (q, k, v, d_out) = ([0.0], [1.0, 1.0], [3.0, 5.0], [1.0]);
/// let [q, d_out] = [&q, &d_out].map(|x| Mat::new(x, 1, 1));
/// let [k, v] = [&k, &v].map(|x| Mat::new(x, 2, 1));
/// let (cpu, par, shape) = (Cpu::detect(), Par::SERIAL, AttentionShape::new(1, 1, 1, 1));
/// let (segments, mask) = ([Segment::full(0..1, 0..2)], Mask::default());
/// let need = attention_backward_scratch(cpu, 1, &shape, AttentionExtent::of(&segments));
/// let (mut scratch, mut dq, mut dk, mut dv) = (Scratch::new(need), [9.0], [9.0; 2], [9.0; 2]);
/// let (dq_to, dk_to) = (MatMut::new(&mut dq, 1, 1), MatMut::new(&mut dk, 2, 1));
/// let to = AttentionGradients::new(dq_to, dk_to, MatMut::new(&mut dv, 2, 1));
/// let stack = &mut scratch.stack();
/// attention_backward(cpu, par, &shape, q, k, v, d_out, &segments, &mask, to, stack);
/// // dS = ½·(3 − 4) and ½·(5 − 4): dQ is their sum times equal keys, dK is theirs times a query of 0.
/// assert_eq!((dq, dk, dv), ([0.0], [0.0, 0.0], [0.5, 0.5]));
/// ```
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of the operation")]
pub fn attention_backward(
    cpu: Cpu,
    par: Par<'_>,
    shape: &AttentionShape,
    q: Mat<'_>,
    k: Mat<'_>,
    v: Mat<'_>,
    d_out: Mat<'_>,
    segments: &[Segment],
    mask: &Mask<'_>,
    gradients: AttentionGradients<'_>,
    stack: &mut Stack<'_>,
) {
    let blocking = BackwardBlocking::new(cpu);
    let operands = Operands { cpu, shape, q, mask };
    let saved = Saved { k, v, d_out };
    differentiate(operands, saved, par, &blocking, segments, gradients, stack);
}

/// [`attention_backward`] with given block sizes: for tests, which inject tiny ones so that every edge occurs, and for
/// tuning.
///
/// # Panics
/// As that, with [`attention_backward_blocked_scratch`].
///
/// ```
/// use headrow_kernels::{AttentionExtent, AttentionGradients, AttentionShape, Cpu, Mask, Mat, MatMut, Par};
/// use headrow_kernels::attention::{BackwardBlocking, attention_backward_blocked, attention_backward_blocked_scratch};
/// use headrow_kernels::{Scratch, Segment};
/// // One query over two keys that weigh 1/2 each.
/// let (q, k, v, d_out) = ([0.0], [1.0, 1.0], [3.0, 5.0], [1.0]);
/// let [q, d_out] = [&q, &d_out].map(|x| Mat::new(x, 1, 1));
/// let [k, v] = [&k, &v].map(|x| Mat::new(x, 2, 1));
/// let (cpu, par, shape) = (Cpu::detect(), Par::SERIAL, AttentionShape::new(1, 1, 1, 1));
/// let (segments, mask) = ([Segment::full(0..1, 0..2)], Mask::default());
/// let mut blocking = BackwardBlocking::new(cpu);
/// blocking.keys = 1;
/// let extent = AttentionExtent::of(&segments);
/// let need = attention_backward_blocked_scratch(cpu, &blocking, 1, &shape, extent);
/// let (mut scratch, mut dq, mut dk, mut dv) = (Scratch::new(need), [9.0], [9.0; 2], [9.0; 2]);
/// let (dq_to, dk_to) = (MatMut::new(&mut dq, 1, 1), MatMut::new(&mut dk, 2, 1));
/// let to = AttentionGradients::new(dq_to, dk_to, MatMut::new(&mut dv, 2, 1));
/// let stack = &mut scratch.stack();
/// attention_backward_blocked(cpu, par, &blocking, &shape, q, k, v, d_out, &segments, &mask, to, stack);
/// assert_eq!((dq, dk, dv), ([0.0], [0.0, 0.0], [0.5, 0.5]));
/// ```
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of the operation")]
pub fn attention_backward_blocked(
    cpu: Cpu,
    par: Par<'_>,
    blocking: &BackwardBlocking,
    shape: &AttentionShape,
    q: Mat<'_>,
    k: Mat<'_>,
    v: Mat<'_>,
    d_out: Mat<'_>,
    segments: &[Segment],
    mask: &Mask<'_>,
    gradients: AttentionGradients<'_>,
    stack: &mut Stack<'_>,
) {
    let operands = Operands { cpu, shape, q, mask };
    let saved = Saved { k, v, d_out };
    differentiate(operands, saved, par, &blocking.checked(), segments, gradients, stack);
}

/// Scratch for [`attention_backward`] with up to `threads` workers over segments no longer than `extent`: grows with
/// `extent`, so that one memory serves all shorter calls too.
///
/// # Panics
/// When the size overflows.
#[track_caller]
pub fn attention_backward_scratch(
    cpu: Cpu,
    threads: usize,
    shape: &AttentionShape,
    extent: AttentionExtent,
) -> Need {
    let blocking = BackwardBlocking::new(cpu);
    attention_backward_blocked_scratch(cpu, &blocking, threads, shape, extent)
}

/// The scratch memory of [`attention_backward_blocked`] with up to `threads` workers.
///
/// # Panics
/// When the size overflows.
#[track_caller]
pub fn attention_backward_blocked_scratch(
    cpu: Cpu,
    blocking: &BackwardBlocking,
    threads: usize,
    shape: &AttentionShape,
    extent: AttentionExtent,
) -> Need {
    let AttentionExtent { queries, keys } = extent;
    unit::need(cpu, shape, &blocking.checked(), queries, keys).times(threads.max(1))
}

/// What is left from the forward pass beside Q.
struct Saved<'a> {
    k: Mat<'a>,
    v: Mat<'a>,
    d_out: Mat<'a>,
}

/// Checks the operands and shares the work out.
#[track_caller]
fn differentiate(
    operands: Operands<'_>,
    saved: Saved<'_>,
    par: Par<'_>,
    blocking: &BackwardBlocking,
    segments: &[Segment],
    mut gradients: AttentionGradients<'_>,
    stack: &mut Stack<'_>,
) {
    let _mode = FloatMode::default_scope();
    let Operands { cpu, shape, q, mask } = operands;
    let Saved { k, v, d_out } = saved;
    let source = Source::rows(k, v, segments);
    super::check(cpu, shape, q, &source, (d_out.rows(), d_out.cols()));
    mask.check(shape.heads, q.rows(), &source);
    check_disjoint(segments);
    let [dq, dk, dv] = gradients.places(shape, q.rows(), k.rows());
    let added = gradients.added(mask);
    if shape.heads == 0 {
        return;
    }
    let cancel = par.cancel();
    let call = Call { operands, k, v, d_out, dq, dk, dv, added, blocking, cancel };
    let par = par.limit(Blocking::workers(par.threads(), shape, &source));
    let AttentionExtent { queries, keys } = source.extent();
    let each = unit::need(cpu, shape, blocking, queries, keys);
    let kv_heads = shape.kv_heads;
    // Sequences share the rows of a table, and heads may share those of a bias: both are added up in order.
    let apart = if added.relative.is_some() { 1 } else { segments.len() };
    let heads_apart = if added.shared { 1 } else { kv_heads };
    par.run_with(apart * heads_apart, each, stack, &|item, mut stack| {
        let (sequence, head) = (item / heads_apart, item % heads_apart);
        let sequences = if apart == 1 { segments } else { &segments[sequence..=sequence] };
        let heads = if heads_apart == 1 { 0..kv_heads } else { head..head + 1 };
        for segment in sequences {
            for kv_head in heads.clone() {
                // SAFETY: no other item has this sequence with this head, nor one that shares rows of what is added;
                // rows of sequences do not overlap (`check`, `check_disjoint`).
                unsafe { call.unit(Sequence::from(segment), kv_head, &mut stack) };
            }
        }
    });
}

/// That key rows do not overlap is what makes the writes of different workers disjoint.
#[track_caller]
fn check_disjoint(segments: &[Segment]) {
    let mut end = 0;
    for Segment { keys, .. } in segments.iter().filter(|segment| !segment.keys.is_empty()) {
        assert!(end <= keys.start, "keys {keys:?} after row {end}: gradients of shared keys");
        end = keys.end;
    }
}
