//! Activation functions.

use super::lanes::elementwise;
use super::{elementary, for_rows, lanes};
use crate::arch::FloatMode;
use crate::arch::vector::Vector;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::view::MatMut;

/// The non-linearity between the two products of a feed-forward layer.
///
/// All are finite for every finite x, NaN for NaN, and at −∞ and +∞ what their limits are: −0 (ReLU: +0)
/// and +∞.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// x.
    #[default]
    Identity,
    /// max(x, 0); −0 becomes +0. Exact. ("Attention Is All You Need", §3.3.)
    Relu,
    /// x·Φ(x) = x/2·(1 + erf(x/√2)). (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.)
    GeluErf,
    /// x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))): the same paper's approximation, a function of its own.
    GeluTanh,
    /// x·σ(1.702·x): the same paper's coarser approximation.
    GeluQuick,
    /// x·σ(x) = x/(1 + e⁻ˣ), also called swish.
    Silu,
}

/// x ← activation(x) for every element.
///
/// Error of the smooth ones: ≤ 4 ulp for x ≥ −1, ≤ (4 + 3·v) ulp below, v being the magnitude of the
/// exponential's argument (x²/2 for the erf form, else the argument of σ). Far out on the negative side,
/// where the function is about to vanish, it does so a little early: 4e-12 of the erf form below
/// x = −5.3, 1e-36 of the others where v > 87 is lost. One pass.
pub fn activate(cpu: Cpu, par: Par<'_>, activation: Activation, x: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    if activation != Activation::Identity {
        for_rows(par, x, &|_, block| activate_block(cpu, activation, block));
    }
}

/// [`activate`] on this thread, which is in the default floating-point mode already.
pub(crate) fn activate_block(cpu: Cpu, activation: Activation, x: MatMut<'_>) {
    (cpu.table.rows.activate)(activation, x);
}

/// [`activate_block`] on one row, or a part of one.
pub(crate) fn activate_row(cpu: Cpu, activation: Activation, row: &mut [f32]) {
    let cols = row.len();
    activate_block(cpu, activation, MatMut::new(row, 1, cols));
}

elementwise!(Relu, elementary::relu);
elementwise!(GeluErf, elementary::gelu_erf);
elementwise!(GeluTanh, elementary::gelu_tanh);
elementwise!(GeluQuick, elementary::gelu_quick);
elementwise!(Silu, elementary::silu);

#[inline(always)]
pub(crate) fn kernel<S: Vector>(simd: S, activation: Activation, x: MatMut<'_>) {
    match activation {
        Activation::Identity => {}
        Activation::Relu => lanes::map(simd, x, Relu),
        Activation::GeluErf => lanes::map(simd, x, GeluErf),
        Activation::GeluTanh => lanes::map(simd, x, GeluTanh),
        Activation::GeluQuick => lanes::map(simd, x, GeluQuick),
        Activation::Silu => lanes::map(simd, x, Silu),
    }
}
