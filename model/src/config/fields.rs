//! JSON objects from outside, read field by field with errors that name file and field.

use super::SpecialTokens;
use crate::error::{Error, Result};
use crate::position::Rotary;
use headrow_kernels::Activation;
use serde_json::{Map, Value};
use std::path::Path;

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

    /// Whether the file has the field, be it `null`.
    pub(crate) fn names_field(&self, field: &str) -> bool {
        self.map.contains_key(field)
    }

    #[cfg(feature = "tokenizers")]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    pub(crate) fn wrong(&self, field: &str, problem: &str) -> Error {
        Error::config(self.place, field, problem)
    }

    pub(crate) fn unsupported(&self, field: &str, value: &str, hint: &str) -> Error {
        Error::unsupported(self.place, field, printable(value), hint)
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

    /// The side of a square: a number, or rows and columns, which must be equal.
    pub(crate) fn side(&self, field: &str, default: usize) -> Result<usize> {
        match self.get(field).and_then(Value::as_array).map(Vec::as_slice) {
            Some([rows, columns]) if rows == columns => rows
                .as_u64()
                .and_then(|side| usize::try_from(side).ok())
                .ok_or_else(|| self.wrong(field, "expected whole numbers from 0 up")),
            Some(sides) => {
                let found = serde_json::Value::from(sides).to_string();
                Err(self.unsupported(field, &found, " (expected a square)"))
            }
            None => self.size(field, Some(default)),
        }
    }

    pub(crate) fn flag(&self, field: &str, default: bool) -> Result<bool> {
        self.typed(field, Some(default), "true or false", Value::as_bool)
    }

    pub(crate) fn word(&self, field: &str, default: Option<&str>) -> Result<String> {
        self.typed(field, default.map(str::to_owned), "a word", |value| {
            value.as_str().map(str::to_owned)
        })
    }

    pub(crate) fn words(&self, field: &str) -> Result<Vec<String>> {
        self.typed(field, Some(Vec::new()), "a list of words", |value| {
            value.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect()
        })
    }

    pub(crate) fn number(&self, field: &str, default: f64) -> Result<f64> {
        self.typed(field, Some(default), "a number", Value::as_f64)
    }

    pub(crate) fn real(&self, field: &str) -> Result<f64> {
        self.typed(field, None, "a number", Value::as_f64)
    }

    /// What `read` makes of an object, unless it is absent or `null`.
    pub(crate) fn within<T>(
        &self,
        field: &str,
        read: impl FnOnce(&Fields<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                let place = format!("{}: {field}", self.place);
                read(&Fields { map: map.clone(), place: &place }).map(Some)
            }
            Some(_) => Err(self.wrong(field, "expected an object")),
        }
    }

    /// One of some words, and what it stands for.
    pub(crate) fn choice<T: Copy>(
        &self,
        field: &str,
        default: T,
        choices: &[(&str, T)],
    ) -> Result<T> {
        if self.get(field).is_none() {
            return Ok(default);
        }
        let word = self.word(field, None)?;
        let found = choices.iter().find(|(known, _)| *known == word);
        found.map(|&(_, value)| value).ok_or_else(|| {
            let known: Vec<&str> = choices.iter().map(|&(known, _)| known).collect();
            self.unsupported(field, &word, &format!(" (expected {})", known.join(", ")))
        })
    }

    /// There is no other field than these.
    pub(crate) fn only(&self, known: &[&str]) -> Result<()> {
        match self.map.keys().find(|field| !known.contains(&field.as_str())) {
            Some(unknown) => Err(self.wrong(&printable(unknown), "not a field that is known here")),
            None => Ok(()),
        }
    }

    /// The activation by its exact word: `gelu` is the erf form, not the tanh form.
    pub(crate) fn activation(&self, field: &str, default: &str) -> Result<(Activation, String)> {
        let word = self.word(field, Some(default))?;
        Ok((self.named_activation(field, &word)?, word))
    }

    /// The activation that `word` names in `field`.
    pub(crate) fn named_activation(&self, field: &str, word: &str) -> Result<Activation> {
        Ok(match word {
            "gelu" => Activation::GeluErf,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "quick_gelu" => Activation::GeluQuick,
            "relu" => Activation::Relu,
            "silu" | "swish" => Activation::Silu,
            _ => {
                let known = " (expected gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu, silu \
                             or swish)";
                return Err(self.unsupported(field, word, known));
            }
        })
    }

    /// The field says this, or nothing.
    pub(crate) fn expect_word(&self, field: &str, only: &str) -> Result<()> {
        let word = self.word(field, Some(only))?;
        match word == only {
            true => Ok(()),
            false => Err(self.unsupported(field, &word, &format!(" (expected {only})"))),
        }
    }

    /// The field says this, or nothing.
    pub(crate) fn expect_flag(&self, field: &str, only: bool) -> Result<()> {
        match self.flag(field, only)? == only {
            true => Ok(()),
            false => Err(self.unsupported(field, &(!only).to_string(), "")),
        }
    }

    /// The field says this, or nothing.
    pub(crate) fn expect_size(&self, field: &str, only: usize) -> Result<()> {
        match self.size(field, Some(only))? {
            size if size == only => Ok(()),
            size => Err(self.unsupported(field, &size.to_string(), &format!(" (expected {only})"))),
        }
    }

    /// `rope_parameters`, or `rope_theta` and `rope_scaling`, for heads of `d_k` features.
    pub(crate) fn rotary(&self, d_k: usize) -> Result<Rotary> {
        let json = serde_json::to_vec(&self.map).map_err(|error| Error::file(self.place, error))?;
        Rotary::from_json(&json, self.place, d_k)
    }

    /// An id, when it is named.
    pub(crate) fn id(&self, field: &str) -> Result<Option<u32>> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => {
                let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
                id.map(Some).ok_or_else(|| self.wrong(field, "expected the id of a token"))
            }
        }
    }

    /// `bos_token_id` and its like; `eos_token_id` may be a list.
    pub(crate) fn special_tokens(&self) -> Result<SpecialTokens> {
        let end = match self.get("eos_token_id").and_then(Value::as_array) {
            Some(ids) => {
                let ids = ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
                let ids: Option<Vec<u32>> = ids.collect();
                ids.ok_or_else(|| self.wrong("eos_token_id", "expected ids of tokens"))?
            }
            None => self.id("eos_token_id")?.into_iter().collect(),
        };
        Ok(SpecialTokens {
            begin: self.id("bos_token_id")?,
            end,
            padding: self.id("pad_token_id")?,
            decoder_start: self.id("decoder_start_token_id")?,
        })
    }

    /// `id2label` in the order of its ids, which must be 0, 1, 2 …
    pub(crate) fn labels(&self) -> Result<Vec<String>> {
        let bad = || self.wrong("id2label", "expected names for the ids 0, 1, 2 …");
        let Some(value) = self.get("id2label") else { return Ok(Vec::new()) };
        let map = value.as_object().ok_or_else(bad)?;
        (0..map.len())
            .map(|id| map.get(&id.to_string())?.as_str().map(str::to_owned))
            .collect::<Option<Vec<String>>>()
            .ok_or_else(bad)
    }
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

/// [`read_file`], or `None` when there is nothing of that name. A link that leads nowhere is a file that cannot be read.
#[cfg(feature = "tokenizers")]
pub(crate) fn read_optional_file(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        _ => Ok(Some(read_file(path, limit)?)),
    }
}

/// The size of a regular file.
pub(crate) fn regular_file(path: &Path) -> Result<u64> {
    let metadata = std::fs::metadata(path).map_err(Error::io(path))?;
    if !metadata.is_file() {
        return Err(Error::file(path.display(), "not a regular file"));
    }
    Ok(metadata.len())
}
