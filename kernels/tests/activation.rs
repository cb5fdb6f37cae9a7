//! Activations against f64, their edges, and the same bits everywhere.

mod support;

use headrow_kernels::reference::rows as reference;
use headrow_kernels::{
    Activation, Cpu, Isa, Mat, MatMut, Par, Team, activate, activate_backward, gate, gate_backward,
};
use support::{Guarded, Random, every, hash, unless_emulated};

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
    for &activation in Activation::ALL {
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
        for activation in &Activation::ALL[1..] {
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
        for &activation in Activation::ALL {
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
    for &activation in Activation::ALL {
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
    for &activation in Activation::ALL {
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
    for &activation in Activation::ALL {
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
    for &activation in Activation::ALL {
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

/// d·activation′(x).
fn backward(cpu: Cpu, par: Par<'_>, activation: Activation, x: &[f32], d: &[f32]) -> Vec<f32> {
    let mut d = d.to_vec();
    let cols = x.len();
    activate_backward(cpu, par, activation, Mat::from_row(x), MatMut::new(&mut d, 1, cols));
    d
}

#[test]
fn the_slopes_definition_agrees_with_finite_differences() {
    for &activation in Activation::ALL {
        for i in -120..120 {
            let (x, h) = (f64::from(i) / 12.0 + 0.01, 1e-5);
            let moved = |by| reference::activation(activation, x + by);
            let slope = (moved(h) - moved(-h)) / (2.0 * h);
            let exact = reference::activation_slope(activation, x);
            assert!((slope - exact).abs() < 1e-9, "{activation:?} at {x}: {slope} for {exact}");
        }
    }
}

#[test]
fn slopes_stay_within_the_stated_bounds() {
    let unit = 2f64.powi(-23);
    let x = sample(9973);
    let ones = vec![1.0; x.len()];
    for &activation in Activation::ALL {
        let mut worst = (0.0, 0.0);
        let slopes = backward(Cpu::detect(), Par::SERIAL, activation, &x, &ones);
        for (&x, &y) in x.iter().zip(&slopes) {
            let wide = f64::from(x);
            let exact = reference::activation_slope(activation, wide);
            if x.is_nan() {
                // The identity's slope does not depend on x.
                assert!(y.is_nan() || activation == Activation::Identity, "{activation:?} of NaN");
                continue;
            }
            assert!(y.is_finite(), "{activation:?} of {x:e} is {y}");
            if matches!(activation, Activation::Identity | Activation::Relu) {
                assert_eq!(f64::from(y), exact, "{activation:?} of {x:e}");
                continue;
            }
            // The two terms of the sum: σ = activation(x)/x, and the rest.
            let sigma = if x == 0.0 { 0.5 } else { reference::activation(activation, wide) / wide };
            let sigma = if x.is_infinite() { exact } else { sigma };
            let terms = sigma.abs() + (exact - sigma).abs();
            let tail = exponent(activation, wide).min(110.0);
            let lost = if activation == Activation::GeluErf { 4e-12 } else { 1e-36 };
            let bound = (4.0 + 3.0 * tail) * unit * terms + lost;
            let error = (f64::from(y) - exact).abs();
            assert!(error <= bound, "{activation:?}′ of {x:e}: {y:e}, exactly {exact:e}");
            let ulp = (error - lost) / ((1.0 + tail) * unit * terms).max(1e-30);
            if ulp > worst.0 {
                worst = (ulp, x);
            }
        }
        println!("{activation:?}′: {:.3}·(1 + v)·2⁻²³ of the terms at {:e}", worst.0, worst.1);
    }
}

#[test]
fn slopes_have_their_limits_and_a_kink_counts_as_0() {
    for cpu in Cpu::all() {
        for activation in &Activation::ALL[1..] {
            let x = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, f32::MIN, f32::MAX];
            let y = backward(cpu, Par::SERIAL, *activation, &x, &[3.0; 5]);
            assert_eq!((y[0], y[1], y[3], y[4]), (0.0, 3.0, 0.0, 3.0), "{activation:?}");
            assert!(y[2].is_nan(), "{activation:?}");
        }
        let relu = backward(cpu, Par::SERIAL, Activation::Relu, &[0.0, -0.0, 1e-45], &[5.0; 3]);
        assert_eq!(relu, [0.0, 0.0, 5.0]);
    }
}

/// d_gate and d_up of the kernel, the first in a buffer of its own, both with gaps.
fn gate_gradients(cpu: Cpu, par: Par<'_>, how: Activation, read: [Mat<'_>; 3]) -> [Guarded; 2] {
    let [x, up, dy] = read;
    let (rows, n) = (dy.rows(), dy.cols());
    let mut out = [1, 4].map(|gap| Guarded::filled(rows, n, n + gap, gap, f32::NAN));
    let [d_gate, d_up] = &mut out;
    gate_backward(cpu, par, how, x, up, dy, d_gate.view_mut(), d_up.view_mut());
    out
}

#[test]
fn a_gates_gradients_are_those_of_its_two_steps_at_every_width() {
    let mut rng = Random::new(4);
    for &activation in Activation::ALL {
        for cpu in Cpu::all() {
            for n in (0..140).step_by(every(9)) {
                let [x, up, dy] =
                    [2, 0, 3].map(|gap| Guarded::random(3, n, n + gap, n % 5, &mut rng));
                let read = [x.view(), up.view(), dy.view()];
                let [d_gate, d_up] = gate_gradients(cpu, Par::SERIAL, activation, read);
                d_gate.assert_intact("d_gate");
                d_up.assert_intact("d_up");
                for i in 0..3 {
                    let product = |a: &[f32], b: &[f32]| -> Vec<f32> {
                        a.iter().zip(b).map(|(a, b)| a * b).collect()
                    };
                    let [x, up, dy] = read.map(|x| x.row(i));
                    let through = product(dy, up);
                    let through = backward(cpu, Par::SERIAL, activation, x, &through);
                    assert_eq!(hash(d_gate.view().row(i)), hash(&through), "{activation:?} {n}");
                    let up = product(dy, &apply(cpu, activation, x));
                    assert_eq!(hash(d_up.view().row(i)), hash(&up), "{activation:?} {n}");
                }
            }
        }
    }
}

#[test]
fn gradients_have_the_same_bits_on_every_instruction_set_and_thread_count() {
    let mut rng = Random::new(5);
    let (x, ones) = (sample(65_521), vec![1.0; sample(65_521).len()]);
    for &activation in Activation::ALL {
        let scalar = Cpu::with_isa(Isa::Scalar).unwrap();
        let expected = hash(&backward(scalar, Par::SERIAL, activation, &x, &ones));
        for cpu in Cpu::all() {
            let found = hash(&backward(cpu, Par::SERIAL, activation, &x, &ones));
            assert_eq!(found, expected, "{activation:?} {}", cpu.isa());
        }
        let rows = unless_emulated(300, 50);
        let [x, up, mut dy] = [5, 2, 0].map(|gap| Guarded::random(rows, 97, 97 + gap, 1, &mut rng));
        dy.set(7, 11, f32::NAN);
        let run = |cpu, par: Par<'_>| {
            let [a, b] = gate_gradients(cpu, par, activation, [x.view(), up.view(), dy.view()]);
            let mut d = Guarded::from_fn(rows, 97, 99, 1, |i, j| dy.view().row(i)[j]);
            activate_backward(cpu, par, activation, x.view(), d.view_mut());
            d.assert_intact("activate_backward");
            [a, b, d].map(|x| x.values())
        };
        let expected = run(scalar, Par::SERIAL);
        for values in &expected {
            for (at, y) in values.iter().enumerate() {
                assert_eq!(y.is_nan(), at == 7 * 97 + 11, "{activation:?} [{at}]");
            }
        }
        for cpu in Cpu::all() {
            for threads in (1..=8).step_by(every(3)) {
                let found = Team::new(threads).open(|par| run(cpu, par));
                for (found, expected) in found.iter().zip(&expected) {
                    assert_eq!(hash(found), hash(expected), "{activation:?} {threads} threads");
                }
            }
        }
    }
}
