use crate::values::{Matrix, any, assert_close, cpu, plain, size};
use crate::with_par;
use arbitrary::{Result, Unstructured};
use headrow_kernels::reference::rows as reference;
use headrow_kernels::{Cpu, Mat, Visible, log_softmax, masked_softmax, softmax};

/// The roundoff of f32.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    let cpu = cpu(u)?;
    let (rows, cols) = (size(u, 9)?, size(u, 70)?);
    let x = Matrix::draw(u, rows, cols)?;
    let threads = u.int_in_range(1..=3)?;
    match u.int_in_range(0..=9)? {
        0 => {
            let got = on_all(&x, cpu, threads, |cpu, threads, x| {
                with_par(threads, |par| softmax(cpu, par, x.view_mut()));
            });
            close_to(&got, &reference::softmax(x.view()), cols);
        }
        1 => {
            let got = on_all(&x, cpu, threads, |cpu, threads, x| {
                with_par(threads, |par| log_softmax(cpu, par, x.view_mut()));
            });
            logarithms_close_to(&x, &got, &reference::log_softmax(x.view()));
        }
        _ => masked(u, cpu, threads, &x, rows, cols)?,
    }
    Ok(())
}

fn masked(
    u: &mut Unstructured<'_>,
    cpu: Cpu,
    threads: usize,
    x: &Matrix,
    rows: usize,
    cols: usize,
) -> Result<()> {
    let scale = match u.int_in_range(0..=3)? {
        0 => 1.0,
        1 => 0.125,
        _ => plain(u)?,
    };
    let start = u.int_in_range(0..=cols)?;
    let range = start..u.int_in_range(start..=cols)?;
    let diagonal = match u.int_in_range(0..=9)? {
        0 => isize::MIN,
        1 => isize::MAX,
        _ => u.int_in_range(-80..=80)?,
    };
    let columns: Vec<bool> = (0..cols).map(|_| u.ratio(2, 3)).collect::<Result<_>>()?;
    let each: Vec<bool> = (0..rows * cols).map(|_| u.ratio(2, 3)).collect::<Result<_>>()?;
    let mut bias = Matrix::draw(u, rows, cols)?;
    for i in 0..rows {
        for b in bias.row_mut(i) {
            if u.ratio(1, 4)? {
                *b = f32::NEG_INFINITY;
            }
        }
    }
    let visible = match u.int_in_range(0..=5)? {
        0 => Visible::All,
        1 => Visible::Range(range),
        2 => Visible::Diagonal(diagonal),
        3 => Visible::Columns(&columns),
        4 => Visible::Each(Mat::new(&each, rows, cols)),
        _ => Visible::Added(bias.view()),
    };
    let sees = |i: usize, j: usize| match &visible {
        Visible::All => true,
        Visible::Range(range) => range.contains(&j),
        Visible::Diagonal(offset) => j as i128 <= i as i128 + *offset as i128,
        Visible::Columns(columns) => columns[j],
        Visible::Each(each) => each.row(i)[j],
        Visible::Added(bias) => bias.row(i)[j] != f32::NEG_INFINITY,
        _ => unreachable!("every kind is above"),
    };
    let run = |cpu: Cpu, threads: usize, x: &mut Matrix| {
        with_par(threads, |par| masked_softmax(cpu, par, scale, visible.clone(), x.view_mut()));
    };
    let got = on_all(x, cpu, threads, run);
    let added = match &visible {
        Visible::Added(bias) => Some(*bias),
        _ => None,
    };
    close_to(&got, &reference::masked_softmax(x.view(), scale, added, sees), cols);

    // Hidden elements are +0, and leave no trace whatever they held.
    let mut other = x.clone();
    for i in 0..rows {
        for j in (0..cols).filter(|&j| !sees(i, j)) {
            assert_eq!(got.row(i)[j].to_bits(), 0, "row {i}, hidden column {j}");
            other.row_mut(i)[j] = any(u)?;
        }
    }
    run(cpu, threads, &mut other);
    assert_eq!(other.bits(), got.bits(), "hidden elements left a trace");
    Ok(())
}

/// `operation` on a copy of `x`, whose bits must be the same on all instruction sets and with helpers.
fn on_all(
    x: &Matrix,
    cpu: Cpu,
    threads: usize,
    operation: impl Fn(Cpu, usize, &mut Matrix),
) -> Matrix {
    let mut got = x.clone();
    operation(cpu, threads, &mut got);
    for other in Cpu::all() {
        let mut alone = x.clone();
        operation(other, 1, &mut alone);
        assert_eq!(alone.bits(), got.bits(), "{:?} and {other:?}, {threads} threads", cpu);
    }
    got
}

/// Each weight within (n/32 + 12)·u of itself, and what rounding its own and the others' x − m costs.
fn close_to(got: &Matrix, want: &[f64], cols: usize) {
    for (at, &want) in want.iter().enumerate() {
        let (i, j) = (at / cols, at % cols);
        let n = cols as f64;
        let steps = n / 32.0 + 12.0 + n.ln() - want.max(f64::MIN_POSITIVE).ln();
        let bound = want * steps * UNIT + 3.0 * 2f64.powi(-149);
        assert_close(got.row(i)[j], want, bound, format_args!("row {i}, column {j}"));
    }
}

/// Each logarithm within u·(2·|x − m| + n/32 + 12 + 2·ln n).
fn logarithms_close_to(x: &Matrix, got: &Matrix, want: &[f64]) {
    let cols = x.view().cols();
    for (at, &want) in want.iter().enumerate() {
        let (i, j) = (at / cols, at % cols);
        let max = x.row(i).iter().fold(f64::NEG_INFINITY, |max, &x| max.max(f64::from(x)));
        let distance = (f64::from(x.row(i)[j]) - max).abs();
        let n = cols as f64;
        let bound = UNIT * (2.0 * distance + n / 32.0 + 12.0 + 2.0 * n.ln());
        let bound = if bound.is_finite() { bound } else { 0.0 };
        assert_close(got.row(i)[j], want, bound, format_args!("row {i}, column {j}"));
    }
}
