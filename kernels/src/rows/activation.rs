//! Activation functions.

use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::rows::for_rows;
use crate::view::MatMut;

/// The non-linearity between the two products of a feed-forward layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// x.
    #[default]
    Identity,
    /// max(x, 0); NaN stays NaN, −0 becomes +0.
    Relu,
    /// x·Φ(x) = x/2·(1 + erf(x/√2)).
    GeluErf,
    /// x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
    GeluTanh,
    /// x·σ(1.702·x).
    GeluQuick,
    /// x·σ(x) = x/(1 + e⁻ˣ).
    Silu,
}

/// Applies `activation` to every element of `x`, in place.
pub fn activate(cpu: Cpu, par: Par<'_>, activation: Activation, x: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    for_rows(par, x, &|_, block| activate_block(cpu, activation, block));
}

/// [`activate`] on this thread, which is in the default floating-point mode already.
pub(crate) fn activate_block(_cpu: Cpu, activation: Activation, mut x: MatMut<'_>) {
    let f = |x: f64| match activation {
        Activation::Identity => x,
        Activation::Relu => {
            if x <= 0.0 {
                0.0
            } else {
                x
            }
        }
        _ if x == f64::NEG_INFINITY => -0.0,
        Activation::GeluErf => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        Activation::GeluTanh => {
            let u = (std::f64::consts::FRAC_2_PI).sqrt() * (x + 0.044715 * x * x * x);
            x / (1.0 + libm::exp(-2.0 * u))
        }
        Activation::GeluQuick => x / (1.0 + libm::exp(-1.702 * x)),
        Activation::Silu => x / (1.0 + libm::exp(-x)),
    };
    for i in 0..x.rows() {
        x.row_mut(i).iter_mut().for_each(|x| *x = f(f64::from(*x)) as f32);
    }
}

/// [`activate_block`] on one row, or a part of one.
pub(crate) fn activate_row(cpu: Cpu, activation: Activation, row: &mut [f32]) {
    let cols = row.len();
    activate_block(cpu, activation, MatMut::new(row, 1, cols));
}
