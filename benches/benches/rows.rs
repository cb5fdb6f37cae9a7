//! Row kernels under criterion, beside a copy of the same rows. `rows-ns` has more of them, in nanoseconds.
#![allow(missing_docs)]

mod beside;

use beside::{Limit, bench};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use headrow_kernels::{
    Activation, Cpu, LayerNorm, Mat, MatMut, Par, RmsNorm, Visible, activate, add_layer_norm,
    masked_softmax, rms_norm, softmax,
};
use std::hint::black_box;

fn rows(criterion: &mut Criterion) {
    let cpu = Cpu::detect();
    let one = Par::SERIAL;
    let mut group = criterion.benchmark_group(format!("rows/{}", cpu.isa()));
    for (rows, cols) in [(16, 128), (4, 384), (2, 768)] {
        let x: Vec<f32> =
            (0..rows * cols).map(|i| (i * 7919 % 1009) as f32 / 100.0 - 5.0).collect();
        let gamma = vec![1.0; cols];
        let norm = LayerNorm { gamma: &gamma, beta: Some(&gamma), epsilon: 1e-12 };
        let rms = RmsNorm { gamma: &gamma, epsilon: 1e-6 };
        let source = Mat::new(&x, rows, cols);
        let mut y = x.clone();
        let mut row = |name: &str, op: &dyn Fn(MatMut<'_>)| {
            let id = BenchmarkId::new(name, format!("{rows}x{cols}"));
            // The copy that each call works on is part of the call: softmax of softmax of … is another thing.
            bench(&mut group, cpu, id, Limit::Copying(rows * cols), || {
                y.copy_from_slice(black_box(&x));
                op(MatMut::new(&mut y, rows, cols));
            });
        };
        row("softmax", &|y| softmax(cpu, one, y));
        row("causal-softmax", &|y| masked_softmax(cpu, one, 0.125, Visible::Diagonal(96), y));
        row("add-layer-norm", &|y| add_layer_norm(cpu, one, &norm, source, source, None, y));
        row("rms-norm", &|y| rms_norm(cpu, one, &rms, source, y));
        row("gelu-erf", &|y| activate(cpu, one, Activation::GeluErf, y));
        row("gelu-tanh", &|y| activate(cpu, one, Activation::GeluTanh, y));
        row("silu", &|y| activate(cpu, one, Activation::Silu, y));
    }
    group.finish();
}

criterion_group!(benches, rows);
criterion_main!(benches);
