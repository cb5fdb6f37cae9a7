//! What one request at a time owns: scratch memory, caches, workers, limits.
//!
//! A session allocates when it is made, once, for the largest batch and the longest sequences it will take. After that
//! a call on one thread allocates nothing. Sequences are packed one behind the other and padding is never
//! computed; the result of a sequence has the same bits alone, in any batch, and with any number of threads.

pub(crate) mod check;
mod chunk;
mod decode;
mod encode;
mod generate;
mod memory;
mod options;
mod pages;
pub(crate) mod places;
mod sequences;

pub use chunk::{Chunk, Output};
pub use options::SessionOptions;
pub use sequences::Sequence;

use crate::error::{Error, Result};
use crate::linear::Call;
use crate::model::Model;
use encode::Reader;
use headrow_kernels::{Cancel, Par, Scratch, Stack, Team};
use options::Limits;
use places::PlaceTables;
use sequences::Sequences;
use std::sync::Arc;

/// Multiply-adds of a pass, beside attention, below which it stays on its caller: some tens of microseconds of
/// one core, no longer than a helper takes to wake.
const WORTH_HELPERS: usize = 1 << 21;

/// Runs one model, one call at a time.
///
/// ```no_run
/// use headrow::{Chunk, Model, Output, Session, SessionOptions};
/// use std::sync::Arc;
///
/// let model = Arc::new(Model::from_dir("SmolLM2-135M")?);
/// let mut session = Session::new(&model, &SessionOptions::default().with_max_length(512))?;
/// let mut logits = vec![0.0; model.config().vocabulary()];
/// let sequence = session.add()?;
/// // A prompt, then a token; what was read before is remembered.
/// session.extend(&[Chunk::new(sequence, &[504, 3575])], Output::LastLogits, &mut logits)?;
/// session.extend(&[Chunk::new(sequence, &[282])], Output::LastLogits, &mut logits)?;
/// session.remove(sequence)?;
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Debug)]
pub struct Session {
    model: Arc<Model>,
    limits: Limits,
    workers: Workers,
    /// For the encoder.
    reader: Reader,
    /// For the decoder, with its caches.
    sequences: Option<Sequences>,
}

/// Who computes, and where.
#[derive(Debug)]
struct Workers {
    team: Team,
    scratch: Scratch,
    cancel: Option<Cancel>,
}

impl Session {
    /// Allocates everything that calls will need.
    ///
    /// # Errors
    /// [`Error::MemoryCap`] when that is more than the cap, [`Error::OutOfMemory`] when the
    /// allocator refuses.
    pub fn new(model: &Arc<Model>, options: &SessionOptions) -> Result<Session> {
        let limits = Limits::new(model.config(), options);
        let need = limits.memory(model)?;
        if let Some(cap) = options.memory_cap.filter(|&cap| need > cap) {
            return Err(Error::MemoryCap { need, cap });
        }
        let out_of_memory = || Error::out_of_memory(format_args!("a session of {need} bytes"));
        let scratch = Scratch::try_new(limits.scratch(model)).ok_or_else(out_of_memory)?;
        let mut reader = Reader::default();
        let segments = reader.segments.try_reserve_exact(limits.sequences);
        segments.map_err(|_| out_of_memory())?;
        let (config, transformer) = (model.config(), model.transformer());
        let d_model = config.d_model;
        if let (Some(stack), Some((_, encoder))) = (&config.encoder, &transformer.encoder) {
            let longest = limits.source_length;
            reader.tables =
                Some(PlaceTables::new(stack, d_model, &encoder.buckets, longest, false)?);
        }
        let mut sequences = None;
        if let (Some(stack), Some((_, decoder))) = (&config.decoder, &transformer.decoder) {
            let tables = PlaceTables::new(stack, d_model, &decoder.buckets, limits.length, true)?;
            let made = Sequences::new(model, &limits, tables);
            sequences = Some(made.ok_or_else(out_of_memory)?);
        }
        let team = match &options.pool {
            Some(pool) => Team::with_pool(Arc::clone(pool), limits.threads),
            None => Team::new(limits.threads),
        };
        let workers = Workers { team, scratch, cancel: None };
        let model = Arc::clone(model);
        Ok(Session { model, limits, workers, reader, sequences })
    }

    /// The model it runs.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Most tokens in one batch, and in one pass over longer prompts.
    pub fn max_tokens(&self) -> usize {
        self.limits.tokens
    }

    /// Most sequences in one batch, and most that are remembered at a time.
    pub fn max_sequences(&self) -> usize {
        self.limits.sequences
    }

    /// The longest sequence that a decoder remembers.
    pub fn max_length(&self) -> usize {
        self.limits.length
    }

    /// Threads that work on a call, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.team.threads()
    }

    /// Gives up later calls once `cancel` is set or its deadline has come: it is asked for every layer and every piece of
    /// a product, about once in a millisecond. A call that was given up ends in [`Error::Cancelled`], and leaves
    /// the session as it was before. `None` lets calls run to their end again.
    pub fn set_cancel(&mut self, cancel: Option<Cancel>) {
        self.workers.cancel = cancel;
    }

    /// Runs once over as much as one pass may have, so that the first request finds caches, pages and
    /// helpers warm.
    ///
    /// # Errors
    /// [`Error::Cancelled`], and [`Error::OutOfMemory`] when there is none for an input.
    pub fn warm_up(&mut self) -> Result<()> {
        if self.limits.tokens == 0 || self.limits.sequences == 0 {
            return Ok(());
        }
        if self.model.config().encoder.is_some() {
            return self.warm_up_encoder();
        }
        // A session that remembers as much as it may is warm.
        let Ok(sequence) = self.add() else { return Ok(()) };
        let result = self.warm_up_decoder(sequence);
        self.remove(sequence)?;
        result
    }
}

impl Workers {
    /// One team for a whole pass of so many multiply-adds.
    ///
    /// # Errors
    /// [`Error::Cancelled`]; what the pass has written is rubbish then.
    fn run(
        &mut self,
        model: &Model,
        multiply_adds: usize,
        pass: impl FnOnce(Call<'_>, &mut Stack<'_>),
    ) -> Result<()> {
        let Workers { team, scratch, cancel } = self;
        let cancel = cancel.as_ref();
        let pass = |par: Par<'_>| {
            let par = cancel.map_or(par, |cancel| par.with_cancel(cancel));
            pass(Call { cpu: model.cpu(), par }, &mut scratch.stack());
            par.is_cancelled()
        };
        let cancelled = match multiply_adds < WORTH_HELPERS {
            true => pass(Par::SERIAL),
            false => team.open(pass),
        };
        if cancelled { Err(Error::Cancelled) } else { Ok(()) }
    }
}

/// The caller's buffer as a matrix of the right shape.
fn buffer<'a>(
    what: &'static str,
    out: &'a mut [f32],
    rows: usize,
    cols: usize,
) -> Result<headrow_kernels::MatMut<'a>> {
    match rows.checked_mul(cols) {
        Some(expected) if expected == out.len() => {
            Ok(headrow_kernels::MatMut::new(out, rows, cols))
        }
        expected => {
            Err(Error::Buffer { what, expected: expected.unwrap_or(usize::MAX), actual: out.len() })
        }
    }
}
