//! How long a training goes on, and what it does beside learning. All of it may change when it is resumed.

use super::recipe::Shape;
use clap::ValueEnum;
use headrow::train::{Precision, RunOptions};
use serde::{Deserialize, Serialize};

#[derive(clap::Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "How long, and what comes out of it")]
pub(super) struct Course {
    /// Most steps. Without --steps, --epochs and --minutes: as many as the preset has.
    #[arg(long, value_name = "N")]
    pub(super) steps: Option<u64>,

    /// Most passes over the data.
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,

    /// Most minutes, those before a training was resumed included.
    #[arg(long, value_name = "M", value_parser = minutes)]
    minutes: Option<f64>,

    /// Stop after so many validations without a lower loss; the model is then the best.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    patience: Option<u64>,

    /// Steps between lines of the log. 50 if not given.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    log_every: Option<u64>,

    /// Steps between validations. As --save-every if not given.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    valid_every: Option<u64>,

    /// In validation, also BLEU of greedy answers to the first so many pairs.
    #[arg(long, value_name = "LINES")]
    bleu: Option<u32>,

    /// Steps between checkpoints. 1000 if not given.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    save_every: Option<u64>,

    /// Checkpoints that are kept. 5 if not given; no fewer than --average.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    keep: Option<u16>,

    /// The model is the mean of the last so many checkpoints. As the preset has it if not given.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    average: Option<u16>,

    /// The type of the model's numbers. f32 if not given.
    #[arg(long, value_enum, value_name = "TYPE")]
    dtype: Option<Dtype>,
}

/// A number of minutes, which is none when it is infinite or negative.
fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes: &f64| minutes.is_finite() && *minutes > 0.0);
    minutes.ok_or_else(|| "expected a number above 0".to_owned())
}

/// The type of numbers in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Dtype {
    F32,
    Bf16,
    F16,
}

impl From<Dtype> for Precision {
    fn from(dtype: Dtype) -> Precision {
        match dtype {
            Dtype::F32 => Precision::F32,
            Dtype::Bf16 => Precision::Bf16,
            Dtype::F16 => Precision::F16,
        }
    }
}

impl Course {
    /// What is said here, and for the rest what `begun` says. A new end takes the place of all ends there were.
    pub(super) fn over(self, begun: Course) -> Course {
        let said = self.steps.is_some() || self.epochs.is_some() || self.minutes.is_some();
        let ends = if said { &self } else { &begun };
        Course {
            steps: ends.steps,
            epochs: ends.epochs,
            minutes: ends.minutes,
            patience: self.patience.or(begun.patience),
            log_every: self.log_every.or(begun.log_every),
            valid_every: self.valid_every.or(begun.valid_every),
            bleu: self.bleu.or(begun.bleu),
            save_every: self.save_every.or(begun.save_every),
            keep: self.keep.or(begun.keep),
            average: self.average.or(begun.average),
            dtype: self.dtype.or(begun.dtype),
        }
    }

    /// The same with the ends and the mean of a preset where nothing is said.
    pub(super) fn filled_in(mut self, shape: &Shape) -> Course {
        if self.steps.is_none() && self.epochs.is_none() && self.minutes.is_none() {
            self.steps = Some(shape.steps);
        }
        self.average.get_or_insert(shape.average);
        self
    }

    /// An option that asks for data to measure on.
    pub(super) fn needs_validation(&self) -> Option<&'static str> {
        let options = [("--patience", self.patience.is_some()), ("--bleu", self.bleu() > 0)];
        options.into_iter().find_map(|(name, given)| given.then_some(name))
    }

    /// Pairs whose answers are measured.
    pub(super) fn bleu(&self) -> usize {
        self.bleu.unwrap_or(0) as usize
    }

    pub(super) fn options(&self, accumulate: usize) -> RunOptions {
        let save_every = self.save_every.unwrap_or(1000);
        RunOptions::default()
            .with_steps(self.steps)
            .with_epochs(self.epochs)
            .with_seconds(self.minutes.map(|minutes| 60.0 * minutes))
            .with_patience(self.patience)
            .with_accumulate(accumulate)
            .with_log_every(self.log_every.unwrap_or(50))
            .with_validate_every(self.valid_every.unwrap_or(save_every))
            .with_save_every(save_every)
            .with_keep(self.keep.unwrap_or(5).into())
            .with_average(self.average.unwrap_or(1).into())
            .with_precision(self.dtype.unwrap_or(Dtype::F32).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_end_takes_the_place_of_the_old_ones() {
        let begun = Course { epochs: Some(3), keep: Some(7), ..Course::default() };
        let longer = Course { steps: Some(9), ..Course::default() }.over(begun.clone());
        assert_eq!((longer.steps, longer.epochs, longer.keep), (Some(9), None, Some(7)));
        let same = Course::default().over(begun);
        assert_eq!((same.steps, same.epochs), (None, Some(3)));
    }
}
