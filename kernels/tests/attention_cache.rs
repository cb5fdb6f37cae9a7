//! Attention over a cache of keys and values: the bits of rows, however the tokens came there.

mod support;

use headrow_kernels::attention::{Blocking, PAGE};
use headrow_kernels::{
    AttentionExtent, CachedSegment, Cpu, KvCache, Mask, Mat, Need, Par, Scratch, Team,
    attention_cached, attention_cached_scratch,
};
use support::attention::{
    BIAS, Case, KEYS, NO_HOLES, PER_HEAD, VISIBLE, all_masks, banded, mixed, shape,
};
use support::{Random, every};

#[test]
fn a_cache_gives_the_bits_of_rows() {
    let mut rng = Random::new(12);
    let mut team = Team::new(3);
    let tiny =
        Blocking { rows: 5, keys: 3, queries: 7, pack_values: 0, copy_queries: 20, spread: false };
    for masks in all_masks().filter(|masks| masks & KEYS == 0) {
        for case in [mixed(masks, &mut rng), banded(masks, &mut rng)] {
            for cpu in Cpu::all() {
                let expected = case.run(cpu, Par::SERIAL).bits();
                let serial = [None, Some(&tiny)].map(|b| case.run_cached(cpu, Par::SERIAL, b));
                let spread = Blocking { spread: true, ..tiny };
                let shared = team.open(|par| {
                    [None, Some(&tiny), Some(&spread)].map(|b| case.run_cached(cpu, par, b))
                });
                for bits in serial.iter().chain(&shared) {
                    assert_eq!(bits, &expected, "{cpu:?}, masks {masks}");
                }
            }
        }
    }
}

#[test]
fn one_query_over_a_long_cache_can_be_spread_over_keys_and_columns() {
    let mut rng = Random::new(5);
    let mut team = Team::new(4);
    for (heads, kv_heads) in [(1, 1), (3, 1), (4, 2)] {
        let masks = [0, KEYS, BIAS | NO_HOLES, VISIBLE | KEYS | BIAS | PER_HEAD];
        for masks in masks.into_iter().rev().step_by(every(2)) {
            let lengths = [(1, 333, None), (1, 1, Some(0)), (1, 100, Some(40)), (1, 0, None)];
            let case = Case::new(shape(heads, kv_heads, 19, 50), &lengths, masks, &mut rng);
            for cpu in Cpu::all() {
                case.check(cpu, "one query");
                let expected = case.run(cpu, Par::SERIAL).bits();
                let usual = Blocking::new(cpu, 4, &case.shape, &case.source());
                let spread = Blocking { spread: true, ..usual };
                for _ in 0..5 {
                    let bits = team.open(|par| case.run_blocked(cpu, par, &spread));
                    assert_eq!(bits, expected, "{cpu:?}, masks {masks}");
                }
                let bits = case.run_blocked(cpu, Par::SERIAL, &spread);
                assert_eq!(bits, expected, "{cpu:?}, masks {masks}, alone");
                if masks & KEYS == 0 {
                    let bits = team.open(|par| case.run_cached(cpu, par, Some(&spread)));
                    assert_eq!(bits, expected, "{cpu:?}, masks {masks}, from a cache");
                }
                let lone = Case { segments: case.segments[..1].to_vec(), ..case.copy() };
                let blocking = Blocking::new(cpu, 4, &lone.shape, &lone.source());
                assert_eq!(blocking.spread, kv_heads < 4);
            }
        }
    }
}

#[test]
fn a_cache_holds_what_was_written_in_whatever_pieces_and_copies() {
    let mut rng = Random::new(15);
    let mut team = Team::new(2);
    let n = 3 * PAGE + 17;
    for (heads, kv_heads, d_k, d_v) in [(1, 1, 1, 1), (4, 2, 19, 8), (3, 3, 8, 70), (2, 1, 0, 3)] {
        let case = Case::new(shape(heads, kv_heads, d_k, d_v), &[(9, n, None)], 0, &mut rng);
        for cpu in Cpu::all() {
            let expected = case.run(cpu, Par::SERIAL).bits();
            for most in [1, 3, 16, 40, 64, 100, n] {
                let mut cache = KvCache::try_new(cpu, kv_heads, d_k, d_v, 8).unwrap();
                assert_eq!(Some(cache.bytes()), KvCache::bytes_for(kv_heads, d_k, d_v, 8));
                let pages = [5, 0, 7, 2];
                let mut start = 0;
                while start < n {
                    let rows = start..n.min(start + 1 + rng.below(most));
                    let k = case.k.view().rows_range(rows.clone());
                    let v = case.v.view().rows_range(rows.clone());
                    team.open(|par| cache.write(par, &pages, start, k, v));
                    start = rows.end;
                }
                // A whole page and a part of one move; what becomes of the old ones, or lay in the new ones,
                // does not matter.
                let nan = vec![f32::NAN; PAGE * kv_heads * d_k.max(d_v)];
                let mat = |width: usize| Mat::new(&nan[..PAGE * width], PAGE, width);
                let spoil = |cache: &mut KvCache, page: u32| {
                    cache.write(Par::SERIAL, &[page], 0, mat(kv_heads * d_k), mat(kv_heads * d_v));
                };
                spoil(&mut cache, 3);
                for (from, to, tokens) in [(7, 1, PAGE), (2, 3, n - 3 * PAGE)] {
                    cache.copy_page(from, to, tokens);
                    spoil(&mut cache, from);
                }
                let segments = [CachedSegment::full(0..9, &[5, 0, 1, 3], n)];
                let extent = AttentionExtent::of_cached(&segments);
                let need = attention_cached_scratch(cpu, 1, &case.shape, extent);
                let (mut out, mut scratch) = (case.out(), Scratch::new(need));
                let (q, mask, to) = (case.q.view(), Mask::default(), out.view_mut());
                let (shape, stack) = (&case.shape, &mut scratch.stack());
                attention_cached(cpu, Par::SERIAL, shape, q, &cache, &segments, &mask, to, stack);
                assert_eq!(out.bits(), expected, "{cpu:?}, {shape:?}, up to {most} at a time");
            }
        }
    }
}

#[test]
fn a_cache_that_cannot_be_is_refused() {
    let cpu = Cpu::detect();
    assert!(KvCache::try_new(cpu, 1 << 30, 1 << 30, 1, 1 << 30).is_none());
    assert!(KvCache::try_new(cpu, usize::MAX, 0, 0, 2).is_none());
    assert!(KvCache::try_new(cpu, 1 << 20, 1 << 10, 1 << 10, 1 << 20).is_none());
    assert_eq!(KvCache::try_new(cpu, 2, 8, 4, 0).map(|cache| cache.bytes()), Some(0));
}

fn small_cache(tokens: usize) -> (Case, KvCache) {
    let case = Case::new(shape(1, 1, 2, 2), &[(1, tokens, None)], KEYS, &mut Random::new(0));
    let cache = KvCache::try_new(Cpu::detect(), 1, 2, 2, 3).unwrap();
    (case, cache)
}

fn attend_small(case: &Case, cache: &KvCache, pages: &[u32], keys: usize, mask: &Mask<'_>) {
    let segments = [CachedSegment::full(0..1, pages, keys)];
    let mut scratch = Scratch::new(Need::of::<f32>(1 << 16));
    let (cpu, mut out) = (Cpu::detect(), case.out());
    let (q, to, stack) = (case.q.view(), out.view_mut(), &mut scratch.stack());
    attention_cached(cpu, Par::SERIAL, &case.shape, q, cache, &segments, mask, to, stack);
}

#[test]
#[should_panic(expected = "page 3 of 3")]
fn pages_that_do_not_exist_are_refused() {
    let (case, cache) = small_cache(100);
    attend_small(&case, &cache, &[1, 3], 100, &Mask::default());
}

#[test]
#[should_panic(expected = "129 tokens in 2 pages")]
fn more_keys_than_pages_hold_are_refused() {
    let (case, cache) = small_cache(100);
    attend_small(&case, &cache, &[1, 2], 129, &Mask::default());
}

#[test]
#[should_panic(expected = "100 tokens in 1 pages")]
fn writing_past_the_pages_is_refused() {
    let (case, mut cache) = small_cache(100);
    cache.write(Par::SERIAL, &[2], 0, case.k.view(), case.v.view());
}

#[test]
#[should_panic(expected = "a mask by row of K")]
fn a_mask_of_rows_over_a_cache_is_refused() {
    let (case, cache) = small_cache(100);
    attend_small(&case, &cache, &[1, 2], 100, &case.mask());
}
