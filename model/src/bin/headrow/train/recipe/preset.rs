//! Models to begin with, and what goes well with their sizes.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum Preset {
    /// N = 2, d_model = 64, h = 4, d_ff = 256; dropout 0.1, 5000 steps.
    Tiny,
    /// N = 3, d_model = 256, h = 4, d_ff = 1024; dropout 0.1, 20 000 steps.
    Small,
    /// The paper's: N = 6, d_model = 512, h = 8, d_ff = 2048; dropout 0.1, 100 000 steps of 25 000 tokens.
    Base,
    /// The paper's: N = 6, d_model = 1024, h = 16, d_ff = 4096; dropout 0.3, 300 000 steps of 25 000 tokens.
    Big,
}

/// A shape and what goes with it.
pub(in super::super) struct Shape {
    pub(in super::super) layers: u16,
    pub(in super::super) d_model: u32,
    pub(in super::super) heads: u32,
    pub(in super::super) d_ff: u32,
    pub(in super::super) dropout: f64,
    pub(in super::super) batch_tokens: u32,
    pub(in super::super) steps: u64,
    /// Checkpoints of which the model is the mean.
    pub(in super::super) average: u16,
}

impl Preset {
    pub(in super::super) fn shape(self) -> Shape {
        let shape = |layers, d_model, heads, dropout, batch_tokens, steps, average| Shape {
            layers,
            d_model,
            heads,
            d_ff: 4 * d_model,
            dropout,
            batch_tokens,
            steps,
            average,
        };
        match self {
            Preset::Tiny => shape(2, 64, 4, 0.1, 4000, 5000, 5),
            Preset::Small => shape(3, 256, 4, 0.1, 4000, 20_000, 5),
            Preset::Base => shape(6, 512, 8, 0.1, 25_000, 100_000, 5),
            Preset::Big => shape(6, 1024, 16, 0.3, 25_000, 300_000, 20),
        }
    }
}
