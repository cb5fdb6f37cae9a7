//! Softmax in all its forms against f64, its policy at the edges, and the same bits everywhere.

mod support;

use headrow_kernels::reference::rows as reference;
use headrow_kernels::{
    Cpu, Isa, Mat, MatMut, Par, Team, Visible, log_softmax, log_softmax_backward, masked_softmax,
    softmax, softmax_backward,
};
use support::{Guarded, Random, every, hash, report, unless_emulated, within};

const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Lengths where blocks of 32 begin and end, and all short ones.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=97)
        .chain([127, 128, 129, 159, 160, 161, 255, 256, 257, 383, 384, 511, 512, 513, 1000, 2049])
}

fn rows_of(cpu: Cpu, x: &[f32], cols: usize, f: impl Fn(Cpu, MatMut<'_>)) -> Vec<f32> {
    let mut y = x.to_vec();
    f(cpu, MatMut::new(&mut y, x.len().checked_div(cols).unwrap_or(1), cols));
    y
}

fn soft(cpu: Cpu, x: &[f32]) -> Vec<f32> {
    rows_of(cpu, x, x.len(), |cpu, x| softmax(cpu, Par::SERIAL, x))
}

fn masked(cpu: Cpu, scale: f32, visible: Visible<'_>, x: &[f32], cols: usize) -> Vec<f32> {
    rows_of(cpu, x, cols, |cpu, x| masked_softmax(cpu, Par::SERIAL, scale, visible.clone(), x))
}

/// |y − exact| ≤ (n/32 + 12 + |s − m|)·u·exact, with |s − m| ≤ `spread`.
#[track_caller]
fn assert_close(y: &[f32], exact: &[f64], spread: f64, what: &str) {
    let n = y.len() as f64;
    for (j, (&y, &exact)) in y.iter().zip(exact).enumerate() {
        let bound = (n / 32.0 + 12.0 + spread) * U * exact + 2f64.powi(-149);
        let error = (f64::from(y) - exact).abs();
        assert!(
            within(error, bound),
            "{what}: [{j}] {y:e}, exactly {exact:e}, error {error:e} > {bound:e}"
        );
    }
}

#[test]
fn softmax_is_within_its_bound_and_sums_to_one() {
    let mut rng = Random::new(1);
    for cpu in Cpu::all() {
        for n in lengths() {
            for factor in [1.0, 20.0, 300.0] {
                let x: Vec<f32> = (0..n).map(|_| rng.unit() * factor).collect();
                let y = soft(cpu, &x);
                let exact = reference::softmax(Mat::from_row(&x));
                assert_close(
                    &y,
                    &exact,
                    2.0 * f64::from(factor),
                    &format!("{} n = {n}", cpu.isa()),
                );
                let sum: f64 = y.iter().map(|&y| f64::from(y)).sum();
                assert!(n == 0 || (sum - 1.0).abs() <= (n as f64 / 32.0 + 12.0) * U, "{n}: {sum}");
            }
        }
    }
    report("softmax");
}

#[test]
fn log_softmax_is_within_its_bound() {
    let mut rng = Random::new(2);
    for cpu in Cpu::all() {
        for n in lengths() {
            let x: Vec<f32> = (0..n).map(|_| rng.unit() * 30.0).collect();
            let y = rows_of(cpu, &x, n, |cpu, x| log_softmax(cpu, Par::SERIAL, x));
            let exact = reference::log_softmax(Mat::from_row(&x));
            let slack = n as f64 / 32.0 + 12.0 + 2.0 * (n as f64).max(1.0).ln();
            for (y, exact) in y.iter().zip(exact) {
                let error = (f64::from(*y) - exact).abs();
                let bound = (2.0 * exact.abs() + slack) * U;
                assert!(within(error, bound), "n = {n}: {y} for {exact}");
            }
        }
    }
    report("log-softmax");
}

/// Whether a row sees a column.
type Sees<'a> = Box<dyn Fn(usize, usize) -> bool + 'a>;

/// Every kind of mask, with what it means.
fn kinds<'a>(
    cols: usize,
    columns: &'a [bool],
    each: Mat<'a, bool>,
    bias: Mat<'a>,
) -> Vec<(Visible<'a>, Sees<'a>)> {
    let (first, end) = (cols / 3, cols - cols / 5);
    vec![
        (Visible::All, Box::new(|_, _| true)),
        (Visible::Range(first..end), Box::new(move |_, j| (first..end).contains(&j))),
        (Visible::Diagonal(3), Box::new(|i, j| j <= i + 3)),
        (Visible::Diagonal(-2), Box::new(|i, j| j + 2 <= i)),
        (Visible::Columns(columns), Box::new(|_, j| columns[j])),
        (Visible::Each(each), Box::new(move |i, j| each.row(i)[j])),
        (Visible::Added(bias), Box::new(move |i, j| bias.row(i)[j] != f32::NEG_INFINITY)),
    ]
}

#[test]
fn every_mask_gives_what_its_definition_says_and_hidden_elements_become_plus_zero() {
    let mut rng = Random::new(3);
    let rows = 5;
    for cpu in Cpu::all() {
        for cols in lengths().filter(|&n| n <= 513) {
            let columns: Vec<bool> = (0..cols).map(|_| rng.below(3) > 0).collect();
            let each: Vec<bool> = (0..rows * cols).map(|_| rng.below(2) > 0).collect();
            let each = Mat::new(&each, rows, cols);
            let bias: Vec<f32> = (0..rows * cols)
                .map(|_| if rng.below(4) == 0 { f32::NEG_INFINITY } else { rng.unit() })
                .collect();
            let bias = Mat::new(&bias, rows, cols);
            for (kind, sees) in kinds(cols, &columns, each, bias) {
                // Hidden scores are NaN: they must not be read.
                let mut x = Guarded::from_fn(rows, cols, cols + 3, 1, |i, j| {
                    if sees(i, j) { 9.0 * rng.unit() } else { f32::NAN }
                });
                let added = matches!(kind, Visible::Added(_)).then_some(bias);
                let exact = reference::masked_softmax(x.view(), 0.37, added, &sees);
                masked_softmax(cpu, Par::SERIAL, 0.37, kind.clone(), x.view_mut());
                x.assert_intact("masked softmax");
                for i in 0..rows {
                    let (y, exact) = (x.view().row(i), &exact[i * cols..][..cols]);
                    assert_close(y, exact, 12.0, &format!("{} {kind:?} {cols}", cpu.isa()));
                    for j in (0..cols).filter(|&j| !sees(i, j)) {
                        assert_eq!(y[j].to_bits(), 0, "{kind:?} hidden [{i}, {j}] of {cols}");
                    }
                }
            }
        }
    }
}

#[test]
fn masks_that_say_the_same_give_the_same_bits() {
    // A key counts in the lane of its index, so hiding by range, by bits or by −∞ is all one.
    let mut rng = Random::new(4);
    for cols in lengths().filter(|&n| n <= 300) {
        let x: Vec<f32> = (0..cols).map(|_| 5.0 * rng.unit()).collect();
        let (first, end) = (cols / 3, cols - cols / 7);
        let bits: Vec<bool> = (0..cols).map(|j| (first..end).contains(&j)).collect();
        let bias: Vec<f32> =
            bits.iter().map(|&b| if b { 0.0 } else { f32::NEG_INFINITY }).collect();
        for cpu in Cpu::all() {
            for scale in [1.0, 0.125, -0.3] {
                let range = masked(cpu, scale, Visible::Range(first..end), &x, cols);
                let columns = masked(cpu, scale, Visible::Columns(&bits), &x, cols);
                let added = masked(cpu, scale, Visible::Added(Mat::from_row(&bias)), &x, cols);
                assert_eq!(hash(&range), hash(&columns), "{cols} {}", cpu.isa());
                assert_eq!(hash(&range), hash(&added), "{cols} {}", cpu.isa());
            }
        }
    }
}

#[test]
fn minus_infinity_alone_is_nan_and_no_visible_key_is_zero() {
    for cpu in Cpu::all() {
        for n in [1, 7, 32, 45, 100] {
            let low = vec![f32::NEG_INFINITY; n];
            assert!(soft(cpu, &low).iter().all(|y| y.is_nan()));
            assert!(masked(cpu, 0.5, Visible::All, &low, n).iter().all(|y| y.is_nan()));
            let hidden = vec![false; n];
            for kind in [Visible::Columns(&hidden), Visible::Range(0..0), Visible::Range(n..n)] {
                let y = masked(cpu, 0.5, kind, &low, n);
                assert!(y.iter().all(|y| y.to_bits() == 0));
            }
            let y = masked(cpu, 1.0, Visible::Added(Mat::from_row(&low)), &vec![1.0; n], n);
            assert!(y.iter().all(|y| y.to_bits() == 0), "−∞ in an added mask hides");
            // Half hidden, the visible half all −∞: NaN there, zeros elsewhere.
            let half: Vec<bool> = (0..n).map(|j| j % 2 == 0).collect();
            for (j, y) in masked(cpu, 1.0, Visible::Columns(&half), &low, n).iter().enumerate() {
                assert!(if half[j] { y.is_nan() } else { y.to_bits() == 0 }, "[{j}] {y}");
            }
        }
    }
}

#[test]
fn nan_and_infinity_anywhere_surface_in_their_row_and_no_other() {
    for cpu in Cpu::all() {
        for n in [1, 5, 31, 32, 33, 70] {
            for special in [f32::NAN, f32::from_bits(0xffa1_2345), f32::INFINITY] {
                for at in 0..n {
                    let mut x = vec![0.5; 3 * n];
                    x[n + at] = special;
                    for y in [
                        rows_of(cpu, &x, n, |cpu, x| softmax(cpu, Par::SERIAL, x)),
                        rows_of(cpu, &x, n, |cpu, x| log_softmax(cpu, Par::SERIAL, x)),
                        masked(cpu, 0.7, Visible::All, &x, n),
                        masked(cpu, 0.7, Visible::Columns(&vec![true; n]), &x, n),
                    ] {
                        assert!(y[..n].iter().chain(&y[2 * n..]).all(|y| y.is_finite()));
                        assert!(y[n..2 * n].iter().all(|y| y.is_nan()), "{special} at {at} of {n}");
                    }
                }
            }
        }
    }
}

#[test]
fn huge_scores_stay_finite() {
    for cpu in Cpu::all() {
        let mut x = vec![-3e38; 50];
        x[17] = 3e38;
        let y = soft(cpu, &x);
        assert_eq!(y[17], 1.0);
        assert_eq!(y.iter().sum::<f32>(), 1.0);
        let uniform = soft(cpu, &[f32::MIN; 64]);
        assert!(uniform.iter().all(|&y| y == 1.0 / 64.0), "a low number is arithmetic, not a mask");
    }
}

#[test]
fn the_same_bits_on_every_instruction_set_stride_alignment_and_thread_count() {
    let mut rng = Random::new(5);
    for cols in [1, 31, 32, 64, 77, 129, 400] {
        let rows = unless_emulated(600, 70);
        let x: Vec<f32> = (0..rows * cols).map(|_| 8.0 * rng.unit()).collect();
        let scalar = Cpu::with_isa(Isa::Scalar).unwrap();
        let kind = Visible::Diagonal(4);
        let plain = hash(&rows_of(scalar, &x, cols, |cpu, x| softmax(cpu, Par::SERIAL, x)));
        let causal = hash(&masked(scalar, 0.3, kind.clone(), &x, cols));
        for cpu in Cpu::all() {
            for threads in (1..=8).step_by(every(3)) {
                let mut team = Team::new(threads);
                let offset = threads % 5;
                let mut y =
                    Guarded::from_fn(rows, cols, cols + offset, offset, |i, j| x[i * cols + j]);
                team.open(|par| softmax(cpu, par, y.view_mut()));
                assert_eq!(hash(&y.values()), plain, "{} {threads} threads", cpu.isa());
                let mut y =
                    Guarded::from_fn(rows, cols, cols + offset, offset, |i, j| x[i * cols + j]);
                team.open(|par| masked_softmax(cpu, par, 0.3, kind.clone(), y.view_mut()));
                assert_eq!(hash(&y.values()), causal, "{} {threads} threads", cpu.isa());
            }
        }
    }
}

#[test]
#[should_panic(expected = "does not fit 2×3")]
fn a_mask_of_another_shape_is_refused() {
    masked(Cpu::detect(), 1.0, Visible::Columns(&[true; 4]), &[0.0; 6], 3);
}

/// What comes back through softmax or its logarithm: the kernel and its definition.
type Backward = (fn(Cpu, Par<'_>, Mat<'_>, MatMut<'_>), fn(Mat<'_>, Mat<'_>) -> Vec<f64>);

const BACKWARD: [Backward; 2] = [
    (softmax_backward, reference::softmax_backward),
    (log_softmax_backward, reference::log_softmax_backward),
];

#[test]
fn the_gradients_definitions_agree_with_finite_differences() {
    let mut rng = Random::new(31);
    for n in [1, 2, 9, 33] {
        let (x, d) = (rng.vec(n), rng.vec(n));
        let forward = [reference::softmax, reference::log_softmax];
        for (forward, (_, backward)) in forward.into_iter().zip(BACKWARD) {
            // Values are multiples of 2⁻²³ below 1, so a step of 2⁻¹² is exact in f32.
            let h = 1.0 / 4096.0;
            let loss = |at: usize, by: f32| -> f64 {
                let mut x = x.clone();
                x[at] += by;
                forward(Mat::from_row(&x)).iter().zip(&d).map(|(y, &d)| y * f64::from(d)).sum()
            };
            let y: Vec<f32> = forward(Mat::from_row(&x)).into_iter().map(|y| y as f32).collect();
            let exact = backward(Mat::from_row(&y), Mat::from_row(&d));
            for (at, exact) in exact.into_iter().enumerate() {
                let slope = (loss(at, h) - loss(at, -h)) / f64::from(2.0 * h);
                assert!((slope - exact).abs() < 1e-5, "{n} [{at}]: {slope} for {exact}");
            }
        }
    }
}

#[test]
fn gradients_are_within_their_bounds_at_every_length() {
    let mut rng = Random::new(32);
    for cpu in Cpu::all() {
        for n in lengths().step_by(every(7)) {
            for spread in [0.1, 4.0, 40.0] {
                let x: Vec<f32> = (0..3 * n).map(|_| spread * rng.unit()).collect();
                let start = Guarded::random(3, n, n + 2, n % 5, &mut rng);
                for (logarithm, (kernel, exact)) in BACKWARD.into_iter().enumerate() {
                    let mut y = x.clone();
                    let rows = MatMut::new(&mut y, 3, n);
                    match logarithm {
                        0 => softmax(cpu, Par::SERIAL, rows),
                        _ => log_softmax(cpu, Par::SERIAL, rows),
                    }
                    let y = Mat::new(&y, 3, n);
                    let mut d = Guarded::from_fn(3, n, n + 3, 1, |i, j| start.view().row(i)[j]);
                    kernel(cpu, Par::SERIAL, y, d.view_mut());
                    d.assert_intact("softmax backward");
                    let exact = exact(y, start.view());
                    for i in 0..3 {
                        let weight = |j: usize| match logarithm {
                            0 => f64::from(y.row(i)[j]),
                            _ => f64::from(y.row(i)[j]).exp(),
                        };
                        let size = |j: usize| f64::from(start.view().row(i)[j].abs());
                        let sum: f64 = match logarithm {
                            0 => (0..n).map(|j| size(j) * weight(j)).sum(),
                            _ => (0..n).map(size).sum(),
                        };
                        for j in 0..n {
                            let terms = match logarithm {
                                0 => weight(j) * (size(j) + sum),
                                _ => size(j) + weight(j) * sum,
                            };
                            let bound = (n as f64 / 32.0 + 12.0) * U * terms + 1e-44;
                            let (d, exact) = (f64::from(d.view().row(i)[j]), exact[i * n + j]);
                            let what = format!("{} {logarithm} [{i}, {j}] of {n}", cpu.isa());
                            let error = (d - exact).abs();
                            assert!(within(error, bound), "{what}: {d:e} for {exact:e}");
                        }
                    }
                }
            }
        }
    }
    report("gradients of softmax and its logarithm");
}

#[test]
fn gradients_have_the_same_bits_everywhere_and_a_nan_stays_in_its_row() {
    let mut rng = Random::new(33);
    for n in [1, 33, 97, 256] {
        let rows = unless_emulated(300, 60);
        let mut y = rng.vec(rows * n);
        softmax(Cpu::detect(), Par::SERIAL, MatMut::new(&mut y, rows, n));
        let mut start = rng.vec(rows * n);
        start[7 * n + n / 2] = f32::NAN;
        for (kernel, _) in BACKWARD {
            let run = |cpu, par: Par<'_>| {
                let mut d = start.clone();
                kernel(cpu, par, Mat::new(&y, rows, n), MatMut::new(&mut d, rows, n));
                d
            };
            let expected = run(Cpu::with_isa(Isa::Scalar).unwrap(), Par::SERIAL);
            for (i, row) in expected.chunks(n).enumerate() {
                assert!(row.iter().all(|d| d.is_nan() == (i == 7)), "row {i} of {n}");
            }
            for cpu in Cpu::all() {
                for threads in (1..=8).step_by(every(3)) {
                    let found = Team::new(threads).open(|par| run(cpu, par));
                    assert_eq!(hash(&found), hash(&expected), "{} {threads} threads", cpu.isa());
                }
            }
        }
    }
}
