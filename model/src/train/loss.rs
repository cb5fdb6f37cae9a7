//! Sums of losses over tokens.

use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// Losses of predicted tokens, summed, so that those of several batches can be added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Loss {
    /// Σ of the cross-entropies with smoothed labels, in nats: what is trained on.
    pub smoothed: f64,
    /// Σ −ln p of the labels.
    pub nll: f64,
    /// Tokens that are predicted.
    pub tokens: usize,
    /// Those whose label had the highest score.
    pub correct: usize,
}

impl Loss {
    /// The mean loss that is trained on; NaN without tokens, as the other means.
    pub fn mean(&self) -> f64 {
        self.smoothed / self.tokens as f64
    }

    /// The mean −ln p of a token.
    pub fn mean_nll(&self) -> f64 {
        self.nll / self.tokens as f64
    }

    /// exp of the mean −ln p of a token; the end of a sequence is one.
    pub fn perplexity(&self) -> f64 {
        libm::exp(self.mean_nll())
    }

    /// The part of the tokens whose label had the highest score.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.tokens as f64
    }
}

impl AddAssign for Loss {
    fn add_assign(&mut self, other: Loss) {
        self.smoothed += other.smoothed;
        self.nll += other.nll;
        self.tokens += other.tokens;
        self.correct += other.correct;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_all_tokens() {
        let mut loss = Loss { smoothed: 3.0, nll: 2.0, tokens: 1, correct: 1 };
        loss += Loss { smoothed: 9.0, nll: 2.0, tokens: 3, correct: 0 };
        assert_eq!((loss.mean(), loss.mean_nll(), loss.accuracy()), (3.0, 1.0, 0.25));
        assert!((loss.perplexity() - std::f64::consts::E).abs() < 1e-14);
        assert!(Loss::default().mean().is_nan());
    }
}
