//! LayerNorm and RMSNorm against f64, their policy at the edges, and the same bits everywhere.

mod support;

use headrow_kernels::reference::rows as reference;
use headrow_kernels::{
    Cpu, Isa, LayerNorm, Mat, MatMut, Par, RmsNorm, Team, add_layer_norm, add_rms_norm, layer_norm,
    rms_norm,
};
use support::{Guarded, Random, every, hash, report, unless_emulated, within};

const U: f64 = 1.0 / (1u64 << 24) as f64;

fn lengths() -> impl Iterator<Item = usize> {
    (0..=97).chain([127, 128, 129, 255, 256, 257, 384, 385, 511, 768, 1023, 3072])
}

fn layer(cpu: Cpu, norm: &LayerNorm<'_>, x: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; x.len()];
    layer_norm(cpu, Par::SERIAL, norm, Mat::from_row(x), MatMut::new(&mut y, 1, x.len()));
    y
}

fn rms(cpu: Cpu, norm: &RmsNorm<'_>, x: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; x.len()];
    rms_norm(cpu, Par::SERIAL, norm, Mat::from_row(x), MatMut::new(&mut y, 1, x.len()));
    y
}

/// The bound of the documentation, element by element.
#[track_caller]
fn assert_layer_norm(x: &[f32], norm: &LayerNorm<'_>, y: &[f32], what: &str) {
    let d = x.len() as f64;
    let exact = reference::layer_norm(Mat::from_row(x), norm.gamma, norm.beta, norm.epsilon);
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / d;
    let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / d;
    let root = (variance + f64::from(norm.epsilon)).sqrt();
    let largest = x.iter().fold(0.0f64, |m, &x| m.max(f64::from(x).abs()));
    for (j, (&y, &exact)) in y.iter().zip(&exact).enumerate() {
        let gamma = f64::from(norm.gamma[j].abs());
        let beta = norm.beta.map_or(0.0, |beta| f64::from(beta[j].abs()));
        let normal = (f64::from(x[j]) - mean).abs() / root * gamma;
        let bound = (d / 32.0 + 20.0) * U * (normal + beta) + 4.0 * U * largest / root * gamma;
        let error = (f64::from(y) - exact).abs();
        assert!(
            within(error, bound),
            "{what}: [{j}] {y:e}, exactly {exact:e}, {error:e} > {bound:e}"
        );
    }
}

#[test]
fn layer_norm_is_within_its_bound() {
    let mut rng = Random::new(1);
    for cpu in Cpu::all() {
        for d in lengths() {
            let (gamma, beta) = (rng.vec(d), rng.vec(d));
            for beta in [None, Some(&beta[..])] {
                for (mean, spread, epsilon) in [
                    (0.0, 1.0, 1e-5),
                    (3.0, 0.1, 1e-12),
                    (1e4, 1e-3, 1e-12),
                    (0.0, 1e-9, 1e-5),
                    (-5e5, 7.0, 1e-6),
                ] {
                    let x: Vec<f32> = (0..d).map(|_| mean + spread * rng.unit()).collect();
                    let norm = LayerNorm { gamma: &gamma, beta, epsilon };
                    let y = layer(cpu, &norm, &x);
                    assert_layer_norm(
                        &x,
                        &norm,
                        &y,
                        &format!("{} d = {d}, mean {mean}", cpu.isa()),
                    );
                }
            }
        }
    }
    report("LayerNorm");
}

#[test]
fn rms_norm_is_within_its_bound() {
    let mut rng = Random::new(2);
    for cpu in Cpu::all() {
        for d in lengths() {
            let gamma = rng.vec(d);
            for factor in [1.0, 1e-4, 300.0] {
                let x: Vec<f32> = (0..d).map(|_| factor * rng.unit()).collect();
                let norm = RmsNorm { gamma: &gamma, epsilon: 1e-6 };
                let exact = reference::rms_norm(Mat::from_row(&x), &gamma, 1e-6);
                for (y, exact) in rms(cpu, &norm, &x).into_iter().zip(exact) {
                    let bound = (d as f64 / 64.0 + 6.0) * U * exact.abs();
                    let error = (f64::from(y) - exact).abs();
                    assert!(within(error, bound), "d = {d}: {y} for {exact}");
                }
            }
        }
    }
    report("RMSNorm");
}

#[test]
fn a_constant_row_gives_exactly_beta() {
    let mut rng = Random::new(3);
    for cpu in Cpu::all() {
        for d in lengths() {
            let (gamma, beta) = (rng.vec(d), rng.vec(d));
            for value in [0.0, 1.0, 0.1, -7.3, 1e4, 12345.678, 1e-20, 3e30, f32::MAX, -2.9e38] {
                for epsilon in [1e-12, 1e-5] {
                    let norm = LayerNorm { gamma: &gamma, beta: Some(&beta), epsilon };
                    let y = layer(cpu, &norm, &vec![value; d]);
                    assert_eq!(y, beta, "{} d = {d} of {value:e}", cpu.isa());
                }
            }
        }
    }
}

#[test]
fn huge_rows_are_normalised_all_the_same() {
    let mut rng = Random::new(4);
    for cpu in Cpu::all() {
        for d in [2, 31, 64, 100, 768] {
            let gamma = vec![1.0; d];
            for magnitude in [1e17, 1e19, 1e25, 1e33, 1e38, 3.3e38] {
                let x: Vec<f32> = (0..d).map(|_| magnitude * rng.unit()).collect();
                let norm = LayerNorm { gamma: &gamma, beta: None, epsilon: 1e-5 };
                assert_layer_norm(&x, &norm, &layer(cpu, &norm, &x), &format!("{magnitude:e}"));
                let exact = reference::rms_norm(Mat::from_row(&x), &gamma, 1e-5);
                let y = rms(cpu, &RmsNorm { gamma: &gamma, epsilon: 1e-5 }, &x);
                for (y, exact) in y.into_iter().zip(exact) {
                    let bound = (d as f64 / 64.0 + 6.0) * U * exact.abs();
                    assert!(
                        (f64::from(y) - exact).abs() <= bound,
                        "{magnitude:e}: {y} for {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn nan_and_infinity_anywhere_make_their_row_nan_and_no_other() {
    for cpu in Cpu::all() {
        for d in [1, 5, 32, 33, 70] {
            let gamma = vec![0.5; d];
            for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in 0..d {
                    let mut x: Vec<f32> = (0..3 * d).map(|i| (i % 7) as f32).collect();
                    x[d + at] = special;
                    let x = Mat::new(&x, 3, d);
                    let (mut y, mut z) = (vec![0.0; 3 * d], vec![0.0; 3 * d]);
                    let norm = LayerNorm { gamma: &gamma, beta: None, epsilon: 1e-5 };
                    layer_norm(cpu, Par::SERIAL, &norm, x, MatMut::new(&mut y, 3, d));
                    let norm = RmsNorm { gamma: &gamma, epsilon: 1e-5 };
                    rms_norm(cpu, Par::SERIAL, &norm, x, MatMut::new(&mut z, 3, d));
                    for y in [y, z] {
                        assert!(y[..d].iter().chain(&y[2 * d..]).all(|y| y.is_finite()));
                        assert!(y[d..2 * d].iter().all(|y| y.is_nan()), "{special} at {at} of {d}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_fused_sum_equals_the_two_steps_bit_for_bit() {
    let mut rng = Random::new(5);
    let rows = 4;
    for cpu in Cpu::all() {
        for d in lengths() {
            let x = Guarded::random(rows, d, d + 2, 1, &mut rng);
            let residual = Guarded::random(rows, d, d + 7, 3, &mut rng);
            let (gamma, beta) = (rng.vec(d), rng.vec(d));
            let total = Guarded::from_fn(rows, d, d, 0, |i, j| {
                x.view().row(i)[j] + residual.view().row(i)[j]
            });
            let ln = LayerNorm { gamma: &gamma, beta: Some(&beta), epsilon: 1e-5 };
            let rn = RmsNorm { gamma: &gamma, epsilon: 1e-5 };
            let (x, residual, par) = (x.view(), residual.view(), Par::SERIAL);
            type Plain<'a> = &'a dyn Fn(Mat<'_>, MatMut<'_>);
            type Fused<'a> = &'a dyn Fn(Option<MatMut<'_>>, MatMut<'_>);
            let norms: [(&str, Plain<'_>, Fused<'_>); 2] = [
                ("LayerNorm", &|x, y| layer_norm(cpu, par, &ln, x, y), &|sum, y| {
                    add_layer_norm(cpu, par, &ln, x, residual, sum, y);
                }),
                ("RMSNorm", &|x, y| rms_norm(cpu, par, &rn, x, y), &|sum, y| {
                    add_rms_norm(cpu, par, &rn, x, residual, sum, y);
                }),
            ];
            for (name, plain, fused) in norms {
                // Output that is replaced is never read: it starts as NaN.
                let fresh = || Guarded::filled(rows, d, d + 3, 2, f32::NAN);
                let (mut one, mut two, mut three, mut sum) = (fresh(), fresh(), fresh(), fresh());
                plain(total.view(), one.view_mut());
                fused(None, two.view_mut());
                fused(Some(sum.view_mut()), three.view_mut());
                assert_eq!(one.bits(), two.bits(), "{name}, {} d = {d}", cpu.isa());
                assert_eq!(one.bits(), three.bits(), "{name}, {} d = {d}", cpu.isa());
                assert_eq!(sum.bits(), total.bits());
                for guarded in [&one, &two, &three, &sum] {
                    guarded.assert_intact(name);
                }
            }
        }
    }
}

#[test]
fn the_same_bits_on_every_instruction_set_and_thread_count_and_for_a_row_alone() {
    let mut rng = Random::new(6);
    for d in [1, 31, 32, 77, 384] {
        let rows = unless_emulated(500, 60);
        let (x, residual) = (rng.vec(rows * d), rng.vec(rows * d));
        let (gamma, beta) = (rng.vec(d), rng.vec(d));
        let norm = LayerNorm { gamma: &gamma, beta: Some(&beta), epsilon: 1e-12 };
        let run = |cpu: Cpu, par: Par<'_>, with_sum: bool| {
            let (mut y, mut sum) = (vec![0.0; rows * d], vec![0.0; rows * d]);
            let sum = with_sum.then(|| MatMut::new(&mut sum, rows, d));
            let (x, residual) = (Mat::new(&x, rows, d), Mat::new(&residual, rows, d));
            add_layer_norm(cpu, par, &norm, x, residual, sum, MatMut::new(&mut y, rows, d));
            y
        };
        let expected = run(Cpu::with_isa(Isa::Scalar).unwrap(), Par::SERIAL, false);
        for cpu in Cpu::all() {
            for threads in (1..=8).step_by(every(3)) {
                Team::new(threads).open(|par| {
                    for with_sum in [false, true] {
                        let y = run(cpu, par, with_sum);
                        assert_eq!(hash(&y), hash(&expected), "{} {threads} threads", cpu.isa());
                    }
                });
            }
        }
        let row = 3;
        let total: Vec<f32> = (row * d..row * d + d).map(|i| x[i] + residual[i]).collect();
        assert_eq!(layer(Cpu::detect(), &norm, &total), expected[row * d..][..d]);
    }
}

#[test]
fn an_epsilon_that_is_not_positive_is_refused() {
    for epsilon in [0.0, -1e-5, f32::NAN, f32::INFINITY] {
        let norm = LayerNorm { gamma: &[1.0; 4], beta: None, epsilon };
        let caught = std::panic::catch_unwind(|| layer(Cpu::detect(), &norm, &[1.0; 4]));
        assert!(caught.is_err(), "{epsilon}");
    }
}
