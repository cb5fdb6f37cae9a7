//! Which tensors make one layer, whichever family's names these have.

use super::Part;
use super::names::LayerNames;
use crate::config::{Gating, StackConfig};

/// One layer of a stack, whose tensors' names begin alike.
pub(super) struct Layer<'a> {
    pub(super) stack: &'a StackConfig,
    pub(super) d_model: usize,
    /// From 0 up.
    pub(super) number: usize,
    /// What the names begin with.
    pub(super) prefix: String,
}

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

impl Layer<'_> {
    /// The layer's tensors, where each map is one.
    pub(super) fn parts(&self, names: &LayerNames) -> LayerParts {
        let inner = match (self.stack.gating, names.gated) {
            (Gating::Gated, Some(pair)) => pair.map(|name| self.inner(name)).into(),
            _ => vec![self.inner(names.inner)],
        };
        LayerParts {
            qkv: self.projections(names.qkv).into(),
            output: self.output(names.attention_output),
            attention_norm: self.name(names.attention_norm),
            cross: names.cross.map(|cross| CrossParts {
                qkv: self.projections(cross.qkv),
                output: self.output(cross.output),
                norm: self.name(cross.norm),
            }),
            inner,
            outer: self.outer(names.outer),
            feed_forward_norm: self.name(names.feed_forward_norm),
        }
    }

    /// The whole name of a part.
    pub(super) fn name(&self, part: &str) -> String {
        format!("{}{part}", self.prefix)
    }

    /// The three maps to queries, keys and values, a tensor each.
    fn projections(&self, [query, key, value]: [&str; 3]) -> [Part; 3] {
        let (stack, d_model) = (self.stack, self.d_model);
        [
            Part::new(self.name(query), stack.heads * stack.d_k, d_model),
            Part::new(self.name(key), stack.kv_heads * stack.d_k, d_model)
                .with_bias(stack.biases.keys),
            Part::new(self.name(value), stack.kv_heads * stack.d_v, d_model),
        ]
        .map(|part| part.with_bias(stack.biases.queries_keys_values))
    }

    /// The same in one tensor.
    pub(super) fn fused(&self, name: &str) -> Part {
        let stack = self.stack;
        let maps =
            [stack.heads * stack.d_k, stack.kv_heads * stack.d_k, stack.kv_heads * stack.d_v];
        let part = Part::new(self.name(name), maps.iter().sum(), self.d_model).fused(&maps);
        part.with_bias(stack.biases.queries_keys_values)
    }

    /// The map from the heads side by side back to d_model.
    pub(super) fn output(&self, name: &str) -> Part {
        let width = self.stack.heads * self.stack.d_v;
        let part = Part::new(self.name(name), self.d_model, width);
        part.with_bias(self.stack.biases.attention_output)
    }

    /// A map into the feed-forward network.
    pub(super) fn inner(&self, name: &str) -> Part {
        let part = Part::new(self.name(name), self.stack.d_ff, self.d_model);
        part.with_bias(self.stack.biases.feed_forward)
    }

    /// The map out of it.
    pub(super) fn outer(&self, name: &str) -> Part {
        let part = Part::new(self.name(name), self.d_model, self.stack.d_ff);
        part.with_bias(self.stack.biases.feed_forward)
    }
}
