//! The masked language model's head in training.

use super::MaskedLm;
use crate::error::Result;
use crate::linear::{room, take};
use crate::train::claims::Claims;
use crate::train::pass::{TrainingPass, grown};
use headrow_kernels::{
    Activation, Cpu, Mat, MatMut, Moments, Need, Stack, Write, activate, activate_backward,
};

/// What the head keeps: x·W + b before and behind the activation, and what the norm makes of it.
#[derive(Debug, Default)]
pub(crate) struct MaskedLmKept {
    inner: Vec<f32>,
    activated: Vec<f32>,
    moments: Vec<Moments>,
}

impl MaskedLmKept {
    /// For up to `rows` tokens.
    pub(crate) fn new(head: &MaskedLm, rows: usize, claims: &mut Claims) -> Result<MaskedLmKept> {
        let width = head.transform.width();
        Ok(MaskedLmKept {
            inner: claims.zeros(rows, width)?,
            activated: claims.zeros(rows, width)?,
            moments: claims.zeros(rows, 1)?,
        })
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        grown(&self.inner) + grown(&self.activated) + grown(&self.moments)
    }
}

impl MaskedLm {
    /// out ← LN(σ(x·W + b)), which the words' matrix reads.
    pub(crate) fn transform(
        &self,
        pass: &TrainingPass<'_>,
        x: Mat<'_>,
        kept: &mut MaskedLmKept,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let (call, parameters) = (pass.call, pass.parameters);
        let (rows, width) = (x.rows(), self.transform.width());
        let mut inner = MatMut::new(&mut kept.inner[..rows * width], rows, width);
        let identity = Activation::Identity;
        self.transform.apply(call, parameters, x, identity, None, inner.reborrow(), stack);
        let mut activated = MatMut::new(&mut kept.activated[..rows * width], rows, width);
        activated.copy_from(inner.as_ref());
        activate(call.cpu, call.par, self.activation, activated.reborrow());
        self.norm.apply(call, parameters, activated.as_ref(), &mut kept.moments[..rows], out);
    }

    /// dx ← what comes back from the gradient d of what [`MaskedLm::transform`] gave.
    #[expect(clippy::too_many_arguments, reason = "the operands of the map and their gradients")]
    pub(crate) fn transform_backward(
        &self,
        pass: &TrainingPass<'_>,
        x: Mat<'_>,
        kept: &MaskedLmKept,
        d: Mat<'_>,
        dx: MatMut<'_>,
        gradients: &mut [f32],
        stack: &mut Stack<'_>,
    ) {
        let (call, parameters) = (pass.call, pass.parameters);
        let (rows, width) = (x.rows(), self.transform.width());
        let of = |values| Mat::new(values, rows, width);
        let (inner, activated) =
            (of(&kept.inner[..rows * width]), of(&kept.activated[..rows * width]));
        let (mut d_inner, mut stack) = take(stack, rows, width);
        let (moments, to) = (&kept.moments[..rows], d_inner.reborrow());
        let replace = Write::Replace;
        self.norm.backward(call, parameters, moments, activated, d, replace, to, gradients);
        activate_backward(call.cpu, call.par, self.activation, inner, d_inner.reborrow());
        self.transform.add_gradients(call, x, d_inner.as_ref(), gradients, &mut stack);
        self.transform.back(call, parameters, d_inner.as_ref(), replace, dx, &mut stack);
    }

    /// Scratch of both for up to `rows` tokens.
    pub(crate) fn transform_scratch(&self, cpu: Cpu, threads: usize, rows: usize) -> Need {
        let map = self.transform.training_scratch(cpu, threads, rows);
        room(rows, self.transform.width()).and(map)
    }
}
