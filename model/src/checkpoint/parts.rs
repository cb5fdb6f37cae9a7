//! Whole layers from their parts, whichever family's names these have.

use super::{Part, Reader};
use crate::config::StackConfig;
use crate::decoder::DecoderLayer;
use crate::encoder::EncoderLayer;
use crate::error::Result;

/// The tensors of one layer.
pub(super) struct LayerParts {
    /// Maps to queries, keys and values: one part that has all, or several.
    pub(super) qkv: Vec<Part>,
    /// From the heads side by side back to d_model.
    pub(super) output: Part,
    pub(super) attention_norm: String,
    /// Of a layer that attends to an encoder's output.
    pub(super) cross: Option<CrossParts>,
    /// Into the feed-forward network; where it is gated, the map that is activated comes first.
    pub(super) inner: Vec<Part>,
    pub(super) outer: Part,
    pub(super) feed_forward_norm: String,
}

/// The tensors of a layer's attention to an encoder's output.
pub(super) struct CrossParts {
    /// The maps to queries, keys and values.
    pub(super) qkv: [Part; 3],
    pub(super) output: Part,
    pub(super) norm: String,
}

impl Reader<'_> {
    /// A stack's encoder layers, numbered behind `prefix`, whose tensors `parts` names.
    pub(super) fn encoder_layers(
        &mut self,
        (stack, d_model): (&StackConfig, usize),
        prefix: &str,
        parts: impl Fn(usize) -> LayerParts,
    ) -> Result<Vec<EncoderLayer>> {
        let layers = 0..self.layers(prefix, stack.distinct_layers);
        layers.map(|layer| self.assemble_encoder(stack, d_model, layer, parts(layer))).collect()
    }

    /// A stack's decoder layers, numbered behind `prefix`, whose tensors `parts` names.
    pub(super) fn decoder_layers(
        &mut self,
        (stack, d_model): (&StackConfig, usize),
        prefix: &str,
        parts: impl Fn(usize) -> LayerParts,
    ) -> Result<Vec<DecoderLayer>> {
        let layers = 0..self.layers(prefix, stack.layers);
        layers.map(|layer| self.assemble_decoder(stack, d_model, layer, parts(layer))).collect()
    }

    fn assemble_encoder(
        &mut self,
        stack: &StackConfig,
        d_model: usize,
        layer: usize,
        parts: LayerParts,
    ) -> Result<EncoderLayer> {
        Ok(EncoderLayer {
            placement: stack.placement,
            attention: self.self_attention(stack, layer, &parts.qkv, parts.output)?,
            attention_norm: self.stack_norm(stack, d_model, &parts.attention_norm)?,
            feed_forward: self.feed_forward(stack, &parts.inner, parts.outer)?,
            feed_forward_norm: self.stack_norm(stack, d_model, &parts.feed_forward_norm)?,
        })
    }

    fn assemble_decoder(
        &mut self,
        stack: &StackConfig,
        d_model: usize,
        layer: usize,
        mut parts: LayerParts,
    ) -> Result<DecoderLayer> {
        let cross = match parts.cross.take() {
            Some(CrossParts { qkv, output, norm }) => Some((
                self.cross_attention(stack, layer, qkv, output)?,
                self.stack_norm(stack, d_model, &norm)?,
            )),
            None => None,
        };
        let layer = self.assemble_encoder(stack, d_model, layer, parts)?;
        Ok(DecoderLayer {
            placement: layer.placement,
            attention: layer.attention,
            attention_norm: layer.attention_norm,
            cross,
            feed_forward: layer.feed_forward,
            feed_forward_norm: layer.feed_forward_norm,
        })
    }
}
