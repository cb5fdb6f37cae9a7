mod judge;

use crate::values::{Matrix, any, cpu, size};
use crate::{scratch, with_par};
use arbitrary::{Result, Unstructured};
use headrow_kernels::attention::PAGE;
use headrow_kernels::reference;
use headrow_kernels::{
    AttentionExtent, AttentionOutput, AttentionShape, CachedSegment, Cpu, KvCache, Maps, Mask, Mat,
    Par, PerHead, Reach, Relative, Segment, attention, attention_cached, attention_cached_scratch,
    attention_scratch,
};
use judge::Row;

/// One call: operands, and what goes with them.
struct Case<'a> {
    cpu: Cpu,
    shape: AttentionShape,
    segments: Vec<Segment>,
    /// Keys of the longest segment.
    longest: usize,
    mask: Mask<'a>,
    q: Matrix,
    k: Matrix,
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
    let [with_keys, with_bits, with_bias, with_table, per_head] = u.arbitrary()?;
    let threads = u.int_in_range(1..=3)?;
    // The few choices come first: behind so many numbers an input often has nothing left.
    let spoils: [Spoils; 5] =
        [Spoils::draw(u)?, Spoils::draw(u)?, Spoils::draw(u)?, Spoils::draw(u)?, Spoils::draw(u)?];
    let garbage: [f32; 3] = [any(u)?, any(u)?, any(u)?];
    let mut matrix = |spoils: &Spoils, rows, cols| -> Result<Matrix> {
        let mut matrix = Matrix::draw_plain(u, rows, cols)?;
        spoils.apply(&mut matrix);
        Ok(matrix)
    };
    let q = matrix(&spoils[0], t, heads * d_k)?;
    let k = matrix(&spoils[1], s, kv_heads * d_k)?;
    let v = matrix(&spoils[2], s, kv_heads * d_v)?;

    let visible_keys: Vec<bool> = (0..s).map(|_| u.ratio(3, 4)).collect::<Result<_>>()?;
    let rows = if per_head { heads * t } else { t };
    let bits: Vec<bool> = (0..rows * longest).map(|_| u.ratio(2, 3)).collect::<Result<_>>()?;
    let mut bias = with_infinities(u, rows, longest)?;
    // Positions lie within 80 of the queries' own numbers.
    let zero = t + longest + 80;
    let mut table = with_infinities(u, heads, 2 * zero + 1)?;
    spoils[3].apply(&mut bias);
    spoils[4].apply(&mut table);
    let heads_of = |mat| if per_head { PerHead::Each(mat) } else { PerHead::Shared(mat) };
    let bits = Mat::new(&bits, rows, longest);
    let bits = if per_head { PerHead::Each(bits) } else { PerHead::Shared(bits) };
    let mask = Mask {
        keys: bool::then_some(with_keys, &visible_keys),
        visible: bool::then_some(with_bits, bits),
        bias: bool::then_some(with_bias, heads_of(bias.view())),
        relative: bool::then_some(with_table, Relative { table: table.view(), zero }),
    };
    let mut case = Case { cpu, shape, segments, longest, mask, q, k, v };

    let got = case.run(1, f32::NAN)?;
    case.judge(&got)?;

    // Keys that nobody may see leave no trace, whatever they hold; threads and pages leave none either.
    case.fill_hidden(&garbage);
    let bits = case.run(threads, 0.0)?.bits();
    assert_eq!(bits, got.bits(), "hidden keys or {threads} threads");
    if !with_keys {
        let bits = case.run_cached(u, threads)?.bits();
        assert_eq!(bits, got.bits(), "a cache with {threads} threads");
    }
    Ok(())
}

/// Where a matrix holds awkward numbers: in single places, and in whole rows.
struct Spoils(Vec<(usize, Option<usize>, [f32; 3])>);

impl Spoils {
    /// Often none, so that the bounds of ordinary numbers stay in sight.
    fn draw(u: &mut Unstructured<'_>) -> Result<Spoils> {
        let count = if u.ratio(1, 2)? { u.int_in_range(0..=3)? } else { 0 };
        let one = |u: &mut Unstructured<'_>| -> Result<_> {
            let (row, whole) = (usize::from(u.arbitrary::<u8>()?), u.ratio(1, 3)?);
            let column = if whole { None } else { Some(usize::from(u.arbitrary::<u8>()?)) };
            Ok((row, column, [any(u)?, any(u)?, any(u)?]))
        };
        Ok(Spoils((0..count).map(|_| one(u)).collect::<Result<_>>()?))
    }

    fn apply(&self, matrix: &mut Matrix) {
        let (rows, cols) = (matrix.view().rows(), matrix.view().cols());
        if rows == 0 || cols == 0 {
            return;
        }
        for &(row, column, values) in &self.0 {
            let row = matrix.row_mut(row % rows);
            match column {
                Some(column) => row[column % cols] = values[0],
                None => row.iter_mut().zip(values.iter().cycle()).for_each(|(x, &to)| *x = to),
            }
        }
    }
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

    fn run(&self, threads: usize, fill: f32) -> Result<Matrix> {
        let mut out = self.out(fill)?;
        let Case { cpu, shape, segments, mask, .. } = self;
        let need = attention_scratch(*cpu, threads, shape, AttentionExtent::of(segments));
        with_par(threads, |par| {
            let (q, k, v) = (self.q.view(), self.k.view(), self.v.view());
            let (out, mut memory) = (out.view_mut(), scratch(need));
            attention(*cpu, par, shape, q, k, v, segments, mask, out, &mut memory.stack());
        });
        Ok(out)
    }

    /// The maps of all heads.
    fn run_maps(&self) -> Result<Matrix> {
        let Case { cpu, shape, segments, mask, longest, .. } = self;
        let heads: Vec<usize> = (0..shape.heads).collect();
        let rows = shape.heads * self.q.view().rows();
        let (mut out, mut maps) = (
            self.out(0.0)?,
            Matrix::filled(&mut Unstructured::new(&[]), rows, *longest, f32::NAN)?,
        );
        let to = AttentionOutput::from(out.view_mut())
            .with_maps(Maps { heads: &heads, out: maps.view_mut() });
        let mut memory = scratch(attention_scratch(*cpu, 1, shape, AttentionExtent::of(segments)));
        let (q, k, v) = (self.q.view(), self.k.view(), self.v.view());
        let stack = &mut memory.stack();
        attention(*cpu, Par::SERIAL, shape, q, k, v, segments, mask, to, stack);
        Ok(maps)
    }

    /// The result and the maps against the definition.
    fn judge(&self, got: &Matrix) -> Result<()> {
        let Case { shape, segments, mask, .. } = self;
        let (q, k, v) = (self.q.view(), self.k.view(), self.v.view());
        let want = reference::attention::attention(shape, q, k, v, segments, mask);
        let maps = self.run_maps()?;
        for segment in segments {
            for (i, row) in segment.queries.clone().enumerate() {
                for head in 0..shape.heads {
                    let judge = Row::new(self, &want, segment, (i, head));
                    for column in 0..shape.d_v {
                        let at = head * shape.d_v + column;
                        let want = want.output[row * shape.heads * shape.d_v + at];
                        judge.check(column, got.row(row)[at], want);
                    }
                    judge.check_map(segment, maps.row(self.map(head, row)));
                }
            }
        }
        Ok(())
    }

    /// The row of the maps, and of masks of each head.
    fn map(&self, head: usize, row: usize) -> usize {
        head * self.q.view().rows() + row
    }

    fn entry<T: Copy>(&self, of: PerHead<'_, T>, head: usize, row: usize, j: usize) -> T {
        match of {
            PerHead::Shared(mat) => mat.row(row)[j],
            PerHead::Each(mat) => mat.row(self.map(head, row))[j],
        }
    }

    /// What is added to the score of key `j` of a segment for its query `i`, by the bias and by the table.
    fn added(&self, segment: &Segment, (i, head): (usize, usize), j: usize) -> [f64; 2] {
        let row = segment.queries.start + i;
        let bias = self.mask.bias.map_or(0.0, |bias| self.entry(bias, head, row, j));
        let relative = self.mask.relative.map_or(0.0, |Relative { table, zero }| {
            let column = zero as isize + j as isize - i as isize - segment.reach.offset;
            table.row(head)[column as usize]
        });
        [bias, relative].map(f64::from)
    }

    /// Whether query `i` of a segment sees its key `j`.
    fn sees(&self, segment: &Segment, (i, head): (usize, usize), j: usize) -> bool {
        let Mask { keys, visible, .. } = self.mask;
        let Reach { offset, behind, ahead } = segment.reach;
        let distance = j as isize - i as isize - offset;
        behind.is_none_or(|behind| -distance <= behind as isize)
            && ahead.is_none_or(|ahead| distance <= ahead as isize)
            && keys.is_none_or(|keys| keys[segment.keys.start + j])
            && visible.is_none_or(|bits| self.entry(bits, head, segment.queries.start + i, j))
            && !self.added(segment, (i, head), j).contains(&f64::NEG_INFINITY)
    }

    /// Overwrites the keys and values that no query sees, head by head.
    fn fill_hidden(&mut self, garbage: &[f32]) {
        let AttentionShape { heads, kv_heads, d_k, d_v, .. } = self.shape;
        let group = heads / kv_heads;
        for segment in self.segments.clone() {
            for (j, key) in segment.keys.clone().enumerate() {
                for kv_head in 0..kv_heads {
                    let seen = (0..segment.queries.len()).any(|i| {
                        (0..group).any(|h| self.sees(&segment, (i, kv_head * group + h), j))
                    });
                    if !seen {
                        let k = &mut self.k.row_mut(key)[kv_head * d_k..][..d_k];
                        let v = &mut self.v.row_mut(key)[kv_head * d_v..][..d_v];
                        let values = k.iter_mut().chain(v);
                        values.zip(garbage.iter().cycle()).for_each(|(x, &to)| *x = to);
                    }
                }
            }
        }
    }

    /// The same over a cache, written in pieces to pages in some order.
    fn run_cached(&self, u: &mut Unstructured<'_>, threads: usize) -> Result<Matrix> {
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
                let (k, v) = (
                    self.k.view().rows_range(rows.clone()),
                    self.v.view().rows_range(rows.clone()),
                );
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
