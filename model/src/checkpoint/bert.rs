//! BERT, RoBERTa and DistilBERT folders, and MiniLM's, which are BERT's.
//!
//! The families differ in names and options only; [`Names`] holds the names, and the same code builds the
//! same layers for all of them.

use super::{Inventory, Loader};
use crate::attention::MultiHeadAttention;
use crate::config::{Config, Family};
use crate::embedding::Embedding;
use crate::encoder::{Encoder, EncoderLayer};
use crate::error::Result;
use crate::feed_forward::FeedForward;
use crate::head::{Classifier, Heads, MaskedLm, Squash};
use crate::model::Parts;
use crate::position::LearnedPositions;
use crate::sublayer::NormPlacement;
use crate::weights::Checkpoint;
use headrow_kernels::{Activation, Cpu};

/// What a family calls its tensors. Inside the encoder relative to the layer.
struct Names {
    /// Before the names of the encoder, unless the folder was saved without a head.
    prefix: &'static str,
    layer: &'static str,
    query: &'static str,
    key: &'static str,
    value: &'static str,
    attention_output: &'static str,
    attention_norm: &'static str,
    inner: &'static str,
    outer: &'static str,
    output_norm: &'static str,
    /// Masked language model: transform, its norm, the read-out matrix, the two names of its bias.
    mlm_transform: &'static str,
    mlm_norm: &'static str,
    mlm_decoder: &'static str,
    mlm_bias: [&'static str; 2],
    /// Sequence classifier: the map before the last one (BERT: its pooler), and the last one.
    classifier_dense: &'static str,
    classifier: &'static str,
    /// Found in files, and without effect on anything computed here: buffers that older
    /// versions saved, and the span head of question answering.
    harmless: &'static [&'static str],
}

const POOLER: &str = "pooler.dense";
const NEXT_SENTENCE: &str = "cls.seq_relationship";
const WORDS: &str = "embeddings.word_embeddings.weight";
const POSITIONS: &str = "embeddings.position_embeddings.weight";
const TYPES: &str = "embeddings.token_type_embeddings.weight";
const EMBEDDING_NORM: &str = "embeddings.LayerNorm";

const HARMLESS: &[&str] = &[
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "qa_outputs.weight",
    "qa_outputs.bias",
];

const BERT: Names = Names {
    prefix: "bert.",
    layer: "encoder.layer.",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    inner: "intermediate.dense",
    outer: "output.dense",
    output_norm: "output.LayerNorm",
    mlm_transform: "cls.predictions.transform.dense",
    mlm_norm: "cls.predictions.transform.LayerNorm",
    mlm_decoder: "cls.predictions.decoder.weight",
    mlm_bias: ["cls.predictions.bias", "cls.predictions.decoder.bias"],
    classifier_dense: POOLER,
    classifier: "classifier",
    harmless: HARMLESS,
};

const ROBERTA: Names = Names {
    prefix: "roberta.",
    mlm_transform: "lm_head.dense",
    mlm_norm: "lm_head.layer_norm",
    mlm_decoder: "lm_head.decoder.weight",
    mlm_bias: ["lm_head.bias", "lm_head.decoder.bias"],
    classifier_dense: "classifier.dense",
    classifier: "classifier.out_proj",
    ..BERT
};

const DISTILBERT: Names = Names {
    prefix: "distilbert.",
    layer: "transformer.layer.",
    query: "attention.q_lin",
    key: "attention.k_lin",
    value: "attention.v_lin",
    attention_output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    inner: "ffn.lin1",
    outer: "ffn.lin2",
    output_norm: "output_layer_norm",
    mlm_transform: "vocab_transform",
    mlm_norm: "vocab_layer_norm",
    mlm_decoder: "vocab_projector.weight",
    mlm_bias: ["vocab_projector.bias", "vocab_projector.bias"],
    classifier_dense: "pre_classifier",
    classifier: "classifier",
    harmless: HARMLESS,
};

/// Which heads the checkpoint has, and of what size.
#[derive(Clone, Copy, Default)]
struct Found {
    pooler: bool,
    mlm: bool,
    /// The masked language model's own read-out matrix; else the word embeddings.
    mlm_decoder: bool,
    next_sentence: bool,
    /// Labels of a sequence classifier.
    classifier: Option<usize>,
    /// Labels of a token tagger.
    tagger: Option<usize>,
}

impl Names {
    fn of(family: Family) -> &'static Names {
        match family {
            Family::Bert => &BERT,
            Family::Roberta => &ROBERTA,
            Family::DistilBert => &DISTILBERT,
        }
    }

    /// Without the prefix, and with γ and β called weight and bias, which the first BERT files did not.
    fn canonical(&self, name: &str) -> String {
        let name = name.strip_prefix(self.prefix).unwrap_or(name);
        if let Some(norm) = name.strip_suffix("LayerNorm.gamma") {
            return format!("{norm}LayerNorm.weight");
        }
        if let Some(norm) = name.strip_suffix("LayerNorm.beta") {
            return format!("{norm}LayerNorm.bias");
        }
        name.to_owned()
    }

    fn in_layer(&self, layer: usize, name: &str) -> String {
        format!("{}{layer}.{name}", self.layer)
    }

    fn mlm_bias(&self, has: impl Fn(&str) -> bool) -> &'static str {
        let [first, second] = self.mlm_bias;
        if has(second) && !has(first) { second } else { first }
    }
}

/// Whether any of `name`'s two tensors is there; then both must be.
fn has_linear(inventory: &Inventory<'_>, name: &str) -> bool {
    inventory.has(&format!("{name}.weight")) || inventory.has(&format!("{name}.bias"))
}

fn find_heads(config: &Config, names: &Names, inventory: &Inventory<'_>) -> Found {
    let has = |name| has_linear(inventory, name);
    let labels = |name: &str| {
        let shape = inventory.shape(&format!("{name}.weight"));
        shape.and_then(|shape| shape.first().copied()).unwrap_or(config.labels.len())
    };
    let trained_for = |word: &str| config.architectures.iter().any(|name| name.ends_with(word));
    let mut found = Found {
        pooler: config.family != Family::DistilBert && has(POOLER),
        mlm: has(names.mlm_transform) || has(names.mlm_norm),
        next_sentence: config.family == Family::Bert && has(NEXT_SENTENCE),
        ..Found::default()
    };
    found.mlm_decoder = found.mlm && !config.tied;
    // `classifier.weight` alone is a tagger, and BERT's sequence classifier when a pooler feeds it.
    let tagger = match config.family {
        Family::Bert => trained_for("ForTokenClassification") || !found.pooler,
        _ => !has(names.classifier_dense),
    };
    if tagger && has("classifier") {
        found.tagger = Some(labels("classifier"));
    } else if has(names.classifier) {
        found.classifier = Some(labels(names.classifier));
    }
    found
}

/// Lists every tensor with its shape.
fn take_stock(config: &Config, names: &Names, inventory: &mut Inventory<'_>, found: Found) {
    let (d, d_ff) = (config.d_model, config.d_ff);
    inventory.want(WORDS, &[config.vocabulary, d]);
    inventory.want(POSITIONS, &[config.position_rows, d]);
    if config.token_types > 0 {
        inventory.want(TYPES, &[config.token_types, d]);
    }
    inventory.want_norm(EMBEDDING_NORM, d);

    // The config's count is believed only as far as the file bears it out.
    let in_file = inventory.numbered(names.layer);
    if in_file != config.layers {
        inventory
            .problem(|| format!("the config has {} layers, the file {in_file}", config.layers));
    }
    for layer in 0..config.layers.min(in_file) {
        for name in [names.query, names.key, names.value, names.attention_output] {
            inventory.want_linear(&names.in_layer(layer, name), d, d);
        }
        inventory.want_norm(&names.in_layer(layer, names.attention_norm), d);
        inventory.want_linear(&names.in_layer(layer, names.inner), d_ff, d);
        inventory.want_linear(&names.in_layer(layer, names.outer), d, d_ff);
        inventory.want_norm(&names.in_layer(layer, names.output_norm), d);
    }

    if found.pooler {
        inventory.want_linear(POOLER, d, d);
    }
    if found.mlm {
        inventory.want_linear(names.mlm_transform, d, d);
        inventory.want_norm(names.mlm_norm, d);
        let bias = names.mlm_bias(|name| inventory.has(name));
        inventory.want(bias, &[config.vocabulary]);
    }
    if found.mlm_decoder {
        inventory.want(names.mlm_decoder, &[config.vocabulary, d]);
    }
    if found.next_sentence {
        inventory.want_linear(NEXT_SENTENCE, 2, d);
    }
    for (labels, name) in [(found.classifier, names.classifier), (found.tagger, "classifier")] {
        let Some(labels) = labels else { continue };
        let named = config.labels.len();
        if named != 0 && named != labels {
            inventory.problem(|| format!("{name} has {labels} labels, the config names {named}"));
        }
        inventory.want_linear(name, labels, d);
    }
    if found.classifier.is_some() || found.next_sentence {
        let dense = if found.next_sentence { POOLER } else { names.classifier_dense };
        inventory.want_linear(dense, d, d);
    }
}

/// Checks the checkpoint against `config`, then reads and packs it.
pub(crate) fn load(config: &Config, checkpoint: &Checkpoint<'_>, cpu: Cpu) -> Result<Parts> {
    let names = Names::of(config.family);
    let mut inventory = Inventory::new(checkpoint, |name| names.canonical(name));
    let found = find_heads(config, names, &inventory);
    take_stock(config, names, &mut inventory, found);
    // Read-out matrices and biases are often saved twice, under a second name.
    let bias = names.mlm_bias(|name| inventory.has(name));
    let second_bias = names.mlm_bias.into_iter().find(|&name| name != bias);
    let mut loader = inventory.finish(cpu, |name| {
        names.harmless.contains(&name) || name == names.mlm_decoder || Some(name) == second_bias
    })?;
    let embedding = read_embedding(config, &mut loader)?;
    let layers = (0..config.layers)
        .map(|layer| read_layer(config, names, layer, &mut loader))
        .collect::<Result<Vec<EncoderLayer>>>()?;
    let heads = read_heads(config, names, found, bias, &mut loader)?;
    let encoder = Encoder { layers, final_norm: None };
    Ok(Parts { embedding, encoder, heads })
}

fn read_embedding(config: &Config, loader: &mut Loader<'_>) -> Result<Embedding> {
    Ok(Embedding {
        d_model: config.d_model,
        words: loader.read(WORDS)?,
        positions: LearnedPositions {
            table: loader.read(POSITIONS)?,
            first: config.first_position as u32,
            padding: match config.family {
                Family::Roberta => Some(config.first_position as u32 - 1),
                _ => None,
            },
        },
        types: if config.token_types > 0 { loader.read(TYPES)? } else { Vec::new() },
        norm: loader.norm(EMBEDDING_NORM, config.epsilon)?,
    })
}

fn read_layer(
    config: &Config,
    names: &Names,
    layer: usize,
    loader: &mut Loader<'_>,
) -> Result<EncoderLayer> {
    let name = |part| names.in_layer(layer, part);
    let (query, key, value) = (name(names.query), name(names.key), name(names.value));
    Ok(EncoderLayer {
        placement: NormPlacement::Post,
        attention: MultiHeadAttention::new(
            config.heads,
            loader.linear(&[&query, &key, &value])?,
            loader.linear(&[&name(names.attention_output)])?,
        ),
        attention_norm: loader.norm(&name(names.attention_norm), config.epsilon)?,
        feed_forward: FeedForward {
            inner: loader.linear(&[&name(names.inner)])?,
            activation: config.activation,
            outer: loader.linear(&[&name(names.outer)])?,
        },
        feed_forward_norm: loader.norm(&name(names.output_norm), config.epsilon)?,
    })
}

fn read_heads(
    config: &Config,
    names: &Names,
    found: Found,
    mlm_bias: &str,
    loader: &mut Loader<'_>,
) -> Result<Heads> {
    let mut heads = Heads::default();
    if found.pooler {
        heads.pooler = Some(loader.linear(&[POOLER])?);
    }
    if found.mlm {
        heads.masked_lm = Some(MaskedLm {
            transform: loader.linear(&[names.mlm_transform])?,
            activation: match config.family {
                Family::Roberta => Activation::GeluErf,
                _ => config.activation,
            },
            norm: loader.norm(names.mlm_norm, config.epsilon)?,
            decoder: match found.mlm_decoder {
                true => Some(loader.packed(&[names.mlm_decoder.to_owned()])?),
                false => None,
            },
            bias: loader.read(mlm_bias)?,
        });
    }
    if found.next_sentence {
        heads.next_sentence = Some(loader.linear(&[NEXT_SENTENCE])?);
    }
    if found.classifier.is_some() {
        let (dense, squash) = match config.family {
            Family::Bert => (None, Squash::Tanh),
            Family::Roberta => (Some(names.classifier_dense), Squash::Tanh),
            Family::DistilBert => (Some(names.classifier_dense), Squash::Relu),
        };
        heads.classifier = Some(Classifier {
            dense: dense.map(|name| loader.linear(&[name])).transpose()?,
            squash,
            output: loader.linear(&[names.classifier])?,
        });
    }
    if found.tagger.is_some() {
        heads.tagger = Some(loader.linear(&["classifier"])?);
    }
    Ok(heads)
}
