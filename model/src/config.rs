//! `config.json`: what a checkpoint says about itself, checked before anything is allocated.
//!
//! A field that changes the result is read strictly: an unknown word, a value out of range or a kind
//! of model we do not compute is an error that names the field. A field that is absent has the value that the
//! family's reference implementation gives it.

use crate::error::{Error, Result};
use headrow_kernels::Activation;
use serde_json::{Map, Value};
use std::fmt;
use std::path::Path;

/// Families of encoders that share one architecture under different names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// BERT, and MiniLM and others distilled into its form.
    Bert,
    /// RoBERTa, XLM-RoBERTa, CamemBERT: positions start behind the padding id.
    Roberta,
    /// DistilBERT: no token types, no pooler.
    DistilBert,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Family::Bert => "BERT",
            Family::Roberta => "RoBERTa",
            Family::DistilBert => "DistilBERT",
        })
    }
}

/// The sizes and options of an encoder, in the letters of the paper.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Whose names the checkpoint uses.
    pub family: Family,
    /// v: tokens in the vocabulary.
    pub vocabulary: usize,
    /// Token types (segments of a sentence pair); 0 when the model has none.
    pub token_types: usize,
    /// Rows of the position table.
    pub position_rows: usize,
    /// The row of a sequence's first token.
    pub first_position: usize,
    /// d_model: features of a token.
    pub d_model: usize,
    /// N: layers.
    pub layers: usize,
    /// h: heads of each attention.
    pub heads: usize,
    /// d_ff: inner features of the feed-forward network.
    pub d_ff: usize,
    /// Between the two linear maps of the feed-forward network.
    pub activation: Activation,
    /// The word `config.json` has for it.
    pub activation_word: String,
    /// ε inside the root of every LayerNorm.
    pub epsilon: f32,
    /// Whether the masked-language-model head reads out with the word embeddings.
    pub tied: bool,
    /// Class names as the checkpoint was trained for (`BertForMaskedLM` …), possibly none.
    pub architectures: Vec<String>,
    /// The labels of a classifier or tagger by index, when they are named.
    pub labels: Vec<String>,
}

/// Largest `config.json` that is read.
const MAX_BYTES: u64 = 16 << 20;

impl Config {
    /// Reads a `config.json`.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Config> {
        let path = path.as_ref();
        let bytes = read_file(path, MAX_BYTES)?;
        Config::parse(&bytes, &path.display().to_string())
    }

    /// Reads the text of a `config.json`.
    pub fn from_json(json: &[u8]) -> Result<Config> {
        Config::parse(json, "config")
    }

    /// The longest sequence: rows of the position table from [`Config::first_position`] on.
    pub fn max_length(&self) -> usize {
        self.position_rows.saturating_sub(self.first_position)
    }

    /// d_k = d_v: features of a head.
    pub fn d_head(&self) -> usize {
        self.d_model.checked_div(self.heads).unwrap_or(0)
    }

    /// Multiply-adds of all layers for one token, beside attention: N·(4d² + 2d·d_ff), or the largest
    /// number when that is beyond it.
    pub(crate) fn multiply_adds(&self) -> usize {
        let maps = self.d_model.saturating_mul(4).saturating_add(self.d_ff.saturating_mul(2));
        self.layers.saturating_mul(self.d_model).saturating_mul(maps)
    }

    fn parse(json: &[u8], place: &str) -> Result<Config> {
        let fields = Fields::parse(json, place)?;
        let model_type = fields.word("model_type", None)?;
        let family = match model_type.as_str() {
            "bert" => Family::Bert,
            "roberta" | "xlm-roberta" | "camembert" => Family::Roberta,
            "distilbert" => Family::DistilBert,
            _ => {
                let known = " (expected bert, roberta, xlm-roberta, camembert or distilbert)";
                return Err(fields.unsupported("model_type", &model_type, known));
            }
        };
        for flag in ["is_decoder", "add_cross_attention", "is_encoder_decoder"] {
            if fields.flag(flag, false)? {
                return Err(fields.unsupported(flag, "true", ""));
            }
        }
        let positions = fields.word("position_embedding_type", Some("absolute"))?;
        if positions != "absolute" {
            return Err(fields.unsupported(
                "position_embedding_type",
                &positions,
                " (expected absolute)",
            ));
        }
        let config = match family {
            Family::Bert | Family::Roberta => Config::bert(&fields, family)?,
            Family::DistilBert => Config::distilbert(&fields)?,
        };
        config.check(place)?;
        Ok(config)
    }

    fn bert(fields: &Fields<'_>, family: Family) -> Result<Config> {
        let first_position = match family {
            Family::Roberta => fields.size("pad_token_id", Some(1))?.saturating_add(1),
            _ => 0,
        };
        let (activation, activation_word) = fields.activation("hidden_act")?;
        Ok(Config {
            family,
            vocabulary: fields.size("vocab_size", None)?,
            token_types: fields.size("type_vocab_size", Some(2))?,
            position_rows: fields.size("max_position_embeddings", None)?,
            first_position,
            d_model: fields.size("hidden_size", None)?,
            layers: fields.size("num_hidden_layers", None)?,
            heads: fields.size("num_attention_heads", None)?,
            d_ff: fields.size("intermediate_size", None)?,
            activation,
            activation_word,
            epsilon: fields.number("layer_norm_eps", 1e-12)? as f32,
            tied: fields.flag("tie_word_embeddings", true)?,
            architectures: fields.words("architectures")?,
            labels: fields.labels()?,
        })
    }

    fn distilbert(fields: &Fields<'_>) -> Result<Config> {
        let (activation, activation_word) = fields.activation("activation")?;
        Ok(Config {
            family: Family::DistilBert,
            vocabulary: fields.size("vocab_size", None)?,
            token_types: 0,
            position_rows: fields.size("max_position_embeddings", None)?,
            first_position: 0,
            d_model: fields.size("dim", None)?,
            layers: fields.size("n_layers", None)?,
            heads: fields.size("n_heads", None)?,
            d_ff: fields.size("hidden_dim", None)?,
            activation,
            activation_word,
            // The family has no field for it.
            epsilon: 1e-12,
            tied: fields.flag("tie_word_embeddings", true)?,
            architectures: fields.words("architectures")?,
            labels: fields.labels()?,
        })
    }

    /// Ranges of the fields and relations between them, also of a config that was changed after it was
    /// read. Against the weights they are checked when those are opened.
    pub(crate) fn check(&self, place: &str) -> Result<()> {
        let refused = |field, problem: &str| Err(wrong(place, field, problem));
        let names: [&str; 6] = match self.family {
            Family::DistilBert => [
                "vocab_size",
                "max_position_embeddings",
                "dim",
                "n_layers",
                "n_heads",
                "hidden_dim",
            ],
            _ => [
                "vocab_size",
                "max_position_embeddings",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "intermediate_size",
            ],
        };
        let sizes =
            [self.vocabulary, self.position_rows, self.d_model, self.layers, self.heads, self.d_ff];
        for (name, size) in names.into_iter().zip(sizes) {
            if size == 0 {
                return refused(name, "must not be 0");
            }
            // Ids, positions and sums of a few sizes then fit their types on every machine.
            if size > u32::MAX as usize {
                return refused(name, &format!("{size} is beyond any model"));
            }
        }
        if !self.d_model.is_multiple_of(self.heads) {
            let problem = format!("{} heads do not divide {}", self.heads, self.d_model);
            return refused(names[4], &problem);
        }
        if self.max_length() == 0 {
            let problem = format!(
                "{} rows leave no position from {} on",
                self.position_rows, self.first_position
            );
            return refused(names[1], &problem);
        }
        if self.family == Family::Roberta && self.first_position == 0 {
            return refused("first_position", "0 leaves no row for padding");
        }
        // Also once it is rounded to f32.
        let epsilon = self.epsilon;
        if !(epsilon > 0.0 && epsilon.is_finite()) {
            let problem = format!("must be above 0 and finite, found {epsilon}");
            return refused("layer_norm_eps", &problem);
        }
        Ok(())
    }
}

/// The fields of a JSON object, with errors that name file and field.
pub(crate) struct Fields<'a> {
    map: Map<String, Value>,
    place: &'a str,
}

impl<'a> Fields<'a> {
    pub(crate) fn parse(json: &[u8], place: &'a str) -> Result<Fields<'a>> {
        match serde_json::from_slice(json) {
            Ok(Value::Object(map)) => Ok(Fields { map, place }),
            Ok(_) => Err(Error::file(place, "not a JSON object")),
            Err(error) => Err(Error::file(place, format_args!("not JSON: {error}"))),
        }
    }

    /// The field, unless it is absent or `null`.
    pub(crate) fn get(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    #[cfg(feature = "tokenizers")]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    pub(crate) fn wrong(&self, field: &str, problem: &str) -> Error {
        wrong(self.place, field, problem)
    }

    pub(crate) fn unsupported(&self, field: &str, value: &str, hint: &str) -> Error {
        Error::Unsupported {
            place: self.place.to_owned(),
            field: field.to_owned(),
            value: printable(value),
            hint: hint.to_owned(),
        }
    }

    fn typed<T>(
        &self,
        field: &str,
        default: Option<T>,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T> {
        match self.get(field) {
            Some(value) => read(value).ok_or_else(|| {
                let problem =
                    format!("expected {expected}, found {}", printable(&value.to_string()));
                self.wrong(field, &problem)
            }),
            None => default.ok_or_else(|| self.wrong(field, "missing")),
        }
    }

    pub(crate) fn size(&self, field: &str, default: Option<usize>) -> Result<usize> {
        self.typed(field, default, "a whole number from 0 up", |value| {
            value.as_u64().and_then(|n| usize::try_from(n).ok())
        })
    }

    pub(crate) fn flag(&self, field: &str, default: bool) -> Result<bool> {
        self.typed(field, Some(default), "true or false", Value::as_bool)
    }

    pub(crate) fn word(&self, field: &str, default: Option<&str>) -> Result<String> {
        self.typed(field, default.map(str::to_owned), "a word", |value| {
            value.as_str().map(str::to_owned)
        })
    }

    fn words(&self, field: &str) -> Result<Vec<String>> {
        self.typed(field, Some(Vec::new()), "a list of words", |value| {
            value.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect()
        })
    }

    fn number(&self, field: &str, default: f64) -> Result<f64> {
        self.typed(field, Some(default), "a number", Value::as_f64)
    }

    /// The activation by its exact word: `gelu` is the erf form, not the tanh form.
    fn activation(&self, field: &str) -> Result<(Activation, String)> {
        let word = self.word(field, Some("gelu"))?;
        let activation = match word.as_str() {
            "gelu" => Activation::GeluErf,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "quick_gelu" => Activation::GeluQuick,
            "relu" => Activation::Relu,
            "silu" | "swish" => Activation::Silu,
            _ => {
                let known = " (expected gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu, silu \
                             or swish)";
                return Err(self.unsupported(field, &word, known));
            }
        };
        Ok((activation, word))
    }

    /// `id2label` in the order of its ids, which must be 0, 1, 2 …
    fn labels(&self) -> Result<Vec<String>> {
        let bad = || self.wrong("id2label", "expected names for the ids 0, 1, 2 …");
        let Some(value) = self.get("id2label") else { return Ok(Vec::new()) };
        let map = value.as_object().ok_or_else(bad)?;
        (0..map.len())
            .map(|id| map.get(&id.to_string())?.as_str().map(str::to_owned))
            .collect::<Option<Vec<String>>>()
            .ok_or_else(bad)
    }
}

fn wrong(place: &str, field: &str, problem: &str) -> Error {
    let (place, field, problem) = (place.to_owned(), field.to_owned(), problem.to_owned());
    Error::Config { place, field, problem }
}

/// Text from a file as it may stand in a message: one line, and not a long one.
pub(crate) fn printable(text: &str) -> String {
    const SHOWN: usize = 120;
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    let mut shown = String::new();
    for c in text.chars().take(SHOWN) {
        match breaks(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Reads a regular file of at most `limit` bytes. A pipe or a device would block or never end.
pub(crate) fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let len = regular_file(path)?;
    if len > limit {
        let problem = format!("{len} bytes, more than the {limit} such a file may have");
        return Err(Error::file(path.display(), problem));
    }
    std::fs::read(path).map_err(Error::io(path))
}

/// The size of a regular file.
pub(crate) fn regular_file(path: &Path) -> Result<u64> {
    let metadata = std::fs::metadata(path).map_err(Error::io(path))?;
    if !metadata.is_file() {
        return Err(Error::file(path.display(), "not a regular file"));
    }
    Ok(metadata.len())
}
