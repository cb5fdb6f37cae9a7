//! Tiny encoders: BERT and its kin, and ViT.

use super::{D, D_FF, LAYERS, POSITIONS, Random, Tiny, V};
use serde_json::{Value, json};

/// A family's config, unless it is none of these.
pub(super) fn config(family: &str) -> Option<Value> {
    let bert = json!({
        "model_type": family, "vocab_size": V, "hidden_size": D,
        "num_hidden_layers": LAYERS, "num_attention_heads": 3, "intermediate_size": D_FF,
        "max_position_embeddings": POSITIONS, "hidden_act": "gelu",
        "type_vocab_size": if family == "roberta" { 1 } else { 2 },
        "layer_norm_eps": 1e-5, "pad_token_id": if family == "roberta" { 1 } else { 0 },
    });
    Some(match family {
        "bert" | "roberta" => bert,
        "albert" => {
            let mut albert = bert;
            albert["embedding_size"] = json!(16);
            albert["num_hidden_layers"] = json!(2 * LAYERS);
            albert["num_hidden_groups"] = json!(LAYERS);
            albert
        }
        "distilbert" => json!({
            "model_type": family, "vocab_size": V, "dim": D, "n_layers": LAYERS, "n_heads": 3,
            "hidden_dim": D_FF, "max_position_embeddings": POSITIONS, "activation": "gelu",
        }),
        "vit" => json!({
            "model_type": family, "hidden_size": D, "num_hidden_layers": LAYERS,
            "num_attention_heads": 3, "intermediate_size": D_FF, "hidden_act": "gelu",
            "image_size": 15, "patch_size": 5, "num_channels": 2, "layer_norm_eps": 1e-5,
        }),
        _ => return None,
    })
}

/// What a family calls the parts of its layers.
struct Names {
    layer: &'static str,
    /// Queries, keys, values and the map behind the heads.
    square: [&'static str; 4],
    feed_forward: [&'static str; 2],
    norms: [&'static str; 2],
}

const BERT: Names = Names {
    layer: "encoder.layer.",
    square: [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
    ],
    feed_forward: ["intermediate.dense", "output.dense"],
    norms: ["attention.output.LayerNorm", "output.LayerNorm"],
};

const DISTILBERT: Names = Names {
    layer: "transformer.layer.",
    square: ["attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"],
    feed_forward: ["ffn.lin1", "ffn.lin2"],
    norms: ["sa_layer_norm", "output_layer_norm"],
};

const ALBERT: Names = Names {
    layer: "encoder.albert_layer_groups.",
    square: [
        "albert_layers.0.attention.query",
        "albert_layers.0.attention.key",
        "albert_layers.0.attention.value",
        "albert_layers.0.attention.dense",
    ],
    feed_forward: ["albert_layers.0.ffn", "albert_layers.0.ffn_output"],
    norms: ["albert_layers.0.attention.LayerNorm", "albert_layers.0.full_layer_layer_norm"],
};

const VIT: Names = Names {
    square: [
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
        "attention.output.dense",
    ],
    norms: ["layernorm_before", "layernorm_after"],
    ..BERT
};

/// Makes the tensors, unless the family is none of these.
pub(super) fn fill(tiny: &mut Tiny, family: &str, random: &mut Random) -> bool {
    let (names, layers, widths) = match family {
        "bert" | "roberta" => (BERT, "num_hidden_layers", ["hidden_size", "intermediate_size"]),
        "distilbert" => (DISTILBERT, "n_layers", ["dim", "hidden_dim"]),
        "albert" => (ALBERT, "num_hidden_groups", ["hidden_size", "intermediate_size"]),
        "vit" => (VIT, "num_hidden_layers", ["hidden_size", "intermediate_size"]),
        _ => return false,
    };
    let [d, d_ff] = widths.map(|field| tiny.size(field));
    match family {
        "vit" => images(tiny, d, random),
        _ => tokens(tiny, family, d, random),
    }
    for layer in 0..tiny.size(layers) {
        let name = |part: &str| format!("{family}.{}{layer}.{part}", names.layer);
        for part in names.square {
            tiny.linear(&name(part), d, d, random);
        }
        let [inner, outer] = names.feed_forward;
        tiny.linear(&name(inner), d_ff, d, random);
        tiny.linear(&name(outer), d, d_ff, random);
        for part in names.norms {
            tiny.norm(&name(part), d, random);
        }
    }
    heads(tiny, family, d, random);
    true
}

fn tokens(tiny: &mut Tiny, family: &str, d: usize, random: &mut Random) {
    let width = if family == "albert" { tiny.size("embedding_size") } else { d };
    let (vocabulary, positions) = (tiny.size("vocab_size"), tiny.size("max_position_embeddings"));
    let name = |part: &str| format!("{family}.embeddings.{part}");
    tiny.floats(&name("word_embeddings.weight"), &[vocabulary, width], random);
    tiny.floats(&name("position_embeddings.weight"), &[positions, width], random);
    if family != "distilbert" {
        let types = tiny.size("type_vocab_size");
        tiny.floats(&name("token_type_embeddings.weight"), &[types, width], random);
    }
    tiny.norm(&name("LayerNorm"), width, random);
    if family == "albert" {
        tiny.linear("albert.encoder.embedding_hidden_mapping_in", d, width, random);
    }
}

fn images(tiny: &mut Tiny, d: usize, random: &mut Random) {
    let (image, patch) = (tiny.size("image_size"), tiny.size("patch_size"));
    let places = (image / patch).pow(2) + 1;
    let kernel = [d, tiny.size("num_channels"), patch, patch];
    tiny.floats("vit.embeddings.cls_token", &[1, 1, d], random);
    tiny.floats("vit.embeddings.position_embeddings", &[1, places, d], random);
    tiny.floats("vit.embeddings.patch_embeddings.projection.weight", &kernel, random);
    tiny.floats("vit.embeddings.patch_embeddings.projection.bias", &[d], random);
    tiny.norm("vit.layernorm", d, random);
}

fn heads(tiny: &mut Tiny, family: &str, d: usize, random: &mut Random) {
    let [dense, norm, bias] = match family {
        "bert" => [
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.bias",
        ],
        "roberta" => ["lm_head.dense", "lm_head.layer_norm", "lm_head.bias"],
        "albert" => ["predictions.dense", "predictions.LayerNorm", "predictions.bias"],
        "distilbert" => ["vocab_transform", "vocab_layer_norm", "vocab_projector.bias"],
        _ => {
            tiny.linear("vit.pooler.dense", d, d, random);
            return tiny.linear("classifier", 5, d, random);
        }
    };
    let width = if family == "albert" { tiny.size("embedding_size") } else { d };
    tiny.linear(dense, width, d, random);
    tiny.norm(norm, width, random);
    tiny.floats(bias, &[tiny.size("vocab_size")], random);
    let pooled = match family {
        "bert" => ["bert.pooler.dense", "cls.seq_relationship"],
        "albert" => ["albert.pooler", "sop_classifier.classifier"],
        _ => return,
    };
    tiny.linear(pooled[0], d, d, random);
    tiny.linear(pooled[1], 2, d, random);
}
