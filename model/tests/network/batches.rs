//! What a batch computes beside each of its examples alone, dropout, and what observers see.

use crate::general::General;
use crate::tiny::{Random, file};
use crate::{bits, examples, options};
use headrow::train::{Dropping, Examples, Loss, Network, Objective, Parameters};
use headrow::{Config, Input, NormPlacement, Side, StackConfig, TokenInput};

const V: usize = 19;
const D: usize = 16;

/// An encoder and a decoder of two layers.
fn config(placement: NormPlacement) -> Config {
    let mut config = Config::general(D);
    let mut stack = StackConfig::paper(Input::Tokens(TokenInput::paper(V, D)), 2, D, 2, 24);
    stack.placement = placement;
    stack.final_norm = placement == NormPlacement::Pre;
    config.encoder = Some(stack.clone());
    config.decoder = Some(stack);
    config
}

fn drawn(config: &Config, seed: u64) -> Parameters {
    Parameters::from_bytes(config, &file(&General::new(config, seed).tensors)).unwrap()
}

fn learn(
    network: &mut Network,
    parameters: &Parameters,
    examples: &Examples,
    dropping: Option<Dropping>,
) -> (Loss, Vec<f32>) {
    let mut gradients = vec![0.0; parameters.values().len()];
    let objective = Objective::default();
    let loss = network.accumulate(parameters, examples, &objective, dropping, &mut gradients);
    (loss.unwrap(), gradients)
}

/// One example of several.
fn alone(examples: &Examples, index: usize) -> Examples {
    let mut one = Examples::default();
    one.sources.push(examples.sources.get(index).iter().copied());
    one.targets.push(examples.targets.get(index).iter().copied());
    let offsets = examples.targets.offsets();
    one.labels = examples.labels[offsets[index]..offsets[index + 1]].to_vec();
    one
}

#[test]
fn a_batch_is_the_sum_of_its_examples() {
    let config = config(NormPlacement::Post);
    let parameters = drawn(&config, 1);
    let mut network = Network::new(&config, &options()).unwrap();
    let batch = examples(V, true, &mut Random(2), 4);
    let (whole, gradients) = learn(&mut network, &parameters, &batch, None);
    let mut sum = vec![0.0; gradients.len()];
    let mut loss = Loss::default();
    for index in 0..batch.len() {
        let (one, objective) = (alone(&batch, index), Objective::default());
        loss += network.accumulate(&parameters, &one, &objective, None, &mut sum).unwrap();
    }
    assert_eq!((whole.tokens, whole.correct), (loss.tokens, loss.correct));
    assert!((whole.nll / loss.nll - 1.0).abs() < 1e-12);
    for (name, ..) in parameters.tensors() {
        let place = parameters.place(name).unwrap();
        let (together, one_by_one) = (&gradients[place.clone()], &sum[place]);
        // Sums over tokens go on from what is there. The read-out comes before both embeddings in each batch.
        if name.contains(".layers.") {
            assert_eq!(bits(together), bits(one_by_one), "{name}");
        }
        let largest = together.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let pairs = together.iter().zip(one_by_one);
        assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() <= 1e-5 * largest), "{name}");
    }
}

#[test]
fn the_loss_under_a_mask_follows_its_gradient() {
    const STEP: f64 = 2e-3;
    for placement in [NormPlacement::Post, NormPlacement::Pre] {
        let config = config(placement);
        let mut parameters = drawn(&config, 4);
        let mut network = Network::new(&config, &options()).unwrap();
        let batch = examples(V, true, &mut Random(5), 3);
        let dropping = Some(Dropping::new(0.3, 11, 7));
        let (_, gradients) = learn(&mut network, &parameters, &batch, dropping);
        let squares = gradients.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>();
        let before = parameters.values().to_vec();
        let mut at = |sign: f64| {
            let numbers = parameters.values_mut().iter_mut().zip(&before).zip(&gradients);
            for ((x, &before), &g) in numbers {
                let by = sign * STEP * f64::from(g) / squares.sqrt();
                *x = (f64::from(before) + by) as f32;
            }
            learn(&mut network, &parameters, &batch, dropping).0.smoothed
        };
        let slope = (at(1.0) - at(-1.0)) / (2.0 * STEP);
        let error = (slope / squares.sqrt() - 1.0).abs();
        assert!(error < 0.02, "{placement:?}: {slope}, expected {}", squares.sqrt());
    }
}

#[test]
fn what_is_dropped_depends_on_seed_and_pass_alone() {
    let config = config(NormPlacement::Pre);
    let parameters = drawn(&config, 6);
    let mut network = Network::new(&config, &options()).unwrap();
    let batch = examples(V, true, &mut Random(7), 3);
    let mut of = |dropping| bits(&learn(&mut network, &parameters, &batch, dropping).1);
    let drop = |rate, seed, step| Some(Dropping::new(rate, seed, step));
    let first = of(drop(0.2, 1, 1));
    assert_eq!(of(drop(0.2, 1, 1)), first);
    assert_ne!(of(drop(0.2, 1, 2)), first);
    assert_ne!(of(drop(0.2, 2, 1)), first);
    let without = of(None);
    assert_ne!(without, first);
    assert_eq!(of(drop(0.0, 1, 1)), without);
}

#[test]
fn observers_see_the_stream_from_the_last_layer_to_the_first() {
    let config = config(NormPlacement::Pre);
    let parameters = drawn(&config, 8);
    let mut network = Network::new(&config, &options()).unwrap();
    let batch = examples(V, true, &mut Random(9), 2);
    let (_, expected) = learn(&mut network, &parameters, &batch, None);
    let mut gradients = vec![0.0; expected.len()];
    let mut seen = Vec::new();
    let mut observe = |side: Side, layer: usize, d: headrow::Mat<'_>| {
        let squares: f64 = (0..d.rows()).flat_map(|i| d.row(i)).map(|&x| f64::from(x * x)).sum();
        assert!(squares > 0.0 && d.cols() == D);
        seen.push((side, layer, d.rows()));
    };
    let objective = Objective::default();
    network
        .accumulate_observed(&parameters, &batch, &objective, None, &mut gradients, &mut observe)
        .unwrap();
    assert_eq!(bits(&gradients), bits(&expected));
    let (sources, targets) = (batch.sources.ids().len(), batch.targets.ids().len());
    let order = |side, rows| [2, 1, 0].map(|layer| (side, layer, rows));
    assert_eq!(seen, [order(Side::Decoder, targets), order(Side::Encoder, sources)].concat());
}
