//! Everything about an input that its caller may have got wrong, found before anything is computed.

use super::Session;
use super::chunk::{Chunk, Sight};
use crate::batch::{Batch, Content, Series};
use crate::config::{Input, RelativePositions, StackConfig};
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
            if let Content::Series(Series::Ids(ids)) = batch.content() {
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
            (Input::Tokens(_), Content::Series(Series::Ids(ids))) => {
                numbers("ids", 1, ids.len())?;
                let types = batch.token_types().map_or(sum, <[u32]>::len);
                numbers("token types", 1, types)
            }
            (Input::Vectors, Content::Series(Series::Vectors(values))) => {
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

    /// Chunks for the decoder.
    pub(super) fn check_chunks(&self, chunks: &[Chunk<'_>]) -> Result<()> {
        let config = self.model.config();
        let stack = config.decoder()?;
        let sequences = self.sequences.as_ref().expect("made with the session");
        if chunks.len() > self.limits.sequences {
            let (what, maximum) = ("sequences", self.limits.sequences);
            return Err(Error::BatchTooLarge { what, actual: chunks.len(), maximum });
        }
        for (index, chunk) in chunks.iter().enumerate() {
            let slot = sequences.slot(chunk.sequence)?;
            if chunks[..index].iter().any(|other| other.sequence == chunk.sequence) {
                return Err(Error::TwiceInCall { chunk: index });
            }
            let rows = check_chunk(index, chunk, stack, config.d_model)?;
            check_length(index, rows, usize::MAX)?;
            let length = sequences.slots[slot].own.length().saturating_add(rows);
            check_length(index, length, self.limits.length)?;
        }
        self.check_sight(chunks, stack)
    }

    /// That tokens which see one another go in one pass, and need nothing that looks backwards only.
    fn check_sight(&self, chunks: &[Chunk<'_>], stack: &StackConfig) -> Result<()> {
        if chunks.iter().all(|chunk| chunk.sight == Sight::Before) {
            return Ok(());
        }
        let turned =
            matches!(stack.relative, RelativePositions::None | RelativePositions::Rotary(_));
        if stack.window.is_some() || !turned {
            return Err(Error::WholeChunk);
        }
        let rows = chunks.iter().map(|chunk| chunk.rows(self.model.config().d_model));
        let (what, maximum) = ("tokens that see one another", self.limits.tokens);
        match rows.sum() {
            actual if actual > maximum => Err(Error::BatchTooLarge { what, actual, maximum }),
            _ => Ok(()),
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

/// The rows of a chunk, of the kind that is read.
fn check_chunk(
    index: usize,
    chunk: &Chunk<'_>,
    stack: &StackConfig,
    d_model: usize,
) -> Result<usize> {
    match (&stack.input, chunk.content) {
        (Input::Tokens(tokens), Series::Ids(ids)) => {
            check_ids(index, ids, tokens.vocabulary)?;
            Ok(ids.len())
        }
        (Input::Vectors, Series::Vectors(values)) if values.len().is_multiple_of(d_model) => {
            Ok(chunk.rows(d_model))
        }
        (Input::Vectors, Series::Vectors(values)) => {
            let expected = values.len().next_multiple_of(d_model);
            Err(Error::Lengths { what: "numbers of vectors", expected, actual: values.len() })
        }
        (input, content) => {
            Err(Error::WrongInput { expected: input.name(), actual: content.name() })
        }
    }
}
