//! What decides the weights that training comes to.

use crate::error::{Error, Result};
use crate::train::{AdamOptions, Goal, Objective, Schedule, Smoothing};
use serde::{Deserialize, Serialize};

/// Among which tokens label smoothing shares a part of the label out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SmoothingKind {
    /// All v tokens, the label included: [`Smoothing::All`].
    #[default]
    All,
    /// The v − 1 others: [`Smoothing::Others`].
    Others,
}

/// What decides the weights that training comes to, beside the data and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TrainerOptions {
    /// The rate of learning.
    pub schedule: Schedule,
    /// The optimiser.
    pub adam: AdamOptions,
    /// What is predicted.
    #[serde(default)]
    pub goal: Goal,
    /// ε of label smoothing: the part of a label that is shared out among tokens, or classes. 0: [`Smoothing::None`].
    pub smoothing: f64,
    /// Among which tokens.
    #[serde(default)]
    pub smoothing_kind: SmoothingKind,
    /// P_drop: the part of the features that dropout removes.
    pub dropout: f64,
    /// What decides which features those are.
    pub seed: u64,
}

impl TrainerOptions {
    /// The paper's for the base model of so many features: its schedule and optimiser, smoothing and dropout of 0.1.
    pub fn paper(d_model: usize) -> TrainerOptions {
        TrainerOptions {
            schedule: Schedule::paper(d_model),
            adam: AdamOptions::default(),
            goal: Goal::Words,
            smoothing: 0.1,
            smoothing_kind: SmoothingKind::All,
            dropout: 0.1,
            seed: 0,
        }
    }

    /// The same with this schedule.
    #[must_use]
    pub fn with_schedule(self, schedule: Schedule) -> TrainerOptions {
        TrainerOptions { schedule, ..self }
    }

    /// The same with this optimiser.
    #[must_use]
    pub fn with_adam(self, adam: AdamOptions) -> TrainerOptions {
        TrainerOptions { adam, ..self }
    }

    /// The same of another goal.
    #[must_use]
    pub fn with_goal(self, goal: Goal) -> TrainerOptions {
        TrainerOptions { goal, ..self }
    }

    /// The same with this label smoothing.
    #[must_use]
    pub fn with_smoothing(self, smoothing: f64) -> TrainerOptions {
        TrainerOptions { smoothing, ..self }
    }

    /// The same with label smoothing among these tokens.
    #[must_use]
    pub fn with_smoothing_kind(self, smoothing_kind: SmoothingKind) -> TrainerOptions {
        TrainerOptions { smoothing_kind, ..self }
    }

    /// The same with this dropout.
    #[must_use]
    pub fn with_dropout(self, dropout: f64) -> TrainerOptions {
        TrainerOptions { dropout, ..self }
    }

    /// The same with this seed.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> TrainerOptions {
        TrainerOptions { seed, ..self }
    }

    /// Refuses numbers that no training could use.
    ///
    /// # Errors
    /// [`Error::TrainingOption`].
    pub fn check(&self) -> Result<()> {
        self.schedule.check()?;
        self.adam.check()?;
        for (field, part) in [("smoothing", self.smoothing), ("dropout", self.dropout)] {
            if !(0.0..1.0).contains(&part) {
                return Err(Error::training_option(field, "must be at least 0 and below 1"));
            }
        }
        Ok(())
    }

    /// What is minimised.
    pub(super) fn objective(&self) -> Objective {
        let epsilon = self.smoothing as f32;
        let smoothing = match self.smoothing_kind {
            _ if epsilon == 0.0 => Smoothing::None,
            SmoothingKind::All => Smoothing::All(epsilon),
            SmoothingKind::Others => Smoothing::Others(epsilon),
        };
        Objective::default().with_goal(self.goal).with_smoothing(smoothing)
    }
}
