//! Runs of a case: over rows, in given blocks, and over a cache.

use super::Case;
use crate::support::{Guarded, Random, within};
use headrow_kernels::attention::{
    Blocking, PAGE, Source, attention_blocked, attention_blocked_scratch,
};
use headrow_kernels::{
    AttentionExtent, AttentionShape, CachedSegment, Cpu, KvCache, Mat, Par, Scratch, attention,
    attention_cached, attention_cached_scratch, attention_scratch, reference,
};

impl Case {
    pub fn source(&self) -> Source<'_> {
        Source::rows(self.k.view(), self.v.view(), &self.segments)
    }

    pub fn out(&self) -> Guarded {
        let cols = self.shape.heads * self.shape.d_v;
        Guarded::filled(self.q.view().rows(), cols, cols + 3, 1, f32::NAN)
    }

    pub fn run(&self, cpu: Cpu, par: Par<'_>) -> Guarded {
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

    pub fn run_blocked(&self, cpu: Cpu, par: Par<'_>, blocking: &Blocking) -> Vec<u32> {
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
    pub fn run_cached(&self, cpu: Cpu, par: Par<'_>, blocking: Option<&Blocking>) -> Vec<u32> {
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
    pub fn check(&self, cpu: Cpu, what: &str) {
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

    /// The same operands in matrices without gaps.
    pub fn copy(&self) -> Case {
        let clone = |g: &Guarded| {
            let m = g.view();
            Guarded::from_fn(m.rows(), m.cols(), m.cols(), 0, |i, j| m.row(i)[j])
        };
        Case {
            shape: self.shape,
            segments: self.segments.clone(),
            q: clone(&self.q),
            k: clone(&self.k),
            v: clone(&self.v),
            keys: self.keys.clone(),
            visible: self.visible.clone(),
            bias: self.bias.clone(),
            relative: self.relative.clone(),
            around: self.around,
            longest: self.longest,
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
