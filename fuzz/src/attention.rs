use crate::values::{Matrix, any, assert_close, cpu, size};
use crate::{scratch, with_par};
use arbitrary::{Result, Unstructured};
use headrow_kernels::attention::PAGE;
use headrow_kernels::reference;
use headrow_kernels::{
    AttentionExtent, AttentionOutput, AttentionShape, CachedSegment, Cpu, KvCache, Maps, Mask, Mat,
    Par, PerHead, Reach, Relative, Segment, attention, attention_cached, attention_cached_scratch,
    attention_scratch,
};

/// One call: operands, and what goes with them.
struct Case<'a> {
    cpu: Cpu,
    shape: AttentionShape,
    segments: Vec<Segment>,
    mask: Mask<'a>,
    q: Matrix,
    v: Matrix,
}

pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    let cpu = cpu(u)?;
    let kv_heads = u.int_in_range(1..=3)?;
    let heads = kv_heads * u.int_in_range(1..=3)?;
    let (d_k, d_v) = (size(u, 20)?.max(1), size(u, 20)?.max(1));
    let mut shape = AttentionShape::new(heads, kv_heads, d_k, d_v);
    if u.arbitrary()? {
        shape = shape.with_softcap(f32::from(u.int_in_range(1..=200u8)?) / 8.0);
    }

    // Sequences one after the other, some of them empty.
    let (mut t, mut s, mut segments) = (0, 0, Vec::new());
    for _ in 0..u.int_in_range(1..=3)? {
        let (queries, keys) = (size(u, 40)?, size(u, 140)?);
        segments.push(Segment::full(t..t + queries, s..s + keys).with_reach(reach(u)?));
        t += queries;
        s += keys;
    }
    let longest = segments.iter().map(|segment| segment.keys.len()).max().unwrap_or(0);
    let q = Matrix::draw_plain(u, t, heads * d_k)?;
    let mut k = Matrix::draw_plain(u, s, kv_heads * d_k)?;
    let v = Matrix::draw_plain(u, s, kv_heads * d_v)?;

    let visible_keys: Vec<bool> = (0..s).map(|_| u.ratio(3, 4)).collect::<Result<_>>()?;
    let per_head: bool = u.arbitrary()?;
    let rows = if per_head { heads * t } else { t };
    let bits: Vec<bool> = (0..rows * longest).map(|_| u.ratio(2, 3)).collect::<Result<_>>()?;
    let bias = with_infinities(u, rows, longest)?;
    // Positions lie within 80 of the queries' own numbers.
    let zero = t + longest + 80;
    let table = with_infinities(u, heads, 2 * zero + 1)?;
    let heads_of = |mat| if per_head { PerHead::Each(mat) } else { PerHead::Shared(mat) };
    let bits = Mat::new(&bits, rows, longest);
    let bits = if per_head { PerHead::Each(bits) } else { PerHead::Shared(bits) };
    let (with_keys, with_bits, with_bias) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    let mask = Mask {
        keys: bool::then_some(with_keys, &visible_keys),
        visible: bool::then_some(with_bits, bits),
        bias: bool::then_some(with_bias, heads_of(bias.view())),
        relative: bool::then_some(u.arbitrary()?, Relative { table: table.view(), zero }),
    };
    let mut case = Case { cpu, shape, segments, mask, q, v };

    let got = case.run(1, &k, f32::NAN)?;
    let (q, v) = (case.q.view(), case.v.view());
    let want = reference::attention::attention(&shape, q, k.view(), v, &case.segments, &mask);
    for i in 0..t {
        for (j, &x) in got.row(i).iter().enumerate() {
            let at = i * heads * d_v + j;
            assert_close(x, want.output[at], want.bound[at], format_args!("row {i}, column {j}"));
        }
    }
    case.maps(&k, &want, longest)?;

    // Keys that nobody may see leave no trace, whatever they hold; threads and pages leave none either.
    for (j, &visible) in visible_keys.iter().enumerate() {
        if with_keys && !visible {
            for x in k.view_mut().row_mut(j).iter_mut().chain(case.v.view_mut().row_mut(j)) {
                *x = any(u)?;
            }
        }
    }
    let threads = u.int_in_range(1..=3)?;
    let bits = case.run(threads, &k, 0.0)?.bits();
    assert_eq!(bits, got.bits(), "hidden keys or {threads} threads");
    if !with_keys {
        let bits = case.run_cached(u, threads, &k)?.bits();
        assert_eq!(bits, got.bits(), "a cache with {threads} threads");
    }
    Ok(())
}

fn reach(u: &mut Unstructured<'_>) -> Result<Reach> {
    let bound = |u: &mut Unstructured<'_>| -> Result<Option<usize>> {
        Ok(if u.arbitrary()? { Some(u.int_in_range(0..=90)?) } else { None })
    };
    Ok(Reach { offset: u.int_in_range(-80..=80)?, behind: bound(u)?, ahead: bound(u)? })
}

/// Plain numbers, here and there −∞.
fn with_infinities(u: &mut Unstructured<'_>, rows: usize, cols: usize) -> Result<Matrix> {
    let mut matrix = Matrix::draw_plain(u, rows, cols)?;
    for i in 0..rows {
        for x in matrix.view_mut().row_mut(i) {
            if u.ratio(1, 8)? {
                *x = f32::NEG_INFINITY;
            }
        }
    }
    Ok(matrix)
}

impl Case<'_> {
    fn out(&self, fill: f32) -> Result<Matrix> {
        let cols = self.shape.heads * self.shape.d_v;
        Matrix::filled(&mut Unstructured::new(&[]), self.q.view().rows(), cols, fill)
    }

    fn run(&self, threads: usize, k: &Matrix, fill: f32) -> Result<Matrix> {
        let mut out = self.out(fill)?;
        let Case { cpu, shape, segments, mask, .. } = self;
        let need = attention_scratch(*cpu, threads, shape, AttentionExtent::of(segments));
        with_par(threads, |par| {
            let (q, k, v) = (self.q.view(), k.view(), self.v.view());
            let (out, mut memory) = (out.view_mut(), scratch(need));
            attention(*cpu, par, shape, q, k, v, segments, mask, out, &mut memory.stack());
        });
        Ok(out)
    }

    /// The maps of all heads against the definition.
    fn maps(
        &self,
        k: &Matrix,
        want: &reference::attention::Attention,
        longest: usize,
    ) -> Result<()> {
        let Case { cpu, shape, segments, mask, .. } = self;
        let heads: Vec<usize> = (0..shape.heads).collect();
        let rows = shape.heads * self.q.view().rows();
        let (mut out, mut maps) =
            (self.out(0.0)?, Matrix::filled(&mut Unstructured::new(&[]), rows, longest, f32::NAN)?);
        let to = AttentionOutput::from(out.view_mut())
            .with_maps(Maps { heads: &heads, out: maps.view_mut() });
        let mut memory = scratch(attention_scratch(*cpu, 1, shape, AttentionExtent::of(segments)));
        let (q, k, v, stack) = (self.q.view(), k.view(), self.v.view(), &mut memory.stack());
        attention(*cpu, Par::SERIAL, shape, q, k, v, segments, mask, to, stack);
        for row in 0..rows {
            for (j, &x) in maps.row(row).iter().enumerate() {
                let p = want.weights[row * longest + j];
                let bound = want.weights_bound[row] * p + f64::from(f32::MIN_POSITIVE);
                assert_close(x, p, bound, format_args!("map {row}, key {j}"));
                assert!(
                    p != 0.0 || x.to_bits() == 0 || x.is_nan(),
                    "map {row}, hidden key {j}: {x}"
                );
            }
        }
        Ok(())
    }

    /// The same over a cache, written in pieces to pages in some order.
    fn run_cached(&self, u: &mut Unstructured<'_>, threads: usize, k: &Matrix) -> Result<Matrix> {
        let Case { cpu, shape, segments, mask, .. } = self;
        let &AttentionShape { kv_heads, d_k, d_v, .. } = shape;
        let total: usize = segments.iter().map(|s| s.keys.len().div_ceil(PAGE)).sum();
        let mut free: Vec<u32> = (0..total as u32).collect();
        let mut cache = KvCache::try_new(*cpu, kv_heads, d_k, d_v, total).expect("a few pages");
        let mut lists = Vec::new();
        for segment in segments {
            let mut pages = Vec::new();
            for _ in 0..segment.keys.len().div_ceil(PAGE) {
                pages.push(free.swap_remove(u.choose_index(free.len())?));
            }
            let mut start = segment.keys.start;
            while start < segment.keys.end {
                let rows = start..segment.keys.end.min(start + 1 + size(u, 80)?);
                let at = start - segment.keys.start;
                let (k, v) =
                    (k.view().rows_range(rows.clone()), self.v.view().rows_range(rows.clone()));
                cache.write(Par::SERIAL, &pages, at, k, v);
                start = rows.end;
            }
            lists.push(pages);
        }
        let cached: Vec<CachedSegment<'_>> = segments
            .iter()
            .zip(&lists)
            .map(|(segment, pages)| {
                CachedSegment::full(segment.queries.clone(), pages, segment.keys.len())
                    .with_reach(segment.reach)
            })
            .collect();
        let mut out = self.out(f32::NAN)?;
        let extent = AttentionExtent::of_cached(&cached);
        let need = attention_cached_scratch(*cpu, threads, shape, extent);
        with_par(threads, |par| {
            let (q, out, mut memory) = (self.q.view(), out.view_mut(), scratch(need));
            attention_cached(*cpu, par, shape, q, &cache, &cached, mask, out, &mut memory.stack());
        });
        Ok(out)
    }
}
