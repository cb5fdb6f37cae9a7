//! Sums down columns and of squares.

mod support;

use headrow_kernels::{Cpu, Par, Team, add_column_sums, sum_of_squares};
use support::{Guarded, Random, every, unless_emulated};

#[test]
fn column_sums_are_chains_over_the_rows_at_every_width() {
    let mut rng = Random::new(1);
    for cpu in Cpu::all() {
        for cols in (0..150).step_by(every(7)) {
            for rows in [0, 1, 2, 9] {
                let x = Guarded::random(rows, cols, cols + 3, 1, &mut rng);
                let mut sums = Guarded::random(1, cols, cols, cols % 5, &mut rng);
                let expected: Vec<f32> = (0..cols)
                    .map(|j| (0..rows).fold(sums.values()[j], |sum, i| sum + x.view().row(i)[j]))
                    .collect();
                add_column_sums(cpu, Par::SERIAL, x.view(), sums.view_mut().row_mut(0));
                assert_eq!(sums.values(), expected, "{} {rows}×{cols}", cpu.isa());
                sums.assert_intact("column sums");
            }
        }
    }
}

#[test]
fn column_sums_are_shared_out_by_columns_and_a_nan_stays_in_its_own() {
    let mut rng = Random::new(2);
    let (rows, cols) = (unless_emulated(700, 100), 300);
    let mut x = Guarded::random(rows, cols, cols + 1, 0, &mut rng);
    x.set(50, 123, f32::NAN);
    let run = |cpu, threads| {
        let mut sums = vec![0.5; cols];
        Team::new(threads).open(|par| add_column_sums(cpu, par, x.view(), &mut sums));
        sums
    };
    let expected = run(Cpu::detect(), 1);
    for (j, sum) in expected.iter().enumerate() {
        assert_eq!(sum.is_nan(), j == 123);
    }
    for cpu in Cpu::all() {
        for threads in (1..=8).step_by(every(3)) {
            let found = run(cpu, threads);
            let same =
                |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(found.iter().zip(&expected).all(same), "{} {threads} threads", cpu.isa());
        }
    }
}

#[test]
#[should_panic(expected = "column sums of Mat(2×3")]
fn sums_of_another_width_are_refused() {
    let x = [0.0; 6];
    let x = headrow_kernels::Mat::new(&x, 2, 3);
    add_column_sums(Cpu::detect(), Par::SERIAL, x, &mut [0.0; 4]);
}

#[test]
fn sums_of_squares_are_exact_to_f64_and_the_same_everywhere() {
    let mut rng = Random::new(3);
    let lengths = [0, 1, 15, 16, 17, 4095, 4096, 4097, unless_emulated(3_000_000, 100_000)];
    for n in lengths {
        for factor in [1.0, 1e-30, 1e30] {
            let x: Vec<f32> = rng.vec(n).iter().map(|x| x * factor).collect();
            let exact: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let found = sum_of_squares(Cpu::detect(), Par::SERIAL, &x);
            assert!((found - exact).abs() <= 1e-11 * exact, "{n}: {found} for {exact}");
            for cpu in Cpu::all() {
                for threads in (1..=8).step_by(every(3)) {
                    let again = Team::new(threads).open(|par| sum_of_squares(cpu, par, &x));
                    assert_eq!(again.to_bits(), found.to_bits(), "{} {threads}", cpu.isa());
                }
            }
        }
    }
    for at in [0, 5000, 9999] {
        let mut x = vec![1.0; 10_000];
        x[at] = f32::NAN;
        assert!(sum_of_squares(Cpu::detect(), Par::SERIAL, &x).is_nan());
    }
}
