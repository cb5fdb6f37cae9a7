//! What decoding hands out.

use crate::error::{Error, Result};
use crate::memory::room;

/// Why a hypothesis ends where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Finish {
    /// Its last token is one of the stop ids.
    StopToken,
    /// Its last token completes a stop string.
    StopText,
    /// It has as many tokens as it may have.
    Length,
    /// The caller ended the request.
    Interrupted,
}

/// A token and its log-probability.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TokenScore {
    /// The token.
    pub token: u32,
    /// ln p, where p is what the model gives the token before any constraint.
    pub log_probability: f32,
}

/// One answer to a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Hypothesis {
    /// The generated tokens without the prompt, a final stop id included.
    pub tokens: Vec<u32>,
    /// Greedy search and sampling: Σ ln p over the tokens. Beam search: that sum with the length penalty, by
    /// which hypotheses are ranked.
    pub score: f64,
    /// ln p of each token. Greedy search and sampling: under the model, before any constraint or
    /// temperature. Beam search: as it counts in the score, after the constraints.
    pub log_probabilities: Vec<f32>,
    /// For each token the likeliest ones in its place, best first, as many as the options ask for.
    pub top: Vec<Vec<TokenScore>>,
    /// The text up to a stop string, when there is a detokenizer.
    pub text: Option<String>,
    /// Why it ends.
    pub finish: Finish,
}

impl Hypothesis {
    /// The generated tokens without the stop id at their end.
    pub fn content(&self) -> &[u32] {
        match self.finish {
            Finish::StopToken => &self.tokens[..self.tokens.len() - 1],
            _ => &self.tokens,
        }
    }
}

/// The answers to one request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Generated {
    /// Best first; one for greedy search and sampling, at most `n_best` for beam search. Never empty.
    pub hypotheses: Vec<Hypothesis>,
}

impl Generated {
    /// The answers, unless one of them or the list of them has no memory.
    pub(crate) fn collect(
        answers: impl ExactSizeIterator<Item = Result<Hypothesis>>,
    ) -> Result<Generated> {
        let refused = || Error::out_of_memory(format_args!("{} answers", answers.len()));
        let mut hypotheses = room(answers.len()).ok_or_else(refused)?;
        for answer in answers {
            hypotheses.push(answer?);
        }
        Ok(Generated { hypotheses })
    }

    /// The best of them.
    pub fn best(&self) -> &Hypothesis {
        &self.hypotheses[0]
    }
}

/// How far a request has come, after one step.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The request.
    pub request: usize,
    /// The generated tokens of the hypothesis that is best so far: while a beam search runs, the live one
    /// with the largest Σ ln p; at its end, the best of all.
    pub tokens: &'a [u32],
    /// ln p of the newest of them, as in [`Hypothesis::log_probabilities`].
    pub log_probability: f32,
    /// Their score, as in [`Hypothesis::score`].
    pub score: f64,
    /// The likeliest tokens in place of the newest, as many as the options ask for.
    pub top: &'a [TokenScore],
    /// The text that this step adds for certain: nothing that may yet turn out to belong to a stop string, or that is
    /// an incomplete character. Always empty in beam search, whose best hypothesis may change.
    pub text: &'a str,
    /// Why the request ends with this step, if it does.
    pub finish: Option<Finish>,
}

/// One item of a [`TokenStream`](super::TokenStream).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// The newest token of the hypothesis that is best so far.
    pub id: u32,
    /// Its ln p, as in [`Hypothesis::log_probabilities`].
    pub log_probability: f32,
    /// The text that it adds for certain, as in [`Progress::text`].
    pub text: String,
    /// Why the request ends with it, if it does.
    pub finish: Option<Finish>,
}
