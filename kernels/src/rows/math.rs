//! Elementary functions.

use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::rows::for_rows;
use crate::view::MatMut;

fn map(par: Par<'_>, x: MatMut<'_>, f: fn(f64) -> f64) {
    let _mode = FloatMode::default_scope();
    for_rows(par, x, &|_, mut block| {
        for i in 0..block.rows() {
            block.row_mut(i).iter_mut().for_each(|x| *x = f(f64::from(*x)) as f32);
        }
    });
}

/// eˣ of every element, in place.
pub fn exp(_cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    map(par, x, libm::exp);
}

/// The natural logarithm of every element, in place.
pub fn ln(_cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    map(par, x, libm::log);
}

/// The error function 2/√π ∫₀ˣ e^(−t²) dt of every element, in place.
pub fn erf(_cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    map(par, x, libm::erf);
}

/// The hyperbolic tangent of every element, in place.
pub fn tanh(_cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    map(par, x, libm::tanh);
}

/// The logistic function σ(x) = 1/(1 + e⁻ˣ) of every element, in place.
pub fn sigmoid(_cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    map(par, x, |x| 1.0 / (1.0 + libm::exp(-x)));
}
