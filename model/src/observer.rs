//! What a pass shows of itself while it runs, without a bit of the result changing.

use headrow_kernels::Mat;

/// One of the two stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The encoder.
    Encoder,
    /// The decoder.
    Decoder,
}

/// The sublayers of a layer, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Sublayer {
    /// Attention of a sequence to itself.
    SelfAttention,
    /// Attention of a decoder to the encoder's output.
    CrossAttention,
    /// The position-wise feed-forward network.
    FeedForward,
}

/// Where in a model something was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which stack.
    pub side: Side,
    /// ℓ, counted from 0.
    pub layer: usize,
    /// Which sublayer of the layer.
    pub sublayer: Sublayer,
}

/// Sees the inside of a pass. All methods do nothing by default.
///
/// Rows are the tokens of the pass in their order, sequence by sequence. Long prompts run in several passes, each of which
/// is shown. Of a pass that is given up nothing is shown that was not computed. A closure over (side, ℓ, z_ℓ) is an observer of states.
///
/// ```
/// use headrow::{Mat, Observer, Side};
///
/// let mut norms = Vec::new();
/// let mut observer = |_: Side, layer: usize, state: Mat<'_>| {
///     norms.push((layer, state.row(0).iter().map(|x| x * x).sum::<f32>().sqrt()));
/// };
/// // It goes along in `Session::encode_observed` and `Session::extend_observed`.
/// observer.state(Side::Encoder, 0, Mat::from_row(&[3.0, 4.0]));
/// assert_eq!(norms, [(0, 5.0)]);
/// ```
pub trait Observer {
    /// The state z_ℓ between layers, `tokens × d_model`: z₀ enters the first one, z_N leaves the last.
    fn state(&mut self, _side: Side, _layer: usize, _state: Mat<'_>) {}

    /// What the stack gives, `tokens × d_model`: z_N, or its norm where the stack ends with one.
    fn output(&mut self, _side: Side, _output: Mat<'_>) {}

    /// Whether [`Observer::increment`] is to be called. It costs a pass over the states per sublayer.
    fn wants_increments(&self) -> bool {
        false
    }

    /// Δ = f(…), what a sublayer adds to the residual stream, `tokens × d_model`. Under pre-norm the stream before the
    /// last norm is z₀ + ΣΔ.
    fn increment(&mut self, _place: Place, _increment: Mat<'_>) {}

    /// Heads whose attention maps [`Observer::maps`] is to see at this place, ascending.
    fn wants_maps(&self, _place: Place) -> &[usize] {
        &[]
    }

    /// Weights of the wanted heads, normalised: row = index among the wanted heads · tokens + token, column = key,
    /// counted from the start of the token's sequence. Keys that a token does not see weigh 0.
    fn maps(&mut self, _place: Place, _maps: Mat<'_>) {}
}

impl<F: FnMut(Side, usize, Mat<'_>)> Observer for F {
    fn state(&mut self, side: Side, layer: usize, state: Mat<'_>) {
        self(side, layer, state);
    }
}

/// Looks at nothing.
pub(crate) struct Unobserved;

impl Observer for Unobserved {}
