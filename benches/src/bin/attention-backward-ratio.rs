//! The gradients of attention against the multiply-add peak of the same run.
//!
//!     attention-backward-ratio [--threads 1] [--isa avx2] [--heads 8x64,4x16] [--n 5,20,40,128,512,2048]
//!                              [--tokens 4000] [--rounds 15] [--slice 3]
//!                              [--rows 48] [--keys 256] [--pack 24] [--copy 96]
//!
//! A batch of sequences of n tokens, as many as have so many tokens together or one, Q, K and V side by side in one matrix,
//! their gradients in another. Each cell is the best time and percentage of the peak of that many threads, counting five products
//! over the keys that are seen, and, after the stroke, the time in percent of what the matrix products of such a layer
//! (four of d × d, two of d × 4d, forward and backward) take at peak. The last four options replace block sizes.

use clap::Parser;
use headrow_benches::options::{Common, pair, values};
use headrow_benches::{Contender, Times, peak, race};
use headrow_kernels::attention::{
    BackwardBlocking, attention_backward_blocked, attention_backward_blocked_scratch,
};
use headrow_kernels::{
    AttentionExtent, AttentionGradients, AttentionShape, Cpu, Mask, Mat, MatMut, Scratch, Segment,
    Team,
};

#[derive(clap::Parser)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Heads and their width.
    #[arg(long, value_delimiter = ',', value_parser = pair, default_value = "8x64,4x16")]
    heads: Vec<(usize, usize)>,
    /// Tokens of a sequence.
    #[arg(long = "n", value_delimiter = ',', default_value = "5,20,40,128,512,2048")]
    lengths: Vec<usize>,
    /// Tokens of a batch.
    #[arg(long, default_value_t = 4000)]
    tokens: usize,
    #[arg(long)]
    rows: Option<usize>,
    #[arg(long)]
    keys: Option<usize>,
    #[arg(long)]
    pack: Option<usize>,
    #[arg(long)]
    copy: Option<usize>,
}

/// One call, with all it needs, over and over.
fn caller<'a>(
    options: &'a Options,
    cpu: Cpu,
    shape: &'a AttentionShape,
    qkv: Mat<'a>,
    segments: &'a [Segment],
) -> impl FnMut() + 'a {
    let threads = options.common.threads;
    let (rows, columns) = (qkv.rows(), shape.heads * shape.d_k);
    let [q, k, v] = [0, 1, 2].map(|i| qkv.columns(i * columns..(i + 1) * columns));
    let extent = AttentionExtent::of(segments);
    let mut blocking = BackwardBlocking::new(cpu);
    blocking.rows = options.rows.unwrap_or(blocking.rows);
    blocking.keys = options.keys.unwrap_or(blocking.keys);
    blocking.pack_keys = options.pack.unwrap_or(blocking.pack_keys);
    blocking.copy_rows = options.copy.unwrap_or(blocking.copy_rows);
    let need = attention_backward_blocked_scratch(cpu, &blocking, threads, shape, extent);
    let mut scratch = Scratch::new(need);
    let (d_out, mask) = (values(rows * columns, 2), Mask::default());
    let mut gradients = vec![0.0; rows * 3 * columns];
    let mut team = Team::new(threads);
    move || {
        let d_out = Mat::new(&d_out, rows, columns);
        let to = AttentionGradients::side_by_side(MatMut::new(&mut gradients, rows, 3 * columns));
        let stack = &mut scratch.stack();
        team.open(|par| {
            attention_backward_blocked(
                cpu, par, &blocking, shape, q, k, v, d_out, segments, &mask, to, stack,
            );
        });
    }
}

fn main() {
    let options = Options::parse();
    let Common { threads, rounds, .. } = options.common;
    let (cpu, slice) = (options.common.cpu(), options.common.slice());
    println!("{cpu}, {threads} thread(s); µs, % of peak / % of the layer's products, best");
    println!("{:>6} {:>5}  {:>27} {:>27}  GFLOP/s of one core", "heads", "n", "full", "causal");
    for &(heads, width) in &options.heads {
        let shape = AttentionShape::new(heads, heads, width, width);
        let d = heads * width;
        for &n in &options.lengths {
            let count = (options.tokens / n).max(1);
            let rows = count * n;
            let qkv = values(rows * 3 * d, 1);
            let qkv = Mat::new(&qkv, rows, 3 * d);
            let each = |make: fn(std::ops::Range<usize>) -> Segment| -> Vec<Segment> {
                (0..count).map(|i| make(i * n..(i + 1) * n)).collect()
            };
            let full = each(|rows| Segment::full(rows.clone(), rows));
            let causal = each(|rows| Segment::causal(rows.clone(), rows));
            let mut contenders = [
                Contender::new("peak", || {
                    peak::burst(cpu.isa());
                }),
                Contender::new("full", caller(&options, cpu, &shape, qkv, &full)),
                Contender::new("causal", caller(&options, cpu, &shape, qkv, &causal)),
            ];
            let times = race(&mut contenders, rounds, slice);
            let core = peak::burst(cpu.isa()) / times[0].min;
            let share = |t: &Times, scores: usize| {
                let peak = core * threads as f64 / 100.0;
                let flops = 10.0 * (count * scores * width * heads) as f64;
                let layer = 3.0 * 2.0 * 12.0 * (rows * d * d) as f64;
                let (micros, seconds) = (t.min * 1e6, t.min);
                format!(
                    "{micros:9.1} {:5.1} % / {:5.1} %",
                    flops / seconds / peak,
                    10000.0 * seconds * peak / layer
                )
            };
            println!(
                "{:>6} {n:>5}  {:>27} {:>27}  {:.1}",
                format!("{heads}×{width}"),
                share(&times[1], n * n),
                share(&times[2], n * (n + 1) / 2),
                core / 1e9
            );
        }
    }
}
