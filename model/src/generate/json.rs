//! Options from a `generation_config.json` of Hugging Face's transformers.

use super::beam::{Beam, EarlyStopping};
use super::length::LengthPenalty;
use super::options::{GenerationOptions, Strategy};
use super::sampling::Sampling;
use crate::config::printable;
use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// Fields that change nothing in what is generated here: how a model is run, what is reported, how results are
/// padded, ids that a tokenizer uses, notes.
const WITHOUT_EFFECT: &[&str] = &[
    "_from_model_config",
    "alignment_heads",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "disable_compile",
    "is_assistant",
    "is_multilingual",
    "lang_to_id",
    "max_cache_len",
    "max_initial_timestamp_index",
    "max_matching_ngram_size",
    "median_filter_width",
    "no_timestamps_token_id",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prefill_chunk_size",
    "prev_sot_token_id",
    "return_dict_in_generate",
    "target_lookbehind",
    "task_to_id",
    "transformers_version",
    "use_cache",
];

/// Numbers with which fields that are not supported otherwise do nothing.
const NEUTRAL: &[(&str, f64)] = &[
    ("diversity_penalty", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("guidance_scale", 1.0),
    ("num_beam_groups", 1.0),
    ("typical_p", 1.0),
];

/// Switches that are supported as long as they are off.
const OFF: &[&str] = &[
    "low_memory",
    "remove_invalid_values",
    "renormalize_logits",
    "return_timestamps",
    "token_healing",
    "use_mtp",
];

/// Settings of drafts by another model, which matter only where there is one: here there is none.
const DRAFTS: &str = "assistant_";

/// Tokens that transformers sample from when a config does not say how many.
const DEFAULT_TOP_K: usize = 50;

impl GenerationOptions {
    /// Reads the fields of a `generation_config.json`; `place` stands for the file in messages. `null` is an
    /// absent field.
    ///
    /// Defaults are those of transformers, with three differences: without `max_length` and `max_new_tokens` a
    /// request may use all the room there is (not 20 tokens), of the two the lower limit counts, and the seed of sampling
    /// is 0. `early_stopping`
    /// true is [`EarlyStopping::FirstComplete`], false [`EarlyStopping::Heuristic`], `"never"`
    /// [`EarlyStopping::ByBound`]. `forced_bos_token_id` is forced after any prompt (there only after one of
    /// a single token, as decoders of encoder–decoders have). `decoder_start_token_id` and
    /// `forced_decoder_ids` become [`GenerationOptions::decoder_prompt`].
    ///
    /// # Errors
    /// [`Error::File`] when the bytes are no JSON object, [`Error::Config`] for a field of a wrong type,
    /// [`Error::Unsupported`] for one that changes the result in a way that is not known here, which includes
    /// fields that are not known at all. Ranges are left to [`GenerationOptions::check`].
    pub fn from_json(place: &str, json: &[u8]) -> Result<GenerationOptions> {
        let map: Map<String, Value> = serde_json::from_slice(json)
            .map_err(|error| Error::file(place, format_args!("no JSON object: {error}")))?;
        let mut reader = Reader::default();
        for (name, value) in map.iter().filter(|(_, value)| !value.is_null()) {
            reader.read(&Field { place, name, value })?;
        }
        reader.finish(place)
    }
}

/// What has been read.
struct Reader {
    options: GenerationOptions,
    sampling: Sampling,
    draws: bool,
    beams: usize,
    answers: usize,
    length_penalty: f64,
    early_stopping: EarlyStopping,
    /// The decoder's first token, and those forced after it.
    start: Option<u32>,
    forced: Vec<u32>,
}

impl Default for Reader {
    fn default() -> Self {
        Reader {
            options: GenerationOptions::default(),
            sampling: Sampling::default().with_top_k(DEFAULT_TOP_K),
            draws: false,
            beams: 1,
            answers: 1,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::Heuristic,
            start: None,
            forced: Vec::new(),
        }
    }
}

impl Reader {
    /// Lengths and constraints; what is none of them goes on to the strategy.
    fn read(&mut self, field: &Field<'_>) -> Result<()> {
        let options = &mut self.options;
        match field.name {
            "max_new_tokens" => options.max_new_tokens = Some(field.size()?),
            "min_new_tokens" => options.min_new_tokens = field.size()?,
            "max_length" => options.max_length = Some(field.size()?),
            "min_length" => options.min_length = field.size()?,
            "eos_token_id" => options.stop_ids = field.ids()?,
            "stop_strings" => options.stop_strings = field.words()?,
            "repetition_penalty" => options.repetition_penalty = field.number()? as f32,
            "no_repeat_ngram_size" => options.no_repeat_ngram = field.size()?,
            "forced_bos_token_id" => options.forced_first = Some(field.id()?),
            "forced_eos_token_id" => options.forced_last = Some(field.id()?),
            "suppress_tokens" => options.suppressed = field.ids()?,
            "begin_suppress_tokens" => options.suppressed_first = field.ids()?,
            "bad_words_ids" => options.bad_words = field.lists()?,
            "decoder_start_token_id" => self.start = Some(field.id()?),
            "forced_decoder_ids" => self.forced = field.forced()?,
            _ => self.read_strategy(field)?,
        }
        Ok(())
    }

    fn read_strategy(&mut self, field: &Field<'_>) -> Result<()> {
        match field.name {
            "do_sample" => self.draws = field.flag()?,
            "temperature" => self.sampling.temperature = field.number()? as f32,
            "top_k" => self.sampling.top_k = field.size()?,
            "top_p" => self.sampling.top_p = field.number()? as f32,
            "min_p" => self.sampling.min_p = field.number()? as f32,
            "num_beams" => self.beams = field.size()?,
            "num_return_sequences" => self.answers = field.size()?,
            "length_penalty" => self.length_penalty = field.number()?,
            "early_stopping" => self.early_stopping = field.early_stopping()?,
            name if WITHOUT_EFFECT.contains(&name) || name.starts_with(DRAFTS) => {}
            _ => field.neutral()?,
        }
        Ok(())
    }

    fn finish(mut self, place: &str) -> Result<GenerationOptions> {
        let refused = |name, value: &dyn ToString, hint| {
            Err(Error::unsupported(place, name, printable(&value.to_string()), hint))
        };
        self.options.strategy = match (self.beams, self.draws) {
            (0 | 1, _) if self.answers > 1 => {
                return refused(
                    "num_return_sequences",
                    &self.answers,
                    " (expected 1 without beams)",
                );
            }
            (0 | 1, false) => Strategy::Greedy,
            (0 | 1, true) => Strategy::Sample(self.sampling),
            (_, true) => return refused("do_sample", &true, " (expected false with beams)"),
            (size, false) => Strategy::Beam(
                Beam::new(size)
                    .with_length_penalty(LengthPenalty::Average { alpha: self.length_penalty })
                    .with_early_stopping(self.early_stopping)
                    .with_n_best(self.answers),
            ),
        };
        self.options.decoder_prompt = match (self.start, self.forced) {
            (None, forced) if !forced.is_empty() => {
                let hint = " (expected decoder_start_token_id beside it)";
                return refused("forced_decoder_ids", &"a list", hint);
            }
            (start, forced) => start.into_iter().chain(forced).collect(),
        };
        Ok(self.options)
    }
}

/// One field of the file, which is not `null`.
struct Field<'a> {
    place: &'a str,
    name: &'a str,
    value: &'a Value,
}

impl Field<'_> {
    fn expected<T>(&self, what: &str, read: Option<T>) -> Result<T> {
        read.ok_or_else(|| Error::Config {
            place: self.place.to_owned(),
            field: printable(self.name),
            problem: format!("expected {what}, found {}", printable(&self.value.to_string())),
        })
    }

    fn size(&self) -> Result<usize> {
        let size = self.value.as_u64().and_then(|n| usize::try_from(n).ok());
        self.expected("a whole number from 0 up", size)
    }

    fn number(&self) -> Result<f64> {
        self.expected("a number", self.value.as_f64())
    }

    fn flag(&self) -> Result<bool> {
        self.expected("true or false", self.value.as_bool())
    }

    fn id(&self) -> Result<u32> {
        self.expected("a token id", token(self.value))
    }

    /// One id or a list of them.
    fn ids(&self) -> Result<Vec<u32>> {
        let one = token(self.value).map(|id| vec![id]);
        self.expected("a token id or a list of them", one.or_else(|| list(self.value, token)))
    }

    fn lists(&self) -> Result<Vec<Vec<u32>>> {
        let lists = list(self.value, |ids| list(ids, token));
        self.expected("a list of lists of token ids", lists)
    }

    fn words(&self) -> Result<Vec<String>> {
        let word = |value: &Value| value.as_str().map(str::to_owned);
        let one = word(self.value).map(|word| vec![word]);
        self.expected("a string or a list of them", one.or_else(|| list(self.value, word)))
    }

    fn early_stopping(&self) -> Result<EarlyStopping> {
        let kind = match self.value {
            Value::Bool(true) => Some(EarlyStopping::FirstComplete),
            Value::Bool(false) => Some(EarlyStopping::Heuristic),
            Value::String(word) if word == "never" => Some(EarlyStopping::ByBound),
            _ => None,
        };
        self.expected("true, false or \"never\"", kind)
    }

    /// Pairs of a position and a token, the positions being 1, 2, 3 … as Whisper has them.
    fn forced(&self) -> Result<Vec<u32>> {
        let pairs = list(self.value, |pair| list(pair, token));
        let ids = pairs.and_then(|pairs| {
            let pairs = pairs.into_iter().zip(1..);
            pairs.map(|(pair, at)| (pair.len() == 2 && pair[0] == at).then(|| pair[1])).collect()
        });
        self.expected("pairs of a position, from 1 up without a gap, and a token id", ids)
    }

    fn neutral(&self) -> Result<()> {
        let number = NEUTRAL.iter().find(|(name, _)| *name == self.name);
        let neutral = match number {
            Some((_, number)) => self.value.as_f64() == Some(*number),
            None => OFF.contains(&self.name) && self.value == &Value::Bool(false),
        };
        let hint = number.map_or(String::new(), |(_, number)| format!(" (expected {number})"));
        match neutral {
            true => Ok(()),
            false => {
                let (name, value) = (printable(self.name), printable(&self.value.to_string()));
                Err(Error::unsupported(self.place, &name, value, &hint))
            }
        }
    }
}

fn token(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn list<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(read).collect()
}
