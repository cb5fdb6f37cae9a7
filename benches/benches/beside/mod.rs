//! A criterion benchmark that says how close to the machine's limit it came, the limit measured right after it.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Throughput};
use headrow_benches::options::values;
use headrow_benches::peak;
use headrow_kernels::{Cpu, Par};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Measurements of a limit, of which the best counts.
const ROUNDS: usize = 9;
/// How long one of them takes about.
const SLICE: Duration = Duration::from_millis(2);

/// What a call does at least.
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "each benchmark includes this module and uses some")]
pub(crate) enum Limit {
    /// So many multiply-adds, at the peak of one core.
    MultiplyAdds(usize),
    /// Reading so many values the fastest way, again and again, wherever they lie by then.
    Reading(usize),
    /// Copying so many values, which lie in the caches.
    Copying(usize),
}

impl Limit {
    fn throughput(self) -> Throughput {
        let bytes = |values| (values * size_of::<f32>()) as u64;
        match self {
            Limit::MultiplyAdds(count) => Throughput::Elements(count as u64),
            Limit::Reading(count) | Limit::Copying(count) => Throughput::Bytes(bytes(count)),
        }
    }

    /// Seconds of a call that does just that, and what it is called.
    fn measure(self, cpu: Cpu) -> (f64, &'static str) {
        match self {
            Limit::MultiplyAdds(count) => {
                let flops = peak::burst(cpu.isa());
                let burst = best(|| {
                    peak::burst(cpu.isa());
                });
                (2.0 * count as f64 / flops * burst, "the multiply-add peak")
            }
            Limit::Reading(count) => {
                let memory = values(count, 1);
                let reading = peak::STREAMS.map(|n| best(|| peak::read(Par::SERIAL, &memory, n)));
                (reading.into_iter().fold(f64::INFINITY, f64::min), "reading as much")
            }
            Limit::Copying(count) => {
                let (from, mut to) = (values(count, 1), vec![0.0; count]);
                let copied = best(|| black_box(&mut to).copy_from_slice(black_box(&from)));
                (copied, "copying as much")
            }
        }
    }
}

/// Seconds of a call in the best of some slices.
fn best(mut call: impl FnMut()) -> f64 {
    call();
    let slice = || {
        let (start, mut calls) = (Instant::now(), 0.0);
        while start.elapsed() < SLICE {
            call();
            calls += 1.0;
        }
        start.elapsed().as_secs_f64() / calls
    };
    std::iter::repeat_with(slice).take(ROUNDS).fold(f64::INFINITY, f64::min)
}

/// One benchmark of the group, and behind it a line with the share of `limit` that its median comes to.
pub(crate) fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    cpu: Cpu,
    id: BenchmarkId,
    limit: Limit,
    mut call: impl FnMut(),
) {
    let mut seconds = Vec::new();
    group.throughput(limit.throughput());
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|calls| {
            let start = Instant::now();
            (0..calls).for_each(|_| call());
            let took = start.elapsed();
            seconds.push(took.as_secs_f64() / calls as f64);
            took
        });
    });
    // A filter on the command line leaves benchmarks out.
    if !seconds.is_empty() {
        seconds.sort_by(f64::total_cmp);
        let (least, name) = limit.measure(cpu);
        let reached = 100.0 * least / seconds[seconds.len() / 2];
        println!("{:24}share:  {reached:.1} % of {name}", "");
    }
}
