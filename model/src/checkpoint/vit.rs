//! Vision Transformer folders: images in place of tokens, pre-norm layers, a classifier on the first token.

use super::names::{LayerNames, StackNames, sized, usual_field, without};
use super::{Family, Part, Reader, Reading};
use crate::config::{Biases, Config, Fields, Input, NormPlacement, StackConfig};
use crate::error::{Error, Result};
use crate::head::{Before, Classifier, Heads};
use crate::origin::Initial;
use crate::patches::Patches;
use crate::transformer::{Entrance, Transformer};

pub(super) const VIT: Reading = Reading {
    family: Family::Vit,
    name: "ViT",
    words: &["vit"],
    config,
    field: usual_field,
    canonical: |name| without("vit.", name),
    build,
    harmless: |_, name| HARMLESS.contains(&name),
};

/// What paints masked patches again, a task that is not computed here.
const HARMLESS: &[&str] = &["embeddings.mask_token", "decoder.0.weight", "decoder.0.bias"];

const POOLER: &str = "pooler.dense";
const CLASSIFIER: &str = "classifier";

const NAMES: StackNames =
    StackNames { layers: "encoder.layer.", final_norm: Some("layernorm"), ..StackNames::PLAIN };

const LAYER: LayerNames = LayerNames {
    qkv: ["attention.attention.query", "attention.attention.key", "attention.attention.value"],
    attention_output: "attention.output.dense",
    attention_norm: "layernorm_before",
    cross: None,
    inner: "intermediate.dense",
    gated: None,
    outer: "output.dense",
    feed_forward_norm: "layernorm_after",
};

fn config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    let d_model = fields.size("hidden_size", None)?;
    fields.expect_word("pooler_act", "tanh")?;
    fields.expect_size("pooler_output_size", d_model)?;
    let input = Input::Patches {
        image: fields.side("image_size", 224)?,
        patch: fields.side("patch_size", 16)?,
        channels: fields.size("num_channels", Some(3))?,
    };
    let paper = sized(fields, usual_field, input, d_model)?;
    let d_k = fields.size("head_dim", Some(paper.d_k))?;
    let (activation, activation_word) = fields.activation("hidden_act", "gelu")?;
    let mut config = Config::empty(family, d_model);
    config.encoder = Some(StackConfig {
        d_k,
        d_v: d_k,
        activation,
        activation_word,
        epsilon: fields.number("layer_norm_eps", 1e-12)? as f32,
        placement: NormPlacement::Pre,
        final_norm: true,
        biases: Biases { queries_keys_values: fields.flag("qkv_bias", true)?, ..Biases::ALL },
        ..paper
    });
    Ok(config)
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    let patches = patches(config, reader)?;
    let encoder = reader.encoder(config, &NAMES, |layer| layer.parts(&LAYER))?;
    let heads = heads(config, reader)?;
    Ok(Transformer::encoder_only(Entrance::Patches(patches), encoder, heads))
}

fn patches(config: &Config, reader: &mut Reader<'_>) -> Result<Patches> {
    let (stack, d) = (config.encoder()?, config.d_model);
    let Input::Patches { image, patch, channels } = stack.input else {
        return Err(Error::WrongInput { expected: "images", actual: stack.input.name() });
    };
    let kernel = [d, channels, patch, patch];
    let places = [1, stack.max_length(), d];
    let name = "embeddings.patch_embeddings.projection";
    let map = Part::new(name, d, channels).shaped(&kernel);
    Ok(Patches {
        channels,
        image,
        patch,
        projection: reader.linear(&[map])?,
        first: reader.tensor("embeddings.cls_token", &[1, 1, d], Initial::Table(d))?,
        positions: reader.tensor("embeddings.position_embeddings", &places, Initial::Table(d))?,
    })
}

fn heads(config: &Config, reader: &mut Reader<'_>) -> Result<Heads> {
    let d = config.d_model;
    let mut heads = Heads::default();
    if reader.has_linear(POOLER) {
        heads.pooler = Some(reader.linear(&[Part::new(POOLER, d, d)])?);
    }
    // The class of models that the config names, where there is no file to look at.
    let named = config.architectures.iter().any(|name| name.ends_with("ForImageClassification"));
    if reader.has_linear(CLASSIFIER) || (reader.has_no_file() && named) {
        let output = reader.labels(config, CLASSIFIER)?;
        heads.classifier = Some(Classifier { before: Before::Nothing, output });
    }
    Ok(heads)
}
