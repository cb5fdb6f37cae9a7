//! Every family that reads tokens and scores words: the bits of inference, and gradients that the loss follows.

use crate::tiny::{DECODERS, FAMILIES, Random, Tiny, V, file};
use crate::tiny_seq2seq::{KINDS, TARGET_V, seq2seq};
use crate::{bits, examples, options};
use headrow::train::{Examples, Network, Objective, Parameters, Smoothing};
use headrow::{Batch, Chunk, Head, Output, Session, SessionOptions};
use std::sync::Arc;

/// A checkpoint, its name and the size of its vocabulary.
fn checkpoints() -> Vec<(&'static str, Tiny, usize)> {
    let one = FAMILIES.into_iter().chain(DECODERS).map(|family| (family, Tiny::new(family), V));
    let two = KINDS.into_iter().filter(|&kind| kind != "whisper").map(|kind| {
        let vocabulary = if kind == "opennmt-transformer" { TARGET_V } else { V };
        (kind, seq2seq(kind), vocabulary)
    });
    one.chain(two).collect()
}

/// A checkpoint in training.
struct Trained {
    parameters: Parameters,
    network: Network,
    examples: Examples,
}

impl Trained {
    fn new(name: &str, tiny: &Tiny, vocabulary: usize) -> Trained {
        let config = tiny.config().unwrap();
        let parameters = Parameters::from_bytes(&config, &file(&tiny.tensors)).unwrap();
        let network = Network::for_parameters(&parameters, &options())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let two = config.encoder.is_some() && config.decoder.is_some();
        let mut examples = examples(vocabulary, two, &mut Random(3), 3);
        let types = config.encoder.as_ref().and_then(|stack| stack.tokens());
        if !two && types.is_some_and(|tokens| tokens.token_types > 1) {
            examples.types = (0..examples.labels.len() as u32).map(|i| i / 3 % 2).collect();
        }
        Trained { parameters, network, examples }
    }
}

/// The scores of every target, each computed alone by a session.
fn session_logits(tiny: &Tiny, vocabulary: usize, examples: &Examples) -> Vec<f32> {
    let model = Arc::new(tiny.model().unwrap());
    let options = SessionOptions::default().with_max_tokens(16).with_threads(1);
    let mut session = Session::new(&model, &options.with_max_length(16)).unwrap();
    let mut all = Vec::new();
    for (index, target) in examples.targets.iter().enumerate() {
        let mut logits = vec![0.0; target.len() * vocabulary];
        if model.config().decoder.is_none() {
            let start = examples.targets.offsets()[index];
            let types = examples.types.get(start..start + target.len()).unwrap_or_default();
            let mut batch = Batch::one(target);
            if !types.is_empty() {
                batch = batch.with_token_types(types);
            }
            session.predict(&batch, Head::MaskedLm, &mut logits).unwrap();
        } else {
            let sequence = match model.config().encoder {
                Some(_) => {
                    let source = Batch::one(examples.sources.get(index));
                    session.add_sources(&source).unwrap()[0]
                }
                None => session.add().unwrap(),
            };
            let chunk = [Chunk::new(sequence, target)];
            session.extend(&chunk, Output::AllLogits, &mut logits).unwrap();
            session.remove(sequence).unwrap();
        }
        all.extend(logits);
    }
    all
}

#[test]
fn scores_have_the_bits_of_inference() {
    for (name, tiny, vocabulary) in checkpoints() {
        let Trained { parameters, mut network, examples } = Trained::new(name, &tiny, vocabulary);
        let mut logits = vec![0.0; examples.labels.len() * vocabulary];
        network.logits(&parameters, &examples, &mut logits).unwrap();
        let expected = session_logits(&tiny, vocabulary, &examples);
        assert_eq!(bits(&logits), bits(&expected), "{name}");
    }
}

/// Along the gradient of each tensor the loss grows by its length.
#[test]
fn the_loss_follows_the_gradient_of_every_tensor() {
    const STEP: f64 = 2e-3;
    for (name, tiny, vocabulary) in checkpoints() {
        let Trained { mut parameters, mut network, examples } =
            Trained::new(name, &tiny, vocabulary);
        let objective = Objective::default().with_smoothing(Smoothing::Others(0.1));
        let mut gradients = vec![0.0; parameters.values().len()];
        network.accumulate(&parameters, &examples, &objective, None, &mut gradients).unwrap();
        let norm =
            |values: &[f32]| values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let whole = norm(&gradients);
        let places: Vec<_> = parameters
            .tensors()
            .map(|(tensor, ..)| (tensor.to_owned(), parameters.place(tensor).unwrap()))
            .collect();
        let before = parameters.values().to_vec();
        let mut followed = 0;
        for (tensor, place) in places {
            let length = norm(&gradients[place.clone()]);
            if length < 1e-2 * whole {
                continue;
            }
            followed += 1;
            let mut at = |sign: f64| {
                let values = parameters.values_mut();
                for i in place.clone() {
                    let by = sign * STEP * f64::from(gradients[i]) / length;
                    values[i] = (f64::from(before[i]) + by) as f32;
                }
                let loss = network.evaluate(&parameters, &examples, &objective).unwrap();
                parameters.values_mut()[place.clone()].copy_from_slice(&before[place.clone()]);
                loss.smoothed
            };
            let slope = (at(1.0) - at(-1.0)) / (2.0 * STEP);
            let error = (slope / length - 1.0).abs();
            assert!(error < 0.03, "{name}: {tensor}: {slope}, expected {length}");
        }
        assert!(followed > 8, "{name}: {followed} tensors");
    }
}
