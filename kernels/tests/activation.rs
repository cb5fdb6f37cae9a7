//! Activations against f64, their edges, and the same bits everywhere.

mod support;

use headrow_kernels::reference::rows as reference;
use headrow_kernels::{Activation, Cpu, Isa, Mat, MatMut, Par, Team, activate, gate};
use support::{Guarded, Random, every, hash, unless_emulated};

const ALL: [Activation; 6] = [
    Activation::Identity,
    Activation::Relu,
    Activation::GeluErf,
    Activation::GeluTanh,
    Activation::GeluQuick,
    Activation::Silu,
];

fn apply(cpu: Cpu, activation: Activation, x: &[f32]) -> Vec<f32> {
    let mut y = x.to_vec();
    activate(cpu, Par::SERIAL, activation, MatMut::new(&mut y, 1, x.len()));
    y
}

fn sample(step: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..=u32::MAX).step_by(step * every(40)).map(f32::from_bits).collect();
    x.extend((-200_000..200_000).step_by(every(50)).map(|i| i as f32 * 1e-4));
    x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN]);
    x
}

/// The argument of the exponential in the negative tail: each of its roundings shows there.
fn exponent(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::GeluErf => x * x / 2.0,
        Activation::GeluTanh => 1.6 * x + 0.0714 * x * x * x,
        Activation::GeluQuick => 1.702 * x,
        _ => x,
    }
    .abs()
}

#[test]
fn errors_stay_within_the_stated_bounds() {
    let unit = 2f64.powi(-23);
    let x = sample(9973);
    for activation in ALL {
        let mut worst = (0.0, 0.0);
        for (&x, &y) in x.iter().zip(&apply(Cpu::detect(), activation, &x)) {
            let exact = reference::activation(activation, f64::from(x));
            if x.is_finite() {
                assert!(y.is_finite(), "{activation:?} of {x:e} is {y}");
            }
            if !exact.is_finite() {
                assert_eq!(y as f64 == exact, !exact.is_nan(), "{activation:?} of {x:e} is {y}");
                continue;
            }
            let tail =
                if x < -1.0 { 3.0 * exponent(activation, f64::from(x)).min(100.0) } else { 0.0 };
            let lost = if activation == Activation::GeluErf && x < -5.3 { 4e-12 } else { 1e-36 };
            let error = (f64::from(y) - exact).abs();
            let bound = (4.0 + tail) * unit * exact.abs() + lost;
            assert!(error <= bound, "{activation:?} of {x:e}: {y:e}, exactly {exact:e}");
            let ulp = error / (unit * exact.abs()).max(1e-30);
            if x >= -1.0 && ulp > worst.0 {
                worst = (ulp, x);
            }
        }
        println!("{activation:?}: {:.3}·2⁻²³ relative at {:e}, x ≥ −1", worst.0, worst.1);
    }
}

#[test]
fn limits_signs_and_nan_are_kept() {
    for cpu in Cpu::all() {
        for activation in &ALL[1..] {
            let y =
                apply(cpu, *activation, &[f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -f32::NAN]);
            let zero = if *activation == Activation::Relu { 0.0f32 } else { -0.0 };
            assert_eq!(y[0].to_bits(), zero.to_bits(), "{activation:?} {}", cpu.isa());
            assert_eq!(y[1], f32::INFINITY, "{activation:?} {}", cpu.isa());
            assert!(y[2].is_nan() && y[3].is_nan(), "{activation:?} {}", cpu.isa());
        }
        let relu = apply(cpu, Activation::Relu, &[-0.0, 0.0, -3.0, 3.0]);
        assert_eq!(
            relu.iter().map(|y| y.to_bits()).collect::<Vec<_>>(),
            [0, 0, 0, 3.0f32.to_bits()]
        );
    }
}

#[test]
fn a_nan_at_any_position_with_any_payload_stays_and_spreads_nowhere() {
    for cpu in Cpu::all() {
        for activation in ALL {
            for n in [1, 8, 33, 67] {
                for at in 0..n {
                    let mut x = vec![0.25; n];
                    x[at] = f32::from_bits(0x7f80_0001 + 0x12345 * at as u32);
                    let y = apply(cpu, activation, &x);
                    for (j, y) in y.iter().enumerate() {
                        assert_eq!(y.is_nan(), j == at, "{activation:?} [{j}] of {n}, NaN at {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_stride_alignment_and_thread_count_gives_the_same_bits() {
    let mut rng = Random::new(1);
    let x = sample(65_521);
    for activation in ALL {
        let scalar = Cpu::with_isa(Isa::Scalar).unwrap();
        let expected = hash(&apply(scalar, activation, &x));
        for cpu in Cpu::all() {
            assert_eq!(hash(&apply(cpu, activation, &x)), expected, "{activation:?} {}", cpu.isa());
        }
        for cols in [0, 1, 31, 97, 128] {
            let rows = unless_emulated(300, 50);
            let x = Guarded::random(rows, cols, cols + 5, 2, &mut rng);
            let expected = hash(&apply(scalar, activation, &x.values()));
            for threads in (1..=8).step_by(every(3)) {
                let mut y =
                    Guarded::from_fn(rows, cols, cols + threads % 3, threads % 4, |i, j| {
                        x.view().row(i)[j]
                    });
                Team::new(threads)
                    .open(|par| activate(Cpu::detect(), par, activation, y.view_mut()));
                assert_eq!(hash(&y.values()), expected, "{activation:?} {threads} threads");
                y.assert_intact("activation");
            }
        }
    }
}

/// activation(gate)·up in two steps, each rounded.
fn gated_in_two_steps(cpu: Cpu, activation: Activation, x: &[f32], up: &[f32]) -> Vec<f32> {
    apply(cpu, activation, x).iter().zip(up).map(|(gate, up)| gate * up).collect()
}

#[test]
fn a_gate_has_the_bits_of_its_two_steps_at_every_width_and_touches_nothing_else() {
    let mut rng = Random::new(2);
    for activation in ALL {
        for cpu in Cpu::all() {
            for n in (0..140).step_by(every(9)) {
                // Gate and up side by side, as one product leaves them.
                let both = Guarded::random(3, 2 * n, 2 * n + 3, n % 5, &mut rng);
                let (x, up) = (both.view().columns(0..n), both.view().columns(n..2 * n));
                let mut out = Guarded::filled(3, n, n + n % 4, 1, f32::NAN);
                gate(cpu, Par::SERIAL, activation, x, up, out.view_mut());
                out.assert_intact("gate");
                for i in 0..3 {
                    let expected = gated_in_two_steps(cpu, activation, x.row(i), up.row(i));
                    assert_eq!(
                        hash(out.view().row(i)),
                        hash(&expected),
                        "{activation:?} {n} [{i}]"
                    );
                }
            }
        }
    }
}

#[test]
fn a_gate_is_close_to_its_definition() {
    let x = sample(99_991);
    let up: Vec<f32> = (0..x.len()).map(|i| (i % 97) as f32 * 0.3 - 11.0).collect();
    let (x, up) = (Mat::from_row(&x), Mat::from_row(&up));
    for activation in ALL {
        let mut out = vec![f32::NAN; x.cols()];
        let exact = reference::gate(activation, x, up);
        gate(Cpu::detect(), Par::SERIAL, activation, x, up, MatMut::new(&mut out, 1, x.cols()));
        for ((&y, exact), &x) in out.iter().zip(exact).zip(x.row(0)) {
            // Below −1 the activation's own bound grows; it has its test.
            if x >= -1.0 && exact.abs() <= f64::from(f32::MAX) {
                let bound = 5.0 * 2f64.powi(-23) * exact.abs() + 1e-36;
                assert!((f64::from(y) - exact).abs() <= bound, "{activation:?} of {x:e}: {y:e}");
            }
        }
    }
}

#[test]
fn a_gate_is_the_same_with_any_number_of_threads_and_keeps_a_nan_in_its_place() {
    let mut rng = Random::new(3);
    let (rows, n) = (unless_emulated(300, 50), 77);
    let mut both = Guarded::random(rows, 2 * n, 2 * n, 0, &mut rng);
    both.set(7, 11, f32::NAN);
    both.set(8, n + 12, f32::NAN);
    let (x, up) = (both.view().columns(0..n), both.view().columns(n..2 * n));
    for activation in ALL {
        let run = |cpu, threads| {
            let mut out = vec![0.0; rows * n];
            let y = MatMut::new(&mut out, rows, n);
            Team::new(threads).open(|par| gate(cpu, par, activation, x, up, y));
            out
        };
        let expected = run(Cpu::with_isa(Isa::Scalar).unwrap(), 1);
        for (at, y) in expected.iter().enumerate() {
            assert_eq!(y.is_nan(), [7 * n + 11, 8 * n + 12].contains(&at), "{activation:?} [{at}]");
        }
        for cpu in Cpu::all() {
            for threads in 1..=3 {
                assert_eq!(hash(&run(cpu, threads)), hash(&expected), "{activation:?} {threads}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "gate: Mat(2×3")]
fn gates_of_another_shape_are_refused() {
    let x = [0.0; 6];
    let mut out = [0.0; 4];
    let (x, out) = (Mat::new(&x, 2, 3), MatMut::new(&mut out, 2, 2));
    gate(Cpu::detect(), Par::SERIAL, Activation::Silu, x, x, out);
}
