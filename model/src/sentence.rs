//! From texts to vectors: folders in the layout of sentence-transformers.
//!
//! `modules.json` lists what follows the encoder: a pooling and perhaps a normalisation. A folder without it
//! pools by the mean, as sentence-transformers does with a bare encoder.

use crate::config::{Fields, printable, read_file};
use crate::error::{Error, Result};
use crate::head::{Head, Normalization, Pooling};
use crate::model::{LoadOptions, Model};
use crate::session::{Batch, Session, SessionOptions};
use crate::tokenizer::{Encoding, Text, Tokenizer};
use headrow_kernels::Isa;
use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};
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
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SentenceOptions {
    /// The instruction set to compute with; `None` takes the best of this machine.
    pub isa: Option<Isa>,
    /// What happens to texts that are too long.
    pub too_long: TooLong,
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
        let recipe = Recipe::read(folder.as_ref())?;
        let load = LoadOptions::default().with_isa(options.isa);
        let model = Model::from_dir_with(&recipe.transformer, &load)?;
        recipe.check_width(model.config().d_model)?;
        let tokenizer = Tokenizer::from_file(recipe.transformer.join("tokenizer.json"))?;
        Ok(SentenceEncoder {
            model: Arc::new(model),
            tokenizer,
            recipe,
            too_long: options.too_long,
        })
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

    /// How the states of a text become its vector.
    pub fn head(&self) -> Head {
        Head::Pooled(self.recipe.pooling, self.recipe.normalization)
    }

    /// Most tokens of a text, special ones included: what `sentence_bert_config.json` says, at most what
    /// the model has positions for.
    pub fn max_length(&self) -> usize {
        let most = self.model.config().max_length();
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
    /// [`Error::TextTooLong`] when long texts are refused; [`Error::Tokenizer`].
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
    /// When a text is refused, has more tokens than the session takes, or `out` has the wrong length.
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
            let encoding = self.tokenize_nth(index, text.into())?;
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
        if encoder.model.config().token_types > 1 {
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

/// What the files beside the encoder say.
#[derive(Debug)]
struct Recipe {
    /// Where `config.json`, the weights and the tokenizer lie.
    transformer: PathBuf,
    pooling: Pooling,
    normalization: Normalization,
    /// The width that the pooling was written for, and the file that says so.
    width: Option<(usize, String)>,
    max_length: Option<usize>,
    /// Texts are lower-cased before the tokenizer sees them.
    lower: bool,
}

/// Largest of the small JSON files that is read.
const MAX_BYTES: u64 = 1 << 20;

impl Recipe {
    fn read(folder: &Path) -> Result<Recipe> {
        let mut recipe = Recipe {
            transformer: folder.to_owned(),
            pooling: Pooling::Mean,
            normalization: Normalization::None,
            width: None,
            max_length: None,
            lower: false,
        };
        let modules = folder.join("modules.json");
        if modules.exists() {
            recipe.read_modules(folder, &modules)?;
        }
        recipe.read_limits()?;
        Ok(recipe)
    }

    /// Transformer, Pooling, and perhaps Normalize, in this order.
    fn read_modules(&mut self, folder: &Path, modules: &Path) -> Result<()> {
        let place = modules.display().to_string();
        let json = read_file(modules, MAX_BYTES)?;
        let list: Vec<serde_json::Value> = serde_json::from_slice(&json)
            .map_err(|error| Error::file(&place, format_args!("not a list of modules: {error}")))?;
        let wrong = |problem: String| Error::file(&place, problem);
        let kinds = ["Transformer", "Pooling", "Normalize"];
        for (index, module) in list.iter().enumerate() {
            let field = |name| module.get(name).and_then(serde_json::Value::as_str);
            let kind = field("type").ok_or_else(|| wrong(format!("module {index} has no type")))?;
            let short = kind.rsplit('.').next().unwrap_or(kind);
            if kinds.get(index) != Some(&short) {
                let kind = printable(kind);
                return Err(wrong(format!(
                    "module {index} is {kind}: supported are Transformer, Pooling and then Normalize"
                )));
            }
            let path = Path::new(field("path").unwrap_or_default());
            if path
                .components()
                .any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
            {
                return Err(wrong(format!("module {index} lies outside the folder")));
            }
            match index {
                0 => self.transformer = folder.join(path),
                1 => self.read_pooling(&folder.join(path).join("config.json"))?,
                _ => self.normalization = Normalization::L2,
            }
        }
        match list.len() {
            0 => Err(wrong("no modules".to_owned())),
            _ => Ok(()),
        }
    }

    /// `pooling_mode_*` flags, of which one must be set, or the single word of newer files.
    fn read_pooling(&mut self, path: &Path) -> Result<()> {
        const PREFIX: &str = "pooling_mode_";
        let place = path.display().to_string();
        let json = read_file(path, MAX_BYTES)?;
        let fields = Fields::parse(&json, &place)?;
        let mut modes = Vec::new();
        for name in fields.names().filter(|name| name.starts_with(PREFIX)) {
            if fields.flag(name, false)? {
                modes.push(name[PREFIX.len()..].to_owned());
            }
        }
        if fields.get("pooling_mode").is_some() {
            modes.push(fields.word("pooling_mode", None)?);
        }
        let [mode] = &modes[..] else {
            return Err(fields.unsupported(
                "pooling_mode",
                &if modes.is_empty() { "none".to_owned() } else { modes.join(" and ") },
                " (expected one mode)",
            ));
        };
        self.pooling = match mode.as_str() {
            "mean_tokens" | "mean" => Pooling::Mean,
            "cls_token" | "cls" => Pooling::Cls,
            "max_tokens" | "max" => Pooling::Max,
            "lasttoken" => Pooling::LastToken,
            _ => {
                let known = " (expected mean, cls, max or lasttoken)";
                return Err(fields.unsupported("pooling_mode", mode, known));
            }
        };
        if fields.get("word_embedding_dimension").is_some() {
            self.width = Some((fields.size("word_embedding_dimension", None)?, place.clone()));
        }
        Ok(())
    }

    /// `sentence_bert_config.json`, under any of the names it has had.
    fn read_limits(&mut self) -> Result<()> {
        let names = ["bert", "roberta", "distilbert", "camembert", "xlm-roberta"];
        let paths = names.map(|name| self.transformer.join(format!("sentence_{name}_config.json")));
        let Some(path) = paths.iter().find(|path| path.exists()) else { return Ok(()) };
        let place = path.display().to_string();
        let json = read_file(path, MAX_BYTES)?;
        let fields = Fields::parse(&json, &place)?;
        if fields.get("max_seq_length").is_some() {
            let limit = fields.size("max_seq_length", None)?;
            if limit == 0 {
                return Err(fields.wrong("max_seq_length", "must not be 0"));
            }
            self.max_length = Some(limit);
        }
        self.lower = fields.flag("do_lower_case", false)?;
        Ok(())
    }

    fn check_width(&self, d_model: usize) -> Result<()> {
        match &self.width {
            Some((width, place)) if *width != d_model => Err(Error::Config {
                place: place.clone(),
                field: "word_embedding_dimension".to_owned(),
                problem: format!("{width}, the encoder has {d_model}"),
            }),
            _ => Ok(()),
        }
    }
}
