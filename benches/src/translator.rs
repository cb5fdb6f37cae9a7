//! A translator of a given shape in training, and batches for it: what `training-ratio` and `training-memory` measure.

use clap::Args;
use headrow::train::Examples;
use headrow::{Config, Input, NormPlacement, StackConfig, TokenInput};

/// Sizes; without options those of the English–German translator of `peers/training`.
#[derive(Args, Clone, Debug)]
pub struct Shape {
    /// Features.
    #[arg(long, default_value_t = 192)]
    pub d_model: usize,
    /// Features inside the feed-forward networks.
    #[arg(long, default_value_t = 768)]
    pub d_ff: usize,
    /// Layers of each stack.
    #[arg(long, default_value_t = 3)]
    pub layers: usize,
    /// Heads of each layer.
    #[arg(long, default_value_t = 4)]
    pub heads: usize,
    /// Words of either side.
    #[arg(long, default_value_t = 6000)]
    pub vocabulary: usize,
    /// Tokens of a sentence, on both sides.
    #[arg(long, default_value_t = 16)]
    pub length: usize,
    /// Tokens of a batch, both sides together.
    #[arg(long, default_value_t = 4000)]
    pub tokens: usize,
}

impl Shape {
    /// An encoder and a decoder, pre-norm.
    pub fn config(&self) -> Config {
        let mut config = Config::general(self.d_model);
        let input = Input::Tokens(TokenInput::paper(self.vocabulary, self.d_model));
        let mut stack = StackConfig::paper(input, self.layers, self.d_model, self.heads, self.d_ff);
        (stack.placement, stack.final_norm) = (NormPlacement::Pre, true);
        config.encoder = Some(stack.clone());
        config.decoder = Some(stack);
        config
    }

    /// A batch of sentences of so many tokens.
    pub fn examples(&self, length: usize) -> Examples {
        let mut examples = Examples::default();
        for i in 0..self.tokens / (2 * length) {
            let ids = |salt: usize| {
                let id = move |j: usize| ((i * 7919 + j * 104_729 + salt) % self.vocabulary) as u32;
                (0..length).map(id)
            };
            examples.sources.push(ids(1));
            examples.targets.push(ids(2));
            examples.labels.extend(ids(3).map(Some));
        }
        examples
    }
}
