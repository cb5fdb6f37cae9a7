//! Whole models alone: percentiles over thousands of calls.
//!
//!     model-latency FOLDER [--cases enc:1x8,enc:1x32] [--threads 1,2] [--calls 2000] [--seconds 30]
//!
//! FOLDER is a model in Hugging Face layout; the cases are those of [`headrow_benches::cases`]. Milliseconds of a call, of a
//! step for `decode`. A case ends after so many calls or seconds, whichever comes first; threads take turns of a
//! tenth of the calls, so that both see the same machine.

use clap::Parser;
use headrow::Model;
use headrow_benches::cases::{Case, Result, timed};
use headrow_benches::tail::{HEADING, Tail};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Turns of each number of threads.
const TURNS: usize = 10;

#[derive(clap::Parser)]
struct Options {
    folder: PathBuf,
    /// `KIND:BATCHxSIZE`; those of a usual request when none is named.
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Threads of a session.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Calls of each case.
    #[arg(long, default_value_t = 2000)]
    calls: usize,
    /// Seconds of each case at most.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
}

fn main() -> Result<()> {
    let Options { folder, mut cases, threads, calls, seconds } = Options::parse();
    let model = Arc::new(Model::from_dir(&folder)?);
    if cases.is_empty() {
        let config = model.config();
        let usual: &[&str] = match (&config.encoder, &config.decoder) {
            (Some(_), Some(_)) => &["s2s:1x1", "s2s:1x4"],
            (None, Some(_)) => &["prefill:1x128", "decode:1x128"],
            _ => &["enc:1x8", "enc:1x32", "enc:1x128"],
        };
        cases = usual.iter().map(|&case| case.to_owned()).collect();
    }
    println!("{:<14} threads {HEADING}   ms", "case");
    for name in &cases {
        let prepared = threads.iter().map(|&threads| Case::new(&model, name, threads));
        let mut prepared = prepared.collect::<Result<Vec<Case>>>()?;
        let mut times = vec![Vec::new(); threads.len()];
        let budget = Duration::from_secs_f64(seconds / (TURNS * threads.len()) as f64);
        for _ in 0..TURNS {
            for (case, times) in prepared.iter_mut().zip(&mut times) {
                // The turn before was another session's: its weights and helpers come back first.
                case.call(&mut Vec::new())?;
                times.extend(timed(case, budget, 1, calls.div_ceil(TURNS))?);
            }
        }
        for (threads, times) in threads.iter().zip(&times) {
            println!("{name:<14} {threads:>7} {}", Tail::of_nanoseconds(times));
        }
    }
    Ok(())
}
