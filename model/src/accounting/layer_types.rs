//! §4, table 1: kinds of layers that map n vectors of d features to as many.

/// A kind of layer that maps a sequence of n vectors of d features to another.
///
/// Its figures are the leading terms of the paper's table 1, with a factor of 1.
///
/// ```
/// use headrow::accounting::LayerType;
///
/// let (n, d) = (64, 512);
/// let attention = LayerType::SelfAttention;
/// assert_eq!(attention.complexity(n, d), 64.0 * 64.0 * 512.0);
/// // A recurrent layer costs more as long as n < d, and has to be walked token by token.
/// assert!(LayerType::Recurrent.complexity(n, d) > attention.complexity(n, d));
/// assert_eq!((LayerType::Recurrent.sequential(n), LayerType::Recurrent.path(n)), (64, 64));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LayerType {
    /// Every token sees every other.
    SelfAttention,
    /// Every token sees the `neighbours` around it.
    Restricted {
        /// r.
        neighbours: usize,
    },
    /// A state that goes from token to token.
    Recurrent,
    /// Every token is made of a window of tokens; in a stack of layers the windows lie side by side.
    Convolutional {
        /// k: tokens of a window.
        kernel: usize,
    },
    /// The same with gaps that grow k-fold from layer to layer.
    Dilated {
        /// k.
        kernel: usize,
    },
    /// A window for every feature by itself, then a map of the features of every token; dilated.
    Separable {
        /// k.
        kernel: usize,
    },
}

impl LayerType {
    /// The rows of the table for r neighbours and windows of k tokens.
    pub fn table(neighbours: usize, kernel: usize) -> [LayerType; 6] {
        [
            LayerType::SelfAttention,
            LayerType::Recurrent,
            LayerType::Convolutional { kernel },
            LayerType::Dilated { kernel },
            LayerType::Separable { kernel },
            LayerType::Restricted { neighbours },
        ]
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            LayerType::SelfAttention => "self-attention",
            LayerType::Restricted { .. } => "self-attention, restricted",
            LayerType::Recurrent => "recurrent",
            LayerType::Convolutional { .. } => "convolutional",
            LayerType::Dilated { .. } => "convolutional, dilated",
            LayerType::Separable { .. } => "convolutional, separable",
        }
    }

    /// The orders of complexity, sequential operations and the longest path.
    pub fn orders(self) -> [&'static str; 3] {
        match self {
            LayerType::SelfAttention => ["n²·d", "1", "1"],
            LayerType::Restricted { .. } => ["r·n·d", "1", "n/r"],
            LayerType::Recurrent => ["n·d²", "n", "n"],
            LayerType::Convolutional { .. } => ["k·n·d²", "1", "n/k"],
            LayerType::Dilated { .. } => ["k·n·d²", "1", "log_k n"],
            LayerType::Separable { .. } => ["k·n·d + n·d²", "1", "log_k n"],
        }
    }

    /// Operations of a layer. More neighbours than tokens, or wider windows, are no more than n.
    pub fn complexity(self, n: usize, d: usize) -> f64 {
        let (tokens, features) = (n as f64, d as f64);
        let window = |k: usize| k.min(n) as f64;
        match self {
            LayerType::SelfAttention => tokens * tokens * features,
            LayerType::Restricted { neighbours } => window(neighbours) * tokens * features,
            LayerType::Recurrent => tokens * features * features,
            LayerType::Convolutional { kernel } | LayerType::Dilated { kernel } => {
                window(kernel) * tokens * features * features
            }
            LayerType::Separable { kernel } => {
                window(kernel) * tokens * features + tokens * features * features
            }
        }
    }

    /// Steps that must follow one another, whatever the number of processors.
    pub fn sequential(self, n: usize) -> usize {
        if self == LayerType::Recurrent { n } else { 1 }
    }

    /// Layers, or steps of a recurrent one, between the farthest two of n tokens; `usize::MAX` where a window of no or one
    /// token never brings them together.
    pub fn path(self, n: usize) -> usize {
        match self {
            _ if n <= 1 => n,
            LayerType::SelfAttention => 1,
            LayerType::Recurrent => n,
            LayerType::Restricted { neighbours: width }
            | LayerType::Convolutional { kernel: width } => {
                if width <= 1 {
                    usize::MAX
                } else {
                    n.div_ceil(width)
                }
            }
            LayerType::Dilated { kernel } | LayerType::Separable { kernel } => {
                if kernel <= 1 {
                    usize::MAX
                } else {
                    logarithm(n, kernel)
                }
            }
        }
    }
}

/// The least number of factors k ≥ 2 whose product is n or more.
fn logarithm(n: usize, k: usize) -> usize {
    let (mut product, mut factors) = (1usize, 0);
    while product < n {
        product = product.saturating_mul(k);
        factors += 1;
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers until the first token's output depends on the last, where token i sees those that `sees` says, layer by layer.
    fn measured(n: usize, sees: impl Fn(usize, usize, usize) -> bool) -> usize {
        let mut reached = vec![false; n];
        reached[n - 1] = true;
        (1..=2 * n)
            .find(|&layer| {
                let next = (0..n).map(|i| (0..n).any(|j| reached[j] && sees(layer, i, j)));
                reached = next.collect();
                reached[0]
            })
            .unwrap_or(usize::MAX)
    }

    /// The table drops factors: neighbours lie on both sides, so that a path of n/r layers is in fact twice as long.
    #[test]
    fn paths_are_of_the_order_that_a_search_finds() {
        for n in [2, 7, 16, 27, 60] {
            let full = measured(n, |_, _, _| true);
            assert_eq!(full, LayerType::SelfAttention.path(n));
            let step = measured(n, |_, i, j| i.abs_diff(j) <= 1);
            assert!(step.abs_diff(LayerType::Recurrent.path(n)) <= 1, "{n}: {step}");
            for width in [3, 5, 9] {
                let around = measured(n, |_, i, j| i.abs_diff(j) <= width / 2);
                let restricted = LayerType::Restricted { neighbours: width };
                for kind in [restricted, LayerType::Convolutional { kernel: width }] {
                    let path = kind.path(n);
                    assert!(path <= around && around <= 3 * path, "{kind:?} {n}: {around}");
                }
                // Windows to one side, whose taps are k^(layer − 1) apart.
                let dilated = measured(n, |layer, i, j| {
                    let gap = width.saturating_pow(layer as u32 - 1);
                    j >= i && (j - i).is_multiple_of(gap) && (j - i) / gap < width
                });
                assert_eq!(dilated, LayerType::Dilated { kernel: width }.path(n), "{n} {width}");
            }
        }
    }

    #[test]
    fn figures_of_the_table() {
        let (n, d) = (100, 512);
        let [attention, recurrent, convolutional, dilated, separable, restricted] =
            LayerType::table(10, 3);
        assert_eq!(attention.complexity(n, d), 5.12e6);
        assert_eq!(recurrent.complexity(n, d), 100.0 * 262_144.0);
        assert_eq!(convolutional.complexity(n, d), 3.0 * recurrent.complexity(n, d));
        assert_eq!(restricted.complexity(n, d), 0.1 * attention.complexity(n, d));
        assert_eq!([convolutional.path(n), dilated.path(n), restricted.path(n)], [34, 5, 10]);
        // §4: even with k = n a separable convolution costs what self-attention and a map of every token cost together.
        let wide = LayerType::Separable { kernel: n };
        let together = attention.complexity(n, d) + 100.0 * 512.0 * 512.0;
        assert_eq!(wide.complexity(n, d), together);
        assert!(separable.complexity(n, d) < convolutional.complexity(n, d));
        // Self-attention is the cheaper one exactly as long as n < d.
        assert!(attention.complexity(d - 1, d) < recurrent.complexity(d - 1, d));
        assert_eq!(attention.complexity(d, d), recurrent.complexity(d, d));
    }

    #[test]
    fn degenerate_sizes_have_figures_too() {
        for kind in LayerType::table(0, 0).into_iter().chain(LayerType::table(1, 1)) {
            assert!(kind.complexity(0, 0) == 0.0 && kind.path(1) == 1 && kind.path(0) == 0);
            assert!(kind.path(usize::MAX) > 0);
        }
        assert_eq!(LayerType::Dilated { kernel: 2 }.path(usize::MAX), usize::BITS as usize);
    }
}
