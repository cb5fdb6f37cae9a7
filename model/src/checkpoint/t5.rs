//! T5 folders, 1.0 and 1.1: RMSNorm before each sublayer, no biases, scores without 1/√d_k, positions as learned numbers
//! per bucket of offsets. A folder of `T5EncoderModel` is an encoder.

use super::names::{CrossNames, LM_HEAD, LayerNames, StackNames};
use super::{Family, Reader, Reading};
use crate::config::{
    Biases, Config, Fields, Gating, Input, NormKind, NormPlacement, RelativePositions, ScoreScale,
    StackConfig, TokenInput,
};
use crate::embedding::ReadOut;
use crate::error::Result;
use crate::head::Heads;
use crate::transformer::{Entrance, Transformer};
use headrow_kernels::Activation;
use std::sync::Arc;

pub(super) const T5: Reading = Reading {
    family: Family::T5,
    name: "T5",
    words: &["t5"],
    config,
    field,
    canonical: str::to_owned,
    build,
    harmless,
};

/// The table of words, which both stacks read.
const SHARED: &str = "shared.weight";
/// The same, where a folder of the encoder alone was saved from it.
const ENCODER_WORDS: &str = "encoder.embed_tokens.weight";

const ENCODER: StackNames = StackNames {
    prefix: "encoder.",
    layers: "block.",
    final_norm: Some("final_layer_norm"),
    // The first layer has those of all.
    buckets: Some("block.0.layer.0.SelfAttention.relative_attention_bias"),
    ..StackNames::PLAIN
};

const DECODER: StackNames = StackNames { prefix: "decoder.", ..ENCODER };

/// Sublayers are numbered.
const ENCODER_LAYER: LayerNames = LayerNames {
    qkv: ["layer.0.SelfAttention.q", "layer.0.SelfAttention.k", "layer.0.SelfAttention.v"],
    attention_output: "layer.0.SelfAttention.o",
    attention_norm: "layer.0.layer_norm",
    cross: None,
    inner: "layer.1.DenseReluDense.wi",
    gated: Some(["layer.1.DenseReluDense.wi_0", "layer.1.DenseReluDense.wi_1"]),
    outer: "layer.1.DenseReluDense.wo",
    feed_forward_norm: "layer.1.layer_norm",
};

const DECODER_LAYER: LayerNames = LayerNames {
    cross: Some(CrossNames {
        qkv: [
            "layer.1.EncDecAttention.q",
            "layer.1.EncDecAttention.k",
            "layer.1.EncDecAttention.v",
        ],
        output: "layer.1.EncDecAttention.o",
        norm: "layer.1.layer_norm",
    }),
    inner: "layer.2.DenseReluDense.wi",
    gated: Some(["layer.2.DenseReluDense.wi_0", "layer.2.DenseReluDense.wi_1"]),
    outer: "layer.2.DenseReluDense.wo",
    feed_forward_norm: "layer.2.layer_norm",
    ..ENCODER_LAYER
};

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    fields.expect_flag("is_decoder", false)?;
    let architectures = fields.words("architectures")?;
    let encoder_only = architectures.iter().any(|name| name.ends_with("EncoderModel"));
    if !encoder_only {
        fields.expect_flag("is_encoder_decoder", true)?;
    }
    let d_model = fields.size("d_model", Some(512))?;
    let layers = fields.size("num_layers", Some(6))?;
    let encoder = stack(fields, d_model, layers)?;
    let mut config = Config::empty(family, d_model);
    if !encoder_only {
        let layers = fields.size("num_decoder_layers", Some(layers))?;
        config.decoder = Some(StackConfig { layers, distinct_layers: layers, ..encoder.clone() });
    }
    config.encoder = Some(encoder);
    config.read_out.tied = fields.flag("tie_word_embeddings", true)?;
    // 1.0 scales and 1.1 does not. Untied words said so before the field was there.
    if fields.flag("scale_decoder_outputs", config.read_out.tied)? {
        config.read_out.scale = 1.0 / (d_model as f32).sqrt();
    }
    config.special = fields.special_tokens()?;
    let special = &mut config.special;
    let padding = *special.padding.get_or_insert(0);
    // Its decoder begins with padding.
    special.decoder_start.get_or_insert(padding);
    if special.end.is_empty() {
        special.end.push(1);
    }
    Ok(config)
}

fn stack(fields: &Fields<'_>, d_model: usize, layers: usize) -> Result<StackConfig> {
    let tokens = TokenInput::words(fields.size("vocab_size", Some(32128))?, d_model);
    let heads = fields.size("num_heads", Some(8))?;
    let d_ff = fields.size("d_ff", Some(2048))?;
    let d_kv = fields.size("d_kv", Some(64))?;
    let (activation, activation_word, gating) = feed_forward(fields)?;
    Ok(StackConfig {
        d_k: d_kv,
        d_v: d_kv,
        scale: ScoreScale::One,
        relative: RelativePositions::Buckets {
            buckets: fields.size("relative_attention_num_buckets", Some(32))?,
            max_distance: fields.size("relative_attention_max_distance", Some(128))?,
        },
        activation,
        activation_word,
        gating,
        biases: Biases::NONE,
        norm: NormKind::Rms,
        epsilon: fields.number("layer_norm_epsilon", 1e-6)? as f32,
        placement: NormPlacement::Pre,
        final_norm: true,
        ..StackConfig::paper(Input::Tokens(tokens), layers, d_model, heads, d_ff)
    })
}

/// `feed_forward_proj` is an activation's word, or `gated-` and one. `gated-gelu` has always meant the tanh form. What newer
/// folders say of the two halves beside it stands above it.
fn feed_forward(fields: &Fields<'_>) -> Result<(Activation, String, Gating)> {
    const FIELD: &str = "feed_forward_proj";
    let word = fields.word(FIELD, Some("relu"))?;
    let (gated, activation) = match word.split_once('-') {
        None => (false, word.as_str()),
        Some(("gated", "gelu")) => (true, "gelu_new"),
        Some(("gated", activation)) => (true, activation),
        Some(_) => return Err(fields.unsupported(FIELD, &word, " (expected gated-…)")),
    };
    let (activation, word) = match fields.get("dense_act_fn") {
        Some(_) => fields.activation("dense_act_fn", activation)?,
        None => (fields.named_activation(FIELD, activation)?, activation.to_owned()),
    };
    let gating = match fields.flag("is_gated_act", gated)? {
        true => Gating::Gated,
        false => Gating::None,
    };
    Ok((activation, word, gating))
}

fn field(field: &'static str) -> &'static str {
    match field {
        "vocabulary" => "vocab_size",
        "width" => "d_model",
        "layers" => "num_layers",
        "heads" | "kv_heads" => "num_heads",
        "d_k" | "d_v" => "d_kv",
        "epsilon" => "layer_norm_epsilon",
        "buckets" => "relative_attention_num_buckets",
        "max_distance" => "relative_attention_max_distance",
        other => other,
    }
}

/// The words under the names of both stacks, and biases of positions that early versions saved for attention to the
/// encoder, which has none.
fn harmless(config: &Config, name: &str) -> bool {
    let unused_decoder = config.decoder.is_none() && name.starts_with("decoder.");
    let unused_head = config.decoder.is_none() && name == LM_HEAD;
    unused_decoder
        || unused_head
        || name == ENCODER_WORDS
        || name == "decoder.embed_tokens.weight"
        || name == "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    let (d, encoder) = (config.d_model, config.encoder()?);
    // A file that has a read-out means it, whatever the config says of ties.
    let own = config.decoder.is_some() && reader.finds(LM_HEAD, !config.read_out.tied);
    let packed = config.decoder.is_some() && !own;
    let name =
        if reader.lacks(SHARED) && reader.has(ENCODER_WORDS) { ENCODER_WORDS } else { SHARED };
    let words = reader.words(name, encoder.token_input()?.vocabulary, d, packed)?;
    let (mut decoder, mut read_out) = (None, None);
    if let Some(stack) = &config.decoder {
        let layers = reader.decoder(config, &DECODER, |layer| layer.parts(&DECODER_LAYER))?;
        let tied = (!own).then_some(&words);
        let made = reader.read_out(tied, LM_HEAD, config.vocabulary(), d)?;
        read_out = Some(ReadOut { scale: config.read_out.scale, ..made });
        let embedding = reader.embedding(config, stack, Arc::clone(&words), &DECODER)?;
        decoder = Some((Entrance::Embedding(embedding), layers));
    }
    let layers = reader.encoder(config, &ENCODER, |layer| layer.parts(&ENCODER_LAYER))?;
    let embedding = reader.embedding(config, encoder, words, &ENCODER)?;
    let encoder = Some((Entrance::Embedding(embedding), layers));
    Ok(Transformer { encoder, decoder, read_out, heads: Heads::default() })
}
