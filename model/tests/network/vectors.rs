//! Stacks that read vectors: gradients of a loss of the caller's own, also for what was read, against f64.

use crate::general::{General, random_config};
use crate::options;
use crate::reference::{Given, Reference, Rows};
use crate::tiny::{Random, file};
use headrow::Input;
use headrow::train::{Network, Parameters, Vectors};

/// A config of stacks that read vectors.
fn reading_vectors(seed: u64) -> headrow::Config {
    let mut config = random_config(&mut Random(seed));
    for stack in [&mut config.encoder, &mut config.decoder].into_iter().flatten() {
        stack.input = Input::Vectors;
        if let headrow::RelativePositions::Rotary(rotary) = &mut stack.relative {
            rotary.max_position = 16;
        }
    }
    config
}

/// Numbers of tokens × d_model.
fn draw(random: &mut Random, tokens: usize, d: usize) -> Vec<f32> {
    (0..tokens * d).map(|_| random.unit()).collect()
}

fn weighed(states: &Rows, weights: &[f32]) -> f64 {
    states.iter().flatten().zip(weights).map(|(x, &w)| x * f64::from(w)).sum()
}

#[test]
fn gradients_of_what_was_read_are_the_differences_of_the_definition_in_f64() {
    const STEP: f32 = 2e-5;
    for seed in 0..24 {
        let config = reading_vectors(seed);
        let d = config.d_model;
        let general = General::new(&config, seed);
        let parameters = Parameters::from_bytes(&config, &file(&general.tensors)).unwrap();
        let mut network = Network::new(&config, &options()).unwrap();
        let mut random = Random(seed + 50);
        let two = config.encoder.is_some() && config.decoder.is_some();
        let lengths = [1 + random.below(7), 1 + random.below(7)];
        let mut sides = lengths.map(|length| draw(&mut random, length, d));
        let weights = draw(&mut random, lengths[1], d);
        let mut gradients = vec![0.0; parameters.values().len()];
        {
            let [source, target] = [0, 1].map(|i| Vectors::new(&sides[i], &lengths[i..=i]));
            let source = two.then_some(source);
            network
                .accumulate_states(&parameters, source, target, None, &weights, &mut gradients)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        let reference = Reference::new(&general, 16);
        let loss = |sides: &[Vec<f32>; 2]| {
            let [source, target] = [0, 1].map(|i| Given::Vectors(&sides[i]));
            let states = match (&config.encoder, &config.decoder) {
                (Some(_), Some(_)) => reference.decode(target, Some(&reference.encode(source))),
                (None, Some(_)) => reference.decode(target, None),
                _ => reference.encode(target),
            };
            weighed(&states, &weights)
        };
        let found = [network.source_gradient(), network.target_gradient()];
        for side in usize::from(!two)..2 {
            let largest = found[side].iter().fold(0.0f32, |max, x| max.max(x.abs()));
            for _ in 0..8 {
                let at = random.below(sides[side].len());
                let before = sides[side][at];
                let mut of = |by: f32| {
                    sides[side][at] = before + by;
                    (f64::from(sides[side][at]), loss(&sides))
                };
                let ((x, above), (y, below)) = (of(STEP), of(-STEP));
                sides[side][at] = before;
                let expected = (above - below) / (x - y);
                let actual = f64::from(found[side][at]);
                let error = (actual - expected).abs() / f64::from(largest);
                assert!(error < 1e-4, "seed {seed}, side {side}, {at}: {actual} {expected}");
            }
        }
    }
}

#[test]
fn vectors_that_are_not_seen_change_nothing_but_themselves() {
    for seed in 0..12 {
        let config = reading_vectors(seed);
        let d = config.d_model;
        let parameters = Parameters::initialise(&config, seed).unwrap();
        let mut network = Network::new(&config, &options()).unwrap();
        let mut random = Random(seed + 90);
        let two = config.encoder.is_some() && config.decoder.is_some();
        let values = draw(&mut random, 5, d);
        let sources = draw(&mut random, 4, d);
        let source = two.then(|| Vectors::new(&sources, &[4]));
        let mut out = vec![0.0; 5 * d];
        network.states(&parameters, source, Vectors::new(&values, &[5]), &mut out).unwrap();
        // The same with two more behind, which no other sees.
        let padded: Vec<f32> = [&values[..], &draw(&mut random, 2, d)].concat();
        let seen = [true, true, true, true, true, false, false];
        let mut longer = vec![0.0; 7 * d];
        let target = Vectors::new(&padded, &[7]).with_seen(&seen);
        network.states(&parameters, source, target, &mut longer).unwrap();
        assert_eq!(longer[..5 * d], out[..], "seed {seed}");
    }
}
