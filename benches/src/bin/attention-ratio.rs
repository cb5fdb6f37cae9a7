//! Attention against the multiply-add peak of the same run.
//!
//!     attention-ratio [--threads 1] [--isa avx2] [--heads 12x64,12x32,6x128] [--n 8,32,128,512,2048]
//!                     [--band 64] [--rounds 15] [--slice 3]
//!                     [--rows 48] [--keys 256] [--queries 96] [--pack 24]
//!
//! One sequence of n queries and n keys, Q, K and V side by side in one matrix as a fused projection leaves
//! them; `cached` is the causal mask over keys and values in a cache, `band` lets each query see that many keys on
//! either side. Each cell is the median (and, after the stroke, the best) time and percentage of the
//! peak of that many threads, counting the keys that are seen. The last four options replace block sizes.

use clap::Parser;
use headrow_benches::options::{Common, pair, values};
use headrow_benches::{Contender, Times, peak, race};
use headrow_kernels::attention::{
    Blocking, PAGE, Source, attention_blocked, attention_blocked_scratch,
};
use headrow_kernels::{
    AttentionExtent, AttentionShape, CachedSegment, Cpu, KvCache, Mask, Mat, MatMut, Par, Scratch,
    Segment, Team,
};

#[derive(clap::Parser)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Heads and their width.
    #[arg(long, value_delimiter = ',', value_parser = pair, default_value = "12x64,12x32,6x128")]
    heads: Vec<(usize, usize)>,
    /// Tokens of the sequence.
    #[arg(long = "n", value_delimiter = ',', default_value = "8,16,32,64,128,256,512,2048")]
    lengths: Vec<usize>,
    /// Keys on either side that the queries of the last column see.
    #[arg(long, default_value_t = 64)]
    band: usize,
    #[arg(long)]
    rows: Option<usize>,
    #[arg(long)]
    keys: Option<usize>,
    #[arg(long)]
    queries: Option<usize>,
    #[arg(long)]
    pack: Option<usize>,
}

/// One call, with all it needs, over and over.
fn caller<'a>(
    options: &'a Options,
    cpu: Cpu,
    shape: &'a AttentionShape,
    q: Mat<'a>,
    source: Source<'a>,
) -> impl FnMut() + 'a {
    let threads = options.common.threads;
    let n = q.rows();
    let columns = shape.heads * shape.d_v;
    let mut out = vec![0.0f32; n * columns];
    let mut team = Team::new(threads);
    let small = threads > 1 && n * columns * (2 * n + 24) < 1 << 17;
    let workers = if small { 1 } else { threads };
    let mut blocking = Blocking::new(cpu, workers, shape, &source);
    blocking.rows = options.rows.unwrap_or(blocking.rows);
    blocking.keys = options.keys.unwrap_or(blocking.keys);
    blocking.queries = options.queries.unwrap_or(blocking.queries);
    blocking.pack_values = options.pack.unwrap_or(blocking.pack_values);
    let extent = AttentionExtent { queries: n, keys: n };
    let need = attention_blocked_scratch(cpu, &blocking, threads, shape, extent);
    let mut scratch = Scratch::new(need);
    move || {
        let out = MatMut::new(&mut out, n, columns);
        let (mask, mut stack) = (Mask::default(), scratch.stack());
        let call = |par: Par<'_>| {
            attention_blocked(cpu, par, &blocking, shape, q, source, &mask, out, &mut stack);
        };
        if workers == 1 { call(Par::SERIAL) } else { team.open(call) }
    }
}

fn main() {
    let options = Options::parse();
    let Common { threads, rounds, .. } = options.common;
    let (cpu, slice) = (options.common.cpu(), options.common.slice());
    println!("{cpu}, {threads} thread(s); µs and % of peak, median/best");
    println!(
        "{:>6} {:>5}  {:>25} {:>25} {:>25} {:>25}  GFLOP/s of one core",
        "heads",
        "n",
        "full",
        "causal",
        "cached",
        format!("band {}", options.band)
    );
    for &(heads, width) in &options.heads {
        let shape = AttentionShape::new(heads, heads, width, width);
        let columns = heads * width;
        for &n in &options.lengths {
            let qkv = values(n * 3 * columns, 1);
            let qkv = Mat::new(&qkv, n, 3 * columns);
            let [q, k, v] = [0, 1, 2].map(|i| qkv.columns(i * columns..(i + 1) * columns));
            let pages: Vec<u32> = (0..n.div_ceil(PAGE) as u32).collect();
            let mut cache = KvCache::try_new(cpu, heads, width, width, pages.len()).unwrap();
            cache.write(Par::SERIAL, &pages, 0, k, v);
            let full = [Segment::full(0..n, 0..n)];
            let causal = [Segment::causal(0..n, 0..n)];
            let cached = [CachedSegment::causal(0..n, &pages, n)];
            let band = [Segment::banded(0..n, 0..n, options.band, options.band)];
            let run = |source| caller(&options, cpu, &shape, q, source);
            let mut contenders = [
                Contender::new("peak", || {
                    peak::burst(cpu.isa());
                }),
                Contender::new("full", run(Source::rows(k, v, &full))),
                Contender::new("causal", run(Source::rows(k, v, &causal))),
                Contender::new("cached", run(Source::cache(&cache, &cached))),
                Contender::new("band", run(Source::rows(k, v, &band))),
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
            let triangle = |n: usize| n * (n + 1) / 2;
            let hidden = triangle(n.saturating_sub(options.band + 1));
            println!(
                "{:>6} {n:>5}  {:>25} {:>25} {:>25} {:>25}  {:.1} /{:.1}",
                format!("{heads}×{width}"),
                share(&times[1], n * n),
                share(&times[2], triangle(n)),
                share(&times[3], triangle(n)),
                share(&times[4], n * n - 2 * hidden),
                core.median / 1e9,
                core.min / 1e9
            );
        }
    }
}
