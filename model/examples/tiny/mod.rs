//! Small seeded models for examples that are given no folder. They have learned nothing.
#![allow(dead_code, reason = "each example uses a part")]

use headrow::{Config, Model, Result, TextModel, Tokenizer};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value, json};
use std::sync::Arc;

const D_MODEL: usize = 32;
const D_FF: usize = 64;
/// Special tokens, and letters.
const SPECIAL: [&str; 3] = ["<blank>", "<s>", "</s>"];
const LETTERS: &str = " abcdefghijklmnopqrstuvwxyz.,";

/// A GPT-2 of two layers over letters.
pub(crate) fn decoder() -> Result<TextModel> {
    let vocabulary = SPECIAL.len() + LETTERS.len();
    let mut tensors = Tensors::new();
    tensors.add("wte.weight", &[vocabulary, D_MODEL]);
    tensors.add("wpe.weight", &[256, D_MODEL]);
    for layer in 0..2 {
        let name = |part: &str| format!("h.{layer}.{part}");
        tensors.norm(&name("ln_1"));
        tensors.maps(&name("attn.c_attn"), &[D_MODEL, 3 * D_MODEL], 3 * D_MODEL);
        tensors.maps(&name("attn.c_proj"), &[D_MODEL, D_MODEL], D_MODEL);
        tensors.norm(&name("ln_2"));
        tensors.maps(&name("mlp.c_fc"), &[D_MODEL, D_FF], D_FF);
        tensors.maps(&name("mlp.c_proj"), &[D_FF, D_MODEL], D_MODEL);
    }
    tensors.norm("ln_f");
    tensors.model(&json!({
        "model_type": "gpt2", "vocab_size": vocabulary, "n_embd": D_MODEL, "n_layer": 2, "n_head": 4,
        "n_inner": D_FF, "n_positions": 256, "bos_token_id": 1, "eos_token_id": 2,
    }))
}

/// An encoder–decoder of one layer each over letters, in OpenNMT's form.
pub(crate) fn translator() -> Result<TextModel> {
    let vocabulary = SPECIAL.len() + LETTERS.len();
    let mut tensors = Tensors::new();
    for (side, attentions) in
        [("encoder", &["self_attn"][..]), ("decoder", &["self_attn", "encoder_attn"])]
    {
        tensors.add(&format!("model.{side}.embed_tokens.weight"), &[vocabulary, D_MODEL]);
        tensors.norm(&format!("model.{side}.layer_norm"));
        let name = |part: &str| format!("model.{side}.layers.0.{part}");
        for part in attentions {
            for map in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                tensors.maps(&name(&format!("{part}.{map}")), &[D_MODEL, D_MODEL], D_MODEL);
            }
            tensors.norm(&name(&format!("{part}_layer_norm")));
        }
        tensors.maps(&name("fc1"), &[D_FF, D_MODEL], D_FF);
        tensors.maps(&name("fc2"), &[D_MODEL, D_FF], D_MODEL);
        tensors.norm(&name("final_layer_norm"));
    }
    tensors.maps("lm_head", &[vocabulary, D_MODEL], vocabulary);
    tensors.model(&json!({
        "model_type": "opennmt-transformer", "d_model": D_MODEL, "encoder_layers": 1, "decoder_layers": 1,
        "attention_heads": 4, "ffn_dim": D_FF, "activation": "relu", "src_vocab": vocabulary,
        "tgt_vocab": vocabulary, "tied": false, "lm_head_bias": true, "bos_id": 1, "eos_id": 2, "pad_id": 0,
    }))
}

/// A token for every letter.
fn tokenizer() -> Result<Tokenizer> {
    let tokens =
        SPECIAL.iter().map(|token| token.to_string()).chain(LETTERS.chars().map(String::from));
    let vocabulary: Map<String, Value> =
        tokens.zip(0..).map(|(token, id)| (token, json!(id))).collect();
    let special: Vec<Value> = SPECIAL
        .iter()
        .enumerate()
        .map(|(id, token)| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    let file = json!({
        "version": "1.0", "added_tokens": special, "normalizer": {"type": "Lowercase"}, "decoder": {"type": "Fuse"},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false},
        "post_processor": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<blank>"},
    });
    Tokenizer::from_bytes(file.to_string().as_bytes())
}

/// Seeded tensors, by name.
struct Tensors {
    random: Xoshiro256PlusPlus,
    all: Vec<(String, Vec<usize>, Vec<u8>)>,
}

impl Tensors {
    fn new() -> Tensors {
        Tensors { random: Xoshiro256PlusPlus::seed_from_u64(2017), all: Vec::new() }
    }

    fn add(&mut self, name: &str, shape: &[usize]) {
        let count = shape.iter().product();
        let values = (0..count).map(|_| self.random.random::<f32>() - 0.5);
        let bytes = values.flat_map(f32::to_le_bytes).collect();
        self.all.push((name.to_owned(), shape.to_vec(), bytes));
    }

    fn maps(&mut self, name: &str, shape: &[usize], outputs: usize) {
        self.add(&format!("{name}.weight"), shape);
        self.add(&format!("{name}.bias"), &[outputs]);
    }

    fn norm(&mut self, name: &str) {
        self.maps(name, &[D_MODEL], D_MODEL);
    }

    fn model(self, config: &Value) -> Result<TextModel> {
        let views = self.all.iter().map(|(name, shape, bytes)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
            (name, view.expect("as many bytes as the shape has"))
        });
        let file = safetensors::serialize(views, None).expect("a small file");
        let model = Model::from_bytes(&Config::from_json(config.to_string().as_bytes())?, &file)?;
        Ok(TextModel::new(Arc::new(model), tokenizer()?))
    }
}

/// The folder that is the first argument, or else `tiny`.
pub(crate) fn model(tiny: fn() -> Result<TextModel>) -> Result<TextModel> {
    match std::env::args().nth(1) {
        Some(folder) => TextModel::from_dir(folder),
        None => tiny(),
    }
}
