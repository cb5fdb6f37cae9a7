//! Seeded models with a decoder and drawn options. Test targets that use it have `mod tiny` and `mod general` at their root.
#![allow(dead_code, reason = "each test target uses a part")]

use crate::general::{General, reading_tokens};
use crate::tiny::{Random, Tensor, file};
use headrow::{
    Activation, Batch, Config, LoadOptions, Model, NormKind, NormPlacement, RelativePositions,
    Rotary, RotaryScaling, ScoreScale, Sequence, Session, StackConfig,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Tokens of every vocabulary.
pub(crate) const V: usize = 61;
/// The longest sequence of the sessions that tests make: two pages of the caches and a bit.
pub(crate) const LONGEST: usize = 150;

/// A model before it is loaded.
pub(crate) struct Seeded {
    /// What was drawn, for messages.
    pub(crate) label: String,
    pub(crate) config: Config,
    pub(crate) tensors: Vec<Tensor>,
}

impl Seeded {
    pub(crate) fn new(label: &str, config: Config, seed: u64) -> Seeded {
        let General { config, tensors } = General::new(&config, seed);
        Seeded { label: format!("{label} {seed}"), config, tensors }
    }

    /// A model from the text of its config.
    pub(crate) fn from_json(json: &Value, seed: u64) -> Seeded {
        let config = Config::from_json(json.to_string().as_bytes()).unwrap();
        Seeded::new(json["model_type"].as_str().unwrap(), config, seed)
    }

    /// GPT-2: learned positions, tied read-out, pre-norm.
    pub(crate) fn gpt2(seed: u64) -> Seeded {
        let mut random = Random(seed);
        let heads = 1 + random.below(4);
        let json = json!({
            "model_type": "gpt2", "vocab_size": V, "n_embd": heads * (3 + random.below(9)),
            "n_layer": 2, "n_head": heads, "n_inner": 17 + random.below(40), "n_positions": LONGEST,
            "scale_attn_by_inverse_layer_idx": random.below(2) == 1,
        });
        Seeded::from_json(&json, seed)
    }

    /// One of the families that no other drawing here covers, with sizes and options of its own.
    pub(crate) fn family(seed: u64) -> Seeded {
        let mut random = Random(seed);
        let (heads, layers) = (1 + random.below(4), 1 + random.below(2));
        let (d_model, d_ff) = (heads * 4 * (1 + random.below(3)), 9 + random.below(50));
        let flag = random.below(2) == 1;
        let mut json = match seed % 5 {
            0 => json!({
                "model_type": "opt", "ffn_dim": d_ff, "do_layer_norm_before": flag,
                "word_embed_proj_dim": d_model - 3 * random.below(2), "enable_bias": !flag,
            }),
            1 => json!({
                "model_type": "gpt_neox", "intermediate_size": d_ff, "rotary_pct": 0.5,
                "use_parallel_residual": flag, "tie_word_embeddings": random.below(2) == 1,
            }),
            2 => json!({
                "model_type": "t5", "d_model": d_model, "d_kv": 3 + random.below(9), "d_ff": d_ff,
                "num_heads": heads, "num_layers": layers, "num_decoder_layers": 2,
                "feed_forward_proj": if flag { "gated-gelu" } else { "relu" },
                "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
                "tie_word_embeddings": random.below(2) == 1, "decoder_start_token_id": 0,
                "pad_token_id": 0, "eos_token_id": 1,
            }),
            3 => json!({
                "model_type": "mistral", "intermediate_size": d_ff, "num_key_value_heads": 1,
                "sliding_window": 1 + random.below(90),
            }),
            _ => json!({
                "model_type": "qwen2", "intermediate_size": d_ff, "num_key_value_heads": heads,
            }),
        };
        json["vocab_size"] = json!(V);
        if json["model_type"] != "t5" {
            json["hidden_size"] = json!(d_model);
            json["num_attention_heads"] = json!(heads);
            json["num_hidden_layers"] = json!(layers);
            json["max_position_embeddings"] = json!(LONGEST);
        }
        Seeded::from_json(&json, seed)
    }

    /// The layers of Llama with every option of a stack drawn anew.
    pub(crate) fn decoder(seed: u64) -> Seeded {
        let mut random = Random(seed);
        let kv_heads = 1 + random.below(3);
        let (d_model, d_k) = (17 + random.below(30), 2 * (1 + random.below(7)));
        let json = json!({
            "model_type": "llama", "vocab_size": V, "hidden_size": d_model,
            "num_hidden_layers": 1 + random.below(3), "num_key_value_heads": kv_heads,
            "num_attention_heads": kv_heads * (1 + random.below(3)), "head_dim": d_k,
            "intermediate_size": 9 + random.below(50), "max_position_embeddings": LONGEST,
            "tie_word_embeddings": random.below(2) == 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},

        });
        let mut config = Config::from_json(json.to_string().as_bytes()).unwrap();
        draw_options(config.decoder.as_mut().unwrap(), &mut random);
        Seeded::new("decoder", config, seed)
    }

    /// Whatever can be expressed, with a decoder that reads tokens.
    pub(crate) fn general(seed: u64) -> Seeded {
        let mut config = reading_tokens(seed, V, LONGEST);
        config.special.decoder_start = config.encoder.as_ref().map(|_| 2);
        Seeded::new("general", config, seed)
    }

    /// An encoder and a decoder of one of the families that have both, with drawn options in both.
    pub(crate) fn seq2seq(seed: u64) -> Seeded {
        let mut random = Random(seed);
        let kind = ["bart", "marian", "m2m_100", "mbart"][seed as usize % 4];
        let heads = [1, 2, 3, 4, 6];
        let json = json!({
            "model_type": kind, "vocab_size": V, "d_model": 12 * (1 + random.below(3)),
            "encoder_layers": 1 + random.below(2), "decoder_layers": 1 + random.below(2),
            "encoder_attention_heads": heads[random.below(5)],
            "decoder_attention_heads": heads[random.below(5)],
            "encoder_ffn_dim": 9 + random.below(40), "decoder_ffn_dim": 9 + random.below(40),
            "max_position_embeddings": LONGEST, "pad_token_id": 1, "eos_token_id": 2,
            "decoder_start_token_id": 2, "scale_embedding": random.below(2) == 1,
        });
        let mut config = Config::from_json(json.to_string().as_bytes()).unwrap();
        if seed >= 4 {
            let stacks = [&mut config.encoder, &mut config.decoder];
            for stack in stacks.into_iter().flatten() {
                let placement = stack.placement;
                draw_options(stack, &mut random);
                stack.placement = placement;
            }
            // An encoder has no window.
            config.encoder.as_mut().unwrap().window = None;
        }
        Seeded::new(kind, config, seed)
    }

    pub(crate) fn model(&self) -> Arc<Model> {
        self.model_with(&LoadOptions::default())
    }

    pub(crate) fn model_with(&self, options: &LoadOptions) -> Arc<Model> {
        let loaded = Model::from_bytes_with(&self.config, &file(&self.tensors), options);
        Arc::new(loaded.unwrap_or_else(|error| panic!("{}: {error}", self.label)))
    }

    /// Overwrites row `row` of a tensor.
    pub(crate) fn fill_row(&mut self, name: &str, row: usize, value: f32) {
        let tensor =
            self.tensors.iter_mut().find(|tensor| tensor.name.ends_with(name)).expect(name);
        let bytes = 4 * tensor.shape[1..].iter().product::<usize>();
        let row = &mut tensor.data[row * bytes..(row + 1) * bytes];
        row.chunks_mut(4).for_each(|number| number.copy_from_slice(&value.to_le_bytes()));
    }
}

/// A new sequence, which attends to `source` in a model that reads sources.
pub(crate) fn begin(session: &mut Session, source: &[u32]) -> headrow::Result<Sequence> {
    match session.model().config().encoder {
        Some(_) => Ok(session.add_sources(&Batch::one(source))?[0]),
        None => session.add(),
    }
}

/// Options that fit whatever sizes the stack has.
fn draw_options(stack: &mut StackConfig, random: &mut Random) {
    stack.d_v = 1 + random.below(15);
    stack.relative = match random.below(4) {
        0 => RelativePositions::None,
        1 => RelativePositions::Alibi,
        _ => RelativePositions::Rotary(rotary(stack.d_k, random)),
    };
    stack.window = [None, Some(1), Some(5), Some(70)][random.below(4)];
    stack.norm = [NormKind::Layer, NormKind::Rms][random.below(2)];
    let placements = [NormPlacement::Post, NormPlacement::Pre, NormPlacement::Parallel];
    stack.placement = placements[random.below(3)];
    let activations =
        [Activation::Silu, Activation::GeluErf, Activation::Relu, Activation::GeluTanh];
    stack.activation = activations[random.below(4)];
    stack.scale = [ScoreScale::Paper, ScoreScale::One, ScoreScale::PaperByLayer][random.below(3)];
    let mut bit = || random.below(2) == 1;
    stack.biases.queries_keys_values = bit();
    stack.biases.attention_output = bit();
    stack.biases.feed_forward = bit();
    stack.biases.norms = bit();
}

fn rotary(d_k: usize, random: &mut Random) -> Rotary {
    let width = 2 * (1 + random.below(d_k / 2));
    let mut rotary = Rotary::new(1e4, width, LONGEST);
    let factor = 1.0 + random.below(3) as f64;
    rotary.scaling = match random.below(4) {
        0 => RotaryScaling::Linear { factor },
        1 if width > 2 => RotaryScaling::Dynamic { factor },
        2 => RotaryScaling::Llama3 { factor, low: 1.0, high: 4.0, original: 40 },
        _ => RotaryScaling::None,
    };
    rotary
}
