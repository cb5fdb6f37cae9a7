//! What training allocates: a network what it says, a batch nothing.

#[path = "support/counting.rs"]
mod counting;

use counting::counted;
use headrow::train::{
    Dropping, Examples, Network, NetworkOptions, Objective, Parameters, Trainer, TrainerOptions,
};
use headrow::{Config, Gating, Input, NormPlacement, RelativePositions, StackConfig, TokenInput};

const V: usize = 300;
const D: usize = 48;

fn configs() -> Vec<Config> {
    let tokens = || Input::Tokens(TokenInput::paper(V, D));
    let mut post = Config::general(D);
    post.encoder = Some(StackConfig::paper(tokens(), 2, D, 4, 96));
    post.decoder = Some(StackConfig::paper(tokens(), 3, D, 4, 96));
    let mut pre = Config::general(D);
    let mut stack = StackConfig::paper(tokens(), 3, D, 4, 80);
    (stack.placement, stack.final_norm) = (NormPlacement::Pre, true);
    (stack.gating, stack.kv_heads) = (Gating::Gated, 2);
    stack.relative = RelativePositions::Buckets { buckets: 8, max_distance: 20 };
    pre.decoder = Some(stack);
    vec![post, pre]
}

fn batch(config: &Config, lengths: &[usize]) -> Examples {
    let mut examples = Examples::default();
    for (i, &length) in lengths.iter().enumerate() {
        let ids = |shift: usize| (0..length).map(move |j| ((7 * i + j + shift) % V) as u32);
        if config.encoder.is_some() {
            examples.sources.push(ids(1));
        }
        examples.targets.push(ids(2));
        examples.labels.extend(ids(3).map(Some));
    }
    examples
}

#[test]
fn a_network_takes_what_it_says_and_a_batch_nothing() {
    for config in configs() {
        let parameters = Parameters::initialise(&config, 1).unwrap();
        for tokens in [256, 1024] {
            let options = NetworkOptions::default()
                .with_max_tokens(tokens)
                .with_max_length(64)
                .with_threads(1);
            let (network, _, kept, peak) = counted(|| Network::new(&config, &options).unwrap());
            let said = network.memory();
            let within = |bytes: usize| bytes as f64 <= 1.1 * said as f64;
            assert!(within(kept) && within(peak), "{kept}, at most {peak}, said {said}");
            assert!(said as f64 <= 1.1 * kept as f64, "{kept} of {said}");
            let mut network = network;
            let mut gradients = vec![0.0; parameters.values().len()];
            let objective = Objective::default();
            let largest = batch(&config, &vec![64; tokens / 64]);
            for examples in [largest, batch(&config, &[5, 1, 17, 64, 33]), batch(&config, &[3])] {
                for step in 0..2 {
                    let drop = (step == 1).then(|| Dropping::new(0.1, 1, step));
                    let (loss, calls, ..) = counted(|| {
                        let gradients = &mut gradients;
                        network.evaluate(&parameters, &examples, &objective).unwrap();
                        network.accumulate(&parameters, &examples, &objective, drop, gradients)
                    });
                    assert_eq!((loss.unwrap().tokens, calls), (examples.labels.len(), 0));
                }
            }
        }
    }
}

/// Most steps of the test below, and those after which nothing more may be taken.
const STEPS: usize = 10_000;
const WARM: usize = 100;

#[test]
fn ten_thousand_steps_take_no_memory_once_warm() {
    let mut config = Config::general(8);
    let stack = StackConfig::paper(Input::Tokens(TokenInput::paper(V, 8)), 1, 8, 2, 12);
    config.encoder = Some(stack.clone());
    config.decoder = Some(stack);
    let lengths = [&[7, 1, 3][..], &[12], &[2, 2, 2, 2, 2, 2], &[5, 4], &[1], &[9, 3]];
    let batches: Vec<Examples> = lengths.map(|lengths| batch(&config, lengths)).into();
    let network = NetworkOptions::default().with_max_tokens(12).with_max_length(12).with_threads(1);
    let parameters = Parameters::initialise(&config, 1).unwrap();
    let options = TrainerOptions::paper(8).with_seed(3);
    let (trainer, _, kept, _) = counted(|| Trainer::new(parameters, &network, options).unwrap());
    let mut trainer = trainer;
    let weights = 4 * trainer.parameters().values().len();
    let said = trainer.memory() - weights;
    assert!(said <= kept, "{kept} were taken beside the weights, {said} said");
    let mut steps = |count: usize| {
        for step in 0..count {
            trainer.accumulate(&batches[step % batches.len()]).unwrap();
            trainer.step().unwrap();
        }
    };
    steps(WARM);
    let (_, calls, kept, peak) = counted(|| steps(STEPS - WARM));
    assert_eq!((calls, kept, peak), (0, 0, 0));
    assert_eq!(trainer.steps(), STEPS as u64);
}
