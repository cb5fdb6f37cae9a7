//! A training from its first step to its last: batches, validation, checkpoints, and what comes out of it.
//!
//! A run has a folder:
//!
//! | | |
//! |---|---|
//! | `checkpoints/step-N/` | the last few checkpoints |
//! | `metrics.jsonl` | a line for every few steps and every validation |
//! | `config.json`, `model.safetensors`, tokenizer, `generation_config.json`, `loss.svg` | the model, once the run has ended |

use super::average::average;
use super::checkpoint::{self, Companion, checkpoints, cut_back, retain};
use super::files::{Seal, replace_file};
use super::log::{LogLine, MetricsLog, TrainLine, ValidationLine};
use super::plot::loss_curve;
use super::{
    BatchOptions, Batches, Dataset, Epoch, Examples, Loss, Order, Parameters, Precision,
    StepReport, Trainer,
};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How long a run is, and what it does beside learning.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunOptions {
    /// Most steps.
    pub steps: Option<u64>,
    /// Most passes over the data.
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

    /// The same with an end after so many passes over the data.
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

    fn check(&self) -> Result<()> {
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

/// What happens to a run whose last checkpoint is damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamagedCheckpoint {
    /// It is an error.
    #[default]
    Refuse,
    /// The one before is taken.
    Skip,
}

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
    /// The step of the last validation.
    validated: u64,
}

/// Some steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Stretch {
    steps: u64,
    loss: Loss,
    seconds: f64,
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
    /// Open while the run trains.
    log: Option<MetricsLog>,
    /// The last line about a step.
    last: Option<StepReport>,
}

impl<'a> Run<'a> {
    /// A run in `folder`, which is made where it is not there. `companions` are the further files of the model's folder by name,
    /// `config.json` among them.
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
            log: None,
            last: None,
        })
    }

    /// The same with data for validation, in batches of as many tokens.
    ///
    /// # Errors
    /// As [`Batches::new`]; [`Error::TrainingOption`] when there is nothing to be predicted in the data.
    pub fn with_validation(mut self, data: &'a Dataset, max_tokens: usize) -> Result<Run<'a>> {
        let options = BatchOptions::new(max_tokens).with_order(Order::Given);
        let epoch = Batches::new(data, options)?.epoch(0);
        let mut predicted = (0..epoch.len()).map(|batch| {
            epoch.fill(batch, &mut self.examples);
            self.examples.predicted()
        });
        if predicted.all(|count| count == 0) {
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

    /// Goes on at the last checkpoint in the run's folder, or at the checkpoint that `at` names; where there is none yet, at the
    /// beginning. Further steps have the bits that they would have had without the interruption. The log and the checkpoints
    /// of later steps are cut off. Returns how many steps are done.
    ///
    /// # Errors
    /// As [`Trainer::restore`]; [`Error::TrainingOption`] when the data or the batches
    /// are not those that the run began with.
    pub fn resume(&mut self, at: Option<&Path>, damaged: DamagedCheckpoint) -> Result<u64> {
        let mut found = match at {
            Some(path) => vec![path.to_owned()],
            None => {
                let found = checkpoints(self.checkpoint_folder())?;
                found.into_iter().map(|(_, path)| path).collect()
            }
        };
        let saved = loop {
            let Some(path) = found.pop() else { return Ok(0) };
            match self.trainer.restore_with::<Saved>(&path) {
                Ok(saved) => break saved,
                Err(_) if damaged == DamagedCheckpoint::Skip && !found.is_empty() => {}
                Err(error) => return Err(error),
            }
        };
        if saved.fingerprint != self.fingerprint {
            let problem = "data or batches are not those that the run began with";
            return Err(Error::training_option("data", problem));
        }
        self.progress = saved.progress;
        self.epoch = self.data.epoch(self.progress.epoch);
        cut_back(&self.checkpoint_folder(), self.trainer.steps())?;
        Ok(self.trainer.steps())
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
        if self.trainer.steps() == 0 && !checkpoints(self.checkpoint_folder())?.is_empty() {
            let problem = "has checkpoints already; resume that run, or take another folder";
            return Err(Error::file(self.folder.display(), problem));
        }
        cut_back(&self.checkpoint_folder(), self.trainer.steps())?;
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
            if self.progress.batch == self.epoch.len() {
                (self.progress.epoch, self.progress.batch) = (self.progress.epoch + 1, 0);
                if self.options.epochs.is_some_and(|most| self.progress.epoch >= most) {
                    break;
                }
                self.epoch = self.data.epoch(self.progress.epoch);
            }
        }
        let report = self.trainer.step()?;
        self.progress.tokens += report.loss.tokens as u64;
        let untold = &mut self.progress.untold;
        untold.steps += 1;
        untold.loss += report.loss;
        untold.seconds += report.seconds;
        self.last = Some(report);
        Ok(report)
    }

    /// Writes the line about the steps since the last one.
    fn tell(&mut self, watch: Watch<'_>) -> Result<()> {
        let (Some(last), untold) = (&self.last, std::mem::take(&mut self.progress.untold)) else {
            return Ok(());
        };
        let line = LogLine::Train(TrainLine {
            step: last.step,
            epoch: self.progress.epoch,
            loss: untold.loss.mean(),
            nll: untold.loss.mean_nll(),
            accuracy: untold.loss.accuracy(),
            tokens: self.progress.tokens,
            rate: last.rate,
            norm: last.norm,
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
        self.progress.validated = step;
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

    fn save(&mut self, watch: Watch<'_>) -> Result<()> {
        let (folder, step) = (self.checkpoint_folder(), self.trainer.steps());
        let path = checkpoint::path(&folder, step);
        let saved = Saved { progress: self.progress, fingerprint: self.fingerprint };
        self.trainer.save_with(&path, &saved, &self.companions)?;
        let keep = self.kept(&checkpoints(&folder)?);
        retain(&folder, &keep)?;
        let _ = watch(Event::Checkpoint(&path));
        Ok(())
    }

    /// The steps of the checkpoints that are kept: of those at whole intervals the last few, the best and the last.
    fn kept(&self, all: &[(u64, PathBuf)]) -> Vec<u64> {
        let steps = all.iter().rev().map(|&(step, _)| step);
        let regular = steps.clone().filter(|step| step.is_multiple_of(self.options.save_every));
        let mut keep: Vec<u64> =
            regular.take(self.options.keep.max(self.options.average)).collect();
        let best = self.progress.best.filter(|_| self.options.patience.is_some());
        keep.extend(steps.take(1).chain(best.map(|(step, _)| step)));
        keep
    }

    /// Tells what is untold, and makes the model.
    fn finish(&mut self, watch: Watch<'_>) -> Result<()> {
        let step = self.trainer.steps();
        if self.progress.untold.steps > 0 {
            self.tell(watch)?;
        }
        if self.progress.validated < step {
            self.validate(watch)?;
        }
        let all = checkpoints(self.checkpoint_folder())?;
        if all.last().is_none_or(|&(last, _)| last < step) {
            self.save(watch)?;
        }
        average(&self.averaged()?, &self.folder, self.options.precision)?;
        self.draw()
    }

    /// The checkpoints that the model is made from: at whole intervals, and the last; where there is patience, the best and
    /// those before.
    fn averaged(&self) -> Result<Vec<PathBuf>> {
        let mut all = checkpoints(self.checkpoint_folder())?;
        let last = match (self.options.patience, self.progress.best) {
            (Some(_), Some((best, _))) => best,
            _ => self.trainer.steps(),
        };
        let regular = |step: u64| step.is_multiple_of(self.options.save_every) || step == last;
        all.retain(|&(step, _)| step <= last && regular(step));
        let skipped = all.len().saturating_sub(self.options.average);
        Ok(all.into_iter().skip(skipped).map(|(_, path)| path).collect())
    }

    fn draw(&self) -> Result<()> {
        let lines = MetricsLog::read(self.log_path())?;
        match lines.is_empty() {
            true => Ok(()),
            false => {
                let name = self.folder.file_name().unwrap_or_default().to_string_lossy();
                let svg = loss_curve(&name, &lines)?;
                replace_file(self.folder.join("loss.svg"), svg.as_bytes())
            }
        }
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
