//! A stack of layers: its sizes, and the options in which families differ.

use super::input::{Input, Positions, TokenInput};
use crate::error::{Error, Result};
use crate::position::Rotary;
use headrow_kernels::Activation;

/// One stack of equal layers and what it reads.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StackConfig {
    /// What enters.
    pub input: Input,
    /// N: layers.
    pub layers: usize,
    /// Layers with weights of their own. Fewer than [`layers`](StackConfig::layers) when neighbours share them, as in ALBERT.
    pub distinct_layers: usize,
    /// h: heads of each attention.
    pub heads: usize,
    /// Heads of keys and values; as many as `heads` unless groups share them.
    pub kv_heads: usize,
    /// d_k: features of a head's queries and keys.
    pub d_k: usize,
    /// d_v: features of a head's values.
    pub d_v: usize,
    /// Factor of the scores.
    pub scale: ScoreScale,
    /// c: scores become c·tanh(score/c) before anything is added to them.
    pub softcap: Option<f32>,
    /// Positions inside self-attention, beside those that the input may add.
    pub relative: RelativePositions,
    /// w: a query sees the w last tokens, itself included, and in an encoder as many after it.
    pub window: Option<usize>,
    /// d_ff: inner features of the feed-forward network.
    pub d_ff: usize,
    /// Between the linear maps of the feed-forward network.
    pub activation: Activation,
    /// The word `config.json` has for it.
    pub activation_word: String,
    /// Whether the activation gates a second inner map.
    pub gating: Gating,
    /// Which maps and norms add a bias.
    pub biases: Biases,
    /// The kind of every norm in the layers.
    pub norm: NormKind,
    /// ε inside the root of every norm.
    pub epsilon: f32,
    /// Where the layers normalise.
    pub placement: NormPlacement,
    /// Whether a last norm follows the layers.
    pub final_norm: bool,
}

/// How places enter attention.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum RelativePositions {
    /// Not at all.
    #[default]
    None,
    /// Queries and keys are rotated by their places.
    Rotary(Rotary),
    /// A learned number per head and bucket of offsets is added to the scores (T5).
    Buckets {
        /// Buckets of the table.
        buckets: usize,
        /// From this offset on, all share the last bucket.
        max_distance: usize,
    },
    /// A slope per head times the offset is added to the scores (ALiBi).
    Alibi,
}

/// Factor of the scores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum ScoreScale {
    /// 1/√d_k, as in the paper.
    #[default]
    Paper,
    /// 1, as in T5, whose weights were drawn for it.
    One,
    /// 1/(√d_k·(ℓ + 1)) in layer ℓ, counted from 0: an option of GPT-2's.
    PaperByLayer,
}

impl ScoreScale {
    /// The factor in layer `layer`, counted from 0.
    pub(crate) fn factor(self, d_k: usize, layer: usize) -> f32 {
        let root = 1.0 / (d_k as f32).sqrt();
        match self {
            ScoreScale::Paper => root,
            ScoreScale::One => 1.0,
            ScoreScale::PaperByLayer => root / (layer + 1) as f32,
        }
    }
}

/// Whether the activation of a feed-forward network gates a second inner map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gating {
    /// σ(xW₁ + b₁)W₂ + b₂.
    #[default]
    None,
    /// (σ(xW) ⊙ xV)W₂: SwiGLU, GEGLU and their kin.
    Gated,
}

/// Which maps and norms of the layers add a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Biases {
    /// The maps to queries, keys and values.
    pub queries_keys_values: bool,
    /// The map to keys, where the other two have one. It shifts all scores of a query alike, so Whisper does
    /// without.
    pub keys: bool,
    /// The map that follows the heads.
    pub attention_output: bool,
    /// The maps of the feed-forward network.
    pub feed_forward: bool,
    /// LayerNorm's β. RMSNorm has none.
    pub norms: bool,
}

impl Biases {
    /// All of them, as in the paper.
    pub const ALL: Biases = Biases::everywhere(true);
    /// None of them.
    pub const NONE: Biases = Biases::everywhere(false);

    const fn everywhere(bias: bool) -> Biases {
        Biases {
            queries_keys_values: bias,
            keys: bias,
            attention_output: bias,
            feed_forward: bias,
            norms: bias,
        }
    }
}

/// Where a layer normalises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormPlacement {
    /// LN(x + f(x)), as in the paper.
    Post,
    /// x + f(LN(x)); the stack then ends with a norm of its own.
    Pre,
    /// x + f(LN₁(x)) + g(LN₂(x)): attention and feed-forward side by side, as in GPT-NeoX.
    Parallel,
}

/// How a norm is defined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormKind {
    /// (x − µ)/√(σ² + ε)·γ + β.
    #[default]
    Layer,
    /// x/√(mean(x²) + ε)·γ.
    Rms,
}

impl StackConfig {
    /// A stack as the paper has it, of h heads of d_model/h features: post-norm, ReLU, LayerNorm, ε = 1e-5.
    ///
    /// `d_model` that `heads` do not divide is found when the config is checked.
    pub fn paper(
        input: Input,
        layers: usize,
        d_model: usize,
        heads: usize,
        d_ff: usize,
    ) -> StackConfig {
        let d_head = d_model.checked_div(heads).unwrap_or(0);
        StackConfig {
            input,
            layers,
            distinct_layers: layers,
            heads,
            kv_heads: heads,
            d_k: d_head,
            d_v: d_head,
            scale: ScoreScale::Paper,
            softcap: None,
            relative: RelativePositions::None,
            window: None,
            d_ff,
            activation: Activation::Relu,
            activation_word: "relu".to_owned(),
            gating: Gating::None,
            biases: Biases::ALL,
            norm: NormKind::Layer,
            epsilon: 1e-5,
            placement: NormPlacement::Post,
            final_norm: false,
        }
    }

    /// v, or 0 when no tokens are read.
    pub fn vocabulary(&self) -> usize {
        self.tokens().map_or(0, |tokens| tokens.vocabulary)
    }

    /// The tables of a stack that reads tokens.
    pub fn tokens(&self) -> Option<&TokenInput> {
        match &self.input {
            Input::Tokens(tokens) => Some(tokens),
            _ => None,
        }
    }

    /// The tables, of a family that reads tokens.
    ///
    /// # Errors
    /// [`Error::WrongInput`] when there are none: a config may be changed after it was read.
    pub(crate) fn token_input(&self) -> Result<&TokenInput> {
        let wrong = || Error::WrongInput { expected: "tokens", actual: self.input.name() };
        self.tokens().ok_or_else(wrong)
    }

    /// The longest sequence: as many tokens as a learned table has places for, as many patches or frames
    /// as an image or a spectrogram has; as many as a rotary scaling stretches to. Where nothing sets a limit,
    /// [`StackConfig::UNLIMITED`].
    pub fn max_length(&self) -> usize {
        self.length_with(Rotary::longest)
    }

    /// The longest sequence that a session is made for unless it is told otherwise: a dynamic rotary scaling changes the
    /// angles of all positions, so only who declares longer texts gets it.
    pub(crate) fn usual_length(&self) -> usize {
        self.length_with(|rotary| rotary.max_position)
    }

    fn length_with(&self, rotary_length: impl Fn(&Rotary) -> usize) -> usize {
        match &self.input {
            Input::Tokens(TokenInput {
                positions: Positions::Learned { rows, first, .. }, ..
            }) => rows.saturating_sub(*first),
            Input::Tokens(_) | Input::Vectors => match &self.relative {
                RelativePositions::Rotary(rotary) => rotary_length(rotary),
                _ => StackConfig::UNLIMITED,
            },
            &Input::Patches { image, patch, .. } => {
                let side = image.checked_div(patch).unwrap_or(0);
                side.saturating_mul(side).saturating_add(1)
            }
            Input::Spectrogram { frames, .. } => *frames,
        }
    }

    /// The longest sequence of a model that sets no limit itself.
    pub const UNLIMITED: usize = 1 << 24;

    /// Multiply-adds of all layers for one token, beside attention, or the largest number when that is beyond it.
    pub(crate) fn multiply_adds(&self, d_model: usize) -> usize {
        let times = |a: usize, b: usize| a.saturating_mul(b);
        let queries = times(self.heads, self.d_k.saturating_add(self.d_v));
        let keys = times(self.kv_heads, self.d_k.saturating_add(self.d_v));
        let inner = times(self.d_ff, if self.gating == Gating::Gated { 3 } else { 2 });
        let wide = queries.saturating_add(keys).saturating_add(inner);
        times(self.layers, times(d_model, wide))
    }
}
