//! From text to ids: `tokenizer.json` as Hugging Face's tokenizers write it.

use crate::config::read_file;
use crate::error::{Error, Result};
use std::path::Path;
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
        let mut inner = Inner::from_bytes(json).map_err(refused(&place))?;
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
        let refused = refused(&self.place);
        let plain = |text: &str| self.inner.encode_fast(text, false).map_err(&refused);
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
            refused(problem.into())
        })?;
        let strategy = TruncationStrategy::LongestFirst;
        let params = TruncationParams { max_length, strategy, ..TruncationParams::default() };
        let (first, second) = truncate_encodings(first, second, &params).map_err(&refused)?;
        let encoding = self.inner.post_process(first, second, true).map_err(&refused)?;
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
        self.inner.decode(ids, true).map_err(refused(&self.place))
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

fn refused(place: &str) -> impl Fn(tokenizers::Error) -> Error + '_ {
    |error| Error::Tokenizer {
        place: place.to_owned(),
        problem: crate::config::printable(&error.to_string()),
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("place", &self.place).finish_non_exhaustive()
    }
}
