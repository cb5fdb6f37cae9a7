//! Attention in training: weights of its scores are not kept but computed again on the way back.

use super::{CrossAttention, SelfAttention};
use crate::error::Result;
use crate::linear::{room, take};
use crate::train::claims::Claims;
use crate::train::pass::{TrainingPass, grown};
use headrow_kernels::{
    Activation, AttentionExtent, AttentionGradients, AttentionShape, Cpu, Mask, Mat, MatMut, Need,
    Segment, Stack, Write, attention, attention_backward, attention_backward_scratch,
    attention_scratch, rope, rope_backward,
};

/// What self-attention keeps: \[Q K V\], Q and K turned, and the heads side by side.
#[derive(Debug, Default)]
pub(crate) struct SelfKept {
    qkv: Vec<f32>,
    heads: Vec<f32>,
}

impl SelfKept {
    /// For up to `rows` tokens.
    pub(crate) fn new(layer: &SelfAttention, rows: usize, claims: &mut Claims) -> Result<SelfKept> {
        let qkv = claims.zeros(rows, layer.qkv.width())?;
        Ok(SelfKept { qkv, heads: claims.zeros(rows, layer.output.origin.inputs)? })
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        grown(&self.qkv) + grown(&self.heads)
    }
}

/// Columns of Q and K in \[Q K V\].
fn turned(shape: &AttentionShape) -> usize {
    (shape.heads + shape.kv_heads) * shape.d_k
}

impl SelfAttention {
    /// out ← MultiHead(x, x, x) + residual as [`SelfAttention::forward`], from parameters; with the reach of the segments also
    /// that of a decoder.
    #[expect(clippy::too_many_arguments, reason = "the operands of the layer and what it keeps")]
    pub(crate) fn apply(
        &self,
        pass: &TrainingPass<'_>,
        x: Mat<'_>,
        segments: &[Segment],
        kept: &mut SelfKept,
        residual: Option<Mat<'_>>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let (call, parameters, identity) = (pass.call, pass.parameters, Activation::Identity);
        let (rows, width, concat) = (x.rows(), self.qkv.width(), self.output.origin.inputs);
        let mut qkv = MatMut::new(&mut kept.qkv[..rows * width], rows, width);
        self.qkv.apply(call, parameters, x, identity, None, qkv.reborrow(), stack);
        if let Some(angles) = &pass.rope {
            let heads = self.shape.heads + self.shape.kv_heads;
            let turned = qkv.reborrow().columns(0..turned(&self.shape));
            rope(call.cpu, call.par, angles, pass.places, heads, turned);
        }
        let (q, k, v) = self.parts(qkv.as_ref());
        let mut heads = MatMut::new(&mut kept.heads[..rows * concat], rows, concat);
        let mask = Mask { relative: pass.relative, keys: pass.keys, ..Mask::default() };
        let to = heads.reborrow();
        attention(call.cpu, call.par, &self.shape, q, k, v, segments, &mask, to, stack);
        self.output.apply(call, parameters, heads.as_ref(), identity, residual, out, stack);
    }

    /// d ← d·J or d ← d + d·J, from the gradient d of the result, for the x that was read. That of the biases by distance is
    /// added to `d_table`.
    #[expect(clippy::too_many_arguments, reason = "the operands of the layer and their gradients")]
    pub(crate) fn backward(
        &self,
        pass: &TrainingPass<'_>,
        x: Mat<'_>,
        segments: &[Segment],
        kept: &SelfKept,
        write: Write,
        d: MatMut<'_>,
        gradients: &mut [f32],
        d_table: Option<MatMut<'_>>,
        stack: &mut Stack<'_>,
    ) {
        let (call, parameters) = (pass.call, pass.parameters);
        let (rows, width, concat) = (x.rows(), self.qkv.width(), self.output.origin.inputs);
        let heads = Mat::new(&kept.heads[..rows * concat], rows, concat);
        let (d_heads, mut stack) = self.output.backward(pass, heads, d.as_ref(), gradients, stack);
        let (mut d_qkv, mut stack) = take(&mut stack, rows, width);
        let (q, k, v) = self.parts(Mat::new(&kept.qkv[..rows * width], rows, width));
        let mask = Mask { relative: pass.relative, keys: pass.keys, ..Mask::default() };
        let mut to = AttentionGradients::side_by_side(d_qkv.reborrow());
        if let Some(d_table) = d_table {
            to = to.with_relative(d_table);
        }
        let (shape, d_heads) = (&self.shape, d_heads.as_ref());
        attention_backward(
            call.cpu, call.par, shape, q, k, v, d_heads, segments, &mask, to, &mut stack,
        );
        if let Some(angles) = &pass.rope {
            let heads = shape.heads + shape.kv_heads;
            let turned = d_qkv.reborrow().columns(0..turned(shape));
            rope_backward(call.cpu, call.par, angles, pass.places, heads, turned);
        }
        self.qkv.add_gradients(call, x, d_qkv.as_ref(), gradients, &mut stack);
        self.qkv.back(call, parameters, d_qkv.as_ref(), write, d, &mut stack);
    }

    /// Scratch in training for up to `rows` tokens, in sequences no longer than `extent`.
    pub(crate) fn training_scratch(
        &self,
        cpu: Cpu,
        threads: usize,
        rows: usize,
        extent: AttentionExtent,
    ) -> Need {
        let maps = [&self.qkv, &self.output].map(|map| map.training_scratch(cpu, threads, rows));
        let attend = scratch(cpu, threads, &self.shape, extent);
        let gradients = room(rows, self.output.origin.inputs).and(room(rows, self.qkv.width()));
        gradients.and(maps[0].or(maps[1]).or(attend))
    }
}

/// What attention to an encoder's output keeps.
#[derive(Debug, Default)]
pub(crate) struct CrossKept {
    query: Vec<f32>,
    key_value: Vec<f32>,
    heads: Vec<f32>,
}

impl CrossKept {
    /// For up to `rows` tokens of either side.
    pub(crate) fn new(
        layer: &CrossAttention,
        rows: usize,
        claims: &mut Claims,
    ) -> Result<CrossKept> {
        Ok(CrossKept {
            query: claims.zeros(rows, layer.query.width())?,
            key_value: claims.zeros(rows, layer.key_value.width())?,
            heads: claims.zeros(rows, layer.output.origin.inputs)?,
        })
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        grown(&self.query) + grown(&self.key_value) + grown(&self.heads)
    }
}

/// An encoder's output, and which of its rows each sequence attends to.
#[derive(Clone, Copy)]
pub(crate) struct SourceRows<'a> {
    pub(crate) encoded: Mat<'a>,
    pub(crate) segments: &'a [Segment],
    /// Which of its rows are seen; `None`: all.
    pub(crate) keys: Option<&'a [bool]>,
}

impl CrossAttention {
    /// out ← MultiHead(x, encoded, encoded) + residual as [`CrossAttention::forward`], from parameters.
    #[expect(clippy::too_many_arguments, reason = "the operands of the layer and what it keeps")]
    pub(crate) fn apply(
        &self,
        pass: &TrainingPass<'_>,
        x: Mat<'_>,
        source: SourceRows<'_>,
        kept: &mut CrossKept,
        residual: Option<Mat<'_>>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let SourceRows { encoded, segments, keys } = source;
        let (call, parameters, identity) = (pass.call, pass.parameters, Activation::Identity);
        let (rows, sources) = (x.rows(), encoded.rows());
        let (queries, pairs) = (self.query.width(), self.key_value.width());
        let concat = self.output.origin.inputs;
        let mut q = MatMut::new(&mut kept.query[..rows * queries], rows, queries);
        self.query.apply(call, parameters, x, identity, None, q.reborrow(), stack);
        let mut pair = MatMut::new(&mut kept.key_value[..sources * pairs], sources, pairs);
        self.key_value.apply(call, parameters, encoded, identity, None, pair.reborrow(), stack);
        let (k, v) = self.halves(pair.as_ref());
        let mut heads = MatMut::new(&mut kept.heads[..rows * concat], rows, concat);
        let mask = Mask { keys, ..Mask::default() };
        let (q, to) = (q.as_ref(), heads.reborrow());
        attention(call.cpu, call.par, &self.shape, q, k, v, segments, &mask, to, stack);
        self.output.apply(call, parameters, heads.as_ref(), identity, residual, out, stack);
    }

    /// d ← d·J or d ← d + d·J, from the gradient d of the result, for the x that was read; that of the encoder's output is
    /// added to `d_encoded`.
    #[expect(clippy::too_many_arguments, reason = "the operands of the layer and their gradients")]
    pub(crate) fn backward(
        &self,
        pass: &TrainingPass<'_>,
        x: Mat<'_>,
        source: SourceRows<'_>,
        kept: &CrossKept,
        write: Write,
        d: MatMut<'_>,
        gradients: &mut [f32],
        d_encoded: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let SourceRows { encoded, segments, keys } = source;
        let (call, parameters) = (pass.call, pass.parameters);
        let (rows, sources) = (x.rows(), encoded.rows());
        let (queries, pairs) = (self.query.width(), self.key_value.width());
        let concat = self.output.origin.inputs;
        let heads = Mat::new(&kept.heads[..rows * concat], rows, concat);
        let (d_heads, mut stack) = self.output.backward(pass, heads, d.as_ref(), gradients, stack);
        let (mut d_query, mut stack) = take(&mut stack, rows, queries);
        let (mut d_pair, mut stack) = take(&mut stack, sources, pairs);
        let q = Mat::new(&kept.query[..rows * queries], rows, queries);
        let (k, v) = self.halves(Mat::new(&kept.key_value[..sources * pairs], sources, pairs));
        let to = AttentionGradients::with_source(d_query.reborrow(), d_pair.reborrow());
        let (shape, d_heads) = (&self.shape, d_heads.as_ref());
        let mask = Mask { keys, ..Mask::default() };
        attention_backward(
            call.cpu, call.par, shape, q, k, v, d_heads, segments, &mask, to, &mut stack,
        );
        let (d_query, d_pair) = (d_query.as_ref(), d_pair.as_ref());
        self.key_value.add_gradients(call, encoded, d_pair, gradients, &mut stack);
        let accumulate = Write::Accumulate;
        self.key_value.back(call, parameters, d_pair, accumulate, d_encoded, &mut stack);
        self.query.add_gradients(call, x, d_query, gradients, &mut stack);
        self.query.back(call, parameters, d_query, write, d, &mut stack);
    }

    /// Scratch in training for up to `rows` tokens of either side, in sequences no longer than `extent`.
    pub(crate) fn training_scratch(
        &self,
        cpu: Cpu,
        threads: usize,
        rows: usize,
        extent: AttentionExtent,
    ) -> Need {
        let maps = [&self.query, &self.key_value, &self.output];
        let maps = maps.map(|map| map.training_scratch(cpu, threads, rows));
        let products = maps.into_iter().fold(Need::NONE, Need::or);
        let widths = [self.output.origin.inputs, self.query.width(), self.key_value.width()];
        let gradients = widths.map(|width| room(rows, width));
        let gradients = gradients.into_iter().fold(Need::NONE, Need::and);
        gradients.and(products.or(scratch(cpu, threads, &self.shape, extent)))
    }
}

/// Scratch of attention and of its gradients.
fn scratch(cpu: Cpu, threads: usize, shape: &AttentionShape, extent: AttentionExtent) -> Need {
    let on = attention_scratch(cpu, threads, shape, extent);
    on.or(attention_backward_scratch(cpu, threads, shape, extent))
}
