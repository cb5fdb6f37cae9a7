//! Dropout: what is dropped, how often, how independently, and the same everywhere.

mod support;

use headrow_kernels::{
    Cpu, Dropout, Isa, Mat, MatMut, Par, Team, add_dropout, dropout, dropout_into,
};
use support::{Guarded, Random, every, hash, unless_emulated};

/// 1 where an element is kept, 0 where it is dropped.
fn mask(how: &Dropout, rows: usize, cols: usize) -> Vec<f32> {
    let mut x = vec![1.0 - how.rate(); rows * cols];
    dropout(Cpu::detect(), Par::SERIAL, how, MatMut::new(&mut x, rows, cols));
    x.iter().map(|x| x.round()).collect()
}

#[test]
fn kept_elements_are_scaled_and_dropped_ones_are_0_whatever_they_were() {
    let mut rng = Random::new(1);
    for cpu in Cpu::all() {
        for rate in [0.0, 0.1, 0.5, 0.9] {
            let how = Dropout::new(rate, 7, 3);
            let x = Guarded::random(9, 77, 80, 1, &mut rng);
            let mut y = Guarded::from_fn(9, 77, 79, 2, |i, j| x.view().row(i)[j]);
            dropout(cpu, Par::SERIAL, &how, y.view_mut());
            y.assert_intact("dropout");
            let kept = mask(&how, 9, 77);
            for ((x, y), kept) in x.values().iter().zip(y.values()).zip(&kept) {
                let expected = if *kept == 1.0 { x * (1.0 / (1.0 - rate)) } else { 0.0 };
                assert_eq!(y.to_bits(), expected.to_bits(), "{x} at rate {rate}");
            }
            let mut nan = vec![f32::NAN; 9 * 77];
            dropout(cpu, Par::SERIAL, &how, MatMut::new(&mut nan, 9, 77));
            for (nan, kept) in nan.iter().zip(kept) {
                assert_eq!(nan.is_nan(), kept == 1.0);
            }
        }
    }
}

/// The share of elements for which `event` holds is `p` within five standard deviations.
#[track_caller]
fn assert_share(what: &str, p: f64, events: impl Iterator<Item = bool>) {
    let (mut n, mut count) = (0.0, 0.0);
    for event in events {
        n += 1.0;
        count += f64::from(u8::from(event));
    }
    let bound = 5.0 * (p * (1.0 - p) / n).sqrt();
    assert!((count / n - p).abs() < bound, "{what}: {} of {n}, expected {p} ± {bound}", count / n);
}

#[test]
fn elements_are_dropped_at_the_rate_and_independently_of_their_neighbours() {
    let (rows, cols) = (unless_emulated(600, 100), 512);
    for rate in [0.02, 0.1, 0.3, 0.5, 0.9] {
        let p = f64::from(rate);
        let how = Dropout::new(rate, 42, 5);
        let all = mask(&how, rows, cols);
        let dropped = |i: usize, j: usize| all[i * cols + j] == 0.0;
        assert_share("dropped", p, all.iter().map(|&kept| kept == 0.0));
        let elements = || (0..rows - 8).flat_map(|i| (0..cols - 64).map(move |j| (i, j)));
        for (down, right) in
            [(0, 1), (0, 2), (0, 16), (0, 32), (0, 64), (1, 0), (1, 1), (2, 0), (8, 0)]
        {
            let both = elements().map(|(i, j)| dropped(i, j) && dropped(i + down, j + right));
            assert_share(&format!("with the one {down} down, {right} right"), p * p, both);
        }
        // Neighbours in the counter and in the key.
        for other in
            [Dropout::new(rate, 42, 6), Dropout::new(rate, 43, 5), Dropout::new(rate, 5, 42)]
        {
            let other = mask(&other, rows, cols);
            let both = all.iter().zip(&other).map(|(&a, &b)| a == 0.0 && b == 0.0);
            assert_share("with another counter or key", p * p, both);
        }
        // Each column and each row by itself, over the others.
        for j in (0..cols).step_by(37) {
            assert_share("of a column", p, (0..rows).map(|i| dropped(i, j)));
        }
        for i in (0..rows).step_by(41) {
            assert_share("of a row", p, (0..cols).map(|j| dropped(i, j)));
        }
    }
}

#[test]
fn the_same_elements_on_every_isa_with_any_number_of_threads_in_a_copy_and_in_the_fused_sum() {
    let mut rng = Random::new(2);
    for (rows, cols) in [(1, 1), (3, 33), (unless_emulated(300, 60), 97)] {
        let how = Dropout::new(0.2, 1 << 60, 1 << 40);
        let x = Guarded::random(rows, cols, cols + 2, 0, &mut rng);
        let residual = Guarded::random(rows, cols, cols + 5, 3, &mut rng);
        let run = |cpu, par: Par<'_>| {
            let mut y = Guarded::from_fn(rows, cols, cols, 1, |i, j| x.view().row(i)[j]);
            dropout(cpu, par, &how, y.view_mut());
            let mut copied = Guarded::filled(rows, cols, cols + 3, 2, f32::NAN);
            dropout_into(cpu, par, &how, x.view(), copied.view_mut());
            copied.assert_intact("dropout_into");
            assert_eq!(copied.bits(), y.bits());
            let mut sum = Guarded::filled(rows, cols, cols + 1, 0, f32::NAN);
            add_dropout(cpu, par, &how, x.view(), residual.view(), sum.view_mut());
            sum.assert_intact("add_dropout");
            let terms = residual.values().into_iter().zip(y.values());
            assert_eq!(sum.values(), terms.map(|(r, y)| r + y).collect::<Vec<_>>());
            hash(&y.values())
        };
        let expected = run(Cpu::with_isa(Isa::Scalar).unwrap(), Par::SERIAL);
        for cpu in Cpu::all() {
            for threads in (1..=8).step_by(every(3)) {
                let found = Team::new(threads).open(|par| run(cpu, par));
                assert_eq!(found, expected, "{} {threads} threads", cpu.isa());
            }
        }
    }
}

#[test]
fn rates_that_drop_everything_or_less_than_nothing_are_refused() {
    for rate in [1.0, -0.1, f32::NAN] {
        assert!(std::panic::catch_unwind(|| Dropout::new(rate, 0, 0)).is_err(), "{rate}");
    }
}

#[test]
#[should_panic(expected = "add_dropout: Mat(1×4")]
fn shapes_that_differ_are_refused() {
    let (x, mut out) = ([0.0; 4], [0.0; 5]);
    let (x, out) = (Mat::from_row(&x), MatMut::new(&mut out, 1, 5));
    add_dropout(Cpu::detect(), Par::SERIAL, &Dropout::new(0.1, 0, 0), x, x, out);
}
