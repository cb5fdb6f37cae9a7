//! Gradients of networks of any mixture of options against central differences of their definition in f64, and their bits.

#[path = "../support/general.rs"]
mod general;
#[path = "../support/reference.rs"]
mod reference;
#[path = "../support/tiny.rs"]
mod tiny;

mod entrances;
mod family;
mod heads;

use general::{General, reading_tokens};
use headrow::train::{
    Dropping, Examples, Network, NetworkOptions, Objective, Parameters, Smoothing,
};
use headrow::{Batch, Chunk, Config, Isa, Output, Session, SessionOptions};
use reference::{Given, Reference};
use std::sync::Arc;
use tiny::Random;

/// Tokens of every vocabulary.
const V: usize = 13;
/// The longest sequence.
const LONGEST: usize = 16;
/// Step of the differences, in f64.
const STEP: f64 = 1e-5;

fn options() -> NetworkOptions {
    NetworkOptions::default().with_max_tokens(48).with_max_length(LONGEST).with_threads(1)
}

/// Some sequences; a few labels count nowhere.
fn examples(config: &Config, random: &mut Random, count: usize) -> Examples {
    let mut examples = Examples::default();
    for _ in 0..count {
        let mut ids = || -> Vec<u32> {
            let length = 1 + random.below(9);
            (0..length).map(|_| random.below(V) as u32).collect()
        };
        if config.encoder.is_some() && config.decoder.is_some() {
            examples.sources.push(ids());
        }
        let target = ids();
        for _ in &target {
            let label = random.below(V + 3);
            examples.labels.push((label < V).then_some(label as u32));
        }
        examples.targets.push(target);
    }
    examples
}

/// The loss of the examples by its definition, in f64.
fn loss(reference: &Reference, examples: &Examples, smoothing: f64) -> f64 {
    let mut sum = 0.0;
    let mut labels = examples.labels.iter();
    for index in 0..examples.len() {
        let source = (!examples.sources.is_empty())
            .then(|| reference.encode(Given::Ids(examples.sources.get(index))));
        let target = examples.targets.get(index);
        let states = reference.decode(Given::Ids(target), source.as_ref());
        for scores in reference.scores(&states) {
            let Some(&Some(label)) = labels.next() else { continue };
            sum += cross_entropy(&scores, label, smoothing);
        }
    }
    sum
}

/// −ln p of a label, `smoothing` of which is spread over all.
fn cross_entropy(scores: &[f64], label: u32, smoothing: f64) -> f64 {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|x| (x - largest).exp()).sum();
    let log_p = |x: f64| x - largest - total.ln();
    let mean = scores.iter().map(|&x| log_p(x)).sum::<f64>() / scores.len() as f64;
    -(1.0 - smoothing) * log_p(scores[label as usize]) - smoothing * mean
}

/// Compares some entries of every tensor's gradient with differences of `loss`. The unit is the tensor's largest gradient, as far
/// as it is not rounding alone. `name_of` gives the reference's name of a tensor, and none of one that does not learn.
fn compare(
    label: &str,
    parameters: &Parameters,
    gradients: &[f32],
    reference: &mut Reference,
    random: &mut Random,
    name_of: &dyn Fn(&str) -> Option<String>,
    loss: &dyn Fn(&Reference) -> f64,
) {
    let largest_of =
        |values: &[f32]| values.iter().fold(0.0f64, |max, x| max.max(f64::from(x.abs())));
    let overall = largest_of(gradients);
    assert!(overall.is_finite() && overall > 0.0, "{label}");
    for (name, _, values) in parameters.tensors() {
        let place = parameters.place(name).unwrap();
        let Some(own) = name_of(name) else {
            assert!(gradients[place].iter().all(|&g| g == 0.0), "{label}: {name} learns");
            continue;
        };
        let unit = largest_of(&gradients[place.clone()]).max(1e-2 * overall);
        let mut at: Vec<usize> = (0..4).map(|_| random.below(values.len())).collect();
        let largest = (0..values.len()).max_by(|&a, &b| {
            let of = |i: usize| gradients[place.start + i].abs();
            of(a).total_cmp(&of(b))
        });
        at.extend(largest);
        for index in at {
            reference.nudge(&own, index, STEP);
            let above = loss(reference);
            reference.nudge(&own, index, -2.0 * STEP);
            let below = loss(reference);
            reference.nudge(&own, index, STEP);
            let expected = (above - below) / (2.0 * STEP);
            let actual = f64::from(gradients[place.start + index]);
            let error = (actual - expected).abs() / unit;
            assert!(error < 5e-5, "{label}: {name}[{index}]: {actual}, expected {expected}");
        }
    }
}

#[test]
fn gradients_of_any_mixture_of_options_are_the_differences_of_its_definition_in_f64() {
    for seed in 0..60 {
        let config = reading_tokens(seed, V, LONGEST);
        let mut random = Random(seed + 1000);
        let general = General::new(&config, seed);
        let parameters = Parameters::from_bytes(&config, &tiny::file(&general.tensors)).unwrap();
        let count = 1 + random.below(3);
        let examples = examples(&config, &mut random, count);
        let mut network = Network::new(&config, &options()).unwrap();
        let mut gradients = vec![0.0; parameters.values().len()];
        let smoothing = if seed % 2 == 0 { 0.1 } else { 0.0 };
        let objective = match seed % 2 {
            0 => Objective::default().with_smoothing(Smoothing::All(0.1)),
            _ => Objective::default(),
        };
        let label = format!("seed {seed}: {config:?}");
        if examples.predicted() == 0 {
            continue;
        }
        let found = network
            .accumulate(&parameters, &examples, &objective, None, &mut gradients)
            .unwrap_or_else(|error| panic!("{label}: {error}"));
        let mut reference = Reference::new(&general, LONGEST);
        let expected = loss(&reference, &examples, smoothing);
        assert!((found.smoothed / expected - 1.0).abs() < 1e-5, "{label}: {found:?} {expected}");
        assert_eq!(found.tokens, examples.predicted());
        let of = |reference: &Reference| loss(reference, &examples, smoothing);
        let same = |name: &str| Some(name.to_owned());
        compare(&label, &parameters, &gradients, &mut reference, &mut random, &same, &of);
    }
}

/// Scores of the target of every example by a session.
fn session_logits(config: &Config, file: &[u8], examples: &Examples) -> Vec<f32> {
    let model = Arc::new(headrow::Model::from_bytes(config, file).unwrap());
    let options =
        SessionOptions::default().with_max_tokens(LONGEST).with_max_length(LONGEST).with_threads(1);
    let mut session = Session::new(&model, &options).unwrap();
    let mut all = Vec::new();
    for index in 0..examples.len() {
        let sequence = match config.encoder {
            Some(_) => {
                let source = Batch::one(examples.sources.get(index));
                session.add_sources(&source).unwrap()[0]
            }
            None => session.add().unwrap(),
        };
        let target = examples.targets.get(index);
        let mut logits = vec![0.0; target.len() * V];
        let chunk = [Chunk::new(sequence, target)];
        session.extend(&chunk, Output::AllLogits, &mut logits).unwrap();
        session.remove(sequence).unwrap();
        all.extend(logits);
    }
    all
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn scores_have_the_bits_of_inference() {
    for seed in 0..40 {
        let config = reading_tokens(seed, V, LONGEST);
        let general = General::new(&config, seed);
        let file = tiny::file(&general.tensors);
        let parameters = Parameters::from_bytes(&config, &file).unwrap();
        let examples = examples(&config, &mut Random(seed), 3);
        let mut network = Network::new(&config, &options()).unwrap();
        let mut logits = vec![0.0; examples.labels.len() * V];
        network.logits(&parameters, &examples, &mut logits).unwrap();
        let expected = session_logits(&config, &file, &examples);
        assert_eq!(bits(&logits), bits(&expected), "seed {seed}: {config:?}");
    }
}

/// Loss and gradients of one batch with dropout, which must have the same bits on any number of threads and every instruction set.
fn assert_same_bits_everywhere(
    label: &str,
    parameters: &Parameters,
    examples: &Examples,
    objective: &Objective,
) {
    let learn = |options: &NetworkOptions| {
        let mut network = Network::for_parameters(parameters, options).unwrap();
        let mut gradients = vec![0.0; parameters.values().len()];
        let dropping = Some(Dropping::new(0.2, 5, 3));
        let loss = network.accumulate(parameters, examples, objective, dropping, &mut gradients);
        (loss.unwrap().smoothed, bits(&gradients))
    };
    let expected = learn(&options());
    for threads in 2..=4 {
        let found = learn(&options().with_threads(threads));
        assert_eq!(found, expected, "{threads} threads, {label}");
    }
    let isas = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon].into_iter();
    for isa in isas.filter(|&isa| headrow::Cpu::with_isa(isa).is_some()) {
        let found = learn(&options().with_isa(isa));
        assert_eq!(found, expected, "{isa}, {label}");
    }
}

#[test]
fn gradients_have_the_same_bits_on_any_number_of_threads_and_every_instruction_set() {
    let objective = Objective::default().with_smoothing(Smoothing::All(0.1));
    for seed in 0..12 {
        let config = reading_tokens(seed, V, LONGEST);
        let parameters = Parameters::initialise(&config, seed).unwrap();
        let examples = examples(&config, &mut Random(seed), 6);
        assert_same_bits_everywhere(&format!("seed {seed}"), &parameters, &examples, &objective);
    }
}
