//! Text in, text out: a model, its tokenizers, and how its folder wants it decoded.

mod attention;
mod folder;
mod score;
mod translate;

pub use attention::{AttentionKind, AttentionMap, AttentionMaps};
#[cfg(feature = "train")]
pub(crate) use folder::options_in_memory;
pub use score::{Score, ScoredToken};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::generate::{Callbacks, Generated, GenerationOptions, Prompt, Strategy, TokenStream};
use crate::memory::filled;
use crate::model::{LoadOptions, Model};
use crate::session::check::check_length;
use crate::session::{Chunk, Output, Session, SessionOptions};
use crate::tokenizer::{Encoding, Text, Tokenizer};
use headrow_kernels::attention::PAGE;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A language model or a translator, for texts.
///
/// ```no_run
/// use headrow::generate::{Callbacks, GenerationOptions};
/// use headrow::{SessionOptions, TextModel};
/// use std::ops::ControlFlow;
///
/// let model = TextModel::from_dir("SmolLM2-135M")?;
/// let mut session = model.session(&SessionOptions::default())?;
/// let options = model.options().clone().with_max_new_tokens(64usize);
/// let watch = Callbacks::new().with_progress(|progress| {
///     print!("{}", progress.text);
///     ControlFlow::Continue(())
/// });
/// model.generate(&mut session, "Once upon a time", &options, watch)?;
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Debug)]
pub struct TextModel {
    model: Arc<Model>,
    /// Of what is read first: the source of an encoder–decoder.
    source: Tokenizer,
    /// Of what is written, when that is another.
    target: Option<Tokenizer>,
    options: GenerationOptions,
    /// The token that takes the place of the source's language.
    source_language: Option<u32>,
    /// What was set for all texts, if anything.
    max_text_bytes: Option<usize>,
}

impl TextModel {
    /// Loads a folder in Hugging Face layout: `config.json`, the weights, `tokenizer.json`, and
    /// `generation_config.json` where there is one. Instead of `tokenizer.json` there may be `source_vocabulary.txt` and
    /// `target_vocabulary.txt`, a token a line.
    ///
    /// # Errors
    /// As [`Model::from_dir`]; when there is no tokenizer, or the files ask for what is not known here.
    pub fn from_dir(folder: impl AsRef<Path>) -> Result<TextModel> {
        TextModel::from_dir_with(folder, &LoadOptions::default())
    }

    /// [`TextModel::from_dir`] with options.
    pub fn from_dir_with(folder: impl AsRef<Path>, options: &LoadOptions) -> Result<TextModel> {
        let folder = folder.as_ref();
        // The tokenizers first: when they are missing, nothing large has been read.
        let (source, target) = folder::tokenizers(folder)?;
        let model = Arc::new(Model::from_dir_with(folder, options)?);
        let options = folder::options(folder, model.config())?;
        Ok(TextModel {
            model,
            source,
            target,
            options,
            source_language: None,
            max_text_bytes: None,
        })
    }

    /// Loads the files of such a folder from memory: pairs of a name and the contents, as
    /// `("config.json", include_bytes!(…))`. The weights are one `model.safetensors`, the tokenizer is a `tokenizer.json`.
    ///
    /// # Errors
    /// As [`TextModel::from_dir`].
    pub fn from_files(files: &[(&str, &[u8])]) -> Result<TextModel> {
        TextModel::from_files_with(files, &LoadOptions::default())
    }

    /// [`TextModel::from_files`] with options.
    pub fn from_files_with(files: &[(&str, &[u8])], options: &LoadOptions) -> Result<TextModel> {
        let file = |name| folder::in_memory(files, name);
        let tokenizer = Tokenizer::from_bytes(file("tokenizer.json")?)?;
        let config = Config::from_json(file("config.json")?)?;
        let model = Model::from_bytes_with(&config, file("model.safetensors")?, options)?;
        let options = folder::options_in_memory(files, &config)?;
        let model = TextModel::new(Arc::new(model), tokenizer);
        Ok(TextModel { options, ..model })
    }

    /// A model with a tokenizer for all that it reads and writes. Its decoding options are the defaults, with the stop
    /// ids of the config.
    pub fn new(model: Arc<Model>, tokenizer: Tokenizer) -> TextModel {
        let stop_ids = model.config().special.end.clone();
        let options = GenerationOptions::default().with_stop_ids(stop_ids);
        TextModel {
            model,
            source: tokenizer,
            target: None,
            options,
            source_language: None,
            max_text_bytes: None,
        }
    }

    /// The same with another tokenizer for what the decoder of an encoder–decoder reads and writes. A limit that
    /// [`TextModel::with_max_text_bytes`] set holds for it too.
    #[must_use]
    pub fn with_target_tokenizer(self, tokenizer: Tokenizer) -> TextModel {
        let target = match self.max_text_bytes {
            Some(bytes) => tokenizer.with_max_text_bytes(bytes),
            None => tokenizer,
        };
        TextModel { target: Some(target), ..self }
    }

    /// The same with tokenizers that refuse texts of more than `bytes` bytes; without this it is
    /// [`Tokenizer::MAX_TEXT_BYTES`].
    #[must_use]
    pub fn with_max_text_bytes(self, bytes: usize) -> TextModel {
        let source = self.source.with_max_text_bytes(bytes);
        let target = self.target.map(|tokenizer| tokenizer.with_max_text_bytes(bytes));
        TextModel { source, target, max_text_bytes: Some(bytes), ..self }
    }

    /// The same for translation between these languages, by the names that the vocabulary has for them, as `eng_Latn`, `de_DE`
    /// or `fr` for `__fr__`: the source's token stands where the tokenizer puts that of its own language, or first; the
    /// target's is forced as the first generated one.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when the vocabulary has no such token.
    pub fn with_languages(
        mut self,
        source: Option<&str>,
        target: Option<&str>,
    ) -> Result<TextModel> {
        if let Some(name) = source {
            self.source_language = Some(language(&self.source, name)?);
        }
        if let Some(name) = target {
            self.options.forced_first = Some(language(self.target_tokenizer(), name)?);
        }
        Ok(self)
    }

    /// The model itself.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The tokenizer of what the model reads first: of prompts, or of sources.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.source
    }

    /// The tokenizer of what is generated.
    pub fn target_tokenizer(&self) -> &Tokenizer {
        self.target.as_ref().unwrap_or(&self.source)
    }

    /// How the folder wants the model decoded.
    pub fn options(&self) -> &GenerationOptions {
        &self.options
    }

    /// A session for this model.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn session(&self, options: &SessionOptions) -> Result<Session> {
        Session::new(&self.model, options)
    }

    /// Sizes of a session that has room for so many requests at a time with these options: their beams, and caches for
    /// all that each may generate. Prompts may have what the options leave of the model's length, at most 4096 tokens or, of a
    /// decoder alone, as many as a larger [`GenerationOptions::max_length`] says, be it the folder's own.
    pub fn session_options(&self, requests: usize, options: &GenerationOptions) -> SessionOptions {
        let beams = match &options.strategy {
            Strategy::Beam(beam) => beam.size,
            _ => 1,
        };
        let rows = requests.max(1).saturating_mul(beams);
        let mut session = SessionOptions::default().with_max_sequences(rows);
        let config = self.model.config();
        if let Some(decoder) = &config.decoder {
            let mut longest = decoder.usual_length().min(4096);
            if config.encoder.is_none() {
                let declared = options.max_length.unwrap_or(0).min(decoder.max_length());
                longest = longest.max(declared);
            }
            let new = options.max_new_tokens.or(options.max_length).unwrap_or(longest);
            // Beside an encoder the prompt of the decoder is a few tokens.
            let (length, prompts) = match config.encoder {
                None => (longest, requests.max(1).saturating_mul(longest)),
                Some(_) => {
                    let prompt = options.decoder_prompt.len().max(1);
                    (longest.min(new.saturating_add(prompt)), rows.saturating_mul(prompt))
                }
            };
            // The last page of a common past is copied.
            let each = new.min(length).saturating_add(2 * PAGE);
            let forks = if beams > 1 || config.encoder.is_some() { rows } else { 0 };
            let pages = rows.saturating_mul(2 * PAGE);
            let cache = prompts.saturating_add(forks.saturating_mul(each)).saturating_add(pages);
            session = session.with_max_length(length).with_cache_tokens(cache);
        }
        session
    }

    /// The ids of a prompt or a source with its special tokens.
    ///
    /// An empty prompt becomes the token that begins a text, where the tokenizer adds none and the config names one.
    ///
    /// # Errors
    /// [`Error::TextTooLarge`], [`Error::Tokenizer`].
    pub fn tokenize<'a>(&self, text: impl Into<Text<'a>>) -> Result<Encoding> {
        let mut encoding = self.source.encode_with_offsets(text, None)?;
        if let Some(language) = self.source_language {
            self.put_language(language, &mut encoding);
        }
        let begin = self.model.config().special.begin.filter(|_| encoding.ids.is_empty());
        if let (Some(begin), None) = (begin, &self.model.config().encoder) {
            encoding.ids.push(begin);
            encoding.token_types.push(0);
            encoding.offsets.push(0..0);
            encoding.full_length = 1;
        }
        Ok(encoding)
    }

    /// A word as models of letters and phonemes read it: its letters in lower case, with spaces between. The apostrophe as
    /// printers have it (’) becomes the plain one, and white space around the word goes.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when the vocabulary lacks a letter, or the tokens are not what stands between spaces.
    pub fn spell(&self, word: &str) -> Result<String> {
        let word = word.trim();
        let refused = |problem| Error::Tokenizer { place: word.to_owned(), problem };
        let mut letters = Vec::new();
        for letter in word.to_lowercase().replace('\u{2019}', "'").chars() {
            let token = letter.to_string();
            if self.source.id(&token).is_none() {
                return Err(refused(format!("the model knows no letter {letter:?}")));
            }
            letters.push(token);
        }
        let spelt = letters.join(" ");
        if self.source.encode_plain(&spelt)?.len() != letters.len() {
            return Err(refused(
                "the model's tokens are not what stands between spaces".to_owned(),
            ));
        }
        Ok(spelt)
    }

    fn put_language(&self, language: u32, encoding: &mut Encoding) {
        let special = &self.model.config().special;
        let known = [special.begin, special.padding, special.decoder_start];
        let other = |(&id, range): (&u32, &Range<usize>)| {
            let known = known.contains(&Some(id)) || special.end.contains(&id);
            !known && is_added(&self.source, id, range)
        };
        match encoding.ids.iter().zip(&encoding.offsets).position(other) {
            Some(at) => encoding.ids[at] = language,
            None => {
                encoding.ids.insert(0, language);
                encoding.token_types.insert(0, 0);
                encoding.offsets.insert(0, 0..0);
                encoding.full_length += 1;
            }
        }
    }

    /// Continues a prompt. `callbacks` see every token, with the text that it adds for certain; the answers have their text.
    ///
    /// When the session's cancel flag is set meanwhile, what there is by then is the answer, with
    /// [`Finish::Interrupted`](crate::generate::Finish::Interrupted). The session forgets the prompt in any case.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]; as [`Session::extend`] and [`Generator::add`](crate::generate::Generator::add):
    /// [`Error::SequenceTooLong`] for a prompt that leaves no room; [`Error::Cancelled`] when not even the prompt was read in
    /// time.
    pub fn generate(
        &self,
        session: &mut Session,
        prompt: &str,
        options: &GenerationOptions,
        callbacks: Callbacks<'_>,
    ) -> Result<Generated> {
        let ids = self.tokenize(prompt)?.ids;
        let hooks = callbacks.with_detokenizer(self.source.token_text(&ids));
        let visit = session.visit();
        let session = &mut *visit.session;
        let mut generator = session.generator()?;
        let vocabulary = generator.limits().vocabulary;
        let refused = || Error::out_of_memory(format_args!("{vocabulary} logits"));
        let mut logits = filled(0.0, vocabulary).ok_or_else(refused)?;
        let sequence = session.add()?;
        session.extend(&[Chunk::new(sequence, &ids)], Output::LastLogits, &mut logits)?;
        let prompt = Prompt::new(sequence, &ids, &logits);
        let mut stream = TokenStream::new(&mut generator, session, prompt, options, hooks)?;
        match stream.find_map(Result::err) {
            None | Some(Error::Cancelled) => stream.finish(),
            Some(error) => Err(error),
        }
    }

    /// A source, when it is not longer than all that the session takes at a time.
    fn source_encoding<'a>(
        &self,
        session: &Session,
        text: impl Into<Text<'a>>,
    ) -> Result<Encoding> {
        let encoding = self.tokenize(text)?;
        let longest = self.model.config().encoder()?.max_length().min(session.max_tokens());
        check_length(0, encoding.ids.len(), longest)?;
        Ok(encoding)
    }
}

/// Whether the tokenizer put this token around a text: a special one that covers none of it. Those of the text itself, as
/// `<unk>` for a word that the vocabulary lacks, cover what they stand for.
fn is_added(tokenizer: &Tokenizer, id: u32, range: &Range<usize>) -> bool {
    range.is_empty() && tokenizer.is_special(id)
}

/// The token of a language.
fn language(tokenizer: &Tokenizer, name: &str) -> Result<u32> {
    let spellings = [name.to_owned(), format!("__{name}__"), format!("<2{name}>")];
    spellings.iter().find_map(|token| tokenizer.id(token)).ok_or_else(|| {
        let problem = format!("no token stands for the language {name}");
        Error::Tokenizer { place: tokenizer.place().to_owned(), problem }
    })
}
