//! §3.2: multi-head attention, Concat(head₁, …, head_h)Wᴼ with head_i = softmax(Q_i K_iᵀ/√d_k)V_i.

use crate::linear::{Call, Linear, room, take};
use headrow_kernels::{
    Activation, AttentionExtent, AttentionShape, Cpu, Mask, Mat, MatMut, Need, Segment, Stack,
    attention, attention_scratch,
};

/// Attention of a sequence to itself.
pub(crate) struct MultiHeadAttention {
    /// Heads, their widths d_k and d_v, and 1/√d_k.
    shape: AttentionShape,
    /// \[Wꟴ Wᴷ Wⱽ\] side by side: one product makes Q, K and V.
    pub(crate) qkv: Linear,
    /// Wᴼ.
    pub(crate) output: Linear,
}

impl MultiHeadAttention {
    /// With h heads of equal width: d_k = d_v = d_model/h.
    pub(crate) fn new(heads: usize, qkv: Linear, output: Linear) -> MultiHeadAttention {
        let d_k = output.weight.k() / heads;
        let shape = AttentionShape::new(heads, heads, d_k, d_k);
        MultiHeadAttention { shape, qkv, output }
    }

    /// out ← MultiHead(x, x, x) + residual. Each segment is one sequence, and sees itself alone.
    pub(crate) fn forward(
        &self,
        call: Call<'_>,
        x: Mat<'_>,
        segments: &[Segment],
        residual: Mat<'_>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        // [Q K V] ← x·[Wꟴ Wᴷ Wⱽ] + b: t × 3·h·d_k. Q, K, V and their heads are ranges of its columns.
        let width = self.output.weight.k();
        let (mut qkv, mut stack) = take(stack, x.rows(), 3 * width);
        self.qkv.forward(call, x, Activation::Identity, None, qkv.reborrow(), &mut stack);
        let part = |i| qkv.as_ref().columns(i * width..(i + 1) * width);
        let (q, k, v) = (part(0), part(1), part(2));

        // Every head writes its own columns, which is the concatenation: t × h·d_v.
        let (mut heads, mut stack) = take(&mut stack, x.rows(), width);
        let (mask, concat) = (Mask::default(), heads.reborrow());
        attention(call.cpu, call.par, &self.shape, q, k, v, segments, &mask, concat, &mut stack);

        // Concat·Wᴼ + bᴼ + residual: t × d_model.
        let heads = heads.as_ref();
        self.output.forward(call, heads, Activation::Identity, Some(residual), out, &mut stack);
    }

    /// Scratch for up to `rows` tokens, in sequences of at most `longest`.
    pub(crate) fn scratch(&self, cpu: Cpu, threads: usize, rows: usize, longest: usize) -> Need {
        let width = self.output.weight.k();
        let extent = AttentionExtent { queries: longest, keys: longest };
        let attention = attention_scratch(cpu, threads, &self.shape, extent)
            .or(self.output.scratch(cpu, threads, rows));
        let project = self.qkv.scratch(cpu, threads, rows);
        room(rows, 3 * width).and(project.or(room(rows, width).and(attention)))
    }
}
