//! A random token: temperature, top-k, top-p, min-p.

use super::random::uniform;
use super::select::{Scored, candidates, top_k};
use crate::error::{Error, Result};
use crate::memory::room;
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

/// Tokens that are ranked at first, when top-p alone says how many are needed. Most rows need no more.
const RANKED: usize = 128;

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
        Some(Draw { kept: room(vocabulary)?, weights: room(vocabulary)? })
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
            self.keep_likeliest(row, wanted);
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

    /// Keeps the fewest likeliest tokens of the row whose weights reach `wanted`. The weights are those of all tokens, by id.
    fn keep_likeliest(&mut self, row: &[f32], wanted: f64) {
        top_k(row, RANKED, &mut self.kept);
        self.take_weights();
        if self.cut_to(wanted) || RANKED >= row.len() {
            return;
        }
        self.kept.clear();
        self.kept.extend(candidates(row));
        match last_of_fewest(&mut self.kept, &self.weights, wanted) {
            // In the order of ids, in which they are wanted.
            Some(last) => {
                self.kept.clear();
                self.kept.extend(candidates(row).filter(|other| other.rank() <= last.rank()));
                self.take_weights();
            }
            None => {
                self.kept.sort_unstable_by_key(Scored::rank);
                self.take_weights();
                self.cut_to(wanted);
            }
        }
    }

    /// Replaces the values of the kept tokens by their weights, which are there by id.
    fn take_weights(&mut self) {
        let Draw { kept, weights } = self;
        kept.iter_mut().for_each(|kept| kept.value = weights[kept.id as usize]);
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

/// The last of the fewest likeliest tokens whose weights reach `wanted`.
///
/// The definition adds weights up by rank, and that order decides the last bits of a sum. Here halves are told apart instead, O(n) for all
/// tokens, and their sums added; where the bits that may differ would decide it is `None`.
fn last_of_fewest(scored: &mut [Scored], weights: &[f32], wanted: f64) -> Option<Scored> {
    let weight = |scored: &Scored| f64::from(weights[scored.id as usize]);
    // The first `first` weigh `before`, which is too little; the first `end` are enough.
    let (mut first, mut end, mut before) = (0, scored.len(), 0.0);
    while end - first > 1 {
        let middle = first + (end - first) / 2;
        scored[first..end].select_nth_unstable_by_key(middle - first, Scored::rank);
        let more = before + scored[first..middle].iter().map(weight).sum::<f64>();
        match more >= wanted {
            true => end = middle,
            false => (first, before) = (middle, more),
        }
    }
    let last = *scored.get(first)?;
    let after = before + weight(&last);
    // Twice what sums of n numbers above 0 may differ by in two orders.
    let doubt = 2.0 * (scored.len() + 32) as f64 * f64::EPSILON * after;
    (before + doubt < wanted && wanted <= after - doubt).then_some(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fewest of the likeliest by the definition: all ranked, weights added up in this order.
    fn defined(row: &[f32], weights: &[f32], wanted: f64) -> Vec<u32> {
        let ids = 0..row.len() as u32;
        let scored = ids.zip(row).map(|(id, &value)| Scored { id, value });
        let mut ranked: Vec<Scored> = scored.filter(|s| s.value > f32::NEG_INFINITY).collect();
        ranked.sort_by_key(Scored::rank);
        let mut sum = 0.0;
        let enough = ranked.iter().position(|scored| {
            sum += f64::from(weights[scored.id as usize]);
            sum >= wanted
        });
        let count = enough.map_or(ranked.len(), |last| last + 1);
        let mut ids: Vec<u32> = ranked[..count].iter().map(|scored| scored.id).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn the_likeliest_are_those_of_a_full_sort_whatever_the_row() {
        let cpu = Cpu::detect();
        let mut draw = Draw::try_new(20_000).unwrap();
        // Logits from flat to peaked; `levels` of them, so that some rows have many equals.
        for (n, spread, levels) in [
            (100, 1.0, 1e9),
            (3000, 0.0, 1.0),
            (3000, 1.0, 3.0),
            (20_000, 0.01, 1e9),
            (20_000, 8.0, 40.0),
        ] {
            let number = |i: usize| (uniform(n as u64, i as u64) * levels).floor() / levels;
            let mut row: Vec<f32> = (0..n).map(|i| (number(i) * spread) as f32).collect();
            row.iter_mut().skip(5).step_by(17).for_each(|x| *x = f32::NEG_INFINITY);
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sampling = Sampling::default();
            draw.weigh(cpu, &sampling, max, row.iter().copied());
            let total: f64 = draw.weights.iter().copied().map(f64::from).sum();
            // A half of equal weights is reached exactly; the last share may be lost in the rounding of the sum.
            for share in [1e-4, 0.1, 0.5, 0.9, 0.999, 1.0 - f64::EPSILON, 1.0] {
                draw.keep_likeliest(&row, share * total);
                let mut ids: Vec<u32> = draw.kept.iter().map(|kept| kept.id).collect();
                ids.sort_unstable();
                assert_eq!(
                    ids,
                    defined(&row, &draw.weights, share * total),
                    "{n} {spread} {share}"
                );
                let weighed = |kept: &Scored| kept.value == draw.weights[kept.id as usize];
                assert!(draw.kept.iter().all(weighed));
            }
        }
    }

    #[test]
    fn what_rounding_decides_is_left_to_the_order_of_ranks() {
        let scored: Vec<Scored> = (0..1000).map(|id| Scored { id, value: 0.0 }).collect();
        let weights = vec![1.0; 1000];
        let last = |wanted| last_of_fewest(&mut scored.clone(), &weights, wanted);
        assert_eq!([last(500.0), last(500.5), last(1000.5)], [None, Some(scored[500]), None]);
        assert_eq!(last_of_fewest(&mut [], &weights, 0.5), None);
    }
}
