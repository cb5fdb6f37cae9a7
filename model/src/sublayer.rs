//! §3.1: what surrounds every sublayer, the residual sum and the layer normalisation.

use crate::linear::{Call, room, take};
use headrow_kernels::{LayerNorm, Mat, MatMut, Need, Stack, layer_norm};

/// Where a layer normalises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormPlacement {
    /// LN(x + f(x)), as in the paper.
    Post,
    /// x + f(LN(x)); the stack then ends with a norm of its own.
    Pre,
}

/// γ, β and ε of one layer normalisation.
pub(crate) struct Norm {
    pub(crate) gamma: Vec<f32>,
    pub(crate) beta: Vec<f32>,
    pub(crate) epsilon: f32,
}

impl Norm {
    /// out ← (x − µ)/√(σ² + ε)·γ + β, row by row.
    pub(crate) fn forward(&self, call: Call<'_>, x: Mat<'_>, out: MatMut<'_>) {
        let norm = LayerNorm { gamma: &self.gamma, beta: Some(&self.beta), epsilon: self.epsilon };
        layer_norm(call.cpu, call.par, &norm, x, out);
    }

    pub(crate) fn parameters(&self) -> usize {
        self.gamma.len() + self.beta.len()
    }
}

/// x ← LN(x + f(x)), or x ← x + f(LN(x)).
///
/// `f(input, residual, out, stack)` writes f(input) + residual to `out`: a sublayer ends in a linear map,
/// whose last pass over its result takes the sum along.
pub(crate) fn sublayer(
    placement: NormPlacement,
    norm: &Norm,
    call: Call<'_>,
    mut x: MatMut<'_>,
    stack: &mut Stack<'_>,
    f: impl FnOnce(Mat<'_>, Mat<'_>, MatMut<'_>, &mut Stack<'_>),
) {
    let (mut sum, mut stack) = take(stack, x.rows(), x.cols());
    match placement {
        NormPlacement::Post => {
            f(x.as_ref(), x.as_ref(), sum.reborrow(), &mut stack);
            norm.forward(call, sum.as_ref(), x);
        }
        NormPlacement::Pre => {
            let (mut normed, mut stack) = take(&mut stack, x.rows(), x.cols());
            norm.forward(call, x.as_ref(), normed.reborrow());
            f(normed.as_ref(), x.as_ref(), sum.reborrow(), &mut stack);
            x.copy_from(sum.as_ref());
        }
    }
}

/// Scratch of [`sublayer`] around an `f` that needs `inner`.
pub(crate) fn sublayer_scratch(
    placement: NormPlacement,
    rows: usize,
    d_model: usize,
    inner: Need,
) -> Need {
    let one = room(rows, d_model);
    match placement {
        NormPlacement::Post => one.and(inner),
        NormPlacement::Pre => one.and(one).and(inner),
    }
}
