//! What bounds the parts of a layer: operations, or the bytes they move.

use super::operations::Operations;
use crate::config::{Config, Gating, StackConfig};
use crate::observer::Side;

/// A machine as the roofline model has it (Williams, Waterman, Patterson, 2009).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Operations of a second, at most.
    pub operations: f64,
    /// Bytes of a second between memory and processor, at most.
    pub bandwidth: f64,
}

impl Machine {
    /// Operations of a second for so many operations per byte moved: the lower of the two roofs.
    pub fn attainable(&self, intensity: f64) -> f64 {
        self.operations.min(self.bandwidth * intensity)
    }

    /// The operations per byte where the roofs meet: with fewer, memory is what one waits for.
    pub fn ridge(&self) -> f64 {
        self.operations / self.bandwidth
    }
}

/// A part of a layer: what it computes and what it moves.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Traffic {
    /// Which part.
    pub part: &'static str,
    /// Operations of its products.
    pub operations: f64,
    /// Bytes of its weights, inputs and results in f32, each moved once.
    pub bytes: f64,
}

impl Traffic {
    /// Operations per byte.
    pub fn intensity(&self) -> f64 {
        self.operations / self.bytes
    }
}

/// The parts of one layer of a stack over n tokens of one sequence: projections, attention and feed-forward network. None
/// without such a stack.
///
/// Scores stay in the caches, as with kernels that work block by block. In a decoder beside an encoder the layer's attention to a
/// source as long is counted along.
///
/// ```
/// use headrow::accounting::{Machine, traffic};
/// use headrow::{Config, Side};
///
/// // 400·10⁹ operations and 40·10⁹ bytes a second: the roofs meet at 10 operations a byte.
/// let machine = Machine { operations: 4e11, bandwidth: 4e10 };
/// let bound = |n| {
///     let parts = traffic(&Config::base(37_000, 37_000), Side::Encoder, n);
///     parts.iter().map(|part| machine.attainable(part.intensity())).fold(f64::INFINITY, f64::min)
/// };
/// // One token waits for the weights, a thousand do not.
/// assert!(bound(1) < machine.operations);
/// assert_eq!(bound(1000), machine.operations);
/// # assert_eq!(machine.ridge(), 10.0);
/// ```
pub fn traffic(config: &Config, side: Side, n: usize) -> Vec<Traffic> {
    let Some(stack) = config.stack(side) else { return Vec::new() };
    let beside_encoder = side == Side::Decoder && config.encoder.is_some();
    let attentions = if beside_encoder { 2.0 } else { 1.0 };
    let layer = Operations::layer(config, side, n);
    let StackConfig { heads, kv_heads, d_k, d_v, d_ff, .. } = *stack;
    let (tokens, d) = (n as f64, config.d_model as f64);
    let of = |heads: usize, width: usize| heads as f64 * width as f64;
    // Q, K, V, and the heads side by side.
    let made = of(heads, d_k) + of(kv_heads, d_k) + of(kv_heads, d_v);
    let wide = made + of(heads, d_v);
    let inner = if stack.gating == Gating::Gated { 3.0 } else { 2.0 };
    let part = |part, operations, numbers: f64| Traffic { part, operations, bytes: 4.0 * numbers };
    vec![
        part("projections", layer.projections, attentions * (d * wide + tokens * (2.0 * d + wide))),
        part("attention", layer.attention, attentions * tokens * wide),
        part(
            "feed-forward",
            layer.feed_forward,
            inner * d * d_ff as f64 + tokens * (2.0 * d + inner * d_ff as f64),
        ),
    ]
}
