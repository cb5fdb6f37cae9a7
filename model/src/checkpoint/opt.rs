//! OPT folders: learned positions from 2 on, pre- or post-norm, and for one size words narrower than the model.

use super::layers::{LayerNames, usual_field};
use super::{Family, Part, Reader, Reading};
use crate::config::{Biases, Config, Fields, Input, Positions, StackConfig, TokenInput, Widening};
use crate::decoder::{Decoder, DecoderLayer};
use crate::embedding::{Embedding, Projection, ReadOut};
use crate::error::Result;
use crate::linear::Linear;
use crate::sublayer::NormPlacement;
use crate::transformer::Transformer;

pub(super) const OPT: Reading = Reading {
    family: Family::Opt,
    name: "OPT",
    words: &["opt"],
    config,
    field,
    canonical: |name| {
        let name = name.strip_prefix("model.").unwrap_or(name);
        name.strip_prefix("decoder.").unwrap_or(name).to_owned()
    },
    build,
    harmless: |config, name| config.read_out.tied && name == "lm_head.weight",
};

const NAMES: LayerNames = LayerNames {
    qkv: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    attention_output: "self_attn.out_proj",
    attention_norm: "self_attn_layer_norm",
    inner: "fc1",
    outer: "fc2",
    feed_forward_norm: "final_layer_norm",
};

/// Rows of the table of positions that no token has.
const FIRST: usize = 2;

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    fields.expect_flag("layer_norm_elementwise_affine", true)?;
    let d_model = fields.size("hidden_size", None)?;
    let longest = fields.size("max_position_embeddings", None)?;
    let tokens = TokenInput {
        width: fields.size("word_embed_proj_dim", Some(d_model))?,
        widening: Widening::Words,
        positions: Positions::Learned {
            rows: longest.saturating_add(FIRST),
            first: FIRST,
            padding: None,
        },
        ..TokenInput::words(fields.size("vocab_size", None)?, d_model)
    };
    let (activation, activation_word) = fields.activation("activation_function", "relu")?;
    let pre = fields.flag("do_layer_norm_before", true)?;
    let bias = fields.flag("enable_bias", true)?;
    let mut config = Config::empty(family, d_model);
    config.decoder = Some(StackConfig {
        activation,
        activation_word,
        placement: if pre { NormPlacement::Pre } else { NormPlacement::Post },
        final_norm: pre && !fields.flag("_remove_final_layer_norm", false)?,
        biases: Biases {
            queries_keys_values: bias,
            keys: true,
            attention_output: bias,
            feed_forward: bias,
            norms: true,
        },
        ..StackConfig::paper(
            Input::Tokens(tokens),
            fields.size("num_hidden_layers", None)?,
            d_model,
            fields.size("num_attention_heads", None)?,
            fields.size("ffn_dim", None)?,
        )
    });
    config.read_out.tied = fields.flag("tie_word_embeddings", true)?;
    config.special = fields.special_tokens()?;
    Ok(config)
}

fn field(field: &'static str) -> &'static str {
    match field {
        "width" => "word_embed_proj_dim",
        "d_ff" => "ffn_dim",
        other => usual_field(other),
    }
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    let stack = config.decoder()?;
    let tokens = stack.token_input()?;
    let (d, width, tied) = (config.d_model, tokens.width, config.read_out.tied);
    let words = reader.words("embed_tokens.weight", tokens.vocabulary, width, tied)?;
    let positions = reader.positions(tokens, d, "embed_positions")?;
    let mut map = |name, outputs, inputs| -> Result<Option<Linear>> {
        let part = Part::new(name, outputs, inputs).with_bias(false);
        (width != d).then(|| reader.linear(&[part])).transpose()
    };
    let (inwards, outwards) = (map("project_in", d, width)?, map("project_out", width, d)?);
    let layers = (0..reader.layers("layers.", stack.layers)).map(|layer| {
        reader.decoder_layer(stack, d, layer, &format!("layers.{layer}."), &NAMES, None)
    });
    let layers = layers.collect::<Result<Vec<DecoderLayer>>>()?;
    let final_norm = reader.final_norm(stack, d, "final_layer_norm")?;
    let read_out =
        reader.read_out(tied.then_some(&words), "lm_head.weight", tokens.vocabulary, width)?;
    let read_out = ReadOut { projection: outwards, ..read_out };
    let projection = inwards.map(Projection::Words);
    let embedding = Embedding { positions, projection, ..Embedding::plain(words, tokens) };
    let decoder = Decoder { layers, final_norm, buckets: Vec::new() };
    Ok(Transformer::decoder_only(embedding, decoder, read_out))
}
