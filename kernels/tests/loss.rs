//! Cross entropy and its gradient: the f64 definition against finite differences, the kernels against the definition,
//! their edges, and the same bits everywhere.

mod support;

use headrow_kernels::reference::training as reference;
use headrow_kernels::{
    Cpu, CrossEntropy, Isa, Mat, MatMut, Par, Smoothing, Team, TokenLoss, cross_entropy,
    cross_entropy_backward, nll, nll_backward,
};
use support::{Guarded, Random, every, hash, report, unless_emulated, within};

const U: f64 = 1.0 / (1u64 << 24) as f64;

const SMOOTHINGS: [Smoothing; 4] =
    [Smoothing::None, Smoothing::All(0.1), Smoothing::Others(0.1), Smoothing::All(1.0)];

fn losses(cpu: Cpu, how: &CrossEntropy<'_>, x: Mat<'_>, labels: &[Option<u32>]) -> Vec<TokenLoss> {
    let mut unwritten = TokenLoss::default();
    unwritten.nll = f64::NAN;
    let mut losses = vec![unwritten; labels.len()];
    cross_entropy(cpu, Par::SERIAL, how, x, labels, &mut losses);
    losses
}

fn labels(rng: &mut Random, rows: usize, classes: usize) -> Vec<Option<u32>> {
    (0..rows).map(|i| (i % 4 != 3).then(|| rng.below(classes) as u32)).collect()
}

#[test]
fn the_definition_agrees_with_finite_differences() {
    let mut rng = Random::new(1);
    for smoothing in SMOOTHINGS {
        for classes in [1, 2, 7] {
            let weights = rng.vec(classes);
            for how in [CrossEntropy::default(), CrossEntropy::default().with_weights(&weights)] {
                let how = how.with_smoothing(smoothing);
                let (x, labels) = (rng.vec(4 * classes), labels(&mut rng, 4, classes));
                let loss = |at: usize, by: f32| -> f64 {
                    let mut x = x.clone();
                    x[at] += by;
                    let all = reference::cross_entropy(&how, Mat::new(&x, 4, classes), &labels);
                    all.iter().map(|[smoothed, _]| smoothed).sum()
                };
                let x = Mat::new(&x, 4, classes);
                let exact = reference::cross_entropy_backward(&how, x, &labels);
                for (at, exact) in exact.into_iter().enumerate() {
                    // A step of 2⁻¹² is exact in f32 for these values.
                    let h = 1.0 / 4096.0;
                    let slope = (loss(at, h) - loss(at, -h)) / f64::from(2.0 * h);
                    assert!((slope - exact).abs() < 1e-7, "{how:?} [{at}]: {slope} for {exact}");
                }
            }
        }
    }
}

fn widths() -> impl Iterator<Item = usize> {
    (1..=70).chain([96, 127, 128, 129, 1000, 8191]).step_by(every(5))
}

#[test]
fn losses_and_gradients_are_within_their_bounds_at_every_width() {
    let mut rng = Random::new(2);
    for cpu in Cpu::all() {
        for classes in widths() {
            let weights: Vec<f32> = (0..classes).map(|_| rng.unit().abs()).collect();
            for (smoothing, spread) in SMOOTHINGS.into_iter().zip([1.0, 8.0, 0.1, 30.0]) {
                for how in [CrossEntropy::default(), CrossEntropy::default().with_weights(&weights)]
                {
                    let how = how.with_smoothing(smoothing);
                    let rows = 5;
                    let mut x =
                        Guarded::from_fn(rows, classes, classes + 3, classes % 4, |_, _| {
                            spread * rng.unit()
                        });
                    let labels = labels(&mut rng, rows, classes);
                    let what = format!("{} {rows}×{classes} {smoothing:?}", cpu.isa());
                    check(cpu, &how, &mut x, &labels, &what);
                }
            }
        }
    }
    report("cross entropy and its gradient");
}

/// q of the label or of another class.
fn target(smoothing: Smoothing, classes: usize, label: bool) -> f64 {
    let (own, all, others) = match smoothing {
        Smoothing::All(epsilon) => (1.0 - epsilon, epsilon, 0.0),
        Smoothing::Others(epsilon) => (1.0 - epsilon, 0.0, epsilon),
        _ => (1.0, 0.0, 0.0),
    };
    let (n, own) = (classes as f64, f64::from(own));
    let share = f64::from(all) / n;
    if label { own + share } else { share + f64::from(others) / (n - 1.0) }
}

/// The bounds of the documentation.
#[track_caller]
fn check(cpu: Cpu, how: &CrossEntropy<'_>, x: &mut Guarded, labels: &[Option<u32>], what: &str) {
    let (rows, classes) = (x.view().rows(), x.view().cols());
    let exact = reference::cross_entropy(how, x.view(), labels);
    let exact_gradient = reference::cross_entropy_backward(how, x.view(), labels);
    let found = losses(cpu, how, x.view(), labels);
    let old = x.values();
    let mut again = vec![TokenLoss::default(); rows];
    let scale = 0.37f32;
    cross_entropy_backward(cpu, Par::SERIAL, how, scale, x.view_mut(), labels, &mut again);
    assert_eq!(found, again, "{what}: losses beside the gradient");
    x.assert_intact(what);
    let n = classes as f64;
    for i in 0..rows {
        let z = &old[i * classes..][..classes];
        let max = z.iter().fold(f64::NEG_INFINITY, |m, &z| m.max(z.into()));
        let Some(label) = labels[i].map(|label| label as usize) else {
            assert_eq!(found[i], TokenLoss::default(), "{what}: a row without a label");
            assert!(x.view().row(i).iter().all(|&d| d == 0.0), "{what}: its gradient");
            continue;
        };
        let first = z.iter().position(|&z| f64::from(z) == max);
        assert_eq!(found[i].correct, first == Some(label), "{what} [{i}]");
        let [smoothed, nll] = exact[i];
        let sum = (n / 32.0 + 12.0) * U;
        let error = (found[i].nll - nll).abs();
        assert!(within(error, sum + 1e-12), "{what}: nll {} for {nll}", found[i].nll);
        // Weights and their q sum up to at most the classes' largest weight.
        let weight = |c: usize| how.weights.map_or(1.0, |weights| f64::from(weights[c]));
        let largest = (0..classes).map(weight).fold(0.0, f64::max);
        let below: f64 = z.iter().map(|&z| max - f64::from(z)).sum::<f64>() / n;
        let bound = largest * (sum + 1e-12 + (n / 32.0 + 4.0) * U * 2.0 * below);
        let error = (found[i].smoothed - smoothed).abs();
        assert!(
            within(error, bound),
            "{what}: {} for {smoothed}, {error:e} > {bound:e}",
            found[i].smoothed
        );
        let gradient = &exact_gradient[i * classes..][..classes];
        let p: Vec<f64> = {
            let total: f64 = z.iter().map(|&z| (f64::from(z) - max).exp()).sum();
            z.iter().map(|&z| (f64::from(z) - max).exp() / total).collect()
        };
        for (c, (&found, exact)) in x.view().row(i).iter().zip(gradient).enumerate() {
            let exact = exact * f64::from(scale);
            let distance = max - f64::from(z[c]);
            let own = target(how.smoothing, classes, c == label);
            let terms = (n / 32.0 + 12.0 + distance) * p[c] * largest + 3.0 * own * weight(c);
            let bound = terms * U * f64::from(scale) + 1e-38;
            let error = (f64::from(found) - exact).abs();
            assert!(
                within(error, bound),
                "{what}: d [{i}, {c}] {found:e} for {exact:e}, {error:e} > {bound:e}"
            );
        }
    }
}

#[test]
fn extreme_logits_have_finite_losses() {
    for cpu in Cpu::all() {
        let rows = [[3e38, -3e38, 0.0], [0.0, 90.0, -90.0], [f32::NEG_INFINITY, 1.0, 2.0]];
        for (z, expected) in rows.iter().zip([0.0, 180.0, 1.0 + (-1f64).exp().ln_1p()]) {
            let label = if z[1] == 90.0 {
                2
            } else if z[1] == 1.0 {
                1
            } else {
                0
            };
            let found = losses(cpu, &CrossEntropy::default(), Mat::from_row(z), &[Some(label)]);
            assert!((found[0].nll - expected).abs() < 1e-5, "{z:?}: {found:?} for {expected}");
        }
    }
}

#[test]
fn a_nan_or_an_infinity_makes_its_row_nan_and_no_other_and_unlabelled_rows_are_not_looked_at() {
    for cpu in Cpu::all() {
        for classes in [1, 5, 33, 70] {
            for special in [f32::NAN, f32::INFINITY] {
                for at in 0..classes {
                    let mut x: Vec<f32> = (0..4 * classes).map(|i| (i % 7) as f32).collect();
                    x[classes + at] = special;
                    x[2 * classes + at] = special;
                    let labels = [Some(0), Some(0), None, Some(classes as u32 - 1)];
                    for smoothing in SMOOTHINGS {
                        let how = CrossEntropy::default().with_smoothing(smoothing);
                        let mut found = [TokenLoss::default(); 4];
                        let mut d = x.clone();
                        let logits = MatMut::new(&mut d, 4, classes);
                        cross_entropy_backward(
                            cpu,
                            Par::SERIAL,
                            &how,
                            1.0,
                            logits,
                            &labels,
                            &mut found,
                        );
                        for (i, loss) in found.iter().enumerate() {
                            assert_eq!(
                                loss.smoothed.is_nan(),
                                i == 1,
                                "{smoothing:?} {special} {at}"
                            );
                            assert_eq!(loss.nll.is_nan(), i == 1, "{smoothing:?} {special} {at}");
                            assert!(i != 1 || !loss.correct);
                            let row = &d[i * classes..][..classes];
                            assert!(row.iter().all(|d| d.is_nan() == (i == 1)), "row {i}: {row:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn of_equal_logits_the_first_is_the_prediction() {
    for cpu in Cpu::all() {
        for classes in [2, 31, 64, 100] {
            let x = vec![0.5; classes];
            for label in 0..classes {
                let how = CrossEntropy::default();
                let found = losses(cpu, &how, Mat::from_row(&x), &[Some(label as u32)]);
                assert_eq!(found[0].correct, label == 0);
                assert!((found[0].nll - (classes as f64).ln()).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn the_same_bits_on_every_instruction_set_and_thread_count() {
    let mut rng = Random::new(3);
    for classes in [1, 33, 400] {
        let rows = unless_emulated(300, 60);
        let x = rng.vec(rows * classes);
        let weights = rng.vec(classes);
        let labels = labels(&mut rng, rows, classes);
        for smoothing in SMOOTHINGS {
            for how in [CrossEntropy::default(), CrossEntropy::default().with_weights(&weights)] {
                let how = how.with_smoothing(smoothing);
                let run = |cpu, par: Par<'_>| {
                    let (mut d, mut found) = (x.clone(), vec![TokenLoss::default(); rows]);
                    let logits = MatMut::new(&mut d, rows, classes);
                    cross_entropy_backward(cpu, par, &how, 0.5, logits, &labels, &mut found);
                    let mut plain = vec![TokenLoss::default(); rows];
                    let logits = Mat::new(&x, rows, classes);
                    cross_entropy(cpu, par, &how, logits, &labels, &mut plain);
                    assert_eq!(found, plain);
                    let bits = |loss: &TokenLoss| (loss.smoothed.to_bits(), loss.nll.to_bits());
                    (hash(&d), found.iter().map(bits).collect::<Vec<_>>())
                };
                let expected = run(Cpu::with_isa(Isa::Scalar).unwrap(), Par::SERIAL);
                for cpu in Cpu::all() {
                    for threads in (1..=8).step_by(every(3)) {
                        let found = Team::new(threads).open(|par| run(cpu, par));
                        assert!(found == expected, "{} {threads} threads {how:?}", cpu.isa());
                    }
                }
            }
        }
    }
}

#[test]
fn nll_picks_the_labels_logarithms() {
    let log_p: Vec<f32> = (0..12).map(|i| -(i as f32)).collect();
    let log_p = Mat::new(&log_p, 3, 4);
    let (labels, weights) = ([Some(2), None, Some(0)], [1.0, 2.0, 3.0, 4.0]);
    let mut losses = [f32::NAN; 3];
    nll(None, log_p, &labels, &mut losses);
    assert_eq!(losses, [2.0, 0.0, 8.0]);
    nll(Some(&weights), log_p, &labels, &mut losses);
    assert_eq!(losses, [6.0, 0.0, 8.0]);
    let mut d = [f32::NAN; 12];
    nll_backward(Some(&weights), &labels, &[0.5, 9.0, 2.0], MatMut::new(&mut d, 3, 4));
    let mut expected = [0.0; 12];
    (expected[2], expected[8]) = (-1.5, -2.0);
    assert_eq!(d, expected);
}

#[test]
#[should_panic(expected = "label 4 of row 1 among 4 classes")]
fn a_label_beyond_the_classes_is_refused() {
    let x = [0.0; 8];
    losses(Cpu::detect(), &CrossEntropy::default(), Mat::new(&x, 2, 4), &[Some(3), Some(4)]);
}

#[test]
#[should_panic(expected = "label smoothing by 1.5")]
fn smoothing_beyond_1_is_refused() {
    let how = CrossEntropy::default().with_smoothing(Smoothing::All(1.5));
    losses(Cpu::detect(), &how, Mat::from_row(&[0.0; 4]), &[Some(3)]);
}
