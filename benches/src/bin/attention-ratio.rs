//! Attention against the multiply-add peak of the same run.
//!
//!     attention-ratio [--threads 1] [--isa avx2] [--heads 12x64,12x32] [--n 8,32,128,512,2048]
//!                     [--rounds 15] [--slice 3] [--rows 48] [--keys 256] [--queries 96] [--pack 24]
//!
//! One sequence of n queries and n keys, Q, K and V side by side in one matrix as a fused projection leaves
//! them. Each cell is the median (and, after the stroke, the best) time and percentage of the
//! peak of that many threads; a causal mask counts half the operations. The last four options
//! replace block sizes.

use clap::Parser;
use headrow_benches::options::{Common, pair, values};
use headrow_benches::{Contender, Times, peak, race};
use headrow_kernels::attention::{Blocking, Source, attention_blocked, attention_blocked_scratch};
use headrow_kernels::{
    AttentionExtent, AttentionShape, Mask, Mat, MatMut, Par, Scratch, Segment, Team,
};

#[derive(clap::Parser)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Heads and their width.
    #[arg(long, value_delimiter = ',', value_parser = pair, default_value = "12x64,12x32")]
    heads: Vec<(usize, usize)>,
    /// Tokens of the sequence.
    #[arg(long = "n", value_delimiter = ',', default_value = "8,16,32,64,128,256,512,2048")]
    lengths: Vec<usize>,
    #[arg(long)]
    rows: Option<usize>,
    #[arg(long)]
    keys: Option<usize>,
    #[arg(long)]
    queries: Option<usize>,
    #[arg(long)]
    pack: Option<usize>,
}

fn main() {
    let options = Options::parse();
    let Common { threads, rounds, .. } = options.common;
    let (cpu, slice) = (options.common.cpu(), options.common.slice());
    println!("{cpu}, {threads} thread(s); µs and % of peak, median/best");
    println!("{:>6} {:>5}  {:>25} {:>25}  GFLOP/s of one core", "heads", "n", "full", "causal");
    for &(heads, width) in &options.heads {
        let shape = AttentionShape::new(heads, heads, width, width);
        let columns = heads * width;
        for &n in &options.lengths {
            let qkv = values(n * 3 * columns, 1);
            let qkv = Mat::new(&qkv, n, 3 * columns);
            let part = |i: usize| qkv.columns(i * columns..(i + 1) * columns);
            let (q, k, v) = (part(0), part(1), part(2));
            let run = |segment: Segment| {
                let segments = [segment];
                let mut out = vec![0.0f32; n * columns];
                let mut team = Team::new(threads);
                let workers = if threads > 1 && n * n * heads * (2 * width + 24) < 1 << 17 {
                    1
                } else {
                    threads
                };
                let mut blocking =
                    Blocking::new(cpu, workers, &shape, &Source::rows(k, v, &segments));
                blocking.rows = options.rows.unwrap_or(blocking.rows);
                blocking.keys = options.keys.unwrap_or(blocking.keys);
                blocking.queries = options.queries.unwrap_or(blocking.queries);
                blocking.pack_values = options.pack.unwrap_or(blocking.pack_values);
                let extent = AttentionExtent::of(&segments);
                let need = attention_blocked_scratch(cpu, &blocking, threads, &shape, extent);
                let mut scratch = Scratch::new(need);
                move || {
                    let out = MatMut::new(&mut out, n, columns);
                    let mut stack = scratch.stack();
                    let call = |par: Par<'_>| {
                        attention_blocked(
                            cpu,
                            par,
                            &blocking,
                            &shape,
                            q,
                            Source::rows(k, v, &segments),
                            &Mask::default(),
                            out,
                            &mut stack,
                        );
                    };
                    if workers == 1 { call(Par::SERIAL) } else { team.open(call) }
                }
            };
            let mut contenders = [
                Contender::new("peak", || {
                    peak::burst(cpu.isa());
                }),
                Contender::new("full", run(Segment::full(0..n, 0..n))),
                Contender::new("causal", run(Segment::causal(0..n, 0..n))),
            ];
            let times = race(&mut contenders, rounds, slice);
            let burst = peak::burst(cpu.isa());
            let core = Times { median: burst / times[0].median, min: burst / times[0].min };
            let share = |t: &Times, scores: usize| {
                let flops = 4.0 * (scores * width * heads) as f64;
                let peak = core.min * threads as f64 / 100.0;
                let micros = t.median * 1e6;
                format!(
                    "{micros:9.1} {:5.1} /{:5.1} %",
                    flops / t.median / peak,
                    flops / t.min / peak
                )
            };
            println!(
                "{:>6} {n:>5}  {:>25} {:>25}  {:.1} /{:.1}",
                format!("{heads}×{width}"),
                share(&times[1], n * n),
                share(&times[2], n * (n + 1) / 2),
                core.median / 1e9,
                core.min / 1e9
            );
        }
    }
}
