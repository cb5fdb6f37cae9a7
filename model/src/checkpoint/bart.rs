//! BART, mBART, Marian and M2M-100 folders: an encoder and a decoder of the paper's form, which share their words.
//!
//! The families differ in where they normalise, in what stands for positions, and in a few options; [`Form`] has what
//! their configs leave unsaid. OpenNMT and Whisper use the same names of layers, and build with what is here.

use super::names::{CrossNames, LM_HEAD, LayerNames, StackNames, without};
use super::{Family, Reader, Reading};
use crate::config::{Config, Fields, Input, NormPlacement, Positions, StackConfig, TokenInput};
use crate::embedding::ReadOut;
use crate::error::Result;
use crate::head::Heads;
use crate::position::SinusoidLayout;
use crate::transformer::{Entrance, Transformer};
use std::sync::Arc;

/// A layer that attends to itself alone.
pub(super) const ENCODER_LAYER: LayerNames = LayerNames {
    qkv: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    attention_output: "self_attn.out_proj",
    attention_norm: "self_attn_layer_norm",
    cross: None,
    inner: "fc1",
    gated: None,
    outer: "fc2",
    feed_forward_norm: "final_layer_norm",
};

pub(super) const DECODER_LAYER: LayerNames = LayerNames {
    cross: Some(CrossNames {
        qkv: ["encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj"],
        output: "encoder_attn.out_proj",
        norm: "encoder_attn_layer_norm",
    }),
    ..ENCODER_LAYER
};

pub(super) const ENCODER: StackNames = StackNames {
    prefix: "encoder.",
    positions: Some("embed_positions"),
    input_norm: Some("layernorm_embedding"),
    final_norm: Some("layer_norm"),
    ..StackNames::PLAIN
};

pub(super) const DECODER: StackNames = StackNames { prefix: "decoder.", ..ENCODER };

const SHARED: &str = "shared.weight";
pub(super) const ENCODER_WORDS: &str = "encoder.embed_tokens.weight";
pub(super) const DECODER_WORDS: &str = "decoder.embed_tokens.weight";
const READ_OUT_BIAS: &str = "final_logits_bias";

pub(super) const BART: Reading = Reading {
    family: Family::Bart,
    name: "BART",
    words: &["bart"],
    config,
    field,
    canonical: |name| without("model.", name),
    build,
    harmless,
};

pub(super) const MBART: Reading =
    Reading { family: Family::MBart, name: "mBART", words: &["mbart"], ..BART };

pub(super) const MARIAN: Reading =
    Reading { family: Family::Marian, name: "Marian", words: &["marian"], ..BART };

pub(super) const M2M100: Reading =
    Reading { family: Family::M2M100, name: "M2M-100", words: &["m2m_100"], ..BART };

/// What distinguishes a family.
struct Form {
    placement: NormPlacement,
    /// Whether a norm follows the sum of word and position.
    embedding_norm: bool,
    /// What a config that does not say so means.
    activation: &'static str,
    scaled: bool,
    positions: Places,
}

/// What stands for positions.
enum Places {
    /// A learned table whose first two rows are not used.
    Learned,
    /// The paper's sinusoids, in Marian's order.
    Marian,
    /// Tensor2Tensor's, from the padding id + 1 on.
    Tensor2Tensor,
}

impl Form {
    fn of(family: Family) -> Form {
        let bart = Form {
            placement: NormPlacement::Post,
            embedding_norm: true,
            activation: "gelu",
            scaled: false,
            positions: Places::Learned,
        };
        match family {
            Family::MBart => Form { placement: NormPlacement::Pre, ..bart },
            Family::Marian => Form { embedding_norm: false, positions: Places::Marian, ..bart },
            Family::M2M100 => Form {
                placement: NormPlacement::Pre,
                embedding_norm: false,
                activation: "relu",
                scaled: true,
                positions: Places::Tensor2Tensor,
            },
            _ => bart,
        }
    }

    /// Flags that older configs have, each of which says what the family is anyway.
    fn check(&self, fields: &Fields<'_>) -> Result<()> {
        let pre = self.placement == NormPlacement::Pre;
        fields.expect_flag("normalize_before", pre)?;
        fields.expect_flag("add_final_layer_norm", pre)?;
        fields.expect_flag("normalize_embedding", self.embedding_norm)?;
        let learned = matches!(self.positions, Places::Learned);
        fields.expect_flag("static_position_embeddings", !learned)
    }

    fn positions(&self, fields: &Fields<'_>) -> Result<Positions> {
        Ok(match self.positions {
            Places::Learned => Positions::Learned {
                rows: fields.size("max_position_embeddings", None)?.saturating_add(2),
                first: 2,
                padding: None,
            },
            Places::Marian => Positions::Sinusoidal { layout: SinusoidLayout::Marian, first: 0 },
            Places::Tensor2Tensor => Positions::Sinusoidal {
                layout: SinusoidLayout::Tensor2Tensor,
                first: padding_row(fields)?.saturating_add(1),
            },
        })
    }
}

/// The padding id, which is one of the words.
fn padding_row(fields: &Fields<'_>) -> Result<usize> {
    let padding = fields.size("pad_token_id", Some(1))?;
    match padding < fields.size("vocab_size", None)? {
        true => Ok(padding),
        false => Err(fields.wrong("pad_token_id", "is not below vocab_size")),
    }
}

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    // A decoder saved alone has no encoder to attend to.
    fields.expect_flag("is_encoder_decoder", true)?;
    fields.expect_flag("is_decoder", false)?;
    let form = Form::of(family);
    form.check(fields)?;
    let d_model = fields.size("d_model", None)?;
    let source = TokenInput {
        scale: embedding_scale(fields, d_model, form.scaled)?,
        positions: form.positions(fields)?,
        norm: form.embedding_norm,
        ..TokenInput::words(fields.size("vocab_size", None)?, d_model)
    };
    let vocabulary = match family {
        Family::Marian => fields.size("decoder_vocab_size", Some(source.vocabulary))?,
        _ => source.vocabulary,
    };
    let target = TokenInput { vocabulary, ..source.clone() };
    let mut config = Config::empty(family, d_model);
    config.read_out.tied = fields.flag("tie_word_embeddings", true)?;
    // Without ties every table is saved by itself.
    config.shared_words = config.read_out.tied
        && match family {
            Family::Marian => fields.flag("share_encoder_decoder_embeddings", true)?,
            _ => true,
        };
    for (side, tokens, stack) in
        [("encoder", source, &mut config.encoder), ("decoder", target, &mut config.decoder)]
    {
        let read = stack_config(fields, side, d_model, Input::Tokens(tokens), form.activation)?;
        let (placement, final_norm) = (form.placement, form.placement == NormPlacement::Pre);
        *stack = Some(StackConfig { placement, final_norm, ..read });
    }
    config.special = fields.special_tokens()?;
    Ok(config)
}

/// Factor of the words: √d_model or 1.
pub(super) fn embedding_scale(fields: &Fields<'_>, d_model: usize, default: bool) -> Result<f32> {
    let scaled = fields.flag("scale_embedding", default)?;
    Ok(if scaled { (d_model as f32).sqrt() } else { 1.0 })
}

/// The sizes of one stack, whose fields begin with `side`.
pub(super) fn stack_config(
    fields: &Fields<'_>,
    side: &str,
    d_model: usize,
    input: Input,
    activation: &str,
) -> Result<StackConfig> {
    let size = |field: &str| fields.size(&format!("{side}_{field}"), None);
    let (activation, activation_word) = fields.activation("activation_function", activation)?;
    let (layers, heads) = (size("layers")?, size("attention_heads")?);
    let paper = StackConfig::paper(input, layers, d_model, heads, size("ffn_dim")?);
    Ok(StackConfig { activation, activation_word, ..paper })
}

pub(super) fn field(field: &'static str) -> &'static str {
    match field {
        "vocabulary" => "vocab_size",
        "shared_words" => "share_encoder_decoder_embeddings",
        "positions" => "max_position_embeddings",
        "width" => "d_model",
        "layers" => "encoder_layers or decoder_layers",
        "heads" => "encoder_attention_heads or decoder_attention_heads",
        "d_ff" => "encoder_ffn_dim or decoder_ffn_dim",
        other => other,
    }
}

/// Sinusoids that older versions saved, their marks, and the shared words under their other names.
fn harmless(config: &Config, name: &str) -> bool {
    let Some((side, part)) = name.split_once('.') else { return false };
    if matches!(side, "encoder" | "decoder") && part == "version" {
        return true;
    }
    let learned = |stack: &StackConfig| {
        stack.tokens().is_some_and(|tokens| matches!(tokens.positions, Positions::Learned { .. }))
    };
    let sinusoids = matches!(part, "embed_positions.weight" | "embed_positions.weights");
    match name {
        LM_HEAD => config.read_out.tied,
        ENCODER_WORDS | DECODER_WORDS => config.shared_words,
        SHARED => true,
        _ => sinusoids && !config.last_stack().is_some_and(learned),
    }
}

/// Where the words of both stacks are. A shared table is saved once, under any of its names; where nothing is
/// shared older versions fall back on it.
fn word_names(config: &Config, reader: &Reader<'_>) -> [&'static str; 2] {
    let first = |names: &[&'static str]| {
        names.iter().copied().find(|name| reader.has(name)).unwrap_or(names[0])
    };
    match config.shared_words {
        true => [first(&[SHARED, ENCODER_WORDS, DECODER_WORDS, LM_HEAD]); 2],
        false => [first(&[ENCODER_WORDS, SHARED]), first(&[DECODER_WORDS, SHARED])],
    }
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    let names = word_names(config, reader);
    let transformer = build_with(config, reader, names)?;
    let bias = match reader.has(READ_OUT_BIAS) && config.family != Family::M2M100 {
        true => Some(reader.fixed(READ_OUT_BIAS, &[1, config.vocabulary()])?),
        false => None,
    };
    let read_out = transformer.read_out.map(|read_out| ReadOut { bias, ..read_out });
    Ok(Transformer { read_out, ..transformer })
}

/// Both stacks and the read-out, with the words of encoder and decoder under these names.
pub(super) fn build_with(
    config: &Config,
    reader: &mut Reader<'_>,
    [source, target]: [&str; 2],
) -> Result<Transformer> {
    let (encoder, decoder, tied) = (config.encoder()?, config.decoder()?, config.read_out.tied);
    let (read, written) = (encoder.token_input()?, decoder.token_input()?);
    let words = reader.words(target, written.vocabulary, written.width, tied)?;
    let one_table =
        source == target && (read.vocabulary, read.width) == (written.vocabulary, written.width);
    let source_words = match one_table {
        true => Arc::clone(&words),
        false => reader.words(source, read.vocabulary, read.width, false)?,
    };
    let entrance =
        Entrance::Embedding(reader.embedding(config, encoder, source_words, &ENCODER)?);
    let encoder = reader.encoder(config, &ENCODER, |layer| layer.parts(&ENCODER_LAYER))?;
    let tied = tied.then(|| Arc::clone(&words));
    let written_words = reader.embedding(config, decoder, words, &DECODER)?;
    let read_out = reader.read_out(tied.as_ref(), LM_HEAD, written.vocabulary, written.width)?;
    let decoder = reader.decoder(config, &DECODER, |layer| layer.parts(&DECODER_LAYER))?;
    Ok(Transformer {
        encoder: Some((entrance, encoder)),
        decoder: Some((Entrance::Embedding(written_words), decoder)),
        read_out: Some(read_out),
        heads: Heads::default(),
    })
}
