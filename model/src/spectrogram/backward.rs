//! Convolutions over time in training.
//!
//! A checkpoint has their weights channel by channel, and a window lies in memory frame by frame: so the weights are laid out
//! anew for each pass, and their gradients are laid back. The products go through the windows of the forward pass, so
//! states have its bits; what comes back to a window is added where it lies, one part of the windows after the other.

use super::{BLOCK, STRIDE, Spectrogram, TAPS, Windows, lay_out};
use crate::embedding::backward::MASK;
use crate::error::Result;
use crate::linear::{Call, Linear, room};
use crate::train::claims::Claims;
use crate::train::pass::{Back, TrainingPass, grown};
use headrow_kernels::{
    Activation, Cpu, Epilogue, Left, LeftKind, Mat, MatMut, Need, Right, RightKind, Stack, Write,
    activate, activate_backward, add_column_sums, dropout, gemm, gemm_scratch,
};

const GELU: Activation = Activation::GeluErf;

/// What both convolutions give before it is activated.
#[derive(Debug, Default)]
pub(crate) struct SpectrogramKept {
    first: Vec<f32>,
    second: Vec<f32>,
}

impl SpectrogramKept {
    /// For spectrograms that give up to `rows` rows.
    pub(crate) fn new(
        entrance: &Spectrogram,
        rows: usize,
        claims: &mut Claims,
    ) -> Result<SpectrogramKept> {
        let whole = rows / entrance.frames.max(1) * entrance.frames;
        let size = whole.saturating_mul(entrance.second.width());
        Ok(SpectrogramKept { first: claims.zeros(STRIDE, size)?, second: claims.zeros(size, 1)? })
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        grown(&self.first) + grown(&self.second)
    }
}

/// A convolution whose weights, outputs × TAPS·channels, are laid out as windows are.
#[derive(Clone, Copy)]
struct Convolution<'a> {
    stride: usize,
    weight: Mat<'a>,
}

impl<'a> Convolution<'a> {
    fn new(map: &Linear, stride: usize, parameters: &[f32], room: &'a mut [f32]) -> Self {
        lay_out_weights(map, parameters, room);
        Convolution { stride, weight: Mat::new(room, map.width(), map.origin.inputs) }
    }

    fn windows(self, count: usize) -> impl Iterator<Item = Windows> {
        Windows::parted(self.weight.cols(), self.stride, count)
    }

    /// out ← windows·Wᵀ + b.
    fn apply(
        self,
        call: Call<'_>,
        bias: Option<&[f32]>,
        padded: &[f32],
        mut out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let epilogue = Epilogue { bias, ..Epilogue::default() };
        for part in self.windows(out.rows()) {
            let out = out.reborrow().every(part.first, part.step);
            let (x, w) = (part.of(padded, out.rows()), Right::Transposed(self.weight));
            gemm(call.cpu, call.par, x, w, Write::Replace, &epilogue, out, stack);
        }
    }

    /// d_padded ← dy·W, summed where windows overlap.
    fn back(self, call: Call<'_>, dy: Mat<'_>, d_padded: &mut [f32], stack: &mut Stack<'_>) {
        d_padded.fill(0.0);
        for part in self.windows(dy.rows()) {
            let dy = dy.every(part.first, part.step);
            let Windows { first, step, width, hop } = part;
            let lies = &mut d_padded[first * hop..];
            let to = MatMut::with_stride(lies, dy.rows(), width, step * hop);
            let (add, epilogue) = (Write::Accumulate, Epilogue::default());
            gemm(call.cpu, call.par, dy, self.weight, add, &epilogue, to, stack);
        }
    }

    /// Scratch of all of these for a map with `frames` results.
    fn scratch(map: &Linear, stride: usize, frames: usize, cpu: Cpu, threads: usize) -> Need {
        let (n, k) = (map.width(), map.origin.inputs);
        let of = |part: Windows| {
            let rows = (frames - part.first).div_ceil(part.step);
            let (plain, transposed) = (LeftKind::Plain, LeftKind::Transposed);
            let on = gemm_scratch(cpu, threads, rows, n, k, plain, RightKind::Transposed);
            let back = gemm_scratch(cpu, threads, rows, k, n, plain, RightKind::Plain);
            on.or(back).or(gemm_scratch(cpu, threads, n, k, rows, transposed, RightKind::Plain))
        };
        Windows::parted(k, stride, frames).map(of).fold(Need::NONE, Need::or)
    }
}

/// d_weight += dyᵀ·windows and db += Σ dy.
fn add_gradients(
    call: Call<'_>,
    (map, stride): (&Linear, usize),
    padded: &[f32],
    dy: Mat<'_>,
    d_weight: &mut [f32],
    gradients: &mut [f32],
    stack: &mut Stack<'_>,
) {
    if let Some(place) = map.origin.pieces[0].bias.clone() {
        add_column_sums(call.cpu, call.par, dy, &mut gradients[place]);
    }
    let (outputs, inputs) = (map.width(), map.origin.inputs);
    for part in Windows::parted(inputs, stride, dy.rows()) {
        let dy = dy.every(part.first, part.step);
        let (left, x) = (Left::Transposed(dy), part.of(padded, dy.rows()));
        let (add, epilogue) = (Write::Accumulate, Epilogue::default());
        let to = MatMut::new(d_weight, outputs, inputs);
        gemm(call.cpu, call.par, left, x, add, &epilogue, to, stack);
    }
}

/// Numbers of a map's weights.
fn weights(map: &Linear) -> usize {
    map.origin.inputs * map.width()
}

/// The weights of a map in a vector of parameters or of gradients.
fn place(map: &Linear) -> std::ops::Range<usize> {
    map.origin.pieces[0].weight.clone()
}

fn bias<'p>(map: &Linear, parameters: &'p [f32]) -> Option<&'p [f32]> {
    map.origin.pieces[0].bias.clone().map(|place| &parameters[place])
}

/// Each row × column matrix of `from`, transposed.
fn transposed(from: &[f32], rows: usize, columns: usize, to: &mut [f32]) {
    let each = rows * columns;
    for (from, to) in from.chunks_exact(each).zip(to.chunks_exact_mut(each)) {
        for (i, x) in to.iter_mut().enumerate() {
            *x = from[i % rows * columns + i / rows];
        }
    }
}

/// to ← the weights of a map, or their gradients, laid out as windows are.
fn lay_out_weights(map: &Linear, numbers: &[f32], to: &mut [f32]) {
    transposed(&numbers[place(map)], map.origin.inputs / TAPS, TAPS, to);
}

/// The other way round.
fn lay_back_weights(map: &Linear, laid_out: &[f32], numbers: &mut [f32]) {
    transposed(laid_out, TAPS, map.origin.inputs / TAPS, &mut numbers[place(map)]);
}

/// states ← 0, GELU(inner): what the second convolution reads.
fn activated(call: Call<'_>, inner: Mat<'_>, states: &mut [f32]) {
    let (zeros, here) = states.split_at_mut(inner.cols());
    zeros.fill(0.0);
    let mut here = MatMut::new(here, inner.rows(), inner.cols());
    here.copy_from(inner);
    activate(call.cpu, call.par, GELU, here);
}

impl Spectrogram {
    /// out ← dropout of what [`Spectrogram::forward`] gives, from parameters.
    pub(crate) fn apply(
        &self,
        pass: &TrainingPass<'_>,
        values: &[f32],
        kept: &mut SpectrogramKept,
        mut out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let &Spectrogram { bands, frames, .. } = self;
        let (call, parameters, d_model) = (pass.call, pass.parameters, out.cols());
        let read = STRIDE * frames;
        let biases = [&self.first, &self.second].map(|map| bias(map, parameters));
        let (input, mut stack) = stack.take::<f32>((read + 2) * bands);
        let (states, mut stack) = stack.take::<f32>((read + 1) * d_model);
        let (first, mut stack) = stack.take::<f32>(weights(&self.first));
        let (second, mut stack) = stack.take::<f32>(weights(&self.second));
        let first = Convolution::new(&self.first, 1, parameters, first);
        let second = Convolution::new(&self.second, STRIDE, parameters, second);
        let positions = &parameters[self.positions.place.clone()];
        let positions = Mat::new(positions, frames, d_model);
        for (index, values) in values.chunks_exact(bands * read).enumerate() {
            let rows = index * frames..(index + 1) * frames;
            let inner = &mut kept.first[STRIDE * rows.start * d_model..][..read * d_model];
            let outer = &mut kept.second[rows.start * d_model..][..frames * d_model];
            lay_out(call, Mat::new(values, bands, read), MatMut::new(input, read + 2, bands));
            let to = MatMut::new(inner, read, d_model);
            first.apply(call, biases[0], input, to, &mut stack);
            activated(call, Mat::new(inner, read, d_model), states);
            let to = MatMut::new(outer, frames, d_model);
            second.apply(call, biases[1], states, to, &mut stack);
            let mut out = out.reborrow().rows_range(rows);
            out.copy_from(Mat::new(outer, frames, d_model));
            activate(call.cpu, call.par, GELU, out.reborrow());
            add(call, positions, out);
        }
        if let Some(drop) = pass.dropout(MASK) {
            dropout(call.cpu, call.par, &drop, out);
        }
    }

    /// Adds to the gradients of both convolutions (over the windows of one spectrogram after the other) from the gradient `d` of what
    /// [`Spectrogram::apply`] gave, which is overwritten. Positions do not learn.
    pub(crate) fn backward(
        &self,
        pass: &TrainingPass<'_>,
        values: &[f32],
        kept: &SpectrogramKept,
        back: Back<'_>,
        stack: &mut Stack<'_>,
    ) {
        let Back { mut d, gradients } = back;
        let &Spectrogram { bands, frames, .. } = self;
        let (call, d_model, read) = (pass.call, d.cols(), STRIDE * frames);
        let Call { cpu, par } = call;
        if let Some(drop) = pass.dropout(MASK) {
            dropout(cpu, par, &drop, d.reborrow());
        }
        let (input, mut stack) = stack.take::<f32>((read + 2) * bands);
        let (states, mut stack) = stack.take::<f32>((read + 1) * d_model);
        let (d_states, mut stack) = stack.take::<f32>((read + 1) * d_model);
        let (second, mut stack) = stack.take::<f32>(weights(&self.second));
        let (d_first, mut stack) = stack.take::<f32>(weights(&self.first));
        let (d_second, mut stack) = stack.take::<f32>(weights(&self.second));
        let convolution = Convolution::new(&self.second, STRIDE, pass.parameters, second);
        // Sums go on from what is there.
        lay_out_weights(&self.first, gradients, d_first);
        lay_out_weights(&self.second, gradients, d_second);
        for (index, values) in values.chunks_exact(bands * read).enumerate() {
            let rows = index * frames..(index + 1) * frames;
            let inner = &kept.first[STRIDE * rows.start * d_model..][..read * d_model];
            let outer = &kept.second[rows.start * d_model..][..frames * d_model];
            let inner = Mat::new(inner, read, d_model);
            let mut dy = d.reborrow().rows_range(rows);
            activate_backward(cpu, par, GELU, Mat::new(outer, frames, d_model), dy.reborrow());
            activated(call, inner, states);
            let (map, dy) = ((&self.second, STRIDE), dy.as_ref());
            add_gradients(call, map, states, dy, d_second, gradients, &mut stack);
            convolution.back(call, dy, d_states, &mut stack);
            let mut dy = MatMut::new(&mut d_states[d_model..], read, d_model);
            activate_backward(cpu, par, GELU, inner, dy.reborrow());
            lay_out(call, Mat::new(values, bands, read), MatMut::new(input, read + 2, bands));
            let (map, dy) = ((&self.first, 1), dy.as_ref());
            add_gradients(call, map, input, dy, d_first, gradients, &mut stack);
        }
        lay_back_weights(&self.first, d_first, gradients);
        lay_back_weights(&self.second, d_second, gradients);
    }

    /// Scratch of both for any number of spectrograms.
    pub(crate) fn training_scratch(&self, cpu: Cpu, threads: usize) -> Need {
        let read = STRIDE * self.frames;
        let states = room(read + 1, self.second.width()).times(2);
        let of = |map: &Linear| Need::of::<f32>(weights(map));
        let maps = of(&self.first).and(of(&self.second).times(2));
        let products = Convolution::scratch(&self.first, 1, read, cpu, threads);
        let products =
            products.or(Convolution::scratch(&self.second, STRIDE, self.frames, cpu, threads));
        room(read + 2, self.bands).and(states).and(maps).and(products)
    }
}

/// out ← out + x.
fn add(call: Call<'_>, x: Mat<'_>, out: MatMut<'_>) {
    call.par.for_rows(out, BLOCK, &|first, mut block| {
        for i in 0..block.rows() {
            block.row_mut(i).iter_mut().zip(x.row(first + i)).for_each(|(y, x)| *y += x);
        }
    });
}
