//! Whole inputs to begin from: real files, which mutations damage one byte at a time.

use crate::tiny::{self, DECODERS, FAMILIES, Tiny};
use crate::tiny_seq2seq::{KINDS, seq2seq};
use serde_json::{Value, json};

/// An input: its target, its name in the corpus, its bytes.
pub type Seed = (&'static str, String, Vec<u8>);

/// A config of every family; a tokenizer of every kind with a text behind it; checkpoints in each type of numbers.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut add = |target, name: &str, bytes| seeds.push((target, format!("whole-{name}"), bytes));
    for config in configs() {
        let family = config["model_type"].as_str().expect("a family");
        add("config", family, config.to_string().into_bytes());
    }
    for (kind, tokenizer) in tokenizers() {
        let text = "\nthe man's eating ä 🐈\t[MASK]  !";
        add("tokenizer", kind, (tokenizer.to_string() + text).into_bytes());
    }
    for dtype in ["F32", "BF16", "F16"] {
        let model = small().stored_as(dtype);
        let file = tiny::file(&model.tensors);
        let config = model.config_json();
        add("safetensors", &dtype.to_lowercase(), [&config, &b"\n"[..], &file].concat());
    }
    seeds
}

/// A config of every family.
pub(crate) fn configs() -> Vec<Value> {
    let families = FAMILIES.into_iter().chain(DECODERS).chain(["vit"]);
    let alone = families.map(|family| Tiny::new(family).config);
    let t5 = json!({
        "model_type": "t5", "vocab_size": 50, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_heads": 4,
        "num_layers": 2, "num_decoder_layers": 3, "feed_forward_proj": "gated-gelu",
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
        "tie_word_embeddings": false, "decoder_start_token_id": 0, "pad_token_id": 0,
        "eos_token_id": 1,
    });
    alone.chain(KINDS.map(|kind| seq2seq(kind).config)).chain([t5]).collect()
}

/// A decoder of few numbers, so that most bytes of its file are its header.
fn small() -> Tiny {
    let config = json!({
        "model_type": "gpt2", "vocab_size": 5, "n_embd": 4, "n_layer": 1, "n_head": 2,
        "n_inner": 3, "n_positions": 4,
    });
    Tiny::of(config, 1)
}

fn tokenizers() -> [(&'static str, Value); 3] {
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                       "use_regex": true});
    let letters = "thetainmsgÃ¤Ġ'!".chars().map(|letter| letter.to_string());
    let words = letters.chain(["th", "the", "in", "Ġa"].map(str::to_owned));
    let vocabulary: serde_json::Map<String, Value> =
        words.zip(0..).map(|(word, id): (_, u32)| (word, json!(id))).collect();
    let pairs = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary,
                  "merges": ["t h", "th e", "i n", "Ġ a"]},
    });
    let space = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                       "split": true});
    let words = ["<unk>", "▁", "▁the", "▁a", "a", "e", "t", "ing", "n", "s", "ä"];
    let vocabulary: Vec<Value> =
        words.iter().zip(0..).map(|(word, rank)| json!([word, -f64::from(rank)])).collect();
    let probable = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "NFKC"}, "pre_tokenizer": space, "post_processor": null,
        "decoder": space,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": false},
    });
    [("pieces", tiny::tokenizer()), ("pairs", pairs), ("probable", probable)]
}
