//! Learning a map from pairs (X, Y), by Adam on the mean squared error.

use super::columns::Columns;
use super::map::{SequenceMap, checked};
use super::network::Network;
use super::pass::Walk;
use crate::error::{Error, Result};
use crate::train::{AdamOptions, Optimizer, Schedule, Slot, Update};
use headrow_kernels::{Cpu, Par};

/// A map that learns.
///
/// ```
/// use headrow::theory::yun::FixedWidth;
/// use headrow::theory::{Columns, Fit};
/// use headrow::train::{AdamOptions, Schedule};
///
/// // X ↦ −X, from one pair.
/// let x = Columns::from_fn(2, 3, |i, j| (i + j) as f32);
/// let y = Columns::from_fn(2, 3, |i, j| -((i + j) as f32));
/// let schedule = Schedule::Constant { rate: 0.01, warmup: 0 };
/// let mut fit = Fit::new(FixedWidth::random(2, 1, 1)?, schedule, AdamOptions::default())?;
/// let first = fit.step(&[(x.clone(), y.clone())])?;
/// let later = (0..50).try_fold(first, |_, _| fit.step(&[(x.clone(), y.clone())]))?;
/// assert!(later < first);
/// # Ok::<(), headrow::Error>(())
/// ```
pub struct Fit<M> {
    map: M,
    schedule: Schedule,
    optimizer: Optimizer,
    slots: Vec<Slot>,
    gradient: Vec<f32>,
    walk: Option<Walk>,
    steps: u64,
}

impl<M: SequenceMap> Fit<M> {
    /// Begins with the map as it is.
    ///
    /// # Errors
    /// [`Error::TrainingOption`] for numbers that no training could use.
    pub fn new(map: M, schedule: Schedule, adam: AdamOptions) -> Result<Fit<M>> {
        schedule.check()?;
        adam.check()?;
        let slots = map.network().tensors.iter().map(|tensor| Slot {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            place: tensor.place.clone(),
        });
        let slots: Vec<Slot> = slots.collect();
        let optimizer = Optimizer::new(adam, &slots)?;
        let gradient = vec![0.0; map.parameters().len()];
        Ok(Fit { map, schedule, optimizer, slots, gradient, walk: None, steps: 0 })
    }

    /// Takes a step along the gradient of the mean squared error over these pairs, and returns that error as it was before.
    ///
    /// # Errors
    /// As [`SequenceMap::error`]; [`Error::NotFinite`] when the error or its gradient is NaN or ∞. The map is as it was then.
    pub fn step(&mut self, pairs: &[(Columns, Columns)]) -> Result<f64> {
        let mut walk = checked(self.map.network(), pairs, self.walk.take())?;
        self.gradient.fill(0.0);
        let sum = square_error(self.map.network(), &mut walk, pairs, &mut self.gradient);
        self.walk = Some(walk);
        let (step, count) = (self.steps + 1, entries(pairs));
        if !sum.is_finite() {
            return Err(Error::NotFinite { step, what: "the error".to_owned(), value: sum });
        }
        let (rate, gradient) = (self.schedule.rate(step), &self.gradient);
        let update = Update { step, rate, tokens: count, gradient };
        let on = (Cpu::detect(), Par::SERIAL);
        self.optimizer.update(on, &update, &self.slots, self.map.parameters_mut())?;
        self.steps = step;
        Ok(sum / count as f64)
    }

    /// Steps that are done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The map as it is.
    pub fn map(&self) -> &M {
        &self.map
    }

    /// The map, when it has learned enough.
    pub fn into_map(self) -> M {
        self.map
    }
}

/// Entries of all Y.
pub(super) fn entries(pairs: &[(Columns, Columns)]) -> usize {
    pairs.iter().map(|(_, y)| y.values().len()).sum()
}

/// Σ‖f(X) − Y‖², whose gradient is added to `gradient` unless that is empty.
pub(super) fn square_error(
    network: &Network,
    walk: &mut Walk,
    pairs: &[(Columns, Columns)],
    gradient: &mut [f32],
) -> f64 {
    let found = walk.forward(network, pairs.iter().map(|(x, _)| x));
    let found = (0..found.rows()).flat_map(|j| found.row(j));
    let wanted = pairs.iter().flat_map(|(_, y)| y.values());
    // The entries f(X) − Y, whose doubles are the gradient for f(X).
    let mut d: Vec<f32> = found.zip(wanted).map(|(found, wanted)| found - wanted).collect();
    let sum = d.iter().map(|&d| f64::from(d).powi(2)).sum();
    if !gradient.is_empty() {
        d.iter_mut().for_each(|d| *d *= 2.0);
        walk.backward(network, &mut d, gradient);
    }
    sum
}
