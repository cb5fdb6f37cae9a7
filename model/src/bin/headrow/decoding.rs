//! How `generate` and `translate` decode, and what they tell about an answer.

use crate::failure::Failure;
use clap::ValueEnum;
use headrow::Tokenizer;
use headrow::generate::{
    Beam, EarlyStopping, Finish, GenerationOptions, Hypothesis, LengthPenalty, Sampling, Strategy,
    TokenScore,
};
use serde::Serialize;

/// How the next tokens are chosen. What is not given is as the model's folder says.
#[derive(clap::Args)]
#[command(next_help_heading = "Decoding")]
pub(crate) struct DecodingArgs {
    /// Most tokens of an answer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_new_tokens: Option<u32>,

    /// Fewest tokens of an answer, unless a stop string comes.
    #[arg(long, value_name = "N")]
    min_new_tokens: Option<usize>,

    /// Search with so many live hypotheses; 1 is greedy search.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    beams: Option<u16>,

    /// How hypotheses of different lengths are compared: gnmt:ALPHA, average:ALPHA, marian:ALPHA:COST,
    /// none, or a number, which is gnmt's.
    #[arg(long, value_name = "NAME:ALPHA", value_parser = length_penalty, allow_hyphen_values = true)]
    length_penalty: Option<LengthPenalty>,

    /// When a beam search ends.
    #[arg(long, value_name = "KIND", value_enum)]
    early_stopping: Option<EarlyStoppingName>,

    /// Write so many answers of a beam search, best first.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    n_best: Option<u16>,

    /// Sample; above 1 evens the probabilities out, below 1 sharpens them, 0 takes the likeliest token.
    #[arg(long, value_name = "T", conflicts_with = "beams")]
    temperature: Option<f32>,

    /// Sample among so many likeliest tokens; 0: all.
    #[arg(long, value_name = "K", conflicts_with = "beams")]
    top_k: Option<usize>,

    /// Sample among the fewest tokens whose probabilities reach P.
    #[arg(long, value_name = "P", conflicts_with = "beams")]
    top_p: Option<f32>,

    /// Sample among tokens at least P times as likely as the likeliest.
    #[arg(long, value_name = "P", conflicts_with = "beams")]
    min_p: Option<f32>,

    /// Sample with this seed: the same seed gives the same answer.
    #[arg(long, value_name = "N", conflicts_with = "beams")]
    seed: Option<u64>,

    /// Makes tokens that have occurred less likely; 1 does nothing.
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f32>,

    /// No sequence of N tokens occurs twice; 0 does nothing.
    #[arg(long, value_name = "N")]
    no_repeat_ngram: Option<usize>,

    /// End before this string. May be given several times.
    #[arg(long, value_name = "STRING")]
    stop: Vec<String>,

    /// End with this token, beside the model's own ends. May be given several times.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    stop_id: Vec<u32>,

    /// Tokens that never come. May be given several times.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    suppress: Vec<u32>,

    /// In JSON, tell of every token its log-probability and the K likeliest in its place.
    #[arg(long, value_name = "K")]
    log_probabilities: Option<usize>,
}

#[derive(Clone, Copy, ValueEnum)]
enum EarlyStoppingName {
    /// When no live hypothesis can become better than the answers.
    ByBound,
    /// When as many have ended as there are beams.
    FirstComplete,
    /// When the best candidate has ended.
    BestComplete,
    /// When as many have ended and the best live one is no better at its present length.
    Heuristic,
    /// At the most tokens only.
    Never,
}

impl EarlyStoppingName {
    fn kind(self) -> EarlyStopping {
        match self {
            EarlyStoppingName::ByBound => EarlyStopping::ByBound,
            EarlyStoppingName::FirstComplete => EarlyStopping::FirstComplete,
            EarlyStoppingName::BestComplete => EarlyStopping::BestComplete,
            EarlyStoppingName::Heuristic => EarlyStopping::Heuristic,
            EarlyStoppingName::Never => EarlyStopping::Never,
        }
    }
}

fn length_penalty(text: &str) -> Result<LengthPenalty, String> {
    let number = |text: &str| text.parse::<f64>().ok().filter(|x| x.is_finite());
    let words: Vec<&str> = text.split(':').collect();
    let penalty = match words[..] {
        ["none"] => Some(LengthPenalty::None),
        ["gnmt", alpha] | [alpha] => number(alpha).map(|alpha| LengthPenalty::Gnmt { alpha }),
        ["average", alpha] => number(alpha).map(|alpha| LengthPenalty::Average { alpha }),
        ["marian", alpha, cost] => number(alpha)
            .zip(number(cost))
            .map(|(alpha, cost)| LengthPenalty::Marian { normalize: alpha, word_penalty: cost }),
        _ => None,
    };
    penalty.ok_or_else(|| {
        "expected gnmt:ALPHA, average:ALPHA, marian:ALPHA:COST, none or a number".to_owned()
    })
}

impl DecodingArgs {
    /// The options of the folder with what the arguments change. `most` tokens are generated where neither
    /// sets a limit.
    pub(crate) fn options(
        &self,
        folder: &GenerationOptions,
        most: usize,
    ) -> Result<GenerationOptions, Failure> {
        let mut options = folder.clone();
        options.strategy = self.strategy(&folder.strategy)?;
        limit_length(&mut options, self.max_new_tokens, most);
        if let Some(least) = self.min_new_tokens {
            (options.min_new_tokens, options.min_length) = (least, 0);
        }
        options.repetition_penalty = self.repetition_penalty.unwrap_or(options.repetition_penalty);
        options.no_repeat_ngram = self.no_repeat_ngram.unwrap_or(options.no_repeat_ngram);
        options.stop_strings.extend(self.stop.iter().cloned());
        options.stop_ids.extend(&self.stop_id);
        options.suppressed.extend(&self.suppress);
        options.log_probabilities = self.log_probabilities.unwrap_or(options.log_probabilities);
        Ok(options)
    }

    fn strategy(&self, folder: &Strategy) -> Result<Strategy, Failure> {
        let samples = self.temperature.is_some()
            || self.top_k.is_some()
            || self.top_p.is_some()
            || self.min_p.is_some()
            || self.seed.is_some();
        let strategy = match (self.beams, folder) {
            (Some(size), folder) => match search(folder, size.into()) {
                Strategy::Beam(beam) => Strategy::Beam(self.beam(beam)),
                greedy => greedy,
            },
            (None, Strategy::Sample(sampling)) => Strategy::Sample(self.sampling(*sampling)),
            (None, _) if samples => Strategy::Sample(self.sampling(Sampling::default())),
            (None, Strategy::Beam(beam)) => Strategy::Beam(self.beam(*beam)),
            (None, strategy) => strategy.clone(),
        };
        let searches = matches!(strategy, Strategy::Beam(_));
        for (name, given) in [
            ("length-penalty", self.length_penalty.is_some()),
            ("early-stopping", self.early_stopping.is_some()),
            ("n-best", self.n_best.is_some_and(|n| n > 1)),
        ] {
            if given && !searches {
                return Err(Failure::Message(format!("--{name} is for searches: give --beams N")));
            }
        }
        Ok(strategy)
    }

    fn beam(&self, mut beam: Beam) -> Beam {
        beam.length_penalty = self.length_penalty.unwrap_or(beam.length_penalty);
        if let Some(name) = self.early_stopping {
            beam.early_stopping = name.kind();
        }
        beam.n_best = self.n_best.map_or(beam.n_best, usize::from);
        beam
    }

    fn sampling(&self, mut sampling: Sampling) -> Sampling {
        sampling.temperature = self.temperature.unwrap_or(sampling.temperature);
        sampling.top_k = self.top_k.unwrap_or(sampling.top_k);
        sampling.top_p = self.top_p.unwrap_or(sampling.top_p);
        sampling.min_p = self.min_p.unwrap_or(sampling.min_p);
        sampling.seed = self.seed.unwrap_or(sampling.seed);
        sampling
    }
}

/// A search with so many live hypotheses, otherwise like the folder's.
pub(crate) fn search(folder: &Strategy, size: usize) -> Strategy {
    let mut beam = match folder {
        _ if size == 1 => return Strategy::Greedy,
        Strategy::Beam(folder) => *folder,
        _ => Beam::default(),
    };
    beam.size = size;
    beam.n_best = beam.n_best.min(size);
    Strategy::Beam(beam)
}

/// Sets the most tokens of an answer: what an option gives, or the folder, or else `most`.
pub(crate) fn limit_length(options: &mut GenerationOptions, given: Option<u32>, most: usize) {
    if let Some(given) = given {
        (options.max_new_tokens, options.max_length) = (Some(given as usize), None);
    } else if options.max_new_tokens.or(options.max_length).is_none() {
        options.max_new_tokens = Some(most);
    }
}

/// Answers of a request.
pub(crate) fn n_best(options: &GenerationOptions) -> usize {
    match &options.strategy {
        Strategy::Beam(beam) => beam.n_best,
        _ => 1,
    }
}

/// Sequences that a request decodes at a time.
pub(crate) fn beams(options: &GenerationOptions) -> usize {
    match &options.strategy {
        Strategy::Beam(beam) => beam.size,
        _ => 1,
    }
}

/// An answer in JSON.
#[derive(Serialize)]
pub(crate) struct Answer<'a> {
    line: u64,
    rank: usize,
    source: &'a str,
    text: &'a str,
    score: f64,
    finish: &'static str,
    ids: &'a [u32],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tokens: Vec<AnswerToken>,
}

#[derive(Serialize)]
struct AnswerToken {
    #[serde(flatten)]
    token: Likely,
    top: Vec<Likely>,
}

#[derive(Serialize)]
struct Likely {
    id: u32,
    token: Option<String>,
    log_probability: f32,
}

impl<'a> Answer<'a> {
    /// The answer of a rank, counted from 1, to the text of an index, counted from 0.
    pub(crate) fn new(
        index: u64,
        source: &'a str,
        rank: usize,
        answer: &'a Hypothesis,
        tokenizer: &Tokenizer,
    ) -> Answer<'a> {
        let likely = |&TokenScore { token: id, log_probability, .. }: &TokenScore| Likely {
            id,
            token: tokenizer.token(id),
            log_probability,
        };
        let each = answer.tokens.iter().zip(&answer.log_probabilities).zip(&answer.top);
        let tokens = each.map(|((&id, &log_probability), top)| AnswerToken {
            token: Likely { id, token: tokenizer.token(id), log_probability },
            top: top.iter().map(likely).collect(),
        });
        Answer {
            line: index + 1,
            rank,
            source,
            text: text(answer),
            score: answer.score,
            finish: match answer.finish {
                Finish::StopToken => "stop_token",
                Finish::StopText => "stop_text",
                Finish::Length => "length",
                Finish::Interrupted => "interrupted",
                _ => "other",
            },
            ids: &answer.tokens,
            tokens: tokens.collect(),
        }
    }
}

/// The text of an answer.
pub(crate) fn text(answer: &Hypothesis) -> &str {
    answer.text.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_penalties_have_names() {
        assert_eq!(length_penalty("gnmt:0.6"), Ok(LengthPenalty::Gnmt { alpha: 0.6 }));
        assert_eq!(length_penalty("-1"), Ok(LengthPenalty::Gnmt { alpha: -1.0 }));
        assert_eq!(length_penalty("average:1"), Ok(LengthPenalty::Average { alpha: 1.0 }));
        let marian = LengthPenalty::Marian { normalize: 1.0, word_penalty: 0.5 };
        assert_eq!(length_penalty("marian:1:0.5"), Ok(marian));
        assert_eq!(length_penalty("none"), Ok(LengthPenalty::None));
        for wrong in ["", "gnmt", "gnmt:x", "average:inf", "marian:1", "none:1", "gnmt:1:2"] {
            assert!(length_penalty(wrong).is_err(), "{wrong}");
        }
    }
}
