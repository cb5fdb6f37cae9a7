//! §3.2: multi-head attention, Concat(head₁, …, head_h)Wᴼ with head_i = softmax(Q_i K_iᵀ/√d_k)V_i.
//!
//! The paper uses it in three ways (§3.2.3): a sequence attends to itself in the encoder ([`SelfAttention::forward`]), to what it
//! has read so far in the decoder ([`SelfAttention::forward_cached`]), and the decoder attends to the encoder's
//! output ([`CrossAttention`]).

#[cfg(feature = "train")]
mod backward;

#[cfg(feature = "train")]
pub(crate) use backward::{CrossKept, SelfKept, SourceRows};

use crate::linear::{Call, Linear, room, take};
use crate::observer::{Observer, Place};
use crate::sublayer::Sum;
use headrow_kernels::{
    Activation, AttentionExtent, AttentionOutput, AttentionShape, CachedSegment, Cpu, KvCache,
    Maps, Mask, Mat, MatMut, Need, Par, Relative, Rope, Segment, Stack, attention,
    attention_cached, attention_cached_scratch, attention_scratch, rope,
};

/// What the layers of a stack share in one pass.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) call: Call<'a>,
    /// Where each token stands in its sequence.
    pub(crate) places: &'a [u32],
    /// Angles that turn queries and keys.
    pub(crate) rope: Option<Rope<'a>>,
    /// Numbers per head and offset that are added to the scores.
    pub(crate) relative: Option<Relative<'a>>,
}

/// Attention of a sequence to itself.
pub(crate) struct SelfAttention {
    /// Heads, their widths d_k and d_v, and the factor of the scores.
    pub(crate) shape: AttentionShape,
    /// \[Wꟴ Wᴷ Wⱽ\] side by side: one product makes Q, K and V.
    pub(crate) qkv: Linear,
    /// Wᴼ.
    pub(crate) output: Linear,
}

impl SelfAttention {
    /// out ← MultiHead(x, x, x) + residual. Each segment is one sequence, and sees itself alone.
    pub(crate) fn forward(
        &self,
        pass: &Pass<'_>,
        x: Mat<'_>,
        segments: &[Segment],
        sum: Sum<'_, '_>,
    ) {
        let Call { cpu, par } = pass.call;
        let Sum { residual, out, stack, place, observer } = sum;
        let (mut qkv, mut stack) = take(stack, x.rows(), self.qkv.outputs());
        self.project(pass, x, qkv.reborrow(), &mut stack);
        let (q, k, v) = self.parts(qkv.as_ref());
        let mask = Mask { relative: pass.relative, ..Mask::default() };
        let longest = AttentionExtent::of(segments).keys;
        let sum = Sum { residual, out, stack: &mut stack, place, observer };
        concat(pass.call, &self.output, x.rows(), longest, sum, |heads, stack| {
            attention(cpu, par, &self.shape, q, k, v, segments, &mask, heads, stack);
        });
    }

    /// [`SelfAttention::forward`] of tokens that follow those in `cache`: their keys and values are added to it, and
    /// each token sees what comes before it.
    pub(crate) fn forward_cached(
        &self,
        pass: &Pass<'_>,
        x: Mat<'_>,
        cache: &mut KvCache,
        segments: &[CachedSegment<'_>],
        sum: Sum<'_, '_>,
    ) {
        let Call { cpu, par } = pass.call;
        let Sum { residual, out, stack, place, observer } = sum;
        let (mut qkv, mut stack) = take(stack, x.rows(), self.qkv.outputs());
        self.project(pass, x, qkv.reborrow(), &mut stack);
        let (q, k, v) = self.parts(qkv.as_ref());
        write(par, cache, segments, k, v);
        let mask = Mask { relative: pass.relative, ..Mask::default() };
        let longest = AttentionExtent::of_cached(segments).keys;
        let sum = Sum { residual, out, stack: &mut stack, place, observer };
        concat(pass.call, &self.output, x.rows(), longest, sum, |heads, stack| {
            attention_cached(cpu, par, &self.shape, q, cache, segments, &mask, heads, stack);
        });
    }

    /// \[Q K V\] ← x·\[Wꟴ Wᴷ Wⱽ\] + b, t × (h·d_k + h_kv·d_k + h_kv·d_v), Q and K turned by their places.
    fn project(&self, pass: &Pass<'_>, x: Mat<'_>, mut qkv: MatMut<'_>, stack: &mut Stack<'_>) {
        let call = pass.call;
        self.qkv.forward(call, x, Activation::Identity, None, qkv.reborrow(), stack);
        if let Some(angles) = &pass.rope {
            let AttentionShape { heads, kv_heads, d_k, .. } = self.shape;
            let heads = heads + kv_heads;
            let turned = qkv.columns(0..heads * d_k);
            rope(call.cpu, call.par, angles, pass.places, heads, turned);
        }
    }

    /// Q, K and V, which are ranges of columns, as are their heads.
    fn parts<'m>(&self, qkv: Mat<'m>) -> (Mat<'m>, Mat<'m>, Mat<'m>) {
        let AttentionShape { heads, kv_heads, d_k, .. } = self.shape;
        let (q, k) = (heads * d_k, (heads + kv_heads) * d_k);
        (qkv.columns(0..q), qkv.columns(q..k), qkv.columns(k..qkv.cols()))
    }

    /// Scratch for up to `rows` tokens, in sequences no longer than `extent`; with a cache or without.
    pub(crate) fn scratch(
        &self,
        cpu: Cpu,
        threads: usize,
        rows: usize,
        extent: AttentionExtent,
        cached: bool,
    ) -> Need {
        let attend = match cached {
            true => attention_cached_scratch(cpu, threads, &self.shape, extent),
            false => attention_scratch(cpu, threads, &self.shape, extent),
        };
        let inner = concat_scratch(cpu, threads, &self.output, rows, attend);
        let project = self.qkv.scratch(cpu, threads, rows);
        room(rows, self.qkv.outputs()).and(project.or(inner))
    }

    /// Bytes of the weights.
    pub(crate) fn bytes(&self) -> usize {
        self.qkv.bytes() + self.output.bytes()
    }
}

/// Attention of a decoder's tokens to an encoder's output, whose keys and values are made once.
pub(crate) struct CrossAttention {
    pub(crate) shape: AttentionShape,
    /// Wꟴ.
    pub(crate) query: Linear,
    /// \[Wᴷ Wⱽ\].
    pub(crate) key_value: Linear,
    /// Wᴼ.
    pub(crate) output: Linear,
}

impl CrossAttention {
    /// Adds keys and values of the encoder's output to `cache`: once per source.
    pub(crate) fn remember(
        &self,
        call: Call<'_>,
        encoded: Mat<'_>,
        cache: &mut KvCache,
        segments: &[CachedSegment<'_>],
        stack: &mut Stack<'_>,
    ) {
        let (mut pair, mut stack) = take(stack, encoded.rows(), self.key_value.outputs());
        let identity = Activation::Identity;
        self.key_value.forward(call, encoded, identity, None, pair.reborrow(), &mut stack);
        let (k, v) = self.halves(pair.as_ref());
        write(call.par, cache, segments, k, v);
    }

    /// K and V in \[K V\].
    fn halves<'m>(&self, pair: Mat<'m>) -> (Mat<'m>, Mat<'m>) {
        let keys = self.shape.kv_heads * self.shape.d_k;
        (pair.columns(0..keys), pair.columns(keys..pair.cols()))
    }

    /// out ← MultiHead(x, encoded, encoded) + residual. Each segment's tokens see their whole source.
    pub(crate) fn forward(
        &self,
        call: Call<'_>,
        x: Mat<'_>,
        cache: &KvCache,
        segments: &[CachedSegment<'_>],
        sum: Sum<'_, '_>,
    ) {
        let Call { cpu, par } = call;
        let Sum { residual, out, stack, place, observer } = sum;
        let (mut q, mut stack) = take(stack, x.rows(), self.query.outputs());
        self.query.forward(call, x, Activation::Identity, None, q.reborrow(), &mut stack);
        let (q, mask) = (q.as_ref(), Mask::default());
        let longest = AttentionExtent::of_cached(segments).keys;
        let sum = Sum { residual, out, stack: &mut stack, place, observer };
        concat(call, &self.output, x.rows(), longest, sum, |heads, stack| {
            attention_cached(cpu, par, &self.shape, q, cache, segments, &mask, heads, stack);
        });
    }

    /// Scratch of [`CrossAttention::remember`] for up to `rows` tokens.
    pub(crate) fn remember_scratch(&self, cpu: Cpu, threads: usize, rows: usize) -> Need {
        room(rows, self.key_value.outputs()).and(self.key_value.scratch(cpu, threads, rows))
    }

    /// Scratch of [`CrossAttention::forward`] for up to `rows` tokens, in sequences no longer than `extent`.
    pub(crate) fn scratch(
        &self,
        cpu: Cpu,
        threads: usize,
        rows: usize,
        extent: AttentionExtent,
    ) -> Need {
        let attend = attention_cached_scratch(cpu, threads, &self.shape, extent);
        let inner = concat_scratch(cpu, threads, &self.output, rows, attend);
        room(rows, self.query.outputs()).and(self.query.scratch(cpu, threads, rows).or(inner))
    }

    /// Bytes of the weights.
    pub(crate) fn bytes(&self) -> usize {
        self.query.bytes() + self.key_value.bytes() + self.output.bytes()
    }
}

/// Adds the keys and values of every segment's tokens, the last of its keys.
fn write(
    par: Par<'_>,
    cache: &mut KvCache,
    segments: &[CachedSegment<'_>],
    k: Mat<'_>,
    v: Mat<'_>,
) {
    for CachedSegment { queries, pages, keys, .. } in segments {
        let start = keys - queries.len();
        let (k, v) = (k.rows_range(queries.clone()), v.rows_range(queries.clone()));
        cache.write(par, pages, start, k, v);
    }
}

/// out ← Concat(head₁, …, head_h)Wᴼ + bᴼ + residual, t × d_model. `attend` writes every head into its own columns, which is
/// the concatenation, t × h·d_v; no token sees more than `longest` keys.
fn concat(
    call: Call<'_>,
    output: &Linear,
    rows: usize,
    longest: usize,
    sum: Sum<'_, '_>,
    attend: impl FnOnce(AttentionOutput<'_>, &mut Stack<'_>),
) {
    let Sum { residual, out, stack, place, observer } = sum;
    let (mut heads, mut stack) = take(stack, rows, output.weight.k());
    let par = call.par;
    observed(par, observer, place, heads.reborrow(), longest, |heads| attend(heads, &mut stack));
    output.forward(call, heads.as_ref(), Activation::Identity, residual, out, &mut stack);
}

/// Scratch of [`concat`] around an `attend` that needs as much.
fn concat_scratch(cpu: Cpu, threads: usize, output: &Linear, rows: usize, attend: Need) -> Need {
    room(rows, output.weight.k()).and(attend.or(output.scratch(cpu, threads, rows)))
}

/// Runs `attend` into `heads`, with maps of up to `longest` keys for an observer that wants them.
fn observed(
    par: Par<'_>,
    observer: &mut dyn Observer,
    place: Place,
    heads: MatMut<'_>,
    longest: usize,
    attend: impl FnOnce(AttentionOutput<'_>),
) {
    let wanted = observer.wants_maps(place).to_vec();
    if wanted.is_empty() {
        return attend(heads.into());
    }
    let rows = wanted.len() * heads.rows();
    let mut maps = vec![0.0; rows * longest];
    let out = MatMut::new(&mut maps, rows, longest);
    attend(AttentionOutput::from(heads).with_maps(Maps { heads: &wanted, out }));
    if !par.is_cancelled() {
        observer.maps(place, Mat::new(&maps, rows, longest));
    }
}
