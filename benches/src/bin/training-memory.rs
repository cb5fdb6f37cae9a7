//! The memory of a training beside what it says beforehand: `training-memory [--threads N] [--steps S] [--d-model D] …`.
//!
//! Makes a trainer of a translator, takes steps with full batches of sentences of several lengths, dropout and label smoothing
//! on, and prints what [`Trainer::memory`] says and the largest resident size of the process beyond what it was before.
//! Linux tells both in `/proc/self/status`.

use clap::Parser;
use headrow::train::{NetworkOptions, Parameters, Trainer, TrainerOptions};
use headrow_benches::process::{self, Resident};
use headrow_benches::translator::Shape;

#[derive(Parser)]
struct Args {
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Tokens of the longest sentence.
    #[arg(long, default_value_t = 40)]
    max_length: usize,
    #[command(flatten)]
    shape: Shape,
}

fn resident() -> Result<Resident, &'static str> {
    process::resident().ok_or("this system does not tell its memory")
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Args { threads, steps, max_length, shape } = Args::parse();
    let config = shape.config();
    let before = mib(resident()?.now);
    let options = NetworkOptions::default()
        .with_max_tokens(shape.tokens / 2)
        .with_max_length(max_length)
        .with_threads(threads);
    let parameters = Parameters::initialise(&config, 1)?;
    let numbers = parameters.values().len();
    let mut trainer = Trainer::new(parameters, &options, TrainerOptions::paper(config.d_model))?;
    let bound = mib(trainer.memory() as u64);
    let batches =
        [shape.length, max_length, 5].map(|length| shape.examples(length.min(max_length)));
    for step in 0..steps {
        trainer.accumulate(&batches[step % batches.len()])?;
        trainer.step()?;
        if step + 1 == batches.len() || step + 1 == steps {
            let taken = mib(resident()?.most) - before;
            let ratio = 100.0 * taken / bound;
            let tokens = shape.tokens / 2;
            println!(
                "{numbers} parameters, {tokens} tokens a side, {threads} threads, step {}: {taken:.1} MiB resident at most, {bound:.1} said: {ratio:.1} %",
                step + 1
            );
        }
    }
    println!("{before:.1} MiB were resident before");
    Ok(())
}
