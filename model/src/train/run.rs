//! A training from its first step to its last: batches, validation, checkpoints, and what comes out of it.
//!
//! A run has a folder:
//!
//! | | |
//! |---|---|
//! | `checkpoints/step-N/` | the last few checkpoints |
//! | `metrics.jsonl` | a line for every few steps and every validation |
//! | `config.json`, `model.safetensors`, tokenizer, `generation_config.json`, `loss.svg` | the model, once the run has ended |

mod finish;
mod options;
mod resume;

pub use options::RunOptions;
pub use resume::{DamagedCheckpoint, Resumed};

use super::checkpoint::{Aside, checkpoints};
use super::companions::Companion;
use super::files::Seal;
use super::log::{LogLine, MetricsLog, TrainLine, ValidationLine};
use super::{
    BatchOptions, Batches, Dataset, Epoch, Examples, Loss, Order, Parameters, StepReport, Trainer,
};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// All steps are done.
    Steps,
    /// All passes over the data are done.
    Epochs,
    /// Its time is over.
    Time,
    /// Validation did not improve any more.
    Patience,
    /// Whoever watches wanted it. The run can go on from its last checkpoint; there is no model yet.
    Asked,
}

/// What can be watched.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A step is done.
    Step(&'a StepReport),
    /// A line was written to the log.
    Line(&'a LogLine),
    /// A checkpoint was written.
    Checkpoint(&'a Path),
}

/// Watches a run. Breaking off ends it after the current step, with a checkpoint.
pub type Watch<'a> = &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>;

/// A measure of weights beside the loss, such as BLEU.
pub type Measure<'a> = Box<dyn FnMut(&Parameters) -> Result<f64> + 'a>;

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Progress {
    /// Complete passes over the data.
    epoch: u64,
    /// The next batch of the pass.
    batch: usize,
    /// Predicted tokens of all steps.
    tokens: u64,
    /// Seconds of all stretches.
    seconds: f64,
    /// What the log has not told yet.
    untold: Stretch,
    /// The step of the least loss in validation, and that loss.
    best: Option<(u64, f64)>,
    /// Validations since.
    in_vain: u64,
}

/// Some steps, and the rate and the norm of the last of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Stretch {
    steps: u64,
    loss: Loss,
    seconds: f64,
    rate: f64,
    norm: f64,
}

/// What a checkpoint of a run has beside a trainer's.
#[derive(Serialize, Deserialize)]
struct Saved {
    progress: Progress,
    /// Of data and batches.
    fingerprint: u64,
}

/// A training in a folder.
///
/// ```no_run
/// use headrow::train::{
///     BatchOptions, Corpus, DataOptions, Dataset, DatasetOptions, NetworkOptions, Parameters, Run, RunOptions, Task, Trainer,
///     TrainerOptions, VocabularyOptions, vocabulary,
/// };
/// use headrow::{Config, Tokenizer};
/// use std::ops::ControlFlow;
///
/// let corpus = Corpus::read(&["train.tsv"], &DataOptions::default())?;
/// let file = vocabulary(corpus.texts(), &VocabularyOptions::words())?;
/// let tokenizer = Tokenizer::from_bytes(&file)?;
/// let dataset = Dataset::new(&corpus, &tokenizer, &DatasetOptions::new(Task::Translation))?;
/// let mut config = Config::base(tokenizer.vocabulary(), tokenizer.vocabulary());
/// config.special.decoder_start = tokenizer.id("<s>");
/// config.special.end = tokenizer.id("</s>").into_iter().collect();
///
/// let parameters = Parameters::initialise(&config, 1)?;
/// let trainer = Trainer::new(parameters, &NetworkOptions::default(), TrainerOptions::paper(config.d_model))?;
/// let files = vec![("config.json".to_owned(), config.to_json()?.into_bytes()), ("tokenizer.json".to_owned(), file)];
/// let options = RunOptions::default().with_steps(10_000);
/// let mut run = Run::new("run", trainer, &dataset, BatchOptions::new(4000), files, options)?;
/// run.train(&mut |_| ControlFlow::Continue(()))?;
/// # Ok::<(), headrow::Error>(())
/// ```
pub struct Run<'a> {
    folder: PathBuf,
    trainer: Trainer,
    options: RunOptions,
    data: Batches<'a>,
    epoch: Epoch<'a>,
    fingerprint: u64,
    validation: Option<Epoch<'a>>,
    measure: Option<Measure<'a>>,
    companions: Vec<Companion>,
    examples: Examples,
    progress: Progress,
    resumed: bool,
    /// Checkpoints that make way when the run trains.
    aside: Vec<(PathBuf, Aside)>,
    /// Open while the run trains.
    log: Option<MetricsLog>,
}

impl<'a> Run<'a> {
    /// A run in `folder`, which is made where it is not there. `companions` are the further files of the model's folder by name,
    /// `config.json` among them: what [`companions`](super::companions()) reads where the run begins with a model.
    ///
    /// # Errors
    /// [`Error::TrainingOption`]; [`Error::Io`]; [`Error::File`] when the folder has a log that is none.
    pub fn new(
        folder: impl AsRef<Path>,
        trainer: Trainer,
        data: &'a Dataset,
        batches: BatchOptions,
        companions: Vec<(String, Vec<u8>)>,
        options: RunOptions,
    ) -> Result<Run<'a>> {
        options.check()?;
        let folder = folder.as_ref().to_owned();
        std::fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        let fingerprint = fingerprint(data, &batches, options.accumulate);
        let data = Batches::new(data, batches)?;
        Ok(Run {
            folder,
            trainer,
            options,
            epoch: data.epoch(0),
            data,
            fingerprint,
            validation: None,
            measure: None,
            companions,
            examples: Examples::default(),
            progress: Progress::default(),
            resumed: false,
            aside: Vec::new(),
            log: None,
        })
    }

    /// The same with data for validation, in batches of as many tokens.
    ///
    /// # Errors
    /// As [`Batches::new`]; [`Error::TrainingOption`] when there is nothing to be predicted in the data.
    pub fn with_validation(mut self, data: &'a Dataset, max_tokens: usize) -> Result<Run<'a>> {
        let options = BatchOptions::new(max_tokens).with_order(Order::Given);
        let epoch = Batches::new(data, options)?.epoch(0);
        if !epoch.predicts() {
            return Err(Error::training_option("validation", "no token of it is predicted"));
        }
        self.validation = Some(epoch);
        Ok(self)
    }

    /// The same with another measure in validation, which the log calls BLEU.
    #[must_use]
    pub fn with_measure(self, measure: Measure<'a>) -> Run<'a> {
        Run { measure: Some(measure), ..self }
    }

    /// The trainer.
    pub fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    /// Learns until the run ends. Then the model is in the run's folder, unless the end was [`Ended::Asked`] for.
    ///
    /// # Errors
    /// [`Error::File`] when a run that was not resumed has checkpoints already; as [`Trainer::accumulate`] and
    /// [`Trainer::step`], above all [`Error::NotFinite`]: the last checkpoint is still there then; [`Error::Io`].
    pub fn train(&mut self, watch: Watch<'_>) -> Result<Ended> {
        let begins = !self.resumed && self.trainer.steps() == 0;
        if begins && !checkpoints(self.checkpoint_folder())?.is_empty() {
            let problem = "has checkpoints already; resume that run, or take another folder";
            return Err(Error::file(self.folder.display(), problem));
        }
        self.clear_the_way()?;
        self.log = Some(MetricsLog::open(self.log_path(), self.trainer.steps())?);
        let (clock, before) = (Instant::now(), self.progress.seconds);
        loop {
            if let Some(ended) = self.ended() {
                self.finish(watch)?;
                return Ok(ended);
            }
            let report = self.step()?;
            self.progress.seconds = before + clock.elapsed().as_secs_f64();
            let asked = watch(Event::Step(&report)).is_break();
            let due = |every: u64| report.step.is_multiple_of(every);
            if due(self.options.log_every) {
                self.tell(watch)?;
            }
            let best = due(self.options.validate_every) && self.validate(watch)?;
            self.progress.seconds = before + clock.elapsed().as_secs_f64();
            if due(self.options.save_every) || best && self.options.patience.is_some() || asked {
                self.save(watch)?;
            }
            if asked && self.ended().is_none() {
                return Ok(Ended::Asked);
            }
        }
    }

    fn ended(&self) -> Option<Ended> {
        let RunOptions { steps, epochs, seconds, patience, .. } = self.options;
        let progress = &self.progress;
        if patience.is_some_and(|most| progress.in_vain >= most) {
            Some(Ended::Patience)
        } else if steps.is_some_and(|most| self.trainer.steps() >= most) {
            Some(Ended::Steps)
        } else if epochs.is_some_and(|most| progress.epoch >= most) {
            Some(Ended::Epochs)
        } else if seconds.is_some_and(|most| progress.seconds >= most) {
            Some(Ended::Time)
        } else {
            None
        }
    }

    fn step(&mut self) -> Result<StepReport> {
        for _ in 0..self.options.accumulate {
            self.epoch.fill(self.progress.batch, &mut self.examples);
            self.trainer.accumulate(&self.examples)?;
            self.progress.batch += 1;
            // A step goes on into the next pass, also behind the last: none is shorter than it would be in a longer run.
            if self.progress.batch == self.epoch.len() {
                (self.progress.epoch, self.progress.batch) = (self.progress.epoch + 1, 0);
                self.epoch = self.data.epoch(self.progress.epoch);
            }
        }
        let report = self.trainer.step()?;
        self.progress.tokens += report.loss.tokens as u64;
        let untold = &mut self.progress.untold;
        untold.steps += 1;
        untold.loss += report.loss;
        untold.seconds += report.seconds;
        (untold.rate, untold.norm) = (report.rate, report.norm);
        Ok(report)
    }

    /// Writes the line about the steps since the last one.
    fn tell(&mut self, watch: Watch<'_>) -> Result<()> {
        let untold = std::mem::take(&mut self.progress.untold);
        let line = LogLine::Train(TrainLine {
            step: self.trainer.steps(),
            epoch: self.progress.epoch,
            loss: untold.loss.mean(),
            nll: untold.loss.mean_nll(),
            accuracy: untold.loss.accuracy(),
            tokens: self.progress.tokens,
            rate: untold.rate,
            norm: untold.norm,
            tokens_per_second: untold.loss.tokens as f64 / untold.seconds,
            seconds: self.progress.seconds,
        });
        self.write(&line, watch)
    }

    /// Whether the loss on validation data is less than ever.
    fn validate(&mut self, watch: Watch<'_>) -> Result<bool> {
        let Some(validation) = &self.validation else { return Ok(false) };
        let mut loss = Loss::default();
        for batch in 0..validation.len() {
            validation.fill(batch, &mut self.examples);
            loss += self.trainer.evaluate(&self.examples)?;
        }
        let step = self.trainer.steps();
        if !loss.smoothed.is_finite() {
            let (what, value) = ("the loss of validation".to_owned(), loss.smoothed);
            return Err(Error::NotFinite { step, what, value });
        }
        let measure = self.measure.as_mut();
        let bleu = measure.map(|measure| measure(self.trainer.parameters())).transpose()?;
        let line = ValidationLine {
            step,
            loss: loss.mean(),
            nll: loss.mean_nll(),
            perplexity: loss.perplexity(),
            accuracy: loss.accuracy(),
            bleu,
            seconds: self.progress.seconds,
        };
        let best = self.progress.best.is_none_or(|(_, least)| line.loss < least);
        match best {
            true => (self.progress.best, self.progress.in_vain) = (Some((step, line.loss)), 0),
            false => self.progress.in_vain += 1,
        }
        self.write(&LogLine::Validation(line), watch)?;
        Ok(best)
    }

    fn write(&mut self, line: &LogLine, watch: Watch<'_>) -> Result<()> {
        self.log.as_mut().map_or(Ok(()), |log| log.add(line))?;
        // Only steps are places to stop at.
        let _ = watch(Event::Line(line));
        Ok(())
    }

    fn checkpoint_folder(&self) -> PathBuf {
        self.folder.join("checkpoints")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("metrics.jsonl")
    }
}

/// Tells data and batches from others.
fn fingerprint(data: &Dataset, batches: &BatchOptions, accumulate: usize) -> u64 {
    let mut seal = Seal::EMPTY;
    for side in [&data.sources, &data.targets] {
        side.offsets().iter().for_each(|offset| seal.add(&offset.to_le_bytes()));
        side.ids().iter().for_each(|id| seal.add(&id.to_le_bytes()));
    }
    seal.add(format!("{:?} {batches:?} {accumulate}", data.task()).as_bytes());
    seal.checksum
}
