//! Activations, element by element.

use crate::cpu::Cpu;

/// A function applied to each element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// x.
    #[default]
    Identity,
    /// max(x, 0): NaN stays NaN, −0 becomes +0.
    Relu,
    /// x·Φ(x), Φ the normal distribution function.
    GeluErf,
    /// The tanh form of GELU.
    GeluTanh,
    /// x·σ(1.702·x).
    GeluQuick,
    /// x·σ(x).
    Silu,
}

/// One row in place; what the GEMM epilogue calls.
pub(crate) fn activate_row(_cpu: Cpu, activation: Activation, row: &mut [f32]) {
    match activation {
        Activation::Identity => {}
        Activation::Relu => row.iter_mut().for_each(|x| {
            if *x <= 0.0 {
                *x = 0.0;
            }
        }),
        _ => unimplemented!("{activation:?}"),
    }
}
