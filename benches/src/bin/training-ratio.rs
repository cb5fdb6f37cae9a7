//! A training step against the machine: target tokens a second, and the share of the measured peak that its products reach.
//!
//! `training-ratio [--threads N] [--d-model D] …` makes a translator of the given shape, draws batches of sentences of about
//! the same length, and times forward and backward passes (dropout and label smoothing on) and Adam, in turns with the
//! peak of fused multiply-adds.

use clap::Parser;
use headrow::train::{
    Dropping, Examples, Network, NetworkOptions, Objective, Parameters, Smoothing,
};
use headrow::{Config, Cpu, Input, NormPlacement, StackConfig, TokenInput};
use headrow_benches::peak::burst;
use std::time::Instant;

#[derive(Parser)]
struct Args {
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[arg(long, default_value_t = 192)]
    d_model: usize,
    #[arg(long, default_value_t = 768)]
    d_ff: usize,
    #[arg(long, default_value_t = 3)]
    layers: usize,
    #[arg(long, default_value_t = 4)]
    heads: usize,
    #[arg(long, default_value_t = 6000)]
    vocabulary: usize,
    /// Tokens of a sentence, on both sides.
    #[arg(long, default_value_t = 16)]
    length: usize,
    /// Tokens of a batch, both sides together.
    #[arg(long, default_value_t = 4000)]
    tokens: usize,
    #[arg(long, default_value_t = 10)]
    rounds: usize,
}

/// GFLOP/s of one thread, in a moment.
fn peak() -> f64 {
    let start = Instant::now();
    let flops = burst(Cpu::detect().isa());
    flops / start.elapsed().as_secs_f64() * 1e-9
}

fn main() -> headrow::Result<()> {
    let args = Args::parse();
    let mut config = Config::general(args.d_model);
    let stack = || {
        let tokens = TokenInput::paper(args.vocabulary, args.d_model);
        let (layers, heads) = (args.layers, args.heads);
        let mut stack =
            StackConfig::paper(Input::Tokens(tokens), layers, args.d_model, heads, args.d_ff);
        stack.placement = NormPlacement::Pre;
        stack.final_norm = true;
        stack
    };
    config.encoder = Some(stack());
    config.decoder = Some(stack());
    let parameters = Parameters::initialise(&config, 1)?;
    let options = NetworkOptions::default()
        .with_max_tokens(args.tokens)
        .with_max_length(args.length)
        .with_threads(args.threads);
    let mut network = Network::new(&config, &options)?;
    let mut examples = Examples::default();
    for i in 0..args.tokens / (2 * args.length) {
        let ids = |salt: usize| {
            let id = move |j: usize| ((i * 7919 + j * 104_729 + salt) % args.vocabulary) as u32;
            (0..args.length).map(id).collect::<Vec<u32>>()
        };
        examples.sources.push(ids(1));
        examples.targets.push(ids(2));
        examples.labels.extend(ids(3).into_iter().map(Some));
    }
    let objective = Objective::default().with_smoothing(Smoothing::All(0.1));
    let mut gradients = vec![0.0; parameters.values().len()];
    let rows = examples.labels.len();
    println!("{} parameters, {rows} target tokens a batch", gradients.len());
    for round in 0..args.rounds {
        let peak = peak();
        let start = Instant::now();
        let dropping = Some(Dropping::new(0.1, 7, round as u64));
        network.accumulate(&parameters, &examples, &objective, dropping, &mut gradients)?;
        let seconds = start.elapsed().as_secs_f64();
        println!("{:.0} target tokens/s, peak {peak:.0} GFLOP/s", rows as f64 / seconds);
    }
    Ok(())
}
