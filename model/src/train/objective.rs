//! What a step minimises, what it drops, and inputs that are no tokens.

use crate::error::{Error, Result};
pub use headrow_kernels::Smoothing;
use serde::{Deserialize, Serialize};

/// What is minimised.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Objective {
    /// What is predicted.
    pub goal: Goal,
    /// What targets are worth beside the label; 0.1 in the paper (§5.4).
    pub smoothing: Smoothing,
}

impl Objective {
    /// The same of another goal.
    #[must_use]
    pub fn with_goal(mut self, goal: Goal) -> Objective {
        self.goal = goal;
        self
    }

    /// The same with label smoothing.
    #[must_use]
    pub fn with_smoothing(mut self, smoothing: Smoothing) -> Objective {
        self.smoothing = smoothing;
        self
    }
}

/// What is predicted, by which of the model's heads, and so what the labels of [`Examples`](super::Examples) are.
///
/// The loss is the cross-entropy of the labels, and of numbers the square error. A classifier whose model library counts a single
/// label as regression learns by [`Goal::Numbers`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Goal {
    /// A word at each token, by the read-out of a decoder or the head of a masked language model.
    #[default]
    Words,
    /// A class of each sequence or image, by the sequence classifier ([`Head::SequenceClassifier`](crate::Head)).
    Classes,
    /// A class of each token, by the tagger ([`Head::TokenTagger`](crate::Head)).
    Tags,
    /// Of each sequence whether its second segment follows the first (0), by [`Head::NextSentence`](crate::Head).
    NextSentence,
    /// Numbers of each sequence or image, by the sequence classifier: Σ (y − t)²/n over its n outputs.
    Numbers,
}

/// Dropout (§5.4): on what each sublayer gives, before it is added to its input, and on the sums of embeddings and
/// positions.
///
/// What is dropped is a function of seed, step and place: the same at any number of threads, and again in another run.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Dropping {
    /// The probability of each number to be dropped, from 0 to below 1.
    pub rate: f32,
    /// The seed.
    pub seed: u64,
    /// The number of the pass: those of one step, where several make one, differ too.
    pub step: u64,
}

impl Dropping {
    /// Drops numbers with probability `rate`, others in every pass.
    pub fn new(rate: f32, seed: u64, step: u64) -> Dropping {
        Dropping { rate, seed, step }
    }

    /// Whether anything is dropped.
    ///
    /// # Errors
    /// When the rate is no probability below 1.
    pub(super) fn check(&self) -> Result<bool> {
        if (0.0..1.0).contains(&self.rate) {
            return Ok(self.rate > 0.0);
        }
        let problem = format!("{} is not from 0 to below 1", self.rate);
        let (place, field) = ("training".to_owned(), "dropout".to_owned());
        Err(Error::Config { place, field, problem })
    }
}

/// Sequences of vectors of d_model features, one behind the other, for stacks without embeddings.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Vectors<'a> {
    /// Tokens × d_model.
    pub values: &'a [f32],
    /// Tokens of each sequence.
    pub lengths: &'a [usize],
    /// For each token whether any token sees it: a mask of keys. `None`: all are seen.
    pub seen: Option<&'a [bool]>,
}

impl<'a> Vectors<'a> {
    /// Sequences of so many vectors each.
    pub fn new(values: &'a [f32], lengths: &'a [usize]) -> Vectors<'a> {
        Vectors { values, lengths, seen: None }
    }

    /// The same, of which only some tokens are seen, though all are computed: padding elsewhere.
    #[must_use]
    pub fn with_seen(self, seen: &'a [bool]) -> Vectors<'a> {
        Vectors { seen: Some(seen), ..self }
    }
}
