//! Which checkpoints a run keeps, and what it makes of them at its end.

use super::{Event, Run, Saved, Watch};
use crate::error::Result;
use crate::train::average::average;
use crate::train::checkpoint::{self, checkpoints, retain};
use crate::train::files::replace_file;
use crate::train::log::{LogLine, MetricsLog};
use crate::train::plot::loss_curve;
use std::path::PathBuf;

impl Run<'_> {
    pub(super) fn save(&mut self, watch: Watch<'_>) -> Result<()> {
        let (folder, step) = (self.checkpoint_folder(), self.trainer.steps());
        let path = checkpoint::path(&folder, step);
        let saved = Saved { progress: self.progress, fingerprint: self.fingerprint };
        self.trainer.save_with(&path, &saved, &self.companions)?;
        checkpoint::forget_aside(&path)?;
        let keep = self.kept(&checkpoints(&folder)?)?;
        retain(&folder, &keep)?;
        let _ = watch(Event::Checkpoint(&path));
        Ok(())
    }

    /// The steps of the checkpoints that are kept: of those at whole intervals the last few, the best and the last.
    fn kept(&self, all: &[(u64, PathBuf)]) -> Result<Vec<u64>> {
        let steps = all.iter().rev().map(|&(step, _)| step);
        let regular = steps.clone().filter(|step| step.is_multiple_of(self.options.save_every));
        let mut keep: Vec<u64> =
            regular.take(self.options.keep.max(self.options.average)).collect();
        keep.extend(steps.take(1).chain(self.best(all)?));
        Ok(keep)
    }

    /// Of the checkpoints that are there the one with the least loss in validation; `None` in a run without patience.
    ///
    /// A run may be given patience when it is resumed: the step of the least loss of all may have no checkpoint any more. A
    /// validation at what once was the end counts no more when the run goes on, as it would not be in a longer run.
    fn best(&self, all: &[(u64, PathBuf)]) -> Result<Option<u64>> {
        if self.options.patience.is_none() {
            return Ok(None);
        }
        let every = self.options.validate_every;
        let counts = |step: u64| step.is_multiple_of(every) || step == self.trainer.steps();
        let there = |step: u64| all.iter().any(|&(other, _)| other == step);
        let lines = MetricsLog::read(self.log_path())?.into_iter();
        let losses = lines.filter_map(|line| match line {
            LogLine::Validation(line) if counts(line.step) && there(line.step) => {
                Some((line.step, line.loss))
            }
            _ => None,
        });
        Ok(losses.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(step, _)| step))
    }

    /// Saves, tells what is untold, and makes the model. Whatever of it is done already stays as it is, and the checkpoint is
    /// the one that a longer run would have written.
    pub(super) fn finish(&mut self, watch: Watch<'_>) -> Result<()> {
        let step = self.trainer.steps();
        if !checkpoint::path(&self.checkpoint_folder(), step).exists() {
            self.save(watch)?;
        }
        let lines = MetricsLog::read(self.log_path())?;
        let mut told = lines.iter().filter(|line| line.step() == step);
        let trained = told.clone().any(|line| matches!(line, LogLine::Train(_)));
        let validated = told.any(|line| matches!(line, LogLine::Validation(_)));
        if self.progress.untold.steps > 0 && !trained {
            self.tell(watch)?;
        }
        if !validated {
            self.validate(watch)?;
        }
        average(&self.averaged()?, &self.folder, self.options.precision)?;
        self.draw()
    }

    /// The checkpoints that the model is made from: at whole intervals, and the last; where there is patience, the best and
    /// those before.
    fn averaged(&self) -> Result<Vec<PathBuf>> {
        let mut all = checkpoints(self.checkpoint_folder())?;
        let last = self.best(&all)?.unwrap_or(self.trainer.steps());
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
