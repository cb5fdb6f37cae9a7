//! Llama, Mistral and Qwen 2 folders: RMSNorm before each sublayer, rotary positions, SwiGLU, grouped heads.

use super::layers::{output, projections};
use super::{Family, Part, Reader, Reading};
use crate::config::{
    Biases, Config, Fields, Gating, Input, NormKind, Positions, RelativePositions, StackConfig,
    TokenInput,
};
use crate::decoder::{Decoder, DecoderLayer};
use crate::embedding::Embedding;
use crate::error::Result;
use crate::head::Heads;
use crate::sublayer::NormPlacement;
use crate::transformer::{Entrance, Transformer};

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
    let tokens = TokenInput {
        vocabulary: fields.size("vocab_size", None)?,
        width: d_model,
        scale: 1.0,
        token_types: 0,
        positions: Positions::None,
        norm: false,
    };
    let (activation, activation_word) = fields.activation("hidden_act", "silu")?;
    let paper = StackConfig::paper(
        Input::Tokens(tokens),
        fields.size("num_hidden_layers", None)?,
        d_model,
        heads,
        fields.size("intermediate_size", None)?,
    );
    let d_k = fields.size("head_dim", Some(paper.d_k))?;
    let attention_bias = fields.flag("attention_bias", false)?;
    let mut config = Config::empty(family, d_model);
    config.decoder = Some(StackConfig {
        kv_heads: fields.size("num_key_value_heads", Some(heads))?,
        d_k,
        d_v: d_k,
        relative: RelativePositions::Rotary(fields.rotary(d_k)?),
        window: window(fields, family)?,
        activation,
        activation_word,
        gating: Gating::Gated,
        norm: NormKind::Rms,
        epsilon: fields.number("rms_norm_eps", 1e-6)? as f32,
        placement: NormPlacement::Pre,
        final_norm: true,
        biases: Biases {
            // Qwen 2 has these biases always, and none of the output.
            queries_keys_values: attention_bias || family == Family::Qwen2,
            keys: true,
            attention_output: attention_bias,
            feed_forward: fields.flag("mlp_bias", false)?,
            norms: false,
        },
        ..paper
    });
    config.read_out.tied = fields.flag("tie_word_embeddings", false)?;
    config.special = fields.special_tokens()?;
    Ok(config)
}

/// The sliding window. Qwen 2 names one that is only used where a flag says so, and then not in all layers.
fn window(fields: &Fields<'_>, family: Family) -> Result<Option<usize>> {
    match family {
        Family::Qwen2 => {
            fields.expect_flag("use_sliding_window", false)?;
            Ok(None)
        }
        _ => match fields.get("sliding_window") {
            Some(_) => Ok(Some(fields.size("sliding_window", None)?)),
            None => Ok(None),
        },
    }
}

fn field(field: &'static str) -> &'static str {
    match field {
        "vocabulary" => "vocab_size",
        "d_model" | "width" => "hidden_size",
        "layers" => "num_hidden_layers",
        "heads" => "num_attention_heads",
        "kv_heads" => "num_key_value_heads",
        "d_k" | "d_v" => "head_dim",
        "d_ff" => "intermediate_size",
        "epsilon" => "rms_norm_eps",
        "window" => "sliding_window",
        other => other,
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
    Ok(Transformer {
        encoder: None,
        decoder: Some((Entrance::Embedding(embedding), decoder)),
        read_out: Some(read_out),
        heads: Heads::default(),
    })
}
