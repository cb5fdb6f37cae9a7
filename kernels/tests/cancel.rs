//! Operations that are given up in the middle, and flags that change nothing as long as they are not set.

mod support;

use headrow_kernels::{
    Activation, AttentionExtent, AttentionShape, Cancel, Cpu, Epilogue, LeftKind, Mask, Mat,
    MatMut, PackedB, Par, RightKind, Scratch, Segment, Team, Write, activate, attention,
    attention_scratch, gemm, gemm_scratch,
};
use std::time::{Duration, Instant};
use support::{Random, emulated, hash};

/// Runs an operation that takes several milliseconds and fills its output, NaN before, with numbers.
///
/// Of an operation that may be given up some parts are there and the others untouched, with one thread too.
fn given_up(name: &str, operation: impl Fn(Par<'_>) -> Vec<f32>) {
    if emulated() {
        return;
    }
    let whole = operation(Par::SERIAL);
    for threads in 1..=2 {
        Team::new(threads).open(|par| {
            let never = Cancel::new();
            let asked = operation(par.with_cancel(&never));
            assert_eq!(hash(&asked), hash(&whole), "{name}, {threads} threads");
            let soon = Cancel::with_deadline(Instant::now() + Duration::from_millis(1));
            let part = operation(par.with_cancel(&soon));
            let done = part.iter().filter(|x| !x.is_nan()).count();
            assert!(done < whole.len(), "{name}, {threads} threads: done after its deadline");
            let old_or_right =
                part.iter().zip(&whole).all(|(x, y)| x.is_nan() || x.to_bits() == y.to_bits());
            assert!(old_or_right, "{name}, {threads} threads: neither old nor right");
            never.cancel();
            let none = operation(par.with_cancel(&never));
            assert!(none.iter().all(|x| x.is_nan()), "{name}, {threads} threads: not given up");
            assert_eq!(hash(&operation(par)), hash(&whole), "{name}: the team is used again");
        });
    }
}

#[test]
fn a_large_product_is_given_up_in_the_middle() {
    let (m, n, k) = (700, 2100, 1024);
    let mut rng = Random::new(1);
    let (a, b) = (rng.vec(m * k), rng.vec(k * n));
    let cpu = Cpu::detect();
    let packed = PackedB::new(cpu, Mat::new(&b, k, n));
    given_up("product", |par| {
        let mut c = vec![f32::NAN; m * n];
        let (a, out) = (Mat::new(&a, m, k), MatMut::new(&mut c, m, n));
        let (left, right, threads) = (LeftKind::Plain, RightKind::Packed, par.threads());
        let mut scratch = Scratch::new(gemm_scratch(cpu, threads, m, n, k, left, right));
        let none = Epilogue::default();
        gemm(cpu, par, a, &packed, Write::Replace, &none, out, &mut scratch.stack());
        c
    });
}

#[test]
fn attention_over_a_long_sequence_is_given_up_in_the_middle() {
    let tokens = 2500;
    let shape = AttentionShape::new(1, 1, 64, 64);
    let mut rng = Random::new(2);
    let [q, k, v] = std::array::from_fn(|_| rng.vec(tokens * 64));
    let segments = [Segment::full(0..tokens, 0..tokens)];
    let cpu = Cpu::detect();
    given_up("attention", |par| {
        let mut out = vec![f32::NAN; tokens * 64];
        let extent = AttentionExtent::of(&segments);
        let mut scratch = Scratch::new(attention_scratch(cpu, par.threads(), &shape, extent));
        let [q, k, v] = [&q, &k, &v].map(|x| Mat::new(x, tokens, 64));
        let (mask, to) = (Mask::default(), MatMut::new(&mut out, tokens, 64));
        attention(cpu, par, &shape, q, k, v, &segments, &mask, to, &mut scratch.stack());
        out
    });
}

#[test]
fn row_operations_are_given_up_in_the_middle() {
    let (rows, cols) = (40_000, 500);
    let x = Random::new(3).vec(rows * cols);
    let cpu = Cpu::detect();
    let mut activated = x.clone();
    activate(cpu, Par::SERIAL, Activation::GeluErf, MatMut::new(&mut activated, rows, cols));
    let mut y = x.clone();
    let soon = Cancel::with_deadline(Instant::now() + Duration::from_millis(1));
    let par = Par::SERIAL.with_cancel(&soon);
    activate(cpu, par, Activation::GeluErf, MatMut::new(&mut y, rows, cols));
    assert!(par.is_cancelled());
    let changed = y.iter().zip(&x).filter(|(y, x)| y != x).count();
    assert!(
        (1..rows * cols / 2).contains(&changed),
        "{changed} elements were done in a millisecond"
    );
    assert!(y.iter().zip(&x).zip(&activated).all(|((y, x), done)| y == x || y == done));
}
