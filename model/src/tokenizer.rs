//! From text to ids: `tokenizer.json` as Hugging Face's tokenizers write it.

use crate::config::{printable, read_file};
use crate::error::{Error, Result};
use serde::Deserialize;
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokenizers::normalizers::Precompiled;
use tokenizers::utils::truncation::{TruncationParams, TruncationStrategy, truncate_encodings};
use tokenizers::{PostProcessor, Tokenizer as Inner};

/// A text, or a pair of texts that the model reads together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text<'a> {
    /// One text.
    Single(&'a str),
    /// Two texts; the tokens of the second have another type.
    Pair(&'a str, &'a str),
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Text::Single(text)
    }
}

impl<'a> From<&&'a str> for Text<'a> {
    fn from(text: &&'a str) -> Self {
        Text::Single(text)
    }
}

impl<'a> From<&'a String> for Text<'a> {
    fn from(text: &'a String) -> Self {
        Text::Single(text)
    }
}

impl<'a> From<(&'a str, &'a str)> for Text<'a> {
    fn from((first, second): (&'a str, &'a str)) -> Self {
        Text::Pair(first, second)
    }
}

/// The ids of a text with its special tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encoding {
    /// Ids, as \[CLS\] … \[SEP\].
    pub ids: Vec<u32>,
    /// A type for each id: 1 in the second text of a pair.
    pub token_types: Vec<u32>,
    /// Tokens that the whole text has, with special ones; more than `ids` when it was cut.
    pub full_length: usize,
}

/// A tokenizer. Truncation and padding that its file records are ignored: both are the caller's choice.
pub struct Tokenizer {
    inner: Inner,
    place: String,
}

/// Largest `tokenizer.json` that is read.
const MAX_BYTES: u64 = 256 << 20;

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// When it cannot be read or describes no tokenizer.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        Tokenizer::parse(&read_file(path, MAX_BYTES)?, path.display().to_string())
    }

    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// When it describes no tokenizer.
    pub fn from_bytes(json: &[u8]) -> Result<Tokenizer> {
        Tokenizer::parse(json, "tokenizer".to_owned())
    }

    fn parse(json: &[u8], place: String) -> Result<Tokenizer> {
        guarded(&place, || check_parts(json).map_err(Into::into))?;
        let mut inner = guarded(&place, || Inner::from_bytes(json))?;
        inner.with_truncation(None).map_err(refused(&place))?;
        inner.with_padding(None);
        Ok(Tokenizer { inner, place })
    }

    /// Ids and token types of `text` with special tokens, cut to at most `limit` tokens.
    ///
    /// What is cut are tokens of the text, from its end, of the longer text first; the special ones stay.
    ///
    /// # Errors
    /// When `limit` has no room for the special tokens, or the tokenizer refuses the text.
    pub fn encode<'a>(&self, text: impl Into<Text<'a>>, limit: Option<usize>) -> Result<Encoding> {
        let plain = |text| guarded(&self.place, || self.inner.encode_fast::<&str>(text, false));
        let (first, second) = match text.into() {
            Text::Single(text) => (plain(text)?, None),
            Text::Pair(first, second) => (plain(first)?, Some(plain(second)?)),
        };
        let special = self.special_tokens(second.is_some());
        let full_length = first.len() + second.as_ref().map_or(0, |second| second.len()) + special;
        let limit = limit.unwrap_or(full_length);
        let max_length = limit.checked_sub(special).ok_or_else(|| {
            let problem =
                format!("a limit of {limit} tokens leaves no room for {special} special ones");
            Error::Tokenizer { place: self.place.clone(), problem }
        })?;
        let strategy = TruncationStrategy::LongestFirst;
        let params = TruncationParams { max_length, strategy, ..TruncationParams::default() };
        let encoding = guarded(&self.place, || {
            let (mut first, mut second) = truncate_encodings(first, second, &params)?;
            // What was cut off is kept as further pieces, and a template would be filled with every
            // combination of them.
            first.take_overflowing();
            second.as_mut().map(tokenizers::Encoding::take_overflowing);
            self.inner.post_process(first, second, true)
        })?;
        Ok(Encoding {
            ids: encoding.get_ids().to_vec(),
            token_types: encoding.get_type_ids().to_vec(),
            full_length,
        })
    }

    /// The text of `ids`, without special tokens.
    ///
    /// # Errors
    /// When the tokenizer refuses them.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        guarded(&self.place, || self.inner.decode(ids, true))
    }

    /// Tokens in the vocabulary, added ones included.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// How many special tokens stand around a text, or around the texts of a pair.
    pub fn special_tokens(&self, pair: bool) -> usize {
        self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(pair))
    }
}

/// The parts of a `tokenizer.json` that the tokenizer's own reader takes on trust: damage there would panic
/// in it, now or with the first text.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    #[expect(dead_code, reason = "that it can be read is what is asked")]
    decoder: Value,
}

fn check_parts(json: &[u8]) -> Result<(), String> {
    let parts: Parts =
        serde_json::from_slice(json).map_err(|error| printable(&error.to_string()))?;
    if !maps_are_whole(&parts.normalizer) {
        return Err("the normalizer's precompiled map is damaged".to_owned());
    }
    match undefined_token(&parts.post_processor) {
        Some(token) => {
            let token = printable(&token);
            Err(format!("the post-processor uses {token}, which it does not define"))
        }
        None => Ok(()),
    }
}

fn maps_are_whole(normalizer: &Value) -> bool {
    let parts = normalizer["normalizers"].as_array().into_iter().flatten();
    let map = (normalizer["type"] == "Precompiled").then_some(normalizer);
    parts.into_iter().all(maps_are_whole)
        && map.is_none_or(|map| {
            map_has_its_length(map) && serde_json::from_str::<Precompiled>(&map.to_string()).is_ok()
        })
}

/// Whether a precompiled map is as long as it says. Its first four bytes, in base64, are the length of its
/// trie, and its reader reserves twice as much.
fn map_has_its_length(map: &Value) -> bool {
    let text = map["precompiled_charsmap"].as_str().unwrap_or_default().as_bytes();
    let mut bits = 0u64;
    for &letter in text.iter().take(6) {
        let digit = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return false,
        };
        bits = bits << 6 | u64::from(digit);
    }
    // 36 bits, of which the first 32 are a little-endian number.
    let trie = ((bits >> 4) as u32).swap_bytes();
    text.len() >= 6 && trie as usize <= text.len() / 4 * 3
}

/// A token that a template names and its table of special tokens lacks.
fn undefined_token(processor: &Value) -> Option<String> {
    let parts = processor["processors"].as_array().into_iter().flatten();
    let templates = ["single", "pair"].map(|name| processor[name].as_array());
    let mut names = templates.into_iter().flatten().flatten().filter_map(|piece| match piece {
        // `[CLS]:0`, short for the same.
        Value::String(short) if !short.starts_with('$') => short.split(':').next(),
        piece => piece["SpecialToken"]["id"].as_str(),
    });
    let unknown = |name: &&str| processor["special_tokens"].get(*name).is_none();
    names.find(unknown).map(str::to_owned).or_else(|| parts.into_iter().find_map(undefined_token))
}

/// What the tokenizer makes of a file or a text. Damaged files can make it panic, which is an error here.
fn guarded<T>(place: &str, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    let result = catch_unwind(AssertUnwindSafe(call));
    result
        .unwrap_or_else(|_| Err("it describes no working tokenizer".into()))
        .map_err(refused(place))
}

fn refused(place: &str) -> impl Fn(tokenizers::Error) -> Error + '_ {
    |error| Error::Tokenizer { place: place.to_owned(), problem: printable(&error.to_string()) }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("place", &self.place).finish_non_exhaustive()
    }
}
