//! The limits of the machine at a number of threads, as one record.

use crate::tail::median;
use crate::{affinity, peak};
use headrow_kernels::Isa;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// What so many threads reach together.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Limits {
    /// Threads that worked at the same time.
    pub threads: usize,
    /// Billions of floating-point operations a second, two per multiply-add: the median round.
    pub gflops: f64,
    /// The best round.
    pub gflops_best: f64,
    /// Billions of bytes read from memory a second: the median round.
    pub gbs: f64,
    /// The best round.
    pub gbs_best: f64,
    /// Parts that each thread read side by side for it.
    pub streams: usize,
}

/// Measures with `threads` threads: `rounds` times as many bursts of multiply-adds as take about `slice`, then readings
/// of `memory`, which should be several times as large as the last cache.
///
/// # Panics
/// When this machine lacks `isa`, or `threads` or `rounds` is 0.
pub fn measure(isa: Isa, threads: usize, rounds: usize, slice: Duration, memory: &[f32]) -> Limits {
    assert!(threads > 0 && rounds > 0, "{threads} threads, {rounds} rounds");
    let (gflops, gflops_best) = rates(threads, rounds, |_| {
        let start = Instant::now();
        let mut done = 0.0;
        while start.elapsed() < slice {
            done += peak::burst(isa);
        }
        done
    });
    let part = memory.len() / threads;
    let reading = peak::STREAMS.map(|streams| {
        let read = |thread: usize| {
            let memory = &memory[thread * part..(thread + 1) * part];
            peak::read_streams(memory, streams);
            size_of_val(memory) as f64
        };
        (rates(threads, rounds, read), streams)
    });
    let gbs_best = reading.iter().fold(0.0, |best: f64, ((_, next), _)| best.max(*next));
    let (gbs, streams) =
        reading.into_iter().fold(
            (0.0, 0),
            |best, ((gbs, _), streams)| {
                if gbs > best.0 { (gbs, streams) } else { best }
            },
        );
    Limits { threads, gflops, gflops_best, gbs, gbs_best, streams }
}

/// Median and best rate, in billions a second, of what all threads do together from a common start to the last one's end, each
/// on a processor of its own where there are as many.
fn rates(threads: usize, rounds: usize, work: impl Fn(usize) -> f64 + Sync) -> (f64, f64) {
    let (barrier, processors) = (Barrier::new(threads), affinity::processors(threads));
    let round = || {
        let one = |thread: usize| {
            if let Some(processors) = &processors {
                affinity::hold(processors[thread]);
            }
            barrier.wait();
            let start = Instant::now();
            let done = work(thread);
            (start, Instant::now(), done)
        };
        let ended: Vec<(Instant, Instant, f64)> = std::thread::scope(|scope| {
            let one = &one;
            // None is the caller's, which would stay where it was held.
            let all: Vec<_> = (0..threads).map(|i| scope.spawn(move || one(i))).collect();
            all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let start = ended.iter().map(|&(start, ..)| start).min().expect("a thread");
        let end = ended.iter().map(|&(_, end, _)| end).max().expect("a thread");
        let done: f64 = ended.iter().map(|&(.., done)| done).sum();
        done / (end - start).as_secs_f64() / 1e9
    };
    // The first one touches memory and brings the clock up.
    round();
    let mut rates: Vec<f64> = (0..rounds).map(|_| round()).collect();
    rates.sort_by(f64::total_cmp);
    (median(&rates), rates[rates.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_rates() {
        let memory = vec![1.0; 1 << 16];
        let limits = measure(Isa::Scalar, 2, 3, Duration::from_millis(1), &memory);
        assert!(limits.gflops > 0.0 && limits.gflops <= limits.gflops_best, "{limits:?}");
        assert!(limits.gbs > 0.0 && limits.gbs <= limits.gbs_best, "{limits:?}");
        assert!(peak::STREAMS.contains(&limits.streams));
    }
}
