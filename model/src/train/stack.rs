//! A stack in training: the residual stream is kept between all sublayers, and walked back.

use super::claims::Claims;
use super::pass::{TrainingPass, grown};
use crate::attention::{CrossAttention, CrossKept, SelfAttention, SelfKept, SourceRows};
use crate::config::NormPlacement;
use crate::decoder::{Decoder, DecoderLayer};
use crate::encoder::{Encoder, EncoderLayer};
use crate::error::Result;
use crate::feed_forward::{FeedForward, FeedForwardKept};
use crate::linear::{room, take};
use crate::origin::Values;
use crate::sublayer::{
    Norm, SublayerKept, TrainingSite, branch_backward, norm_backward, sublayer_backward,
    sublayer_saving, training_scratch,
};
use headrow_kernels::{AttentionExtent, Cpu, Mat, MatMut, Moments, Need, Segment, Stack, Write};

/// The layers of an encoder or of a decoder.
#[derive(Clone, Copy)]
pub(super) enum Layers<'a> {
    Encoder(&'a Encoder),
    Decoder(&'a Decoder),
}

/// One layer of either.
#[derive(Clone, Copy)]
struct Layer<'a> {
    placement: NormPlacement,
    attention: (&'a SelfAttention, &'a Norm),
    cross: Option<(&'a CrossAttention, &'a Norm)>,
    feed_forward: (&'a FeedForward, &'a Norm),
}

impl<'a> From<&'a EncoderLayer> for Layer<'a> {
    fn from(layer: &'a EncoderLayer) -> Layer<'a> {
        Layer {
            placement: layer.placement,
            attention: (&layer.attention, &layer.attention_norm),
            cross: None,
            feed_forward: (&layer.feed_forward, &layer.feed_forward_norm),
        }
    }
}

impl<'a> From<&'a DecoderLayer> for Layer<'a> {
    fn from(layer: &'a DecoderLayer) -> Layer<'a> {
        Layer {
            placement: layer.placement,
            attention: (&layer.attention, &layer.attention_norm),
            cross: layer.cross.as_ref().map(|(cross, norm)| (cross, norm)),
            feed_forward: (&layer.feed_forward, &layer.feed_forward_norm),
        }
    }
}

/// Masks of a layer: one for each sublayer, behind that of the embeddings.
fn mask(layer: usize, sublayer: u64) -> u64 {
    1 + 3 * layer as u64 + sublayer
}

impl<'a> Layer<'a> {
    fn sublayers(&self) -> usize {
        2 + usize::from(self.cross.is_some())
    }

    fn site(&self, norm: &'a Norm, layer: usize, sublayer: u64) -> TrainingSite<'a> {
        TrainingSite { placement: self.placement, norm, mask: mask(layer, sublayer) }
    }
}

impl<'a> Layers<'a> {
    /// N.
    pub(super) fn depth(self) -> usize {
        match self {
            Layers::Encoder(encoder) => encoder.depth,
            Layers::Decoder(decoder) => decoder.layers.len(),
        }
    }

    fn layer(self, index: usize) -> Layer<'a> {
        match self {
            Layers::Encoder(encoder) => {
                (&encoder.layers[index * encoder.layers.len() / encoder.depth]).into()
            }
            Layers::Decoder(decoder) => (&decoder.layers[index]).into(),
        }
    }

    fn each(self) -> impl Iterator<Item = Layer<'a>> {
        (0..self.depth()).map(move |index| self.layer(index))
    }

    fn final_norm(self) -> Option<&'a Norm> {
        match self {
            Layers::Encoder(encoder) => encoder.final_norm.as_ref(),
            Layers::Decoder(decoder) => decoder.final_norm.as_ref(),
        }
    }

    /// Biases of positions by bucket.
    pub(super) fn buckets(self) -> &'a Values {
        match self {
            Layers::Encoder(encoder) => &encoder.buckets,
            Layers::Decoder(decoder) => &decoder.buckets,
        }
    }

    /// Scratch of forward and backward passes for up to `rows` tokens of either side, in sequences no longer than `longest`.
    pub(super) fn scratch(
        self,
        cpu: Cpu,
        threads: usize,
        rows: usize,
        longest: usize,
        d_model: usize,
    ) -> Need {
        let extent = AttentionExtent { queries: longest, keys: longest };
        let mut known = Vec::new();
        let mut need = room(rows, d_model);
        for layer in self.each() {
            // Neighbours share their weights in some stacks; those of one place have one shape in most.
            let shapes = [layer.attention.0.qkv.origin.outputs, layer.feed_forward.0.inner.width()];
            let key = (shapes, layer.placement, layer.cross.is_some(), layer.feed_forward.0.gated);
            if known.contains(&key) {
                continue;
            }
            known.push(key);
            let attention = layer.attention.0.training_scratch(cpu, threads, rows, extent);
            let mut inner = attention.or(layer.feed_forward.0.training_scratch(cpu, threads, rows));
            if let Some((cross, _)) = layer.cross {
                inner = inner.or(cross.training_scratch(cpu, threads, rows, extent));
            }
            need = need.or(training_scratch(layer.placement, rows, d_model, inner));
        }
        need
    }
}

/// What one layer keeps.
#[derive(Debug, Default)]
struct LayerKept {
    attention: (SublayerKept, SelfKept),
    cross: Option<(SublayerKept, CrossKept)>,
    feed_forward: (SublayerKept, FeedForwardKept),
}

impl LayerKept {
    fn new(
        layer: Layer<'_>,
        rows: usize,
        d_model: usize,
        claims: &mut Claims,
    ) -> Result<LayerKept> {
        let (attention, feed_forward) = (layer.attention.0, layer.feed_forward.0);
        let around = |claims: &mut Claims| SublayerKept::new(rows, d_model, claims);
        let attention = (around(claims)?, SelfKept::new(attention, rows, claims)?);
        let cross = match layer.cross {
            Some((cross, _)) => Some((around(claims)?, CrossKept::new(cross, rows, claims)?)),
            None => None,
        };
        let feed_forward = (around(claims)?, FeedForwardKept::new(feed_forward, rows, claims)?);
        Ok(LayerKept { attention, cross, feed_forward })
    }
}

/// What a stack keeps of a pass.
#[derive(Debug, Default)]
pub(super) struct StackKept {
    d_model: usize,
    /// The residual stream before each sublayer and behind the last.
    states: Vec<Vec<f32>>,
    layers: Vec<LayerKept>,
    moments: Vec<Moments>,
    /// What the last norm gives.
    output: Vec<f32>,
}

/// What a stack's tokens see.
#[derive(Clone, Copy)]
pub(super) struct Sight<'a> {
    pub(super) rows: usize,
    pub(super) segments: &'a [Segment],
    pub(super) source: Option<SourceRows<'a>>,
}

/// What is told, on the way back, of the gradient of the stream before layer ℓ, or of what the last layer gave.
pub(super) type Observed<'o> = &'o mut dyn FnMut(usize, Mat<'_>);

/// Where gradients go beside the stream.
pub(super) struct Sinks<'a> {
    pub(super) gradients: &'a mut [f32],
    pub(super) d_encoded: Option<MatMut<'a>>,
    /// Heads × distances.
    pub(super) d_table: Option<MatMut<'a>>,
}

impl StackKept {
    /// For up to `rows` tokens.
    pub(super) fn new(
        layers: Layers<'_>,
        rows: usize,
        d_model: usize,
        claims: &mut Claims,
    ) -> Result<StackKept> {
        let sublayers: usize = layers.each().map(|layer| layer.sublayers()).sum();
        let kept = layers.each().map(|layer| LayerKept::new(layer, rows, d_model, claims));
        let layers_kept = kept.collect::<Result<_>>()?;
        let normed = layers.final_norm().map_or(0, |_| rows);
        let states = (0..=sublayers).map(|_| claims.zeros(rows, d_model));
        Ok(StackKept {
            d_model,
            states: states.collect::<Result<_>>()?,
            layers: layers_kept,
            moments: claims.zeros(normed, 1)?,
            output: claims.zeros(normed, d_model)?,
        })
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let states: usize = self.states.iter().map(grown).sum();
        let layers = self.layers.iter().map(|layer| {
            let (attention, feed) = (&layer.attention, &layer.feed_forward);
            let cross = layer.cross.as_ref();
            let cross = cross.map_or(0, |(around, cross)| around.bytes() + cross.bytes());
            let around = attention.0.bytes() + feed.0.bytes();
            around + attention.1.bytes() + feed.1.bytes() + cross
        });
        states + layers.sum::<usize>() + grown(&self.moments) + grown(&self.output)
    }

    /// What enters, to be written.
    pub(super) fn entering(&mut self, rows: usize) -> MatMut<'_> {
        let d = self.d_model;
        MatMut::new(&mut self.states[0][..rows * d], rows, d)
    }

    /// What comes out of the stack.
    pub(super) fn output(&self, rows: usize) -> Mat<'_> {
        let last = self.states.last().filter(|_| self.output.is_empty());
        let values = last.unwrap_or(&self.output);
        Mat::new(&values[..rows * self.d_model], rows, self.d_model)
    }

    /// Runs the layers over what has entered.
    pub(super) fn forward(
        &mut self,
        pass: &TrainingPass<'_>,
        layers: Layers<'_>,
        sight: Sight<'_>,
        stack: &mut Stack<'_>,
    ) {
        let (rows, d_model) = (sight.rows, self.d_model);
        let mut states = &mut self.states[..];
        for (index, kept) in self.layers.iter_mut().enumerate() {
            let layer = layers.layer(index);
            let count = layer.sublayers();
            let stream = Stream { states: &mut states[..=count], rows, d_model };
            layer.forward(pass, index, sight, stream, kept, stack);
            states = &mut states[count..];
        }
        if let Some(norm) = layers.final_norm() {
            let size = rows * d_model;
            let last = Mat::new(&states[0][..size], rows, d_model);
            let out = MatMut::new(&mut self.output[..size], rows, d_model);
            norm.apply(pass.call, pass.parameters, last, &mut self.moments[..rows], out);
        }
    }

    /// Walks the layers back: `d` holds the gradient of the output, and is given that of what entered.
    #[expect(clippy::too_many_arguments, reason = "what the layers read and kept, and gradients")]
    pub(super) fn backward(
        &self,
        pass: &TrainingPass<'_>,
        layers: Layers<'_>,
        sight: Sight<'_>,
        mut d: MatMut<'_>,
        sinks: &mut Sinks<'_>,
        observe: Observed<'_>,
        stack: &mut Stack<'_>,
    ) {
        let (rows, d_model) = (sight.rows, self.d_model);
        let mut end = self.states.len() - 1;
        if let Some(norm) = layers.final_norm() {
            let last = self.state(end, rows);
            let (mut inner, _) = take(stack, rows, d_model);
            inner.copy_from(d.as_ref());
            let (moments, dy, write) = (&self.moments[..rows], inner.as_ref(), Write::Replace);
            let dx = d.reborrow();
            let gradients = &mut *sinks.gradients;
            norm.backward(pass.call, pass.parameters, moments, last, dy, write, dx, gradients);
        }
        observe(self.layers.len(), d.as_ref());
        for (index, kept) in self.layers.iter().enumerate().rev() {
            let layer = layers.layer(index);
            end -= layer.sublayers();
            let x = |sublayer: usize| self.state(end + sublayer, rows);
            layer.backward(pass, index, sight, &x, kept, d.reborrow(), sinks, stack);
            observe(index, d.as_ref());
        }
    }

    fn state(&self, index: usize, rows: usize) -> Mat<'_> {
        Mat::new(&self.states[index][..rows * self.d_model], rows, self.d_model)
    }
}

/// The residual stream around the sublayers of one layer.
struct Stream<'a> {
    states: &'a mut [Vec<f32>],
    rows: usize,
    d_model: usize,
}

impl Stream<'_> {
    /// What was before sublayers `x` and `residual`, and what comes behind the latter.
    fn step(&mut self, x: usize, residual: usize) -> ([Mat<'_>; 2], MatMut<'_>) {
        let Stream { rows, d_model, .. } = *self;
        let (before, behind) = self.states.split_at_mut(residual + 1);
        let size = rows * d_model;
        let of = |index: usize| Mat::new(&before[index][..size], rows, d_model);
        ([of(x), of(residual)], MatMut::new(&mut behind[0][..size], rows, d_model))
    }
}

impl Layer<'_> {
    fn forward(
        &self,
        pass: &TrainingPass<'_>,
        index: usize,
        sight: Sight<'_>,
        mut stream: Stream<'_>,
        kept: &mut LayerKept,
        stack: &mut Stack<'_>,
    ) {
        let Sight { segments, source, .. } = sight;
        let (attention, norm) = self.attention;
        let (around, inner) = &mut kept.attention;
        let (read, out) = stream.step(0, 0);
        let site = self.site(norm, index, 0);
        sublayer_saving(pass, site, read, around, out, stack, |z, residual, out, stack| {
            attention.apply(pass, z, segments, inner, residual, out, stack);
        });
        let crossing = self.cross.zip(kept.cross.as_mut()).zip(source);
        if let Some((((cross, norm), (around, inner)), source)) = crossing {
            let (read, out) = stream.step(1, 1);
            let site = self.site(norm, index, 1);
            sublayer_saving(pass, site, read, around, out, stack, |z, residual, out, stack| {
                cross.apply(pass, z, source, inner, residual, out, stack);
            });
        }
        let last = self.sublayers() - 1;
        let (feed_forward, norm) = self.feed_forward;
        let (around, inner) = &mut kept.feed_forward;
        // Side by side, both read what enters the layer.
        let x = if self.placement == NormPlacement::Parallel { 0 } else { last };
        let (read, out) = stream.step(x, last);
        let site = self.site(norm, index, 2);
        sublayer_saving(pass, site, read, around, out, stack, |z, residual, out, stack| {
            feed_forward.apply(pass, z, inner, residual, out, stack);
        });
    }

    /// `x` gives what was before a sublayer.
    #[expect(
        clippy::too_many_arguments,
        reason = "what the layer read and kept, and its gradients"
    )]
    fn backward<'x>(
        &self,
        pass: &TrainingPass<'_>,
        index: usize,
        sight: Sight<'_>,
        x: &dyn Fn(usize) -> Mat<'x>,
        kept: &LayerKept,
        mut d: MatMut<'_>,
        sinks: &mut Sinks<'_>,
        stack: &mut Stack<'_>,
    ) {
        let Sight { segments, source, .. } = sight;
        let Sinks { gradients, d_encoded, d_table } = sinks;
        let ((attention, norm), (feed_forward, last_norm)) = (self.attention, self.feed_forward);
        let ((around, inner), (last_around, last_inner)) = (&kept.attention, &kept.feed_forward);
        let (site, last_site) = (self.site(norm, index, 0), self.site(last_norm, index, 2));
        let d_table = d_table.as_mut().map(MatMut::reborrow);
        let attend = |z: Mat<'_>, write, d: MatMut<'_>, g: &mut [f32], stack: &mut Stack<'_>| {
            attention.backward(pass, z, segments, inner, write, d, g, d_table, stack);
        };
        let feed = |z: Mat<'_>, write, d: MatMut<'_>, g: &mut [f32], stack: &mut Stack<'_>| {
            feed_forward.backward(pass, z, last_inner, write, d, g, stack);
        };
        if self.placement == NormPlacement::Parallel {
            let (mut second, mut stack) = take(stack, d.rows(), d.cols());
            let (mut first, mut stack) = take(&mut stack, d.rows(), d.cols());
            let (dy, to, mask) = (d.as_ref(), second.reborrow(), last_site.mask);
            branch_backward(pass, mask, last_around, dy, to, gradients, &mut stack, feed);
            let (dy, to, mask) = (d.as_ref(), first.reborrow(), site.mask);
            branch_backward(pass, mask, around, dy, to, gradients, &mut stack, attend);
            let (x, second, to) = (x(0), second.as_ref(), d.reborrow());
            norm_backward(pass, last_norm, last_around, x, second, to, gradients);
            return norm_backward(pass, norm, around, x, first.as_ref(), d, gradients);
        }
        let read = x(self.sublayers() - 1);
        let to = d.reborrow();
        sublayer_backward(pass, last_site, read, last_around, to, gradients, stack, feed);
        let crossing = self.cross.zip(kept.cross.as_ref()).zip(source).zip(d_encoded.as_mut());
        if let Some(((((cross, norm), (around, inner)), source), d_encoded)) = crossing {
            let (site, to) = (self.site(norm, index, 1), d.reborrow());
            sublayer_backward(
                pass,
                site,
                x(1),
                around,
                to,
                gradients,
                stack,
                |z, write, d, g, stack| {
                    let to = d_encoded.reborrow();
                    cross.backward(pass, z, source, inner, write, d, g, to, stack);
                },
            );
        }
        sublayer_backward(pass, site, x(0), around, d, gradients, stack, attend);
    }
}
