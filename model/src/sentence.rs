//! From texts to vectors: folders in the layout of sentence-transformers.
//!
//! `modules.json` lists what follows the encoder: a pooling and perhaps a normalisation. A folder without it
//! pools by the mean, as sentence-transformers does with a bare encoder.

mod recipe;

use crate::batch::Batch;
use crate::config::{Config, StackConfig};
use crate::error::{Error, Result};
use crate::head::{Head, Normalization, Pooling};
use crate::model::{LoadOptions, Model};
use crate::session::{Session, SessionOptions};
use crate::tokenizer::{Encoding, Text, Tokenizer};
use headrow_kernels::Isa;
use recipe::{Files, Recipe};
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

/// What happens to a text with more tokens than the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TooLong {
    /// Its end is cut off; the special tokens stay.
    #[default]
    Truncate,
    /// It is refused with [`Error::TextTooLong`].
    Error,
}

/// How a sentence encoder is loaded.
///
/// ```
/// # #[cfg(feature = "embedded-model")]
/// # {
/// use headrow::{Error, SentenceEncoder, SentenceOptions, TooLong};
///
/// let options = SentenceOptions::default().with_too_long(TooLong::Error);
/// let encoder = SentenceEncoder::seeded_with(&options)?;
/// let refused = encoder.embed(["word ".repeat(1000).as_str()]);
/// assert!(matches!(refused, Err(Error::TextTooLong { text: 0, .. })));
/// # }
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SentenceOptions {
    /// The instruction set to compute with; `None` takes the best of this machine.
    pub isa: Option<Isa>,
    /// What happens to texts that are too long.
    pub too_long: TooLong,
    /// How states become a vector; `None`: as the folder says, the mean where it says nothing.
    pub pooling: Option<Pooling>,
    /// What happens to the vector; `None`: as the folder says, nothing where it says nothing.
    pub normalization: Option<Normalization>,
    /// Most bytes of a text, or of each text of a pair; `None`: [`Tokenizer::MAX_TEXT_BYTES`].
    pub max_text_bytes: Option<usize>,
}

impl SentenceOptions {
    /// The same options with this instruction set.
    #[must_use]
    pub fn with_isa(mut self, isa: impl Into<Option<Isa>>) -> SentenceOptions {
        self.isa = isa.into();
        self
    }

    /// The same options with this treatment of texts that are too long.
    #[must_use]
    pub fn with_too_long(mut self, too_long: TooLong) -> SentenceOptions {
        self.too_long = too_long;
        self
    }

    /// The same options with this pooling, whatever the folder says.
    #[must_use]
    pub fn with_pooling(mut self, pooling: impl Into<Option<Pooling>>) -> SentenceOptions {
        self.pooling = pooling.into();
        self
    }

    /// The same options with this normalisation, whatever the folder says.
    #[must_use]
    pub fn with_normalization(
        mut self,
        normalization: impl Into<Option<Normalization>>,
    ) -> SentenceOptions {
        self.normalization = normalization.into();
        self
    }

    /// The same options with texts of so many bytes and no more: others are refused with [`Error::TextTooLarge`] before they
    /// are tokenised, cut or not.
    #[must_use]
    pub fn with_max_text_bytes(mut self, bytes: impl Into<Option<usize>>) -> SentenceOptions {
        self.max_text_bytes = bytes.into();
        self
    }
}

/// A tokenizer, an encoder and a pooling.
///
/// ```no_run
/// use headrow::{SentenceEncoder, SessionOptions};
/// let encoder = SentenceEncoder::from_dir("all-MiniLM-L6-v2")?;
/// // A service keeps a session per worker, and writes into memory of its own.
/// let mut session = encoder.session(&SessionOptions::default().with_threads(1))?;
/// let texts = ["one line", "and another"];
/// let mut vectors = vec![0.0; texts.len() * encoder.dimension()];
/// encoder.embed_into(&mut session, texts, &mut vectors)?;
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Debug)]
pub struct SentenceEncoder {
    model: Arc<Model>,
    tokenizer: Tokenizer,
    recipe: Recipe,
    too_long: TooLong,
}

impl SentenceEncoder {
    /// Loads a folder of sentence-transformers, or a bare Hugging Face folder with a `tokenizer.json`.
    ///
    /// # Errors
    /// As [`Model::from_dir`]; and when a module, a pooling or a tokenizer is not one this library has.
    pub fn from_dir(folder: impl AsRef<Path>) -> Result<SentenceEncoder> {
        SentenceEncoder::from_dir_with(folder, &SentenceOptions::default())
    }

    /// [`SentenceEncoder::from_dir`] with options.
    pub fn from_dir_with(
        folder: impl AsRef<Path>,
        options: &SentenceOptions,
    ) -> Result<SentenceEncoder> {
        let recipe = Recipe::read(&Files::Folder(folder.as_ref()))?;
        let transformer = folder.as_ref().join(&recipe.transformer);
        let load = LoadOptions::default().with_isa(options.isa);
        let config = transformer.join("config.json");
        check_encoder(&Config::from_file(&config)?, &config)?;
        let model = Model::from_dir_with(&transformer, &load)?;
        let tokenizer = Tokenizer::from_file(transformer.join("tokenizer.json"))?;
        SentenceEncoder::assemble(model, tokenizer, recipe, options)
    }

    /// Loads the files of such a folder from memory: pairs of a path inside the folder, written with `/`,
    /// and the contents, as `("1_Pooling/config.json", include_bytes!(…))`. The weights are one
    /// `model.safetensors`.
    ///
    /// # Errors
    /// As [`SentenceEncoder::from_dir`].
    pub fn from_files(files: &[(&str, &[u8])]) -> Result<SentenceEncoder> {
        SentenceEncoder::from_files_with(files, &SentenceOptions::default())
    }

    /// [`SentenceEncoder::from_files`] with options.
    pub fn from_files_with(
        files: &[(&str, &[u8])],
        options: &SentenceOptions,
    ) -> Result<SentenceEncoder> {
        let files = Files::Memory(files);
        let recipe = Recipe::read(&files)?;
        let file = |name| files.in_memory(&recipe.transformer.join(name));
        let load = LoadOptions::default().with_isa(options.isa);
        let config = Config::from_json(file("config.json")?)?;
        check_encoder(&config, &recipe.transformer.join("config.json"))?;
        let model = Model::from_bytes_with(&config, file("model.safetensors")?, &load)?;
        let tokenizer = Tokenizer::from_bytes(file("tokenizer.json")?)?;
        SentenceEncoder::assemble(model, tokenizer, recipe, options)
    }

    fn assemble(
        model: Model,
        tokenizer: Tokenizer,
        mut recipe: Recipe,
        options: &SentenceOptions,
    ) -> Result<SentenceEncoder> {
        recipe.check_width(model.config().d_model)?;
        recipe.pooling = options.pooling.unwrap_or(recipe.pooling);
        recipe.normalization = options.normalization.unwrap_or(recipe.normalization);
        let too_long = options.too_long;
        let bytes = options.max_text_bytes.unwrap_or(Tokenizer::MAX_TEXT_BYTES);
        let tokenizer = tokenizer.with_max_text_bytes(bytes);
        Ok(SentenceEncoder { model: Arc::new(model), tokenizer, recipe, too_long })
    }

    /// The encoder itself.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Length of a vector.
    pub fn dimension(&self) -> usize {
        self.model.config().d_model
    }

    /// Token types that the model knows.
    fn token_types(&self) -> usize {
        let tokens = self.model.config().encoder.as_ref().and_then(StackConfig::tokens);
        tokens.map_or(0, |tokens| tokens.token_types)
    }

    /// How the states of a text become its vector.
    pub fn head(&self) -> Head {
        Head::Pooled(self.recipe.pooling, self.recipe.normalization)
    }

    /// Most tokens of a text, special ones included: what `sentence_bert_config.json` says, at most what
    /// the model has positions for.
    pub fn max_length(&self) -> usize {
        let most = self.model.config().encoder.as_ref().map_or(0, StackConfig::max_length);
        self.recipe.max_length.unwrap_or(most).min(most)
    }

    /// A session for this encoder's model.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn session(&self, options: &SessionOptions) -> Result<Session> {
        Session::new(&self.model, options)
    }

    /// The ids of a text as the encoder reads it, within [`SentenceEncoder::max_length`].
    ///
    /// # Errors
    /// [`Error::TextTooLarge`], and [`Error::TextTooLong`] when long texts are refused; [`Error::Tokenizer`].
    pub fn tokenize<'a>(&self, text: impl Into<Text<'a>>) -> Result<Encoding> {
        self.tokenize_nth(0, text.into())
    }

    fn tokenize_nth(&self, index: usize, text: Text<'_>) -> Result<Encoding> {
        let (first, second) = match text {
            Text::Single(first) => (self.prepare(first), None),
            Text::Pair(first, second) => (self.prepare(first), Some(self.prepare(second))),
        };
        let text = match &second {
            None => Text::Single(&first),
            Some(second) => Text::Pair(&first, second),
        };
        let maximum = self.max_length();
        let encoding = self.tokenizer.encode(text, Some(maximum))?;
        if self.too_long == TooLong::Error && encoding.full_length > maximum {
            let tokens = encoding.full_length;
            return Err(Error::TextTooLong { text: index, tokens, maximum });
        }
        Ok(encoding)
    }

    /// What sentence-transformers does to a text before its tokenizer sees it.
    fn prepare<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.recipe.lower {
            true => Cow::Owned(strip(text).to_lowercase()),
            false => Cow::Borrowed(strip(text)),
        }
    }

    /// A vector per text, with a session of its own. Keep a session and use
    /// [`SentenceEncoder::embed_into`] when there is more than one call.
    ///
    /// # Errors
    /// As [`SentenceEncoder::embed_into`].
    pub fn embed<'a, T: Into<Text<'a>>>(
        &self,
        texts: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Vec<f32>>> {
        let mut session = self.session(&SessionOptions::default())?;
        let mut vectors = Vec::new();
        self.in_groups(&mut session, texts, &mut |vector| vectors.push(vector.to_vec()))?;
        Ok(vectors)
    }

    /// Writes a vector per text to `out`, `texts × dimension`, in order. Texts are packed into as
    /// few passes as the session's sizes allow; how they are grouped changes no bit.
    ///
    /// # Errors
    /// When a text is refused or has more tokens than the session takes, with its number among `texts`
    /// ([`Error::Text`], [`Error::TextTooLong`], or as a sequence: [`Error::TokenId`] …); when `out` has
    /// the wrong length.
    pub fn embed_into<'a, T: Into<Text<'a>>>(
        &self,
        session: &mut Session,
        texts: impl IntoIterator<Item = T>,
        out: &mut [f32],
    ) -> Result<()> {
        let actual = out.len();
        let (mut count, mut places) = (0, out.chunks_exact_mut(self.dimension()));
        self.in_groups(session, texts, &mut |vector| {
            count += 1;
            if let Some(place) = places.next() {
                place.copy_from_slice(vector);
            }
        })?;
        let expected = count * self.dimension();
        if expected != actual {
            return Err(Error::Buffer { what: "the vectors", expected, actual });
        }
        Ok(())
    }

    /// Tokenises, packs what fits into a pass, and hands out the vectors in order.
    fn in_groups<'a, T: Into<Text<'a>>>(
        &self,
        session: &mut Session,
        texts: impl IntoIterator<Item = T>,
        vector: &mut dyn FnMut(&[f32]),
    ) -> Result<()> {
        let mut group = Group::default();
        for (index, text) in texts.into_iter().enumerate() {
            let maximum = session.max_tokens();
            let fits = |encoding: Encoding| match encoding.ids.len() {
                actual if actual > maximum => {
                    Err(Error::BatchTooLarge { what: "tokens", actual, maximum })
                }
                _ => Ok(encoding),
            };
            let encoding = match self.tokenize_nth(index, text.into()).and_then(fits) {
                Ok(encoding) => encoding,
                Err(error) => {
                    // Of several texts that are refused the first is told: one before may be waiting.
                    group.flush(self, session, vector)?;
                    return Err(error.of_text(index));
                }
            };
            let tokens = group.ids.len() + encoding.ids.len();
            let full =
                tokens > session.max_tokens() || group.lengths.len() + 1 > session.max_sequences();
            if full && !group.lengths.is_empty() {
                group.flush(self, session, vector)?;
            }
            group.push(&encoding);
        }
        group.flush(self, session, vector)
    }
}

/// Texts that are waiting for the next pass.
#[derive(Default)]
struct Group {
    /// The number of the first one among all texts.
    first: usize,
    ids: Vec<u32>,
    token_types: Vec<u32>,
    lengths: Vec<usize>,
    vectors: Vec<f32>,
}

impl Group {
    fn push(&mut self, encoding: &Encoding) {
        self.ids.extend(&encoding.ids);
        self.token_types.extend(&encoding.token_types);
        self.lengths.push(encoding.ids.len());
    }

    fn flush(
        &mut self,
        encoder: &SentenceEncoder,
        session: &mut Session,
        vector: &mut dyn FnMut(&[f32]),
    ) -> Result<()> {
        if self.lengths.is_empty() {
            return Ok(());
        }
        let dimension = encoder.dimension();
        self.vectors.resize(self.lengths.len() * dimension, 0.0);
        let mut batch = Batch::ragged(&self.ids, &self.lengths);
        // RoBERTa's tokenizers may mark the second text although the model knows one type only.
        if encoder.token_types() > 1 {
            batch = batch.with_token_types(&self.token_types);
        }
        session
            .predict(&batch, encoder.head(), &mut self.vectors)
            .map_err(|error| error.counted_from(self.first))?;
        self.vectors.chunks_exact(dimension).for_each(vector);
        self.first += self.lengths.len();
        self.ids.clear();
        self.token_types.clear();
        self.lengths.clear();
        Ok(())
    }
}

/// Python's `str.strip`, which sentence-transformers applies: white space and the separators 1c to 1f.
fn strip(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c))
}

/// Whether a text can be encoded at all: a decoder sees of each token only what comes before it.
fn check_encoder(config: &Config, place: &Path) -> Result<()> {
    match config.encoder.as_ref().and_then(StackConfig::tokens) {
        Some(_) => Ok(()),
        None => {
            let (place, family) = (place.display().to_string(), config.family.to_string());
            let hint = " here (expected an encoder of texts)";
            Err(Error::unsupported(&place, "model_type", family, hint))
        }
    }
}
