//! Attention against the multiply-add peak of the same run.
//!
//!     attention-ratio [--threads 1] [--isa avx2] [--heads 12x64,12x32] [--n 8,32,128,512,2048]
//!                     [--rounds 15] [--slice 3] [--rows 48] [--keys 256] [--queries 96] [--pack 24]
//!
//! One sequence of n queries and n keys, Q, K and V side by side in one matrix as a fused projection leaves
//! them. Each cell is the median (and, after the stroke, the best) time and percentage of the
//! peak of that many threads; a causal mask counts half the operations. The last four options
//! replace block sizes.

use headrow_benches::{Contender, Times, peak, race};
use headrow_kernels::attention::{Blocking, attention_blocked, attention_blocked_scratch};
use headrow_kernels::{
    AttentionExtent, AttentionShape, Cpu, Isa, Mask, Mat, MatMut, Par, Scratch, Segment, Team,
};
use std::time::Duration;

struct Options {
    threads: usize,
    cpu: Cpu,
    heads: Vec<(usize, usize)>,
    lengths: Vec<usize>,
    rounds: usize,
    slice: Duration,
    rows: Option<usize>,
    keys: Option<usize>,
    queries: Option<usize>,
    pack: Option<usize>,
}

fn options() -> Options {
    let mut options = Options {
        threads: 1,
        cpu: Cpu::detect(),
        heads: vec![(12, 64), (12, 32)],
        lengths: vec![8, 16, 32, 64, 128, 256, 512, 2048],
        rounds: 15,
        slice: Duration::from_millis(3),
        rows: None,
        keys: None,
        queries: None,
        pack: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_else(|| panic!("{name} needs a value"));
        let number = || value.parse::<usize>().unwrap_or_else(|_| panic!("{name} {value}"));
        match name.as_str() {
            "--threads" => options.threads = number(),
            "--rounds" => options.rounds = number(),
            "--slice" => options.slice = Duration::from_millis(number() as u64),
            "--rows" => options.rows = Some(number()),
            "--keys" => options.keys = Some(number()),
            "--queries" => options.queries = Some(number()),
            "--pack" => options.pack = Some(number()),
            "--isa" => {
                let isa: Isa = value.parse().unwrap_or_else(|error| panic!("{error}"));
                options.cpu = Cpu::with_isa(isa).unwrap_or_else(|| panic!("no {isa} here"));
            }
            "--n" => options.lengths = value.split(',').map(|n| n.parse().unwrap()).collect(),
            "--heads" => {
                let shape = |s: &str| {
                    let (heads, width) = s.split_once('x').expect("heads x width");
                    (heads.parse().unwrap(), width.parse().unwrap())
                };
                options.heads = value.split(',').map(shape).collect();
            }
            _ => panic!("unknown option {name}"),
        }
    }
    options
}

fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn main() {
    let options = options();
    let Options { threads, cpu, rounds, slice, .. } = options;
    println!("{cpu}, {threads} thread(s); µs and % of peak, median/best");
    println!("{:>6} {:>5}  {:>25} {:>25}  GFLOP/s of one core", "heads", "n", "full", "causal");
    for &(heads, width) in &options.heads {
        let scale = 1.0 / (width as f32).sqrt();
        let shape = AttentionShape { heads, kv_heads: heads, d_k: width, d_v: width, scale };
        let columns = heads * width;
        for &n in &options.lengths {
            let qkv = values(n * 3 * columns, 1);
            let qkv = Mat::new(&qkv, n, 3 * columns);
            let run = |segment: Segment| {
                let segments = [segment];
                let mut out = vec![0.0f32; n * columns];
                let mut team = Team::new(threads);
                let workers = if threads > 1 && n * n * heads * (2 * width + 24) < 1 << 17 {
                    1
                } else {
                    threads
                };
                let mut blocking = Blocking::new(cpu, workers, &shape, &segments);
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
                            qkv.columns(0..columns),
                            qkv.columns(columns..2 * columns),
                            qkv.columns(2 * columns..3 * columns),
                            &segments,
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
