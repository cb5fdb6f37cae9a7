//! The feed-forward network in training.

use super::FeedForward;
use crate::error::Result;
use crate::linear::{room, take};
use crate::train::claims::Claims;
use crate::train::pass::{TrainingPass, grown};
use headrow_kernels::{
    Activation, Cpu, Mat, MatMut, Need, Stack, Write, activate, activate_backward, gate,
    gate_backward,
};

/// What it keeps: xW₁ + b₁ before the activation, and what reaches W₂.
#[derive(Debug, Default)]
pub(crate) struct FeedForwardKept {
    /// t × d_ff, with a gate t × 2·d_ff. Empty for ReLU without one, whose slope its result tells.
    inner: Vec<f32>,
    /// t × d_ff.
    wide: Vec<f32>,
}

impl FeedForwardKept {
    /// For up to `rows` tokens.
    pub(crate) fn new(
        layer: &FeedForward,
        rows: usize,
        claims: &mut Claims,
    ) -> Result<FeedForwardKept> {
        let inner = if layer.keeps_inner() { layer.inner.width() } else { 0 };
        let inner = claims.zeros(rows, inner)?;
        Ok(FeedForwardKept { inner, wide: claims.zeros(rows, layer.features())? })
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        grown(&self.inner) + grown(&self.wide)
    }
}

impl FeedForward {
    /// d_ff.
    fn features(&self) -> usize {
        self.outer.origin.inputs
    }

    fn keeps_inner(&self) -> bool {
        self.gated || self.activation != Activation::Relu
    }

    /// out ← FFN(x) + residual as [`FeedForward::forward`], from parameters.
    pub(crate) fn apply(
        &self,
        pass: &TrainingPass<'_>,
        x: Mat<'_>,
        kept: &mut FeedForwardKept,
        residual: Option<Mat<'_>>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let (call, parameters, identity) = (pass.call, pass.parameters, Activation::Identity);
        let (rows, features) = (x.rows(), self.features());
        let mut wide = MatMut::new(&mut kept.wide[..rows * features], rows, features);
        if !self.keeps_inner() {
            let wide = wide.reborrow();
            self.inner.apply(call, parameters, x, self.activation, None, wide, stack);
        } else {
            let width = self.inner.width();
            let mut inner = MatMut::new(&mut kept.inner[..rows * width], rows, width);
            self.inner.apply(call, parameters, x, identity, None, inner.reborrow(), stack);
            let inner = inner.as_ref();
            if self.gated {
                let (gates, values) = (inner.columns(0..features), inner.columns(features..width));
                gate(call.cpu, call.par, self.activation, gates, values, wide.reborrow());
            } else {
                wide.copy_from(inner);
                activate(call.cpu, call.par, self.activation, wide.reborrow());
            }
        }
        self.outer.apply(call, parameters, wide.as_ref(), identity, residual, out, stack);
    }

    /// d ← d·J or d ← d + d·J, from the gradient d of the result, for the x that was read.
    #[expect(
        clippy::too_many_arguments,
        reason = "the operands of the network and their gradients"
    )]
    pub(crate) fn backward(
        &self,
        pass: &TrainingPass<'_>,
        x: Mat<'_>,
        kept: &FeedForwardKept,
        write: Write,
        d: MatMut<'_>,
        gradients: &mut [f32],
        stack: &mut Stack<'_>,
    ) {
        let (call, parameters) = (pass.call, pass.parameters);
        let (rows, features, width) = (x.rows(), self.features(), self.inner.width());
        let wide = Mat::new(&kept.wide[..rows * features], rows, features);
        let (mut d_wide, mut stack) = self.outer.backward(pass, wide, d.as_ref(), gradients, stack);
        let kept_inner = || Mat::new(&kept.inner[..rows * width], rows, width);
        if !self.gated {
            let before = if self.keeps_inner() { kept_inner() } else { wide };
            activate_backward(call.cpu, call.par, self.activation, before, d_wide.reborrow());
            self.inner.add_gradients(call, x, d_wide.as_ref(), gradients, &mut stack);
            return self.inner.back(call, parameters, d_wide.as_ref(), write, d, &mut stack);
        }
        let inner = kept_inner();
        let (gates, values) = (inner.columns(0..features), inner.columns(features..width));
        let (mut d_gates, mut stack) = take(&mut stack, rows, features);
        let (mut d_values, mut stack) = take(&mut stack, rows, features);
        let (to_gates, to_values) = (d_gates.reborrow(), d_values.reborrow());
        let (cpu, par, dy) = (call.cpu, call.par, d_wide.as_ref());
        gate_backward(cpu, par, self.activation, gates, values, dy, to_gates, to_values);
        let halves = [(0..features, d_gates.as_ref()), (features..width, d_values.as_ref())];
        for (columns, dy) in halves.clone() {
            self.inner.add_gradients_of(columns, call, x, dy, gradients, &mut stack);
        }
        let mut write = write;
        let mut d = d;
        for (columns, dy) in halves {
            let dx = d.reborrow();
            self.inner.back_of(columns, call, parameters, dy, write, dx, &mut stack);
            write = Write::Accumulate;
        }
    }

    /// Scratch in training for up to `rows` tokens.
    pub(crate) fn training_scratch(&self, cpu: Cpu, threads: usize, rows: usize) -> Need {
        let maps = [&self.inner, &self.outer].map(|map| map.training_scratch(cpu, threads, rows));
        let wide = room(rows, self.features());
        let gradients = if self.gated { wide.times(3) } else { wide };
        gradients.and(maps[0].or(maps[1]))
    }
}
