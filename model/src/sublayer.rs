//! §3.1: what surrounds every sublayer, the residual sum and the layer normalisation.

#[cfg(feature = "train")]
mod backward;

#[cfg(feature = "train")]
pub(crate) use backward::{
    SublayerKept, TrainingSite, branch_backward, norm_backward, sublayer_backward, sublayer_saving,
    training_scratch,
};

use crate::config::{NormKind, NormPlacement};
use crate::linear::{Call, room, take};
use crate::observer::{Observer, Place};
use crate::origin::Values;
use headrow_kernels::{LayerNorm, Mat, MatMut, Need, RmsNorm, Stack, layer_norm, rms_norm};

/// γ, β and ε of one normalisation.
pub(crate) struct Norm {
    pub(crate) kind: NormKind,
    pub(crate) gamma: Values,
    /// β of a LayerNorm that has one.
    pub(crate) beta: Option<Values>,
    pub(crate) epsilon: f32,
}

impl Norm {
    /// out ← (x − µ)/√(σ² + ε)·γ + β, or x/√(mean(x²) + ε)·γ, row by row.
    pub(crate) fn forward(&self, call: Call<'_>, x: Mat<'_>, out: MatMut<'_>) {
        let Norm { gamma, epsilon, .. } = self;
        match self.kind {
            NormKind::Layer => {
                let norm = LayerNorm { gamma, beta: self.beta.as_deref(), epsilon: *epsilon };
                layer_norm(call.cpu, call.par, &norm, x, out);
            }
            NormKind::Rms => {
                rms_norm(call.cpu, call.par, &RmsNorm { gamma, epsilon: *epsilon }, x, out);
            }
        }
    }

    /// Bytes of γ and β.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.gamma) + self.beta.as_deref().map_or(0, size_of_val)
    }
}

/// Where a sublayer's f writes: out ← f(z) + residual. Every f ends in a linear map, whose last pass over its
/// result takes the sum along.
pub(crate) struct Sum<'a, 's> {
    pub(crate) residual: Option<Mat<'a>>,
    pub(crate) out: MatMut<'a>,
    pub(crate) stack: &'a mut Stack<'s>,
    pub(crate) place: Place,
    pub(crate) observer: &'a mut dyn Observer,
}

/// Gives a closure the type of a sublayer's f.
pub(crate) fn transformation<F: FnOnce(Mat<'_>, Sum<'_, '_>)>(f: F) -> F {
    f
}

/// Which sublayer it is, and its normalisation.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) place: Place,
    pub(crate) placement: NormPlacement,
    pub(crate) norm: &'a Norm,
}

/// x ← LN(x + f(x)), or x ← x + f(LN(x)).
pub(crate) fn sublayer(
    call: Call<'_>,
    site: Site<'_>,
    mut x: MatMut<'_>,
    stack: &mut Stack<'_>,
    observer: &mut dyn Observer,
    f: impl FnOnce(Mat<'_>, Sum<'_, '_>),
) {
    let Site { place, placement, norm } = site;
    let (mut sum, mut stack) = take(stack, x.rows(), x.cols());
    match placement {
        NormPlacement::Post => {
            let out = sum.reborrow();
            let residual = Some(x.as_ref());
            add(call, f, x.as_ref(), Sum { residual, out, stack: &mut stack, place, observer });
            norm.forward(call, sum.as_ref(), x);
        }
        NormPlacement::Pre | NormPlacement::Parallel => {
            let (mut normed, mut stack) = take(&mut stack, x.rows(), x.cols());
            norm.forward(call, x.as_ref(), normed.reborrow());
            let out = sum.reborrow();
            let residual = Some(x.as_ref());
            add(
                call,
                f,
                normed.as_ref(),
                Sum { residual, out, stack: &mut stack, place, observer },
            );
            x.copy_from(sum.as_ref());
        }
    }
}

/// x ← x + f(LN₁(x)) + g(LN₂(x)).
pub(crate) fn side_by_side(
    call: Call<'_>,
    (first, f): (Site<'_>, impl FnOnce(Mat<'_>, Sum<'_, '_>)),
    (second, g): (Site<'_>, impl FnOnce(Mat<'_>, Sum<'_, '_>)),
    x: MatMut<'_>,
    stack: &mut Stack<'_>,
    observer: &mut dyn Observer,
) {
    let (mut sum, mut stack) = take(stack, x.rows(), x.cols());
    let (mut normed, mut stack) = take(&mut stack, x.rows(), x.cols());
    let (stack, place) = (&mut stack, first.place);
    first.norm.forward(call, x.as_ref(), normed.reborrow());
    let (residual, out) = (Some(x.as_ref()), sum.reborrow());
    add(call, f, normed.as_ref(), Sum { residual, out, stack, place, observer });
    second.norm.forward(call, x.as_ref(), normed.reborrow());
    let (residual, out, place) = (Some(sum.as_ref()), x, second.place);
    add(call, g, normed.as_ref(), Sum { residual, out, stack, place, observer });
}

/// x ← LN(x): the norm that ends a stack, where it has one.
pub(crate) fn end(norm: Option<&Norm>, call: Call<'_>, mut x: MatMut<'_>, stack: &mut Stack<'_>) {
    if let Some(norm) = norm {
        let (mut normed, _) = take(stack, x.rows(), x.cols());
        norm.forward(call, x.as_ref(), normed.reborrow());
        x.copy_from(normed.as_ref());
    }
}

/// out ← f(z) + residual. An observer of increments sees f(z) before the sum, which has the same bits then.
fn add(call: Call<'_>, f: impl FnOnce(Mat<'_>, Sum<'_, '_>), z: Mat<'_>, sum: Sum<'_, '_>) {
    if !sum.observer.wants_increments() {
        return f(z, sum);
    }
    let Sum { residual, mut out, stack, place, observer } = sum;
    f(z, Sum { residual: None, out: out.reborrow(), stack, place, observer });
    if !call.par.is_cancelled() {
        observer.increment(place, out.as_ref());
    }
    let Some(residual) = residual else { return };
    for i in 0..out.rows() {
        out.row_mut(i).iter_mut().zip(residual.row(i)).for_each(|(sum, x)| *sum += x);
    }
}

/// Scratch of [`sublayer`] and [`side_by_side`] around an `f` that needs `inner`.
pub(crate) fn sublayer_scratch(
    placement: NormPlacement,
    rows: usize,
    d_model: usize,
    inner: Need,
) -> Need {
    let one = room(rows, d_model);
    match placement {
        NormPlacement::Post => one.and(inner),
        NormPlacement::Pre | NormPlacement::Parallel => one.and(one).and(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::{Side, Sublayer, Unobserved};
    use headrow_kernels::{Cpu, Par, Scratch};

    const ROWS: usize = 3;
    const D: usize = 5;

    /// LN by its definition, in f64.
    fn reference(norm: &Norm, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        let root = (variance + f64::from(norm.epsilon)).sqrt();
        let affine = norm.gamma.iter().zip(norm.beta.as_deref().unwrap());
        let normed = x.iter().zip(affine);
        normed.map(|(x, (&g, &b))| (x - mean) / root * f64::from(g) + f64::from(b)).collect()
    }

    /// The sublayer around f(z) = 2z + 1.
    fn run(placement: NormPlacement) {
        let norm = Norm {
            kind: NormKind::Layer,
            gamma: vec![1.0, 0.5, -2.0, 3.0, 1.5].into(),
            beta: Some(vec![0.0, 1.0, -1.0, 0.25, 2.0].into()),
            epsilon: 1e-5,
        };
        let start: Vec<f32> = (0..ROWS * D).map(|i| ((i * 7) % 11) as f32 - 4.0).collect();
        let mut x = start.clone();
        let mut scratch = Scratch::new(sublayer_scratch(placement, ROWS, D, Need::NONE));
        let call = Call { cpu: Cpu::detect(), par: Par::SERIAL };
        let view = MatMut::new(&mut x, ROWS, D);
        let place = Place { side: Side::Encoder, layer: 0, sublayer: Sublayer::FeedForward };
        let site = Site { place, placement, norm: &norm };
        let (stack, observer) = (&mut scratch.stack(), &mut Unobserved);
        sublayer(call, site, view, stack, observer, |z, mut sum| {
            let residual = sum.residual.unwrap();
            for i in 0..ROWS {
                let pairs = z.row(i).iter().zip(residual.row(i));
                let row = sum.out.row_mut(i).iter_mut().zip(pairs);
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
                _ => {
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
