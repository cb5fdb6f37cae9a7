//! Small seeded checkpoints of families with an encoder and a decoder, whose sizes differ where the family lets them.
#![allow(dead_code, reason = "each test target uses a part")]

use super::tiny::{D, Random, Tiny, V};
use headrow::Batch;
use serde_json::{Value, json};

pub(crate) const KINDS: [&str; 6] =
    ["bart", "mbart", "marian", "m2m_100", "opennmt-transformer", "whisper"];
/// Layers, heads and d_ff of encoder and decoder.
pub(crate) const ENCODER: [usize; 3] = [2, 3, 40];
pub(crate) const DECODER: [usize; 3] = [3, 4, 28];
/// Words of a target where it has a vocabulary of its own.
pub(crate) const TARGET_V: usize = 37;
pub(crate) const BANDS: usize = 5;
/// Of the encoder; a spectrogram has twice as many.
pub(crate) const FRAMES: usize = 9;
/// Learned positions.
pub(crate) const LENGTH: usize = 40;

/// A checkpoint of this `model_type`.
pub(crate) fn seq2seq(kind: &str) -> Tiny {
    let mut tiny = Tiny { config: config(kind), tensors: Vec::new() };
    let random = &mut Random(11);
    let target_v = if kind == "opennmt-transformer" { TARGET_V } else { V };
    match kind {
        "opennmt-transformer" => {
            tiny.floats("model.encoder.embed_tokens.weight", &[V, D], random);
            tiny.floats("model.decoder.embed_tokens.weight", &[target_v, D], random);
            tiny.linear("lm_head", target_v, D, random);
        }
        "whisper" => {
            for (name, channels) in [("conv1", BANDS), ("conv2", D)] {
                tiny.floats(&format!("model.encoder.{name}.weight"), &[D, channels, 3], random);
                tiny.floats(&format!("model.encoder.{name}.bias"), &[D], random);
            }
            tiny.floats("model.encoder.embed_positions.weight", &[FRAMES, D], random);
            tiny.floats("model.decoder.embed_tokens.weight", &[V, D], random);
            tiny.floats("model.decoder.embed_positions.weight", &[LENGTH, D], random);
        }
        _ => tiny.floats("model.shared.weight", &[V, D], random),
    }
    if !matches!(kind, "m2m_100" | "opennmt-transformer" | "whisper") {
        tiny.floats("final_logits_bias", &[1, V], random);
    }
    for side in ["encoder", "decoder"] {
        stack(&mut tiny, kind, side, random);
    }
    tiny
}

fn config(kind: &str) -> Value {
    let mut config = match kind {
        "opennmt-transformer" => json!({
            "attention_heads": 3, "ffn_dim": 40, "activation": "relu",
            "src_vocab": V, "tgt_vocab": TARGET_V, "tied": false, "lm_head_bias": true,
            "bos_id": 1, "eos_id": 2, "pad_id": 0,
        }),
        "whisper" => json!({
            "vocab_size": V, "num_mel_bins": BANDS, "max_source_positions": FRAMES,
            "max_target_positions": LENGTH,
        }),
        _ => json!({
            "vocab_size": V, "max_position_embeddings": LENGTH, "pad_token_id": 1,
            "eos_token_id": 2, "decoder_start_token_id": 2, "scale_embedding": kind == "marian",
        }),
    };
    config["model_type"] = json!(kind);
    config["d_model"] = json!(D);
    for (side, [layers, heads, d_ff]) in [("encoder", ENCODER), ("decoder", DECODER)] {
        config[format!("{side}_layers")] = json!(layers);
        if kind != "opennmt-transformer" {
            config[format!("{side}_attention_heads")] = json!(heads);
            config[format!("{side}_ffn_dim")] = json!(d_ff);
        }
    }
    config
}

fn stack(tiny: &mut Tiny, kind: &str, side: &str, random: &mut Random) {
    let [layers, _, d_ff] = if side == "encoder" { ENCODER } else { DECODER };
    let d_ff = if kind == "opennmt-transformer" { ENCODER[2] } else { d_ff };
    if matches!(kind, "bart" | "mbart") {
        let positions = format!("model.{side}.embed_positions.weight");
        tiny.floats(&positions, &[LENGTH + 2, D], random);
        norm(tiny, &format!("model.{side}.layernorm_embedding"), random);
    }
    if !matches!(kind, "bart" | "marian") {
        norm(tiny, &format!("model.{side}.layer_norm"), random);
    }
    for layer in 0..layers {
        let name = |part: &str| format!("model.{side}.layers.{layer}.{part}");
        let attentions = if side == "encoder" { 1 } else { 2 };
        for part in &["self_attn", "encoder_attn"][..attentions] {
            for map in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                let map = name(&format!("{part}.{map}"));
                tiny.floats(&format!("{map}.weight"), &[D, D], random);
                if kind != "whisper" || !map.ends_with("k_proj") {
                    tiny.floats(&format!("{map}.bias"), &[D], random);
                }
            }
            norm(tiny, &name(&format!("{part}_layer_norm")), random);
        }
        tiny.linear(&name("fc1"), d_ff, D, random);
        tiny.linear(&name("fc2"), D, d_ff, random);
        norm(tiny, &name("final_layer_norm"), random);
    }
}

fn norm(tiny: &mut Tiny, name: &str, random: &mut Random) {
    tiny.floats(&format!("{name}.weight"), &[D], random);
    tiny.floats(&format!("{name}.bias"), &[D], random);
}

/// What an encoder reads.
pub(crate) struct Sources {
    ids: Vec<u32>,
    lengths: Vec<usize>,
    values: Vec<f32>,
}

impl Sources {
    /// A sequence for each length; a spectrogram instead of each for Whisper.
    pub(crate) fn new(kind: &str, seed: u64, lengths: &[usize]) -> Sources {
        let mut random = Random(seed);
        let (ids, values) = match kind {
            "whisper" => (0, lengths.len() * BANDS * 2 * FRAMES),
            _ => (lengths.iter().sum(), 0),
        };
        Sources {
            ids: (0..ids).map(|_| 3 + random.below(V - 3) as u32).collect(),
            lengths: lengths.to_vec(),
            values: (0..values).map(|_| random.unit()).collect(),
        }
    }

    pub(crate) fn batch(&self) -> Batch<'_> {
        match self.values.is_empty() {
            true => Batch::ragged(&self.ids, &self.lengths),
            false => Batch::spectrograms(&self.values, self.lengths.len()),
        }
    }

    /// Source `index` alone.
    pub(crate) fn single(&self, index: usize) -> Batch<'_> {
        let start: usize = self.lengths[..index].iter().sum();
        let each = BANDS * 2 * FRAMES;
        match self.values.is_empty() {
            true => Batch::one(&self.ids[start..start + self.lengths[index]]),
            false => Batch::spectrograms(&self.values[index * each..][..each], 1),
        }
    }
}

/// Ids of a target that every kind has.
pub(crate) fn target(seed: u64, length: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..length).map(|_| 3 + random.below(TARGET_V - 3) as u32).collect()
}
