//! §3.3: the position-wise feed-forward network, FFN(x) = σ(xW₁ + b₁)W₂ + b₂, and its gated form.

#[cfg(feature = "train")]
mod backward;

#[cfg(feature = "train")]
pub(crate) use backward::FeedForwardKept;

use crate::linear::{Call, Linear, room, take};
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

    /// Bytes of the weights.
    pub(crate) fn bytes(&self) -> usize {
        self.inner.bytes() + self.outer.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::{Place, Side, Sublayer, Unobserved};
    use headrow_kernels::{MatMut, PackedB, Par, Scratch};

    /// A convolution over the sequence: y\[t\] = Σ_k x\[t + k − (width − 1)/2\]·W\[k\] + b, zeros beyond the ends.
    fn convolution(x: &[Vec<f64>], taps: &[Vec<Vec<f64>>], bias: &[f64]) -> Vec<Vec<f64>> {
        let middle = (taps.len() - 1) / 2;
        let at = |t: usize| {
            let mut y = bias.to_vec();
            for (k, weight) in taps.iter().enumerate() {
                let Some(x) = (t + k).checked_sub(middle).and_then(|t| x.get(t)) else { continue };
                for (x, row) in x.iter().zip(weight) {
                    y.iter_mut().zip(row).for_each(|(y, w)| *y += x * w);
                }
            }
            y
        };
        (0..x.len()).map(at).collect()
    }

    /// As §3.3 says of it.
    #[test]
    fn it_is_two_convolutions_of_width_1() {
        const T: usize = 5;
        const D: usize = 6;
        const D_FF: usize = 9;
        let cpu = Cpu::detect();
        let number = |i: usize| ((i * 37) % 23) as f32 / 11.0 - 1.0;
        let (first, second): (Vec<f32>, Vec<f32>) =
            ((0..D * D_FF).map(number).collect(), (0..D_FF * D).map(|i| number(i + 5)).collect());
        let (b1, b2): (Vec<f32>, Vec<f32>) =
            ((0..D_FF).map(number).collect(), (0..D).map(|i| number(i + 3)).collect());
        let linear = |w: &[f32], k: usize, n: usize, b: &[f32]| {
            Linear::new(PackedB::new(cpu, Mat::new(w, k, n)), Some(b.to_vec()))
        };
        let feed_forward = FeedForward {
            inner: linear(&first, D, D_FF, &b1),
            activation: Activation::Relu,
            gated: false,
            outer: linear(&second, D_FF, D, &b2),
        };
        let x: Vec<f32> = (0..T * D).map(|i| number(i * 3 + 1)).collect();
        let mut out = vec![0.0; T * D];
        let mut scratch = Scratch::new(feed_forward.scratch(cpu, 1, T));
        let place = Place { side: Side::Encoder, layer: 0, sublayer: Sublayer::FeedForward };
        let (stack, observer) = (&mut scratch.stack(), &mut Unobserved);
        let view = MatMut::new(&mut out, T, D);
        let sum = Sum { residual: None, out: view, stack, place, observer };
        feed_forward.forward(Call { cpu, par: Par::SERIAL }, Mat::new(&x, T, D), sum);

        let rows = |m: &[f32], n: usize| -> Vec<Vec<f64>> {
            m.chunks(n).map(|row| row.iter().map(|&x| x.into()).collect()).collect()
        };
        let wide = |b: &[f32]| -> Vec<f64> { b.iter().map(|&x| x.into()).collect() };
        let mut inner = convolution(&rows(&x, D), &[rows(&first, D_FF)], &wide(&b1));
        inner.iter_mut().flatten().for_each(|x| *x = x.max(0.0));
        let expected = convolution(&inner, &[rows(&second, D)], &wide(&b2));
        for (y, expected) in out.iter().zip(expected.iter().flatten()) {
            assert!((f64::from(*y) - expected).abs() < 1e-4, "{y}, expected {expected}");
        }
    }
}
