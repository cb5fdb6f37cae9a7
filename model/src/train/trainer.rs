//! One step after the other: gradients of some batches, then Adam.

use super::checkpoint::{self, Companion, Slot, Vectors};
use super::claims::Claims;
use super::optimizer::{AdamOptions, Optimizer, Update, not_finite};
use super::{
    Dropping, Examples, Goal, Loss, Network, NetworkOptions, Objective, Parameters, Schedule,
    Smoothing,
};
use crate::error::{Error, Result};
use headrow_kernels::par::{MAX_THREADS, default_threads};
use headrow_kernels::{Cpu, Par, Team};
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

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

    fn objective(&self) -> Objective {
        let epsilon = self.smoothing as f32;
        let smoothing = match self.smoothing_kind {
            _ if epsilon == 0.0 => Smoothing::None,
            SmoothingKind::All => Smoothing::All(epsilon),
            SmoothingKind::Others => Smoothing::Others(epsilon),
        };
        Objective::default().with_goal(self.goal).with_smoothing(smoothing)
    }
}

/// How far a trainer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counters {
    /// Steps that are done.
    steps: u64,
    /// Batches whose gradients were computed: each has a dropout of its own.
    batches: u64,
}

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

/// The state of a training without what computes its gradients.
struct Learner {
    options: TrainerOptions,
    parameters: Parameters,
    slots: Vec<Slot>,
    optimizer: Optimizer,
    /// Of the sum over the tokens of `loss`.
    gradient: Vec<f32>,
    loss: Loss,
    /// When the first batch of the step came.
    begun: Option<Instant>,
    counters: Counters,
}

impl Learner {
    fn new(parameters: Parameters, options: TrainerOptions) -> Result<Learner> {
        options.check()?;
        let slots = slots(&parameters);
        let optimizer = Optimizer::new(options.adam, &slots)?;
        let gradient = Claims::taking().zeros(parameters.values().len(), 1)?;
        let (loss, counters) = (Loss::default(), Counters::default());
        Ok(Learner { options, parameters, slots, optimizer, gradient, loss, begun: None, counters })
    }

    /// Adds a batch whose gradient `add` adds to that of the step. It is given the weights and the batch's number.
    fn accumulate(
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

    fn step(&mut self, on: (Cpu, Par<'_>)) -> Result<StepReport> {
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
    fn bytes(&self) -> usize {
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

    fn save<S: Serialize>(&self, folder: &Path, state: &S, companions: &[Companion]) -> Result<()> {
        self.check_weights(self.counters.steps)?;
        let Learner { options, optimizer, parameters, counters, slots, .. } = self;
        let state = Saved { options: *options, counters: *counters, more: state };
        let vectors = optimizer.vectors(parameters.values());
        checkpoint::save(folder, slots, vectors, &state, companions)
    }

    fn restore<S: DeserializeOwned>(&mut self, folder: &Path) -> Result<S> {
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
        let values = self.parameters.values();
        match values.iter().all(|x| x.is_finite()) {
            true => Ok(()),
            false => Err(not_finite(step, "a weight", values, &self.slots)),
        }
    }
}

/// A model that learns.
///
/// ```
/// use headrow::train::{Examples, NetworkOptions, Parameters, Trainer, TrainerOptions};
/// use headrow::{Config, Input, StackConfig, TokenInput};
///
/// let mut config = Config::general(16);
/// config.decoder = Some(StackConfig::paper(Input::Tokens(TokenInput::paper(50, 16)), 1, 16, 2, 32));
/// let parameters = Parameters::initialise(&config, 1)?;
/// let mut trainer = Trainer::new(parameters, &NetworkOptions::default(), TrainerOptions::paper(16))?;
/// let mut examples = Examples::default();
/// examples.targets.push([1, 7, 8]);
/// examples.labels = vec![Some(7), Some(8), Some(2)];
/// trainer.accumulate(&examples)?;
/// let report = trainer.step()?;
/// assert_eq!((report.step, report.loss.tokens), (1, 3));
/// # Ok::<(), headrow::Error>(())
/// ```
pub struct Trainer {
    learner: Learner,
    network: Network,
    team: Team,
    cpu: Cpu,
}

impl Trainer {
    /// A trainer that begins with these parameters.
    ///
    /// # Errors
    /// [`Error::TrainingOption`]; as [`Network::for_parameters`].
    pub fn new(
        parameters: Parameters,
        network: &NetworkOptions,
        options: TrainerOptions,
    ) -> Result<Trainer> {
        options.check()?;
        let threads = network.threads.unwrap_or_else(default_threads);
        let pool = network.pool.clone().or_else(|| pool(threads));
        let team = match &pool {
            Some(pool) => Team::with_pool(Arc::clone(pool), threads),
            None => Team::new(1),
        };
        let cpu = match network.isa {
            Some(isa) => Cpu::with_isa(isa).ok_or(Error::Isa(isa))?,
            None => Cpu::detect(),
        };
        let sizes = network.clone().with_pool(pool).with_threads(threads);
        // The gradient and two moments.
        let vectors = size_of_val(parameters.values()).saturating_mul(3);
        let network = Network::beside(&parameters, &sizes, vectors)?;
        let learner = Learner::new(parameters, options)?;
        Ok(Trainer { learner, network, team, cpu })
    }

    /// Adds the gradient of a batch to that of the step, and returns its loss.
    ///
    /// # Errors
    /// As [`Network::accumulate`]; [`Error::NotFinite`] when the loss is NaN or ∞. What was added to the step is forgotten
    /// then; weights and moments are as the step before left them.
    pub fn accumulate(&mut self, examples: &Examples) -> Result<Loss> {
        let (network, options) = (&mut self.network, self.learner.options);
        let objective = options.objective();
        self.learner.accumulate(|parameters, batch, gradient| {
            let dropping = Dropping::new(options.dropout as f32, options.seed, batch);
            network.accumulate(parameters, examples, &objective, Some(dropping), gradient)
        })
    }

    /// Takes a step along the mean gradient over all predicted tokens of the batches since the last one.
    ///
    /// # Errors
    /// [`Error::NotFinite`] when the gradient has NaN or ∞, as with [`Trainer::accumulate`].
    pub fn step(&mut self) -> Result<StepReport> {
        let Trainer { learner, team, cpu, .. } = self;
        team.open(|par| learner.step((*cpu, par)))
    }

    /// The loss on a batch, without dropout and without learning from it.
    ///
    /// # Errors
    /// As [`Network::evaluate`].
    pub fn evaluate(&mut self, examples: &Examples) -> Result<Loss> {
        let objective = self.learner.options.objective();
        self.network.evaluate(&self.learner.parameters, examples, &objective)
    }

    /// Steps that are done.
    pub fn steps(&self) -> u64 {
        self.learner.counters.steps
    }

    /// Bytes of the weights, the gradient, the optimiser's moments and the network's buffers. Steps on one thread allocate
    /// nothing else.
    pub fn memory(&self) -> usize {
        self.learner.bytes() + self.network.memory()
    }

    /// The weights as they are.
    pub fn parameters(&self) -> &Parameters {
        &self.learner.parameters
    }

    /// The options.
    pub fn options(&self) -> &TrainerOptions {
        &self.learner.options
    }

    /// Writes a checkpoint into the folder `folder`: as a whole, or not at all when the process is stopped meanwhile.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::NotFinite`] for weights that are not finite, which no checkpoint takes; [`Error::File`] for a
    /// folder that has other things in it than a checkpoint, which is left as it is.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let companions = match self.parameters().config().to_json() {
            Ok(config) => vec![("config.json".to_owned(), config.into_bytes())],
            // Of another family, whose folder has a config of its own.
            Err(_) => Vec::new(),
        };
        self.save_with(folder.as_ref(), &(), &companions)
    }

    /// Writes a checkpoint with further state and what else a model folder has.
    pub(super) fn save_with<S: Serialize>(
        &self,
        folder: &Path,
        state: &S,
        companions: &[Companion],
    ) -> Result<()> {
        self.learner.save(folder, state, companions)
    }

    /// Goes on at a checkpoint of the same model: with its weights, moments, counters and options. Further steps have the bits
    /// that they would have had without the interruption.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::File`], [`Error::Weights`] for a checkpoint that is damaged or of another model; the trainer is
    /// as it was then.
    pub fn restore(&mut self, folder: impl AsRef<Path>) -> Result<()> {
        self.restore_with::<IgnoredAny>(folder.as_ref()).map(drop)
    }

    pub(super) fn restore_with<S: DeserializeOwned>(&mut self, folder: &Path) -> Result<S> {
        self.learner.restore(folder)
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

/// Helpers for the network and the optimiser; none when the system refuses threads.
fn pool(threads: usize) -> Option<Arc<ThreadPool>> {
    let helpers = threads.min(MAX_THREADS).checked_sub(1).filter(|&helpers| helpers > 0)?;
    let builder = ThreadPoolBuilder::new().num_threads(helpers);
    builder.thread_name(|i| format!("headrow-{i}")).build().ok().map(Arc::new)
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
    fn weights_that_are_not_finite_are_not_saved() {
        let folder = std::env::temp_dir().join(format!("headrow-bad-{}", std::process::id()));
        let mut learner = learner();
        learner.parameters.values_mut()[0] = f32::INFINITY;
        let error = learner.save(&folder, &(), &[]).unwrap_err();
        assert!(error.to_string().contains("a weight of"), "{error}");
        assert!(!folder.exists());
    }
}
