//! Attention under criterion: over prompts beside the multiply-add peak, counting the keys that are seen; of single queries over a
//! cache beside reading its keys and values. `attention-ratio` and `decode-ratio` have more shapes and threads.
#![allow(missing_docs)]

mod beside;

use beside::{Limit, bench};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use headrow_benches::options::values;
use headrow_kernels::attention::PAGE;
use headrow_kernels::{
    AttentionExtent, AttentionShape, CachedSegment, Cpu, KvCache, Mask, Mat, MatMut, Par, Scratch,
    Segment, attention, attention_cached, attention_cached_scratch, attention_scratch,
};

const HEADS: usize = 12;
const WIDTH: usize = 64;
const COLUMNS: usize = HEADS * WIDTH;

fn prompts(criterion: &mut Criterion) {
    let cpu = Cpu::detect();
    let shape = AttentionShape::new(HEADS, HEADS, WIDTH, WIDTH);
    let mut group = criterion.benchmark_group(format!("attention/{}", cpu.isa()));
    for n in [32, 128, 512, 2048] {
        let qkv = values(n * 3 * COLUMNS, 1);
        let qkv = Mat::new(&qkv, n, 3 * COLUMNS);
        let [q, k, v] = [0, 1, 2].map(|i| qkv.columns(i * COLUMNS..(i + 1) * COLUMNS));
        let mut out = vec![0.0; n * COLUMNS];
        let extent = AttentionExtent { queries: n, keys: n };
        let mut scratch = Scratch::new(attention_scratch(cpu, 1, &shape, extent));
        let masks = [
            ("full", Segment::full(0..n, 0..n), n * n),
            ("causal", Segment::causal(0..n, 0..n), n * (n + 1) / 2),
        ];
        for (name, segment, seen) in masks {
            let (segments, mask, id) = ([segment], Mask::default(), BenchmarkId::new(name, n));
            bench(&mut group, cpu, id, Limit::MultiplyAdds(2 * seen * COLUMNS), || {
                let (out, stack) = (MatMut::new(&mut out, n, COLUMNS), &mut scratch.stack());
                attention(cpu, Par::SERIAL, &shape, q, k, v, &segments, &mask, out, stack);
            });
        }
    }
    group.finish();
}

fn steps(criterion: &mut Criterion) {
    let cpu = Cpu::detect();
    let shape = AttentionShape::new(HEADS, HEADS, WIDTH, WIDTH);
    let mut group = criterion.benchmark_group(format!("decode-attention/{}", cpu.isa()));
    for keys in [128, 1024, 8192] {
        let (q, k) = (values(COLUMNS, 1), values(keys * COLUMNS, 2));
        let (q, k) = (Mat::new(&q, 1, COLUMNS), Mat::new(&k, keys, COLUMNS));
        let pages: Vec<u32> = (0..keys.div_ceil(PAGE) as u32).collect();
        let cache = KvCache::try_new(cpu, HEADS, WIDTH, WIDTH, pages.len());
        let mut cache = cache.expect("memory for the cache");
        cache.write(Par::SERIAL, &pages, 0, k, k);
        let extent = AttentionExtent { queries: 1, keys };
        let mut scratch = Scratch::new(attention_cached_scratch(cpu, 1, &shape, extent));
        let segments = [CachedSegment::causal(0..1, &pages, keys)];
        let (mut out, mask) = (vec![0.0; COLUMNS], Mask::default());
        let limit = Limit::Reading(2 * keys * COLUMNS);
        bench(&mut group, cpu, BenchmarkId::new("cached", keys), limit, || {
            let (out, stack) = (MatMut::new(&mut out, 1, COLUMNS), &mut scratch.stack());
            attention_cached(cpu, Par::SERIAL, &shape, q, &cache, &segments, &mask, out, stack);
        });
    }
    group.finish();
}

criterion_group!(benches, prompts, steps);
criterion_main!(benches);
