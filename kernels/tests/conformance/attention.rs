//! The attention of ONNX and PyTorch, laid out for the fused kernel.

use super::array::Array;
use super::ops::{Operand, matrix, matrix_mut};
use super::{Lane, Stop};
use headrow_kernels::attention::PAGE;
use headrow_kernels::reference::attention as reference;
use headrow_kernels::rows::math;
use headrow_kernels::{
    AttentionExtent, AttentionGradients, AttentionOutput, AttentionShape, CachedSegment, Epilogue,
    KvCache, Maps, Mask, Mat, MatMut, PerHead, PerHeadMut, Reach, Scratch, Segment, attention,
    attention_backward, attention_backward_scratch, attention_cached, attention_cached_scratch,
    attention_scratch,
};

/// Attention as operators state it: heads are a dimension, masks broadcast to batch × heads × t × s.
#[derive(Clone)]
pub(crate) struct Problem {
    /// batch × h × t × d_k.
    pub(crate) q: Array<f32>,
    /// batch × h_kv × s × d_k.
    pub(crate) k: Array<f32>,
    /// batch × h_kv × s × d_v.
    pub(crate) v: Array<f32>,
    pub(crate) scale: f64,
    /// `true` = visible; four dimensions, each full or 1.
    pub(crate) visible: Option<Array<bool>>,
    /// Added to the scaled scores; four dimensions, each full or 1.
    pub(crate) bias: Option<Array<f32>>,
    /// Keys of each sequence, when not all s.
    pub(crate) lengths: Option<Vec<usize>>,
    /// How far the queries of each sequence see, when not everywhere.
    pub(crate) reach: Option<Vec<Reach>>,
    /// Scores are capped at this number.
    pub(crate) softcap: Option<f64>,
}

/// A point between Q·Kᵀ and the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stage {
    Scaled,
    Capped,
    Masked,
    Weights,
}

/// Heads side by side: batch × h × t × d becomes (batch · t) × (h · d).
fn side_by_side(x: &Array<f32>) -> Array<f32> {
    let [batch, heads, rows, width] = *x.shape() else { panic!("{:?}", x.shape()) };
    x.permute(&[0, 2, 1, 3]).reshape(&[batch * rows, heads * width])
}

/// A mask in one of the two layouts of [`PerHead`]: shared by the heads, or one after the other.
struct Rows<T> {
    values: Array<T>,
    shared: bool,
}

impl<T: Copy> Rows<T> {
    fn new(mask: &Array<T>, [batch, heads, t, s]: [usize; 4]) -> Rows<T> {
        let shared = mask.shape()[1] == 1;
        let values = if shared {
            mask.broadcast(&[batch, 1, t, s]).reshape(&[batch * t, s])
        } else {
            let full = mask.broadcast(&[batch, heads, t, s]);
            full.permute(&[1, 0, 2, 3]).reshape(&[heads * batch * t, s])
        };
        Rows { values, shared }
    }

    fn per_head(&self) -> PerHead<'_, T> {
        let [rows, cols] = *self.values.shape() else { unreachable!() };
        let mat = Mat::new(self.values.data(), rows, cols);
        if self.shared { PerHead::Shared(mat) } else { PerHead::Each(mat) }
    }
}

impl Problem {
    /// Batch, heads, queries, keys.
    fn extent(&self) -> [usize; 4] {
        let [batch, heads, t, _] = *self.q.shape() else { panic!("{:?}", self.q.shape()) };
        [batch, heads, t, self.k.shape()[2]]
    }

    /// Without masks or a cap.
    pub(crate) fn new(q: Array<f32>, k: Array<f32>, v: Array<f32>, scale: f64) -> Problem {
        let (visible, bias, lengths, reach, softcap) = (None, None, None, None, None);
        Problem { q, k, v, scale, visible, bias, lengths, reach, softcap }
    }

    fn length(&self, sequence: usize) -> usize {
        let s = self.k.shape()[2];
        self.lengths.as_ref().map_or(s, |lengths| lengths[sequence].min(s))
    }

    fn reach(&self, sequence: usize) -> Reach {
        self.reach.as_ref().map_or(Reach::ALL, |reach| reach[sequence])
    }

    fn shape(&self) -> AttentionShape {
        let (kv_heads, d_k, d_v) = (self.k.shape()[1], self.k.shape()[3], self.v.shape()[3]);
        assert_eq!(self.q.shape()[3], d_k, "widths of queries and keys");
        assert_eq!(self.k.shape()[..3], self.v.shape()[..3], "keys and values");
        let heads = self.q.shape()[1];
        let shape = AttentionShape::new(heads, kv_heads, d_k, d_v).with_scale(self.scale as f32);
        match self.softcap {
            Some(cap) => shape.with_softcap(cap as f32),
            None => shape,
        }
    }

    /// batch × h × t × d_v.
    pub(crate) fn run(&self, lane: Lane<'_>) -> Array<f32> {
        self.attend(lane).0
    }

    /// The weights, batch × h × t × s.
    pub(crate) fn weights(&self, lane: Lane<'_>) -> Array<f32> {
        self.attend(lane).1
    }

    /// Calls `run` with the operands as the kernel takes them.
    fn with_operands<R>(
        &self,
        run: impl FnOnce(&AttentionShape, [Mat<'_>; 3], &[Segment], &Mask<'_>) -> R,
    ) -> R {
        let [batch, heads, t, s] = self.extent();
        let segments: Vec<Segment> = (0..batch)
            .map(|b| {
                Segment::full(b * t..(b + 1) * t, b * s..b * s + self.length(b))
                    .with_reach(self.reach(b))
            })
            .collect();
        // A mask that all heads and queries of a sequence share is one of keys.
        let of_keys = self.visible.as_ref().filter(|v| v.shape()[1] == 1 && v.shape()[2] == 1);
        let keys = of_keys.map(|v| v.broadcast(&[batch, 1, 1, s]));
        let visible = self.visible.as_ref().filter(|_| of_keys.is_none());
        let visible = visible.map(|v| Rows::new(v, [batch, heads, t, s]));
        let bias = self.bias.as_ref().map(|bias| Rows::new(bias, [batch, heads, t, s]));
        let mask = Mask {
            keys: keys.as_ref().map(Array::data),
            visible: visible.as_ref().map(Rows::per_head),
            bias: bias.as_ref().map(Rows::per_head),
            relative: None,
        };
        let (q, k, v) = (side_by_side(&self.q), side_by_side(&self.k), side_by_side(&self.v));
        run(&self.shape(), [&q, &k, &v].map(matrix), &segments, &mask)
    }

    /// The result and the weights. Masks by key apart, a cache must give the bits that rows give.
    fn attend(&self, lane: Lane<'_>) -> (Array<f32>, Array<f32>) {
        let [batch, heads, t, s] = self.extent();
        let (cpu, par, d_v) = (lane.cpu, lane.par, self.v.shape()[3]);
        let all: Vec<usize> = (0..heads).collect();
        let mut out = Array::full(&[batch * t, heads * d_v], f32::NAN);
        let mut weights = Array::full(&[heads * batch * t, s], f32::NAN);
        let maps = MatMut::new(weights.data_mut(), heads * batch * t, s);
        let to =
            AttentionOutput::from(matrix_mut(&mut out)).with_maps(Maps { heads: &all, out: maps });
        let cached = self.with_operands(|shape, [q, k, v], segments, mask| {
            let extent = AttentionExtent::of(segments);
            let mut scratch = Scratch::new(attention_scratch(cpu, par.threads(), shape, extent));
            attention(cpu, par, shape, q, k, v, segments, mask, to, &mut scratch.stack());
            let pages = mask.keys.is_none();
            pages.then(|| through_a_cache(lane, shape, [q, k, v], segments, mask))
        });
        if let Some(cached) = cached {
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&cached), bits(out.data()), "a cache gives other bits");
        }
        let out = out.reshape(&[batch, t, heads, d_v]).permute(&[0, 2, 1, 3]);
        (out, weights.reshape(&[heads, batch, t, s]).permute(&[1, 0, 2, 3]))
    }

    /// The gradients of Q, K, V, shaped as these, and of the bias, batch × h × t × s with 1 for h when the heads
    /// share it, from that of the result.
    pub(crate) fn gradients(
        &self,
        lane: Lane<'_>,
        d_out: &Array<f32>,
    ) -> ([Array<f32>; 3], Option<Array<f32>>) {
        let [batch, heads, t, s] = self.extent();
        let (cpu, par) = (lane.cpu, lane.par);
        let d_out = side_by_side(d_out);
        // Rows past the end of a sequence belong to no segment, and are not written.
        let like = |x: &Array<f32>| Array::full(side_by_side(x).shape(), 0.0);
        let [mut dq, mut dk, mut dv] = [&self.q, &self.k, &self.v].map(like);
        let bias_heads =
            self.bias.as_ref().map(|bias| if bias.shape()[1] == 1 { 1 } else { heads });
        let mut d_bias = bias_heads.map(|heads| Array::full(&[heads * batch * t, s], 0.0));
        self.with_operands(|shape, [q, k, v], segments, mask| {
            let (extent, threads) = (AttentionExtent::of(segments), par.threads());
            let need = attention_backward_scratch(cpu, threads, shape, extent);
            let (mut scratch, d_out) = (Scratch::new(need), matrix(&d_out));
            let [dq, dk, dv] = [&mut dq, &mut dk, &mut dv].map(matrix_mut);
            let mut to = AttentionGradients::new(dq, dk, dv);
            if let Some(d_bias) = &mut d_bias {
                to = to.with_bias(match mask.bias {
                    Some(PerHead::Each(_)) => PerHeadMut::Each(matrix_mut(d_bias)),
                    _ => PerHeadMut::Shared(matrix_mut(d_bias)),
                });
            }
            let stack = &mut scratch.stack();
            attention_backward(cpu, par, shape, q, k, v, d_out, segments, mask, to, stack);
        });
        let apart = |rows: Array<f32>, like: &Array<f32>| {
            let [batch, heads, rows_of, width] = *like.shape() else { unreachable!() };
            rows.reshape(&[batch, rows_of, heads, width]).permute(&[0, 2, 1, 3])
        };
        let d_bias = d_bias.map(|d_bias| {
            let heads = d_bias.shape()[0] / (batch * t).max(1);
            d_bias.reshape(&[heads, batch, t, s]).permute(&[1, 0, 2, 3])
        });
        ([apart(dq, &self.q), apart(dk, &self.k), apart(dv, &self.v)], d_bias)
    }

    /// How far each of [`Problem::gradients`] may be off in f32, by the bound of its definition.
    pub(crate) fn gradient_bounds(
        &self,
        d_out: &Array<f32>,
    ) -> ([Array<f32>; 3], Option<Array<f32>>) {
        let [batch, heads, t, s] = self.extent();
        let d_out = side_by_side(d_out);
        let exact = self.with_operands(|shape, [q, k, v], segments, mask| {
            reference::attention_backward(shape, q, k, v, matrix(&d_out), segments, mask)
        });
        let bound = |exact: &reference::Gradient| -> Vec<f32> {
            exact.bound.iter().map(|&bound| bound as f32).collect()
        };
        let qkv = [(&exact.dq, &self.q), (&exact.dk, &self.k), (&exact.dv, &self.v)];
        let qkv = qkv.map(|(exact, like)| {
            let [batch, heads, rows, width] = *like.shape() else { unreachable!() };
            Array::new(&[batch, rows, heads, width], bound(exact)).permute(&[0, 2, 1, 3])
        });
        let d_bias = self.bias.as_ref().map(|bias| {
            let heads = if bias.shape()[1] == 1 { 1 } else { heads };
            Array::new(&[heads, batch, t, s], bound(&exact.bias)).permute(&[1, 0, 2, 3])
        });
        (qkv, d_bias)
    }

    /// What the scores have become at a stage, batch × h × t × s.
    pub(crate) fn scores(&self, lane: Lane<'_>, stage: Stage) -> Result<Array<f32>, Stop> {
        if stage == Stage::Weights {
            return Ok(self.weights(lane));
        }
        let [batch, heads, t, s] = self.extent();
        let (kv_heads, d_k) = (self.k.shape()[1], self.k.shape()[3]);
        let k = self.k.clone().reshape(&[batch, kv_heads, 1, s, d_k]);
        let k = k.broadcast(&[batch, kv_heads, heads / kv_heads, s, d_k]);
        let k = k.reshape(&[batch, heads, s, d_k]).permute(&[0, 1, 3, 2]);
        let mut scores = lane.scaled(&lane.matmul(&self.q, &k)?, self.scale);
        if let Some(cap) = self.softcap.filter(|_| stage != Stage::Scaled) {
            scores = lane.scaled(&lane.each(&lane.scaled(&scores, cap.recip()), math::tanh), cap);
        }
        if stage == Stage::Masked {
            if let Some(bias) = &self.bias {
                scores =
                    lane.combined(&[(&scores, 1.0), (&bias.broadcast(&[batch, heads, t, s]), 1.0)]);
            }
            let hidden = self.seen().map(|sees| !sees);
            let each = scores.data_mut().iter_mut().zip(hidden.data());
            each.filter(|(_, hidden)| **hidden).for_each(|(x, _)| *x = f32::NEG_INFINITY);
        }
        Ok(scores)
    }

    /// Their mean over the heads, batch × t × s.
    pub(crate) fn mean_weights(&self, lane: Lane<'_>) -> Array<f32> {
        let [batch, heads, t, s] = self.extent();
        let per_head = self.weights(lane).permute(&[0, 2, 3, 1]).reshape(&[batch * t * s, heads]);
        let ones = Array::full(&[heads, 1], 1.0);
        let mean = Epilogue { alpha: Some(1.0 / heads as f32), ..Epilogue::default() };
        lane.gemm(&per_head, Operand::from(&ones), None, &mean).reshape(&[batch, t, s])
    }

    /// Which query sees which key, batch × h × t × s.
    fn seen(&self) -> Array<bool> {
        let shape = self.extent();
        let [batch, heads, t, s] = shape;
        let visible = self.visible.as_ref().map(|v| v.broadcast(&shape));
        let bias = self.bias.as_ref().map(|bias| bias.broadcast(&shape));
        let mut seen = Vec::with_capacity(batch * heads * t * s);
        for row in 0..batch * heads * t {
            let (b, i) = (row / (heads * t), row % t);
            let Reach { offset, behind, ahead } = self.reach(b);
            seen.extend((0..s).map(|j| {
                let distance = j as isize - (i as isize + offset);
                j < self.length(b)
                    && behind.is_none_or(|behind| distance >= -(behind as isize))
                    && ahead.is_none_or(|ahead| distance <= ahead as isize)
                    && visible.as_ref().is_none_or(|v| v.data()[row * s + j])
                    && bias.as_ref().is_none_or(|b| b.data()[row * s + j] != f32::NEG_INFINITY)
            }));
        }
        Array::new(&shape, seen)
    }

    /// Queries that see no key at all: batch × h × t × 1.
    pub(crate) fn blind(&self) -> Array<bool> {
        let [batch, heads, t, s] = self.extent();
        let seen = self.seen();
        let row = |row: usize| !seen.data()[row * s..(row + 1) * s].contains(&true);
        Array::new(&[batch, heads, t, 1], (0..batch * heads * t).map(row).collect())
    }
}

/// The same attention with keys and values in the pages of a cache.
fn through_a_cache(
    lane: Lane<'_>,
    shape: &AttentionShape,
    [q, k, v]: [Mat<'_>; 3],
    segments: &[Segment],
    mask: &Mask<'_>,
) -> Vec<f32> {
    let &AttentionShape { heads, kv_heads, d_k, d_v, .. } = shape;
    let (cpu, par) = (lane.cpu, lane.par);
    let pages_of = |segment: &Segment| segment.keys.len().div_ceil(PAGE);
    let total = segments.iter().map(pages_of).sum();
    let mut cache = KvCache::try_new(cpu, kv_heads, d_k, d_v, total).unwrap();
    // From the last page backwards.
    let mut free = total as u32;
    let mut lists = Vec::new();
    for segment in segments {
        let pages: Vec<u32> = (0..pages_of(segment) as u32).map(|i| free - 1 - i).collect();
        free -= pages.len() as u32;
        let [k, v] = [k, v].map(|x| x.rows_range(segment.keys.clone()));
        cache.write(par, &pages, 0, k, v);
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
    let mut out = vec![f32::NAN; q.rows() * heads * d_v];
    let extent = AttentionExtent::of_cached(&cached);
    let mut scratch = Scratch::new(attention_cached_scratch(cpu, par.threads(), shape, extent));
    let to = MatMut::new(&mut out, q.rows(), heads * d_v);
    attention_cached(cpu, par, shape, q, &cache, &cached, mask, to, &mut scratch.stack());
    out
}
