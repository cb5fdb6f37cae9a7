//! What a stack reads, and the tables that make vectors of it.

use crate::position::SinusoidLayout;

/// What a stack reads.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Input {
    /// Ids of tokens (§3.4).
    Tokens(TokenInput),
    /// Images cut into patches, and a first token that stands for the whole (ViT).
    Patches {
        /// Rows and columns of an image.
        image: usize,
        /// Rows and columns of a patch, a divisor of `image`.
        patch: usize,
        /// Numbers of a pixel.
        channels: usize,
    },
    /// Spectrograms through two convolutions, the second of which halves their length (Whisper).
    Spectrogram {
        /// Frequency bands.
        bands: usize,
        /// Frames after the convolutions.
        frames: usize,
    },
    /// Vectors of d_model features as the caller made them.
    Vectors,
}

/// Tables that turn ids into vectors.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TokenInput {
    /// v: tokens in the vocabulary.
    pub vocabulary: usize,
    /// Features of a word's row. Where it is not d_model, a linear map leads there.
    pub width: usize,
    /// What that map is given.
    pub widening: Widening,
    /// Multiplies the words: √d_model in the paper.
    pub scale: f32,
    /// Token types (segments of a sentence pair); 0 when the model has none.
    pub token_types: usize,
    /// What is added for a token's place.
    pub positions: Positions,
    /// Whether a norm follows the sum.
    pub norm: bool,
}

impl TokenInput {
    /// Words of d_model features, as they are: no positions, types or norm.
    pub(crate) fn words(vocabulary: usize, d_model: usize) -> TokenInput {
        TokenInput {
            vocabulary,
            width: d_model,
            widening: Widening::default(),
            scale: 1.0,
            token_types: 0,
            positions: Positions::None,
            norm: false,
        }
    }

    /// Features of what is added to the words.
    pub(crate) fn sum_width(&self, d_model: usize) -> usize {
        match self.widening {
            Widening::Sum => self.width,
            Widening::Words => d_model,
        }
    }
}

/// What is mapped to d_model features where the words are narrower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Widening {
    /// The sum of words, types and positions, behind its norm: all tables are narrow (ALBERT).
    #[default]
    Sum,
    /// The words alone; types and positions are as wide as the model (OPT).
    Words,
}

/// What is added to a token for its place (§3.5).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Positions {
    /// Nothing: places come in through attention, or not at all.
    None,
    /// A row of a learned table.
    Learned {
        /// Rows of the table.
        rows: usize,
        /// The row of a sequence's first token.
        first: usize,
        /// An id that stands outside the count and takes the row before `first`.
        padding: Option<u32>,
    },
    /// Sines and cosines, for any length.
    Sinusoidal {
        /// How they are arranged.
        layout: SinusoidLayout,
        /// The position of a sequence's first token.
        first: usize,
    },
}

impl Input {
    /// In words.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Input::Tokens(_) => "tokens",
            Input::Patches { .. } => "images",
            Input::Spectrogram { .. } => "spectrograms",
            Input::Vectors => "vectors",
        }
    }
}
