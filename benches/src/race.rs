//! Interleaved timing.

use crate::tail::median;
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

impl Times {
    /// Of several ways of one thing: the best median, and the best minimum.
    pub fn fastest(ways: &[Times]) -> Times {
        let none = Times { median: f64::INFINITY, min: f64::INFINITY };
        ways.iter().fold(none, |best, way| Times {
            median: best.median.min(way.median),
            min: best.min.min(way.min),
        })
    }
}

/// Times the contenders in turns: `rounds` slices each, a slice being as many calls as take about `slice`.
/// The order is drawn anew each round, the same draws in each run, so that nobody always follows the same one.
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
    let (mut order, mut state): (Vec<usize>, _) = ((0..contenders.len()).collect(), 1);
    for _ in 0..rounds {
        shuffle(&mut order, &mut state);
        for &at in &order {
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
            Times { median: median(&seconds), min: seconds[0] }
        })
        .collect()
}

/// Draws an order, each as likely as another.
fn shuffle(order: &mut [usize], state: &mut u64) {
    for last in (1..order.len()).rev() {
        // A congruential generator, whose upper bits are the good ones.
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(last, ((*state >> 33) % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_follows_everybody() {
        let (mut order, mut state, mut pairs) =
            ([0, 1, 2, 3], 1, std::collections::BTreeSet::new());
        for _ in 0..60 {
            shuffle(&mut order, &mut state);
            pairs.extend(order.windows(2).map(|pair| (pair[0], pair[1])));
        }
        assert_eq!(pairs.len(), 12);
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3]);
    }
}
