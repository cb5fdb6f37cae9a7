//! Linear maps in training: y = xWᵀ + b from weights as the checkpoint has them, and dx = dy·W, dW += dyᵀx, db += Σ dy.
//!
//! An output is the same chain of multiply-adds as with packed weights, so it has the same bits.

use super::{Call, Linear, take};
use crate::origin::Piece;
use crate::train::pass::TrainingPass;
use headrow_kernels::{
    Activation, Cpu, Epilogue, Left, LeftKind, Mat, MatMut, Need, Right, RightKind, Stack, Write,
    add_column_sums, gemm, gemm_scratch,
};
use std::ops::Range;

/// Outputs that are neighbours both in the map and in a tensor.
#[derive(Clone)]
struct Strip<'a> {
    piece: &'a Piece,
    inputs: usize,
    /// Columns of the map's result.
    columns: Range<usize>,
    /// Outputs of the tensor.
    outputs: Range<usize>,
}

impl<'a> Strip<'a> {
    /// W of these outputs, as the tensor has it.
    fn weight(&self, parameters: &'a [f32]) -> Mat<'a> {
        let Piece { weight, inputs_first, all, .. } = self.piece;
        let tensor = &parameters[weight.clone()];
        match inputs_first {
            true => Mat::new(tensor, self.inputs, *all).columns(self.outputs.clone()),
            false => Mat::new(tensor, *all, self.inputs).rows_range(self.outputs.clone()),
        }
    }

    /// [`Strip::weight`] of the gradients.
    fn weight_mut(&self, gradients: &'a mut [f32]) -> MatMut<'a> {
        let Piece { weight, inputs_first, all, .. } = self.piece;
        let tensor = &mut gradients[weight.clone()];
        match inputs_first {
            true => MatMut::new(tensor, self.inputs, *all).columns(self.outputs.clone()),
            false => MatMut::new(tensor, *all, self.inputs).rows_range(self.outputs.clone()),
        }
    }

    /// Its columns, counted from the first of `columns`.
    fn within(&self, columns: &Range<usize>) -> Range<usize> {
        self.columns.start - columns.start..self.columns.end - columns.start
    }

    /// Where the biases of these outputs are.
    fn bias(&self) -> Option<Range<usize>> {
        let start = self.piece.bias.as_ref()?.start;
        Some(start + self.outputs.start..start + self.outputs.end)
    }
}

impl Linear {
    /// The map's outputs from left to right.
    fn strips(&self) -> impl Iterator<Item = Strip<'_>> {
        let mut first = 0;
        let inputs = self.origin.inputs;
        let pieces = self.origin.pieces.iter();
        let ranges = pieces.flat_map(|piece| piece.outputs.iter().map(move |range| (piece, range)));
        ranges.map(move |(piece, range)| {
            let columns = first..first + range.len();
            first = columns.end;
            Strip { piece, inputs, columns, outputs: range.clone() }
        })
    }

    /// Those within some columns.
    fn strips_of<'a>(&'a self, columns: &Range<usize>) -> impl Iterator<Item = Strip<'a>> {
        let Range { start, end } = *columns;
        self.strips().filter(move |strip| start <= strip.columns.start && strip.columns.end <= end)
    }

    /// Features that it gives.
    pub(crate) fn width(&self) -> usize {
        self.origin.outputs
    }

    /// out ← activation(x·Wᵀ + b) + residual, as [`Linear::forward`] does with packed weights.
    #[expect(clippy::too_many_arguments, reason = "the operands of the map and where they are")]
    pub(crate) fn apply(
        &self,
        call: Call<'_>,
        parameters: &[f32],
        x: Mat<'_>,
        activation: Activation,
        residual: Option<Mat<'_>>,
        mut out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        for strip in self.strips() {
            let weight = strip.weight(parameters);
            let right = match strip.piece.inputs_first {
                true => Right::Plain(weight),
                false => Right::Transposed(weight),
            };
            let residual = residual.map(|residual| residual.columns(strip.columns.clone()));
            let bias = strip.bias().map(|bias| &parameters[bias]);
            let epilogue = Epilogue { bias, activation, residual, ..Epilogue::default() };
            let out = out.reborrow().columns(strip.columns);
            gemm(call.cpu, call.par, x, right, Write::Replace, &epilogue, out, stack);
        }
    }

    /// dW += dyᵀ·x and db += Σ dy.
    pub(crate) fn add_gradients(
        &self,
        call: Call<'_>,
        x: Mat<'_>,
        dy: Mat<'_>,
        gradients: &mut [f32],
        stack: &mut Stack<'_>,
    ) {
        self.add_gradients_of(0..self.width(), call, x, dy, gradients, stack);
    }

    /// The same of some columns of the map, none of whose tensors has others too, from their dy alone.
    pub(crate) fn add_gradients_of(
        &self,
        columns: Range<usize>,
        call: Call<'_>,
        x: Mat<'_>,
        dy: Mat<'_>,
        gradients: &mut [f32],
        stack: &mut Stack<'_>,
    ) {
        let (write, epilogue) = (Write::Accumulate, Epilogue::default());
        for strip in self.strips_of(&columns) {
            let dy = dy.columns(strip.within(&columns));
            if let Some(bias) = strip.bias() {
                add_column_sums(call.cpu, call.par, dy, &mut gradients[bias]);
            }
            let (left, right) = match strip.piece.inputs_first {
                true => (Left::Transposed(x), Right::Plain(dy)),
                false => (Left::Transposed(dy), Right::Plain(x)),
            };
            let weight = strip.weight_mut(gradients);
            gemm(call.cpu, call.par, left, right, write, &epilogue, weight, stack);
        }
    }

    /// dx ← dy·W, or dx += dy·W.
    pub(crate) fn back(
        &self,
        call: Call<'_>,
        parameters: &[f32],
        dy: Mat<'_>,
        write: Write,
        dx: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        self.back_of(0..self.width(), call, parameters, dy, write, dx, stack);
    }

    /// The same of some columns of the map, as [`Linear::add_gradients_of`].
    #[expect(clippy::too_many_arguments, reason = "the operands of the map and where they are")]
    pub(crate) fn back_of(
        &self,
        columns: Range<usize>,
        call: Call<'_>,
        parameters: &[f32],
        dy: Mat<'_>,
        mut write: Write,
        mut dx: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        for strip in self.strips_of(&columns) {
            let weight = strip.weight(parameters);
            let right = match strip.piece.inputs_first {
                true => Right::Transposed(weight),
                false => Right::Plain(weight),
            };
            let (dy, dx) = (dy.columns(strip.within(&columns)), dx.reborrow());
            gemm(call.cpu, call.par, dy, right, write, &Epilogue::default(), dx, stack);
            write = Write::Accumulate;
        }
    }

    /// dx = dy·W, taken off the stack, for the x that the map read; dW += dyᵀ·x and db += Σ dy.
    pub(crate) fn backward<'s>(
        &self,
        pass: &TrainingPass<'_>,
        x: Mat<'_>,
        dy: Mat<'_>,
        gradients: &mut [f32],
        stack: &'s mut Stack<'_>,
    ) -> (MatMut<'s>, Stack<'s>) {
        self.add_gradients(pass.call, x, dy, gradients, stack);
        let (mut dx, mut stack) = take(stack, x.rows(), self.origin.inputs);
        let (call, parameters, to) = (pass.call, pass.parameters, dx.reborrow());
        self.back(call, parameters, dy, Write::Replace, to, &mut stack);
        (dx, stack)
    }

    /// Scratch of all of these for up to `rows` rows.
    pub(crate) fn training_scratch(&self, cpu: Cpu, threads: usize, rows: usize) -> Need {
        let mut need = Need::NONE;
        let mut last = 0;
        for Strip { piece, inputs, outputs, .. } in self.strips() {
            let n = std::mem::replace(&mut last, outputs.len());
            if n != last {
                need = need.or(products(cpu, threads, rows, piece.inputs_first, inputs, last));
            }
        }
        need
    }
}

/// Scratch of the three products with a tensor of weights.
fn products(
    cpu: Cpu,
    threads: usize,
    rows: usize,
    inputs_first: bool,
    inputs: usize,
    outputs: usize,
) -> Need {
    let (on, back) = match inputs_first {
        true => (RightKind::Plain, RightKind::Transposed),
        false => (RightKind::Transposed, RightKind::Plain),
    };
    let on = gemm_scratch(cpu, threads, rows, outputs, inputs, LeftKind::Plain, on);
    let back = gemm_scratch(cpu, threads, rows, inputs, outputs, LeftKind::Plain, back);
    let (m, n) = if inputs_first { (inputs, outputs) } else { (outputs, inputs) };
    on.or(back).or(weight_scratch(cpu, threads, rows, m, n))
}

/// Scratch of the product of an m × k matrix, transposed, and a k × n one for every k up to `rows`: blocks of the depth do not
/// grow with it evenly.
pub(crate) fn weight_scratch(cpu: Cpu, threads: usize, rows: usize, m: usize, n: usize) -> Need {
    let of = |k| gemm_scratch(cpu, threads, m, n, k, LeftKind::Transposed, RightKind::Plain);
    (1..=rows).map(of).fold(Need::NONE, Need::or)
}
