//! A session that does not have the machine to itself: one thread against two.
//!
//!     contention FOLDER [--case enc:1x32] [--cpu 0] [--quota 1.5] [--rounds 10] [--seconds 1]
//!
//! Sessions with one thread and with two take turns in three states: quiet; beside a busy loop that `taskset` pins to one
//! processor; and under a quota of processor time, where control groups may be made. Milliseconds of a call; then the ratios that
//! matter, and how much processor time the process spends from 1 ms after a call on, which should be none.

use clap::Parser;
use headrow::Model;
use headrow_benches::cases::{Case, Result, timed};
use headrow_benches::process::{self, Quota};
use headrow_benches::tail::{HEADING, Tail};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

/// What else happens on the machine.
const STATES: [&str; 3] = ["quiet", "busy", "quota"];

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
    /// Processors' worth of time in the third state.
    #[arg(long, default_value_t = 1.5)]
    quota: f64,
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
    let turn = Duration::from_secs_f64(options.seconds);
    let mut times = [(); STATES.len()].map(|()| [Vec::new(), Vec::new()]);
    for _ in 0..options.rounds {
        for (state, times) in STATES.iter().zip(&mut times) {
            let busy = (*state == "busy").then(|| Busy::start(options.cpu)).transpose()?;
            let quota = (*state == "quota").then(|| Quota::start(options.quota));
            if let Some(Err(error)) = &quota {
                eprintln!("quota: not measured, {error}");
                continue;
            }
            for (case, times) in cases.iter_mut().zip(times) {
                timed(case, Duration::ZERO, 2, 2)?;
                times.extend(timed(case, turn, 3, usize::MAX)?);
            }
            drop((busy, quota));
        }
    }
    println!("{}, {}, busy loop on processor {}", folder.display(), options.case, options.cpu);
    println!("{:<20} {HEADING}   ms", "");
    let quiet = Tail::of_nanoseconds(&times[0][1]);
    for (state, [one, two]) in STATES.iter().zip(&times) {
        if one.is_empty() {
            continue;
        }
        let (one, two) = (Tail::of_nanoseconds(one), Tail::of_nanoseconds(two));
        println!("{state:<6} 1 thread      {one}");
        println!("{state:<6} 2 threads     {two}");
        println!("{state:<6} p50 of two threads / p50 of one: {:.2}", two.p50 / one.p50);
        if let Some(p99) = two.p99 {
            println!("{state:<6} p99 of two threads / quiet p50 of two: {:.2}", p99 / quiet.p50);
        }
    }
    timed(&mut cases[1], Duration::ZERO, 10, 10)?;
    sleep(Duration::from_millis(1));
    let idle = Duration::from_millis(500);
    // Asking costs time too: twice at once tells how much.
    let asked = [process::processor_time(), process::processor_time()];
    sleep(idle);
    match (asked, process::processor_time()) {
        ([Some(first), Some(second)], Some(after)) => {
            let spent = (after - second).saturating_sub(second - first) as f64 / 1e3;
            println!("processor time from 1 ms after a call on: {spent:.0} µs in {idle:?}");
        }
        _ => println!("processor time after a call: this system does not tell"),
    }
    Ok(())
}
