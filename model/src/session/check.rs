//! Everything about an input that its caller may have got wrong, found before anything is computed.

use super::Session;
use crate::batch::{Batch, Content};
use crate::config::{Input, StackConfig};
use crate::error::{Error, Result};

impl Session {
    /// A batch for the encoder.
    pub(super) fn check(&self, batch: &Batch<'_>) -> Result<()> {
        let stack = self.model.config().encoder()?;
        let sequences = batch.sequences();
        if sequences > self.limits.sequences {
            let maximum = self.limits.sequences;
            return Err(Error::BatchTooLarge { what: "sequences", actual: sequences, maximum });
        }
        let d_model = self.model.config().d_model;
        let tokens = self.check_content(batch, stack, d_model)?;
        if tokens > self.limits.tokens {
            let maximum = self.limits.tokens;
            return Err(Error::BatchTooLarge { what: "tokens", actual: tokens, maximum });
        }
        let mut start = 0;
        for (sequence, length) in batch.lengths(stack.max_length()).enumerate() {
            check_length(sequence, length, stack.max_length())?;
            if let Content::Ids(ids) = batch.content() {
                check_ids(sequence, &ids[start..start + length], stack.vocabulary())?;
                check_types(sequence, start, length, batch, stack)?;
            }
            start += length;
        }
        Ok(())
    }

    /// Rows of a batch, when its numbers are as many as its lengths say and of the kind that is read.
    fn check_content(
        &self,
        batch: &Batch<'_>,
        stack: &StackConfig,
        d_model: usize,
    ) -> Result<usize> {
        let sum = batch.lengths(stack.max_length()).fold(0usize, usize::saturating_add);
        let numbers = |what, each: usize, given: usize| match sum.checked_mul(each) {
            Some(expected) if expected == given => Ok(sum),
            expected => {
                let expected = expected.unwrap_or(usize::MAX);
                Err(Error::Lengths { what, expected, actual: given })
            }
        };
        match (&stack.input, batch.content()) {
            (Input::Tokens(_), Content::Ids(ids)) => {
                numbers("ids", 1, ids.len())?;
                let types = batch.token_types().map_or(sum, <[u32]>::len);
                numbers("token types", 1, types)
            }
            (Input::Vectors, Content::Vectors(values)) => {
                numbers("numbers of vectors", d_model, values.len())
            }
            (Input::Patches { image, channels, .. }, Content::Images { pixels, count }) => {
                let expected = image.saturating_mul(*image).saturating_mul(*channels);
                check_numbers("pixels", expected, count, pixels.len())?;
                Ok(sum)
            }
            (Input::Spectrogram { bands, frames }, Content::Spectrograms { values, count }) => {
                let expected = bands.saturating_mul(*frames).saturating_mul(2);
                check_numbers("numbers of spectrograms", expected, count, values.len())?;
                Ok(sum)
            }
            (input, content) => {
                Err(Error::WrongInput { expected: input.name(), actual: content.name() })
            }
        }
    }
}

fn check_numbers(what: &'static str, each: usize, count: usize, actual: usize) -> Result<()> {
    match each.saturating_mul(count) {
        expected if expected == actual => Ok(()),
        expected => Err(Error::Lengths { what, expected, actual }),
    }
}

/// Neither empty nor longer than `maximum`.
pub(crate) fn check_length(sequence: usize, length: usize, maximum: usize) -> Result<()> {
    match length {
        0 => Err(Error::EmptySequence { sequence }),
        _ if length > maximum => Err(Error::SequenceTooLong { sequence, tokens: length, maximum }),
        _ => Ok(()),
    }
}

/// All below the vocabulary's size.
pub(crate) fn check_ids(sequence: usize, ids: &[u32], vocabulary: usize) -> Result<()> {
    match ids.iter().position(|&id| id as usize >= vocabulary) {
        Some(index) => Err(Error::TokenId { sequence, index, id: ids[index], vocabulary }),
        None => Ok(()),
    }
}

fn check_types(
    sequence: usize,
    start: usize,
    length: usize,
    batch: &Batch<'_>,
    stack: &StackConfig,
) -> Result<()> {
    let Some(given) = batch.token_types() else { return Ok(()) };
    // A model without types takes zeros, which say nothing.
    let types = stack.tokens().map_or(0, |tokens| tokens.token_types).max(1);
    for (index, &token_type) in given[start..start + length].iter().enumerate() {
        if token_type as usize >= types {
            return Err(Error::TokenType { sequence, index, token_type, types });
        }
    }
    Ok(())
}

impl Content<'_> {
    fn name(&self) -> &'static str {
        match self {
            Content::Ids(_) => "tokens",
            Content::Images { .. } => "images",
            Content::Spectrograms { .. } => "spectrograms",
            Content::Vectors(_) => "vectors",
        }
    }
}
