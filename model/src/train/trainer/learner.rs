//! What a training has learned so far: weights, the gradient of the step, and what the optimiser remembers.

use super::options::TrainerOptions;
use crate::error::{Error, Result};
use crate::train::checkpoint::{self, Slot, Vectors};
use crate::train::claims::Claims;
use crate::train::companions::Companion;
use crate::train::optimizer::{Optimizer, Update, not_finite};
use crate::train::{Loss, Parameters};
use headrow_kernels::{Cpu, Par};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Instant;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// Its number, counted from 1.
    pub step: u64,
    /// The loss of its batches, with the weights before the step.
    pub loss: Loss,
    /// The rate of learning.
    pub rate: f64,
    /// The norm of the mean gradient before clipping.
    pub norm: f64,
    /// How long it took.
    pub seconds: f64,
}

/// How far a trainer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counters {
    /// Steps that are done.
    pub(super) steps: u64,
    /// Batches whose gradients were computed: each has a dropout of its own.
    batches: u64,
}

/// The state of a training without what computes its gradients.
pub(super) struct Learner {
    pub(super) options: TrainerOptions,
    pub(super) parameters: Parameters,
    slots: Vec<Slot>,
    optimizer: Optimizer,
    /// Of the sum over the tokens of `loss`.
    gradient: Vec<f32>,
    loss: Loss,
    /// When the first batch of the step came.
    begun: Option<Instant>,
    pub(super) counters: Counters,
}

impl Learner {
    pub(super) fn new(parameters: Parameters, options: TrainerOptions) -> Result<Learner> {
        options.check()?;
        let slots = slots(&parameters);
        let optimizer = Optimizer::new(options.adam, &slots)?;
        let gradient = Claims::taking().zeros(parameters.values().len(), 1)?;
        let (loss, counters) = (Loss::default(), Counters::default());
        Ok(Learner { options, parameters, slots, optimizer, gradient, loss, begun: None, counters })
    }

    /// Adds a batch whose gradient `add` adds to that of the step. It is given the weights and the batch's number.
    pub(super) fn accumulate(
        &mut self,
        add: impl FnOnce(&Parameters, u64, &mut [f32]) -> Result<Loss>,
    ) -> Result<Loss> {
        self.begun.get_or_insert_with(Instant::now);
        let loss = add(&self.parameters, self.counters.batches, &mut self.gradient)?;
        if let Some(value) = [loss.smoothed, loss.nll].into_iter().find(|x| !x.is_finite()) {
            self.forget();
            let step = self.counters.steps + 1;
            // Weights that were broken before say more than what came of them.
            self.check_weights(step)?;
            return Err(Error::NotFinite { step, what: "the loss".to_owned(), value });
        }
        self.counters.batches += 1;
        self.loss += loss;
        Ok(loss)
    }

    pub(super) fn step(&mut self, on: (Cpu, Par<'_>)) -> Result<StepReport> {
        let step = self.counters.steps + 1;
        let rate = self.options.schedule.rate(step);
        let (tokens, gradient) = (self.loss.tokens, &self.gradient);
        let update = Update { step, rate, tokens, gradient };
        let done = self.optimizer.update(on, &update, &self.slots, self.parameters.values_mut());
        let (loss, begun) = (self.loss, self.begun.take());
        self.forget();
        let norm = done?;
        self.counters.steps = step;
        let seconds = begun.map_or(0.0, |begun| begun.elapsed().as_secs_f64());
        Ok(StepReport { step, loss, rate: f64::from(rate), norm, seconds })
    }

    /// Bytes of all vectors as long as the parameters.
    pub(super) fn bytes(&self) -> usize {
        let Learner { parameters, optimizer, gradient, .. } = self;
        let moments = size_of_val(&optimizer.first[..]) + size_of_val(&optimizer.second[..]);
        size_of_val(parameters.values()) + size_of_val(&gradient[..]) + moments
    }

    /// Begins the step anew.
    fn forget(&mut self) {
        self.gradient.fill(0.0);
        self.loss = Loss::default();
        self.begun = None;
    }

    pub(super) fn save<S: Serialize>(
        &self,
        folder: &Path,
        state: &S,
        companions: &[Companion],
    ) -> Result<()> {
        self.check_weights(self.counters.steps)?;
        for moments in [&self.optimizer.first, &self.optimizer.second] {
            self.check(self.counters.steps, "a moment", moments)?;
        }
        let Learner { options, optimizer, parameters, counters, slots, .. } = self;
        let state = Saved { options: *options, counters: *counters, more: state };
        let vectors = optimizer.vectors(parameters.values());
        checkpoint::save(folder, slots, vectors, &state, companions)
    }

    pub(super) fn restore<S: DeserializeOwned>(&mut self, folder: &Path) -> Result<S> {
        let (vectors, saved): (_, Saved<S>) = checkpoint::load(folder, &self.slots)?;
        saved.options.check()?;
        let Vectors { weights, first, second } = vectors;
        self.parameters.values_mut().copy_from_slice(&weights);
        self.optimizer = Optimizer::going_on(saved.options.adam, &self.slots, first, second);
        (self.options, self.counters) = (saved.options, saved.counters);
        self.forget();
        Ok(saved.more)
    }

    /// Whether all weights are finite at step `step`.
    fn check_weights(&self, step: u64) -> Result<()> {
        self.check(step, "a weight", self.parameters.values())
    }

    fn check(&self, step: u64, what: &str, values: &[f32]) -> Result<()> {
        match values.iter().all(|x| x.is_finite()) {
            true => Ok(()),
            false => Err(not_finite(step, what, values, &self.slots)),
        }
    }
}

/// What a checkpoint has beside vectors.
#[derive(Serialize, Deserialize)]
struct Saved<S> {
    options: TrainerOptions,
    #[serde(flatten)]
    counters: Counters,
    more: S,
}

fn slots(parameters: &Parameters) -> Vec<Slot> {
    let mut end = 0;
    let slot = |(name, shape, values): (&str, &[usize], &[f32])| {
        let begin = end;
        end += values.len();
        Slot { name: name.to_owned(), shape: shape.to_vec(), place: begin..end }
    };
    parameters.tensors().map(slot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Input, StackConfig, TokenInput};

    fn learner() -> Learner {
        let mut config = Config::general(8);
        let input = Input::Tokens(TokenInput::paper(12, 8));
        config.decoder = Some(StackConfig::paper(input, 1, 8, 2, 8));
        let options = TrainerOptions::paper(8).with_seed(5);
        Learner::new(Parameters::initialise(&config, 3).unwrap(), options).unwrap()
    }

    /// A step of `batches` batches whose loss is half the squares of the weights, moved by the batch's number.
    fn step(learner: &mut Learner, batches: usize) -> StepReport {
        for _ in 0..batches {
            let add = |parameters: &Parameters, batch: u64, gradient: &mut [f32]| {
                let values = parameters.values().iter();
                let offset = 0.01 * batch as f32;
                gradient.iter_mut().zip(values.clone()).for_each(|(g, x)| *g += 2.0 * (x - offset));
                let nll = values.map(|&x| f64::from(x - offset).powi(2)).sum();
                Ok(Loss { smoothed: nll, nll, tokens: 2, correct: 1 })
            };
            learner.accumulate(add).unwrap();
        }
        learner.step((Cpu::detect(), Par::SERIAL)).unwrap()
    }

    #[test]
    fn steps_and_batches_count_and_losses_add_up() {
        let mut learner = learner();
        let first = step(&mut learner, 1);
        assert_eq!((first.step, first.loss.tokens), (1, 2));
        let second = step(&mut learner, 3);
        assert_eq!((second.step, second.loss.tokens, second.loss.correct), (2, 6, 3));
        assert_eq!(learner.counters, Counters { steps: 2, batches: 4 });
        assert_eq!(second.rate, f64::from(learner.options.schedule.rate(2)));
        assert!(learner.gradient.iter().all(|&g| g == 0.0));
        assert!(second.norm > 0.0 && second.seconds >= 0.0);
    }

    #[test]
    fn what_is_not_finite_leaves_no_trace() {
        let (mut learner, mut other) = (learner(), learner());
        step(&mut learner, 2);
        step(&mut other, 2);
        for nll in [f64::NAN, f64::INFINITY] {
            let broken = learner.accumulate(|_, _, gradient| {
                gradient.fill(f32::NAN);
                Ok(Loss { smoothed: 1.0, nll, tokens: 1, correct: 0 })
            });
            assert_eq!(broken.unwrap_err().to_string(), format!("step 2: the loss is {nll}"));
        }
        learner
            .accumulate(|_, _, gradient| {
                gradient[0] = f32::NAN;
                Ok(Loss { smoothed: 1.0, nll: 1.0, tokens: 1, correct: 0 })
            })
            .unwrap();
        assert!(matches!(
            learner.step((Cpu::detect(), Par::SERIAL)),
            Err(Error::NotFinite { step: 2, .. })
        ));
        assert_eq!(learner.parameters, other.parameters);
        assert_eq!((learner.counters.steps, &learner.optimizer.first), (1, &other.optimizer.first));
        assert!(learner.gradient.iter().all(|&g| g == 0.0));
    }

    #[test]
    fn a_restored_learner_goes_on_as_if_nothing_had_happened() {
        let folder = std::env::temp_dir().join(format!("headrow-learner-{}", std::process::id()));
        let mut whole = learner();
        let batches = [1, 2, 1, 3, 1, 1, 2];
        for (done, &count) in batches.iter().enumerate() {
            step(&mut whole, count);
            let path = folder.join(format!("step-{done}"));
            whole.save(&path, &(done as u64), &[]).unwrap();
        }
        for stop in 0..batches.len() {
            let options = TrainerOptions::paper(8).with_dropout(0.5);
            let parameters = learner().parameters;
            let mut resumed = Learner::new(parameters, options).unwrap();
            // Gradients that were not stepped along are no part of a checkpoint.
            resumed.gradient.fill(1.0);
            let state: u64 = resumed.restore(&folder.join(format!("step-{stop}"))).unwrap();
            assert_eq!(state, stop as u64);
            for &count in &batches[stop + 1..] {
                step(&mut resumed, count);
            }
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(resumed.parameters.values()), bits(whole.parameters.values()));
            assert_eq!(bits(&resumed.optimizer.first), bits(&whole.optimizer.first));
            assert_eq!(bits(&resumed.optimizer.second), bits(&whole.optimizer.second));
            assert_eq!((resumed.counters, resumed.options), (whole.counters, whole.options));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_broken_weight_is_named() {
        let mut learner = learner();
        let name = learner.slots[3].name.clone();
        let at = learner.slots[3].place.start;
        learner.parameters.values_mut()[at] = f32::NAN;
        let broken = learner
            .accumulate(|_, _, _| Ok(Loss { smoothed: f64::NAN, nll: 1.0, tokens: 1, correct: 0 }));
        let expected = format!("step 1: a weight of {name} is NaN");
        assert_eq!(broken.unwrap_err().to_string(), expected);
    }

    #[test]
    fn what_is_not_finite_is_not_saved() {
        let folder = std::env::temp_dir().join(format!("headrow-bad-{}", std::process::id()));
        let mut learner = learner();
        learner.parameters.values_mut()[0] = f32::INFINITY;
        let error = learner.save(&folder, &(), &[]).unwrap_err();
        assert!(error.to_string().contains("a weight of"), "{error}");
        learner.parameters.values_mut()[0] = 0.0;
        learner.optimizer.second[0] = f32::INFINITY;
        let error = learner.save(&folder, &(), &[]).unwrap_err();
        assert!(error.to_string().contains("a moment of"), "{error}");
        assert!(!folder.exists());
    }
}
