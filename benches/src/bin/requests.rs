//! Many requests at once: N threads, each with a session of one thread, on one shared model.
//!
//!     requests FOLDER [--case enc:1x32] [--clients 1,2,4,8] [--seconds 3] [--rounds 3]
//!
//! Calls a second of all together and in relation to one client, milliseconds of a call, and per call how often a thread
//! gave its processor away: on its own, as one does that waits for a lock, or because its slice was over. `RSS` is what the
//! process holds at the end of a row. The rows take turns, `rounds` times.

use clap::Parser;
use headrow::Model;
use headrow_benches::cases::{Case, Result, timed};
use headrow_benches::process;
use headrow_benches::tail::{Tail, column};
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

#[derive(clap::Parser)]
struct Options {
    folder: PathBuf,
    /// `KIND:BATCHxSIZE`.
    #[arg(long, default_value = "enc:1x32")]
    case: String,
    /// Threads that call.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    clients: Vec<usize>,
    /// Seconds of a turn.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Turns of each number of clients.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// A number of clients, and what they reached.
#[derive(Default)]
struct Row {
    ns: Vec<u64>,
    seconds: f64,
    waits: u64,
    preempted: u64,
    held: u64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let model = Arc::new(Model::from_dir(&options.folder)?);
    let most = options.clients.iter().copied().max().unwrap_or(1);
    let cases = (0..most).map(|_| Case::new(&model, &options.case, 1));
    let mut cases = cases.collect::<Result<Vec<Case>>>()?;
    let mut rows: Vec<Row> = options.clients.iter().map(|_| Row::default()).collect();
    for _ in 0..options.rounds {
        for (&clients, row) in options.clients.iter().zip(&mut rows) {
            turn(&mut cases[..clients], Duration::from_secs_f64(options.seconds), row)?;
        }
    }
    println!("{}, {}", options.folder.display(), options.case);
    println!(
        "clients  calls/s  against one      p50       p99   waits/call  preempted/call  RSS MiB"
    );
    let rate = |row: &Row| row.ns.len() as f64 / row.seconds;
    for (clients, row) in options.clients.iter().zip(&rows) {
        let calls = row.ns.len() as f64;
        let tail = Tail::of_nanoseconds(&row.ns);
        println!(
            "{clients:>7} {:>8.1} {:>12.2} {:>8.3} {:>9} {:>12.3} {:>15.3} {:>8}",
            rate(row),
            rate(row) / rate(&rows[0]),
            tail.p50,
            column(tail.p99),
            row.waits as f64 / calls,
            row.preempted as f64 / calls,
            row.held >> 20,
        );
    }
    Ok(())
}

/// All clients call for that long, from a common start.
fn turn(cases: &mut [Case], time: Duration, row: &mut Row) -> Result<()> {
    cases.iter_mut().try_for_each(|case| timed(case, Duration::ZERO, 1, 1).map(drop))?;
    let (clients, barrier) = (cases.len(), Barrier::new(cases.len() + 1));
    let barrier = &barrier;
    let called: Vec<Result<Vec<u64>>> = std::thread::scope(|scope| {
        let client = |case| {
            move || {
                barrier.wait();
                let ns = timed(case, time, 1, usize::MAX);
                // Switches of a thread that has ended are told no more.
                barrier.wait();
                barrier.wait();
                ns
            }
        };
        let threads: Vec<_> = cases.iter_mut().map(|case| scope.spawn(client(case))).collect();
        barrier.wait();
        let (start, before) = (Instant::now(), process::switches().unwrap_or_default());
        barrier.wait();
        row.seconds += start.elapsed().as_secs_f64();
        let after = process::switches().unwrap_or_default();
        barrier.wait();
        // One of each client's is its waiting for the others at the end, as is this thread's.
        row.waits += after.0.saturating_sub(before.0).saturating_sub(clients as u64 + 1);
        row.preempted += after.1.saturating_sub(before.1);
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for ns in called {
        row.ns.extend(ns?);
    }
    row.held = process::resident().map_or(0, |memory| memory.now);
    Ok(())
}
