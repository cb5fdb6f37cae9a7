//! Texts as ids, ready to be put into batches.

use super::data::{Corpus, Record, Skipped};
use super::examples::Ragged;
use super::vocabulary::{BEGIN, END, MASK};
use crate::config::Config;
use crate::error::{Error, Problems, Result};
use crate::generate::GenerationOptions;
use crate::tokenizer::Tokenizer;

/// What is learnt from texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Task {
    /// The target of a pair, given its source and the target's tokens before.
    #[default]
    Translation,
    /// Each token of a text, given those before.
    Continuation,
    /// Tokens of a text that are hidden, given all others (Devlin et al., 2019).
    Masking,
}

/// How texts become examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatasetOptions {
    /// What is learnt from them.
    pub task: Task,
    /// Most tokens of a source, its end included.
    pub max_source: usize,
    /// Most tokens that the stack that is read out reads: of a target its beginning included. Of pairs a longer one is
    /// left out; other texts are cut into pieces.
    pub max_target: usize,
}

impl DatasetOptions {
    /// For a task, with at most 256 tokens a side.
    pub fn new(task: Task) -> DatasetOptions {
        DatasetOptions { task, max_source: 256, max_target: 256 }
    }

    /// The same with at most so many tokens of a source.
    #[must_use]
    pub fn with_max_source(self, max_source: usize) -> DatasetOptions {
        DatasetOptions { max_source, ..self }
    }

    /// The same with at most so many tokens of a target, or of a text that stands alone.
    #[must_use]
    pub fn with_max_target(self, max_target: usize) -> DatasetOptions {
        DatasetOptions { max_target, ..self }
    }
}

/// The special tokens that training puts around texts and into them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecialIds {
    /// What a decoder begins with.
    pub begin: u32,
    /// What a decoder beside an encoder always says first, as the language of mBART. Mostly nothing.
    pub forced: Vec<u32>,
    /// What it ends with.
    pub end: u32,
    /// What hides a token.
    pub mask: Option<u32>,
    /// All tokens that may stand in a text, for the random ones of masked texts.
    pub(super) ordinary: Vec<u32>,
}

impl SpecialIds {
    /// Those of a tokenizer by their usual names: `<s>`, `[CLS]`, `<bos>` or `<|endoftext|>`, `</s>`, `[SEP]`, `<eos>` or
    /// `<|endoftext|>`, `<mask>` or `[MASK]`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when it has none to begin or to end with.
    pub fn of(tokenizer: &Tokenizer) -> Result<SpecialIds> {
        SpecialIds::given(tokenizer, None, None)
    }

    /// Those that a model is decoded with: a decoder begins and ends with what the options or the config name, and says first
    /// what the options force. What they do not name, and those of an encoder alone, are as [`SpecialIds::of`] finds them.
    ///
    /// | | begins with | says first |
    /// |---|---|---|
    /// | T5, Marian | padding | |
    /// | BART | `</s>` | `<s>` |
    /// | mBART | `</s>` | the language |
    ///
    /// # Errors
    /// [`Error::Tokenizer`] as there.
    pub fn of_model(
        config: &Config,
        options: &GenerationOptions,
        tokenizer: &Tokenizer,
    ) -> Result<SpecialIds> {
        if config.decoder.is_none() {
            return SpecialIds::of(tokenizer);
        }
        let (prompt, special) = (&options.decoder_prompt, &config.special);
        let end = options.stop_ids.first().or(special.end.first()).copied();
        if config.encoder.is_none() {
            return SpecialIds::given(tokenizer, special.begin, end);
        }
        let begin = prompt.first().copied().or(special.decoder_start);
        let forced = prompt.iter().skip(1).copied().chain(options.forced_first).collect();
        Ok(SpecialIds { forced, ..SpecialIds::given(tokenizer, begin, end)? })
    }

    fn given(tokenizer: &Tokenizer, begin: Option<u32>, end: Option<u32>) -> Result<SpecialIds> {
        let find = |names: &[&str]| names.iter().find_map(|name| tokenizer.id(name));
        let need = |what: &str, given: Option<u32>, names: &[&str]| {
            given.or_else(|| find(names)).ok_or_else(|| {
                let problem = format!("no token to {what} with, as {} would be", names[0]);
                Error::Tokenizer { place: tokenizer.place().to_owned(), problem }
            })
        };
        let all = 0..tokenizer.vocabulary() as u32;
        Ok(SpecialIds {
            begin: need("begin", begin, &[BEGIN, "[CLS]", "<bos>", "<|endoftext|>"])?,
            forced: Vec::new(),
            end: need("end", end, &[END, "[SEP]", "<eos>", "<|endoftext|>"])?,
            mask: find(&[MASK, "[MASK]"]),
            ordinary: all.filter(|&id| !tokenizer.is_special(id)).collect(),
        })
    }

    /// Tokens of an example beside its own on the side that is read out.
    fn around(&self, task: Task) -> usize {
        match task {
            Task::Translation => 1 + self.forced.len(),
            Task::Continuation => 0,
            Task::Masking => 2,
        }
    }
}

/// Examples as ids. What is special about a batch, its beginning, its end and what is hidden, comes with the batch.
#[derive(Clone, Debug)]
pub struct Dataset {
    pub(super) task: Task,
    /// Sources as the encoder reads them; none for texts that stand alone.
    pub(super) sources: Ragged,
    /// Targets, or pieces of texts, without special tokens around them.
    pub(super) targets: Ragged,
    pub(super) special: SpecialIds,
    skipped: Skipped,
}

impl Dataset {
    /// Encodes the records of a corpus, with the special tokens that [`SpecialIds::of`] finds.
    ///
    /// # Errors
    /// As [`Dataset::with_special`]; [`Error::Tokenizer`] when the tokenizer has none to begin or to end with.
    pub fn new(
        corpus: &Corpus,
        tokenizer: &Tokenizer,
        options: &DatasetOptions,
    ) -> Result<Dataset> {
        Dataset::with_special(corpus, tokenizer, SpecialIds::of(tokenizer)?, options)
    }

    /// Encodes the records of a corpus.
    ///
    /// A pair is left out, or refused as the corpus' bad lines are, when a side has no tokens or more than it may. The tokenizer's
    /// [limit of a text's bytes](Tokenizer::max_text_bytes) does not count here: no line that is read has more than a MiB.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when there is no token that hides others and the task needs one; [`Error::TrainingOption`] when a record is
    /// no pair and the task needs one, when a length leaves no room, or when nothing is left; for a bad pair where these are refused.
    pub fn with_special(
        corpus: &Corpus,
        tokenizer: &Tokenizer,
        special: SpecialIds,
        options: &DatasetOptions,
    ) -> Result<Dataset> {
        if options.task == Task::Masking && special.mask.is_none() {
            let problem = format!("no token that hides others, as {MASK} would be");
            return Err(Error::Tokenizer { place: tokenizer.place().to_owned(), problem });
        }
        if options.max_target <= special.around(options.task) {
            return Err(Error::training_option("max_target", "no room beside the special tokens"));
        }
        let mut dataset = Dataset {
            task: options.task,
            sources: Ragged::new(),
            targets: Ragged::new(),
            special,
            skipped: corpus.none_skipped(),
        };
        for record in corpus.records() {
            let added = match (options.task, &record.target) {
                (Task::Translation, Some(target)) => {
                    dataset.add_pair(&record.source, target, tokenizer, options)
                }
                (Task::Translation, None) => {
                    return Err(Error::training_option("task", "translation needs pairs of texts"));
                }
                _ => dataset.add_text(record, tokenizer, options),
            };
            match added {
                Ok(None) => (),
                Ok(Some(problem)) => {
                    dataset.skipped.add(&corpus.place(record.origin), &problem)?;
                }
                // A tokenizer without a token for what it does not know.
                Err(Error::Tokenizer { problem, .. }) => {
                    dataset.skipped.add(&corpus.place(record.origin), &problem)?;
                }
                Err(error) => return Err(error),
            }
        }
        match dataset.targets.is_empty() {
            true => Err(Error::training_option("data", "no text is left to learn from")),
            false => Ok(dataset),
        }
    }

    /// How many examples there are.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// What is learnt from them.
    pub fn task(&self) -> Task {
        self.task
    }

    /// The special tokens.
    pub fn special(&self) -> &SpecialIds {
        &self.special
    }

    /// What was left out.
    pub fn skipped(&self) -> &Problems {
        &self.skipped.problems
    }

    /// Tokens of an example on its two sides, as the model reads them.
    pub(super) fn sizes(&self, example: usize) -> [usize; 2] {
        let target = self.targets.length(example) + self.special.around(self.task);
        match self.task {
            Task::Translation => [self.sources.length(example), target],
            _ => [0, target],
        }
    }

    /// Adds a pair, or says what is wrong with it.
    fn add_pair(
        &mut self,
        source: &str,
        target: &str,
        tokenizer: &Tokenizer,
        options: &DatasetOptions,
    ) -> Result<Option<String>> {
        let source = tokenizer.line_with_special(source)?;
        let target = tokenizer.line(target)?;
        let around = self.special.around(options.task);
        let sides = [
            (
                "source",
                source.len(),
                source.len().saturating_sub(tokenizer.special_tokens(false)),
                options.max_source,
            ),
            ("target", target.len() + around, target.len(), options.max_target),
        ];
        for (side, length, own, most) in sides {
            if own == 0 {
                return Ok(Some(format!("a {side} without tokens")));
            }
            if length > most {
                return Ok(Some(format!("a {side} of {length} tokens, the limit is {most}")));
            }
        }
        self.sources.push(source);
        self.targets.push(target);
        Ok(None)
    }

    /// Adds the pieces of a text that stands alone. A continuation goes on to its end, which is a token.
    fn add_text(
        &mut self,
        record: &Record,
        tokenizer: &Tokenizer,
        options: &DatasetOptions,
    ) -> Result<Option<String>> {
        let mut ids = Vec::new();
        // Line by line: a book is long, and lines do not depend on each other.
        for text in [Some(&record.source), record.target.as_ref()].into_iter().flatten() {
            for line in text.split_inclusive('\n') {
                ids.extend(tokenizer.line(line)?);
            }
        }
        if ids.is_empty() {
            return Ok(Some("a text without tokens".to_owned()));
        }
        ids.extend((self.task == Task::Continuation).then_some(self.special.end));
        for piece in ids.chunks(options.max_target - self.special.around(options.task)) {
            self.targets.push(piece.iter().copied());
        }
        Ok(None)
    }
}
