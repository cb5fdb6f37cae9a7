//! What the paper says of its two models.

use super::counts::Counts;
use crate::config::Config;
use std::ops::RangeInclusive;

/// A model of the paper's with its figures (§5.1, §5.2, tables 2 and 3).
///
/// ```
/// use headrow::accounting::{Counts, Published};
///
/// let published = Published::BASE;
/// let config = published.config(37_000);
/// let counts = Counts::of(&config)?;
/// // No vocabulary of 37 000 makes 65 million parameters.
/// assert_eq!(published.vocabularies(&config, &counts), 39_769..=41_721);
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Published {
    /// Its name there.
    pub name: &'static str,
    /// Parameters in millions, rounded (table 3).
    pub millions: f64,
    /// Tokens of the shared vocabulary, "about" (§5.1).
    pub vocabulary: usize,
    /// Steps of the training.
    pub steps: usize,
    /// Source tokens of a step, and target tokens of it, "approximately".
    pub batch_tokens: usize,
    /// Seconds that the training took.
    pub seconds: f64,
    /// Processors that it took them on.
    pub devices: usize,
    /// Operations of a second that one of them is taken to sustain in single precision (footnote of §6.1).
    pub sustained: f64,
    /// Operations of the training, rounded to two digits (table 2).
    pub operations: f64,
}

impl Published {
    /// The base model: 100 000 steps in 12 hours on 8 P100.
    pub const BASE: Published = Published {
        name: "base",
        millions: 65.0,
        vocabulary: 37_000,
        steps: 100_000,
        batch_tokens: 25_000,
        seconds: 12.0 * 3600.0,
        devices: 8,
        sustained: 9.5e12,
        operations: 3.3e18,
    };

    /// The big model: 300 000 steps in 3.5 days.
    pub const BIG: Published = Published {
        name: "big",
        millions: 213.0,
        steps: 300_000,
        seconds: 3.5 * 24.0 * 3600.0,
        operations: 2.3e19,
        ..Published::BASE
    };

    /// The model of that name.
    pub fn named(name: &str) -> Option<Published> {
        [Published::BASE, Published::BIG].into_iter().find(|published| published.name == name)
    }

    /// Its config, with a vocabulary of so many tokens.
    pub fn config(&self, vocabulary: usize) -> Config {
        match self.name {
            "big" => Config::big(vocabulary, vocabulary),
            _ => Config::base(vocabulary, vocabulary),
        }
    }

    /// The paper's way to count the operations of a training: time × processors × what each of them sustains.
    pub fn by_time(&self) -> f64 {
        self.seconds * self.devices as f64 * self.sustained
    }

    /// The vocabularies with which a model of this shape has a number of parameters that rounds to the paper's. `counts` are
    /// those of [`Published::config`] with any vocabulary.
    ///
    /// For the base model they lie above 37 000 and for the big one below, so no one vocabulary gives both figures; biases and
    /// norms, 0.1 million numbers of the base model, are too few to make up for it.
    pub fn vocabularies(&self, config: &Config, counts: &Counts) -> RangeInclusive<usize> {
        let d = config.d_model as f64;
        let others = counts.total() as f64 - config.vocabulary() as f64 * d;
        let words = |millions: f64| (millions * 1e6 - others) / d;
        let (least, beyond) = (words(self.millions - 0.5), words(self.millions + 0.5));
        least.ceil() as usize..=beyond.ceil() as usize - 1
    }
}
