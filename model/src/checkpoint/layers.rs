//! Stacks and their layers, from the tensors that a family names.

use super::Reader;
use super::names::{StackNames, absent};
use super::parts::{CrossParts, Layer, LayerParts};
use crate::attention::{CrossAttention, SelfAttention};
use crate::config::{Config, Gating, RelativePositions, StackConfig};
use crate::decoder::{Decoder, DecoderLayer};
use crate::encoder::{Encoder, EncoderLayer};
use crate::error::Result;
use crate::feed_forward::FeedForward;
use crate::origin::{Initial, Values};
use crate::sublayer::Norm;
use headrow_kernels::AttentionShape;

impl Reader<'_> {
    /// The encoder, the tensors of whose layers `parts` gives.
    pub(super) fn encoder(
        &mut self,
        config: &Config,
        names: &StackNames,
        parts: impl Fn(&Layer<'_>) -> LayerParts,
    ) -> Result<Encoder> {
        let stack = config.encoder()?;
        let (layers, final_norm, buckets) =
            self.stack((stack, config.d_model), names, |reader, layer| {
                reader.encoder_layer(layer, parts(layer))
            })?;
        Ok(Encoder { depth: stack.layers, layers, final_norm, buckets })
    }

    /// The decoder, as [`Reader::encoder`].
    pub(super) fn decoder(
        &mut self,
        config: &Config,
        names: &StackNames,
        parts: impl Fn(&Layer<'_>) -> LayerParts,
    ) -> Result<Decoder> {
        let stack = (config.decoder()?, config.d_model);
        let (layers, final_norm, buckets) =
            self.stack(stack, names, |reader, layer| reader.decoder_layer(layer, parts(layer)))?;
        Ok(Decoder { layers, final_norm, buckets })
    }

    /// What `assemble` makes of the layers of a stack, one after the other, the norm behind them, and the biases of positions.
    fn stack<T>(
        &mut self,
        (stack, d_model): (&StackConfig, usize),
        names: &StackNames,
        assemble: impl Fn(&mut Self, &Layer<'_>) -> Result<T>,
    ) -> Result<(Vec<T>, Option<Norm>, Values)> {
        let before = names.whole(names.layers);
        let numbers = 0..self.layers(&before, stack.distinct_layers);
        let layers = numbers.map(|number| {
            let prefix = format!("{before}{number}.");
            assemble(self, &Layer { stack, d_model, number, prefix })
        });
        let layers = layers.collect::<Result<Vec<T>>>()?;
        let final_norm = self.final_norm((stack, d_model), names)?;
        Ok((layers, final_norm, self.buckets(stack, names)?))
    }

    fn encoder_layer(&mut self, layer: &Layer<'_>, parts: LayerParts) -> Result<EncoderLayer> {
        let LayerParts { qkv, output, attention_norm, inner, outer, feed_forward_norm, .. } = parts;
        let &Layer { stack, d_model, .. } = layer;
        let (qkv, output) = (self.linear(&qkv)?, self.linear(&[output])?);
        let attention = SelfAttention { shape: shape(layer), qkv, output };
        let attention_norm = self.stack_norm(stack, d_model, &attention_norm)?;
        let gated = stack.gating == Gating::Gated;
        if gated != (inner.len() == 2) {
            return Err(absent("gating"));
        }
        let (inner, outer) = (self.linear(&inner)?, self.linear(&[outer])?);
        Ok(EncoderLayer {
            placement: stack.placement,
            attention,
            attention_norm,
            feed_forward: FeedForward { inner, activation: stack.activation, gated, outer },
            feed_forward_norm: self.stack_norm(stack, d_model, &feed_forward_norm)?,
        })
    }

    fn decoder_layer(&mut self, layer: &Layer<'_>, mut parts: LayerParts) -> Result<DecoderLayer> {
        let cross = match parts.cross.take() {
            Some(cross) => Some(self.cross_attention(layer, cross)?),
            None => None,
        };
        let EncoderLayer { placement, attention, attention_norm, feed_forward, feed_forward_norm } =
            self.encoder_layer(layer, parts)?;
        Ok(DecoderLayer {
            placement,
            attention,
            attention_norm,
            cross,
            feed_forward,
            feed_forward_norm,
        })
    }

    fn cross_attention(
        &mut self,
        layer: &Layer<'_>,
        parts: CrossParts,
    ) -> Result<(CrossAttention, Norm)> {
        let [query, key, value] = parts.qkv;
        let attention = CrossAttention {
            shape: shape(layer),
            query: self.linear(&[query])?,
            key_value: self.linear(&[key, value])?,
            output: self.linear(&[parts.output])?,
        };
        Ok((attention, self.stack_norm(layer.stack, layer.d_model, &parts.norm)?))
    }

    /// A norm of a stack's kind, with β where it is a LayerNorm.
    pub(super) fn stack_norm(
        &mut self,
        stack: &StackConfig,
        features: usize,
        name: &str,
    ) -> Result<Norm> {
        self.norm(stack.norm, name, features, stack.epsilon, stack.biases.norms)
    }

    /// The norm that ends a stack, where it has one.
    fn final_norm(
        &mut self,
        (stack, d_model): (&StackConfig, usize),
        names: &StackNames,
    ) -> Result<Option<Norm>> {
        if !stack.final_norm {
            return Ok(None);
        }
        let name = names.of(names.final_norm, "final_norm")?;
        self.stack_norm(stack, d_model, &name).map(Some)
    }

    /// Biases of positions by bucket, buckets × heads; none in a stack without.
    fn buckets(&mut self, stack: &StackConfig, names: &StackNames) -> Result<Values> {
        let RelativePositions::Buckets { buckets, .. } = stack.relative else {
            return Ok(Values::default());
        };
        let name = names.of(names.buckets, "relative")?;
        self.tensor(&format!("{name}.weight"), &[buckets, stack.heads], Initial::Zeros)
    }
}

/// A layer's heads.
fn shape(&Layer { stack, number, .. }: &Layer<'_>) -> AttentionShape {
    let shape = AttentionShape::new(stack.heads, stack.kv_heads, stack.d_k, stack.d_v)
        .with_scale(stack.scale.factor(stack.d_k, number));
    match stack.softcap {
        Some(cap) => shape.with_softcap(cap),
        None => shape,
    }
}
