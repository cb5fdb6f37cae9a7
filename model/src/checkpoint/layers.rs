//! Parts of layers from parts of files: what all families have in common.

use super::{Part, Reader};
use crate::attention::{CrossAttention, SelfAttention};
use crate::config::{Config, Gating, Positions, RelativePositions, StackConfig, TokenInput};
use crate::decoder::DecoderLayer;
use crate::embedding::{ReadOut, Words};
use crate::encoder::EncoderLayer;
use crate::error::Result;
use crate::feed_forward::FeedForward;
use crate::linear::Linear;
use crate::position::{LearnedPositions, PositionTable};
use crate::sublayer::Norm;
use headrow_kernels::AttentionShape;
use std::sync::Arc;

/// What a family calls the parts of a layer whose maps are stored one by one, outputs first.
pub(super) struct LayerNames {
    /// The maps to queries, keys and values.
    pub(super) qkv: [&'static str; 3],
    pub(super) attention_output: &'static str,
    pub(super) attention_norm: &'static str,
    pub(super) inner: &'static str,
    pub(super) outer: &'static str,
    pub(super) feed_forward_norm: &'static str,
}

/// Hugging Face's usual word for a field of [`Config`](crate::config::Config), for messages.
pub(super) fn usual_field(field: &'static str) -> &'static str {
    match field {
        "vocabulary" => "vocab_size",
        "positions" => "max_position_embeddings",
        "d_model" | "width" => "hidden_size",
        "layers" => "num_hidden_layers",
        "heads" => "num_attention_heads",
        "kv_heads" => "num_key_value_heads",
        "d_k" | "d_v" => "head_dim",
        "d_ff" => "intermediate_size",
        "epsilon" => "layer_norm_eps",
        "window" => "sliding_window",
        other => other,
    }
}

/// The three maps to queries, keys and values under these names.
pub(super) fn projections(stack: &StackConfig, d_model: usize, names: [String; 3]) -> [Part; 3] {
    let [query, key, value] = names;
    [
        Part::new(query, stack.heads * stack.d_k, d_model),
        Part::new(key, stack.kv_heads * stack.d_k, d_model).with_bias(stack.biases.keys),
        Part::new(value, stack.kv_heads * stack.d_v, d_model),
    ]
    .map(|part| part.with_bias(stack.biases.queries_keys_values))
}

/// Outputs of the maps to queries, keys and values, where one tensor has all of them.
pub(super) fn qkv_width(stack: &StackConfig) -> usize {
    stack.heads * stack.d_k + stack.kv_heads * (stack.d_k + stack.d_v)
}

/// The map from the heads side by side back to d_model.
pub(super) fn output(stack: &StackConfig, d_model: usize, name: &str) -> Part {
    let width = stack.heads * stack.d_v;
    Part::new(name, d_model, width).with_bias(stack.biases.attention_output)
}

/// A stack's heads in layer `layer`.
fn shape(stack: &StackConfig, layer: usize) -> AttentionShape {
    let shape = AttentionShape::new(stack.heads, stack.kv_heads, stack.d_k, stack.d_v)
        .with_scale(stack.scale.factor(stack.d_k, layer));
    match stack.softcap {
        Some(cap) => shape.with_softcap(cap),
        None => shape,
    }
}

impl Reader<'_> {
    /// Layer `layer` of an encoder, the names of whose parts follow `prefix`.
    pub(super) fn encoder_layer(
        &mut self,
        stack: &StackConfig,
        d_model: usize,
        layer: usize,
        prefix: &str,
        names: &LayerNames,
    ) -> Result<EncoderLayer> {
        let name = |part: &str| format!("{prefix}{part}");
        let qkv = projections(stack, d_model, names.qkv.map(name));
        let output = output(stack, d_model, &name(names.attention_output));
        let map = |part, outputs, inputs| {
            Part::new(name(part), outputs, inputs).with_bias(stack.biases.feed_forward)
        };
        let (inner, outer) =
            (map(names.inner, stack.d_ff, d_model), map(names.outer, d_model, stack.d_ff));
        Ok(EncoderLayer {
            placement: stack.placement,
            attention: self.self_attention(stack, layer, &qkv, output)?,
            attention_norm: self.stack_norm(stack, d_model, &name(names.attention_norm))?,
            feed_forward: self.feed_forward(stack, &[inner], outer)?,
            feed_forward_norm: self.stack_norm(stack, d_model, &name(names.feed_forward_norm))?,
        })
    }

    /// Layer `layer` of a decoder, as [`Reader::encoder_layer`]; `cross` is what it has between the two sublayers.
    pub(super) fn decoder_layer(
        &mut self,
        stack: &StackConfig,
        d_model: usize,
        layer: usize,
        prefix: &str,
        names: &LayerNames,
        cross: Option<(CrossAttention, Norm)>,
    ) -> Result<DecoderLayer> {
        let EncoderLayer { placement, attention, attention_norm, feed_forward, feed_forward_norm } =
            self.encoder_layer(stack, d_model, layer, prefix, names)?;
        Ok(DecoderLayer {
            placement,
            attention,
            attention_norm,
            cross,
            feed_forward,
            feed_forward_norm,
        })
    }

    /// The norm that ends a stack, where it has one.
    pub(super) fn final_norm(
        &mut self,
        stack: &StackConfig,
        d_model: usize,
        name: &str,
    ) -> Result<Option<Norm>> {
        stack.final_norm.then(|| self.stack_norm(stack, d_model, name)).transpose()
    }

    /// Self-attention of a layer: queries, keys and values, in one part or several, and the output map.
    pub(super) fn self_attention(
        &mut self,
        stack: &StackConfig,
        layer: usize,
        qkv: &[Part],
        output: Part,
    ) -> Result<SelfAttention> {
        let (qkv, output) = (self.linear(qkv)?, self.linear(&[output])?);
        Ok(SelfAttention { shape: shape(stack, layer), qkv, output })
    }

    /// Attention of a decoder's layer to the encoder's output.
    pub(super) fn cross_attention(
        &mut self,
        stack: &StackConfig,
        layer: usize,
        [query, key, value]: [Part; 3],
        output: Part,
    ) -> Result<CrossAttention> {
        Ok(CrossAttention {
            shape: shape(stack, layer),
            query: self.linear(&[query])?,
            key_value: self.linear(&[key, value])?,
            output: self.linear(&[output])?,
        })
    }

    /// The feed-forward network. Where it is gated, the map that is activated comes first in `inner`.
    pub(super) fn feed_forward(
        &mut self,
        stack: &StackConfig,
        inner: &[Part],
        outer: Part,
    ) -> Result<FeedForward> {
        let (inner, outer) = (self.linear(inner)?, self.linear(&[outer])?);
        let gated = stack.gating == Gating::Gated;
        Ok(FeedForward { inner, activation: stack.activation, gated, outer })
    }

    /// A norm of a stack's kind, with β where it is a LayerNorm.
    pub(super) fn stack_norm(
        &mut self,
        stack: &StackConfig,
        d_model: usize,
        name: &str,
    ) -> Result<Norm> {
        self.norm(stack.norm, name, d_model, stack.epsilon, stack.biases.norms)
    }

    /// What the input adds for positions; a learned table is `name.weight`.
    pub(super) fn positions(
        &mut self,
        tokens: &TokenInput,
        d_model: usize,
        name: &str,
    ) -> Result<PositionTable> {
        Ok(match tokens.positions {
            Positions::None => PositionTable::None,
            Positions::Sinusoidal { first, .. } => {
                PositionTable::Sinusoidal { first: first as u32 }
            }
            Positions::Learned { rows, first, padding } => {
                let shape = [rows, tokens.sum_width(d_model)];
                let table = self.tensor(&format!("{name}.weight"), &shape)?;
                PositionTable::Learned(LearnedPositions { table, first: first as u32, padding })
            }
        })
    }

    /// Biases of positions by bucket, `name.weight`, buckets × heads; none in a stack without.
    pub(super) fn buckets(&mut self, stack: &StackConfig, name: &str) -> Result<Vec<f32>> {
        match stack.relative {
            RelativePositions::Buckets { buckets, .. } => {
                self.tensor(&format!("{name}.weight"), &[buckets, stack.heads])
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The read-out with the words of the embedding, where they are tied, or with `name`, v × width.
    pub(super) fn read_out(
        &mut self,
        tied: Option<&Arc<Words>>,
        name: &str,
        vocabulary: usize,
        width: usize,
    ) -> Result<ReadOut> {
        let words = match tied {
            Some(words) => Arc::clone(words),
            None => self.words(name, vocabulary, width, true)?,
        };
        Ok(ReadOut { projection: None, scale: 1.0, words, bias: None })
    }

    /// The map from states to labels, which are as many as the file has and the config names.
    pub(super) fn labels(&mut self, config: &Config, name: &str) -> Result<Linear> {
        let named = config.labels.len();
        let shape = self.shape(&format!("{name}.weight"));
        let labels = shape.and_then(|shape| shape.first().copied()).unwrap_or(named);
        if named != 0 && named != labels {
            self.problem(|| format!("{name} has {labels} labels, the config names {named}"));
        }
        self.linear(&[Part::new(name, labels, config.d_model)])
    }
}
