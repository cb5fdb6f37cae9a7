//! Tables of names: what families call their tensors and their fields.

use crate::config::{Fields, Input, StackConfig};
use crate::error::{Error, Result};

/// The read-out of most families, where it is not tied.
pub(super) const LM_HEAD: &str = "lm_head.weight";

/// What a family calls the tensors of a stack beside its words and what is in its layers. What a family never has is
/// `None`.
#[derive(Clone, Copy)]
pub(super) struct StackNames {
    /// Before all the others.
    pub(super) prefix: &'static str,
    /// Before the number of a layer.
    pub(super) layers: &'static str,
    /// A learned table of positions.
    pub(super) positions: Option<&'static str>,
    /// The table of token types.
    pub(super) types: Option<&'static str>,
    /// The norm of what enters the first layer.
    pub(super) input_norm: Option<&'static str>,
    /// The map to d_model from words of another width; without a bias.
    pub(super) projection: Option<&'static str>,
    /// The norm behind the last layer.
    pub(super) final_norm: Option<&'static str>,
    /// Biases of positions by bucket.
    pub(super) buckets: Option<&'static str>,
}

impl StackNames {
    /// Layers alone, which are called so.
    pub(super) const PLAIN: StackNames = StackNames {
        prefix: "",
        layers: "layers.",
        positions: None,
        types: None,
        input_norm: None,
        projection: None,
        final_norm: None,
        buckets: None,
    };

    /// The whole name of a part of the stack.
    pub(super) fn whole(&self, part: &str) -> String {
        format!("{}{part}", self.prefix)
    }

    /// The whole name of a tensor that `field` of the config asks for.
    ///
    /// # Errors
    /// [`Error::Config`] when the family has none: a config may be changed after it was read.
    pub(super) fn of(&self, part: Option<&str>, field: &str) -> Result<String> {
        part.map(|part| self.whole(part)).ok_or_else(|| absent(field))
    }
}

/// The config asks for what a family has no name for.
pub(super) fn absent(field: &str) -> Error {
    Error::config("config", field, "this family has no tensors for it")
}

/// What a family calls the parts of a layer whose maps are stored one by one, outputs first.
#[derive(Clone, Copy)]
pub(super) struct LayerNames {
    /// The maps to queries, keys and values.
    pub(super) qkv: [&'static str; 3],
    pub(super) attention_output: &'static str,
    pub(super) attention_norm: &'static str,
    /// Attention to an encoder's output, of layers that have it.
    pub(super) cross: Option<CrossNames>,
    /// Into the feed-forward network.
    pub(super) inner: &'static str,
    /// The same of a gated one: the map that is activated, and the other.
    pub(super) gated: Option<[&'static str; 2]>,
    pub(super) outer: &'static str,
    pub(super) feed_forward_norm: &'static str,
}

/// What a family calls the parts of a layer's attention to an encoder's output.
#[derive(Clone, Copy)]
pub(super) struct CrossNames {
    /// The maps to queries, keys and values.
    pub(super) qkv: [&'static str; 3],
    pub(super) output: &'static str,
    pub(super) norm: &'static str,
}

/// What a family of decoders calls the tensors outside of its layers.
pub(super) struct DecoderNames {
    pub(super) words: &'static str,
    pub(super) stack: StackNames,
    /// The map from d_model to words of another width, in front of the read-out; without a bias.
    pub(super) narrowing: Option<&'static str>,
    pub(super) read_out: &'static str,
}

/// A name without what some ways of saving put before it.
pub(super) fn without(prefix: &str, name: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_owned()
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

/// A stack of the paper's form with the sizes of a config, whose words for them `field` has.
pub(super) fn sized(
    fields: &Fields<'_>,
    field: fn(&'static str) -> &'static str,
    input: Input,
    d_model: usize,
) -> Result<StackConfig> {
    let size = |ours| fields.size(field(ours), None);
    Ok(StackConfig::paper(input, size("layers")?, d_model, size("heads")?, size("d_ff")?))
}
