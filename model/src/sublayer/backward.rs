//! Norms and sublayers in training: forward passes that keep what the gradients need, and these.

use super::Norm;
use crate::config::{NormKind, NormPlacement};
use crate::error::Result;
use crate::linear::{Call, room, take};
use crate::train::claims::Claims;
use crate::train::pass::{TrainingPass, grown};
use headrow_kernels::{
    LayerNorm, Mat, MatMut, Moments, Need, NormOutput, RmsNorm, Stack, Write, add_dropout, dropout,
    dropout_into, layer_norm, layer_norm_backward, rms_norm, rms_norm_backward,
};

impl Norm {
    fn layer<'a>(&self, parameters: &'a [f32]) -> LayerNorm<'a> {
        let of = |place: &std::ops::Range<usize>| &parameters[place.clone()];
        let beta = self.beta.as_ref().map(|beta| of(&beta.place));
        LayerNorm { gamma: of(&self.gamma.place), beta, epsilon: self.epsilon }
    }

    /// Features that it normalises.
    pub(crate) fn width(&self) -> usize {
        self.gamma.place.len()
    }

    /// out ← LN(x) as [`Norm::forward`], from parameters; keeps the moments of the rows.
    pub(crate) fn apply(
        &self,
        call: Call<'_>,
        parameters: &[f32],
        x: Mat<'_>,
        saved: &mut [Moments],
        out: MatMut<'_>,
    ) {
        let norm = self.layer(parameters);
        let LayerNorm { gamma, epsilon, .. } = norm;
        let to = NormOutput::from(out).with_moments(saved);
        match self.kind {
            NormKind::Layer => layer_norm(call.cpu, call.par, &norm, x, to),
            NormKind::Rms => rms_norm(call.cpu, call.par, &RmsNorm { gamma, epsilon }, x, to),
        }
    }

    /// dx ← or += what comes back through the norm from dy; dγ and dβ are added to. `x` is what was normalised.
    #[expect(clippy::too_many_arguments, reason = "the operands of the norm and their gradients")]
    pub(crate) fn backward(
        &self,
        call: Call<'_>,
        parameters: &[f32],
        saved: &[Moments],
        x: Mat<'_>,
        dy: Mat<'_>,
        write: Write,
        dx: MatMut<'_>,
        gradients: &mut [f32],
    ) {
        let (cpu, par) = (call.cpu, call.par);
        let norm = self.layer(parameters);
        let beta = self.beta.as_ref().map_or(0..0, |beta| beta.place.clone());
        let places = [self.gamma.place.clone(), beta];
        let both = gradients.get_disjoint_mut(places);
        let [d_gamma, d_beta] = both.expect("tensors do not overlap");
        let d_beta = self.beta.is_some().then_some(d_beta);
        match self.kind {
            NormKind::Layer => {
                layer_norm_backward(cpu, par, &norm, saved, x, dy, write, dx, d_gamma, d_beta);
            }
            NormKind::Rms => {
                let norm = RmsNorm { gamma: norm.gamma, epsilon: norm.epsilon };
                rms_norm_backward(cpu, par, &norm, saved, x, dy, write, dx, d_gamma);
            }
        }
    }
}

/// What one sublayer keeps.
#[derive(Debug, Default)]
pub(crate) struct SublayerKept {
    /// The sum that was normalised (post-norm), or what the norm gave (pre-norm).
    middle: Vec<f32>,
    moments: Vec<Moments>,
}

impl SublayerKept {
    /// For up to `rows` tokens.
    pub(crate) fn new(rows: usize, d_model: usize, claims: &mut Claims) -> Result<SublayerKept> {
        let middle = claims.zeros(rows, d_model)?;
        Ok(SublayerKept { middle, moments: claims.zeros(rows, 1)? })
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        grown(&self.middle) + grown(&self.moments)
    }
}

/// Which sublayer of a pass it is.
#[derive(Clone, Copy)]
pub(crate) struct TrainingSite<'a> {
    pub(crate) placement: NormPlacement,
    pub(crate) norm: &'a Norm,
    /// The number of its dropout mask.
    pub(crate) mask: u64,
}

/// out ← LN(residual + f(x)), or out ← residual + f(LN(x)), with dropout on what f gives. `f` writes f(z) + residual.
pub(crate) fn sublayer_saving(
    pass: &TrainingPass<'_>,
    site: TrainingSite<'_>,
    [x, residual]: [Mat<'_>; 2],
    kept: &mut SublayerKept,
    mut out: MatMut<'_>,
    stack: &mut Stack<'_>,
    f: impl FnOnce(Mat<'_>, Option<Mat<'_>>, MatMut<'_>, &mut Stack<'_>),
) {
    let TrainingSite { placement, norm, mask } = site;
    let (rows, cols) = (x.rows(), x.cols());
    let moments = &mut kept.moments[..rows];
    let mut middle = MatMut::new(&mut kept.middle[..rows * cols], rows, cols);
    match placement {
        NormPlacement::Post => {
            add(pass, mask, x, residual, middle.reborrow(), stack, f);
            norm.apply(pass.call, pass.parameters, middle.as_ref(), moments, out);
        }
        NormPlacement::Pre | NormPlacement::Parallel => {
            norm.apply(pass.call, pass.parameters, x, moments, middle.reborrow());
            add(pass, mask, middle.as_ref(), residual, out.reborrow(), stack, f);
        }
    }
}

/// out ← dropout(f(z)) + residual.
fn add(
    pass: &TrainingPass<'_>,
    mask: u64,
    z: Mat<'_>,
    residual: Mat<'_>,
    out: MatMut<'_>,
    stack: &mut Stack<'_>,
    f: impl FnOnce(Mat<'_>, Option<Mat<'_>>, MatMut<'_>, &mut Stack<'_>),
) {
    let Some(drop) = pass.dropout(mask) else { return f(z, Some(residual), out, stack) };
    let (mut result, mut stack) = take(stack, z.rows(), z.cols());
    f(z, None, result.reborrow(), &mut stack);
    add_dropout(pass.call.cpu, pass.call.par, &drop, result.as_ref(), residual, out);
}

/// What comes back through a sublayer: `d` holds the gradient of its result, and is given that of its input.
///
/// `f` is given z, what the transformation read, and the gradient d of its result; it is to make d ← d·J or d ← d + d·J of
/// its Jacobian J.
#[expect(clippy::too_many_arguments, reason = "what the sublayer read and kept, and its gradients")]
pub(crate) fn sublayer_backward(
    pass: &TrainingPass<'_>,
    site: TrainingSite<'_>,
    x: Mat<'_>,
    kept: &SublayerKept,
    mut d: MatMut<'_>,
    gradients: &mut [f32],
    stack: &mut Stack<'_>,
    f: impl FnOnce(Mat<'_>, Write, MatMut<'_>, &mut [f32], &mut Stack<'_>),
) {
    let TrainingSite { placement, norm, mask } = site;
    let (rows, cols) = (x.rows(), x.cols());
    let (mut inner, mut stack) = take(stack, rows, cols);
    if placement != NormPlacement::Post {
        let (dy, to) = (d.as_ref(), inner.reborrow());
        branch_backward(pass, mask, kept, dy, to, gradients, &mut stack, f);
        return norm_backward(pass, norm, kept, x, inner.as_ref(), d, gradients);
    }
    let sum = kept.middle(rows, cols);
    let (call, moments) = (pass.call, &kept.moments[..rows]);
    let dy = d.as_ref();
    let (write, d_sum) = (Write::Replace, inner.reborrow());
    norm.backward(call, pass.parameters, moments, sum, dy, write, d_sum, gradients);
    d.copy_from(inner.as_ref());
    match pass.dropout(mask) {
        None => f(x, Write::Accumulate, d, gradients, &mut stack),
        Some(drop) => {
            dropout(call.cpu, call.par, &drop, inner.reborrow());
            f(x, Write::Replace, inner.reborrow(), gradients, &mut stack);
            accumulate(d, inner.as_ref());
        }
    }
}

/// d ← what comes back from dy through f of x + f(LN(x)), to the result of the norm.
#[expect(clippy::too_many_arguments, reason = "what the sublayer read and kept, and its gradients")]
pub(crate) fn branch_backward(
    pass: &TrainingPass<'_>,
    mask: u64,
    kept: &SublayerKept,
    dy: Mat<'_>,
    mut d: MatMut<'_>,
    gradients: &mut [f32],
    stack: &mut Stack<'_>,
    f: impl FnOnce(Mat<'_>, Write, MatMut<'_>, &mut [f32], &mut Stack<'_>),
) {
    match pass.dropout(mask) {
        Some(drop) => dropout_into(pass.call.cpu, pass.call.par, &drop, dy, d.reborrow()),
        None => d.copy_from(dy),
    }
    let normed = kept.middle(d.rows(), d.cols());
    f(normed, Write::Replace, d, gradients, stack);
}

/// d += what comes back through the norm of x + f(LN(x)) from `inner`.
pub(crate) fn norm_backward(
    pass: &TrainingPass<'_>,
    norm: &Norm,
    kept: &SublayerKept,
    x: Mat<'_>,
    inner: Mat<'_>,
    d: MatMut<'_>,
    gradients: &mut [f32],
) {
    let (moments, write) = (&kept.moments[..x.rows()], Write::Accumulate);
    norm.backward(pass.call, pass.parameters, moments, x, inner, write, d, gradients);
}

impl SublayerKept {
    fn middle(&self, rows: usize, cols: usize) -> Mat<'_> {
        Mat::new(&self.middle[..rows * cols], rows, cols)
    }
}

/// sum += x.
fn accumulate(mut sum: MatMut<'_>, x: Mat<'_>) {
    for i in 0..x.rows() {
        sum.row_mut(i).iter_mut().zip(x.row(i)).for_each(|(sum, x)| *sum += x);
    }
}

/// Scratch of a sublayer in training around an `f` that needs `inner`; side by side with another one, two gradients live.
pub(crate) fn training_scratch(
    placement: NormPlacement,
    rows: usize,
    d_model: usize,
    inner: Need,
) -> Need {
    let gradients = if placement == NormPlacement::Parallel { 2 } else { 1 };
    room(rows, d_model).times(gradients).and(inner)
}
