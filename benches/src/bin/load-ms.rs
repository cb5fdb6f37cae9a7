//! From a folder to the first answer: time and memory.
//!
//!     load-ms FOLDER [--case enc:1x32] [--threads 2] [--rounds 7]
//!
//! Each round is a process of its own, so that no memory is there already; the first one, which brings the files into the
//! system's cache, does not count. Milliseconds, median (best): reading and packing, a session, its
//! [`warm_up`](headrow::Session::warm_up), the first call, and calls after it. "Peak" is the most memory that loading took above what
//! the process had before, "final" what it kept.

use clap::Parser;
use headrow::Model;
use headrow_benches::cases::{Case, Result, timed};
use headrow_benches::{process, tail::Tail};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(clap::Parser)]
struct Options {
    folder: PathBuf,
    /// `KIND:BATCHxSIZE`.
    #[arg(long, default_value = "enc:1x32")]
    case: String,
    /// Threads of the session.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Loads that count.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Be one of the rounds.
    #[arg(long, hide = true)]
    round: bool,
}

/// A round.
#[derive(Serialize, Deserialize)]
struct Round {
    load: f64,
    session: f64,
    warm_up: f64,
    first: f64,
    steady: f64,
    peak: u64,
    kept: u64,
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

fn round(options: &Options) -> Result<Round> {
    let resident = || process::resident().ok_or("this system does not tell its memory");
    let before = resident()?.now;
    let start = Instant::now();
    let model = Arc::new(Model::from_dir(&options.folder)?);
    let load = milliseconds(start);
    let after = resident()?;
    let (peak, kept) = (after.most - before, after.now - before);
    let start = Instant::now();
    let mut case = Case::new(&model, &options.case, options.threads)?;
    let session = milliseconds(start);
    let start = Instant::now();
    case.warm_up()?;
    let warm_up = milliseconds(start);
    let first = timed(&mut case, Duration::ZERO, 1, 1)?[0] as f64 / 1e6;
    let steady = Tail::of_nanoseconds(&timed(&mut case, Duration::ZERO, 20, 20)?).p50;
    Ok(Round { load, session, warm_up, first, steady, peak, kept })
}

fn main() -> Result<()> {
    let options = Options::parse();
    if options.round {
        println!("{}", serde_json::to_string(&round(&options)?)?);
        return Ok(());
    }
    let mut rounds: Vec<Round> = Vec::new();
    for i in 0..=options.rounds {
        let own = std::env::current_exe()?;
        let run = Command::new(own).args(std::env::args_os().skip(1)).arg("--round").output()?;
        if !run.status.success() {
            return Err(String::from_utf8_lossy(&run.stderr).into());
        }
        let round = serde_json::from_slice(&run.stdout)?;
        if i > 0 {
            rounds.push(round);
        }
    }
    let row = |name: &str, value: fn(&Round) -> f64, unit: &str| {
        let tail = Tail::new(rounds.iter().map(value).collect());
        println!("{name:<24} {:>9.2} ({:.2}) {unit}", tail.p50, tail.min);
    };
    println!("{}, {}, {} thread(s)", options.folder.display(), options.case, options.threads);
    row("load", |round| round.load, "ms");
    row("session", |round| round.session, "ms");
    row("warm_up", |round| round.warm_up, "ms");
    row("first call", |round| round.first, "ms");
    row("later calls", |round| round.steady, "ms");
    row("first / later", |round| round.first / round.steady, "");
    row("peak memory", |round| round.peak as f64 / f64::from(1 << 20), "MiB");
    row("final memory", |round| round.kept as f64 / f64::from(1 << 20), "MiB");
    row("peak / final", |round| round.peak as f64 / round.kept as f64, "");
    Ok(())
}
