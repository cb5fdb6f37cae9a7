use crate::values::{Matrix, any, assert_close, cpu, plain, size};
use crate::with_par;
use arbitrary::{Result, Unstructured};
use headrow_kernels::reference::rows as reference;
use headrow_kernels::{Activation, Cpu, activate, gate};

/// One unit in the last place of 1.
const ULP: f64 = 1.0 / (1u64 << 23) as f64;

pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    let (cpu, how) = (cpu(u)?, *u.choose(Activation::ALL)?);
    let (rows, cols) = (size(u, 7)?, size(u, 70)?);
    let mut x = Matrix::draw(u, rows, cols)?;
    for i in 0..rows {
        // Where the functions bend and vanish.
        let factor = *u.choose(&[1.0f32, 1.0, 4.0, 16.0])?;
        x.row_mut(i).iter_mut().for_each(|x| *x *= factor);
    }
    let threads = u.int_in_range(1..=3)?;

    let run = |cpu: Cpu, threads: usize| {
        let mut out = x.clone();
        with_par(threads, |par| activate(cpu, par, how, out.view_mut()));
        out
    };
    let got = run(cpu, threads);
    for i in 0..rows {
        for (&x, &y) in x.row(i).iter().zip(got.row(i)) {
            let want = reference::activation(how, f64::from(x));
            assert_close(y, want, bound(how, f64::from(x), want), format_args!("{how:?} of {x:e}"));
        }
    }
    for other in Cpu::all() {
        assert_eq!(run(other, 1).bits(), got.bits(), "{how:?}: {cpu:?} and {other:?}");
    }
    gated(u, cpu, threads, how, (&x, &got))
}

/// The error that `activate` promises.
fn bound(how: Activation, x: f64, exact: f64) -> f64 {
    let exponent = match how {
        Activation::Identity | Activation::Relu => return 0.0,
        Activation::GeluErf => x * x / 2.0,
        Activation::GeluTanh => 1.6 * x + 0.0714 * x * x * x,
        Activation::GeluQuick => 1.702 * x,
        _ => x,
    };
    let tail = if x < -1.0 { 3.0 * exponent.abs().min(100.0) } else { 0.0 };
    let lost = if how == Activation::GeluErf && x < -5.3 { 4e-12 } else { 1e-36 };
    if exact.is_finite() { (4.0 + tail) * ULP * exact.abs() + lost } else { 0.0 }
}

/// A gate has the bits of an activation and a product.
fn gated(
    u: &mut Unstructured<'_>,
    cpu: Cpu,
    threads: usize,
    how: Activation,
    (x, activated): (&Matrix, &Matrix),
) -> Result<()> {
    let (rows, cols) = (x.view().rows(), x.view().cols());
    let awkward = u.arbitrary()?;
    let mut up = Matrix::filled(u, rows, cols, 0.0)?;
    let mut want = up.clone();
    for i in 0..rows {
        for j in 0..cols {
            let value = if awkward { any(u)? } else { plain(u)? };
            up.row_mut(i)[j] = value;
            want.row_mut(i)[j] = activated.row(i)[j] * value;
        }
    }
    let mut got = up.like(f32::NAN);
    with_par(threads, |par| gate(cpu, par, how, x.view(), up.view(), got.view_mut()));
    assert_eq!(got.bits(), want.bits(), "{how:?} as a gate");
    Ok(())
}
