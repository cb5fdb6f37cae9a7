//! A random token: temperature, top-k, top-p, min-p.

use super::random::uniform;
use super::select::{Scored, top_k};
use crate::error::{Error, Result};
use headrow_kernels::rows::math;
use headrow_kernels::{Cpu, MatMut, Par};

/// How a random token is drawn: from p_i ∝ e^(x_i / temperature), where in this order only the `top_k` likeliest
/// tokens, the fewest of them with a total ≥ `top_p`, and those with p ≥ `min_p`·max p remain.
///
/// Of equally likely tokens the one with the lower id comes first. The number that decides step n of a
/// request is a function of its seed and n.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sampling {
    /// Above 1 evens the probabilities out, below 1 sharpens them. 0: the likeliest token.
    pub temperature: f32,
    /// 0, or as many as the vocabulary has: all.
    pub top_k: usize,
    /// From 1 up: all; from 0 down: the likeliest alone. The token that reaches the total is kept.
    pub top_p: f32,
    /// 0: all; 1: the likeliest, and its equals.
    pub min_p: f32,
    /// The seed of the request.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

impl Sampling {
    /// Sampling from all tokens at temperature 1.
    pub fn new(seed: u64) -> Sampling {
        Sampling { seed, ..Sampling::default() }
    }

    /// The same at this temperature.
    #[must_use]
    pub fn with_temperature(self, temperature: f32) -> Sampling {
        Sampling { temperature, ..self }
    }

    /// The same among so many likeliest tokens.
    #[must_use]
    pub fn with_top_k(self, top_k: usize) -> Sampling {
        Sampling { top_k, ..self }
    }

    /// The same among the fewest tokens with this total.
    #[must_use]
    pub fn with_top_p(self, top_p: f32) -> Sampling {
        Sampling { top_p, ..self }
    }

    /// The same among tokens at least so likely, measured by the likeliest.
    #[must_use]
    pub fn with_min_p(self, min_p: f32) -> Sampling {
        Sampling { min_p, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            let problem = format!("must be 0 or above and finite, found {}", self.temperature);
            return Err(Error::generation("temperature", problem));
        }
        if self.top_p.is_nan() {
            return Err(Error::generation("top_p", "must be a number"));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return Err(Error::generation(
                "min_p",
                format!("must be from 0 to 1, found {}", self.min_p),
            ));
        }
        Ok(())
    }
}

/// Tokens that are ranked at first, when top-p alone says how many are needed; then [`MORE`] times as many.
const RANKED: usize = 128;
const MORE: usize = 16;

/// Buffers of a draw, each with room for the vocabulary.
#[derive(Debug)]
pub(crate) struct Draw {
    /// What is left to choose from.
    pub(crate) kept: Vec<Scored>,
    /// e^((x − max x)/temperature), of all tokens by id or of the kept ones by rank.
    weights: Vec<f32>,
}

impl Draw {
    /// With room for a vocabulary; `None` when the allocator refuses.
    pub(crate) fn try_new(vocabulary: usize) -> Option<Draw> {
        let mut draw = Draw { kept: Vec::new(), weights: Vec::new() };
        draw.kept.try_reserve_exact(vocabulary).ok()?;
        draw.weights.try_reserve_exact(vocabulary).ok()?;
        Some(draw)
    }

    /// The likeliest token of a row without NaN; `None` when all are −∞.
    pub(crate) fn likeliest(&mut self, row: &[f32]) -> Option<u32> {
        top_k(row, 1, &mut self.kept);
        self.kept.first().map(|best| best.id)
    }

    /// The token of step `step`, from logits without NaN and +∞; `None` when all are −∞.
    pub(crate) fn token(
        &mut self,
        cpu: Cpu,
        sampling: &Sampling,
        step: usize,
        row: &[f32],
    ) -> Option<u32> {
        let best = self.likeliest(row)?;
        if sampling.temperature == 0.0 {
            return Some(best);
        }
        let max = self.kept[0].value;
        let limited = sampling.top_k > 0 && sampling.top_k < row.len();
        if limited {
            top_k(row, sampling.top_k, &mut self.kept);
            self.weigh_kept(cpu, sampling, max);
        } else {
            self.weigh(cpu, sampling, max, row.iter().copied());
        }
        let total: f64 = self.weights.iter().copied().map(f64::from).sum();
        let wanted = f64::from(sampling.top_p) * total;
        if limited {
            self.cut_to(wanted);
        } else if sampling.top_p < 1.0 {
            self.rank_to(cpu, sampling, max, row, wanted);
        } else {
            let ids = 0..row.len() as u32;
            let scored = ids.zip(&self.weights).map(|(id, &value)| Scored { id, value });
            self.kept.clear();
            self.kept.extend(scored);
        }
        self.kept.retain(|kept| kept.value >= sampling.min_p);
        // The order of the ids, so that a cut that cuts nothing off changes no draw.
        self.kept.sort_unstable_by_key(|kept| kept.id);
        Some(self.pick(uniform(sampling.seed, step as u64)))
    }

    /// Ranks as many tokens as it takes for their weights to reach `wanted`.
    fn rank_to(&mut self, cpu: Cpu, sampling: &Sampling, max: f32, row: &[f32], wanted: f64) {
        let mut ranked = RANKED;
        loop {
            top_k(row, ranked, &mut self.kept);
            self.weigh_kept(cpu, sampling, max);
            if self.cut_to(wanted) || ranked >= row.len() {
                return;
            }
            ranked *= MORE;
        }
    }

    /// Replaces the values of the kept tokens by their weights.
    fn weigh_kept(&mut self, cpu: Cpu, sampling: &Sampling, max: f32) {
        let kept = std::mem::take(&mut self.kept);
        self.weigh(cpu, sampling, max, kept.iter().map(|kept| kept.value));
        self.kept = kept;
        for (kept, &weight) in self.kept.iter_mut().zip(&self.weights) {
            kept.value = weight;
        }
    }

    /// The distance from the maximum is scaled, not the logits, so that no temperature overflows.
    fn weigh(&mut self, cpu: Cpu, sampling: &Sampling, max: f32, x: impl Iterator<Item = f32>) {
        self.weights.clear();
        self.weights.extend(x.map(|x| (x - max) / sampling.temperature));
        let n = self.weights.len();
        math::exp(cpu, Par::SERIAL, MatMut::new(&mut self.weights, 1, n));
    }

    /// Keeps the fewest of the ranked tokens whose weights reach `wanted`, one at least; whether they do.
    fn cut_to(&mut self, wanted: f64) -> bool {
        let mut sum = 0.0;
        let crossing = self.kept.iter().position(|kept| {
            sum += f64::from(kept.value);
            sum >= wanted
        });
        if let Some(crossing) = crossing {
            self.kept.truncate(crossing + 1);
        }
        crossing.is_some()
    }

    /// The token at the share `u` of the kept weights.
    fn pick(&self, u: f64) -> u32 {
        let weights = || self.kept.iter().map(|kept| f64::from(kept.value));
        let wanted = u * weights().sum::<f64>();
        let mut sum = 0.0;
        let crossing = weights().position(|weight| {
            sum += weight;
            sum > wanted
        });
        // Both sums run in one order, so that the last is the total, which is above `wanted`.
        self.kept[crossing.unwrap_or(self.kept.len() - 1)].id
    }
}
