//! One step after the other: gradients of some batches, then Adam.

mod learner;
mod options;

pub use learner::StepReport;
pub use options::{SmoothingKind, TrainerOptions};

use super::companions::Companion;
use super::{Dropping, Examples, Loss, Network, NetworkOptions, Parameters};
use crate::error::{Error, Result};
use headrow_kernels::par::{MAX_THREADS, default_threads};
use headrow_kernels::{Cpu, Team};
use learner::Learner;
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::path::Path;
use std::sync::Arc;

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

    /// Writes a checkpoint into the folder `folder`: as a whole, or not at all when the process is stopped meanwhile. An older
    /// one of that name is there until the new one is complete; then two renamings follow each other, and whoever stops the
    /// process between them finds both beside `folder`, under names that begin with `.partial-`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::NotFinite`] for weights or moments that are not finite, which no checkpoint takes; [`Error::File`] for a
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

/// Helpers for the network and the optimiser; none when the system refuses threads.
fn pool(threads: usize) -> Option<Arc<ThreadPool>> {
    let helpers = threads.min(MAX_THREADS).checked_sub(1).filter(|&helpers| helpers > 0)?;
    let builder = ThreadPoolBuilder::new().num_threads(helpers);
    builder.thread_name(|i| format!("headrow-{i}")).build().ok().map(Arc::new)
}
