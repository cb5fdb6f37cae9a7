//! Passes of the decoder: each extends some sequences, by one token or by a whole prompt.
//!
//! Tokens of several sequences, prompts and single ones mixed, make the rows of one pass. A prompt longer than a pass
//! is read in pieces, and no bit depends on where it is cut.

use super::chunk::{Chunk, Output, Sight};
use super::sequences::{Sequences, recycled};
use super::{Session, buffer};
use crate::batch::Series;
use crate::decoder::Memory;
use crate::embedding::Tokens;
use crate::error::{Error, Result};
use crate::linear::{Call, take};
use crate::model::Model;
use crate::observer::{Observer, Unobserved};
use crate::transformer::Entrance;
use headrow_kernels::{CachedSegment, Mat, MatMut, Stack};
use std::ops::Range;

impl Session {
    /// Reads the chunks, each behind what its sequence has, remembers them, and writes what `output` says, chunk after chunk.
    ///
    /// # Errors
    /// Before anything is computed: a sequence that is not alive or named twice, an empty chunk, one that makes a
    /// sequence longer than the session allows, ids out of range, caches without room ([`Error::CacheFull`]), a buffer of
    /// another length than the output. Later only [`Error::Cancelled`]. The sequences are as before then.
    pub fn extend(&mut self, chunks: &[Chunk<'_>], output: Output, out: &mut [f32]) -> Result<()> {
        self.extend_observed(chunks, output, out, &mut Unobserved)
    }

    /// [`Session::extend`] that also shows the inside of each pass. The bits are the same.
    ///
    /// # Errors
    /// As [`Session::extend`].
    pub fn extend_observed(
        &mut self,
        chunks: &[Chunk<'_>],
        output: Output,
        out: &mut [f32],
        observer: &mut dyn Observer,
    ) -> Result<()> {
        self.check_chunks(chunks)?;
        let out = self.output(chunks, output, out)?;
        let mut extension = Extension { session: self, chunks, computed: false };
        extension.session.reserve(chunks)?;
        extension.session.passes(chunks, output, out, observer)?;
        extension.computed = true;
        Ok(())
    }

    /// The caller's buffer in the shape of the output.
    fn output<'o>(
        &self,
        chunks: &[Chunk<'_>],
        output: Output,
        out: &'o mut [f32],
    ) -> Result<MatMut<'o>> {
        let d_model = self.model.config().d_model;
        let rows = match output.all() {
            true => chunks.iter().map(|chunk| chunk.rows(d_model)).sum(),
            false => chunks.len(),
        };
        match output {
            Output::None => buffer("no output", out, 0, 0),
            Output::LastHidden | Output::AllHidden => {
                buffer("the hidden states", out, rows, d_model)
            }
            Output::LastLogits | Output::AllLogits => {
                let read_out = self.model.transformer().read_out.as_ref();
                let read_out = read_out.ok_or(Error::NoHead { head: "read-out" })?;
                buffer("the scores", out, rows, read_out.outputs())
            }
        }
    }

    /// Takes pages for all chunks, and room for the segments of a pass.
    fn reserve(&mut self, chunks: &[Chunk<'_>]) -> Result<()> {
        let d_model = self.model.config().d_model;
        let sequences = self.sequences.as_mut().expect("checked before");
        sequences.reserve_segments(self.limits.sequences)?;
        chunks.iter().try_for_each(|chunk| {
            let slot = chunk.sequence.index();
            let length = sequences.slots[slot].own.length() + chunk.rows(d_model);
            sequences.reserve(slot, length)
        })
    }

    /// Makes the chunks' tokens part of their sequences, or gives their pages back.
    fn settle(&mut self, chunks: &[Chunk<'_>], computed: bool) {
        let d_model = self.model.config().d_model;
        let Some(Sequences { slots, pool, .. }) = &mut self.sequences else { return };
        for chunk in chunks {
            let own = &mut slots[chunk.sequence.index()].own;
            match computed {
                true => own.commit(own.length() + chunk.rows(d_model)),
                false => own.truncate(pool, own.length()),
            }
        }
    }

    fn passes(
        &mut self,
        chunks: &[Chunk<'_>],
        output: Output,
        mut out: MatMut<'_>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let Session { model, limits, workers, sequences, .. } = self;
        let sequences = sequences.as_mut().expect("checked before");
        let d_model = model.config().d_model;
        let stack = model.config().decoder()?;
        let mut start = Cursor::default();
        let mut written = 0;
        while start.chunk < chunks.len() {
            let pass = DecoderPass { model, chunks, start, rows: limits.tokens, output };
            let outputs = pass.outputs();
            #[cfg(feature = "tracing")]
            let _span = tracing::debug_span!("decode", tokens = pass.tokens(), outputs).entered();
            let mut multiply_adds = pass.tokens().saturating_mul(stack.multiply_adds(d_model));
            if matches!(output, Output::LastLogits | Output::AllLogits) {
                multiply_adds = multiply_adds.saturating_add(outputs * out.cols() * d_model);
            }
            let here = out.reborrow().rows_range(written..written + outputs);
            workers.run(model, multiply_adds, |call, stack| {
                pass.forward(call, sequences, here, stack, observer);
            })?;
            written += outputs;
            start = pass.end();
        }
        Ok(())
    }
}

/// Chunks on their way into their sequences. Their pages are taken first and count once all is computed: an error or a
/// panic leaves the sequences as they were.
struct Extension<'s, 'c> {
    session: &'s mut Session,
    chunks: &'c [Chunk<'c>],
    computed: bool,
}

impl Drop for Extension<'_, '_> {
    fn drop(&mut self) {
        self.session.settle(self.chunks, self.computed);
    }
}

/// A place in a list of chunks.
#[derive(Clone, Copy, Default)]
struct Cursor {
    chunk: usize,
    row: usize,
}

/// Rows of one chunk in a pass.
struct Piece<'a> {
    chunk: &'a Chunk<'a>,
    /// Within the chunk.
    rows: Range<usize>,
    /// Whether the chunk ends with them.
    last: bool,
    end: Cursor,
}

/// As many tokens of the chunks as go in one pass.
struct DecoderPass<'a> {
    model: &'a Model,
    chunks: &'a [Chunk<'a>],
    start: Cursor,
    /// Most rows.
    rows: usize,
    output: Output,
}

impl<'a> DecoderPass<'a> {
    fn pieces(&self) -> impl Iterator<Item = Piece<'a>> + use<'a> {
        let (chunks, d_model) = (self.chunks, self.model.config().d_model);
        let (mut at, mut left) = (self.start, self.rows);
        std::iter::from_fn(move || {
            let chunk = chunks.get(at.chunk).filter(|_| left > 0)?;
            let all = chunk.rows(d_model);
            let rows = at.row..all.min(at.row.saturating_add(left));
            left -= rows.len();
            let last = rows.end == all;
            at = match last {
                true => Cursor { chunk: at.chunk + 1, row: 0 },
                false => Cursor { chunk: at.chunk, row: rows.end },
            };
            Some(Piece { chunk, rows, last, end: at })
        })
    }

    fn tokens(&self) -> usize {
        self.pieces().map(|piece| piece.rows.len()).sum()
    }

    /// Where the next pass starts.
    fn end(&self) -> Cursor {
        self.pieces().last().map_or(self.start, |piece| piece.end)
    }

    /// Rows that this pass writes.
    fn outputs(&self) -> usize {
        match self.output {
            Output::None => 0,
            Output::AllHidden | Output::AllLogits => self.tokens(),
            Output::LastHidden | Output::LastLogits => {
                self.pieces().filter(|piece| piece.last).count()
            }
        }
    }

    fn forward(
        &self,
        call: Call<'_>,
        sequences: &mut Sequences,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
        observer: &mut dyn Observer,
    ) {
        let Sequences { caches, source_caches, tables, slots, .. } = sequences;
        let mut segments = recycled(std::mem::take(&mut sequences.segments));
        let mut source_segments = recycled(std::mem::take(&mut sequences.source_segments));
        let config = self.model.config();
        let d_model = config.d_model;
        let decoder = self.model.transformer().decoder.as_ref();
        let (entrance, decoder) = decoder.expect("checked before the pass");
        let window = config.decoder.as_ref().and_then(|stack| stack.window);

        let rows = self.tokens();
        let (places, mut stack) = stack.take::<u32>(rows);
        let mut first = 0;
        for piece in self.pieces() {
            let slot = &slots[piece.chunk.sequence.index()];
            let before = slot.own.length();
            let queries = first..first + piece.rows.len();
            first = queries.end;
            let keys = before + piece.rows.end;
            let at = (before + piece.rows.start) as u32;
            places[queries.clone()].iter_mut().zip(at..).for_each(|(place, at)| *place = at);
            let segment = match piece.chunk.sight {
                Sight::Before => CachedSegment::causal(queries.clone(), slot.own.list(), keys),
                Sight::All => CachedSegment::full(queries.clone(), slot.own.list(), keys),
            };
            segments.push(match window {
                Some(window) => segment.with_window(window),
                None => segment,
            });
            let (pages, length) = (slot.source.list(), slot.source.length());
            source_segments.push(CachedSegment::full(queries, pages, length));
        }
        let places = &*places;
        let (mut x, mut stack) = take(&mut stack, rows, d_model);
        self.enter(call, entrance, places, tables.sinusoids(), x.reborrow(), &mut stack);
        let mut memory = Memory {
            own: caches,
            segments: &segments,
            sources: source_caches,
            source_segments: &source_segments,
        };
        let pass = tables.pass(call, places);
        decoder.forward(&pass, x.reborrow(), &mut memory, &mut stack, observer);
        sequences.segments = recycled(segments);
        sequences.source_segments = recycled(source_segments);
        if !call.par.is_cancelled() {
            self.write(call, x.as_ref(), out, &mut stack);
        }
    }

    /// x ← what enters the decoder.
    fn enter(
        &self,
        call: Call<'_>,
        entrance: &Entrance,
        places: &[u32],
        sinusoids: Option<Mat<'_>>,
        mut x: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let (ids, mut stack) = stack.take::<u32>(places.len());
        let mut first = 0;
        for Piece { chunk, rows, .. } in self.pieces() {
            match chunk.content {
                Series::Ids(all) => {
                    ids[first..first + rows.len()].copy_from_slice(&all[rows.clone()]);
                }
                Series::Vectors(all) => {
                    let vectors = Mat::new(all, all.len() / x.cols(), x.cols());
                    let mut here = x.reborrow().rows_range(first..first + rows.len());
                    here.copy_from(vectors.rows_range(rows.clone()));
                }
            }
            first += rows.len();
        }
        if let Entrance::Embedding(embedding) = entrance {
            let tokens = Tokens { ids, types: None, places, sinusoids };
            embedding.forward(call, tokens, x, &mut stack);
        }
    }

    /// out ← what is wanted of the last states.
    fn write(&self, call: Call<'_>, x: Mat<'_>, mut out: MatMut<'_>, stack: &mut Stack<'_>) {
        let wanted = out.rows();
        let (mut selected, mut stack) = take(stack, wanted, x.cols());
        let mut ends = 0;
        let mut count = 0;
        for piece in self.pieces() {
            ends += piece.rows.len();
            if piece.last && !self.output.all() && wanted > 0 {
                selected.row_mut(count).copy_from_slice(x.row(ends - 1));
                count += 1;
            }
        }
        let states = if self.output.all() { x } else { selected.as_ref() };
        match (self.output, &self.model.transformer().read_out) {
            (Output::LastLogits | Output::AllLogits, Some(read_out)) => {
                read_out.forward(call, states, out, &mut stack);
            }
            (Output::LastHidden | Output::AllHidden, _) => out.copy_from(states),
            _ => {}
        }
    }
}
