//! Products of few rows with weights from main memory, against the rate at which the same machine reads it.
//!
//!     stream-ratio [--threads 1] [--isa avx2] [--m 1,2,3,…,16] [--shapes 768x3072,3072x768,768x768]
//!                  [--mebibytes 256] [--rounds 15] [--slice 3]
//!
//! Shapes are K×N. Each call takes the next of so many different weights that together they are several times the last
//! cache. `read` adds up as many bytes of other memory, also one part after the other, in the best number of streams.
//! Gigabytes of weights per second, median (and, after the stroke, best), and what share of `read` it is.

use clap::Parser;
use headrow_benches::options::{Common, pair, values};
use headrow_benches::{Contender, Times, peak, race};
use headrow_kernels::{
    Cpu, Epilogue, LeftKind, Mat, MatMut, PackedB, RightKind, Scratch, Team, Write, gemm,
    gemm_scratch,
};
use std::cell::RefCell;

#[derive(clap::Parser)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Rows of A.
    #[arg(
        long = "m",
        value_delimiter = ',',
        default_value = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"
    )]
    rows: Vec<usize>,
    /// K×N.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = pair,
        default_value = "768x3072,3072x768,768x768"
    )]
    shapes: Vec<(usize, usize)>,
    /// All weights of a shape together, and the memory that is read; four times the last cache at least.
    #[arg(long, default_value_t = 256)]
    mebibytes: usize,
}

/// Goes round a number of things.
struct Round {
    count: usize,
    next: usize,
}

impl Round {
    fn next(&mut self) -> usize {
        self.next = (self.next + 1) % self.count;
        self.next
    }
}

fn main() {
    let options = Options::parse();
    let cpu = options.common.cpu();
    let bytes = (options.mebibytes << 20).max(4 * cpu.caches().l3);
    println!("{cpu}, {} thread(s); GB/s of weights, median/best", options.common.threads);
    println!("{:>5} {:>11} {:>10}  {:>13} {:>13}  share", "M", "K×N", "µs", "read", "headrow");
    let memory = values(bytes / size_of::<f32>(), 3);
    for &(k, n) in &options.shapes {
        let weight = values(k * n, 2);
        let count = bytes.div_ceil(size_of_val(&weight[..]));
        let pack = |_| PackedB::new(cpu, Mat::new(&weight, k, n));
        let weights: Vec<PackedB> = (0..count).map(pack).collect();
        for &m in &options.rows {
            row(&options.common, cpu, (m, k, n), &weights, &memory);
        }
    }
}

/// One row of the table.
fn row(
    common: &Common,
    cpu: Cpu,
    (m, k, n): (usize, usize, usize),
    weights: &[PackedB],
    memory: &[f32],
) {
    let threads = common.threads;
    let (a, mut c) = (values(m * k, 1), vec![0.0; m * n]);
    let need = gemm_scratch(cpu, threads, m, n, k, LeftKind::Plain, RightKind::Packed);
    let mut scratch = Scratch::new(need);
    let team = RefCell::new(Team::new(threads));
    let mut round = Round { count: weights.len(), next: 0 };
    let product = || {
        let (a, c) = (Mat::new(&a, m, k), MatMut::new(&mut c, m, n));
        let (packed, mut stack) = (&weights[round.next()], scratch.stack());
        team.borrow_mut().open(|par| {
            gemm(cpu, par, a, packed, Write::Replace, &Epilogue::default(), c, &mut stack);
        });
    };
    let mut contenders = vec![Contender::new("headrow", product)];
    contenders.extend(peak::STREAMS.map(|streams| {
        let (team, parts) = (&team, memory.chunks_exact(k * n));
        let mut round = Round { count: parts.len(), next: 0 };
        Contender::new(format!("read {streams}"), move || {
            let part = &memory[round.next() * k * n..][..k * n];
            team.borrow_mut().open(|par| peak::read(par, part, streams));
        })
    }));
    let times = race(&mut contenders, common.rounds, common.slice());
    let (own, read) = (times[0], Times::fastest(&times[1..]));
    let rate = |seconds: f64| (k * n * size_of::<f32>()) as f64 / seconds / 1e9;
    let rates = |t: &Times| format!("{:5.1} /{:5.1}", rate(t.median), rate(t.min));
    println!(
        "{m:>5} {:>11} {:>10.1}  {:>13} {:>13}  {:.0} /{:.0} %",
        format!("{k}×{n}"),
        own.median * 1e6,
        rates(&read),
        rates(&own),
        100.0 * read.median / own.median,
        100.0 * read.min / own.min
    );
}
