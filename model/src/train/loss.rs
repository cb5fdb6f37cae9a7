//! Sums of losses over what is predicted: tokens, or sequences.

use headrow_kernels::TokenLoss;
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// Losses of predicted tokens, summed, so that those of several batches can be added up.
///
/// Where sequences or images are predicted, these take the place of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Loss {
    /// Σ of the cross-entropies with smoothed labels, in nats, or of the square errors: what is trained on.
    pub smoothed: f64,
    /// Σ −ln p of the labels; the square errors again where numbers are predicted.
    pub nll: f64,
    /// Tokens that are predicted.
    pub tokens: usize,
    /// Those whose label had the highest score; none of numbers.
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

/// Adds the losses of those labels that count.
pub(super) fn add_up(loss: &mut Loss, labels: &[Option<u32>], losses: &[TokenLoss]) {
    for (_, token) in labels.iter().zip(losses).filter(|(label, _)| label.is_some()) {
        loss.smoothed += token.smoothed;
        loss.nll += token.nll;
        loss.tokens += 1;
        loss.correct += usize::from(token.correct);
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
