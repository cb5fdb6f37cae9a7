//! What this machine reaches: products in its caches, and copies through its memory.

use super::measure::numbers;
use headrow::accounting::Machine;
use headrow::{Cpu, Mat};
use headrow_kernels::{
    Epilogue, LeftKind, MatMut, PackedB, RightKind, Scratch, Team, Write, gemm, gemm_scratch,
};
use std::time::Instant;

/// Rows, columns and depth of the product.
const SIZE: usize = 768;
const RUNS: usize = 5;
/// Bytes that are copied: at least, and at most.
const BYTES: [usize; 2] = [64 << 20, 512 << 20];

/// Measures both, with so many threads.
pub(super) fn measure(cpu: Cpu, threads: usize) -> Machine {
    Machine { operations: operations(cpu, threads), bandwidth: bandwidth(cpu, threads) }
}

/// Operations of a second in a product of packed weights.
fn operations(cpu: Cpu, threads: usize) -> f64 {
    let values = numbers(SIZE * SIZE);
    let left = Mat::new(&values, SIZE, SIZE);
    let right = PackedB::new(cpu, left);
    let need = gemm_scratch(cpu, threads, SIZE, SIZE, SIZE, LeftKind::Plain, RightKind::Packed);
    let mut scratch = Scratch::new(need);
    let mut out = vec![0.0; SIZE * SIZE];
    let mut team = Team::new(threads);
    let seconds = fastest(|| {
        team.open(|par| {
            let out = MatMut::new(&mut out, SIZE, SIZE);
            let epilogue = Epilogue::default();
            gemm(cpu, par, left, &right, Write::Replace, &epilogue, out, &mut scratch.stack());
        });
    });
    2.0 * (SIZE as f64).powi(3) / seconds
}

/// Bytes of a second that are read and written when memory is copied.
fn bandwidth(cpu: Cpu, threads: usize) -> f64 {
    let caches = 4 * cpu.caches().l3;
    let count = caches.clamp(BYTES[0], BYTES[1]) / 8;
    let from = vec![1u64; count];
    let mut to = vec![0u64; count];
    let piece = count.div_ceil(threads);
    let seconds = fastest(|| {
        std::thread::scope(|scope| {
            for (from, to) in from.chunks(piece).zip(to.chunks_mut(piece)) {
                scope.spawn(move || to.copy_from_slice(from));
            }
        });
    });
    2.0 * 8.0 * count as f64 / seconds
}

fn fastest(mut run: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..RUNS).map(time).fold(f64::INFINITY, f64::min)
}
