//! The Transformers of the theorems against their definitions in f64, their symmetry, and what they can learn.

#[path = "../support/tiny.rs"]
mod tiny;

mod column;
mod definition;
mod expressivity;
mod files;
mod gradients;
mod symmetry;
mod yun;

use headrow::theory::column::{Dimensions, Transformer};
use headrow::theory::{Columns, SequenceMap};
use tiny::Random;

/// Any dimensions up to some size.
fn dimensions(random: &mut Random) -> Dimensions {
    let mut up_to = |most| 1 + random.below(most);
    Dimensions::new(up_to(9))
        .with_heads(up_to(4), up_to(6))
        .with_hidden(up_to(12))
        .with_blocks(up_to(3))
}

/// A sequence of numbers in −1 … 1.
fn sequence(random: &mut Random, d: usize, n: usize) -> Columns {
    Columns::new(d, (0..d * n).map(|_| random.unit()).collect()).unwrap()
}

/// The map with all of its numbers moved, so that biases are not 0.
fn moved<M: SequenceMap>(mut map: M, random: &mut Random) -> M {
    map.parameters_mut().iter_mut().for_each(|x| *x += 0.3 * random.unit());
    map
}

/// A Transformer of these dimensions without zeros.
fn transformer(dimensions: Dimensions, random: &mut Random) -> Transformer {
    moved(Transformer::random(dimensions, random.next()).unwrap(), random)
}

fn bits(x: &Columns) -> Vec<u32> {
    x.values().iter().map(|x| x.to_bits()).collect()
}

/// The largest |entry|.
fn largest(x: &Columns) -> f32 {
    x.values().iter().fold(0.0, |most, x| most.max(x.abs()))
}
