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

#[cfg(test)]
mod tests {
    use super::*;
    use headrow_kernels::{Cpu, Par, Scratch};

    const ROWS: usize = 3;
    const D: usize = 5;

    /// LN by its definition, in f64.
    fn reference(norm: &Norm, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        let root = (variance + f64::from(norm.epsilon)).sqrt();
        let affine = norm.gamma.iter().zip(&norm.beta);
        let normed = x.iter().zip(affine);
        normed.map(|(x, (&g, &b))| (x - mean) / root * f64::from(g) + f64::from(b)).collect()
    }

    /// The sublayer around f(z) = 2z + 1.
    fn run(placement: NormPlacement) {
        let norm = Norm {
            gamma: vec![1.0, 0.5, -2.0, 3.0, 1.5],
            beta: vec![0.0, 1.0, -1.0, 0.25, 2.0],
            epsilon: 1e-5,
        };
        let start: Vec<f32> = (0..ROWS * D).map(|i| ((i * 7) % 11) as f32 - 4.0).collect();
        let mut x = start.clone();
        let mut scratch = Scratch::new(sublayer_scratch(placement, ROWS, D, Need::NONE));
        let call = Call { cpu: Cpu::detect(), par: Par::SERIAL };
        let view = MatMut::new(&mut x, ROWS, D);
        sublayer(placement, &norm, call, view, &mut scratch.stack(), |z, residual, mut out, _| {
            for i in 0..ROWS {
                let pairs = z.row(i).iter().zip(residual.row(i));
                let row = out.row_mut(i).iter_mut().zip(pairs);
                row.for_each(|(out, (z, r))| *out = 2.0 * z + 1.0 + r);
            }
        });
        for (x, start) in x.chunks(D).zip(start.chunks(D)) {
            let start: Vec<f64> = start.iter().map(|&x| x.into()).collect();
            let f = |z: f64| 2.0 * z + 1.0;
            let expected: Vec<f64> = match placement {
                NormPlacement::Post => {
                    reference(&norm, &start.iter().map(|&x| x + f(x)).collect::<Vec<f64>>())
                }
                NormPlacement::Pre => {
                    let normed = reference(&norm, &start);
                    start.iter().zip(normed).map(|(&x, z)| x + f(z)).collect()
                }
            };
            for (x, expected) in x.iter().zip(expected) {
                assert!((f64::from(*x) - expected).abs() < 1e-5, "{placement:?}");
            }
        }
    }

    #[test]
    fn post_norm_is_the_norm_of_the_sum() {
        run(NormPlacement::Post);
    }

    #[test]
    fn pre_norm_is_the_sum_with_what_the_norm_gives() {
        run(NormPlacement::Pre);
    }
}
