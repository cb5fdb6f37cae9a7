//! Elementary functions of every element, with stated bounds and the same bits on every instruction set.
//!
//! The standard library's functions differ from platform to platform; none of them is used on a result's path. Each
//! of these is one pass, O(elements).

use super::lanes::elementwise;
use super::{elementary, for_rows, lanes};
use crate::arch::FloatMode;
use crate::arch::vector::Vector;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::view::MatMut;

/// The functions of this module, as the table of kernels knows them.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    Exp,
    Ln,
    Erf,
    Tanh,
    Sigmoid,
}

elementwise!(Exp, elementary::exp);
elementwise!(Ln, elementary::ln);
elementwise!(Erf, elementary::erf);
elementwise!(Tanh, elementary::tanh);
elementwise!(Sigmoid, elementary::sigmoid);

#[inline(always)]
pub(crate) fn kernel<S: Vector>(simd: S, function: Function, x: MatMut<'_>) {
    match function {
        Function::Exp => lanes::map(simd, x, Exp),
        Function::Ln => lanes::map(simd, x, Ln),
        Function::Erf => lanes::map(simd, x, Erf),
        Function::Tanh => lanes::map(simd, x, Tanh),
        Function::Sigmoid => lanes::map(simd, x, Sigmoid),
    }
}

fn run(cpu: Cpu, par: Par<'_>, function: Function, x: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    for_rows(par, x, &|_, block| (cpu.table.rows.math)(function, block));
}

/// x ← eˣ for every element.
///
/// Error ≤ 1 ulp, denormal results included; exactly 1 at 0, +0 below −103.98, +∞ above 88.73, NaN for
/// NaN. Method: x = n·ln 2 + r in two steps (Cody and Waite), a polynomial of degree 6 in r, exact scaling
/// by 2ⁿ.
///
/// ```
/// use headrow_kernels::{Cpu, MatMut, Par, rows::math};
/// let mut x = [0.0, f32::NEG_INFINITY];
/// math::exp(Cpu::detect(), Par::SERIAL, MatMut::new(&mut x, 1, 2));
/// assert_eq!(x, [1.0, 0.0]);
/// ```
pub fn exp(cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    run(cpu, par, Function::Exp, x);
}

/// x ← ln x for every element.
///
/// Error ≤ 1 ulp; −∞ at ±0, NaN below 0, +∞ at +∞, NaN for NaN. Method: x = 2ᵏ·(1 + f) with
/// √½ ≤ 1 + f < √2, a polynomial of degree 11 in f.
///
/// ```
/// use headrow_kernels::{Cpu, MatMut, Par, rows::math};
/// let mut x = [1.0, 0.0];
/// math::ln(Cpu::detect(), Par::SERIAL, MatMut::new(&mut x, 1, 2));
/// assert_eq!(x, [0.0, f32::NEG_INFINITY]);
/// ```
pub fn ln(cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    run(cpu, par, Function::Ln, x);
}

/// x ← erf x = 2/√π·∫₀ˣ e^(−t²) dt for every element.
///
/// Error ≤ 2 ulp; odd, |erf x| ≤ 1, NaN for NaN. Method: an odd polynomial below 0.8, else 1 − e^(−q(x))
/// with a polynomial for q = −ln erfc.
///
/// ```
/// use headrow_kernels::{Cpu, MatMut, Par, rows::math};
/// let mut x = [0.0, f32::INFINITY];
/// math::erf(Cpu::detect(), Par::SERIAL, MatMut::new(&mut x, 1, 2));
/// assert_eq!(x, [0.0, 1.0]);
/// ```
pub fn erf(cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    run(cpu, par, Function::Erf, x);
}

/// x ← tanh x for every element.
///
/// Error ≤ 2 ulp; odd, |tanh x| ≤ 1, NaN for NaN. Method: an odd polynomial below 0.625, else
/// 1 − 2/(e²ˣ + 1).
///
/// ```
/// use headrow_kernels::{Cpu, MatMut, Par, rows::math};
/// let mut x = [0.0, f32::NEG_INFINITY];
/// math::tanh(Cpu::detect(), Par::SERIAL, MatMut::new(&mut x, 1, 2));
/// assert_eq!(x, [0.0, -1.0]);
/// ```
pub fn tanh(cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    run(cpu, par, Function::Tanh, x);
}

/// x ← σ(x) = 1/(1 + e⁻ˣ) for every element.
///
/// Error ≤ 3 ulp, denormal results included; 0 at −∞, 1 at +∞, NaN for NaN. Method: e^(−|x|) over 1 + e^(−|x|), or
/// 1 over it, so that nothing cancels.
///
/// ```
/// use headrow_kernels::{Cpu, MatMut, Par, rows::math};
/// let mut x = [0.0, f32::INFINITY];
/// math::sigmoid(Cpu::detect(), Par::SERIAL, MatMut::new(&mut x, 1, 2));
/// assert_eq!(x, [0.5, 1.0]);
/// ```
pub fn sigmoid(cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    run(cpu, par, Function::Sigmoid, x);
}
