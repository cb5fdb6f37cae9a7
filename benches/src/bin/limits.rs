//! The limits of this machine, as a line of JSON for each number of threads.
//!
//!     limits [--threads 1,2] [--rounds 9] [--slice 5] [--mebibytes 256]
//!
//! `gflops` are fused multiply-adds from registers alone, `gbs` what is read from memory; see [`headrow_benches::limits`].

use clap::Parser;
use headrow_benches::limits::{Limits, measure};
use headrow_kernels::{Cpu, cpu::Caches};
use serde::Serialize;
use std::time::Duration;

#[derive(clap::Parser)]
struct Options {
    /// Threads at the same time.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Rounds, of which the median and the best count.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Milliseconds of a round of multiply-adds.
    #[arg(long, default_value_t = 5)]
    slice: u64,
    /// Memory that is read.
    #[arg(long, default_value_t = 256)]
    mebibytes: usize,
}

/// A line.
#[derive(Serialize)]
struct Line {
    isa: String,
    l1d: usize,
    l2: usize,
    l3: usize,
    #[serde(flatten)]
    limits: Limits,
}

fn main() -> Result<(), serde_json::Error> {
    let options = Options::parse();
    let cpu = Cpu::detect();
    let Caches { l1d, l2, l3, .. } = cpu.caches();
    let memory = vec![1.0; options.mebibytes << 18];
    for &threads in &options.threads {
        let slice = Duration::from_millis(options.slice);
        let limits = measure(cpu.isa(), threads, options.rounds, slice, &memory);
        let isa = cpu.isa().to_string();
        println!("{}", serde_json::to_string(&Line { isa, l1d, l2, l3, limits })?);
    }
    Ok(())
}
