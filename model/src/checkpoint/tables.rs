//! What stands before and behind the layers: embeddings, read-outs, classifiers.

use super::names::{DecoderNames, StackNames};
use super::parts::{Layer, LayerParts};
use super::{Part, Reader};
use crate::config::{Config, Positions, StackConfig, TokenInput, Widening};
use crate::embedding::{Embedding, Projection, ReadOut, Words};
use crate::error::Result;
use crate::linear::Linear;
use crate::origin::Initial;
use crate::position::{LearnedPositions, PositionTable};
use crate::transformer::Transformer;
use std::sync::Arc;

impl Reader<'_> {
    /// A decoder alone that reads tokens, and its read-out.
    pub(super) fn decoder_only(
        &mut self,
        config: &Config,
        names: &DecoderNames,
        parts: impl Fn(&Layer<'_>) -> LayerParts,
    ) -> Result<Transformer> {
        let (stack, tied) = (config.decoder()?, config.read_out.tied);
        let &TokenInput { vocabulary, width, .. } = stack.token_input()?;
        let words = self.words(names.words, vocabulary, width, tied)?;
        let embedding = self.embedding(config, stack, words, &names.stack)?;
        let narrowing = names.narrowing.map(|name| names.stack.whole(name));
        let projection = self.resized(narrowing, width, config.d_model)?;
        let decoder = self.decoder(config, &names.stack, parts)?;
        let tied = tied.then_some(&embedding.words);
        let read_out = self.read_out(tied, names.read_out, vocabulary, width)?;
        let read_out = ReadOut { projection, ..read_out };
        Ok(Transformer::decoder_only(embedding, decoder, read_out))
    }

    /// What turns the tokens of a stack into vectors.
    pub(super) fn embedding(
        &mut self,
        config: &Config,
        stack: &StackConfig,
        words: Arc<Words>,
        names: &StackNames,
    ) -> Result<Embedding> {
        let tokens = stack.token_input()?;
        let width = tokens.sum_width(config.d_model);
        let mut embedding = Embedding::plain(words, tokens);
        embedding.positions = self.positions(tokens, width, names)?;
        if tokens.token_types > 0 {
            let name = names.of(names.types, "token_types")?;
            let initial = Initial::Table(width);
            embedding.types =
                self.tensor(&format!("{name}.weight"), &[tokens.token_types, width], initial)?;
        }
        if tokens.norm {
            let name = names.of(names.input_norm, "norm")?;
            embedding.norm = Some(self.stack_norm(stack, width, &name)?);
        }
        let projection = names.projection.map(|name| names.whole(name));
        let map = self.resized(projection, config.d_model, tokens.width)?;
        embedding.projection = map.map(match tokens.widening {
            Widening::Sum => Projection::Sum,
            Widening::Words => Projection::Words,
        });
        Ok(embedding)
    }

    /// What the input adds for positions.
    fn positions(
        &mut self,
        tokens: &TokenInput,
        width: usize,
        names: &StackNames,
    ) -> Result<PositionTable> {
        Ok(match tokens.positions {
            Positions::None => PositionTable::None,
            Positions::Sinusoidal { first, .. } => {
                PositionTable::Sinusoidal { first: first as u32 }
            }
            Positions::Learned { rows, first, padding } => {
                let name = names.of(names.positions, "positions")?;
                let initial = Initial::Table(width);
                let table = self.tensor(&format!("{name}.weight"), &[rows, width], initial)?;
                PositionTable::Learned(LearnedPositions { table, first: first as u32, padding })
            }
        })
    }

    /// A map without a bias between features of two widths, which a family that has no name for it leaves out, and any where
    /// they are equal.
    pub(super) fn resized(
        &mut self,
        name: Option<String>,
        outputs: usize,
        inputs: usize,
    ) -> Result<Option<Linear>> {
        let part = name.filter(|_| outputs != inputs).map(|name| Part::new(name, outputs, inputs));
        part.map(|part| self.linear(&[part.with_bias(false)])).transpose()
    }

    /// The read-out with the words of the embedding, where they are tied, or with `name`, v × width.
    pub(super) fn read_out(
        &mut self,
        tied: Option<&Arc<Words>>,
        name: &str,
        vocabulary: usize,
        width: usize,
    ) -> Result<ReadOut> {
        let words = match tied {
            Some(words) => Arc::clone(words),
            None => self.read_out_words(name, vocabulary, width)?,
        };
        Ok(ReadOut { projection: None, scale: 1.0, words, bias: None })
    }

    /// The map from states to labels, which are as many as the file has and the config names.
    pub(super) fn labels(&mut self, config: &Config, name: &str) -> Result<Linear> {
        let named = config.labels.len();
        let shape = self.shape(&format!("{name}.weight"));
        let labels = shape.and_then(|shape| shape.first().copied()).unwrap_or(named);
        if named != 0 && named != labels {
            self.problem(|| format!("{name} has {labels} labels, the config names {named}"));
        }
        self.linear(&[Part::new(name, labels, config.d_model)])
    }
}
