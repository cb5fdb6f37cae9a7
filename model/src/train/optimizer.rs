//! Adam over the vector of all parameters (§5.3), with the gradient's norm held in bounds.

use super::checkpoint::{Slot, Vectors};
use super::claims::Claims;
use crate::error::{Error, Result};
use headrow_kernels::{Adam, Cpu, Par, adam, sum_of_squares};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Adam's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AdamOptions {
    /// β₁: how much of the mean gradient a step keeps.
    pub beta1: f64,
    /// β₂: how much of the mean square a step keeps.
    pub beta2: f64,
    /// ε, added behind the bias-corrected root.
    pub epsilon: f64,
    /// λ: besides, a step takes rate · λ of each weight of a matrix away (AdamW). Biases and norms are left alone.
    pub weight_decay: f64,
    /// The largest norm of the mean gradient; a larger one is scaled down to it. `None` for any.
    pub clip: Option<f64>,
}

impl Default for AdamOptions {
    /// The paper's: β₁ = 0.9, β₂ = 0.98, ε = 10⁻⁹, no decay, no clipping.
    fn default() -> AdamOptions {
        AdamOptions { beta1: 0.9, beta2: 0.98, epsilon: 1e-9, weight_decay: 0.0, clip: None }
    }
}

impl AdamOptions {
    /// The same with this decay of weights.
    #[must_use]
    pub fn with_weight_decay(self, weight_decay: f64) -> AdamOptions {
        AdamOptions { weight_decay, ..self }
    }

    /// The same with this largest norm.
    #[must_use]
    pub fn with_clip(self, clip: impl Into<Option<f64>>) -> AdamOptions {
        AdamOptions { clip: clip.into(), ..self }
    }

    /// Refuses numbers that no training could use.
    ///
    /// # Errors
    /// [`Error::TrainingOption`].
    pub fn check(&self) -> Result<()> {
        let refused = |field, problem| Err(Error::training_option(field, problem));
        for (field, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return refused(field, "must be at least 0 and below 1");
            }
        }
        if !(self.epsilon.is_finite() && self.epsilon >= f64::from(f32::MIN_POSITIVE)) {
            return refused("epsilon", "must be above 0 and finite");
        }
        if !(self.weight_decay.is_finite() && self.weight_decay >= 0.0) {
            return refused("weight_decay", "must be finite and not below 0");
        }
        match self.clip {
            Some(clip) if !(clip.is_finite() && clip > 0.0) => {
                refused("clip", "must be above 0 and finite")
            }
            _ => Ok(()),
        }
    }
}

/// Adam with what it remembers.
#[derive(Debug)]
pub(crate) struct Optimizer {
    options: AdamOptions,
    /// Stretches of the vector whose weights decay, or not, alike.
    stretches: Vec<(Range<usize>, bool)>,
    pub(super) first: Vec<f32>,
    pub(super) second: Vec<f32>,
}

/// What a step is given.
pub(crate) struct Update<'a> {
    /// The step, counted from 1.
    pub(crate) step: u64,
    pub(crate) rate: f32,
    /// What the gradient is divided by: predicted tokens, or other terms of the loss.
    pub(crate) tokens: usize,
    /// The gradient of a sum over the tokens.
    pub(crate) gradient: &'a [f32],
}

impl Optimizer {
    /// With nothing to remember yet.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn new(options: AdamOptions, slots: &[Slot]) -> Result<Optimizer> {
        let size = slots.last().map_or(0, |slot| slot.place.end);
        let mut claims = Claims::taking();
        let (first, second) = (claims.zeros(size, 1)?, claims.zeros(size, 1)?);
        Ok(Optimizer::going_on(options, slots, first, second))
    }

    /// With these means of gradients and of their squares.
    pub(super) fn going_on(
        options: AdamOptions,
        slots: &[Slot],
        first: Vec<f32>,
        second: Vec<f32>,
    ) -> Optimizer {
        let mut stretches: Vec<(Range<usize>, bool)> = Vec::new();
        for slot in slots {
            let decays = options.weight_decay > 0.0 && slot.shape.len() > 1;
            match stretches.last_mut() {
                Some((place, same)) if *same == decays => place.end = slot.place.end,
                _ => stretches.push((slot.place.clone(), decays)),
            }
        }
        Optimizer { options, stretches, first, second }
    }

    /// Changes the weights, and returns the norm of the mean gradient before it was clipped.
    ///
    /// # Errors
    /// [`Error::NotFinite`] naming the first tensor whose gradient has NaN or ∞; nothing is changed then.
    pub(crate) fn update(
        &mut self,
        (cpu, par): (Cpu, Par<'_>),
        update: &Update<'_>,
        slots: &[Slot],
        weights: &mut [f32],
    ) -> Result<f64> {
        let &Update { step, rate, tokens, gradient } = update;
        let squares = sum_of_squares(cpu, par, gradient);
        if !squares.is_finite() {
            return Err(not_finite(step, "the gradient", gradient, slots));
        }
        // Without a token there is no gradient.
        let mean = 1.0 / tokens.max(1) as f64;
        let norm = squares.sqrt() * mean;
        let held =
            self.options.clip.map_or(1.0, |clip| if norm > clip { clip / norm } else { 1.0 });
        let factor = (held * mean) as f32;
        for (place, decays) in &self.stretches {
            let kernel = self.kernel(*decays);
            let (first, second) = (&mut self.first[place.clone()], &mut self.second[place.clone()]);
            let (gradient, weights) = (&gradient[place.clone()], &mut weights[place.clone()]);
            adam(cpu, par, &kernel, step, rate, factor, gradient, first, second, weights);
        }
        Ok(norm)
    }

    fn kernel(&self, decays: bool) -> Adam {
        let AdamOptions { beta1, beta2, epsilon, weight_decay, .. } = self.options;
        let mut kernel = Adam::default();
        (kernel.beta1, kernel.beta2, kernel.epsilon) = (beta1, beta2, epsilon);
        kernel.weight_decay = if decays { weight_decay } else { 0.0 };
        kernel
    }

    pub(super) fn vectors<'a>(&'a self, weights: &'a [f32]) -> Vectors<&'a [f32]> {
        Vectors { weights, first: &self.first, second: &self.second }
    }
}

/// The first number that is NaN or ∞, by its tensor.
pub(super) fn not_finite(step: u64, what: &str, values: &[f32], slots: &[Slot]) -> Error {
    let found = values.iter().enumerate().find(|(_, x)| !x.is_finite());
    let (index, value) = found.map_or((0, f64::NAN), |(index, &x)| (index, f64::from(x)));
    let slot = slots.iter().find(|slot| slot.place.contains(&index));
    let name = slot.map_or("nothing", |slot| &slot.name);
    Error::NotFinite { step, what: format!("{what} of {name}"), value }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A matrix, a vector, and two matrices.
    fn slots() -> Vec<Slot> {
        let (mut end, shapes) = (0, [vec![5, 3], vec![7], vec![2, 2], vec![3, 9]]);
        let slot = |(index, shape): (usize, Vec<usize>)| {
            let begin = end;
            end += shape.iter().product::<usize>();
            Slot { name: format!("tensor {index}"), shape, place: begin..end }
        };
        shapes.into_iter().enumerate().map(slot).collect()
    }

    fn wave(step: u64, index: usize) -> f64 {
        f64::from((step as f32 * 1.7 + index as f32 * 0.61).sin())
    }

    /// Adam as its paper writes it, in f64, with the decay of AdamW for matrices and the norm held in bounds.
    struct Formula {
        weights: Vec<f64>,
        first: Vec<f64>,
        second: Vec<f64>,
    }

    impl Formula {
        fn step(&mut self, options: &AdamOptions, t: u64, rate: f64, mean: &[f64]) -> f64 {
            let norm = mean.iter().map(|g| g * g).sum::<f64>().sqrt();
            let held = options.clip.map_or(1.0, |clip| (clip / norm).min(1.0));
            let AdamOptions { beta1, beta2, epsilon, weight_decay, .. } = *options;
            for slot in slots() {
                let decay = if slot.shape.len() > 1 { weight_decay } else { 0.0 };
                for i in slot.place {
                    let g = mean[i] * held;
                    self.first[i] = beta1 * self.first[i] + (1.0 - beta1) * g;
                    self.second[i] = beta2 * self.second[i] + (1.0 - beta2) * g * g;
                    let first = self.first[i] / (1.0 - beta1.powi(t as i32));
                    let second = self.second[i] / (1.0 - beta2.powi(t as i32));
                    self.weights[i] -= rate * decay * self.weights[i];
                    self.weights[i] -= rate * first / (second.sqrt() + epsilon);
                }
            }
            norm
        }
    }

    #[test]
    fn steps_are_those_of_the_formula() {
        let size = slots().last().unwrap().place.end;
        let paper = AdamOptions::default();
        for options in
            [paper, paper.with_clip(0.5), paper.with_weight_decay(0.3), paper.with_clip(1e9)]
        {
            let mut optimizer = Optimizer::new(options, &slots()).unwrap();
            let begin: Vec<f32> = (0..size).map(|i| wave(0, i) as f32).collect();
            let mut weights = begin.clone();
            let mut formula = Formula {
                weights: begin.iter().map(|&x| f64::from(x)).collect(),
                first: vec![0.0; size],
                second: vec![0.0; size],
            };
            for step in 1..=6 {
                let (tokens, rate) = (3 * step as usize, 0.01 / step as f32);
                let gradient: Vec<f32> = (0..size).map(|i| wave(step, i) as f32 * 2.0).collect();
                let mean: Vec<f64> =
                    gradient.iter().map(|&g| f64::from(g) / tokens as f64).collect();
                let update = Update { step, rate, tokens, gradient: &gradient };
                let on = (Cpu::detect(), Par::SERIAL);
                let norm = optimizer.update(on, &update, &slots(), &mut weights).unwrap();
                let expected = formula.step(&options, step, f64::from(rate), &mean);
                assert!((norm - expected).abs() <= 1e-12 * expected, "{norm} {expected}");
                for (&x, &y) in weights.iter().zip(&formula.weights) {
                    assert!((f64::from(x) - y).abs() < 1e-6, "{step}: {x} {y}");
                }
            }
        }
    }

    #[test]
    fn a_gradient_that_is_not_finite_is_named_and_changes_nothing() {
        let size = slots().last().unwrap().place.end;
        for (index, value, name) in [
            (0, f32::NAN, "tensor 0"),
            (15, f32::INFINITY, "tensor 1"),
            (size - 1, f32::NEG_INFINITY, "tensor 3"),
        ] {
            let mut optimizer = Optimizer::new(AdamOptions::default(), &slots()).unwrap();
            let (mut gradient, mut weights) = (vec![1.0; size], vec![0.5; size]);
            gradient[index] = value;
            let update = Update { step: 7, rate: 1.0, tokens: 1, gradient: &gradient };
            let on = (Cpu::detect(), Par::SERIAL);
            let error = optimizer.update(on, &update, &slots(), &mut weights).unwrap_err();
            let expected = format!("step 7: the gradient of {name} is {value}");
            assert_eq!(error.to_string(), expected);
            assert!(weights.iter().all(|&x| x == 0.5));
            assert!(optimizer.first.iter().chain(&optimizer.second).all(|&x| x == 0.0));
        }
    }

    #[test]
    fn a_step_without_tokens_goes_nowhere() {
        let size = slots().last().unwrap().place.end;
        let mut optimizer = Optimizer::new(AdamOptions::default(), &slots()).unwrap();
        let (gradient, mut weights) = (vec![0.0; size], vec![0.5; size]);
        let update = Update { step: 1, rate: 1.0, tokens: 0, gradient: &gradient };
        let on = (Cpu::detect(), Par::SERIAL);
        assert_eq!(optimizer.update(on, &update, &slots(), &mut weights).unwrap(), 0.0);
        assert!(weights.iter().all(|&x| x == 0.5));
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let paper = AdamOptions::default();
        let bad = [
            AdamOptions { beta1: 1.0, ..paper },
            AdamOptions { beta2: -0.1, ..paper },
            AdamOptions { epsilon: 0.0, ..paper },
            AdamOptions { epsilon: 1e-60, ..paper },
            paper.with_weight_decay(f64::NAN),
            paper.with_clip(0.0),
            paper.with_clip(f64::INFINITY),
        ];
        for options in bad {
            assert!(matches!(options.check(), Err(Error::TrainingOption { .. })), "{options:?}");
        }
        assert!(paper.with_clip(1.0).with_weight_decay(0.1).check().is_ok());
    }
}
