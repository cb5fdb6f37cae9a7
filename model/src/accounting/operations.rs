//! Operations of a pass, part by part.

use crate::config::{Config, Gating, Input, StackConfig, TokenInput, Widening};
use crate::observer::Side;
use std::ops::Add;

/// Operations of matrix products: 2·k for each number of a product over k.
///
/// ```
/// use headrow::Config;
/// use headrow::accounting::Operations;
///
/// let base = Config::base(37_000, 37_000);
/// // An encoder layer of n tokens: 24nd² in its maps, 4n²d in attention.
/// let (n, d) = (100.0, 512.0);
/// let encoder = Operations::encoder(&base, 100);
/// assert_eq!(encoder.linear(), 6.0 * 24.0 * n * d * d);
/// assert_eq!(encoder.attention, 6.0 * 4.0 * n * n * d);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Operations {
    /// To queries, keys and values, and from the heads back: 8nd² a layer of the paper's.
    pub projections: f64,
    /// QKᵀ and the weights times V: 4n²d.
    pub attention: f64,
    /// The feed-forward networks: 16nd².
    pub feed_forward: f64,
    /// Before the first layer and behind the last: patches, convolutions, narrow words, and the read-out with 2mvd.
    pub ends: f64,
}

impl Operations {
    /// The encoder over n tokens, places of an image or frames; none without an encoder.
    pub fn encoder(config: &Config, n: usize) -> Operations {
        let Some(stack) = &config.encoder else { return Operations::default() };
        let layers = encoder_layer(config, stack, n).times(stack.layers as f64);
        Operations { ends: entrance(stack, config.d_model, n), ..layers }
    }

    /// Keys and values of n encoded tokens for every layer of a decoder that attends to them: once per source.
    pub fn sources(config: &Config, n: usize) -> Operations {
        match (&config.decoder, &config.encoder) {
            (Some(stack), Some(_)) => source_layer(config, stack, n).times(stack.layers as f64),
            _ => Operations::default(),
        }
    }

    /// The decoder over m tokens that follow `past` others and attend to n tokens of a source; scores of words for each of
    /// the m. What [`Operations::sources`] makes once is not counted. None without a decoder.
    ///
    /// With m = 1 it is a step of decoding.
    pub fn decoder(config: &Config, past: usize, m: usize, n: usize) -> Operations {
        let Some(stack) = &config.decoder else { return Operations::default() };
        let layers = decoder_layer(config, stack, [past, m, n]).times(stack.layers as f64);
        let ends = entrance(stack, config.d_model, m) + read_out(config, stack, m);
        Operations { ends, ..layers }
    }

    /// A whole pass: n tokens of a source, m of a target or of a text. A model with one stack ignores the other number.
    pub fn forward(config: &Config, n: usize, m: usize) -> Operations {
        let decoder = Operations::decoder(config, 0, m, n);
        Operations::encoder(config, n) + Operations::sources(config, n) + decoder
    }

    /// A pass forward and one backward, which computes twice as much: gradients of the inputs and of the weights.
    pub fn training(config: &Config, n: usize, m: usize) -> Operations {
        Operations::forward(config, n, m).times(3.0)
    }

    /// One layer of a stack over n tokens; in a decoder beside an encoder, with a source as long, whose keys and values are
    /// counted. None without such a stack.
    pub fn layer(config: &Config, side: Side, n: usize) -> Operations {
        match (side, &config.encoder, &config.decoder) {
            (Side::Encoder, Some(stack), _) => encoder_layer(config, stack, n),
            (Side::Decoder, None, Some(stack)) => decoder_layer(config, stack, [0, n, 0]),
            (Side::Decoder, Some(_), Some(stack)) => {
                decoder_layer(config, stack, [0, n, n]) + source_layer(config, stack, n)
            }
            _ => Operations::default(),
        }
    }

    /// All of them.
    pub fn total(&self) -> f64 {
        self.attention + self.linear() + self.ends
    }

    /// Those of a layer's linear maps, which are linear in n.
    pub fn linear(&self) -> f64 {
        self.projections + self.feed_forward
    }

    /// So many times as many.
    #[must_use]
    pub fn times(self, factor: f64) -> Operations {
        Operations {
            projections: factor * self.projections,
            attention: factor * self.attention,
            feed_forward: factor * self.feed_forward,
            ends: factor * self.ends,
        }
    }
}

impl Add for Operations {
    type Output = Operations;

    fn add(self, other: Operations) -> Operations {
        Operations {
            projections: self.projections + other.projections,
            attention: self.attention + other.attention,
            feed_forward: self.feed_forward + other.feed_forward,
            ends: self.ends + other.ends,
        }
    }
}

/// The least n at which attention costs a layer no less than its linear maps do: 6d in the paper's encoder, where
/// 4n²d = 24nd². `None` without such a stack, or when a window keeps attention cheaper at every length.
///
/// In a decoder the masked half of the scores does not count, and a source is taken to be as long as the target.
///
/// ```
/// use headrow::accounting::crossover;
/// use headrow::{Config, Side};
///
/// assert_eq!(crossover(&Config::base(37_000, 37_000), Side::Encoder), Some(6 * 512));
/// assert_eq!(crossover(&Config::big(37_000, 37_000), Side::Encoder), Some(6 * 1024));
/// ```
pub fn crossover(config: &Config, side: Side) -> Option<usize> {
    const LONGEST: usize = 1 << 40;
    let crossed = |n| {
        let layer = Operations::layer(config, side, n);
        layer.attention > 0.0 && layer.attention >= layer.linear()
    };
    let mut above = 1;
    while !crossed(above) {
        above *= 2;
        if above > LONGEST {
            return None;
        }
    }
    // Attention's share grows with n: it is below at `below`, and not at `above`.
    let mut below = above / 2;
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if crossed(middle) { above = middle } else { below = middle }
    }
    Some(above)
}

fn encoder_layer(config: &Config, stack: &StackConfig, n: usize) -> Operations {
    layer(stack, config.d_model, n, around(stack.window, n))
}

/// Keys and values of n encoded tokens.
fn source_layer(config: &Config, stack: &StackConfig, n: usize) -> Operations {
    let maps = product(&[stack.kv_heads, stack.d_k + stack.d_v, config.d_model]);
    Operations { projections: 2.0 * n as f64 * maps, ..Operations::default() }
}

fn decoder_layer(config: &Config, stack: &StackConfig, [past, m, n]: [usize; 3]) -> Operations {
    let mut layer = layer(stack, config.d_model, m, before(stack.window, past, m));
    if config.encoder.is_some() {
        let maps = product(&[stack.heads, stack.d_k + stack.d_v, config.d_model]);
        layer.projections += 2.0 * m as f64 * maps;
        layer.attention += pairs(stack, product(&[m, n]));
    }
    layer
}

/// A product of sizes.
fn product(sizes: &[usize]) -> f64 {
    sizes.iter().map(|&size| size as f64).product()
}

/// Self-attention and feed-forward network of one layer: t tokens, which see so many keys together.
fn layer(stack: &StackConfig, d_model: usize, t: usize, seen: f64) -> Operations {
    let heads = (stack.heads + stack.kv_heads) as f64 * (stack.d_k + stack.d_v) as f64;
    let inner = if stack.gating == Gating::Gated { 3 } else { 2 };
    Operations {
        projections: 2.0 * product(&[t, d_model]) * heads,
        attention: pairs(stack, seen),
        feed_forward: 2.0 * product(&[t, d_model, stack.d_ff, inner]),
        ends: 0.0,
    }
}

/// QKᵀ and PV over so many pairs of a query and a key it sees.
fn pairs(stack: &StackConfig, seen: f64) -> f64 {
    2.0 * seen * product(&[stack.heads, stack.d_k + stack.d_v])
}

/// Pairs among n tokens that see themselves, and with a window of w the w − 1 tokens to each side.
fn around(window: Option<usize>, n: usize) -> f64 {
    let tokens = n as f64;
    match window {
        Some(w) if w < n => {
            // Each end lacks 1 + 2 + … + (w − 1) pairs of whole bands.
            let w = w as f64;
            tokens * (2.0 * w - 1.0) - w * (w - 1.0)
        }
        _ => tokens * tokens,
    }
}

/// Pairs of m tokens that follow `past` others: each sees itself and what is before it, at most the w last.
fn before(window: Option<usize>, past: usize, m: usize) -> f64 {
    let sum = |n: f64| n * (n + 1.0) / 2.0;
    let (past, end) = (past as f64, past as f64 + m as f64);
    match window {
        Some(w) => {
            let w = w as f64;
            let growing = sum(end.min(w)) - sum(past.min(w));
            growing + w * (end - past.max(w)).max(0.0)
        }
        None => sum(end) - sum(past),
    }
}

/// What turns an input into vectors, where that is a product.
fn entrance(stack: &StackConfig, d_model: usize, n: usize) -> f64 {
    match &stack.input {
        Input::Tokens(TokenInput { width, widening: Widening::Sum | Widening::Words, .. })
            if *width != d_model =>
        {
            2.0 * product(&[n, *width, d_model])
        }
        // The first token of an image is no patch.
        &Input::Patches { patch, channels, .. } => {
            2.0 * product(&[n.saturating_sub(1), patch, patch, channels, d_model])
        }
        // Two convolutions of three taps; the first one over twice as many frames.
        &Input::Spectrogram { bands, .. } => {
            2.0 * product(&[n, 3, d_model]) * (2.0 * bands as f64 + d_model as f64)
        }
        Input::Tokens(_) | Input::Vectors => 0.0,
    }
}

/// Scores of words for m tokens.
fn read_out(config: &Config, stack: &StackConfig, m: usize) -> f64 {
    let Some(tokens) = stack.tokens() else { return 0.0 };
    let narrow = config.read_out.tied && tokens.width != config.d_model;
    match narrow {
        true => 2.0 * product(&[m, tokens.width]) * (config.d_model + tokens.vocabulary) as f64,
        false => 2.0 * product(&[m, config.d_model, tokens.vocabulary]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_as_many_as_one_counts() {
        for window in [None, Some(1), Some(2), Some(5), Some(100)] {
            let w = window.unwrap_or(usize::MAX);
            for n in 0..12 {
                let sees = |i: usize, j: usize| i.abs_diff(j) < w;
                let counted = (0..n).map(|i| (0..n).filter(|&j| sees(i, j)).count()).sum::<usize>();
                assert_eq!(around(window, n), counted as f64, "{window:?} {n}");
                for past in 0..12 {
                    let counted = (past..past + n).map(|i| (i + 1).min(w)).sum::<usize>();
                    assert_eq!(before(window, past, n), counted as f64, "{window:?} {past} {n}");
                }
            }
        }
    }

    #[test]
    fn token_by_token_costs_what_one_pass_costs() {
        let config = Config::base(1000, 1000);
        let whole = Operations::decoder(&config, 0, 20, 30).total();
        let steps: f64 =
            (0..20).map(|past| Operations::decoder(&config, past, 1, 30).total()).sum();
        assert_eq!(whole, steps);
    }
}
