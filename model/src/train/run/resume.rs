//! How a run goes on at a checkpoint.

use super::{Run, Saved};
use crate::error::{Error, Result};
use crate::train::checkpoint::{Aside, checkpoints, is_damage, set_aside};
use crate::train::files::sweep;
use std::path::{Path, PathBuf};

/// What happens to a run whose last checkpoint is damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamagedCheckpoint {
    /// It is an error.
    #[default]
    Refuse,
    /// The one before is taken. Only damage is passed over: a file that is cut off, changed or missing, not one that cannot be
    /// read for other reasons.
    Skip,
}

/// Where a run goes on.
///
/// What is named here keeps its place until the run trains. It then gets a name that ends in `.damaged` or `.later`, until the run
/// comes to the same step and writes its checkpoint anew.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Resumed {
    /// Steps that are done.
    pub steps: u64,
    /// Damaged checkpoints that were passed over, the last first, and what is wrong with each.
    pub damaged: Vec<(PathBuf, Error)>,
    /// Checkpoints of later steps, the last first.
    pub later: Vec<PathBuf>,
}

impl Run<'_> {
    /// Goes on at the last checkpoint in the run's folder, or at the checkpoint that `at` names; where there is none yet, at the
    /// beginning. Further steps have the bits that they would have had without the interruption. Nothing in the folder changes
    /// before [`Run::train`], which cuts the log back to the step that goes on.
    ///
    /// # Errors
    /// As [`Trainer::restore`](crate::train::Trainer::restore); [`Error::TrainingOption`] when the data or the batches
    /// are not those that the run began with.
    pub fn resume(&mut self, at: Option<&Path>, damaged: DamagedCheckpoint) -> Result<Resumed> {
        let all = checkpoints(self.checkpoint_folder())?;
        let mut candidates = match at {
            Some(path) => vec![path.to_owned()],
            None => all.iter().map(|(_, path)| path.clone()).collect(),
        };
        let mut resumed = Resumed::default();
        let saved = loop {
            let Some(path) = candidates.pop() else { return Ok(resumed) };
            let skip = damaged == DamagedCheckpoint::Skip && !candidates.is_empty();
            match self.trainer.restore_with::<Saved>(&path) {
                Ok(saved) => break saved,
                Err(error) if skip && is_damage(&error) => resumed.damaged.push((path, error)),
                Err(error) => return Err(error),
            }
        };
        if saved.fingerprint != self.fingerprint {
            let problem = "data or batches are not those that the run began with";
            return Err(Error::training_option("data", problem));
        }
        self.progress = saved.progress;
        self.epoch = self.data.epoch(self.progress.epoch);
        self.resumed = true;
        resumed.steps = self.trainer.steps();
        let broken = |path: &PathBuf| resumed.damaged.iter().any(|(other, _)| other == path);
        let later = all.into_iter().rev().filter(|(step, _)| *step > resumed.steps);
        resumed.later = later.map(|(_, path)| path).filter(|path| !broken(path)).collect();
        let aside = resumed.damaged.iter().map(|(path, _)| (path.clone(), Aside::Damaged));
        self.aside = aside.collect();
        self.aside.extend(resumed.later.iter().map(|path| (path.clone(), Aside::Later)));
        Ok(resumed)
    }

    /// Makes the folder that of a run at this step.
    pub(super) fn clear_the_way(&mut self) -> Result<()> {
        sweep(&self.checkpoint_folder())?;
        self.aside.drain(..).try_for_each(|(path, aside)| set_aside(&path, aside))
    }
}
