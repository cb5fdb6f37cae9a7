//! GEMM under criterion: regressions of our own. Comparisons are `gemm-ratio`'s.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use headrow_kernels::{Cpu, Epilogue, Mat, MatMut, PackedB, Par, Scratch, Write};
use std::hint::black_box;

fn prepacked(criterion: &mut Criterion) {
    let cpu = Cpu::detect();
    let mut group = criterion.benchmark_group(format!("gemm/{}", cpu.isa()));
    for (k, n) in [(384, 384), (384, 1536), (768, 768), (768, 3072)] {
        let weight: Vec<f32> = (0..k * n).map(|i| (i % 251) as f32 / 251.0 - 0.5).collect();
        let weight = PackedB::new(cpu, Mat::new(&weight, k, n));
        for m in [1, 4, 16, 128] {
            let x: Vec<f32> = (0..m * k).map(|i| (i % 241) as f32 / 241.0 - 0.5).collect();
            let mut y = vec![0.0; m * n];
            let mut scratch = Scratch::new(headrow_kernels::Need::NONE);
            group.throughput(Throughput::Elements((m * n * k) as u64));
            group.bench_function(BenchmarkId::from_parameter(format!("{m}x{k}x{n}")), |bencher| {
                bencher.iter(|| {
                    headrow_kernels::gemm(
                        cpu,
                        Par::SERIAL,
                        Mat::new(black_box(&x), m, k),
                        &weight,
                        Write::Replace,
                        &Epilogue::default(),
                        MatMut::new(&mut y, m, n),
                        &mut scratch.stack(),
                    );
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, prepacked);
criterion_main!(benches);
