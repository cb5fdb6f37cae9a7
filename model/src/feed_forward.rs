//! §3.3: the position-wise feed-forward network, FFN(x) = σ(xW₁ + b₁)W₂ + b₂.

use crate::linear::{Call, Linear, room, take};
use headrow_kernels::{Activation, Cpu, Mat, MatMut, Need, Stack};

/// Two linear maps with an activation σ between them; the same for every token.
pub(crate) struct FeedForward {
    /// W₁, b₁: d_model to d_ff.
    pub(crate) inner: Linear,
    /// σ.
    pub(crate) activation: Activation,
    /// W₂, b₂: d_ff to d_model.
    pub(crate) outer: Linear,
}

impl FeedForward {
    /// out ← FFN(x) + residual.
    pub(crate) fn forward(
        &self,
        call: Call<'_>,
        x: Mat<'_>,
        residual: Mat<'_>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        // σ(x·W₁ + b₁): t × d_ff, the activation within the product's last pass.
        let (mut wide, mut stack) = take(stack, x.rows(), self.inner.outputs());
        self.inner.forward(call, x, self.activation, None, wide.reborrow(), &mut stack);
        // … ·W₂ + b₂ + residual: t × d_model.
        let wide = wide.as_ref();
        self.outer.forward(call, wide, Activation::Identity, Some(residual), out, &mut stack);
    }

    /// Scratch for up to `rows` tokens.
    pub(crate) fn scratch(&self, cpu: Cpu, threads: usize, rows: usize) -> Need {
        let maps =
            self.inner.scratch(cpu, threads, rows).or(self.outer.scratch(cpu, threads, rows));
        room(rows, self.inner.outputs()).and(maps)
    }
}
