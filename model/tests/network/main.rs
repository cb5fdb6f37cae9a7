//! Networks in training: every family's scores and gradients, batches, dropout, inputs that are vectors, refusals.

#[path = "../support/general.rs"]
mod general;
#[path = "../support/reference.rs"]
mod reference;
#[path = "../support/tiny.rs"]
mod tiny;
#[path = "../support/tiny_seq2seq.rs"]
mod tiny_seq2seq;

mod batches;
mod families;
mod learning;
mod refusals;
mod vectors;

use headrow::train::{Examples, NetworkOptions};
use tiny::Random;

/// Options for the batches here.
fn options() -> NetworkOptions {
    NetworkOptions::default().with_max_tokens(64).with_max_length(16).with_threads(1)
}

/// Sequences of ids from 3 on, which mean nothing special in any family.
fn examples(vocabulary: usize, two: bool, random: &mut Random, count: usize) -> Examples {
    let mut examples = Examples::default();
    for _ in 0..count {
        let mut ids = || -> Vec<u32> {
            let length = 2 + random.below(9);
            (0..length).map(|_| 3 + random.below(vocabulary - 3) as u32).collect()
        };
        if two {
            examples.sources.push(ids());
        }
        let target = ids();
        for _ in &target {
            let label = random.below(vocabulary + vocabulary / 4);
            examples.labels.push((label < vocabulary).then_some(label as u32));
        }
        examples.targets.push(target);
    }
    examples
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}
