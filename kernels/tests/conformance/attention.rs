//! The attention of ONNX and PyTorch, laid out for the fused kernel.

use super::Lane;
use super::array::Array;
use super::ops::Operand;
use headrow_kernels::{
    AttentionExtent, AttentionShape, Epilogue, Mask, Mat, MatMut, PerHead, Reach, Scratch, Segment,
    attention, attention_scratch,
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
    /// For each sequence: query i sees keys j ≤ i + diagonal.
    pub(crate) diagonals: Option<Vec<isize>>,
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

    fn length(&self, sequence: usize) -> usize {
        let s = self.k.shape()[2];
        self.lengths.as_ref().map_or(s, |lengths| lengths[sequence].min(s))
    }

    /// batch × h × t × d_v.
    pub(crate) fn run(&self, lane: Lane<'_>) -> Array<f32> {
        let [batch, heads, t, s] = self.extent();
        let (kv_heads, d_k, d_v) = (self.k.shape()[1], self.k.shape()[3], self.v.shape()[3]);
        assert_eq!(self.q.shape()[3], d_k, "widths of queries and keys");
        assert_eq!(self.k.shape()[..3], self.v.shape()[..3], "keys and values");
        let shape = AttentionShape::new(heads, kv_heads, d_k, d_v).with_scale(self.scale as f32);
        let segments: Vec<Segment> = (0..batch)
            .map(|b| {
                let causal = |diagonals: &Vec<isize>| Reach {
                    offset: diagonals[b],
                    ahead: Some(0),
                    ..Reach::ALL
                };
                Segment::full(b * t..(b + 1) * t, b * s..b * s + self.length(b))
                    .with_reach(self.diagonals.as_ref().map_or(Reach::ALL, causal))
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
            ..Mask::default()
        };

        let (q, k, v) = (side_by_side(&self.q), side_by_side(&self.k), side_by_side(&self.v));
        let view = |x: &Array<f32>| (x.shape()[0], x.shape()[1]);
        let mat = |x| Mat::new(Array::data(x), view(x).0, view(x).1);
        let mut out = Array::full(&[batch * t, heads * d_v], f32::NAN);
        let extent = AttentionExtent::of(&segments);
        let need = attention_scratch(lane.cpu, lane.par.threads(), &shape, extent);
        attention(
            lane.cpu,
            lane.par,
            &shape,
            mat(&q),
            mat(&k),
            mat(&v),
            &segments,
            &mask,
            MatMut::new(out.data_mut(), batch * t, heads * d_v),
            &mut Scratch::new(need).stack(),
        );
        out.reshape(&[batch, t, heads, d_v]).permute(&[0, 2, 1, 3])
    }

    /// The weights themselves, batch × h × t × s: what the kernel gives when V is the identity.
    pub(crate) fn weights(&self, lane: Lane<'_>) -> Array<f32> {
        let [batch, _, _, s] = self.extent();
        let kv_heads = self.k.shape()[1];
        let mut identity = Array::full(&[1, 1, s, s], 0.0);
        identity.data_mut().iter_mut().step_by(s + 1).for_each(|x| *x = 1.0);
        Problem { v: identity.broadcast(&[batch, kv_heads, s, s]), ..self.clone() }.run(lane)
    }

    /// Their mean over the heads, batch × t × s.
    pub(crate) fn mean_weights(&self, lane: Lane<'_>) -> Array<f32> {
        let [batch, heads, t, s] = self.extent();
        let per_head = self.weights(lane).permute(&[0, 2, 3, 1]).reshape(&[batch * t * s, heads]);
        let ones = Array::full(&[heads, 1], 1.0);
        let mean = Epilogue { alpha: Some(1.0 / heads as f32), ..Epilogue::default() };
        lane.gemm(&per_head, Operand::from(&ones), None, &mean).reshape(&[batch, t, s])
    }

    /// Queries that see no key at all: batch × h × t × 1.
    pub(crate) fn blind(&self) -> Array<bool> {
        let shape = self.extent();
        let [batch, heads, t, s] = shape;
        let visible = self.visible.as_ref().map(|v| v.broadcast(&shape));
        let bias = self.bias.as_ref().map(|bias| bias.broadcast(&shape));
        let mut blind = Vec::with_capacity(batch * heads * t);
        for row in 0..batch * heads * t {
            let (b, i) = (row / (heads * t), row % t);
            let last = self.diagonals.as_ref().map(|d| i as isize + d[b]);
            let sees = |j: usize| {
                last.is_none_or(|last| j as isize <= last)
                    && visible.as_ref().is_none_or(|v| v.data()[row * s + j])
                    && bias.as_ref().is_none_or(|b| b.data()[row * s + j] != f32::NEG_INFINITY)
            };
            blind.push(!(0..self.length(b)).any(sees));
        }
        Array::new(&[batch, heads, t, 1], blind)
    }
}
