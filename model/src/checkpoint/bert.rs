//! BERT, RoBERTa, DistilBERT and ALBERT folders, and MiniLM's, which are BERT's.
//!
//! The families differ in names and options only; [`Names`] holds the names, and the same code builds the
//! same layers for all of them.

use super::names::{LayerNames, StackNames, sized, usual_field};
use super::{Family, Part, Reader, Reading};
use crate::config::{Config, Fields, Input, Positions, StackConfig, TokenInput};
use crate::embedding::{Embedding, Projection, ReadOut};
use crate::error::Result;
use crate::head::{Before, Classifier, Heads, MaskedLm, Squash};
use crate::origin::Initial;
use crate::transformer::{Entrance, Transformer};
use headrow_kernels::Activation;

/// What a family calls its tensors. Inside the encoder relative to the layer.
struct Names {
    /// Before the names of the encoder, unless the folder was saved without a head.
    prefix: &'static str,
    stack: StackNames,
    layer: LayerNames,
    /// The map from narrow embeddings to d_model.
    projection: Option<&'static str>,
    pooler: &'static str,
    next_sentence: &'static str,
    /// Masked language model: transform, its norm, the read-out matrix, the two names of its bias.
    mlm_transform: &'static str,
    mlm_norm: &'static str,
    mlm_decoder: &'static str,
    mlm_bias: [&'static str; 2],
    /// Sequence classifier: the map before the last one (BERT and ALBERT: their pooler), and the last one.
    classifier_dense: &'static str,
    classifier: &'static str,
    /// Found in files, and without effect on anything computed here: buffers that older
    /// versions saved, and the span head of question answering.
    harmless: &'static [&'static str],
}

const WORDS: &str = "embeddings.word_embeddings.weight";

const HARMLESS: &[&str] = &[
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "qa_outputs.weight",
    "qa_outputs.bias",
];

const BERT_NAMES: Names = Names {
    prefix: "bert.",
    stack: StackNames {
        layers: "encoder.layer.",
        positions: Some("embeddings.position_embeddings"),
        types: Some("embeddings.token_type_embeddings"),
        input_norm: Some("embeddings.LayerNorm"),
        ..StackNames::PLAIN
    },
    layer: LayerNames {
        qkv: ["attention.self.query", "attention.self.key", "attention.self.value"],
        attention_output: "attention.output.dense",
        attention_norm: "attention.output.LayerNorm",
        cross: None,
        inner: "intermediate.dense",
        gated: None,
        outer: "output.dense",
        feed_forward_norm: "output.LayerNorm",
    },
    projection: None,
    pooler: "pooler.dense",
    next_sentence: "cls.seq_relationship",
    mlm_transform: "cls.predictions.transform.dense",
    mlm_norm: "cls.predictions.transform.LayerNorm",
    mlm_decoder: "cls.predictions.decoder.weight",
    mlm_bias: ["cls.predictions.bias", "cls.predictions.decoder.bias"],
    classifier_dense: "pooler.dense",
    classifier: "classifier",
    harmless: HARMLESS,
};

const ROBERTA_NAMES: Names = Names {
    prefix: "roberta.",
    mlm_transform: "lm_head.dense",
    mlm_norm: "lm_head.layer_norm",
    mlm_decoder: "lm_head.decoder.weight",
    mlm_bias: ["lm_head.bias", "lm_head.decoder.bias"],
    classifier_dense: "classifier.dense",
    classifier: "classifier.out_proj",
    ..BERT_NAMES
};

const DISTILBERT_NAMES: Names = Names {
    prefix: "distilbert.",
    stack: StackNames { layers: "transformer.layer.", ..BERT_NAMES.stack },
    layer: LayerNames {
        qkv: ["attention.q_lin", "attention.k_lin", "attention.v_lin"],
        attention_output: "attention.out_lin",
        attention_norm: "sa_layer_norm",
        cross: None,
        inner: "ffn.lin1",
        gated: None,
        outer: "ffn.lin2",
        feed_forward_norm: "output_layer_norm",
    },
    mlm_transform: "vocab_transform",
    mlm_norm: "vocab_layer_norm",
    mlm_decoder: "vocab_projector.weight",
    mlm_bias: ["vocab_projector.bias", "vocab_projector.bias"],
    classifier_dense: "pre_classifier",
    ..BERT_NAMES
};

const ALBERT_NAMES: Names = Names {
    prefix: "albert.",
    // A group of layers that share their weights is one of ours.
    stack: StackNames { layers: "encoder.albert_layer_groups.", ..BERT_NAMES.stack },
    layer: LayerNames {
        qkv: [
            "albert_layers.0.attention.query",
            "albert_layers.0.attention.key",
            "albert_layers.0.attention.value",
        ],
        attention_output: "albert_layers.0.attention.dense",
        attention_norm: "albert_layers.0.attention.LayerNorm",
        cross: None,
        inner: "albert_layers.0.ffn",
        gated: None,
        outer: "albert_layers.0.ffn_output",
        feed_forward_norm: "albert_layers.0.full_layer_layer_norm",
    },
    projection: Some("encoder.embedding_hidden_mapping_in"),
    pooler: "pooler",
    // Whether two sentences are in their order.
    next_sentence: "sop_classifier.classifier",
    mlm_transform: "predictions.dense",
    mlm_norm: "predictions.LayerNorm",
    mlm_decoder: "predictions.decoder.weight",
    mlm_bias: ["predictions.bias", "predictions.decoder.bias"],
    classifier_dense: "pooler",
    ..BERT_NAMES
};

/// Which heads the checkpoint has.
#[derive(Clone, Copy, Default)]
struct Found {
    pooler: bool,
    mlm: bool,
    next_sentence: bool,
    classifier: bool,
    tagger: bool,
}

impl Names {
    fn of(family: Family) -> &'static Names {
        match family {
            Family::Bert => &BERT_NAMES,
            Family::Roberta => &ROBERTA_NAMES,
            Family::DistilBert => &DISTILBERT_NAMES,
            Family::Albert => &ALBERT_NAMES,
            other => unreachable!("{other} has a file of its own"),
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

    fn mlm_bias(&self, has: impl Fn(&str) -> bool) -> &'static str {
        let [first, second] = self.mlm_bias;
        if has(second) && !has(first) { second } else { first }
    }
}

pub(super) const BERT: Reading = Reading {
    family: Family::Bert,
    name: "BERT",
    words: &["bert"],
    config: bert_config,
    field: usual_field,
    canonical: |name| BERT_NAMES.canonical(name),
    build,
    harmless,
};

pub(super) const ROBERTA: Reading = Reading {
    family: Family::Roberta,
    name: "RoBERTa",
    words: &["roberta", "xlm-roberta", "camembert"],
    canonical: |name| ROBERTA_NAMES.canonical(name),
    ..BERT
};

pub(super) const DISTILBERT: Reading = Reading {
    family: Family::DistilBert,
    name: "DistilBERT",
    words: &["distilbert"],
    config: distilbert_config,
    field: distilbert_field,
    canonical: |name| DISTILBERT_NAMES.canonical(name),
    ..BERT
};

pub(super) const ALBERT: Reading = Reading {
    family: Family::Albert,
    name: "ALBERT",
    words: &["albert"],
    config: albert_config,
    field: albert_field,
    canonical: |name| ALBERT_NAMES.canonical(name),
    ..BERT
};

/// What all of them must not say: there is no such encoder here.
fn refuse_decoders(fields: &Fields<'_>) -> Result<()> {
    for flag in ["is_decoder", "add_cross_attention", "is_encoder_decoder"] {
        if fields.flag(flag, false)? {
            return Err(fields.unsupported(flag, "true", ""));
        }
    }
    fields.expect_word("position_embedding_type", "absolute")
}

/// BERT's config, but for the options in which a family differs from it.
fn bert_config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    refuse_decoders(fields)?;
    let first = match family {
        Family::Roberta => fields.size("pad_token_id", Some(1))?.saturating_add(1),
        _ => 0,
    };
    let d_model = fields.size("hidden_size", None)?;
    let tokens = TokenInput {
        token_types: fields.size("type_vocab_size", Some(2))?,
        positions: Positions::Learned {
            rows: fields.size("max_position_embeddings", None)?,
            first,
            padding: (family == Family::Roberta).then(|| first.saturating_sub(1) as u32),
        },
        norm: true,
        ..TokenInput::words(fields.size("vocab_size", None)?, d_model)
    };
    let silent = if family == Family::Albert { "gelu_new" } else { "gelu" };
    let (activation, activation_word) = fields.activation("hidden_act", silent)?;
    let mut config = Config::empty(family, d_model);
    config.encoder = Some(StackConfig {
        activation,
        activation_word,
        epsilon: fields.number("layer_norm_eps", 1e-12)? as f32,
        ..sized(fields, usual_field, Input::Tokens(tokens), d_model)?
    });
    config.read_out.tied = fields.flag("tie_word_embeddings", true)?;
    Ok(config)
}

/// BERT's with narrow embeddings and groups of layers that share their weights.
fn albert_config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    fields.expect_size("inner_group_num", 1)?;
    let mut config = bert_config(fields, family)?;
    let groups = fields.size("num_hidden_groups", Some(1))?;
    let width = fields.size("embedding_size", Some(128))?;
    if let Some(stack) = &mut config.encoder {
        stack.distinct_layers = groups;
        // Other numbers of groups begin where a quotient was rounded.
        if groups != 0 && !stack.layers.is_multiple_of(groups) {
            let problem = format!("{groups} groups do not divide {} layers", stack.layers);
            return Err(fields.wrong("num_hidden_groups", &problem));
        }
        if let Input::Tokens(tokens) = &mut stack.input {
            tokens.width = width;
        }
    }
    Ok(config)
}

fn distilbert_config(fields: &Fields<'_>, family: Family) -> Result<Config> {
    refuse_decoders(fields)?;
    let d_model = fields.size("dim", None)?;
    let rows = fields.size("max_position_embeddings", None)?;
    let tokens = TokenInput {
        positions: Positions::Learned { rows, first: 0, padding: None },
        norm: true,
        ..TokenInput::words(fields.size("vocab_size", None)?, d_model)
    };
    let (activation, activation_word) = fields.activation("activation", "gelu")?;
    let mut config = Config::empty(family, d_model);
    config.encoder = Some(StackConfig {
        activation,
        activation_word,
        // The family has no field for it.
        epsilon: 1e-12,
        ..sized(fields, distilbert_field, Input::Tokens(tokens), d_model)?
    });
    config.read_out.tied = fields.flag("tie_word_embeddings", true)?;
    Ok(config)
}

fn distilbert_field(field: &'static str) -> &'static str {
    match field {
        "d_model" | "width" => "dim",
        "layers" => "n_layers",
        "heads" => "n_heads",
        "d_ff" => "hidden_dim",
        other => usual_field(other),
    }
}

fn albert_field(field: &'static str) -> &'static str {
    match field {
        "width" => "embedding_size",
        "distinct_layers" => "num_hidden_groups",
        other => usual_field(other),
    }
}

/// Read-out matrices and biases are often saved twice, under a second name.
fn harmless(config: &Config, name: &str) -> bool {
    let names = Names::of(config.family);
    names.harmless.contains(&name) || name == names.mlm_decoder || names.mlm_bias.contains(&name)
}

fn build(config: &Config, reader: &mut Reader<'_>) -> Result<Transformer> {
    let names = Names::of(config.family);
    let found = find_heads(config, names, reader);
    let embedding = embedding(config, names, found, reader)?;
    let encoder = reader.encoder(config, &names.stack, |layer| layer.parts(&names.layer))?;
    let heads = heads(config, names, found, &embedding, reader)?;
    Ok(Transformer::encoder_only(Entrance::Embedding(embedding), encoder, heads))
}

fn find_heads(config: &Config, names: &Names, reader: &Reader<'_>) -> Found {
    let has = |name| reader.has_linear(name);
    let trained_for = |word: &str| config.architectures.iter().any(|name| name.ends_with(word));
    // The map in front of the classifier is the pooler in these.
    let pooler_feeds = names.classifier_dense == names.pooler;
    if reader.has_no_file() {
        return named_heads(config, trained_for);
    }
    let mut found = Found {
        pooler: config.family != Family::DistilBert && has(names.pooler),
        mlm: has(names.mlm_transform) || has(names.mlm_norm),
        next_sentence: pooler_feeds && has(names.next_sentence),
        ..Found::default()
    };
    // `classifier.weight` alone is a tagger, and BERT's or ALBERT's sequence classifier when a pooler feeds it.
    let tagger = match pooler_feeds {
        true => trained_for("ForTokenClassification") || !found.pooler,
        false => !has(names.classifier_dense),
    };
    found.tagger = tagger && has("classifier");
    found.classifier = !found.tagger && has(names.classifier);
    found
}

/// The heads of the class of models that the config names.
fn named_heads(config: &Config, named: impl Fn(&str) -> bool) -> Found {
    let (pretraining, classifier) = (named("ForPreTraining"), named("ForSequenceClassification"));
    let (tagger, next_sentence) =
        (named("ForTokenClassification"), named("ForNextSentencePrediction"));
    let own_dense = matches!(config.family, Family::Roberta | Family::DistilBert);
    Found {
        pooler: pretraining || next_sentence || (classifier && !own_dense),
        mlm: pretraining || named("ForMaskedLM"),
        next_sentence: pretraining || next_sentence,
        classifier,
        tagger,
    }
}

fn embedding(
    config: &Config,
    names: &Names,
    found: Found,
    reader: &mut Reader<'_>,
) -> Result<Embedding> {
    let stack = config.encoder()?;
    let &TokenInput { vocabulary, width, .. } = stack.token_input()?;
    let projection = match names.projection {
        Some(name) => Some(reader.linear(&[Part::new(name, config.d_model, width)])?),
        None => None,
    };
    let packed = found.mlm && config.read_out.tied;
    let words = reader.words(WORDS, vocabulary, width, packed)?;
    let plain = reader.embedding(config, stack, words, &names.stack)?;
    Ok(Embedding { projection: projection.map(Projection::Sum), ..plain })
}

fn heads(
    config: &Config,
    names: &Names,
    found: Found,
    embedding: &Embedding,
    reader: &mut Reader<'_>,
) -> Result<Heads> {
    let (d, stack) = (config.d_model, config.encoder()?);
    let mut heads = Heads::default();
    if found.pooler || found.next_sentence {
        heads.pooler = Some(reader.linear(&[Part::new(names.pooler, d, d)])?);
    }
    if found.mlm {
        let activation = match config.family {
            Family::Roberta => Activation::GeluErf,
            _ => stack.activation,
        };
        let bias = names.mlm_bias(|name| reader.has(name));
        let bias = Some(reader.tensor(bias, &[config.vocabulary()], Initial::Zeros)?);
        let tied = config.read_out.tied.then_some(&embedding.words);
        let width = embedding.width;
        let read_out = reader.read_out(tied, names.mlm_decoder, config.vocabulary(), width)?;
        heads.masked_lm = Some(MaskedLm {
            transform: reader.linear(&[Part::new(names.mlm_transform, width, d)])?,
            activation,
            norm: reader.stack_norm(stack, width, names.mlm_norm)?,
            read_out: ReadOut { bias, ..read_out },
        });
    }
    if found.next_sentence {
        heads.next_sentence = Some(reader.linear(&[Part::new(names.next_sentence, 2, d)])?);
    }
    if found.classifier {
        let squash = match config.family {
            Family::DistilBert => Squash::Relu,
            _ => Squash::Tanh,
        };
        let name = names.classifier_dense;
        // BERT's and ALBERT's is the pooler.
        let before = match name == names.pooler {
            true => Before::Pooler,
            false => Before::Dense(reader.linear(&[Part::new(name, d, d)])?, squash),
        };
        let output = reader.labels(config, names.classifier)?;
        heads.classifier = Some(Classifier { before, output });
    }
    if found.tagger {
        heads.tagger = Some(reader.labels(config, "classifier")?);
    }
    Ok(heads)
}
