//! §3.3: the position-wise feed-forward network, FFN(x) = σ(xW₁ + b₁)W₂ + b₂, and its gated form.

use crate::linear::{Call, Linear, room, take};
use crate::size::Size;
use crate::sublayer::Sum;
use headrow_kernels::{Activation, Cpu, Mat, Need, gate};

/// Two linear maps with an activation σ between them; the same for every token.
pub(crate) struct FeedForward {
    /// W₁, b₁: d_model to d_ff; with a gate \[W V\], to 2·d_ff.
    pub(crate) inner: Linear,
    /// σ.
    pub(crate) activation: Activation,
    /// Whether σ(xW) multiplies xV (Shazeer, "GLU Variants Improve Transformer", 2020).
    pub(crate) gated: bool,
    /// W₂, b₂: d_ff to d_model.
    pub(crate) outer: Linear,
}

impl FeedForward {
    /// out ← FFN(x) + residual.
    pub(crate) fn forward(&self, call: Call<'_>, x: Mat<'_>, sum: Sum<'_, '_>) {
        let Sum { residual, out, stack, .. } = sum;
        let (rows, d_ff) = (x.rows(), self.d_ff());
        let (mut wide, mut stack) = take(stack, rows, d_ff);
        match self.gated {
            // σ(x·W₁ + b₁): t × d_ff, the activation within the product's last pass.
            false => {
                let wide = wide.reborrow();
                self.inner.forward(call, x, self.activation, None, wide, &mut stack);
            }
            // x·[W V], then σ(xW) ⊙ xV: t × d_ff.
            true => {
                let (mut pair, mut stack) = take(&mut stack, rows, 2 * d_ff);
                let identity = Activation::Identity;
                self.inner.forward(call, x, identity, None, pair.reborrow(), &mut stack);
                let (pair, wide) = (pair.as_ref(), wide.reborrow());
                let (gates, values) = (pair.columns(0..d_ff), pair.columns(d_ff..2 * d_ff));
                gate(call.cpu, call.par, self.activation, gates, values, wide);
            }
        }
        // … ·W₂ + b₂ + residual: t × d_model.
        let wide = wide.as_ref();
        self.outer.forward(call, wide, Activation::Identity, residual, out, &mut stack);
    }

    /// Inner features that reach the outer map.
    fn d_ff(&self) -> usize {
        self.outer.weight.k()
    }

    /// Scratch for up to `rows` tokens.
    pub(crate) fn scratch(&self, cpu: Cpu, threads: usize, rows: usize) -> Need {
        let inner = self.inner.scratch(cpu, threads, rows);
        let inner = if self.gated { room(rows, 2 * self.d_ff()).and(inner) } else { inner };
        room(rows, self.d_ff()).and(inner.or(self.outer.scratch(cpu, threads, rows)))
    }

    pub(crate) fn size(&self) -> Size {
        self.inner.size() + self.outer.size()
    }
}
