//! Tiny decoders: GPT-2, GPT-NeoX, OPT, Llama, Mistral and Qwen 2.

use super::{D, D_FF, LAYERS, POSITIONS, Random, Tiny, V};
use serde_json::{Value, json};

/// A family's config, unless it is none of these.
pub(super) fn config(family: &str) -> Option<Value> {
    let mut config = json!({
        "model_type": family, "vocab_size": V, "hidden_size": D, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "intermediate_size": D_FF, "max_position_embeddings": POSITIONS,
    });
    let more = match family {
        "gpt2" => json!({
            "vocab_size": V, "n_embd": D, "n_layer": LAYERS, "n_head": 3, "n_inner": D_FF,
            "n_positions": POSITIONS,
        }),
        "gpt_neox" => json!({"num_attention_heads": 3, "rotary_pct": 0.5}),
        "opt" => json!({"num_attention_heads": 3, "ffn_dim": D_FF, "word_embed_proj_dim": 17}),
        "llama" => json!({"num_key_value_heads": 2, "head_dim": 10}),
        "mistral" => json!({"num_key_value_heads": 1, "sliding_window": 5}),
        "qwen2" => json!({"num_key_value_heads": 2}),
        _ => return None,
    };
    for (field, value) in more.as_object()? {
        config[field] = value.clone();
    }
    Some(config)
}

/// Makes the tensors, unless the family is none of these.
pub(super) fn fill(tiny: &mut Tiny, family: &str, random: &mut Random) -> bool {
    match family {
        "gpt2" => gpt2(tiny, random),
        "gpt_neox" => gpt_neox(tiny, random),
        "opt" => opt(tiny, random),
        "llama" | "mistral" | "qwen2" => llama(tiny, family, random),
        _ => return false,
    }
    true
}

fn gpt2(tiny: &mut Tiny, random: &mut Random) {
    let (d, d_ff, vocabulary) =
        (tiny.size("n_embd"), tiny.size("n_inner"), tiny.size("vocab_size"));
    tiny.floats("transformer.wte.weight", &[vocabulary, d], random);
    tiny.floats("transformer.wpe.weight", &[tiny.size("n_positions"), d], random);
    for layer in 0..tiny.size("n_layer") {
        let name = |part: &str| format!("transformer.h.{layer}.{part}");
        let maps = [
            ("attn.c_attn", d, 3 * d),
            ("attn.c_proj", d, d),
            ("mlp.c_fc", d, d_ff),
            ("mlp.c_proj", d_ff, d),
        ];
        for (part, inputs, outputs) in maps {
            tiny.floats(&name(&format!("{part}.weight")), &[inputs, outputs], random);
            tiny.floats(&name(&format!("{part}.bias")), &[outputs], random);
        }
        tiny.norm(&name("ln_1"), d, random);
        tiny.norm(&name("ln_2"), d, random);
    }
    tiny.norm("transformer.ln_f", d, random);
    if !tiny.flag("tie_word_embeddings", true) {
        tiny.floats("lm_head.weight", &[vocabulary, d], random);
    }
}

fn gpt_neox(tiny: &mut Tiny, random: &mut Random) {
    let (d, d_ff) = (tiny.size("hidden_size"), tiny.size("intermediate_size"));
    let vocabulary = tiny.size("vocab_size");
    let bias = tiny.flag("attention_bias", true);
    tiny.floats("gpt_neox.embed_in.weight", &[vocabulary, d], random);
    for layer in 0..tiny.size("num_hidden_layers") {
        let name = |part: &str| format!("gpt_neox.layers.{layer}.{part}");
        tiny.map(&name("attention.query_key_value"), 3 * d, d, bias, random);
        tiny.map(&name("attention.dense"), d, d, bias, random);
        tiny.linear(&name("mlp.dense_h_to_4h"), d_ff, d, random);
        tiny.linear(&name("mlp.dense_4h_to_h"), d, d_ff, random);
        tiny.norm(&name("input_layernorm"), d, random);
        tiny.norm(&name("post_attention_layernorm"), d, random);
    }
    tiny.norm("gpt_neox.final_layer_norm", d, random);
    if !tiny.flag("tie_word_embeddings", false) {
        tiny.floats("embed_out.weight", &[vocabulary, d], random);
    }
}

fn opt(tiny: &mut Tiny, random: &mut Random) {
    let (d, d_ff) = (tiny.size("hidden_size"), tiny.size("ffn_dim"));
    let (vocabulary, width) = (tiny.size("vocab_size"), tiny.size("word_embed_proj_dim"));
    let (bias, pre) = (tiny.flag("enable_bias", true), tiny.flag("do_layer_norm_before", true));
    let decoder = |part: &str| format!("model.decoder.{part}");
    let rows = tiny.size("max_position_embeddings") + 2;
    tiny.floats(&decoder("embed_tokens.weight"), &[vocabulary, width], random);
    tiny.floats(&decoder("embed_positions.weight"), &[rows, d], random);
    if width != d {
        tiny.map(&decoder("project_in"), d, width, false, random);
        tiny.map(&decoder("project_out"), width, d, false, random);
    }
    for layer in 0..tiny.size("num_hidden_layers") {
        let name = |part: &str| decoder(&format!("layers.{layer}.{part}"));
        for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            tiny.map(&name(&format!("self_attn.{part}")), d, d, bias, random);
        }
        tiny.map(&name("fc1"), d_ff, d, bias, random);
        tiny.map(&name("fc2"), d, d_ff, bias, random);
        tiny.norm(&name("self_attn_layer_norm"), d, random);
        tiny.norm(&name("final_layer_norm"), d, random);
    }
    if pre && !tiny.flag("_remove_final_layer_norm", false) {
        tiny.norm(&decoder("final_layer_norm"), d, random);
    }
    if !tiny.flag("tie_word_embeddings", true) {
        tiny.floats("lm_head.weight", &[vocabulary, width], random);
    }
}

fn llama(tiny: &mut Tiny, family: &str, random: &mut Random) {
    let (d, d_ff) = (tiny.size("hidden_size"), tiny.size("intermediate_size"));
    let (heads, kv_heads) = (tiny.size("num_attention_heads"), tiny.size("num_key_value_heads"));
    let d_k = tiny.config["head_dim"].as_u64().map_or(d / heads, |d_k| d_k as usize);
    let vocabulary = tiny.size("vocab_size");
    let bias = tiny.flag("attention_bias", false);
    let mlp_bias = tiny.flag("mlp_bias", false);
    tiny.floats("model.embed_tokens.weight", &[vocabulary, d], random);
    for layer in 0..tiny.size("num_hidden_layers") {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        for (part, heads) in [("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)] {
            let name = name(&format!("self_attn.{part}"));
            tiny.map(&name, heads * d_k, d, bias || family == "qwen2", random);
        }
        tiny.map(&name("self_attn.o_proj"), d, heads * d_k, bias, random);
        tiny.map(&name("mlp.gate_proj"), d_ff, d, mlp_bias, random);
        tiny.map(&name("mlp.up_proj"), d_ff, d, mlp_bias, random);
        tiny.map(&name("mlp.down_proj"), d, d_ff, mlp_bias, random);
        for part in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
            tiny.floats(&name(part), &[d], random);
        }
    }
    tiny.floats("model.norm.weight", &[d], random);
    if !tiny.flag("tie_word_embeddings", false) {
        tiny.floats("lm_head.weight", &[vocabulary, d], random);
    }
}
