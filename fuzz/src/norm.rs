use crate::values::{Matrix, any, assert_close, cpu, plain, size};
use crate::with_par;
use arbitrary::{Result, Unstructured};
use headrow_kernels::reference::rows as reference;
use headrow_kernels::{
    Cpu, LayerNorm, RmsNorm, add_layer_norm, add_rms_norm, layer_norm, rms_norm,
};

/// The roundoff of f32.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// γ, β and ε, and whether the mean is subtracted.
struct Norm {
    centred: bool,
    gamma: Vec<f32>,
    beta: Option<Vec<f32>>,
    epsilon: f32,
}

impl Norm {
    fn run(&self, cpu: Cpu, threads: usize, x: &Matrix) -> Matrix {
        let Norm { gamma, epsilon, .. } = self;
        let (gamma, epsilon) = (gamma.as_slice(), *epsilon);
        let mut out = x.like(f32::NAN);
        with_par(threads, |par| {
            if self.centred {
                let norm = LayerNorm { gamma, beta: self.beta.as_deref(), epsilon };
                layer_norm(cpu, par, &norm, x.view(), out.view_mut());
            } else {
                rms_norm(cpu, par, &RmsNorm { gamma, epsilon }, x.view(), out.view_mut());
            }
        });
        out
    }

    /// The norm of x + residual, and the sum.
    fn run_added(
        &self,
        cpu: Cpu,
        threads: usize,
        x: &Matrix,
        residual: &Matrix,
        with_sum: bool,
    ) -> (Matrix, Matrix) {
        let Norm { gamma, epsilon, .. } = self;
        let (gamma, epsilon) = (gamma.as_slice(), *epsilon);
        let (mut out, mut sum) = (x.like(f32::NAN), residual.like(f32::NAN));
        with_par(threads, |par| {
            let (x, residual) = (x.view(), residual.view());
            let to = with_sum.then(|| sum.view_mut());
            if self.centred {
                let norm = LayerNorm { gamma, beta: self.beta.as_deref(), epsilon };
                add_layer_norm(cpu, par, &norm, x, residual, to, out.view_mut());
            } else {
                let norm = RmsNorm { gamma, epsilon };
                add_rms_norm(cpu, par, &norm, x, residual, to, out.view_mut());
            }
        });
        (out, sum)
    }
}

pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    let cpu = cpu(u)?;
    let (rows, cols) = (size(u, 7)?, size(u, 70)?);
    let numbers = |u: &mut Unstructured<'_>| (0..cols).map(|_| plain(u)).collect::<Result<_>>();
    let centred = u.arbitrary()?;
    let norm = Norm {
        centred,
        gamma: numbers(u)?,
        beta: if centred && u.arbitrary()? { Some(numbers(u)?) } else { None },
        epsilon: *u.choose(&[1e-5, 1e-6, 1e-12, 1.0, 1e-30, 1e10, 1e38])?,
    };
    let x = draw(u, rows, cols)?;
    let threads = u.int_in_range(1..=3)?;

    let got = norm.run(cpu, threads, &x);
    close_to(&norm, &x, &got);
    for other in Cpu::all() {
        assert_eq!(norm.run(other, 1, &x).bits(), got.bits(), "{cpu:?} and {other:?}");
    }

    // With a residual: the rounded sum, then the same norm.
    let residual = draw(u, rows, cols)?;
    let mut sum = residual.clone();
    for i in 0..rows {
        sum.row_mut(i).iter_mut().zip(x.row(i)).for_each(|(sum, x)| *sum += x);
    }
    let want = norm.run(cpu, 1, &sum).bits();
    for with_sum in [false, true] {
        let (got, written) = norm.run_added(cpu, threads, &x, &residual, with_sum);
        assert_eq!(got.bits(), want, "norm of a sum, {threads} threads, written: {with_sum}");
        if with_sum {
            assert_eq!(written.bits(), sum.bits(), "the sum, {threads} threads");
        }
    }
    Ok(())
}

/// Rows of every kind that norms find hard.
fn draw(u: &mut Unstructured<'_>, rows: usize, cols: usize) -> Result<Matrix> {
    let mut x = Matrix::draw_plain(u, rows, cols)?;
    for i in 0..rows {
        let row = x.row_mut(i);
        match u.int_in_range(0..=8)? {
            // Constant, of any size.
            0 => row.fill(any(u)?),
            // A large mean and a small spread.
            1 => row.iter_mut().for_each(|x| *x = 1e4 + *x * 1e-3),
            // Squares that overflow, sums that overflow, squares that underflow.
            2 => row.iter_mut().for_each(|x| *x *= 1e19),
            3 => row.iter_mut().for_each(|x| *x *= 4e37),
            4 => row.iter_mut().for_each(|x| *x *= 1e-25),
            // One value of any kind; all of any kind.
            5 if cols > 0 => row[u.int_in_range(0..=cols - 1)?] = any(u)?,
            6 => {
                for x in row {
                    *x = any(u)?;
                }
            }
            _ => {}
        }
    }
    Ok(x)
}

fn close_to(norm: &Norm, x: &Matrix, got: &Matrix) {
    let Norm { centred, gamma, beta, epsilon } = norm;
    let want = if *centred {
        reference::layer_norm(x.view(), gamma, beta.as_deref(), *epsilon)
    } else {
        reference::rms_norm(x.view(), gamma, *epsilon)
    };
    let (rows, cols) = (x.view().rows(), x.view().cols());
    let d = cols as f64;
    for i in 0..rows {
        let row = || x.row(i).iter().map(|&x| f64::from(x));
        if row().any(|x| !x.is_finite()) {
            assert!(got.row(i).iter().all(|y| y.is_nan()), "a NaN or ∞ in row {i}: {got:?}");
            continue;
        }
        let mean = if *centred { row().sum::<f64>() / d } else { 0.0 };
        let variance = row().map(|x| (x - mean).powi(2)).sum::<f64>() / d;
        let root = (variance + f64::from(*epsilon)).sqrt();
        let largest = row().fold(0.0, |most: f64, x| most.max(x.abs()));
        let constant = x.row(i).iter().all(|&a| a == x.row(i)[0]);
        for j in 0..cols {
            let (gamma, want) = (f64::from(gamma[j]), want[i * cols + j]);
            let beta = beta.as_ref().map_or(0.0, |beta| beta[j]);
            if *centred && constant {
                assert_eq!(got.row(i)[j], beta, "constant row {i} of {:?}", x.row(i)[0]);
                continue;
            }
            let product = ((f64::from(x.row(i)[j]) - mean) / root * gamma).abs();
            let bound = if *centred {
                let steps = (d / 32.0 + 20.0) * (product + f64::from(beta).abs());
                UNIT * (steps + 4.0 * largest / root * gamma.abs())
            } else {
                UNIT * (d / 64.0 + 6.0) * product
            };
            // Where numbers are denormal on the way, in units of the smallest ones.
            let tiny = f64::from(f32::MIN_POSITIVE) * (1.0 + gamma.abs())
                + 8.0 * 2f64.powi(-149) / root * gamma.abs();
            let what = format_args!("row {i}, column {j} of {cols}, centred: {centred}");
            assert_close(got.row(i)[j], want, bound + tiny, what);
        }
    }
}
