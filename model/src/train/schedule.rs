//! The rate of learning over the steps (§5.3).

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// How the rate of learning follows from the number of a step, counted from 1.
///
/// All of it is computed in f64 from operations that round alike everywhere, and rounded to f32 once.
///
/// ```
/// use headrow::train::Schedule;
///
/// let schedule = Schedule::paper(512);
/// assert!(schedule.rate(1) < schedule.rate(4000) && schedule.rate(4000) > schedule.rate(8000));
/// assert!((schedule.rate(4000) - 6.988e-4).abs() < 1e-7);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Schedule {
    /// The paper's: factor · d_model^−½ · min(step^−½, step · warmup^−1½). It rises for `warmup` steps and falls
    /// with the root of the step afterwards.
    Paper {
        /// 1 in the paper.
        factor: f64,
        /// Features of a token.
        d_model: usize,
        /// 4000 in the paper; 0 falls from the first step on.
        warmup: u64,
    },
    /// The same rate from the end of a linear rise on.
    Constant {
        /// The rate.
        rate: f64,
        /// Steps of the rise; 0 for none.
        warmup: u64,
    },
    /// A linear rise, then half a cosine wave down to `floor`, which is reached at step `total`.
    Cosine {
        /// The highest rate.
        rate: f64,
        /// The rate from step `total` on.
        floor: f64,
        /// Steps of the rise; 0 for none.
        warmup: u64,
        /// The last step of the wave.
        total: u64,
    },
}

impl Schedule {
    /// The paper's schedule with its factor of 1 and 4000 steps of warm-up.
    pub fn paper(d_model: usize) -> Schedule {
        Schedule::Paper { factor: 1.0, d_model, warmup: 4000 }
    }

    /// The rate of step `step`, counted from 1. Step 0, which there is not, has a rate of 0.
    pub fn rate(&self, step: u64) -> f32 {
        if step == 0 {
            return 0.0;
        }
        let t = step as f64;
        let rate = match *self {
            Schedule::Paper { factor, d_model, warmup } => {
                let w = warmup as f64;
                let rising = t / (w * w.sqrt());
                factor / (d_model as f64).sqrt() * (1.0 / t.sqrt()).min(rising)
            }
            Schedule::Constant { rate, warmup } => rate * risen(step, warmup),
            Schedule::Cosine { rate, warmup, .. } if step <= warmup => rate * risen(step, warmup),
            Schedule::Cosine { floor, total, .. } if step >= total => floor,
            Schedule::Cosine { rate, floor, warmup, total } => {
                let part = (step - warmup) as f64 / (total - warmup) as f64;
                let wave = libm::cos(std::f64::consts::PI * part);
                floor + (rate - floor) * (0.5 * (1.0 + wave))
            }
        };
        rate as f32
    }

    /// Refuses numbers that no training could use.
    ///
    /// # Errors
    /// [`Error::TrainingOption`] for rates and factors below 0 or not finite, a `d_model` of 0, and a wave that
    /// ends before its rise.
    pub fn check(&self) -> Result<()> {
        let amount = |field, x: f64| match x.is_finite() && x >= 0.0 {
            true => Ok(()),
            false => Err(Error::training_option(field, "must be finite and not below 0")),
        };
        match *self {
            Schedule::Paper { d_model: 0, .. } => {
                Err(Error::training_option("d_model", "must not be 0"))
            }
            Schedule::Paper { factor, .. } => amount("factor", factor),
            Schedule::Constant { rate, .. } => amount("rate", rate),
            Schedule::Cosine { rate, floor, warmup, total } => {
                amount("rate", rate)?;
                amount("floor", floor)?;
                match total < warmup {
                    true => Err(Error::training_option("total", "the wave ends within its rise")),
                    false => Ok(()),
                }
            }
        }
    }
}

/// How much of a rise over `warmup` steps is done at `step`.
fn risen(step: u64, warmup: u64) -> f64 {
    if step >= warmup { 1.0 } else { step as f64 / warmup as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(actual: f32, expected: f64) {
        let error = (f64::from(actual) - expected).abs();
        assert!(error <= expected.abs() * f64::from(f32::EPSILON), "{actual} {expected}");
    }

    /// Values of the formula, computed with forty digits.
    #[test]
    fn the_paper_schedule_is_the_formula() {
        let paper = Schedule::paper(512);
        close(paper.rate(1), 1.746_928_107_421_711e-7);
        close(paper.rate(2000), 3.493_856_214_843_421e-4);
        close(paper.rate(4000), 6.987_712_429_686_843e-4);
        close(paper.rate(4001), 6.986_839_129_912_95e-4);
        close(paper.rate(100_000), 1.397_542_485_937_369e-4);
        let tripled = Schedule::Paper { factor: 3.0, d_model: 512, warmup: 4000 };
        close(tripled.rate(4000), 2.096_313_728_906_053e-3);
        let sudden = Schedule::Paper { factor: 1.0, d_model: 16, warmup: 0 };
        close(sudden.rate(1), 0.25);
        close(sudden.rate(4), 0.125);
    }

    #[test]
    fn the_rate_peaks_where_the_warm_up_ends() {
        for warmup in [1, 2, 20, 4000] {
            let schedule = Schedule::Paper { factor: 1.0, d_model: 64, warmup };
            let peak = schedule.rate(warmup);
            assert!((1..warmup).all(|step| schedule.rate(step) < schedule.rate(step + 1)));
            assert!(
                (warmup..warmup + 100).all(|step| schedule.rate(step + 1) < schedule.rate(step))
            );
            close(peak, 0.125 / (warmup as f64).sqrt());
        }
    }

    #[test]
    fn constant_and_cosine_rise_and_end() {
        let constant = Schedule::Constant { rate: 0.5, warmup: 4 };
        assert_eq!(
            [1, 2, 4, 5, 1000].map(|step| constant.rate(step)),
            [0.125, 0.25, 0.5, 0.5, 0.5]
        );
        let cosine = Schedule::Cosine { rate: 1.0, floor: 0.25, warmup: 10, total: 110 };
        assert_eq!(cosine.rate(5), 0.5);
        assert_eq!(cosine.rate(10), 1.0);
        close(cosine.rate(60), 0.625);
        close(cosine.rate(35), 0.25 + 0.75 * 0.5 * (1.0 + std::f64::consts::FRAC_1_SQRT_2));
        assert_eq!([110, 111, u64::MAX].map(|step| cosine.rate(step)), [0.25; 3]);
        let at_once = Schedule::Cosine { rate: 1.0, floor: 0.0, warmup: 0, total: 2 };
        close(at_once.rate(1), 0.5);
        assert_eq!(at_once.rate(2), 0.0);
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let bad = [
            Schedule::Paper { factor: f64::NAN, d_model: 4, warmup: 1 },
            Schedule::Paper { factor: 1.0, d_model: 0, warmup: 1 },
            Schedule::Constant { rate: -1.0, warmup: 0 },
            Schedule::Cosine { rate: 1.0, floor: f64::INFINITY, warmup: 0, total: 9 },
            Schedule::Cosine { rate: 1.0, floor: 0.0, warmup: 10, total: 9 },
        ];
        for schedule in bad {
            assert!(matches!(schedule.check(), Err(Error::TrainingOption { .. })), "{schedule:?}");
        }
        assert!(Schedule::paper(512).check().is_ok());
    }
}
