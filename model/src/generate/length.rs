//! How hypotheses of different lengths are compared.

/// The score of a finished hypothesis, from s = Σ ln p and its length L.
///
/// In every preset L is the number of generated tokens: the stop token counts, when there is one; the prompt and the
/// decoder's start token do not. Larger is better; s ≤ 0, so a positive exponent favours long
/// hypotheses, a negative one short ones.
///
/// ```
/// use headrow::generate::LengthPenalty;
///
/// // ln p of three tokens together is −6.
/// assert_eq!(LengthPenalty::default(), LengthPenalty::Gnmt { alpha: 0.6 });
/// assert_eq!(LengthPenalty::Average { alpha: 1.0 }.score(-6.0, 3), -2.0);
/// assert_eq!(LengthPenalty::None.score(-6.0, 3), -6.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum LengthPenalty {
    /// s / ((5 + L)/6)^α, of Wu et al. 2016, "Google's neural machine translation system", and of the paper's
    /// §6.1 with α = 0.6. OpenNMT calls it `wu`.
    Gnmt {
        /// α, of any sign; 0 is no penalty.
        alpha: f64,
    },
    /// s / L^α: `length_penalty` of Hugging Face's transformers and of CTranslate2, `lenpen` of fairseq.
    Average {
        /// α, of any sign; 0 is no penalty, 1 the mean per token.
        alpha: f64,
    },
    /// (s − w·L) / L^α: `normalize` and `word-penalty` of Marian.
    Marian {
        /// α, of any sign.
        normalize: f64,
        /// w, what each token costs.
        word_penalty: f64,
    },
    /// s alone.
    None,
}

impl Default for LengthPenalty {
    /// That of the paper: [`LengthPenalty::Gnmt`] with α = 0.6.
    fn default() -> Self {
        LengthPenalty::Gnmt { alpha: 0.6 }
    }
}

impl LengthPenalty {
    /// The score of a hypothesis of `length` tokens with Σ ln p = `sum`.
    pub fn score(self, sum: f64, length: usize) -> f64 {
        let length = length as f64;
        match self {
            LengthPenalty::Gnmt { alpha } => sum / libm::pow((5.0 + length) / 6.0, alpha),
            LengthPenalty::Average { alpha } => sum / libm::pow(length, alpha),
            LengthPenalty::Marian { normalize, word_penalty } => {
                (sum - word_penalty * length) / libm::pow(length, normalize)
            }
            LengthPenalty::None => sum,
        }
    }

    /// The largest score that a hypothesis with Σ ln p ≤ `sum` can have at a length from `shortest` to `longest`.
    ///
    /// The scores are monotone in L, except Marian's, whose derivative vanishes once, at
    /// L = α·s / (w·(α − 1)): the largest is at an end or beside that point. A little is added, so that scores
    /// which are equal but for rounding are within the bound.
    pub(crate) fn bound(self, sum: f64, shortest: usize, longest: usize) -> f64 {
        let mut best = self.score(sum, shortest).max(self.score(sum, longest));
        if let LengthPenalty::Marian { normalize, word_penalty } = self {
            let turn = normalize * sum / (word_penalty * (normalize - 1.0));
            // Out of range, or no number when there is no such point.
            if turn > shortest as f64 && turn < longest as f64 {
                let below = turn as usize;
                best = best.max(self.score(sum, below)).max(self.score(sum, below + 1));
            }
        }
        best + 1e-12 * best.abs()
    }

    /// The field that is no finite number, by name.
    pub(crate) fn flaw(self) -> Option<(&'static str, f64)> {
        let fields = match self {
            LengthPenalty::Gnmt { alpha } | LengthPenalty::Average { alpha } => {
                [("length_penalty.alpha", alpha); 2]
            }
            LengthPenalty::Marian { normalize, word_penalty } => [
                ("length_penalty.normalize", normalize),
                ("length_penalty.word_penalty", word_penalty),
            ],
            LengthPenalty::None => return None,
        };
        fields.into_iter().find(|(_, value)| !value.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_largest_score_over_the_lengths() {
        for alpha in [-2.0, -0.3, 0.0, 0.6, 1.0, 2.0] {
            let marian = |word_penalty| LengthPenalty::Marian { normalize: alpha, word_penalty };
            for penalty in [
                LengthPenalty::None,
                LengthPenalty::Gnmt { alpha },
                LengthPenalty::Average { alpha },
                marian(0.0),
                marian(0.7),
                marian(-0.7),
                marian(-5.0),
            ] {
                for sum in [0.0, -0.5, -12.0, -300.0] {
                    for (shortest, longest) in [(1, 1), (1, 9), (5, 80)] {
                        let scores = (shortest..=longest).map(|l| penalty.score(sum, l));
                        let best = scores.fold(f64::NEG_INFINITY, f64::max);
                        let bound = penalty.bound(sum, shortest, longest);
                        let near = best <= bound && bound <= best + 2e-12 * best.abs();
                        assert!(near, "{penalty:?} {sum} {shortest} {longest}: {bound} {best}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_presets_are_the_published_formulas() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        close(LengthPenalty::default().score(-7.0, 7), -7.0 / 2f64.powf(0.6));
        close(LengthPenalty::Average { alpha: 2.0 }.score(-8.0, 4), -0.5);
        let marian = LengthPenalty::Marian { normalize: 1.0, word_penalty: 0.5 };
        close(marian.score(-8.0, 4), -2.5);
        close(LengthPenalty::None.score(-8.0, 4), -8.0);
    }
}
