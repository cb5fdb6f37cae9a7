//! What tensors hold before training: γ 1, β and biases 0, tables N(0, 1/d), weights uniform in ±√(6/(inputs + outputs)).
//!
//! (Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010, equation 16.) Every
//! number is a function of the seed, the tensor's name and its place in it, so the same on every machine, and
//! whatever other tensors there are.

use crate::generate::random::uniform_in;
use crate::origin::{Initial, MapRows, Planned};
use std::f64::consts::TAU;

/// values ← what the tensor begins with.
pub(crate) fn initialise(tensor: &Planned, seed: u64, values: &mut [f32]) {
    let draw = Draw { stream: fingerprint(&tensor.name), seed };
    match &tensor.initial {
        Initial::Zeros => values.fill(0.0),
        Initial::Ones => values.fill(1.0),
        &Initial::Table(features) => {
            let deviation = 1.0 / (features.max(1) as f64).sqrt();
            let numbers = values.iter_mut().enumerate();
            numbers.for_each(|(i, x)| *x = (deviation * draw.normal(i)) as f32);
        }
        Initial::Maps(maps) => maps.iter().for_each(|rows| map(rows, draw, values)),
    }
}

/// One linear map of a tensor of weights.
fn map(rows: &MapRows, draw: Draw, values: &mut [f32]) {
    let MapRows { inputs, all, .. } = *rows;
    let bound = (6.0 / (inputs + rows.count).max(1) as f64).sqrt();
    let mut fill = |i: usize| values[i] = (bound * (2.0 * draw.uniform(i) - 1.0)) as f32;
    for output in rows.outputs.clone() {
        match rows.inputs_first {
            true => (0..inputs).for_each(|input| fill(input * all + output)),
            false => (output * inputs..(output + 1) * inputs).for_each(&mut fill),
        }
    }
}

/// The random numbers of one tensor.
#[derive(Clone, Copy)]
struct Draw {
    stream: u64,
    seed: u64,
}

impl Draw {
    /// From [0, 1).
    fn uniform(self, i: usize) -> f64 {
        uniform_in(self.stream, self.seed, i as u64)
    }

    /// Of mean 0 and deviation 1. (Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958.)
    fn normal(self, i: usize) -> f64 {
        let (u, v) = (self.uniform(2 * i), self.uniform(2 * i + 1));
        (-2.0 * libm::log(1.0 - u)).sqrt() * libm::cos(TAU * v)
    }
}

/// A number for a name: FNV-1a (Fowler, Noll and Vo).
fn fingerprint(name: &str) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, fold)
}
