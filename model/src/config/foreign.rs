//! Options of other models that would change the result, in the file of a family that does not have them.
//!
//! A `config.json` is full of fields that only training or another program reads, and new ones come with
//! every version of these: an unknown name cannot be an error by itself. The names below change what a
//! forward pass computes wherever they are obeyed, so a file in which one says something is not of the family that it
//! claims to be.

use super::Fields;
use crate::error::Result;
use serde_json::Value;

const FOREIGN: &[&str] = &[
    // Factors of scores, sums, embeddings and the read-out (Granite, MiniCPM, Cohere).
    "attention_multiplier",
    "residual_multiplier",
    "embedding_multiplier",
    "logits_scaling",
    "logit_scale",
    "scale_emb",
    "scale_depth",
    // Caps and factors of scores (Gemma 2).
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    // Norms and limits of queries and keys (Cohere, OLMo, Persimmon, MPT).
    "use_qk_norm",
    "qk_norm",
    "qk_layernorm",
    "clip_qkv",
    // Other attention, other places of norms (Falcon, Bloom, Llama 4).
    "alibi",
    "multi_query",
    "parallel_attn",
    "new_decoder_architecture",
    "apply_residual_connection_post_layernorm",
    "attention_chunk_size",
    "no_rope_layers",
    // Several feed-forward networks in the place of one (Mixtral, Qwen MoE, DeepSeek).
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    // Weights that are no plain numbers, heads that were cut out.
    "quantization_config",
    "pruned_heads",
];

impl Fields<'_> {
    /// No option of another kind of model says anything: each is absent, or `null`, `false`, or empty.
    pub(crate) fn refuse_foreign(&self) -> Result<()> {
        let silent = |value: &Value| match value {
            Value::Bool(on) => !on,
            Value::Array(items) => items.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        let found = FOREIGN.iter().find_map(|&name| {
            self.get(name).filter(|value| !silent(value)).map(|value| (name, value))
        });
        match found {
            Some((name, value)) => {
                let hint = " (an option of another kind of model)";
                Err(self.unsupported(name, &value.to_string(), hint))
            }
            None => Ok(()),
        }
    }
}
