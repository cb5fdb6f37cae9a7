//! Interleaved timing.

use std::time::{Duration, Instant};

/// One of several things that are timed in turns.
pub struct Contender<'a> {
    /// What the table calls it.
    pub name: String,
    /// One call.
    pub call: Box<dyn FnMut() + 'a>,
}

impl<'a> Contender<'a> {
    /// A contender.
    pub fn new(name: impl Into<String>, call: impl FnMut() + 'a) -> Contender<'a> {
        Contender { name: name.into(), call: Box::new(call) }
    }
}

/// Seconds per call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// The median slice.
    pub median: f64,
    /// The fastest slice.
    pub min: f64,
}

/// Times the contenders in turns: `rounds` slices each, a slice being as many calls as take about `slice`.
/// The order turns round by one each round, so that nobody always follows the same one.
pub fn race(contenders: &mut [Contender<'_>], rounds: usize, slice: Duration) -> Vec<Times> {
    let calls: Vec<usize> = contenders
        .iter_mut()
        .map(|contender| {
            // The first call warms caches up and is not timed.
            (contender.call)();
            let start = Instant::now();
            let mut calls = 0;
            while start.elapsed() < slice {
                (contender.call)();
                calls += 1;
            }
            calls
        })
        .collect();
    let mut seconds = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            (contenders[at].call)();
            let start = Instant::now();
            for _ in 0..calls[at] {
                (contenders[at].call)();
            }
            seconds[at].push(start.elapsed().as_secs_f64() / calls[at] as f64);
        }
    }
    seconds
        .into_iter()
        .map(|mut seconds| {
            seconds.sort_by(f64::total_cmp);
            Times { median: seconds[seconds.len() / 2], min: seconds[0] }
        })
        .collect()
}
