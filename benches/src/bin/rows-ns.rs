//! Row kernels, nanoseconds per element on one thread, data in the nearest caches.
//!
//!     rows-ns [ISA [ROWSxCOLS …]]

use headrow_benches::race::{Contender, race};
use headrow_kernels::rows::math;
use headrow_kernels::{
    Activation, Adam, Cpu, CrossEntropy, Dropout, LayerNorm, Mat, MatMut, Moments, Need,
    NormOutput, Par, RmsNorm, Rope, RopeLayout, Scratch, Smoothing, TokenLoss, Visible, Write,
    activate, activate_backward, adam, add_column_sums, add_dropout, add_layer_norm,
    cross_entropy_backward, gate, gate_backward, layer_norm, layer_norm_backward, log_softmax,
    masked_softmax, rms_norm, rope, softmax, softmax_backward,
};
use std::cell::RefCell;
use std::hint::black_box;
use std::time::Duration;

/// What a straightforward loop over the platform's mathematical library makes of softmax.
fn softmax_with_libm(x: &mut [f32], cols: usize) {
    for row in x.chunks_exact_mut(cols) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for x in row.iter_mut() {
            *x = (*x - max).exp();
            sum += *x;
        }
        row.iter_mut().for_each(|x| *x /= sum);
    }
}

type Op<'a> = Box<dyn Fn(MatMut<'_>) + 'a>;

fn main() {
    let cpu = match std::env::args().nth(1) {
        Some(isa) => Cpu::with_isa(isa.parse().expect("an instruction set")).expect("available"),
        None => Cpu::detect(),
    };
    println!("{cpu}");
    println!("{:<28} {:>9} {:>9} {:>9}", "ns per element", "rows×cols", "median", "best");
    let shape = |text: String| {
        let (rows, cols) = text.split_once('x').expect("ROWSxCOLS");
        (rows.parse().expect("rows"), cols.parse().expect("columns"))
    };
    let mut shapes: Vec<(usize, usize)> = std::env::args().skip(2).map(shape).collect();
    if shapes.is_empty() {
        shapes = vec![(64, 32), (16, 128), (12, 200), (4, 512), (2, 768), (1, 2048)];
    }
    for (rows, cols) in shapes {
        let source: Vec<f32> =
            (0..rows * cols).map(|i| (i * 7919 % 1009) as f32 / 100.0 - 5.0).collect();
        let residual = source.iter().map(|x| x * 0.3 + 0.1).collect::<Vec<f32>>();
        let gamma: Vec<f32> = (0..cols).map(|i| 1.0 + (i % 7) as f32 * 0.01).collect();
        let visible: Vec<bool> = (0..rows * cols).map(|i| i % 5 != 0).collect();
        let bias: Vec<f32> = source.iter().map(|x| x * 0.1).collect();
        let (bias, visible) = (Mat::new(&bias, rows, cols), Mat::new(&visible, rows, cols));
        let (x, residual) = (Mat::new(&source, rows, cols), Mat::new(&residual, rows, cols));
        let ln = LayerNorm { gamma: &gamma, beta: Some(&gamma), epsilon: 1e-12 };
        let rms = RmsNorm { gamma: &gamma, epsilon: 1e-6 };
        let masked = |kind: Visible<'static>| {
            Box::new(move |y: MatMut<'_>| masked_softmax(cpu, Par::SERIAL, 0.125, kind.clone(), y))
        };
        let one = Par::SERIAL;
        // Heads of 64 features where the row has that many.
        let width = cols.min(64);
        let (angles, positions) =
            (residual.columns(0..width / 2), (0..rows as u32).collect::<Vec<_>>());
        let turned = |layout| -> Op<'_> {
            let (tables, positions) = (Rope { cos: angles, sin: angles, layout }, &positions);
            Box::new(move |y| {
                let whole = y.cols() / width * width;
                rope(cpu, one, &tables, positions, whole / width, y.columns(0..whole));
            })
        };
        let mut saved = vec![Moments::default(); rows];
        let mut normed = source.clone();
        let to = NormOutput::from(MatMut::new(&mut normed, rows, cols)).with_moments(&mut saved);
        layer_norm(cpu, one, &ln, x, to);
        let sums = RefCell::new([vec![0.0; cols], vec![0.0; cols]]);
        let moments = RefCell::new([source.clone(), source.iter().map(|x| x * x).collect()]);
        let losses = RefCell::new(vec![TokenLoss::default(); rows]);
        let labels = vec![Some(1); rows];
        let smoothed = CrossEntropy::default().with_smoothing(Smoothing::All(0.1));
        let drop = Dropout::new(0.1, 1, 2);
        let ops: Vec<(&str, Op<'_>)> = vec![
            ("softmax", Box::new(|y| softmax(cpu, one, y))),
            ("masked softmax, scaled", masked(Visible::All)),
            ("masked softmax, range", masked(Visible::Range(0..cols - 3))),
            (
                "masked softmax, bits",
                Box::new(|y| masked_softmax(cpu, one, 0.125, Visible::Each(visible), y)),
            ),
            (
                "masked softmax, bias",
                Box::new(|y| masked_softmax(cpu, one, 0.125, Visible::Added(bias), y)),
            ),
            ("log softmax", Box::new(|y| log_softmax(cpu, one, y))),
            ("LayerNorm", Box::new(|y| layer_norm(cpu, one, &ln, x, y))),
            ("add + LayerNorm", Box::new(|y| add_layer_norm(cpu, one, &ln, x, residual, None, y))),
            ("RMSNorm", Box::new(|y| rms_norm(cpu, one, &rms, x, y))),
            ("ReLU", Box::new(|y| activate(cpu, one, Activation::Relu, y))),
            ("GELU, erf", Box::new(|y| activate(cpu, one, Activation::GeluErf, y))),
            ("GELU, tanh", Box::new(|y| activate(cpu, one, Activation::GeluTanh, y))),
            ("SiLU", Box::new(|y| activate(cpu, one, Activation::Silu, y))),
            ("SiLU gate", Box::new(|y| gate(cpu, one, Activation::Silu, x, residual, y))),
            ("RoPE, half-split", turned(RopeLayout::HalfSplit)),
            ("RoPE, interleaved", turned(RopeLayout::Interleaved)),
            (
                "LayerNorm, backward",
                Box::new(|y| {
                    let [gamma, beta] = &mut *sums.borrow_mut();
                    let write = Write::Replace;
                    let beta = Some(&mut beta[..]);
                    layer_norm_backward(cpu, one, &ln, &saved, x, residual, write, y, gamma, beta);
                }),
            ),
            (
                "column sums",
                Box::new(|y| add_column_sums(cpu, one, y.as_ref(), &mut sums.borrow_mut()[0])),
            ),
            (
                "GELU, erf, backward",
                Box::new(|y| activate_backward(cpu, one, Activation::GeluErf, x, y)),
            ),
            (
                "GELU, tanh, backward",
                Box::new(|y| activate_backward(cpu, one, Activation::GeluTanh, x, y)),
            ),
            (
                "SiLU gate, backward",
                Box::new(|y| {
                    let up = &mut moments.borrow_mut()[0];
                    let up = MatMut::new(up, rows, cols);
                    gate_backward(cpu, one, Activation::Silu, x, residual, x, y, up);
                }),
            ),
            ("softmax, backward", Box::new(|y| softmax_backward(cpu, one, x, y))),
            (
                "cross entropy, backward",
                Box::new(|y| {
                    let losses = &mut losses.borrow_mut();
                    cross_entropy_backward(cpu, one, &smoothed, 0.5, y, &labels, losses);
                }),
            ),
            ("add + dropout", Box::new(|y| add_dropout(cpu, one, &drop, x, residual, y))),
            (
                "Adam",
                Box::new(|mut y| {
                    let [m, v] = &mut *moments.borrow_mut();
                    for i in 0..rows {
                        let (m, v) = (&mut m[i * cols..][..cols], &mut v[i * cols..][..cols]);
                        let (g, p) = (x.row(i), y.row_mut(i));
                        adam(cpu, one, &Adam::default(), 9, 1e-4, 1.0, g, m, v, p);
                    }
                }),
            ),
            ("exp", Box::new(|y| math::exp(cpu, one, y))),
            ("ln", Box::new(|y| math::ln(cpu, one, y))),
            ("erf", Box::new(|y| math::erf(cpu, one, y))),
            ("tanh", Box::new(|y| math::tanh(cpu, one, y))),
            ("softmax, scalar libm", Box::new(|mut y| softmax_with_libm(y.row_mut(0), cols))),
        ];
        let mut contenders: Vec<Contender<'_>> = ops
            .iter()
            .map(|(name, op)| {
                // Fresh data now and then: softmax of softmax of … tends to a constant row, and x·Φ(x) to
                // denormals.
                // On a cache line's start, as scratch memory is: stores across lines cost several times as much.
                let mut memory = Scratch::new(Need::of::<f32>(source.len()));
                let (source, mut calls) = (&source, 0);
                let (rows, cols) =
                    if *name == "softmax, scalar libm" { (1, rows * cols) } else { (rows, cols) };
                Contender::new(*name, move || {
                    let mut stack = memory.stack();
                    let (y, _) = stack.take::<f32>(rows * cols);
                    if calls % 16 == 0 {
                        y.copy_from_slice(black_box(source));
                    }
                    calls += 1;
                    op(MatMut::new(black_box(y), rows, cols));
                })
            })
            .collect();
        let times = race(&mut contenders, 15, Duration::from_millis(2));
        let elements = (rows * cols) as f64;
        for ((name, _), time) in ops.iter().zip(&times) {
            let (median, best) = (time.median, time.min);
            println!(
                "{name:<28} {:>9} {:>9.3} {:>9.3}",
                format!("{rows}×{cols}"),
                median / elements * 1e9,
                best / elements * 1e9
            );
        }
    }
}
