//! What a request asks of decoding.

use super::beam::Beam;
use super::sampling::Sampling;
use crate::error::{Error, Result};
use crate::memory::{copied, copied_lists, copied_texts};

/// How the next token is chosen.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Strategy {
    /// The likeliest token, of equal ones the lower id.
    #[default]
    Greedy,
    /// A random token.
    Sample(Sampling),
    /// The likeliest sequence that a beam finds.
    Beam(Beam),
}

/// What a request asks of decoding. The default is greedy search without constraints.
///
/// The constraints change the model's logits (in beam search its log-probabilities, so that scores are
/// sums of what is left) in this order: repetition penalty, n-grams, bad words, least length, forced
/// first and last token, suppressed tokens, the caller's [`LogitsProcessor`](super::LogitsProcessor); in sampling then
/// temperature, top-k, top-p and min-p. It is the order of Hugging Face's transformers.
///
/// ```
/// use headrow::generate::{GenerationOptions, Sampling};
///
/// let options = GenerationOptions::default()
///     .with_strategy(Sampling::new(7).with_temperature(0.8).with_top_p(0.95))
///     .with_max_new_tokens(64usize)
///     .with_repetition_penalty(1.1)
///     .with_stop_strings(vec!["\n\n".to_owned()]);
/// options.check(50_000)?;
/// // As a folder says it.
/// let json = br#"{"num_beams": 4, "length_penalty": 0.6, "eos_token_id": 2, "max_new_tokens": 64}"#;
/// let folder = GenerationOptions::from_json("generation_config.json", json)?;
/// assert_eq!((folder.stop_ids, folder.max_new_tokens), (vec![2], Some(64)));
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GenerationOptions {
    /// How the next token is chosen.
    pub strategy: Strategy,
    /// Most generated tokens, a stop token included. `None`: as many as `max_length` or the generator has room for.
    pub max_new_tokens: Option<usize>,
    /// No stop id among the first so many generated tokens. (A stop string may come.)
    pub min_new_tokens: usize,
    /// Most tokens, the prompt included. The lower of the two limits counts.
    pub max_length: Option<usize>,
    /// No stop id before so many tokens, the prompt included.
    pub min_length: usize,
    /// Tokens that end a sequence.
    pub stop_ids: Vec<u32>,
    /// Strings that end a sequence. The text before one is kept, the string itself is cut. They need a
    /// [`Detokenizer`](super::Detokenizer).
    pub stop_strings: Vec<String>,
    /// Divides positive logits of tokens that occurred, prompt included, and multiplies negative ones
    /// (Keskar et al. 2019, "CTRL"). 1: none.
    pub repetition_penalty: f32,
    /// No sequence of so many tokens occurs twice, prompt included. 0: no such rule.
    pub no_repeat_ngram: usize,
    /// The first generated token.
    pub forced_first: Option<u32>,
    /// The last generated token, when the most tokens are reached.
    pub forced_last: Option<u32>,
    /// Tokens that never come.
    pub suppressed: Vec<u32>,
    /// Tokens that do not come first, or second after a forced first one.
    pub suppressed_first: Vec<u32>,
    /// Sequences of tokens that never come, prompt included: the last token of one does not follow the
    /// others. Stop ids alone are none of them.
    pub bad_words: Vec<Vec<u32>>,
    /// For each token so many of the likeliest ones are reported with it.
    pub log_probabilities: usize,
    /// What the decoder of an encoder–decoder is fed before the first generated token; not used by the
    /// algorithms, which are given a prompt. From a config: the start token and tokens forced after it.
    pub decoder_prompt: Vec<u32>,
}

impl Default for GenerationOptions {
    fn default() -> Self {
        GenerationOptions {
            strategy: Strategy::Greedy,
            max_new_tokens: None,
            min_new_tokens: 0,
            max_length: None,
            min_length: 0,
            stop_ids: Vec::new(),
            stop_strings: Vec::new(),
            repetition_penalty: 1.0,
            no_repeat_ngram: 0,
            forced_first: None,
            forced_last: None,
            suppressed: Vec::new(),
            suppressed_first: Vec::new(),
            bad_words: Vec::new(),
            log_probabilities: 0,
            decoder_prompt: Vec::new(),
        }
    }
}

/// A method per option that returns the same options with another value of it.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident, $field:ident: $type:ty => $value:expr;)*) => {
        impl GenerationOptions {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, $field: impl Into<$type>) -> GenerationOptions {
                    let $field = $field.into();
                    self.$field = $value;
                    self
                }
            )*
        }
    };
}

setters! {
    /// The same options with this strategy.
    with_strategy, strategy: Strategy => strategy;
    /// The same options with at most so many generated tokens.
    with_max_new_tokens, max_new_tokens: usize => Some(max_new_tokens);
    /// The same options with at least so many generated tokens before a stop id.
    with_min_new_tokens, min_new_tokens: usize => min_new_tokens;
    /// The same options with at most so many tokens, the prompt included.
    with_max_length, max_length: usize => Some(max_length);
    /// The same options with at least so many tokens, the prompt included, before a stop id.
    with_min_length, min_length: usize => min_length;
    /// The same options with these stop ids.
    with_stop_ids, stop_ids: Vec<u32> => stop_ids;
    /// The same options with these stop strings.
    with_stop_strings, stop_strings: Vec<String> => stop_strings;
    /// The same options with this repetition penalty.
    with_repetition_penalty, repetition_penalty: f32 => repetition_penalty;
    /// The same options without repeated n-grams of so many tokens.
    with_no_repeat_ngram, no_repeat_ngram: usize => no_repeat_ngram;
    /// The same options with this first token.
    with_forced_first, forced_first: u32 => Some(forced_first);
    /// The same options with this last token at the most tokens.
    with_forced_last, forced_last: u32 => Some(forced_last);
    /// The same options without these tokens.
    with_suppressed, suppressed: Vec<u32> => suppressed;
    /// The same options without these tokens at the beginning.
    with_suppressed_first, suppressed_first: Vec<u32> => suppressed_first;
    /// The same options without these sequences of tokens.
    with_bad_words, bad_words: Vec<Vec<u32>> => bad_words;
    /// The same options with reports of so many likeliest tokens.
    with_log_probabilities, log_probabilities: usize => log_probabilities;
    /// The same options with this beginning of the decoder's sequence.
    with_decoder_prompt, decoder_prompt: Vec<u32> => decoder_prompt;
}

impl From<Sampling> for Strategy {
    fn from(sampling: Sampling) -> Strategy {
        Strategy::Sample(sampling)
    }
}

impl From<Beam> for Strategy {
    fn from(beam: Beam) -> Strategy {
        Strategy::Beam(beam)
    }
}

/// Where the generated tokens of a request begin, and how many there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) prompt: usize,
    pub(crate) max_new: usize,
}

impl GenerationOptions {
    /// A copy; `None` when the allocator refuses.
    pub(crate) fn try_clone(&self) -> Option<GenerationOptions> {
        Some(GenerationOptions {
            strategy: self.strategy.clone(),
            stop_ids: copied(&self.stop_ids)?,
            stop_strings: copied_texts(&self.stop_strings)?,
            suppressed: copied(&self.suppressed)?,
            suppressed_first: copied(&self.suppressed_first)?,
            bad_words: copied_lists(self.bad_words.iter().map(Vec::as_slice))?,
            decoder_prompt: copied(&self.decoder_prompt)?,
            ..*self
        })
    }

    /// Everything that can be said against the options without a prompt.
    ///
    /// # Errors
    /// [`Error::GenerationOption`] with the field's name: a number out of its range, an empty stop string or
    /// bad word, or a forced token or one of a bad word that is not in the vocabulary. (A stop id or a
    /// suppressed token outside never comes, which is no error.)
    pub fn check(&self, vocabulary: usize) -> Result<()> {
        let penalty = self.repetition_penalty;
        if !(penalty > 0.0 && penalty.is_finite()) {
            let problem = format!("must be above 0 and finite, found {penalty}");
            return Err(Error::generation("repetition_penalty", problem));
        }
        if self.max_new_tokens == Some(0) {
            return Err(Error::generation("max_new_tokens", "must not be 0"));
        }
        if self.stop_strings.iter().any(String::is_empty) {
            return Err(Error::generation("stop_strings", "one of them is empty"));
        }
        if self.bad_words.iter().any(Vec::is_empty) {
            return Err(Error::generation("bad_words", "one of them is empty"));
        }
        inside("forced_first", &self.forced_first, vocabulary)?;
        inside("forced_last", &self.forced_last, vocabulary)?;
        inside("bad_words", self.bad_words.iter().flatten(), vocabulary)?;
        match &self.strategy {
            Strategy::Greedy => Ok(()),
            Strategy::Sample(sampling) => sampling.check(),
            Strategy::Beam(beam) => beam.check(),
        }
    }

    /// The span of a request with so long a prompt, in a generator for sequences of `tokens`.
    pub(crate) fn span(&self, request: usize, prompt: usize, tokens: usize) -> Result<Span> {
        if prompt == 0 {
            return Err(Error::EmptySequence { sequence: request });
        }
        if prompt >= tokens {
            // One token at least must find room.
            let maximum = tokens.saturating_sub(1);
            return Err(Error::SequenceTooLong { sequence: request, tokens: prompt, maximum });
        }
        let longest = tokens.min(self.max_length.unwrap_or(tokens));
        if prompt >= longest {
            let problem = format!("{longest} leaves no room after a prompt of {prompt} tokens");
            return Err(Error::generation("max_length", problem));
        }
        let room = longest - prompt;
        Ok(Span { prompt, max_new: room.min(self.max_new_tokens.unwrap_or(room)) })
    }

    /// Live sequences that a request with these options needs at most.
    pub(crate) fn rows(&self) -> usize {
        match &self.strategy {
            Strategy::Greedy | Strategy::Sample(_) => 1,
            Strategy::Beam(beam) => beam.size,
        }
    }
}

fn inside<'a>(
    field: &'static str,
    ids: impl IntoIterator<Item = &'a u32>,
    vocabulary: usize,
) -> Result<()> {
    match ids.into_iter().find(|&&id| id as usize >= vocabulary) {
        Some(id) => Err(Error::generation(
            field,
            format!("{id} is not below the vocabulary's {vocabulary}"),
        )),
        None => Ok(()),
    }
}
