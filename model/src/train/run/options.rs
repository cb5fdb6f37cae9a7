//! What a run is told to do.

use super::super::Precision;
use crate::error::{Error, Result};

/// How long a run is, and what it does beside learning.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunOptions {
    /// Most steps.
    pub steps: Option<u64>,
    /// Passes over the data: the run ends with the step that completes the last of them. A step of several batches may have some
    /// of the next pass, as it would in a longer run.
    pub epochs: Option<u64>,
    /// Most seconds, of all stretches of the run together.
    pub seconds: Option<f64>,
    /// Validations without a lower loss after which the run ends; the model is then the best one.
    pub patience: Option<u64>,
    /// Batches of a step.
    pub accumulate: usize,
    /// Steps between lines of the log.
    pub log_every: u64,
    /// Steps between validations.
    pub validate_every: u64,
    /// Steps between checkpoints.
    pub save_every: u64,
    /// Checkpoints that are kept.
    pub keep: usize,
    /// Checkpoints whose mean the model is.
    pub average: usize,
    /// The type of the model's numbers.
    pub precision: Precision,
}

impl Default for RunOptions {
    /// Without an end; a step has one batch, a line is written every 50 steps, validation comes every 1000 steps and so do
    /// checkpoints, of which 5 are kept; the model is the last of them, in f32.
    fn default() -> RunOptions {
        RunOptions {
            steps: None,
            epochs: None,
            seconds: None,
            patience: None,
            accumulate: 1,
            log_every: 50,
            validate_every: 1000,
            save_every: 1000,
            keep: 5,
            average: 1,
            precision: Precision::F32,
        }
    }
}

impl RunOptions {
    /// The same with an end after so many steps.
    #[must_use]
    pub fn with_steps(self, steps: impl Into<Option<u64>>) -> RunOptions {
        RunOptions { steps: steps.into(), ..self }
    }

    /// The same with an end at the step that completes so many passes over the data.
    #[must_use]
    pub fn with_epochs(self, epochs: impl Into<Option<u64>>) -> RunOptions {
        RunOptions { epochs: epochs.into(), ..self }
    }

    /// The same with an end after so many seconds.
    #[must_use]
    pub fn with_seconds(self, seconds: impl Into<Option<f64>>) -> RunOptions {
        RunOptions { seconds: seconds.into(), ..self }
    }

    /// The same with an end after so many validations in vain.
    #[must_use]
    pub fn with_patience(self, patience: impl Into<Option<u64>>) -> RunOptions {
        RunOptions { patience: patience.into(), ..self }
    }

    /// The same with so many batches in a step.
    #[must_use]
    pub fn with_accumulate(self, accumulate: usize) -> RunOptions {
        RunOptions { accumulate, ..self }
    }

    /// The same with a line of the log every so many steps.
    #[must_use]
    pub fn with_log_every(self, log_every: u64) -> RunOptions {
        RunOptions { log_every, ..self }
    }

    /// The same with a validation every so many steps.
    #[must_use]
    pub fn with_validate_every(self, validate_every: u64) -> RunOptions {
        RunOptions { validate_every, ..self }
    }

    /// The same with a checkpoint every so many steps.
    #[must_use]
    pub fn with_save_every(self, save_every: u64) -> RunOptions {
        RunOptions { save_every, ..self }
    }

    /// The same with so many checkpoints kept.
    #[must_use]
    pub fn with_keep(self, keep: usize) -> RunOptions {
        RunOptions { keep, ..self }
    }

    /// The same with a model that is the mean of so many checkpoints.
    #[must_use]
    pub fn with_average(self, average: usize) -> RunOptions {
        RunOptions { average, ..self }
    }

    /// The same with a model of these numbers.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> RunOptions {
        RunOptions { precision, ..self }
    }

    pub(super) fn check(&self) -> Result<()> {
        let refused = |field, problem: &str| Err(Error::training_option(field, problem));
        let counts = [
            ("accumulate", self.accumulate as u64),
            ("log_every", self.log_every),
            ("validate_every", self.validate_every),
            ("save_every", self.save_every),
            ("keep", self.keep as u64),
            ("average", self.average as u64),
            ("patience", self.patience.unwrap_or(1)),
        ];
        if let Some((field, _)) = counts.into_iter().find(|&(_, count)| count == 0) {
            return refused(field, "must not be 0");
        }
        match self.seconds {
            Some(seconds) if !(seconds.is_finite() && seconds >= 0.0) => {
                refused("seconds", "must be finite and not below 0")
            }
            _ => Ok(()),
        }
    }
}
