//! Attention against its definition, and its bits against themselves.

mod support;

use headrow_kernels::Mat;
use headrow_kernels::attention::{
    Blocking, PAGE, Source, attention_blocked, attention_blocked_scratch,
};
use headrow_kernels::rows::math;
use headrow_kernels::{
    AttentionExtent, AttentionOutput, AttentionShape, CachedSegment, Cpu, Isa, KvCache, Maps, Mask,
    MatMut, Need, Par, PerHead, Reach, Scratch, Segment, Team, attention, attention_cached,
    attention_cached_scratch, attention_scratch, reference,
};
use support::attention::{
    BIAS, Case, HEADS, KEYS, NO_HOLES, PER_HEAD, RELATIVE, VISIBLE, WIDTHS, all_masks, banded,
    keys, mixed, queries, reach, reaches, shape,
};
use support::{Guarded, Random, every, hash, report, unless_emulated, within};

impl Case {
    fn source(&self) -> Source<'_> {
        Source::rows(self.k.view(), self.v.view(), &self.segments)
    }

    fn out(&self) -> Guarded {
        let cols = self.shape.heads * self.shape.d_v;
        Guarded::filled(self.q.view().rows(), cols, cols + 3, 1, f32::NAN)
    }

    fn run(&self, cpu: Cpu, par: Par<'_>) -> Guarded {
        let mut out = self.out();
        let extent = AttentionExtent::of(&self.segments);
        let mut scratch = Scratch::new(attention_scratch(cpu, par.threads(), &self.shape, extent));
        attention(
            cpu,
            par,
            &self.shape,
            self.q.view(),
            self.k.view(),
            self.v.view(),
            &self.segments,
            &self.mask(),
            out.view_mut(),
            &mut scratch.stack(),
        );
        out
    }

    fn run_blocked(&self, cpu: Cpu, par: Par<'_>, blocking: &Blocking) -> Vec<u32> {
        let mut out = self.out();
        let extent = AttentionExtent::of(&self.segments);
        let threads = par.threads();
        let need = attention_blocked_scratch(cpu, blocking, threads, &self.shape, extent);
        let mut scratch = Scratch::new(need);
        attention_blocked(
            cpu,
            par,
            blocking,
            &self.shape,
            self.q.view(),
            self.source(),
            &self.mask(),
            out.view_mut(),
            &mut scratch.stack(),
        );
        out.bits()
    }

    /// The same from a cache whose pages lie in disorder, with NaN wherever no token is: as `blocking` has it, or
    /// the call itself.
    fn run_cached(&self, cpu: Cpu, par: Par<'_>, blocking: Option<&Blocking>) -> Vec<u32> {
        let stored = Stored::new(self, cpu, par);
        let segments = stored.segments(self);
        let extent = AttentionExtent::of_cached(&segments);
        let (threads, shape) = (par.threads(), &self.shape);
        let mut out = self.out();
        let (q, mask, to) = (self.q.view(), self.mask(), out.view_mut());
        match blocking {
            None => {
                let need = attention_cached_scratch(cpu, threads, shape, extent);
                let mut scratch = Scratch::new(need);
                let stack = &mut scratch.stack();
                attention_cached(cpu, par, shape, q, &stored.cache, &segments, &mask, to, stack);
            }
            Some(blocking) => {
                let need = attention_blocked_scratch(cpu, blocking, threads, shape, extent);
                let mut scratch = Scratch::new(need);
                let (source, stack) =
                    (Source::cache(&stored.cache, &segments), &mut scratch.stack());
                attention_blocked(cpu, par, blocking, shape, q, source, &mask, to, stack);
            }
        }
        out.bits()
    }

    /// Runs, looks at the guards, and compares with the definition.
    #[track_caller]
    fn check(&self, cpu: Cpu, what: &str) {
        let out = self.run(cpu, Par::SERIAL);
        for guarded in [&self.q, &self.k, &self.v, &out] {
            guarded.assert_intact(what);
        }
        let expected = reference::attention::attention(
            &self.shape,
            self.q.view(),
            self.k.view(),
            self.v.view(),
            &self.segments,
            &self.mask(),
        );
        for (at, x) in out.values().into_iter().enumerate() {
            let (y, bound) = (expected.output[at], expected.bound[at]);
            let error = (f64::from(x) - y).abs();
            let close = within(error, bound);
            assert!(close, "{cpu:?} {what}: element {at} is {x}, expected {y} ± {bound}");
        }
    }
}

/// The keys and values of a case in a cache.
struct Stored {
    cache: KvCache,
    /// Of each segment.
    pages: Vec<Vec<u32>>,
}

impl Stored {
    fn new(case: &Case, cpu: Cpu, par: Par<'_>) -> Stored {
        let AttentionShape { kv_heads, d_k, d_v, .. } = case.shape;
        let counts: Vec<usize> =
            case.segments.iter().map(|s| s.keys.len().div_ceil(PAGE)).collect();
        let all: usize = counts.iter().sum::<usize>() + 2;
        let mut order: Vec<u32> = (0..all as u32).collect();
        let mut rng = Random::new(all as u64);
        (1..all).for_each(|i| order.swap(i, rng.below(i + 1)));
        let mut cache = KvCache::try_new(cpu, kv_heads, d_k, d_v, all).unwrap();
        let nan = vec![f32::NAN; all * PAGE * kv_heads * d_k.max(d_v)];
        let mat = |width| Mat::new(&nan[..all * PAGE * width], all * PAGE, width);
        cache.write(par, &order, 0, mat(kv_heads * d_k), mat(kv_heads * d_v));
        let mut pages = Vec::new();
        for (segment, count) in case.segments.iter().zip(counts) {
            let mine = order.split_off(order.len() - count);
            let rows = segment.keys.clone();
            let (k, v) = (case.k.view().rows_range(rows.clone()), case.v.view().rows_range(rows));
            cache.write(par, &mine, 0, k, v);
            pages.push(mine);
        }
        Stored { cache, pages }
    }

    fn segments(&self, case: &Case) -> Vec<CachedSegment<'_>> {
        let each = case.segments.iter().zip(&self.pages);
        each.map(|(segment, pages)| {
            CachedSegment::full(segment.queries.clone(), pages, segment.keys.len())
                .with_reach(segment.reach)
        })
        .collect()
    }
}

#[test]
fn small_shapes_with_every_mask_are_within_the_stated_bound() {
    for cpu in Cpu::all() {
        let mut rng = Random::new(1);
        let mut turn = 0;
        for t in queries() {
            for s in keys() {
                let all = KEYS | VISIBLE | BIAS | RELATIVE;
                for masks in [0, KEYS, VISIBLE, BIAS, RELATIVE, BIAS | RELATIVE, all] {
                    turn += 1;
                    let (heads, kv_heads) = HEADS[turn % 5];
                    let mut shape = shape(heads, kv_heads, WIDTHS[turn % 6], WIDTHS[turn / 6 % 6]);
                    if turn % 3 == 0 {
                        shape = shape.with_softcap(0.7);
                    }
                    let reaches = reaches(t, s);
                    let reach = reaches[turn % reaches.len()];
                    let flags = rng.below(4) * PER_HEAD;
                    let case = Case::with_reach(shape, &[(t, s, reach)], masks | flags, &mut rng);
                    let what = format!("t {t}, s {s}, {shape:?}, {reach:?}, masks {masks}+{flags}");
                    case.check(cpu, &what);
                }
            }
        }
    }
    report("attention, small shapes");
}

#[test]
fn every_pair_of_widths_and_every_head_count_is_within_the_bound() {
    for cpu in Cpu::all() {
        let mut rng = Random::new(2);
        for d_k in WIDTHS.into_iter().chain([0]).step_by(every(3)) {
            for d_v in WIDTHS {
                for (heads, kv_heads) in HEADS {
                    let shape = shape(heads, kv_heads, d_k, d_v);
                    let lengths = [(7, 37, Some(30)), (0, 3, None), (1, 18, None), (5, 0, None)];
                    let masks = rng.below(32);
                    Case::new(shape, &lengths, masks, &mut rng).check(cpu, &format!("{shape:?}"));
                }
            }
        }
    }
    report("attention, all widths");
}

#[test]
fn longer_sequences_are_within_the_bound() {
    for cpu in Cpu::all() {
        let mut rng = Random::new(3);
        for (lengths, masks) in [
            ([(130, 130, None), (3, 700, Some(697))], 0),
            ([(200, 150, Some(-50)), (40, 1100, None)], 0),
            ([(90, 300, Some(210)), (1, 520, None)], KEYS | NO_HOLES),
            ([(50, 333, None), (100, 100, Some(0))], VISIBLE | BIAS | PER_HEAD),
        ] {
            let case = Case::new(shape(2, 1, 24, 40), &lengths, masks, &mut rng);
            case.check(cpu, &format!("{lengths:?} masks {masks}"));
        }
    }
    report("attention, longer sequences");
}

#[test]
fn instruction_sets_threads_and_block_sizes_do_not_show_in_the_bits() {
    let mut rng = Random::new(4);
    let scalar = Cpu::with_isa(Isa::Scalar).unwrap();
    let mut teams: Vec<Team> = (2..=8).step_by(every(2)).map(Team::new).collect();
    for (turn, masks) in all_masks().enumerate() {
        let make = if turn % 2 == 0 { mixed } else { banded };
        let case = make(masks, &mut rng);
        let expected = case.run(scalar, Par::SERIAL).bits();
        for cpu in Cpu::all() {
            assert_eq!(case.run(cpu, Par::SERIAL).bits(), expected, "{cpu:?}");
            for team in &mut teams {
                team.open(|par| {
                    let bits = case.run(cpu, par).bits();
                    assert_eq!(bits, expected, "{cpu:?}, {} threads", par.threads());
                });
            }
            if cpu.isa() == Isa::Scalar && masks % 5 != 0 {
                continue;
            }
            let rows = [1, 2, 5, 7, 24, 84, usize::MAX].into_iter().skip(masks % 2);
            for rows in rows.step_by(2 * every(2)) {
                let blocks = [(1, 1, 0), (3, 10, 5), (64, 33, 1000), (usize::MAX, 7, 5)];
                for (keys, queries, pack_values) in blocks {
                    let copy_queries = keys.saturating_mul(20);
                    let spread = false;
                    let blocking =
                        Blocking { rows, keys, queries, pack_values, copy_queries, spread };
                    let bits = case.run_blocked(cpu, Par::SERIAL, &blocking);
                    assert_eq!(bits, expected, "{cpu:?}, {blocking:?}");
                    if rows == 5 || rows == 7 {
                        let bits = teams[2].open(|par| case.run_blocked(cpu, par, &blocking));
                        assert_eq!(bits, expected, "{cpu:?}, {blocking:?}, 4 threads");
                    }
                }
            }
        }
    }
}

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

/// The maps of some heads, and the bits of the result beside them.
fn with_maps(case: &Case, cpu: Cpu, par: Par<'_>, heads: &[usize]) -> (Guarded, Vec<u32>) {
    let (rows, cols) = (heads.len() * case.q.view().rows(), case.longest);
    let mut maps = Guarded::filled(rows, cols, cols + 2, 1, f32::NAN);
    let mut out = case.out();
    let extent = AttentionExtent::of(&case.segments);
    let mut scratch = Scratch::new(attention_scratch(cpu, par.threads(), &case.shape, extent));
    let (q, k, v) = (case.q.view(), case.k.view(), case.v.view());
    let to = AttentionOutput::from(out.view_mut());
    let to = to.with_maps(Maps { heads, out: maps.view_mut() });
    let (segments, mask, stack) = (&case.segments, case.mask(), &mut scratch.stack());
    attention(cpu, par, &case.shape, q, k, v, segments, &mask, to, stack);
    (maps, out.bits())
}

#[test]
fn maps_are_the_weights_and_cost_no_bit_of_the_result() {
    let mut rng = Random::new(13);
    let mut team = Team::new(3);
    for masks in all_masks() {
        for case in [mixed(masks, &mut rng), banded(masks, &mut rng)] {
            let (t, all) = (case.q.view().rows(), case.shape.heads);
            let expected = reference::attention::attention(
                &case.shape,
                case.q.view(),
                case.k.view(),
                case.v.view(),
                &case.segments,
                &case.mask(),
            );
            let longest = expected.weights.len() / (all * t);
            let heads = [1, all - 1];
            for cpu in Cpu::all() {
                let bits = case.run(cpu, Par::SERIAL).bits();
                let (maps, same) = with_maps(&case, cpu, Par::SERIAL, &heads);
                assert_eq!(same, bits, "{cpu:?}, masks {masks}");
                maps.assert_intact("maps");
                let (again, same) = team.open(|par| with_maps(&case, cpu, par, &heads));
                assert_eq!((again.bits(), same), (maps.bits(), bits), "{cpu:?}, masks {masks}");
                for (row, head) in (0..2 * t).map(|row| (row, heads[row / t])) {
                    let bound = expected.weights_bound[head * t + row % t];
                    let p = &expected.weights[(head * t + row % t) * longest..][..longest];
                    for (j, &x) in maps.view().row(row).iter().enumerate() {
                        let p = p.get(j).copied().unwrap_or(0.0);
                        let error = (f64::from(x) - p).abs();
                        let most =
                            if p == 0.0 { 0.0 } else { bound * p + f64::from(f32::MIN_POSITIVE) };
                        assert!(
                            error <= most,
                            "{cpu:?}, head {head}, row {row}, key {j}: {x}, {p}"
                        );
                        assert!(x.is_sign_positive());
                    }
                }
            }
        }
    }
}

#[test]
fn maps_of_one_query_are_the_same_when_it_is_spread() {
    let mut rng = Random::new(14);
    let mut team = Team::new(4);
    let case = Case::new(shape(2, 1, 16, 8), &[(1, 3000, None)], VISIBLE, &mut rng);
    for cpu in Cpu::all() {
        let (maps, bits) = with_maps(&case, cpu, Par::SERIAL, &[0, 1]);
        let (again, same) = team.open(|par| with_maps(&case, cpu, par, &[0, 1]));
        assert_eq!((again.bits(), same), (maps.bits(), bits), "{cpu:?}");
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

#[test]
#[should_panic(expected = "for distances 0 to 6")]
fn a_relative_bias_that_is_too_narrow_is_refused() {
    let mut case = Case::new(shape(1, 1, 1, 1), &[(4, 7, None)], RELATIVE, &mut Random::new(0));
    case.around = 5;
    case.run(Cpu::detect(), Par::SERIAL);
}

#[test]
#[should_panic(expected = "maps of 8×6 for 2 heads of 4 queries and up to 7 keys")]
fn maps_of_another_shape_are_refused() {
    let mut case = Case::new(shape(3, 1, 1, 1), &[(4, 7, None)], 0, &mut Random::new(0));
    case.longest = 6;
    with_maps(&case, Cpu::detect(), Par::SERIAL, &[0, 2]);
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
                let lone = Case { segments: case.segments[..1].to_vec(), ..copy(&case) };
                let blocking = Blocking::new(cpu, 4, &lone.shape, &lone.source());
                assert_eq!(blocking.spread, kv_heads < 4);
            }
        }
    }
}

fn copy(case: &Case) -> Case {
    let clone = |g: &Guarded| {
        let m = g.view();
        Guarded::from_fn(m.rows(), m.cols(), m.cols(), 0, |i, j| m.row(i)[j])
    };
    Case {
        shape: case.shape,
        segments: case.segments.clone(),
        q: clone(&case.q),
        k: clone(&case.k),
        v: clone(&case.v),
        keys: case.keys.clone(),
        visible: case.visible.clone(),
        bias: case.bias.clone(),
        relative: case.relative.clone(),
        around: case.around,
        longest: case.longest,
    }
}

#[test]
fn a_segment_alone_has_the_bits_it_has_in_a_batch() {
    let mut rng = Random::new(6);
    for masks in all_masks() {
        let batch = mixed(masks, &mut rng);
        for cpu in Cpu::all() {
            let all = batch.run(cpu, Par::SERIAL);
            for segment in &batch.segments {
                // The same views, one segment: the other rows of the result stay as they are.
                let alone = Case { segments: vec![segment.clone()], ..copy(&batch) };
                let out = alone.run(cpu, Par::SERIAL);
                for row in 0..out.view().rows() {
                    let bits = |m: &Guarded| -> Vec<u32> {
                        m.view().row(row).iter().map(|x| x.to_bits()).collect()
                    };
                    if segment.queries.contains(&row) {
                        assert_eq!(bits(&out), bits(&all), "row {row}");
                    } else {
                        assert!(out.view().row(row).iter().all(|x| x.is_nan()), "row {row}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_prefill_has_the_bits_of_its_chunks_and_of_token_by_token() {
    let mut rng = Random::new(7);
    for (n, past) in [(40, 0), (1, 0), (75, 22), (131, 1)].into_iter().step_by(every(2)) {
        for (heads, kv_heads) in [(2, 2), (4, 1)] {
            let s = n + past;
            let whole = Case::new(
                shape(heads, kv_heads, 20, 16),
                &[(n, s, Some(past as isize))],
                rng.below(2) * KEYS,
                &mut rng,
            );
            for cpu in Cpu::all() {
                let expected = whole.run(cpu, Par::SERIAL).bits();
                for chunk in [1, 7, 16, 33] {
                    // Each chunk sees the cache as long as it is by then.
                    let mut bits = vec![];
                    for first in (0..n).step_by(chunk) {
                        let queries = first..n.min(first + chunk);
                        let segment = Segment::causal(queries.clone(), 0..past + queries.end);
                        let part = Case { segments: vec![segment], ..copy(&whole) };
                        let out = part.run(cpu, Par::SERIAL);
                        for row in queries {
                            bits.extend(out.view().row(row).iter().map(|x| x.to_bits()));
                        }
                    }
                    assert_eq!(bits, expected, "{cpu:?}, {n} after {past} in chunks of {chunk}");
                }
            }
        }
    }
}

#[test]
fn a_nan_reaches_what_depends_on_it_and_nothing_else() {
    let mut rng = Random::new(8);
    let poison = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let lengths = [(7, 19, Some(4)), (1, 3, None), (3, 9, None)];
    let kinds = [0, KEYS, VISIBLE | PER_HEAD, BIAS | NO_HOLES, KEYS | VISIBLE | BIAS];
    for masks in kinds.into_iter().step_by(every(2)) {
        let mut case = Case::new(shape(4, 2, 3, 5), &lengths, masks, &mut rng);
        let AttentionShape { heads, kv_heads, d_k, d_v, .. } = case.shape;
        let (t, s) = (case.q.view().rows(), case.k.view().rows());
        for cpu in Cpu::all() {
            let clean = case.run(cpu, Par::SERIAL).values();
            // depends(row, head, column) with a bad element put in place by `set`.
            let verify = |case: &Case,
                          bad: f32,
                          depends: &dyn Fn(usize, usize, usize) -> bool,
                          what: &str| {
                let out = case.run(cpu, Par::SERIAL).values();
                for row in 0..t {
                    for head in 0..heads {
                        for column in 0..d_v {
                            let at = (row * heads + head) * d_v + column;
                            if !depends(row, head, column) {
                                assert_eq!(out[at].to_bits(), clean[at].to_bits(), "{what}");
                            } else if bad.is_nan() {
                                assert!(out[at].is_nan(), "{what}: {}", out[at]);
                            }
                        }
                    }
                }
            };
            for bad in poison.into_iter().step_by(every(3)) {
                for row in 0..t {
                    for p in 0..heads * d_k {
                        let old = case.q.view().row(row)[p];
                        case.q.set(row, p, bad);
                        let any = |head| (0..s).any(|j| case.sees(head, row, j));
                        verify(
                            &case,
                            bad,
                            &|r, head, _| r == row && head == p / d_k && any(head),
                            &format!("{cpu:?} {bad} in Q({row}, {p})"),
                        );
                        case.q.set(row, p, old);
                    }
                }
                for j in 0..s {
                    for p in 0..kv_heads * d_k {
                        let old = case.k.view().row(j)[p];
                        case.k.set(j, p, bad);
                        verify(
                            &case,
                            bad,
                            &|r, head, _| head / 2 == p / d_k && case.sees(head, r, j),
                            &format!("{cpu:?} {bad} in K({j}, {p})"),
                        );
                        case.k.set(j, p, old);
                    }
                    for c in 0..kv_heads * d_v {
                        let old = case.v.view().row(j)[c];
                        case.v.set(j, c, bad);
                        verify(
                            &case,
                            bad,
                            &|r, head, column| {
                                head / 2 == c / d_v && column == c % d_v && case.sees(head, r, j)
                            },
                            &format!("{cpu:?} {bad} in V({j}, {c})"),
                        );
                        case.v.set(j, c, old);
                    }
                }
            }
        }
    }
}

/// Long enough for whole tiles, panels and blocks on either side of the diagonal.
#[test]
fn whatever_hidden_keys_hold_stays_hidden() {
    let mut rng = Random::new(9);
    for masks in all_masks() {
        let reaches = [None, Some(0), Some(-20), Some(37)].map(reach);
        let bands = [Reach::causal(61, 90).with_window(11), Reach::banded(61, 90, 5, 30)];
        for reach in reaches.into_iter().chain(bands) {
            let mut case =
                Case::with_reach(shape(2, 1, 8, 20), &[(61, 90, reach)], masks, &mut rng);
            for cpu in Cpu::all() {
                let clean = case.run(cpu, Par::SERIAL).values();
                let j = rng.below(90);
                let (old_k, old_v) = (case.k.view().row(j)[2], case.v.view().row(j)[3]);
                case.k.set(j, 2, f32::NAN);
                case.v.set(j, 3, f32::INFINITY);
                let out = case.run(cpu, Par::SERIAL).values();
                if masks & KEYS == 0 {
                    let bits: Vec<u32> = out.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(case.run_cached(cpu, Par::SERIAL, None), bits, "{cpu:?}");
                }
                for (at, (x, clean)) in out.iter().zip(&clean).enumerate() {
                    let (row, head) = (at / 40, at / 20 % 2);
                    if case.sees(head, row, j) {
                        assert!(x.is_nan(), "{cpu:?}, row {row}, key {j}");
                    } else {
                        assert_eq!(x.to_bits(), clean.to_bits(), "{cpu:?}, row {row}, key {j}");
                    }
                }
                case.k.set(j, 2, old_k);
                case.v.set(j, 3, old_v);
            }
        }
    }
}

/// One head of width 1, one query of value 1 and factor 1, so that scores are the keys.
fn by_scores(cpu: Cpu, scores: &[f32], values: &[f32], mask: &Mask<'_>) -> f32 {
    let shape = AttentionShape::new(1, 1, 1, 1);
    let s = scores.len();
    let segments = [Segment::full(0..1, 0..s)];
    let mut scratch =
        Scratch::new(attention_scratch(cpu, 1, &shape, AttentionExtent::of(&segments)));
    let mut out = [7.0];
    attention(
        cpu,
        Par::SERIAL,
        &shape,
        Mat::new(&[1.0], 1, 1),
        Mat::new(scores, s, 1),
        Mat::new(values, s, 1),
        &segments,
        mask,
        MatMut::new(&mut out, 1, 1),
        &mut scratch.stack(),
    );
    out[0]
}

#[test]
fn edge_values_follow_the_policy() {
    const INF: f32 = f32::INFINITY;
    for cpu in Cpu::all() {
        let plain =
            |scores: &[f32], values: &[f32]| by_scores(cpu, scores, values, &Mask::default());
        assert_eq!(plain(&[], &[]).to_bits(), 0);
        assert!(plain(&[INF, 0.0], &[1.0, 1.0]).is_nan());
        assert!(plain(&[f32::NAN, 0.0], &[1.0, 1.0]).is_nan());
        assert!(plain(&[-INF, -INF], &[1.0, 1.0]).is_nan());
        assert_eq!(plain(&[-INF, 0.0], &[1.0, 3.0]), 3.0);
        // A visible key of weight 0 counts: 0·∞.
        assert!(plain(&[-INF, 0.0], &[INF, 3.0]).is_nan());
        assert_eq!(plain(&[3e38, 3e38, -3e38], &[1.0, 2.0, 100.0]), 1.5);
        // Nothing visible: +0, whatever lies there.
        let (none, hidden) = ([false; 3], [-INF; 3]);
        let mask = Mask { keys: Some(&none), ..Mask::default() };
        assert_eq!(by_scores(cpu, &[f32::NAN; 3], &[INF; 3], &mask).to_bits(), 0);
        let added =
            |bias| Mask { bias: Some(PerHead::Shared(Mat::from_row(bias))), ..Mask::default() };
        assert_eq!(by_scores(cpu, &[INF; 3], &[f32::NAN; 3], &added(&hidden)).to_bits(), 0);
        // Only a true −∞ hides: with the lowest number on all keys the weights are equal.
        let low = [f32::MIN; 4];
        assert_eq!(by_scores(cpu, &[0.5; 4], &[1.0, 2.0, 3.0, 6.0], &added(&low)), 3.0);
        // A visible score of −∞ among hidden keys is still arithmetic.
        let one = [true, false];
        let mask = Mask { keys: Some(&one), ..Mask::default() };
        assert!(by_scores(cpu, &[-INF, 0.0], &[1.0, 1.0], &mask).is_nan());
    }
}

#[test]
fn scratch_for_the_longest_serves_every_shorter_call() {
    let mut rng = Random::new(10);
    for cpu in Cpu::all() {
        for threads in [1, 3] {
            let shape = shape(4, 2, 8, 24);
            let keys = unless_emulated(3000, 700);
            let most = AttentionExtent { queries: 150, keys };
            let need = attention_scratch(cpu, threads, &shape, most);
            for _ in 0..300 {
                let extent = AttentionExtent { queries: rng.below(151), keys: rng.below(keys + 1) };
                assert!(attention_scratch(cpu, threads, &shape, extent) <= need, "{extent:?}");
            }
            let mut team = Team::new(threads);
            let mut scratch = Scratch::new(need);
            for (t, s) in [(150, 150), (1, keys), (150, 700), (20, keys / 2), (1, 1)] {
                let case = Case::new(shape, &[(t, s, None)], KEYS, &mut rng);
                let mut out = case.out();
                team.open(|par| {
                    attention(
                        cpu,
                        par,
                        &shape,
                        case.q.view(),
                        case.k.view(),
                        case.v.view(),
                        &case.segments,
                        &case.mask(),
                        out.view_mut(),
                        &mut scratch.stack(),
                    );
                });
                assert!(out.values().iter().all(|x| x.is_finite()));
            }
        }
    }
}

#[test]
#[should_panic(expected = "2 heads of keys do not divide 3 heads")]
fn groups_of_unequal_size_are_refused() {
    let case = Case::new(shape(3, 2, 1, 1), &[(1, 1, None)], 0, &mut Random::new(0));
    case.run(Cpu::detect(), Par::SERIAL);
}

#[test]
#[should_panic(expected = "does not fit AttentionShape")]
fn widths_that_overflow_are_refused() {
    let x = [1.0; 6];
    let mut out = [0.0; 2];
    // Twice this many heads wrap around to 2 columns.
    let shape = shape((usize::MAX >> 1) + 2, 1, 2, 2);
    attention(
        Cpu::detect(),
        Par::SERIAL,
        &shape,
        Mat::new(&x, 1, 2),
        Mat::new(&x, 3, 2),
        Mat::new(&x, 3, 2),
        &[Segment::full(0..1, 0..3)],
        &Mask::default(),
        MatMut::new(&mut out, 1, 2),
        &mut Scratch::new(Need::of::<f32>(1 << 20)).stack(),
    );
}

#[test]
#[should_panic(expected = "queries 1..3 after row 2")]
fn overlapping_queries_are_refused() {
    let mut case = Case::new(shape(1, 1, 1, 1), &[(3, 1, None)], 0, &mut Random::new(0));
    case.segments = vec![Segment::full(0..2, 0..1), Segment::full(1..3, 0..1)];
    case.run(Cpu::detect(), Par::SERIAL);
}

/// The bits by their definition: scores as one chain each, scaled, capped and biased with a rounding each, the
/// sum in 32 lanes, values as one chain, one division.
fn by_definition(case: &Case) -> Vec<u32> {
    let scalar = Cpu::with_isa(Isa::Scalar).unwrap();
    let AttentionShape { heads, kv_heads, d_k, d_v, scale, softcap, .. } = case.shape;
    let capped = |x: f32| {
        let Some(cap) = softcap else { return x };
        let mut y = [x / cap];
        math::tanh(scalar, Par::SERIAL, MatMut::new(&mut y, 1, 1));
        y[0] * cap
    };
    let mut out = case.out();
    for segment in &case.segments {
        for row in segment.queries.clone() {
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let query = &case.q.view().row(row)[head * d_k..][..d_k];
                let visible: Vec<usize> =
                    segment.keys.clone().filter(|&j| case.sees(head, row, j)).collect();
                let mut weights: Vec<f32> = visible
                    .iter()
                    .map(|&j| {
                        let key = &case.k.view().row(j)[kv_head * d_k..][..d_k];
                        let chain =
                            query.iter().zip(key).fold(0.0, |c: f32, (q, k)| q.mul_add(*k, c));
                        let bias = case.mask().bias.map(|bias| match bias {
                            PerHead::Shared(bias) => bias.row(row)[j - segment.keys.start],
                            PerHead::Each(bias) => {
                                bias.row(head * case.q.view().rows() + row)[j - segment.keys.start]
                            }
                        });
                        let j = (j - segment.keys.start) as isize;
                        let i = (row - segment.queries.start) as isize;
                        let relative = case.relative(head, j - i - segment.reach.offset);
                        let added = match (relative, bias) {
                            (Some(relative), Some(bias)) => relative + bias,
                            (relative, bias) => relative.or(bias).unwrap_or(-0.0),
                        };
                        capped(chain * scale) + added
                    })
                    .collect();
                let max = weights.iter().fold(f32::NEG_INFINITY, |max, &s| max.max(s));
                weights.iter_mut().for_each(|s| *s -= max);
                let count = weights.len();
                math::exp(scalar, Par::SERIAL, MatMut::new(&mut weights, 1, count));
                let mut lanes = [0.0f32; 32];
                for (&j, p) in visible.iter().zip(&weights) {
                    lanes[(j - segment.keys.start) % 32] += p;
                }
                for half in [16, 8, 4, 2, 1] {
                    (0..half).for_each(|i| lanes[i] += lanes[i + half]);
                }
                for c in 0..d_v {
                    let values = visible.iter().map(|&j| case.v.view().row(j)[kv_head * d_v + c]);
                    let chain =
                        weights.iter().zip(values).fold(0.0, |o: f32, (p, v)| p.mul_add(v, o));
                    let result = if count == 0 { 0.0 } else { chain / lanes[0] };
                    out.set(row, head * d_v + c, result);
                }
            }
        }
    }
    out.bits()
}

#[test]
fn the_bits_are_those_of_the_definition() {
    let mut rng = Random::new(11);
    for masks in all_masks() {
        for case in [mixed(masks, &mut rng), banded(masks, &mut rng)] {
            let expected = by_definition(&case);
            for cpu in Cpu::all() {
                assert_eq!(case.run(cpu, Par::SERIAL).bits(), expected, "{cpu:?}, masks {masks}");
            }
        }
    }
}

/// Every instruction set gives these, whichever machine ran it: those that this one lacks run elsewhere
/// or in an emulator.
#[test]
fn recorded_hashes_hold_on_every_instruction_set() {
    const RECORDED: [(usize, u64); 4] = [
        (0, 0x5150_e9d5_cbb7_6c9b),
        (KEYS, 0xbae2_27d3_ee10_a1ae),
        (VISIBLE | BIAS | NO_HOLES, 0x5a4e_0484_cdc6_d12e),
        (KEYS | VISIBLE | BIAS | PER_HEAD, 0x2988_f719_0864_8b50),
    ];
    const RECORDED_BANDS: [(usize, u64); 3] = [
        (0, 0x3dcd_4314_f764_a377),
        (RELATIVE, 0x64df_7361_d97f_da18),
        (BIAS | RELATIVE | VISIBLE, 0xb7bb_1e84_bed6_69e7),
    ];
    type Make = fn(usize, &mut Random) -> Case;
    let mut wrong = Vec::new();
    for cpu in Cpu::all() {
        for (name, make, records) in
            [("mixed", mixed as Make, &RECORDED[..]), ("banded", banded, &RECORDED_BANDS)]
        {
            for &(masks, recorded) in records {
                let case = make(masks, &mut Random::new(100 + masks as u64));
                let found = hash(&case.run(cpu, Par::SERIAL).values());
                if found != recorded {
                    wrong.push(format!("{}, {name}, masks {masks}: {found:#018x}", cpu.isa()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "other bits than recorded:\n{}", wrong.join("\n"));
}
