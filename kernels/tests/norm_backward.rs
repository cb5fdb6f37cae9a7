//! Gradients of the norms: the f64 definition against finite differences, the kernels against the definition, their
//! edges, and the same bits everywhere.

mod support;

use headrow_kernels::reference::rows::{self as reference, NormGradients};
use headrow_kernels::{
    Cpu, Isa, LayerNorm, Mat, MatMut, Moments, NormOutput, Par, RmsNorm, Team, Write,
    add_layer_norm, add_rms_norm, layer_norm, layer_norm_backward, rms_norm, rms_norm_backward,
};
use support::{Guarded, Random, every, hash, report, unless_emulated, within};

const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Which of the two norms.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Layer,
    Rms,
}

const KINDS: [Kind; 2] = [Kind::Layer, Kind::Rms];

impl Kind {
    fn reference(self, x: Mat<'_>, dy: Mat<'_>, gamma: &[f32], epsilon: f32) -> NormGradients {
        match self {
            Kind::Layer => reference::layer_norm_backward(x, dy, gamma, epsilon),
            Kind::Rms => reference::rms_norm_backward(x, dy, gamma, epsilon),
        }
    }
}

/// dx, dγ and dβ of the kernels, from what the saving forward pass kept.
struct Kernels {
    dx: Guarded,
    gamma: Vec<f32>,
    beta: Vec<f32>,
}

#[derive(Clone, Copy)]
struct Case<'a> {
    kind: Kind,
    gamma: &'a [f32],
    epsilon: f32,
    x: Mat<'a>,
    dy: Mat<'a>,
}

impl Case<'_> {
    fn moments(&self, cpu: Cpu, par: Par<'_>) -> Vec<Moments> {
        let Case { gamma, epsilon, x, .. } = *self;
        let mut saved = vec![Moments::default(); x.rows()];
        let mut y = vec![f32::NAN; x.rows() * x.cols()];
        let to = NormOutput::from(MatMut::new(&mut y, x.rows(), x.cols()));
        let to = to.with_moments(&mut saved);
        match self.kind {
            Kind::Layer => layer_norm(cpu, par, &LayerNorm { gamma, beta: None, epsilon }, x, to),
            Kind::Rms => rms_norm(cpu, par, &RmsNorm { gamma, epsilon }, x, to),
        }
        saved
    }

    fn run(&self, cpu: Cpu, par: Par<'_>) -> Kernels {
        let cols = self.x.cols();
        let dx = Guarded::filled(self.x.rows(), cols, cols + 3, 2, f32::NAN);
        let mut out = Kernels { dx, gamma: vec![0.0; cols], beta: vec![0.0; cols] };
        self.run_into(cpu, par, Write::Replace, &mut out);
        out
    }

    fn run_into(&self, cpu: Cpu, par: Par<'_>, write: Write, out: &mut Kernels) {
        let Case { kind, gamma, epsilon, x, dy } = *self;
        let saved = self.moments(cpu, par);
        let Kernels { dx, gamma: d_gamma, beta } = out;
        let dx = dx.view_mut();
        match kind {
            Kind::Layer => {
                let norm = LayerNorm { gamma, beta: None, epsilon };
                let beta = Some(&mut beta[..]);
                layer_norm_backward(cpu, par, &norm, &saved, x, dy, write, dx, d_gamma, beta);
            }
            Kind::Rms => {
                let norm = RmsNorm { gamma, epsilon };
                rms_norm_backward(cpu, par, &norm, &saved, x, dy, write, dx, d_gamma);
            }
        }
    }
}

#[test]
fn the_definition_agrees_with_finite_differences() {
    let mut rng = Random::new(1);
    let h = 1.0 / 4096.0;
    for kind in KINDS {
        for (rows, d) in [(1, 1), (2, 3), (3, 8), (2, 33)] {
            let (x, dy) = (rng.vec(rows * d), rng.vec(rows * d));
            let gamma = rng.vec(d);
            let loss = |x: &[f32], gamma: &[f32], beta: &[f32]| -> f64 {
                let x = Mat::new(x, rows, d);
                let y = match kind {
                    Kind::Layer => reference::layer_norm(x, gamma, Some(beta), 0.1),
                    Kind::Rms => reference::rms_norm(x, gamma, 0.1),
                };
                y.iter().zip(&dy).map(|(y, &dy)| y * f64::from(dy)).sum()
            };
            // Values are multiples of 2⁻²³ below 1, so a step of 2⁻¹² is exact in f32.
            let slope = |values: &[f32], at: usize, loss: &dyn Fn(&[f32]) -> f64| {
                let moved = |by: f32| {
                    let mut values = values.to_vec();
                    values[at] += by;
                    loss(&values)
                };
                (moved(h) - moved(-h)) / f64::from(2.0 * h)
            };
            let exact = kind.reference(Mat::new(&x, rows, d), Mat::new(&dy, rows, d), &gamma, 0.1);
            let check = |what: &str, slope: f64, exact: f64| {
                let error = (slope - exact).abs();
                assert!(error < 2e-5, "{kind:?} {rows}×{d} {what}: {slope} for {exact}");
            };
            let beta = vec![0.25; d];
            for at in 0..rows * d {
                check("x", slope(&x, at, &|x| loss(x, &gamma, &beta)), exact.x[at]);
            }
            for at in 0..d {
                check("γ", slope(&gamma, at, &|gamma| loss(&x, gamma, &beta)), exact.gamma[at]);
                if kind == Kind::Layer {
                    check("β", slope(&beta, at, &|beta| loss(&x, &gamma, beta)), exact.beta[at]);
                }
            }
        }
    }
}

/// The bounds of the documentation, element by element.
#[track_caller]
fn assert_bounds(case: &Case<'_>, found: &Kernels, what: &str) {
    let Case { kind, gamma, epsilon, x, dy } = *case;
    let (rows, d) = (x.rows(), x.cols());
    let exact = kind.reference(x, dy, gamma, epsilon);
    let n = d as f64;
    let (mut gamma_terms, mut beta_terms) = (vec![0.0; d], vec![0.0; d]);
    for i in 0..rows {
        let wide = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let (x, dy) = (wide(x.row(i)), wide(dy.row(i)));
        let mean = if kind == Kind::Layer { x.iter().sum::<f64>() / n } else { 0.0 };
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let inverse = 1.0 / (variance + f64::from(epsilon)).sqrt();
        let largest = x.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        let g: Vec<f64> = dy.iter().zip(gamma).map(|(dy, &gamma)| dy * f64::from(gamma)).collect();
        let normal: Vec<f64> = x.iter().map(|x| (x - mean) * inverse).collect();
        let average = |f: &dyn Fn(usize) -> f64| (0..d).map(f).sum::<f64>() / n;
        let (mean_g, mean_gx) = (average(&|j| g[j].abs()), average(&|j| (g[j] * normal[j]).abs()));
        let lost = 4.0 * U * largest * inverse;
        for j in 0..d {
            let terms = g[j].abs() + mean_g + normal[j].abs() * mean_gx;
            let moved = lost * (mean_gx + normal[j].abs() * mean_g);
            let bound = ((n / 16.0 + 40.0) * U * terms + moved) * inverse + 2f64.powi(-149);
            let (dx, exact) = (f64::from(found.dx.view().row(i)[j]), exact.x[i * d + j]);
            let error = (dx - exact).abs();
            assert!(
                within(error, bound),
                "{what}: dx [{i}, {j}] {dx:e} for {exact:e}, {error:e} > {bound:e}"
            );
            gamma_terms[j] +=
                dy[j].abs() * (((rows as f64) + n / 32.0 + 20.0) * U * normal[j].abs() + lost);
            beta_terms[j] += dy[j].abs() * rows as f64 * U;
        }
    }
    for j in 0..d {
        let error = (f64::from(found.gamma[j]) - exact.gamma[j]).abs();
        assert!(
            error <= gamma_terms[j] + 1e-45,
            "{what}: dγ {j}: {error:e} > {:e}",
            gamma_terms[j]
        );
        if kind == Kind::Layer {
            let error = (f64::from(found.beta[j]) - exact.beta[j]).abs();
            assert!(
                error <= beta_terms[j] + 1e-45,
                "{what}: dβ {j}: {error:e} > {:e}",
                beta_terms[j]
            );
        }
    }
}

fn lengths() -> impl Iterator<Item = usize> {
    (1..=70).chain([96, 127, 128, 129, 255, 384, 511, 768]).step_by(every(5))
}

#[test]
fn gradients_are_within_their_bounds_at_every_width() {
    let mut rng = Random::new(2);
    for cpu in Cpu::all() {
        for d in lengths() {
            let gamma = rng.vec(d);
            for (mean, spread, epsilon) in
                [(0.0, 1.0, 1e-5), (3.0, 0.1, 1e-12), (0.0, 1e-9, 1e-5), (100.0, 1.0, 1e-6)]
            {
                for kind in KINDS {
                    let rows = 1 + d % 5;
                    let x = Guarded::from_fn(rows, d, d + 1, 1, |_, _| mean + spread * rng.unit());
                    let dy = Guarded::random(rows, d, d + 5, 3, &mut rng);
                    let case = Case { kind, gamma: &gamma, epsilon, x: x.view(), dy: dy.view() };
                    let found = case.run(cpu, Par::SERIAL);
                    found.dx.assert_intact("norm backward");
                    assert_bounds(
                        &case,
                        &found,
                        &format!("{} {kind:?} {rows}×{d} mean {mean}", cpu.isa()),
                    );
                }
            }
        }
    }
    report("gradients of norms, of x");
}

#[test]
fn huge_rows_have_right_gradients_too() {
    let mut rng = Random::new(3);
    for cpu in Cpu::all() {
        for d in [2, 31, 64, 100] {
            let gamma = rng.vec(d);
            for magnitude in [1e17, 1e19, 1e25, 1e30, 1e37, 3.3e38] {
                for kind in KINDS {
                    let x: Vec<f32> = (0..3 * d).map(|_| magnitude * rng.unit()).collect();
                    // Gradients of a size that leaves dx in the range of normal numbers.
                    let dy: Vec<f32> = (0..3 * d).map(|_| 1e6 * rng.unit()).collect();
                    let (x, dy) = (Mat::new(&x, 3, d), Mat::new(&dy, 3, d));
                    let case = Case { kind, gamma: &gamma, epsilon: 1e-5, x, dy };
                    let what = format!("{} {kind:?} {magnitude:e} {d}", cpu.isa());
                    assert_bounds(&case, &case.run(cpu, Par::SERIAL), &what);
                }
            }
        }
    }
}

#[test]
fn a_constant_row_has_the_gradients_of_its_definition_whatever_its_size() {
    let mut rng = Random::new(4);
    for cpu in Cpu::all() {
        for value in [0.0, 0.3, -7e4, 2e19, 1e30, f32::MAX] {
            let (gamma, dy) = (rng.vec(48), rng.vec(48));
            let x = [value; 48];
            let (x, dy) = (Mat::from_row(&x), Mat::from_row(&dy));
            let case = Case { kind: Kind::Layer, gamma: &gamma, epsilon: 1e-2, x, dy };
            let found = case.run(cpu, Par::SERIAL);
            assert!(found.gamma.iter().all(|&gamma| gamma == 0.0), "{value:e}");
            assert_eq!(found.beta, dy.row(0), "{value:e}");
            // x̂ is 0, so the size of x leaves no error: dx = (g − mean g)/√ε.
            let exact = reference::layer_norm_backward(Mat::from_row(&[0.0; 48]), dy, &gamma, 1e-2);
            for (dx, exact) in found.dx.values().into_iter().zip(exact.x) {
                assert!((f64::from(dx) - exact).abs() < 1e-5, "{value:e}: {dx} for {exact}");
            }
        }
    }
}

#[test]
fn saving_changes_no_bit() {
    let mut rng = Random::new(5);
    for cpu in Cpu::all() {
        for d in [1, 31, 32, 77, 384] {
            let rows = 6;
            let mut x = rng.vec(rows * d);
            x[d..2 * d].iter_mut().for_each(|x| *x *= 3e37);
            let residual = rng.vec(rows * d);
            let (gamma, beta) = (rng.vec(d), rng.vec(d));
            let (x, residual) = (Mat::new(&x, rows, d), Mat::new(&residual, rows, d));
            let layer = LayerNorm { gamma: &gamma, beta: Some(&beta), epsilon: 1e-5 };
            let rms = RmsNorm { gamma: &gamma, epsilon: 1e-5 };
            let par = Par::SERIAL;
            type Forward<'a> = &'a dyn Fn(NormOutput<'_>, MatMut<'_>);
            let forwards: [Forward<'_>; 4] = [
                &|to, _| layer_norm(cpu, par, &layer, x, to),
                &|to, sum| add_layer_norm(cpu, par, &layer, x, residual, Some(sum), to),
                &|to, _| rms_norm(cpu, par, &rms, x, to),
                &|to, _| add_rms_norm(cpu, par, &rms, x, residual, None, to),
            ];
            for (at, forward) in forwards.into_iter().enumerate() {
                let run = |saved: Option<&mut [Moments]>| {
                    let (mut y, mut sum) = (vec![f32::NAN; rows * d], vec![0.0; rows * d]);
                    let mut to = NormOutput::from(MatMut::new(&mut y, rows, d));
                    if let Some(saved) = saved {
                        to = to.with_moments(saved);
                    }
                    forward(to, MatMut::new(&mut sum, rows, d));
                    (hash(&y), hash(&sum))
                };
                let saving = run(Some(&mut vec![Moments::default(); rows]));
                assert_eq!(run(None), saving, "{} d = {d}, norm {at}", cpu.isa());
            }
        }
    }
}

#[test]
fn accumulating_adds_the_same_gradients_and_sums_continue_their_chains() {
    let mut rng = Random::new(6);
    for cpu in Cpu::all() {
        for d in [1, 40, 97] {
            let rows = 7;
            let (x, dy, gamma) = (rng.vec(rows * d), rng.vec(rows * d), rng.vec(d));
            for kind in KINDS {
                let case = |rows: std::ops::Range<usize>| Case {
                    kind,
                    gamma: &gamma,
                    epsilon: 1e-5,
                    x: Mat::new(&x, 7, d).rows_range(rows.clone()),
                    dy: Mat::new(&dy, 7, d).rows_range(rows),
                };
                let whole = case(0..7).run(cpu, Par::SERIAL);
                let old = Guarded::random(rows, d, d, 0, &mut rng);
                let dx = Guarded::from_fn(rows, d, d, 0, |i, j| old.view().row(i)[j]);
                let mut added = Kernels { dx, gamma: vec![0.0; d], beta: vec![0.0; d] };
                case(0..7).run_into(cpu, Par::SERIAL, Write::Accumulate, &mut added);
                for (at, new) in added.dx.values().into_iter().enumerate() {
                    assert_eq!(new, old.values()[at] + whole.dx.values()[at]);
                }
                // In two parts of the rows, the second into the sums of the first.
                let mut parts = case(0..3).run(cpu, Par::SERIAL);
                parts.dx = Guarded::filled(4, d, d, 0, f32::NAN);
                case(3..7).run_into(cpu, Par::SERIAL, Write::Replace, &mut parts);
                assert_eq!((&parts.gamma, &parts.beta), (&whole.gamma, &whole.beta));
                assert_eq!(parts.dx.values(), whole.dx.values()[3 * d..]);
            }
        }
    }
}

#[test]
fn a_nan_or_infinity_makes_its_row_nan_and_no_other() {
    for cpu in Cpu::all() {
        for d in [1, 5, 32, 33, 70] {
            let gamma = vec![0.5; d];
            for (special, in_x) in [(f32::NAN, true), (f32::INFINITY, true), (f32::NAN, false)] {
                for at in (0..d).step_by(every(7)) {
                    let mut values: [Vec<f32>; 2] =
                        std::array::from_fn(|k| (0..3 * d).map(|i| ((i + k) % 7) as f32).collect());
                    values[usize::from(!in_x)][d + at] = special;
                    let [x, dy] = &values;
                    let (x, dy) = (Mat::new(x, 3, d), Mat::new(dy, 3, d));
                    for kind in KINDS {
                        let case = Case { kind, gamma: &gamma, epsilon: 1e-5, x, dy };
                        let found = case.run(cpu, Par::SERIAL);
                        let dx = found.dx.values();
                        assert!(dx[..d].iter().chain(&dx[2 * d..]).all(|dx| dx.is_finite()));
                        assert!(dx[d..2 * d].iter().all(|dx| dx.is_nan()), "{kind:?} {at} of {d}");
                        // Of the sums, all depend on x̂ of the row, but only one column on an element of dy.
                        for (j, sum) in found.gamma.iter().enumerate() {
                            assert_eq!(sum.is_nan(), in_x || j == at, "{kind:?} dγ {j}");
                        }
                        for (j, sum) in found.beta.iter().enumerate() {
                            let nan = kind == Kind::Layer && !in_x && j == at;
                            assert_eq!(sum.is_nan(), nan, "{kind:?} dβ {j}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn the_same_bits_on_every_instruction_set_and_thread_count() {
    let mut rng = Random::new(7);
    for d in [1, 31, 64, 77, 384] {
        let rows = unless_emulated(500, 60);
        let (x, dy, gamma) = (rng.vec(rows * d), rng.vec(rows * d), rng.vec(d));
        let (x, dy) = (Mat::new(&x, rows, d), Mat::new(&dy, rows, d));
        for kind in KINDS {
            let case = Case { kind, gamma: &gamma, epsilon: 1e-5, x, dy };
            let run = |cpu, par: Par<'_>| {
                let Kernels { dx, gamma, beta } = case.run(cpu, par);
                hash(&[dx.values(), gamma, beta].concat())
            };
            let expected = run(Cpu::with_isa(Isa::Scalar).unwrap(), Par::SERIAL);
            for cpu in Cpu::all() {
                for threads in (1..=8).step_by(every(3)) {
                    let found = Team::new(threads).open(|par| run(cpu, par));
                    assert_eq!(found, expected, "{} {kind:?} {d}, {threads} threads", cpu.isa());
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "2 moments")]
fn moments_of_other_rows_are_refused() {
    let x = [1.0; 12];
    let (mut dx, mut gamma) = ([0.0; 12], [0.0; 4]);
    let norm = RmsNorm { gamma: &[1.0; 4], epsilon: 1e-5 };
    let (saved, x) = ([Moments::default(); 2], Mat::new(&x, 3, 4));
    let dx = MatMut::new(&mut dx, 3, 4);
    rms_norm_backward(
        Cpu::detect(),
        Par::SERIAL,
        &norm,
        &saved,
        x,
        x,
        Write::Replace,
        dx,
        &mut gamma,
    );
}
