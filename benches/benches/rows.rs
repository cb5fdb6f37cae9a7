//! Row kernels under criterion: regressions of our own. Comparisons are `rows-ns`'s.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use headrow_kernels::{
    Activation, Cpu, LayerNorm, Mat, MatMut, Par, Visible, activate, add_layer_norm,
    masked_softmax, softmax,
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
        let source = Mat::new(&x, rows, cols);
        let mut y = x.clone();
        group.throughput(Throughput::Elements((rows * cols) as u64));
        let mut bench = |name: &str, op: &dyn Fn(MatMut<'_>)| {
            group.bench_function(BenchmarkId::new(name, format!("{rows}x{cols}")), |bencher| {
                bencher.iter(|| {
                    y.copy_from_slice(black_box(&x));
                    op(MatMut::new(&mut y, rows, cols));
                });
            });
        };
        bench("softmax", &|y| softmax(cpu, one, y));
        bench("causal-softmax", &|y| masked_softmax(cpu, one, 0.125, Visible::Diagonal(96), y));
        bench("add-layer-norm", &|y| add_layer_norm(cpu, one, &norm, source, source, None, y));
        bench("gelu-erf", &|y| activate(cpu, one, Activation::GeluErf, y));
        bench("gelu-tanh", &|y| activate(cpu, one, Activation::GeluTanh, y));
    }
    group.finish();
}

criterion_group!(benches, rows);
criterion_main!(benches);
