//! xW + b: the linear maps of every layer, with the weights packed for this machine.

#[cfg(feature = "train")]
pub(crate) mod backward;

use crate::origin::Origin;
use headrow_kernels::{
    Activation, Cpu, Epilogue, LeftKind, Mat, MatMut, Need, PackedB, Par, RightKind, Stack, Write,
    gemm, gemm_scratch,
};

/// Who computes: the instruction set, and the workers of this call.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) cpu: Cpu,
    pub(crate) par: Par<'a>,
}

/// A linear map of k features to n.
pub(crate) struct Linear {
    /// W, k × n.
    pub(crate) weight: PackedB,
    /// b, n.
    pub(crate) bias: Option<Vec<f32>>,
    /// Where both stand among the parameters, in a plan.
    #[cfg_attr(not(feature = "train"), allow(dead_code, reason = "places are for training"))]
    pub(crate) origin: Origin,
}

impl Linear {
    /// A map that computes.
    pub(crate) fn new(weight: PackedB, bias: Option<Vec<f32>>) -> Linear {
        Linear { weight, bias, origin: Origin::default() }
    }

    /// out ← activation(x·W + b) + residual, in one pass over `out`.
    pub(crate) fn forward(
        &self,
        call: Call<'_>,
        x: Mat<'_>,
        activation: Activation,
        residual: Option<Mat<'_>>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let bias = self.bias.as_deref();
        let epilogue = Epilogue { bias, activation, residual, ..Epilogue::default() };
        gemm(call.cpu, call.par, x, &self.weight, Write::Replace, &epilogue, out, stack);
    }

    /// Scratch for up to `rows` rows.
    pub(crate) fn scratch(&self, cpu: Cpu, threads: usize, rows: usize) -> Need {
        let (n, k) = (self.weight.n(), self.weight.k());
        gemm_scratch(cpu, threads, rows, n, k, LeftKind::Plain, RightKind::Packed)
    }

    /// n.
    pub(crate) fn outputs(&self) -> usize {
        self.weight.n()
    }

    /// Bytes of weights and biases.
    pub(crate) fn bytes(&self) -> usize {
        self.weight.bytes() + self.bias.as_deref().map_or(0, size_of_val)
    }
}

/// Room for a `rows × cols` matrix.
pub(crate) fn room(rows: usize, cols: usize) -> Need {
    Need::of::<f32>(rows * cols)
}

/// Takes a `rows × cols` matrix off the stack. What it holds means nothing.
pub(crate) fn take<'s>(
    stack: &'s mut Stack<'_>,
    rows: usize,
    cols: usize,
) -> (MatMut<'s>, Stack<'s>) {
    let (values, stack) = stack.take::<f32>(rows * cols);
    (MatMut::new(values, rows, cols), stack)
}
