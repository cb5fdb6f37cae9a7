//! Activation functions.

use super::lanes::elementwise;
use super::{elementary, for_rows, lanes};
use crate::arch::FloatMode;
use crate::arch::vector::Vector;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::view::{Mat, MatMut};

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

/// out ← activation(gate) ⊙ up, element by element: the gated linear units between the products of a feed-forward
/// layer, SwiGLU with [`Activation::Silu`] and GEGLU with a GELU. (Shazeer, "GLU Variants Improve Transformer",
/// 2020.)
///
/// When one product makes both, gate and up are ranges of its columns. The activation's result is rounded before it
/// is multiplied: the same bits as [`activate`] and a product, and the error of an activation and ½ ulp. One pass.
///
/// # Panics
/// When the three shapes differ.
#[track_caller]
pub fn gate(
    cpu: Cpu,
    par: Par<'_>,
    activation: Activation,
    gate: Mat<'_>,
    up: Mat<'_>,
    out: MatMut<'_>,
) {
    let _mode = FloatMode::default_scope();
    let shape = (out.rows(), out.cols());
    assert!(
        (gate.rows(), gate.cols()) == shape && (up.rows(), up.cols()) == shape,
        "gate: {gate:?} and {up:?} for {out:?}"
    );
    for_rows(par, out, &|first, block| {
        let rows = first..first + block.rows();
        let (gate, up) = (gate.rows_range(rows.clone()), up.rows_range(rows));
        (cpu.table.rows.gate)(activation, gate, up, block);
    });
}

elementwise!(Identity, std::convert::identity);
elementwise!(Relu, elementary::relu);
elementwise!(GeluErf, elementary::gelu_erf);
elementwise!(GeluTanh, elementary::gelu_tanh);
elementwise!(GeluQuick, elementary::gelu_quick);
elementwise!(Silu, elementary::silu);

/// `$call` with `$f` as the element-wise function of `$activation`.
macro_rules! with_function {
    ($activation:expr, $f:ident => $call:expr) => {
        with_function!($activation, $f => $call, Identity Relu GeluErf GeluTanh GeluQuick Silu)
    };
    ($activation:expr, $f:ident => $call:expr, $($name:ident)*) => {
        match $activation {
            $(Activation::$name => {
                let $f = $name;
                $call
            })*
        }
    };
}

#[inline(always)]
pub(crate) fn kernel<S: Vector>(simd: S, activation: Activation, x: MatMut<'_>) {
    with_function!(activation, f => lanes::map(simd, x, f));
}

#[inline(always)]
pub(crate) fn gate_kernel<S: Vector>(
    simd: S,
    activation: Activation,
    gate: Mat<'_>,
    up: Mat<'_>,
    out: MatMut<'_>,
) {
    with_function!(activation, f => lanes::map_times(simd, gate, up, out, f));
}
