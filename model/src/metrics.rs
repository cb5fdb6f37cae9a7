//! Measures of answers: error rates, and BLEU as it is reported (§6.1).

mod bleu;
mod error_rate;
mod words;

pub use bleu::{Bleu, BleuOptions, BleuScore, BleuSmoothing};
pub use error_rate::{ErrorRate, edit_distance};
pub use words::BleuWords;

/// How well a model foresees tokens, over as many as were asked for.
///
/// Which tokens count is the caller's affair; in this library the end of a sequence does, its beginning does not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Foresight {
    /// Σ ln p over the tokens.
    pub log_probability: f64,
    /// Tokens.
    pub tokens: usize,
    /// Tokens that the model held likeliest in their places.
    pub likeliest: usize,
}

impl Foresight {
    /// Counts a token of this log-probability.
    pub fn add(&mut self, log_probability: f64, likeliest: bool) {
        self.log_probability += log_probability;
        self.tokens += 1;
        self.likeliest += usize::from(likeliest);
    }

    /// exp(−Σ ln p / n); NaN without tokens.
    pub fn perplexity(&self) -> f64 {
        libm::exp(-self.log_probability / self.tokens as f64)
    }

    /// The part of the tokens that were the likeliest; NaN without tokens.
    pub fn accuracy(&self) -> f64 {
        self.likeliest as f64 / self.tokens as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexity_is_the_inverse_of_the_geometric_mean() {
        let mut foresight = Foresight::default();
        assert!(foresight.perplexity().is_nan() && foresight.accuracy().is_nan());
        for (p, likeliest) in [(0.5, true), (0.125, false), (0.25, true), (0.25, false)] {
            foresight.add(libm::log(p), likeliest);
        }
        assert!((foresight.perplexity() - 4.0).abs() < 1e-12);
        assert_eq!(foresight.accuracy(), 0.5);
    }
}
