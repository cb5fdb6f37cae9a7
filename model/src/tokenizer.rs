//! From text to ids and back: `tokenizer.json` as Hugging Face's tokenizers write it, or a list of tokens.

mod check;
mod spelling;
mod vocabulary;

pub use spelling::TokenText;

use crate::config::{printable, read_file};
use crate::error::{Error, Result};
use check::check_parts;
use spelling::Spelling;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokenizers::utils::truncation::{TruncationParams, TruncationStrategy, truncate_encodings};
#[cfg(feature = "train")]
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
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
    /// For each id its bytes in the text, or in its text of a pair: of tokens that are a part of a character, the whole
    /// of it; of special tokens, none. Only [`Tokenizer::encode_with_offsets`] fills it.
    pub offsets: Vec<Range<usize>>,
}

/// A tokenizer. Truncation and padding that its file records are ignored: both are the caller's choice.
///
/// ```
/// # #[cfg(feature = "embedded-model")]
/// # {
/// use headrow::TextModel;
///
/// let model = TextModel::pronouncer()?;
/// let tokenizer = model.tokenizer();
/// let ids = tokenizer.encode("c a t", None)?.ids;
/// assert_eq!(tokenizer.decode(&ids)?, "c a t");
/// # }
/// # Ok::<(), headrow::Error>(())
/// ```
pub struct Tokenizer {
    inner: Inner,
    spelling: Spelling,
    place: String,
    max_text_bytes: usize,
}

/// Largest `tokenizer.json` that is read.
pub(crate) const MAX_BYTES: u64 = 256 << 20;

impl Tokenizer {
    /// Most bytes of a text unless [`Tokenizer::with_max_text_bytes`] says otherwise: 1 MiB, several times what models with
    /// 100 000 positions read. Tokenising takes up to 270 bytes of memory for each byte of a text, most where each byte is a token.
    pub const MAX_TEXT_BYTES: usize = 1 << 20;

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
        let spelling = guarded(&place, || check_parts(json).map_err(Into::into))?;
        let mut inner = guarded(&place, || Inner::from_bytes(json))?;
        inner.with_truncation(None).map_err(refused(&place))?;
        inner.with_padding(None);
        Ok(Tokenizer { inner, spelling, place, max_text_bytes: Tokenizer::MAX_TEXT_BYTES })
    }

    /// The same that refuses texts, or texts of a pair, of more than `bytes` bytes with [`Error::TextTooLarge`], before it
    /// looks at them.
    #[must_use]
    pub fn with_max_text_bytes(self, bytes: usize) -> Tokenizer {
        Tokenizer { max_text_bytes: bytes, ..self }
    }

    /// Most bytes of a text that it reads.
    pub fn max_text_bytes(&self) -> usize {
        self.max_text_bytes
    }

    /// Ids and token types of `text` with special tokens, cut to at most `limit` tokens.
    ///
    /// What is cut are tokens of the text, from its end, of the longer text first; the special ones stay.
    ///
    /// # Errors
    /// [`Error::TextTooLarge`]; when `limit` has no room for the special tokens, or the tokenizer refuses the text.
    pub fn encode<'a>(&self, text: impl Into<Text<'a>>, limit: Option<usize>) -> Result<Encoding> {
        let plain = |text: &str| self.check_bytes(text).and_then(|()| self.plain(text));
        Ok(self.assemble(text.into(), limit, plain)?.0)
    }

    /// [`Tokenizer::encode`] that also says where in the text each token lies.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with_offsets<'a>(
        &self,
        text: impl Into<Text<'a>>,
        limit: Option<usize>,
    ) -> Result<Encoding> {
        let plain = |text: &str| {
            self.check_bytes(text)?;
            guarded(&self.place, || self.inner.encode::<&str>(text, false))
        };
        let (mut encoding, inner) = self.assemble(text.into(), limit, plain)?;
        encoding.offsets = inner.get_offsets().iter().map(|&(start, end)| start..end).collect();
        Ok(encoding)
    }

    /// Ids of `text` alone, without special tokens around it.
    ///
    /// # Errors
    /// [`Error::TextTooLarge`]; when the tokenizer refuses the text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.check_bytes(text)?;
        Ok(self.plain(text)?.get_ids().to_vec())
    }

    /// [`Tokenizer::encode_plain`] of a line that is bounded already, by who reads it.
    #[cfg(feature = "train")]
    pub(crate) fn line(&self, line: &str) -> Result<Vec<u32>> {
        Ok(self.plain(line)?.get_ids().to_vec())
    }

    /// The same with special tokens.
    #[cfg(feature = "train")]
    pub(crate) fn line_with_special(&self, line: &str) -> Result<Vec<u32>> {
        Ok(self.assemble(Text::Single(line), None, |line| self.plain(line))?.0.ids)
    }

    /// A text of any size in the tokenizer's own form, without offsets.
    fn plain(&self, text: &str) -> Result<tokenizers::Encoding> {
        guarded(&self.place, || self.inner.encode_fast::<&str>(text, false))
    }

    /// Refuses a text that would take too much memory.
    fn check_bytes(&self, text: &str) -> Result<()> {
        match (text.len(), self.max_text_bytes) {
            (bytes, maximum) if bytes > maximum => Err(Error::TextTooLarge { bytes, maximum }),
            _ => Ok(()),
        }
    }

    /// Calls `each` with the pieces into which a text is cut before they become tokens.
    #[cfg(feature = "train")]
    pub(crate) fn pieces(&self, text: &str, mut each: impl FnMut(&str)) -> Result<()> {
        let mut cut = PreTokenizedString::from(text);
        if let Some(cutter) = self.inner.get_pre_tokenizer() {
            guarded(&self.place, || cutter.pre_tokenize(&mut cut))?;
        }
        let pieces = cut.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
        pieces.into_iter().for_each(|(piece, ..)| each(piece));
        Ok(())
    }

    /// Cuts what `plain` makes of the texts, and puts the special tokens around it.
    fn assemble(
        &self,
        text: Text<'_>,
        limit: Option<usize>,
        plain: impl Fn(&str) -> Result<tokenizers::Encoding>,
    ) -> Result<(Encoding, tokenizers::Encoding)> {
        let (first, second) = match text {
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
        let (ids, token_types) = (encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec());
        Ok((Encoding { ids, token_types, full_length, offsets: Vec::new() }, encoding))
    }

    /// The text of `ids`, without special tokens.
    ///
    /// # Errors
    /// When the tokenizer refuses them.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        guarded(&self.place, || self.inner.decode(ids, true))
    }

    /// How the vocabulary writes a token, as `Ġworld` or `##ing`; `None` when it has no such id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token as the vocabulary writes it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether a token is a special one, which is no part of a text.
    pub fn is_special(&self, id: u32) -> bool {
        self.token(id)
            .is_some_and(|token| self.inner.get_added_vocabulary().is_special_token(&token))
    }

    /// What it is called in messages.
    pub(crate) fn place(&self) -> &str {
        &self.place
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
