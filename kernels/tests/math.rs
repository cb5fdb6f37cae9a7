//! exp, ln, erf, tanh, σ against f64, and the same bits on every instruction set.

mod support;

use headrow_kernels::reference::rows as reference;
use headrow_kernels::rows::math;
use headrow_kernels::{Cpu, Isa, Mat, MatMut, Par, Team};
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{Guarded, Random, every, hash, ulps};

type Function = fn(Cpu, Par<'_>, MatMut<'_>);

struct Case {
    name: &'static str,
    function: Function,
    exact: fn(f64) -> f64,
    /// In units of the last place.
    bound: f64,
}

const CASES: [Case; 5] = [
    Case { name: "exp", function: math::exp, exact: reference::exp, bound: 1.0 },
    Case { name: "ln", function: math::ln, exact: reference::ln, bound: 1.0 },
    Case { name: "erf", function: math::erf, exact: reference::erf, bound: 2.0 },
    Case { name: "tanh", function: math::tanh, exact: reference::tanh, bound: 2.0 },
    Case { name: "sigmoid", function: math::sigmoid, exact: reference::sigmoid, bound: 3.0 },
];

fn apply(cpu: Cpu, function: Function, x: &[f32]) -> Vec<f32> {
    let mut y = x.to_vec();
    function(cpu, Par::SERIAL, MatMut::new(&mut y, 1, x.len()));
    y
}

/// The distance of `y` from `exact` in units of the last place of the f32 nearest to `exact`; 0 when both are the same
/// special value or `y` is that nearest one.
fn error(y: f32, exact: f64) -> f64 {
    let nearest = exact as f32;
    if y.to_bits() == nearest.to_bits() || (y.is_nan() && nearest.is_nan()) {
        return 0.0;
    }
    if !y.is_finite() || !nearest.is_finite() {
        // One side of the overflow threshold: as far as the neighbours are.
        return f64::from(ulps(y, nearest));
    }
    let magnitude = nearest.abs().max(f32::MIN_POSITIVE);
    let unit = f64::from(f32::from_bits(magnitude.to_bits() + 1)) - f64::from(magnitude);
    // At a power of two the unit below counts.
    let unit = if magnitude.to_bits() & 0x007f_ffff == 0 && f64::from(nearest.abs()) > exact.abs() {
        unit / 2.0
    } else {
        unit
    };
    (f64::from(y) - exact).abs() / unit.max(2f64.powi(-149))
}

/// The largest error over `x`, and where.
fn worst(cpu: Cpu, case: &Case, x: &[f32]) -> (f64, f32) {
    let y = apply(cpu, case.function, x);
    let errors = x.iter().zip(&y).map(|(&x, &y)| (error(y, (case.exact)(f64::from(x))), x));
    errors.fold((0.0, 0.0), |worst, this| if this.0 > worst.0 { this } else { worst })
}

/// Every exponent and sign, some mantissas of each, and the special values.
fn sample(step: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..=u32::MAX).step_by(step * every(20)).map(f32::from_bits).collect();
    for edge in
        [0.0f32, 1.0, 0.5, 0.625, 0.8, 87.0, 88.0, 88.72284, 88.73, 89.0, 103.97, 103.98, 104.0]
    {
        for offset in -40..=40i32 {
            let near = f32::from_bits((edge.to_bits() as i32 + offset).max(0) as u32);
            x.extend([near, -near]);
        }
    }
    x.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MAX, f32::MIN]);
    x.extend([f32::MIN_POSITIVE, f32::from_bits(1), f32::from_bits(0x007f_ffff)]);
    x
}

#[test]
fn errors_stay_within_the_stated_bounds() {
    let x = sample(9973);
    for case in &CASES {
        let (error, at) = worst(Cpu::detect(), case, &x);
        println!("{}: {error:.3} ulp at {at:e}", case.name);
        assert!(error <= case.bound, "{}: {error} ulp at {at:e}", case.name);
    }
}

/// The reference at a tenth of its price where a short formula is as good: 2⁻³⁰ relative, or where both sides are
/// constant.
fn exact_quickly(name: &str, x: f32) -> f64 {
    let (x, a) = (f64::from(x), f64::from(x.abs()));
    match name {
        "exp" if a < 1e-5 => 1.0 + x + x * x / 2.0,
        "exp" if x < -105.0 => 0.0,
        "exp" if x > 90.0 => f64::INFINITY,
        "exp" => reference::exp(x),
        "ln" => reference::ln(x),
        "erf" if a < 1e-3 => std::f64::consts::FRAC_2_SQRT_PI * (x - x * x * x / 3.0),
        "erf" if a > 6.0 => x.signum(),
        "erf" => reference::erf(x),
        "tanh" if a < 1e-3 => x - x * x * x / 3.0,
        "tanh" if a > 20.0 => x.signum(),
        "tanh" => reference::tanh(x),
        "sigmoid" if a < 1e-3 => 0.5 + x / 4.0,
        "sigmoid" if x < -105.0 => 0.0,
        "sigmoid" if x > 40.0 => 1.0,
        _ => reference::sigmoid(x),
    }
}

/// CI runs it in release with both cores on one instruction set: about a minute.
#[test]
#[ignore = "tries all 2^32 inputs of each function: a minute in release, an hour without optimisation"]
fn errors_of_all_inputs_stay_within_the_stated_bounds() {
    const BLOCK: usize = 1 << 18;
    let cpu = Cpu::detect();
    for case in &CASES {
        let next = AtomicUsize::new(0);
        let work = || {
            let (mut x, mut y) = (vec![0.0; BLOCK], vec![0.0; BLOCK]);
            let mut worst = (0.0, 0.0);
            loop {
                let first = next.fetch_add(1, Ordering::Relaxed) * BLOCK;
                if first > u32::MAX as usize {
                    return worst;
                }
                for (i, x) in x.iter_mut().enumerate() {
                    *x = f32::from_bits((first + i) as u32);
                }
                y.copy_from_slice(&x);
                (case.function)(cpu, Par::SERIAL, MatMut::new(&mut y, 1, BLOCK));
                for (&x, &y) in x.iter().zip(&y) {
                    let error = if x.is_nan() {
                        if y.is_nan() { 0.0 } else { f64::INFINITY }
                    } else {
                        error(y, exact_quickly(case.name, x))
                    };
                    if error > worst.0 {
                        worst = (error, x);
                    }
                }
            }
        };
        let start = std::time::Instant::now();
        let (error, at) = std::thread::scope(|scope| {
            let workers = [(); 2].map(|()| scope.spawn(work));
            let worsts = workers.map(|worker| worker.join().unwrap());
            if worsts[0].0 > worsts[1].0 { worsts[0] } else { worsts[1] }
        });
        println!("{}: {error:.4} ulp at {at:e} ({:.1?})", case.name, start.elapsed());
        assert!(error <= case.bound, "{}: {error} ulp at {at:e}", case.name);
    }
}

#[test]
fn exp_is_what_it_must_be_at_the_edges() {
    for cpu in Cpu::all() {
        let exp = |x| apply(cpu, math::exp, &[x])[0];
        assert_eq!(exp(0.0).to_bits(), 1.0f32.to_bits());
        assert_eq!(exp(-0.0).to_bits(), 1.0f32.to_bits());
        assert_eq!(exp(-103.98).to_bits(), 0);
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp(-103.9).to_bits(), 1, "the smallest denormal");
        assert_eq!(exp(88.73), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(88.722).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }
}

#[test]
fn odd_functions_are_odd_and_bounded() {
    let x: Vec<f32> = sample(9973).into_iter().filter(|x| !x.is_nan()).collect();
    let negated: Vec<f32> = x.iter().map(|x| -x).collect();
    for function in [math::erf as Function, math::tanh] {
        let (y, z) = (apply(Cpu::detect(), function, &x), apply(Cpu::detect(), function, &negated));
        for ((x, y), z) in x.iter().zip(y).zip(z) {
            assert_eq!(y.to_bits(), (-z).to_bits(), "at {x:e}");
            assert!(y.abs() <= 1.0, "{y} at {x:e}");
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let x = sample(65_521);
    for case in &CASES {
        let expected = hash(&apply(Cpu::with_isa(Isa::Scalar).unwrap(), case.function, &x));
        for cpu in Cpu::all() {
            assert_eq!(
                hash(&apply(cpu, case.function, &x)),
                expected,
                "{} {}",
                case.name,
                cpu.isa()
            );
        }
    }
}

#[test]
fn only_the_elements_of_the_view_are_touched_whatever_its_shape() {
    let mut rng = Random::new(1);
    for cpu in Cpu::all() {
        for cols in (0..=97).step_by(every(3)) {
            for (rows, gap, offset) in [(1, 0, 0), (3, 0, 1), (2, 5, 3)] {
                let x = Guarded::random(rows, cols, cols + gap, offset, &mut rng);
                for case in &CASES {
                    let mut y =
                        Guarded::from_fn(rows, cols, cols + gap, offset, |i, j| x.view().row(i)[j]);
                    (case.function)(cpu, Par::SERIAL, y.view_mut());
                    y.assert_intact(case.name);
                    let alone: Vec<f32> =
                        x.values().iter().map(|&x| apply(cpu, case.function, &[x])[0]).collect();
                    assert_eq!(hash(&y.values()), hash(&alone), "{} {rows}×{cols}", case.name);
                }
            }
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let x = Random::new(2).vec(300 * 130);
    let expected = hash(&apply(Cpu::detect(), math::exp, &x));
    for threads in (1..=8).step_by(every(3)) {
        let mut y = x.clone();
        Team::new(threads).open(|par| math::exp(Cpu::detect(), par, MatMut::new(&mut y, 300, 130)));
        assert_eq!(hash(&y), expected, "{threads} threads");
    }
    let _ = Mat::new(&x, 300, 130);
}
