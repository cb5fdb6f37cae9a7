//! What does not fit is an error before anything is computed.

use crate::options;
use crate::tiny::{Tiny, file};
use headrow::train::{
    Dropping, Examples, Goal, Network, NetworkOptions, Objective, Parameters, Vectors,
};
use headrow::{Config, Error, Input, RelativePositions, StackConfig, TokenInput};

const V: usize = 11;

fn config() -> Config {
    let mut config = Config::general(8);
    let stack = StackConfig::paper(Input::Tokens(TokenInput::paper(V, 8)), 1, 8, 2, 12);
    config.encoder = Some(stack.clone());
    config.decoder = Some(stack);
    config
}

fn good() -> Examples {
    let mut examples = Examples::default();
    examples.sources.push([3, 4, 5]);
    examples.targets.push([1, 2]);
    examples.labels = vec![Some(2), None];
    examples
}

fn refused(change: impl FnOnce(&mut Examples)) -> Error {
    let config = config();
    let parameters = Parameters::initialise(&config, 1).unwrap();
    let mut network = Network::new(&config, &options()).unwrap();
    let mut examples = good();
    network.evaluate(&parameters, &examples, &Objective::default()).unwrap();
    change(&mut examples);
    let mut gradients = vec![0.0; parameters.values().len()];
    let objective = Objective::default();
    let result = network.accumulate(&parameters, &examples, &objective, None, &mut gradients);
    assert!(gradients.iter().all(|&g| g == 0.0));
    result.unwrap_err()
}

#[test]
fn examples_that_do_not_fit_are_refused() {
    let error = refused(|examples| examples.labels.push(None));
    assert!(matches!(error, Error::Lengths { what: "labels", expected: 2, actual: 3 }));
    let error = refused(|examples| examples.labels[0] = Some(V as u32));
    assert!(matches!(error, Error::TokenId { sequence: 0, index: 0, id: 11, vocabulary: V }));
    let error = refused(|examples| examples.sources.push([4]));
    assert!(matches!(error, Error::Lengths { what: "sources", expected: 1, actual: 2 }));
    let error = refused(|examples| examples.targets.push([]));
    assert!(matches!(error, Error::EmptySequence { sequence: 1 }));
    let error = refused(|examples| {
        examples.targets.push([3, 4, 99]);
        examples.sources.push([3]);
    });
    assert!(matches!(error, Error::TokenId { sequence: 1, index: 2, id: 99, .. }));
    let error = refused(|examples| examples.targets.push(vec![3; 17]));
    assert!(matches!(error, Error::SequenceTooLong { sequence: 1, tokens: 17, maximum: 16 }));
    let error = refused(|examples| (0..5).for_each(|_| examples.targets.push(vec![3; 16])));
    assert!(matches!(error, Error::BatchTooLarge { what: "tokens", maximum: 64, .. }));
    let error = refused(|examples| examples.features.push(0.0));
    assert!(matches!(error, Error::Lengths { expected: 0, actual: 1, .. }));
    let error = refused(|examples| examples.types = vec![0]);
    assert!(matches!(error, Error::Lengths { what: "token types", .. }));
    let error = refused(|examples| examples.types = vec![0, 1]);
    assert!(matches!(error, Error::TokenType { sequence: 0, index: 1, token_type: 1, types: 1 }));
}

#[test]
fn other_parameters_gradients_rates_and_inputs_are_refused() {
    let config = config();
    let parameters = Parameters::initialise(&config, 1).unwrap();
    let mut network = Network::new(&config, &options()).unwrap();
    let (objective, mut gradients) = (Objective::default(), vec![0.0; parameters.values().len()]);
    let mut other = config.clone();
    other.decoder.as_mut().unwrap().d_ff = 13;
    let other = Parameters::initialise(&other, 1).unwrap();
    let error = network.evaluate(&other, &good(), &objective).unwrap_err().to_string();
    assert!(error.contains("expected decoder.layers.0.feed_forward.inner"), "{error}");
    let short = &mut gradients[1..];
    let error = network.accumulate(&parameters, &good(), &objective, None, short).unwrap_err();
    assert!(matches!(error, Error::Buffer { what: "gradients", .. }));
    for rate in [1.0, -0.1, f32::NAN] {
        let dropping = Some(Dropping::new(rate, 1, 1));
        let result = network.accumulate(&parameters, &good(), &objective, dropping, &mut gradients);
        assert!(result.unwrap_err().to_string().contains("dropout"));
    }
    let vectors = Vectors::new(&[0.0; 8], &[1]);
    let error = network.states(&parameters, Some(vectors), vectors, &mut [0.0; 8]).unwrap_err();
    assert!(matches!(error, Error::WrongInput { expected: "tokens", .. }));
}

#[test]
fn goals_without_a_head_are_refused() {
    let mut encoder = config();
    encoder.decoder = None;
    let parameters = Parameters::initialise(&encoder, 1).unwrap();
    let mut network = Network::new(&encoder, &options()).unwrap();
    let mut examples = good();
    examples.sources.clear();
    for goal in [Goal::Words, Goal::Classes, Goal::Tags, Goal::NextSentence, Goal::Numbers] {
        let objective = Objective::default().with_goal(goal);
        let error = network.evaluate(&parameters, &examples, &objective).unwrap_err();
        assert!(matches!(error, Error::NoHead { .. }), "{goal:?}: {error}");
    }
}

#[test]
fn images_and_labels_that_do_not_fit_are_refused() {
    let vit = Tiny::new("vit");
    let parameters = Parameters::from_bytes(&vit.config().unwrap(), &file(&vit.tensors)).unwrap();
    let mut network = Network::for_parameters(&parameters, &options()).unwrap();
    let each = 2 * 15 * 15;
    let mut examples = Examples { features: vec![0.5; 2 * each], ..Examples::default() };
    examples.labels = vec![Some(4), None];
    let mut refused = |goal: Goal, change: &dyn Fn(&mut Examples)| {
        let objective = Objective::default().with_goal(goal);
        let mut examples = examples.clone();
        change(&mut examples);
        network.evaluate(&parameters, &examples, &objective).err()
    };
    assert!(refused(Goal::Classes, &|_| ()).is_none());
    let error = refused(Goal::Classes, &|examples| examples.labels[0] = Some(5));
    assert!(matches!(error, Some(Error::Label { sequence: 0, label: 5, labels: 5 })), "{error:?}");
    let error = refused(Goal::Classes, &|examples| examples.labels.push(None));
    assert!(matches!(error, Some(Error::Lengths { what: "labels", expected: 2, actual: 3 })));
    let error = refused(Goal::Numbers, &|examples| examples.numbers = vec![0.0; 9]);
    assert!(matches!(error, Some(Error::Lengths { what: "numbers", expected: 10, actual: 9 })));
    let error = refused(Goal::Classes, &|examples| examples.features.push(0.0));
    assert!(matches!(error, Some(Error::Lengths { expected: 1350, actual: 901, .. })), "{error:?}");
    let error = refused(Goal::Classes, &|examples| examples.targets.push([3]));
    assert!(matches!(error, Some(Error::WrongInput { expected: "images", actual: "tokens" })));
    let error = refused(Goal::Classes, &|examples| examples.features = vec![0.5; 7 * each]);
    assert!(matches!(error, Some(Error::BatchTooLarge { what: "tokens", maximum: 64, .. })));
    let small = options().with_max_tokens(9);
    let mut network = Network::for_parameters(&parameters, &small).unwrap();
    let objective = Objective::default().with_goal(Goal::Classes);
    let error = network.evaluate(&parameters, &examples, &objective).unwrap_err();
    assert!(matches!(error, Error::SequenceTooLong { tokens: 10, maximum: 9, .. }), "{error}");
}

#[test]
fn batches_beyond_the_machine_are_refused() {
    let mut buckets = config();
    for stack in [&mut buckets.encoder, &mut buckets.decoder].into_iter().flatten() {
        stack.relative = RelativePositions::Buckets { buckets: 8, max_distance: 16 };
    }
    for config in [config(), buckets] {
        for tokens in [usize::MAX, usize::MAX / 8, 1 << 40] {
            let options = NetworkOptions::default().with_max_tokens(tokens).with_threads(1);
            for options in [options.clone(), options.with_max_length(16)] {
                let error = Network::new(&config, &options).unwrap_err();
                assert!(matches!(error, Error::OutOfMemory(_)), "{tokens}: {error}");
            }
        }
    }
}
