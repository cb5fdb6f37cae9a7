//! A session beside a process that never rests: one thread against two, on a machine that is quiet and one that is not.
//!
//!     contention FOLDER [--case enc:1x32] [--cpu 0] [--rounds 10] [--seconds 1]
//!
//! The other process is a busy loop that `taskset` pins to one processor. Sessions with one thread and with two take turns,
//! with and without it. Milliseconds of a call; then the ratios that matter, and how much processor time the
//! process spends from 1 ms after a call on, which should be none.

use clap::Parser;
use headrow::Model;
use headrow_benches::cases::{Case, Result, timed};
use headrow_benches::process;
use headrow_benches::tail::{HEADING, Tail};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

#[derive(clap::Parser)]
struct Options {
    /// None for the busy loop itself.
    folder: Option<PathBuf>,
    /// `KIND:BATCHxSIZE`.
    #[arg(long, default_value = "enc:1x32")]
    case: String,
    /// The processor of the busy loop.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Turns of each row.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Seconds of a turn.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

/// The busy loop, which ends with this value.
struct Busy(Child);

impl Busy {
    fn start(cpu: usize) -> Result<Busy> {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string()]).arg(std::env::current_exe()?);
        let child = command.spawn().map_err(|error| format!("taskset: {error}"))?;
        // Until it is at full speed.
        sleep(Duration::from_millis(100));
        Ok(Busy(child))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // A loop that has ended already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let Some(folder) = &options.folder else {
        loop {
            std::hint::spin_loop();
        }
    };
    let model = Arc::new(Model::from_dir(folder)?);
    let mut cases = [Case::new(&model, &options.case, 1)?, Case::new(&model, &options.case, 2)?];
    // Quiet, then busy; one thread, then two.
    let mut times = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    let turn = Duration::from_secs_f64(options.seconds);
    for _ in 0..options.rounds {
        for (load, times) in times.iter_mut().enumerate() {
            let busy = if load == 1 { Some(Busy::start(options.cpu)?) } else { None };
            for (case, times) in cases.iter_mut().zip(times) {
                timed(case, Duration::ZERO, 2, 2)?;
                times.extend(timed(case, turn, 3, usize::MAX)?);
            }
            drop(busy);
        }
    }
    let tails = times.map(|load| load.map(|ns| Tail::of_nanoseconds(&ns)));
    println!("{}, {}, busy loop on processor {}", folder.display(), options.case, options.cpu);
    println!("{:<22} {HEADING}   ms", "");
    for (load, tails) in ["quiet", "busy"].iter().zip(&tails) {
        for (threads, tail) in tails.iter().enumerate() {
            println!("{load:<6} {} thread(s)     {tail}", threads + 1);
        }
    }
    let [[_, quiet], [one, two]] = tails;
    println!("busy, p50 of two threads / p50 of one: {:.2}", two.p50 / one.p50);
    println!("busy, p99 of two threads / quiet p50 of two: {:.2}", two.p99 / quiet.p50);
    timed(&mut cases[1], Duration::ZERO, 10, 10)?;
    sleep(Duration::from_millis(1));
    let idle = Duration::from_millis(500);
    let before = process::processor_time();
    sleep(idle);
    match (before, process::processor_time()) {
        (Some(before), Some(after)) => {
            let spent = (after - before) as f64 / 1e3;
            println!("processor time from 1 ms after a call on: {spent:.0} µs in {idle:?}");
        }
        _ => println!("processor time after a call: this system does not tell"),
    }
    Ok(())
}
