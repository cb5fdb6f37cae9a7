//! What a training learns from and measures on.

use super::recipe::{Lower, Objective, Recipe, TextLayout, TokenizerName};
use crate::failure::{Failure, tell};
use headrow::train::{
    BadLines, Corpus, DataOptions, Dataset, DatasetOptions, Framing, GreedyBleu, Layout, Lowercase,
    SpecialIds, Task, VocabularyOptions, read_file, vocabulary,
};
use headrow::{Config, Tokenizer};
use std::path::PathBuf;

/// Most tokens of texts and batches.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    source: usize,
    pub(super) target: usize,
    pub(super) batch: usize,
}

impl Limits {
    pub(super) fn new(recipe: &Recipe, config: &Config) -> Limits {
        let batch = recipe.batch_tokens.unwrap_or(1) as usize;
        let longest = (recipe.max_length.unwrap_or(1) as usize).min(batch);
        let limit = |stack: Option<&headrow::StackConfig>| {
            stack.map_or(longest, |stack| stack.max_length().min(longest))
        };
        Limits { source: limit(config.encoder.as_ref()), target: limit(config.last_stack()), batch }
    }

    pub(super) fn longest(&self) -> usize {
        self.source.max(self.target)
    }
}

/// What is learnt from, and what is measured on.
pub(super) struct Texts {
    train: Corpus,
    valid: Option<Corpus>,
}

impl Texts {
    pub(super) fn read(recipe: &Recipe, kind: Objective) -> Result<Texts, Failure> {
        let layout = match (kind, recipe.layout) {
            (Objective::Seq2seq, _) => Layout::Pairs,
            (Objective::Causal, None) | (_, Some(TextLayout::Text)) => Layout::Text,
            (Objective::Masked, None) | (_, Some(TextLayout::Lines)) => Layout::Lines,
        };
        let lowercase = match recipe.lowercase {
            Some(Lower::Sources) => Lowercase::Sources,
            Some(Lower::Both) => Lowercase::Both,
            Some(Lower::Nothing) | None => Lowercase::Neither,
        };
        let bad_lines = match recipe.strict {
            Some(true) => BadLines::Refuse,
            _ => BadLines::Skip,
        };
        let options = DataOptions::default()
            .with_layout(layout)
            .with_lowercase(lowercase)
            .with_bad_lines(bad_lines);
        let read = |files: &[PathBuf]| -> Result<Corpus, Failure> {
            let corpus = Corpus::read(files, &options)?;
            warn(corpus.skipped());
            Ok(corpus)
        };
        let valid = recipe.valid.as_ref().map(|file| read(std::slice::from_ref(file)));
        Ok(Texts { train: read(&recipe.data)?, valid: valid.transpose()? })
    }

    /// The text of a `tokenizer.json`: made from what is learnt from, or a file.
    pub(super) fn tokenizer(&self, how: &str, kind: Objective) -> Result<Vec<u8>, Failure> {
        let framing = match kind {
            Objective::Seq2seq => Framing::End,
            Objective::Causal => Framing::Begin,
            Objective::Masked => Framing::Both,
        };
        let options = match TokenizerName::of(how) {
            TokenizerName::Words => VocabularyOptions::words(),
            TokenizerName::Pairs(size) => VocabularyOptions::pairs(size.parse().map_err(|_| {
                Failure::Message(format!("--tokenizer {how}: expected a number behind bpe:"))
            })?),
            TokenizerName::File(path) => return Ok(read_file(path)?),
        };
        Ok(vocabulary(self.train.texts(), &options.with_framing(framing))?)
    }

    pub(super) fn datasets(
        &self,
        tokenizer: &Tokenizer,
        special: &SpecialIds,
        kind: Objective,
        limits: Limits,
    ) -> Result<(Dataset, Option<Dataset>), Failure> {
        let task = match kind {
            Objective::Seq2seq => Task::Translation,
            Objective::Causal => Task::Continuation,
            Objective::Masked => Task::Masking,
        };
        let options =
            DatasetOptions::new(task).with_max_source(limits.source).with_max_target(limits.target);
        let make = |corpus: &Corpus| -> Result<Dataset, Failure> {
            let dataset = Dataset::with_special(corpus, tokenizer, special.clone(), &options)?;
            warn(dataset.skipped());
            Ok(dataset)
        };
        Ok((make(&self.train)?, self.valid.as_ref().map(make).transpose()?))
    }

    /// A measure of the answers to the first `lines` pairs for validation.
    pub(super) fn bleu(
        &self,
        tokenizer: Vec<u8>,
        lines: usize,
        longest: usize,
        threads: usize,
    ) -> Result<GreedyBleu, Failure> {
        let records = self.valid.iter().flat_map(|corpus| corpus.records());
        let pairs: Option<Vec<(String, String)>> = records
            .take(lines)
            .map(|record| Some((record.source.clone(), record.target.clone()?)))
            .collect();
        let pairs = pairs.ok_or_else(|| {
            Failure::Message("--bleu: needs pairs of a source and a target".to_owned())
        })?;
        Ok(GreedyBleu::new(tokenizer, pairs, longest, threads))
    }
}

/// Tells what is left out.
fn warn(skipped: &headrow::Problems) {
    if skipped.count() > 0 {
        tell(&format!("{} left out: {skipped}", skipped.count()));
    }
}
