//! Options of beam search (§6.1 of the paper).

use super::length::LengthPenalty;
use crate::error::{Error, Result};

/// When a beam search ends before its live hypotheses have reached the most tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EarlyStopping {
    /// When no live hypothesis, ended at the length that is best for it, can have a better score than the worst of
    /// the `n_best` stored ones: the answers are those of [`EarlyStopping::Never`], only sooner. transformers call it
    /// `"never"`.
    #[default]
    ByBound,
    /// When `size` hypotheses have ended: `true` in transformers, and CTranslate2 with a length penalty.
    FirstComplete,
    /// When `n_best` hypotheses have ended, one of them as the best candidate of its step: CTranslate2
    /// without a length penalty.
    BestComplete,
    /// When `size` hypotheses have ended and the best live one, ended at its present length, would not
    /// have a better score than the worst of them: `false` in transformers. It may miss a better one.
    Heuristic,
    /// Not at all.
    Never,
}

/// How a beam search goes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Beam {
    /// Hypotheses that are live at once.
    pub size: usize,
    /// How hypotheses of different lengths are compared.
    pub length_penalty: LengthPenalty,
    /// When the search ends.
    pub early_stopping: EarlyStopping,
    /// Answers that are returned, at most `size`.
    pub n_best: usize,
}

impl Default for Beam {
    /// The paper's: four hypotheses, α = 0.6.
    fn default() -> Self {
        Beam::new(4)
    }
}

impl Beam {
    /// A search with so many live hypotheses, the paper's length penalty, and one answer.
    pub fn new(size: usize) -> Beam {
        let (length_penalty, early_stopping) = Default::default();
        Beam { size, length_penalty, early_stopping, n_best: 1 }
    }

    /// The same with another length penalty.
    #[must_use]
    pub fn with_length_penalty(self, length_penalty: LengthPenalty) -> Beam {
        Beam { length_penalty, ..self }
    }

    /// The same with another end.
    #[must_use]
    pub fn with_early_stopping(self, early_stopping: EarlyStopping) -> Beam {
        Beam { early_stopping, ..self }
    }

    /// The same with so many answers.
    #[must_use]
    pub fn with_n_best(self, n_best: usize) -> Beam {
        Beam { n_best, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.size == 0 {
            return Err(Error::generation("beam.size", "must not be 0"));
        }
        if !(1..=self.size).contains(&self.n_best) {
            let problem =
                format!("must be from 1 to the beam's {}, found {}", self.size, self.n_best);
            return Err(Error::generation("beam.n_best", problem));
        }
        match self.length_penalty.flaw() {
            Some((field, value)) => {
                Err(Error::generation(field, format!("must be finite, found {value}")))
            }
            None => Ok(()),
        }
    }

    /// How many ended hypotheses are stored.
    pub(super) fn stored(&self) -> usize {
        match self.early_stopping {
            EarlyStopping::ByBound | EarlyStopping::BestComplete | EarlyStopping::Never => {
                self.n_best
            }
            EarlyStopping::FirstComplete | EarlyStopping::Heuristic => self.size,
        }
    }
}
