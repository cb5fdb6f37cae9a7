//! What the layers of a stack share in a pass of training.

use crate::attention::Pass;
use headrow_kernels::{Dropout, MatMut};
use std::ops::Deref;

/// A pass, the parameters that it computes from, and what is dropped in it.
#[derive(Clone, Copy)]
pub(crate) struct TrainingPass<'a> {
    pub(crate) pass: Pass<'a>,
    pub(crate) parameters: &'a [f32],
    pub(crate) masks: Option<Masks>,
    /// Which tokens others see; `None`: all.
    pub(crate) keys: Option<&'a [bool]>,
}

impl<'a> Deref for TrainingPass<'a> {
    type Target = Pass<'a>;

    fn deref(&self) -> &Pass<'a> {
        &self.pass
    }
}

/// What is dropped in a pass: at each place of the model by a mask of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Masks {
    pub(crate) rate: f32,
    pub(crate) seed: u64,
    /// The number of the pass.
    pub(crate) step: u64,
    /// The side's number.
    pub(crate) side: u64,
}

/// More masks than a side has in one pass.
const MASKS: u64 = 1 << 20;

impl TrainingPass<'_> {
    /// The dropout of place `mask` of this side; `None` when nothing is dropped.
    pub(crate) fn dropout(&self, mask: u64) -> Option<Dropout> {
        let Masks { rate, seed, step, side } = self.masks?;
        let counter = step.wrapping_mul(2).wrapping_add(side).wrapping_mul(MASKS);
        Some(Dropout::new(rate, seed, counter.wrapping_add(mask)))
    }
}

/// Where a way back leads: to the gradient of what was read, and to those of the parameters, which are added to.
pub(crate) struct Back<'g> {
    pub(crate) d: MatMut<'g>,
    pub(crate) gradients: &'g mut [f32],
}

/// Bytes of a buffer.
pub(crate) fn grown<T>(buffer: &Vec<T>) -> usize {
    buffer.capacity() * size_of::<T>()
}
