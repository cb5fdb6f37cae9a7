//! One pass of the encoder, and what is made of its states.

use super::places::PlaceTables;
use super::{Session, Workers, buffer};
use crate::batch::{Batch, Content, Series};
use crate::config::Input;
use crate::embedding::Tokens;
use crate::error::{Error, Result};
use crate::head::{Encoded, Head};
use crate::linear::{Call, take};
use crate::memory::filled;
use crate::model::Model;
use crate::observer::{Observer, Unobserved};
use crate::transformer::Entering;
use headrow_kernels::{Mat, MatMut, Segment, Stack};

impl Session {
    /// Writes the last hidden state of every token to `hidden`, `tokens × d_model`.
    ///
    /// # Errors
    /// Before anything is computed: when the batch is larger than the session, the lengths do not add up, a
    /// sequence is empty or too long, an id or token type is outside its table, the model reads other inputs or has no
    /// encoder, or the buffer's length is not that of the result. Later only [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn encode(&mut self, batch: &Batch<'_>, hidden: &mut [f32]) -> Result<()> {
        self.encode_observed(batch, hidden, &mut Unobserved)
    }

    /// [`Session::encode`] that also shows the inside of the pass. The bits are the same.
    ///
    /// # Errors
    /// As [`Session::encode`].
    pub fn encode_observed(
        &mut self,
        batch: &Batch<'_>,
        hidden: &mut [f32],
        observer: &mut dyn Observer,
    ) -> Result<()> {
        self.check(batch)?;
        let rows = self.rows_of(batch)?;
        let d_model = self.model.config().d_model;
        let hidden = buffer("the hidden states", hidden, rows, d_model)?;
        let Session { model, workers, reader, .. } = self;
        reader.run(model, workers, batch, |encoding, call, stack| {
            encoding.forward(call, hidden, stack, observer);
        })
    }

    /// Encodes and writes what `head` makes of the hidden states, in the shape that
    /// [`Model::output_shape`] gives.
    ///
    /// # Errors
    /// As [`Session::encode`], and [`Error::NoHead`](crate::Error::NoHead) when the checkpoint has no weights for `head`.
    pub fn predict(&mut self, batch: &Batch<'_>, head: Head, out: &mut [f32]) -> Result<()> {
        self.check(batch)?;
        let (tokens, sequences) = (self.rows_of(batch)?, batch.sequences());
        let (rows, cols) = self.model.output_shape(head, tokens, sequences)?;
        let out = buffer(head.name(), out, rows, cols)?;
        let Session { model, workers, reader, .. } = self;
        reader.run(model, workers, batch, |encoding, call, stack| {
            let d_model = encoding.model.config().d_model;
            let (mut hidden, mut stack) = take(stack, tokens, d_model);
            encoding.forward(call, hidden.reborrow(), &mut stack, &mut Unobserved);
            let encoded = Encoded { hidden: hidden.as_ref(), segments: encoding.segments };
            let heads = &encoding.model.transformer().heads;
            heads.forward(head, call, encoded, out, &mut stack);
        })
    }

    /// Rows of the hidden states of a batch: its tokens, patches or frames.
    ///
    /// # Errors
    /// [`Error::NoStack`](crate::Error::NoStack) in a model without encoder.
    pub fn rows_of(&self, batch: &Batch<'_>) -> Result<usize> {
        let each = self.model.config().encoder()?.max_length();
        Ok(batch.lengths(each).sum())
    }

    pub(super) fn warm_up_encoder(&mut self) -> Result<()> {
        let config = self.model.config();
        let (stack, d_model) = (config.encoder()?, config.d_model);
        let length = self.limits.source_length;
        let lengths = [length];
        let refused = || Error::out_of_memory(format_args!("{length} tokens"));
        let zeros = |count: usize| filled(0.0, count).ok_or_else(refused);
        let (words, numbers) = match stack.input {
            Input::Tokens(_) => (length, 0),
            Input::Vectors => (0, length * d_model),
            Input::Patches { image, channels, .. } => (0, image * image * channels),
            Input::Spectrogram { bands, frames } => (0, 2 * bands * frames),
        };
        let (ids, values) = (filled(0, words).ok_or_else(refused)?, zeros(numbers)?);
        let batch = match stack.input {
            Input::Tokens(_) => Batch::one(&ids),
            Input::Vectors => Batch::vectors(&values, &lengths),
            Input::Patches { .. } => Batch::images(&values, 1),
            Input::Spectrogram { .. } => Batch::spectrograms(&values, 1),
        };
        if length == 0 || stack.max_length() > self.limits.tokens && ids.is_empty() {
            return Ok(());
        }
        if config.decoder.is_some() && self.warm_up_with_source(&batch)? {
            return Ok(());
        }
        let mut hidden = zeros(length * d_model)?;
        self.encode(&batch, &mut hidden)
    }
}

/// What a session has for its encoder.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The sequences of the batch at hand; its capacity is the most there may be.
    pub(super) segments: Vec<Segment>,
    /// Made with the session of a model with an encoder.
    pub(super) tables: Option<PlaceTables>,
}

impl Reader {
    /// Lays a batch out that was checked, and runs `pass` on it.
    pub(super) fn run(
        &mut self,
        model: &Model,
        workers: &mut Workers,
        batch: &Batch<'_>,
        pass: impl FnOnce(&Encoding<'_>, Call<'_>, &mut Stack<'_>),
    ) -> Result<()> {
        let Reader { segments, tables } = self;
        let stack = model.config().encoder()?;
        segments.clear();
        let mut start = 0;
        for length in batch.lengths(stack.max_length()) {
            let rows = start..start + length;
            start = rows.end;
            segments.push(match stack.window {
                Some(window) => Segment::banded(rows.clone(), rows, window - 1, window - 1),
                None => Segment::full(rows.clone(), rows),
            });
        }
        #[cfg(feature = "tracing")]
        let _span =
            tracing::debug_span!("encode", tokens = start, sequences = segments.len()).entered();
        let tables = tables.as_ref().expect("made with the session");
        let encoding = Encoding { model, batch, segments, rows: start, tables };
        let multiply_adds = start.saturating_mul(stack.multiply_adds(model.config().d_model));
        workers.run(model, multiply_adds, |call, stack| pass(&encoding, call, stack))
    }
}

/// A batch on its way through the encoder.
pub(super) struct Encoding<'a> {
    pub(super) model: &'a Model,
    batch: &'a Batch<'a>,
    pub(super) segments: &'a [Segment],
    pub(super) rows: usize,
    tables: &'a PlaceTables,
}

impl Encoding<'_> {
    /// hidden ← encoder(entrance(batch)), rows × d_model.
    pub(super) fn forward(
        &self,
        call: Call<'_>,
        mut hidden: MatMut<'_>,
        stack: &mut Stack<'_>,
        observer: &mut dyn Observer,
    ) {
        let encoder = self.model.transformer().encoder.as_ref();
        let (entrance, encoder) = encoder.expect("checked before the pass");
        let (places, mut stack) = stack.take::<u32>(self.rows);
        for segment in self.segments {
            let places = places[segment.queries.clone()].iter_mut();
            places.zip(0..).for_each(|(place, at)| *place = at);
        }
        let places = &*places;
        let entering = match self.batch.content() {
            Content::Series(Series::Ids(ids)) => {
                let (types, sinusoids) = (self.batch.token_types(), self.tables.sinusoids());
                Entering::Tokens(Tokens { ids, types, places, sinusoids })
            }
            Content::Series(Series::Vectors(values)) => {
                Entering::Vectors(Mat::new(values, self.rows, hidden.cols()))
            }
            Content::Images { pixels, .. } => Entering::Images { pixels },
            Content::Spectrograms { values, count } => Entering::Spectrograms { values, count },
        };
        entrance.forward(call, entering, hidden.reborrow(), &mut stack);
        let pass = self.tables.pass(call, places);
        encoder.forward(&pass, hidden, self.segments, &mut stack, observer);
    }
}
