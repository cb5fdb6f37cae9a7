//! Llama, Mistral and Qwen 2 folders: RMSNorm before each sublayer, rotary positions, SwiGLU, grouped heads.

use super::layers::{output, projections, usual_field};
use super::{Family, Part, Reader, Reading};
use crate::config::{
    Biases, Config, Fields, Gating, Input, NormKind, RelativePositions, StackConfig, TokenInput,
};
use crate::decoder::{Decoder, DecoderLayer};
use crate::embedding::Embedding;
use crate::error::Result;
use crate::sublayer::NormPlacement;
use crate::transformer::Transformer;

pub(super) const LLAMA: Reading = Reading {
    family: Family::Llama,
    name: "Llama",
    words: &["llama"],
    config,
    field,
    canonical: |name| name.strip_prefix("model.").unwrap_or(name).to_owned(),
    build,
    harmless,
};

pub(super) const MISTRAL: Reading =
    Reading { family: Family::Mistral, name: "Mistral", words: &["mistral"], ..LLAMA };

pub(super) const QWEN2: Reading =
    Reading { family: Family::Qwen2, name: "Qwen 2", words: &["qwen2"], ..LLAMA };

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    let d_model = fields.size("hidden_size", None)?;
    let heads = fields.size("num_attention_heads", None)?;
    let tokens = TokenInput::words(fields.size("vocab_size", None)?, d_model);
    let (activation, activation_word) = fields.activation("hidden_act", "silu")?;
    let paper = StackConfig::paper(
        Input::Tokens(tokens),
        fields.size("num_hidden_layers", None)?,
        d_model,
        heads,
        fields.size("intermediate_size", None)?,
    );
    let d_k = fields.size("head_dim", Some(paper.d_k))?;
    let (biases, window) = (biases(fields, family)?, window(fields, family)?);
    let mut config = Config::empty(family, d_model);
    config.decoder = Some(StackConfig {
        kv_heads: kv_heads(fields, family, heads)?,
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
    name.ends_with("rotary_emb.inv_freq") || (config.read_out.tied && name == "lm_head.weight")
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    let stack = config.decoder()?;
    let tokens = stack.token_input()?;
    let (d, d_ff, tied) = (config.d_model, stack.d_ff, config.read_out.tied);
    let words = reader.words("embed_tokens.weight", tokens.vocabulary, d, tied)?;
    let layers = (0..reader.layers("layers.", stack.layers)).map(|layer| {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let qkv = ["q_proj", "k_proj", "v_proj"].map(|map| name(&format!("self_attn.{map}")));
        let qkv = projections(stack, d, qkv);
        let output = output(stack, d, &name("self_attn.o_proj"));
        let map = |part, outputs, inputs| {
            Part::new(name(part), outputs, inputs).with_bias(stack.biases.feed_forward)
        };
        let inner = [map("mlp.gate_proj", d_ff, d), map("mlp.up_proj", d_ff, d)];
        let outer = map("mlp.down_proj", d, d_ff);
        Ok(DecoderLayer {
            placement: stack.placement,
            attention: reader.self_attention(stack, layer, &qkv, output)?,
            attention_norm: reader.stack_norm(stack, d, &name("input_layernorm"))?,
            cross: None,
            feed_forward: reader.feed_forward(stack, &inner, outer)?,
            feed_forward_norm: reader.stack_norm(stack, d, &name("post_attention_layernorm"))?,
        })
    });
    let layers = layers.collect::<Result<Vec<DecoderLayer>>>()?;
    let final_norm = Some(reader.stack_norm(stack, d, "norm")?);
    let read_out =
        reader.read_out(tied.then_some(&words), "lm_head.weight", tokens.vocabulary, d)?;
    let embedding = Embedding::plain(words, tokens);
    let decoder = Decoder { layers, final_norm, buckets: Vec::new() };
    Ok(Transformer::decoder_only(embedding, decoder, read_out))
}
