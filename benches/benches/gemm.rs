//! GEMM under criterion, beside the multiply-add peak. Comparisons with other crates are `gemm-ratio`'s.
#![allow(missing_docs)]

mod beside;

use beside::{Limit, bench};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use headrow_benches::options::values;
use headrow_kernels::{
    Cpu, Epilogue, LeftKind, Mat, MatMut, PackedB, Par, RightKind, Scratch, Write, gemm,
    gemm_scratch,
};
use std::hint::black_box;

fn prepacked(criterion: &mut Criterion) {
    let cpu = Cpu::detect();
    let mut group = criterion.benchmark_group(format!("gemm/{}", cpu.isa()));
    for (k, n) in [(384, 384), (384, 1536), (768, 768), (768, 3072)] {
        let weight = values(k * n, 1);
        let weight = PackedB::new(cpu, Mat::new(&weight, k, n));
        for m in [1, 4, 16, 128] {
            let x = values(m * k, 2);
            let mut y = vec![0.0; m * n];
            let need = gemm_scratch(cpu, 1, m, n, k, LeftKind::Plain, RightKind::Packed);
            let mut scratch = Scratch::new(need);
            let id = BenchmarkId::from_parameter(format!("{m}x{k}x{n}"));
            bench(&mut group, cpu, id, Limit::MultiplyAdds(m * n * k), || {
                let (x, y) = (Mat::new(black_box(&x), m, k), MatMut::new(&mut y, m, n));
                let (write, epilogue) = (Write::Replace, Epilogue::default());
                gemm(cpu, Par::SERIAL, x, &weight, write, &epilogue, y, &mut scratch.stack());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, prepacked);
criterion_main!(benches);
