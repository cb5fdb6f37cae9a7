//! Configs to begin with: the paper's two models, and what others are made of.

use super::{Config, Family, Input, Positions, StackConfig, TokenInput};
use crate::position::SinusoidLayout;

impl Config {
    /// The paper's base model (§3, table 3): N = 6, d_model = 512, h = 8, d_ff = 2048; ReLU, norms behind the sums, sinusoids,
    /// words times √d_model.
    ///
    /// With equal numbers of words the vocabulary is one, and a single table serves source, target and
    /// read-out (§3.4); otherwise target and read-out share theirs.
    pub fn base(source_vocabulary: usize, target_vocabulary: usize) -> Config {
        Config::paper([source_vocabulary, target_vocabulary], 512, 8, 2048)
    }

    /// The paper's big model, as [`Config::base`] with d_model = 1024, h = 16, d_ff = 4096.
    pub fn big(source_vocabulary: usize, target_vocabulary: usize) -> Config {
        Config::paper([source_vocabulary, target_vocabulary], 1024, 16, 4096)
    }

    /// A model of this library's own family ([`Family::Paper`]) without stacks, to be filled in: an encoder, a decoder, or both.
    pub fn general(d_model: usize) -> Config {
        Config::empty(Family::Paper, d_model)
    }

    fn paper(vocabularies: [usize; 2], d_model: usize, heads: usize, d_ff: usize) -> Config {
        let [encoder, decoder] = vocabularies.map(|vocabulary| {
            let input = Input::Tokens(TokenInput::paper(vocabulary, d_model));
            StackConfig::paper(input, 6, d_model, heads, d_ff)
        });
        let mut config = Config::general(d_model);
        config.shared_words = encoder.vocabulary() == decoder.vocabulary();
        (config.encoder, config.decoder) = (Some(encoder), Some(decoder));
        config
    }
}

impl TokenInput {
    /// Words of d_model features as in the paper: times √d_model, plus sinusoids.
    pub fn paper(vocabulary: usize, d_model: usize) -> TokenInput {
        TokenInput {
            scale: (d_model as f32).sqrt(),
            positions: Positions::Sinusoidal { layout: SinusoidLayout::Paper, first: 0 },
            ..TokenInput::words(vocabulary, d_model)
        }
    }
}
