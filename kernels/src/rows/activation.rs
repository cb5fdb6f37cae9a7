//! Activation functions.

use super::lanes::{Combine, Elementwise, combine, elementwise};
use super::pack::Pack;
use super::{elementary, for_rows, lanes, rows_per_chunk};
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

impl Activation {
    /// Every one of them.
    pub const ALL: &'static [Activation] = {
        use Activation::{GeluErf, GeluQuick, GeluTanh, Identity, Relu, Silu};
        &[Identity, Relu, GeluErf, GeluTanh, GeluQuick, Silu]
    };
}

/// x ← activation(x) for every element.
///
/// Error of the smooth ones: ≤ 4 ulp for x ≥ −1, ≤ (4 + 3·v) ulp below, v being the magnitude of the
/// exponential's argument (x²/2 for the erf form, else the argument of σ). Far out on the negative side,
/// where the function is about to vanish, it does so a little early: 4e-12 of the erf form below
/// x = −5.3, 1e-36 of the others where v > 87 is lost. One pass.
///
/// ```
/// use headrow_kernels::{Activation, Cpu, MatMut, Par, activate};
/// let mut x = [-1.0, 0.0, 2.0];
/// activate(Cpu::detect(), Par::SERIAL, Activation::Relu, MatMut::new(&mut x, 1, 3));
/// assert_eq!(x, [0.0, 0.0, 2.0]);
/// ```
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
///
/// ```
/// use headrow_kernels::{Activation, Cpu, Mat, MatMut, Par, gate};
/// // One product made both halves of these rows.
/// let (both, mut out) = ([-1.0, 2.0, 10.0, 20.0], [0.0; 2]);
/// let both = Mat::new(&both, 1, 4);
/// let (x, up) = (both.columns(0..2), both.columns(2..4));
/// gate(Cpu::detect(), Par::SERIAL, Activation::Relu, x, up, MatMut::new(&mut out, 1, 2));
/// assert_eq!(out, [0.0, 40.0]);
/// ```
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

/// d ← d·activation′(x) for every element: what comes back through an activation whose argument was `x`.
///
/// ReLU′(0) = 0. Every slope is finite for every finite x and tends to 0 and 1 at −∞ and +∞; NaN for NaN.
/// Error of a smooth one: ≤ (4 + 3·v)·2⁻²³·(σ + |x·σ′|) where it is the sum σ + x·σ′, with v as in [`activate`]
/// (σ is Φ in the erf form), and beside it what [`activate`] loses far out; then one rounding of the product.
/// ReLU is exact. One pass.
///
/// # Panics
/// When the shapes differ.
///
/// ```
/// use headrow_kernels::{Activation, Cpu, Mat, MatMut, Par, activate_backward};
/// let (x, mut d) = ([-1.0, 2.0], [5.0, 7.0]);
/// let (x, to) = (Mat::new(&x, 1, 2), MatMut::new(&mut d, 1, 2));
/// activate_backward(Cpu::detect(), Par::SERIAL, Activation::Relu, x, to);
/// assert_eq!(d, [0.0, 7.0]);
/// ```
#[track_caller]
pub fn activate_backward(
    cpu: Cpu,
    par: Par<'_>,
    activation: Activation,
    x: Mat<'_>,
    d: MatMut<'_>,
) {
    let _mode = FloatMode::default_scope();
    assert!(
        (x.rows(), x.cols()) == (d.rows(), d.cols()),
        "activate_backward: {x:?} for gradients {d:?}"
    );
    if activation != Activation::Identity {
        for_rows(par, d, &|first, block| {
            let x = x.rows_range(first..first + block.rows());
            (cpu.table.rows.activate_backward)(activation, x, block);
        });
    }
}

/// Gradients of [`gate`] from that of its result: d_gate ← (dy ⊙ up) ⊙ activation′(gate) and
/// d_up ← dy ⊙ activation(gate).
///
/// The error of each is that of [`activate_backward`] or [`activate`], and ½ ulp for each product. One pass.
///
/// # Panics
/// When the five shapes differ.
///
/// ```
/// use headrow_kernels::{Activation, Cpu, Mat, MatMut, Par, gate_backward};
/// let [x, up, dy] = [[-1.0, 2.0], [10.0, 20.0], [1.0, 1.0]];
/// let [x, up, dy] = [&x, &up, &dy].map(|x| Mat::new(x, 1, 2));
/// let [mut d_gate, mut d_up] = [[0.0; 2]; 2];
/// let (to_gate, to_up) = (MatMut::new(&mut d_gate, 1, 2), MatMut::new(&mut d_up, 1, 2));
/// gate_backward(Cpu::detect(), Par::SERIAL, Activation::Relu, x, up, dy, to_gate, to_up);
/// assert_eq!((d_gate, d_up), ([0.0, 20.0], [0.0, 2.0]));
/// ```
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of the operation and their gradients")]
pub fn gate_backward(
    cpu: Cpu,
    par: Par<'_>,
    activation: Activation,
    gate: Mat<'_>,
    up: Mat<'_>,
    dy: Mat<'_>,
    d_gate: MatMut<'_>,
    d_up: MatMut<'_>,
) {
    let _mode = FloatMode::default_scope();
    let (rows, cols) = (dy.rows(), dy.cols());
    assert!(
        [gate, up, d_gate.as_ref(), d_up.as_ref()]
            .iter()
            .all(|x| (x.rows(), x.cols()) == (rows, cols)),
        "gate_backward: {gate:?} and {up:?} with gradients {d_gate:?} and {d_up:?} for {dy:?}"
    );
    let work = |first, d_gate: MatMut<'_>, d_up: MatMut<'_>| {
        let read = [gate, up, dy].map(|x| x.rows_range(first..first + d_up.rows()));
        (cpu.table.rows.gate_backward)(activation, read, [d_gate, d_up]);
    };
    match rows_per_chunk(par, rows, cols) {
        None => work(0, d_gate, d_up),
        Some(grain) => par.for_rows_of_two(d_gate, d_up, grain, &work),
    }
}

/// An activation and its slope.
trait Curve<S: Vector>: Elementwise<S> {
    fn slope<const N: usize>(self, x: Pack<S, N>) -> Pack<S, N>;
}

/// `$f` with its derivative `$slope` as a [`Curve`].
macro_rules! curve {
    ($name:ident, $f:path, $slope:path) => {
        elementwise!($name, $f);
        impl<S: Vector> Curve<S> for $name {
            #[inline(always)]
            fn slope<const N: usize>(self, x: Pack<S, N>) -> Pack<S, N> {
                $slope(x)
            }
        }
    };
}

curve!(Identity, std::convert::identity, elementary::identity_slope);
curve!(Relu, elementary::relu, elementary::relu_slope);
curve!(GeluErf, elementary::gelu_erf, elementary::gelu_erf_slope);
curve!(GeluTanh, elementary::gelu_tanh, elementary::gelu_tanh_slope);
curve!(GeluQuick, elementary::gelu_quick, elementary::gelu_quick_slope);
curve!(Silu, elementary::silu, elementary::silu_slope);

/// f(gate)·up.
#[derive(Clone, Copy)]
struct Gated<F>(F);

impl<S: Vector, F: Elementwise<S>> Combine<S, 2, 1> for Gated<F> {
    #[inline(always)]
    fn of<const N: usize>(
        self,
        [gate, up]: [Pack<S, N>; 2],
        _: [Pack<S, N>; 1],
    ) -> [Pack<S, N>; 1] {
        [self.0.of(gate) * up]
    }
}

/// d·f′(x).
#[derive(Clone, Copy)]
struct Backward<F>(F);

impl<S: Vector, F: Curve<S>> Combine<S, 1, 1> for Backward<F> {
    #[inline(always)]
    fn of<const N: usize>(self, [x]: [Pack<S, N>; 1], [d]: [Pack<S, N>; 1]) -> [Pack<S, N>; 1] {
        [d * self.0.slope(x)]
    }
}

/// dy·up·f′(gate) and dy·f(gate).
#[derive(Clone, Copy)]
struct GatedBackward<F>(F);

impl<S: Vector, F: Curve<S>> Combine<S, 3, 2> for GatedBackward<F> {
    #[inline(always)]
    fn of<const N: usize>(
        self,
        [gate, up, dy]: [Pack<S, N>; 3],
        _: [Pack<S, N>; 2],
    ) -> [Pack<S, N>; 2] {
        [dy * up * self.0.slope(gate), dy * self.0.of(gate)]
    }
}

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
    mut out: MatMut<'_>,
) {
    with_function!(activation, f => {
        for i in 0..out.rows() {
            combine(simd, [gate.row(i), up.row(i)], [out.row_mut(i)], Gated(f));
        }
    });
}

#[inline(always)]
pub(crate) fn backward_kernel<S: Vector>(
    simd: S,
    activation: Activation,
    x: Mat<'_>,
    mut d: MatMut<'_>,
) {
    with_function!(activation, f => {
        for i in 0..d.rows() {
            combine(simd, [x.row(i)], [d.row_mut(i)], Backward(f));
        }
    });
}

/// `read`: gate, up and dy; `written`: their gradients.
#[inline(always)]
pub(crate) fn gate_backward_kernel<S: Vector>(
    simd: S,
    activation: Activation,
    read: [Mat<'_>; 3],
    [mut d_gate, mut d_up]: [MatMut<'_>; 2],
) {
    let [gate, up, dy] = read;
    with_function!(activation, f => {
        for i in 0..d_up.rows() {
            let (read, written) = ([gate.row(i), up.row(i), dy.row(i)], [d_gate.row_mut(i), d_up.row_mut(i)]);
            combine(simd, read, written, GatedBackward(f));
        }
    });
}
