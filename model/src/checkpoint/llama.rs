//! Llama, Mistral and Qwen 2 folders: RMSNorm before each sublayer, rotary positions, SwiGLU, grouped heads.

use super::names::{DecoderNames, LM_HEAD, LayerNames, StackNames, sized, usual_field, without};
use super::{Family, Reader, Reading};
use crate::config::{
    Biases, Config, Fields, Gating, Input, NormKind, NormPlacement, RelativePositions, StackConfig,
    TokenInput,
};
use crate::error::Result;
use crate::transformer::Transformer;

pub(super) const LLAMA: Reading = Reading {
    family: Family::Llama,
    name: "Llama",
    words: &["llama"],
    config,
    field,
    canonical: |name| without("model.", name),
    build,
    harmless,
};

pub(super) const MISTRAL: Reading =
    Reading { family: Family::Mistral, name: "Mistral", words: &["mistral"], ..LLAMA };

pub(super) const QWEN2: Reading =
    Reading { family: Family::Qwen2, name: "Qwen 2", words: &["qwen2"], ..LLAMA };

const NAMES: DecoderNames = DecoderNames {
    words: "embed_tokens.weight",
    stack: StackNames { final_norm: Some("norm"), ..StackNames::PLAIN },
    narrowing: None,
    read_out: LM_HEAD,
};

const LAYER: LayerNames = LayerNames {
    qkv: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    attention_output: "self_attn.o_proj",
    attention_norm: "input_layernorm",
    cross: None,
    inner: "mlp.up_proj",
    gated: Some(["mlp.gate_proj", "mlp.up_proj"]),
    outer: "mlp.down_proj",
    feed_forward_norm: "post_attention_layernorm",
};

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    let d_model = fields.size("hidden_size", None)?;
    let tokens = TokenInput::words(fields.size("vocab_size", None)?, d_model);
    let (activation, activation_word) = fields.activation("hidden_act", "silu")?;
    let paper = sized(fields, usual_field, Input::Tokens(tokens), d_model)?;
    let d_k = fields.size("head_dim", Some(paper.d_k))?;
    let (biases, window) = (biases(fields, family)?, window(fields, family)?);
    let mut config = Config::empty(family, d_model);
    config.decoder = Some(StackConfig {
        kv_heads: kv_heads(fields, family, paper.heads)?,
        d_k,
        d_v: d_k,
        relative: RelativePositions::Rotary(fields.rotary(d_k)?),
        window,
        activation,
        activation_word,
        gating: Gating::Gated,
        norm: NormKind::Rms,
        epsilon: fields.number("rms_norm_eps", 1e-6)? as f32,
        placement: NormPlacement::Pre,
        final_norm: true,
        biases,
        ..paper
    });
    config.read_out.tied = fields.flag("tie_word_embeddings", false)?;
    config.special = fields.special_tokens()?;
    Ok(config)
}

/// Heads of keys and values. `null` means as many as there are heads; so does silence, in Llama's.
fn kv_heads(fields: &Fields<'_>, family: Family, heads: usize) -> Result<usize> {
    let silent = match family {
        Family::Mistral => 8,
        Family::Qwen2 => 32,
        _ => heads,
    };
    let default = if fields.names_field("num_key_value_heads") { heads } else { silent };
    fields.size("num_key_value_heads", Some(default))
}

/// Llama's are options. Qwen 2 has those of queries, keys and values always, Mistral none, and both no others.
fn biases(fields: &Fields<'_>, family: Family) -> Result<Biases> {
    let option = |field| match family {
        Family::Llama => fields.flag(field, false),
        _ => fields.expect_flag(field, false).map(|()| false),
    };
    let (attention, feed_forward) = match family {
        Family::Qwen2 => (false, option("mlp_bias")?),
        _ => (option("attention_bias")?, option("mlp_bias")?),
    };
    Ok(Biases {
        queries_keys_values: attention || family == Family::Qwen2,
        keys: true,
        attention_output: attention,
        feed_forward,
        norms: false,
    })
}

/// The sliding window, which Mistral alone has in every layer: 4096 tokens unless the file says otherwise, or
/// `null` for none. Qwen 2 names one that is only used where other fields say so, and then not in all layers.
fn window(fields: &Fields<'_>, family: Family) -> Result<Option<usize>> {
    match family {
        Family::Mistral if fields.get("sliding_window").is_some() => {
            fields.size("sliding_window", None).map(Some)
        }
        Family::Mistral if fields.names_field("sliding_window") => Ok(None),
        Family::Mistral => Ok(Some(4096)),
        Family::Qwen2 => {
            fields.expect_flag("use_sliding_window", false)?;
            for word in fields.words("layer_types")? {
                if word != "full_attention" {
                    return Err(fields.unsupported(
                        "layer_types",
                        &word,
                        " (expected full_attention)",
                    ));
                }
            }
            Ok(None)
        }
        _ => Ok(None),
    }
}

fn field(field: &'static str) -> &'static str {
    match field {
        "epsilon" => "rms_norm_eps",
        other => usual_field(other),
    }
}

/// Frequencies that older versions saved, and a tied read-out saved twice.
fn harmless(config: &Config, name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq") || (config.read_out.tied && name == LM_HEAD)
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    reader.decoder_only(config, &NAMES, |layer| layer.parts(&LAYER))
}
