//! BLEU of what a model in training answers.

use super::{Parameters, Precision};
use crate::config::Config;
use crate::error::Result;
use crate::generate::{GenerationOptions, Strategy};
use crate::metrics::{Bleu, BleuOptions};
use crate::model::Model;
use crate::text::{TextModel, options_in_memory};
use crate::tokenizer::Tokenizer;
use std::sync::Arc;

/// Sources that are translated together.
const TOGETHER: usize = 16;

/// Pairs by which greedy answers are measured.
#[derive(Clone, Debug)]
pub struct GreedyBleu {
    tokenizer: Vec<u8>,
    pairs: Vec<(String, String)>,
    /// Most tokens of an answer.
    longest: usize,
    threads: usize,
    options: Option<GenerationOptions>,
}

/// How the files of a model say that it is decoded: `generation_config.json`, or `config.json` where there is no such.
///
/// # Errors
/// As [`GenerationOptions::from_json`]; [`Error::File`](crate::Error::File) when neither is among the files.
pub fn decoding_options(files: &[(String, Vec<u8>)], config: &Config) -> Result<GenerationOptions> {
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    options_in_memory(&files, config)
}

impl GreedyBleu {
    /// Pairs of a source and its reference; `tokenizer` is the text of a `tokenizer.json`, `longest` the most tokens of an answer.
    pub fn new(
        tokenizer: Vec<u8>,
        pairs: Vec<(String, String)>,
        longest: usize,
        threads: usize,
    ) -> GreedyBleu {
        GreedyBleu { tokenizer, pairs, longest, threads, options: None }
    }

    /// The same with what else these options say than how to search: where the decoder begins and ends, and what is forced.
    #[must_use]
    pub fn with_options(self, options: GenerationOptions) -> GreedyBleu {
        GreedyBleu { options: Some(options), ..self }
    }

    /// Corpus BLEU, from 0 to 100, of the greedy answers of a model with these weights. To a source that it does not take, one
    /// that is too long or has unknown words, it answers with nothing.
    ///
    /// # Errors
    /// When the model cannot translate at all.
    pub fn score(&self, parameters: &Parameters) -> Result<f64> {
        let config = parameters.config();
        let model = Model::from_bytes(config, &parameters.to_safetensors(Precision::F32))?;
        let model = TextModel::new(Arc::new(model), Tokenizer::from_bytes(&self.tokenizer)?);
        let options = self.options.as_ref().unwrap_or(model.options()).clone();
        let options = options.with_strategy(Strategy::Greedy).with_max_new_tokens(self.longest);
        let sizes = model.session_options(TOGETHER, &options).with_threads(self.threads);
        let mut session = model.session(&sizes)?;
        let answers = model.translate_each(&mut session, self.sources(), &options)?;
        let mut bleu = Bleu::new(BleuOptions::default());
        for (answer, (_, reference)) in answers.iter().zip(&self.pairs) {
            let text = answer.as_ref().ok().and_then(|answer| answer.best().text.as_deref());
            bleu.add(text.unwrap_or_default(), &[reference]);
        }
        Ok(bleu.score().score)
    }

    fn sources(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|(source, _)| source.as_str())
    }
}
