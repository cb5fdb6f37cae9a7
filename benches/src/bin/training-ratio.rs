//! A training step against the machine: target tokens a second, and the share of the measured peak that its products reach.
//!
//! `training-ratio [--threads N] [--d-model D] …` makes a translator of the given shape, draws batches of sentences of about
//! the same length, and times forward and backward passes (dropout and label smoothing on) and Adam, in turns with the
//! peak of fused multiply-adds.

use clap::Parser;
use headrow::Cpu;
use headrow::train::{Dropping, Network, NetworkOptions, Objective, Parameters, Smoothing};
use headrow_benches::peak::burst;
use headrow_benches::translator::Shape;
use std::time::Instant;

#[derive(Parser)]
struct Args {
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[command(flatten)]
    shape: Shape,
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
    let shape = &args.shape;
    let config = shape.config();
    let parameters = Parameters::initialise(&config, 1)?;
    let options = NetworkOptions::default()
        .with_max_tokens(shape.tokens)
        .with_max_length(shape.length)
        .with_threads(args.threads);
    let mut network = Network::new(&config, &options)?;
    let examples = shape.examples(shape.length);
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
