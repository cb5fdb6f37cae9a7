//! One query a sequence over a cache, against the rate at which the same machine reads memory.
//!
//!     decode-ratio [--threads 1] [--isa avx2] [--heads 12x64] [--kv-heads 12] [--keys 128,512,2048,4096]
//!                  [--batch 1,8] [--rounds 15] [--slice 3]
//!
//! `read` adds up as many bytes as the keys and values of all sequences take, in the best number of streams; `rows` is the same attention over
//! keys and values in rows of a matrix, packed in every call. Gigabytes per second of keys and values, median (and,
//! after the stroke, best), and what share of `read` the cache comes to.

use clap::Parser;
use headrow_benches::options::{Common, pair, values};
use headrow_benches::{Contender, Times, peak, race};
use headrow_kernels::attention::PAGE;
use headrow_kernels::{
    AttentionExtent, AttentionShape, CachedSegment, Cpu, KvCache, Mask, Mat, MatMut, Par, Scratch,
    Segment, Team, attention, attention_cached, attention_cached_scratch, attention_scratch,
};
use std::cell::RefCell;

#[derive(clap::Parser)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Heads and their width.
    #[arg(long, value_delimiter = ',', value_parser = pair, default_value = "12x64")]
    heads: Vec<(usize, usize)>,
    /// Heads of keys and values, when not as many.
    #[arg(long)]
    kv_heads: Option<usize>,
    /// Keys of each sequence.
    #[arg(long, value_delimiter = ',', default_value = "128,256,512,1024,2048,4096")]
    keys: Vec<usize>,
    /// Sequences.
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    batch: Vec<usize>,
}

fn main() {
    let options = Options::parse();
    let cpu = options.common.cpu();
    println!("{cpu}, {} thread(s); GB/s of keys and values, median/best", options.common.threads);
    println!(
        "{:>8} {:>5} {:>5} {:>10}  {:>13} {:>13} {:>13}  share",
        "heads", "batch", "keys", "µs", "read", "rows", "cache"
    );
    for &(heads, width) in &options.heads {
        let kv_heads = options.kv_heads.unwrap_or(heads);
        let shape = AttentionShape::new(heads, kv_heads, width, width);
        for &batch in &options.batch {
            for &keys in &options.keys {
                row(&options.common, cpu, &shape, batch, keys);
            }
        }
    }
}

/// One row of the table.
fn row(common: &Common, cpu: Cpu, shape: &AttentionShape, batch: usize, keys: usize) {
    let &AttentionShape { heads, kv_heads, d_k: width, .. } = shape;
    let (columns, of_keys) = (heads * width, kv_heads * width);
    let (q, k) = (values(batch * columns, 1), values(batch * keys * of_keys, 2));
    let (q, k) = (Mat::new(&q, batch, columns), Mat::new(&k, batch * keys, of_keys));
    let each = keys.div_ceil(PAGE);
    let pages: Vec<u32> = (0..(batch * each) as u32).collect();
    let mut cache = KvCache::try_new(cpu, kv_heads, width, width, pages.len()).unwrap();
    let (mut segments, mut cached) = (Vec::new(), Vec::new());
    for (i, pages) in pages.chunks(each).enumerate() {
        let rows = i * keys..(i + 1) * keys;
        cache.write(Par::SERIAL, pages, 0, k.rows_range(rows.clone()), k.rows_range(rows.clone()));
        segments.push(Segment::causal(i..i + 1, rows));
        cached.push(CachedSegment::causal(i..i + 1, pages, keys));
    }
    let bytes = 2 * batch * keys * of_keys * size_of::<f32>();
    let memory = values(bytes / size_of::<f32>(), 3);
    let threads = common.threads;
    let extent = AttentionExtent { queries: 1, keys };
    let mut for_rows = Scratch::new(attention_scratch(cpu, threads, shape, extent));
    let mut for_cache = Scratch::new(attention_cached_scratch(cpu, threads, shape, extent));
    let (mut out, mut other) = (vec![0.0; batch * columns], vec![0.0; batch * columns]);
    let mut teams = [(); 3].map(|()| Team::new(threads));
    let [reading, from_rows, from_cache] = &mut teams;
    let reading = RefCell::new(reading);
    let mask = &Mask::default();
    let mut contenders = vec![
        Contender::new("rows", || {
            let (out, mut stack) = (MatMut::new(&mut other, batch, columns), for_rows.stack());
            from_rows.open(|par| {
                attention(cpu, par, shape, q, k, k, &segments, mask, out, &mut stack);
            });
        }),
        Contender::new("cache", || {
            let (out, mut stack) = (MatMut::new(&mut out, batch, columns), for_cache.stack());
            from_cache.open(|par| {
                attention_cached(cpu, par, shape, q, &cache, &cached, mask, out, &mut stack);
            });
        }),
    ];
    contenders.extend(peak::STREAMS.map(|streams| {
        let (reading, memory) = (&reading, &memory);
        let read = move || reading.borrow_mut().open(|par| peak::read(par, memory, streams));
        Contender::new(format!("read {streams}"), read)
    }));
    let times = race(&mut contenders, common.rounds, common.slice());
    let (rows, cache) = (times[0], times[1]);
    let read = Times::fastest(&times[2..]);
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    let rates = |t: &Times| format!("{:5.1} /{:5.1}", rate(t.median), rate(t.min));
    println!(
        "{:>8} {batch:>5} {keys:>5} {:>10.1}  {:>13} {:>13} {:>13}  {:.0} /{:.0} %",
        format!("{heads}/{kv_heads}×{width}"),
        cache.median * 1e6,
        rates(&read),
        rates(&rows),
        rates(&cache),
        100.0 * read.median / cache.median,
        100.0 * read.min / cache.min
    );
}
