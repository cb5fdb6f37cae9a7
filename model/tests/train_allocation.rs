//! What training allocates: a network what it says, a batch nothing.

#[path = "support/counting.rs"]
mod counting;

use counting::counted;
use headrow::train::{Dropping, Examples, Network, NetworkOptions, Objective, Parameters};
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
