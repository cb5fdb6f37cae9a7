//! What one request at a time owns: scratch memory, workers, limits.
//!
//! A session allocates when it is made, once, for the largest batch it will take. After that a call on one
//! thread allocates nothing. Sequences are packed one behind the other and padding is never computed; the result of
//! a sequence has the same bits alone, in any batch, and with any number of threads.

use crate::encoder::Probe;
use crate::error::{Error, Result};
use crate::head::Head;
use crate::linear::{Call, take};
use crate::model::Model;
use headrow_kernels::par::{MAX_THREADS, default_threads};
use headrow_kernels::{MatMut, Par, Scratch, Segment, Stack, Team};
use rayon::ThreadPool;
use std::sync::Arc;

/// The ids of one or several sequences, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    ids: &'a [u32],
    /// `None`: all ids are one sequence.
    lengths: Option<&'a [usize]>,
    token_types: Option<&'a [u32]>,
}

impl<'a> Batch<'a> {
    /// One sequence.
    pub fn one(ids: &'a [u32]) -> Batch<'a> {
        Batch { ids, lengths: None, token_types: None }
    }

    /// Several sequences: the first `lengths[0]` ids, the next `lengths[1]`, and so on.
    pub fn ragged(ids: &'a [u32], lengths: &'a [usize]) -> Batch<'a> {
        Batch { ids, lengths: Some(lengths), token_types: None }
    }

    /// The same batch with a token type for every id: 1 for the second text of a pair, else 0.
    /// Without them all types are 0.
    #[must_use]
    pub fn with_token_types(self, token_types: &'a [u32]) -> Batch<'a> {
        Batch { token_types: Some(token_types), ..self }
    }

    /// The ids of all sequences.
    pub fn ids(&self) -> &'a [u32] {
        self.ids
    }

    /// The token types, when they were given.
    pub fn token_types(&self) -> Option<&'a [u32]> {
        self.token_types
    }

    /// How many ids there are.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// How many sequences there are.
    pub fn sequences(&self) -> usize {
        self.lengths.map_or(1, <[usize]>::len)
    }

    /// The length of each sequence.
    pub fn lengths(&self) -> impl Iterator<Item = usize> + use<'a> {
        let single = self.lengths.is_none().then_some(self.ids.len());
        single.into_iter().chain(self.lengths.unwrap_or_default().iter().copied())
    }
}

/// Sizes and limits of a [`Session`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Most tokens in one batch, over all its sequences. `None`: the model's longest sequence.
    pub max_tokens: Option<usize>,
    /// Most sequences in one batch. `None`: 32.
    pub max_sequences: Option<usize>,
    /// Threads that work on a call, the caller included. `None`: as many as
    /// [`default_threads`] finds.
    pub threads: Option<usize>,
    /// Most bytes the session may allocate. `None`: no cap.
    pub memory_cap: Option<usize>,
    /// The pool that helpers come from. `None`: the session makes its own when it has more than one thread.
    pub pool: Option<Arc<ThreadPool>>,
}

impl SessionOptions {
    /// The same options for batches of up to so many tokens.
    #[must_use]
    pub fn with_max_tokens(mut self, tokens: usize) -> SessionOptions {
        self.max_tokens = Some(tokens);
        self
    }

    /// The same options for batches of up to so many sequences.
    #[must_use]
    pub fn with_max_sequences(mut self, sequences: usize) -> SessionOptions {
        self.max_sequences = Some(sequences);
        self
    }

    /// The same options with so many threads.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> SessionOptions {
        self.threads = Some(threads);
        self
    }

    /// The same options with a hard limit on the session's memory.
    #[must_use]
    pub fn with_memory_cap(mut self, bytes: usize) -> SessionOptions {
        self.memory_cap = Some(bytes);
        self
    }

    /// The same options with helpers from this pool.
    #[must_use]
    pub fn with_pool(mut self, pool: Arc<ThreadPool>) -> SessionOptions {
        self.pool = Some(pool);
        self
    }
}

/// Multiply-adds of a pass, beside attention, below which it stays on its caller: some tens of microseconds of
/// one core, no longer than a helper takes to wake.
const WORTH_HELPERS: usize = 1 << 21;

/// Runs one model, one batch at a time.
#[derive(Debug)]
pub struct Session {
    model: Arc<Model>,
    max_tokens: usize,
    max_sequences: usize,
    team: Team,
    scratch: Scratch,
    /// The sequences of the batch at hand; its capacity is `max_sequences`.
    segments: Vec<Segment>,
}

impl Session {
    /// Allocates everything that calls will need.
    ///
    /// # Errors
    /// [`Error::MemoryCap`] when that is more than the cap, [`Error::OutOfMemory`] when the
    /// allocator refuses.
    pub fn new(model: &Arc<Model>, options: &SessionOptions) -> Result<Session> {
        let max_tokens = options.max_tokens.unwrap_or(model.config().max_length());
        let max_sequences = options.max_sequences.unwrap_or(32).min(max_tokens);
        let threads = options.threads.unwrap_or_else(default_threads).clamp(1, MAX_THREADS);
        let need = model.memory_bound(max_sequences, max_tokens, threads)?;
        if let Some(cap) = options.memory_cap.filter(|&cap| need > cap) {
            return Err(Error::MemoryCap { need, cap });
        }
        let out_of_memory = || Error::OutOfMemory(format!("a session of {need} bytes"));
        let scratch = Scratch::try_new(model.scratch(max_tokens, max_sequences, threads))
            .ok_or_else(out_of_memory)?;
        let mut segments = Vec::new();
        segments.try_reserve_exact(max_sequences).map_err(|_| out_of_memory())?;
        let team = match &options.pool {
            Some(pool) => Team::with_pool(Arc::clone(pool), threads),
            None => Team::new(threads),
        };
        let model = Arc::clone(model);
        Ok(Session { model, max_tokens, max_sequences, team, scratch, segments })
    }

    /// The model it runs.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Most tokens in one batch.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Most sequences in one batch.
    pub fn max_sequences(&self) -> usize {
        self.max_sequences
    }

    /// Threads that work on a call, the caller included.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Runs once over as much as one sequence may have, so that the first request finds caches, pages and
    /// helpers warm.
    pub fn warm_up(&mut self) -> Result<()> {
        let ids = vec![0; self.max_tokens.min(self.model.config().max_length())];
        if ids.is_empty() || self.max_sequences == 0 {
            return Ok(());
        }
        let mut hidden = vec![0.0; ids.len() * self.model.config().d_model];
        self.encode(&Batch::one(&ids), &mut hidden)
    }

    /// Writes the last hidden state of every token to `hidden`, `tokens × d_model`.
    ///
    /// # Errors
    /// Before anything is computed: when the batch is larger than the session, the lengths do not add up, a
    /// sequence is empty or too long, an id or token type is outside its table, or the
    /// buffer's length is not that of the result.
    pub fn encode(&mut self, batch: &Batch<'_>, hidden: &mut [f32]) -> Result<()> {
        self.encode_probed(batch, hidden, &mut |_, _| {})
    }

    /// [`Session::encode`] that also shows the states between layers: `probe(ℓ, z_ℓ)` sees the
    /// embeddings as z₀ and the result of the last layer as z_N. The bits are the same.
    pub fn encode_probed(
        &mut self,
        batch: &Batch<'_>,
        hidden: &mut [f32],
        probe: Probe<'_>,
    ) -> Result<()> {
        self.check(batch)?;
        let d_model = self.model.config().d_model;
        let rows = batch.tokens();
        let hidden = buffer("the hidden states", hidden, rows, d_model)?;
        self.run(batch, |model, call, segments, stack| {
            model.encode(call, batch, segments, hidden, probe, stack);
        });
        Ok(())
    }

    /// Encodes and writes what `head` makes of the hidden states, in the shape that
    /// [`Model::output_shape`] gives.
    ///
    /// # Errors
    /// As [`Session::encode`], and [`Error::NoHead`] when the checkpoint has no weights for `head`.
    pub fn predict(&mut self, batch: &Batch<'_>, head: Head, out: &mut [f32]) -> Result<()> {
        self.check(batch)?;
        let (tokens, sequences) = (batch.tokens(), batch.sequences());
        let (rows, cols) = self.model.output_shape(head, tokens, sequences)?;
        let out = buffer(head.name(), out, rows, cols)?;
        self.run(batch, |model, call, segments, stack| {
            let (mut hidden, mut stack) = take(stack, tokens, model.config().d_model);
            let states = hidden.reborrow();
            model.encode(call, batch, segments, states, &mut |_, _| {}, &mut stack);
            model.apply(head, call, hidden.as_ref(), segments, out, &mut stack);
        });
        Ok(())
    }

    /// One team for the whole pass.
    fn run(
        &mut self,
        batch: &Batch<'_>,
        pass: impl FnOnce(&Model, Call<'_>, &[Segment], &mut Stack<'_>),
    ) {
        let Session { model, team, scratch, segments, .. } = self;
        #[cfg(feature = "tracing")]
        let _span = tracing::debug_span!(
            "forward",
            tokens = batch.tokens(),
            sequences = batch.sequences(),
            threads = team.threads()
        )
        .entered();
        segments.clear();
        let mut start = 0;
        for length in batch.lengths() {
            let rows = start..start + length;
            start = rows.end;
            segments.push(Segment::full(rows.clone(), rows));
        }
        let pass = |par: Par<'_>| {
            pass(model, Call { cpu: model.cpu(), par }, segments, &mut scratch.stack());
        };
        if batch.tokens().saturating_mul(model.config().multiply_adds()) < WORTH_HELPERS {
            pass(Par::SERIAL);
        } else {
            team.open(pass);
        }
    }

    /// Everything about a batch that its caller may have got wrong.
    fn check(&self, batch: &Batch<'_>) -> Result<()> {
        let too_large = |what, actual, maximum| Error::BatchTooLarge { what, actual, maximum };
        let (tokens, sequences) = (batch.tokens(), batch.sequences());
        if tokens > self.max_tokens {
            return Err(too_large("tokens", tokens, self.max_tokens));
        }
        if sequences > self.max_sequences {
            return Err(too_large("sequences", sequences, self.max_sequences));
        }
        let sum = batch.lengths().fold(0usize, usize::saturating_add);
        let types = batch.token_types().map_or(sum, <[u32]>::len);
        for (what, actual) in [("ids", tokens), ("token types", types)] {
            if actual != sum {
                return Err(Error::Lengths { what, expected: sum, actual });
            }
        }
        let mut start = 0;
        for (sequence, length) in batch.lengths().enumerate() {
            self.check_sequence(batch, sequence, start, length)?;
            start += length;
        }
        Ok(())
    }

    fn check_sequence(
        &self,
        batch: &Batch<'_>,
        sequence: usize,
        start: usize,
        length: usize,
    ) -> Result<()> {
        let config = self.model.config();
        let maximum = config.max_length();
        if length == 0 {
            return Err(Error::EmptySequence { sequence });
        }
        if length > maximum {
            return Err(Error::SequenceTooLong { sequence, tokens: length, maximum });
        }
        let vocabulary = config.vocabulary;
        for (index, &id) in batch.ids()[start..start + length].iter().enumerate() {
            if id as usize >= vocabulary {
                return Err(Error::TokenId { sequence, index, id, vocabulary });
            }
        }
        // A model without types takes zeros, which say nothing.
        let Some(given) = batch.token_types() else { return Ok(()) };
        let types = config.token_types.max(1);
        for (index, &token_type) in given[start..start + length].iter().enumerate() {
            if token_type as usize >= types {
                return Err(Error::TokenType { sequence, index, token_type, types });
            }
        }
        Ok(())
    }
}

impl Model {
    /// Most bytes that a [`Session`] for so many sequences, tokens and threads allocates, beside the
    /// weights and a pool of its own. No sequence is empty, so more sequences than tokens count as
    /// many as the tokens.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the number is beyond any memory.
    pub fn memory_bound(&self, sequences: usize, tokens: usize, threads: usize) -> Result<usize> {
        let config = self.config();
        // Wider than all that is live for one token, so that no size below overflows.
        let width = 16 * (config.d_model as u128 + config.d_ff as u128) + config.vocabulary as u128;
        let most = tokens as u128 * width * 64;
        if most > isize::MAX as u128 {
            let what = format!("a session of {sequences} sequences and {tokens} tokens");
            return Err(Error::OutOfMemory(what));
        }
        let (sequences, threads) = (sequences.min(tokens), threads.clamp(1, MAX_THREADS));
        let scratch = self.scratch(tokens, sequences, threads).bytes();
        Ok(scratch + sequences * size_of::<Segment>() + team_bytes(threads))
    }
}

/// What a team of so many workers allocates: its shared state, with a flag per helper.
const fn team_bytes(threads: usize) -> usize {
    512 + threads
}

/// The caller's buffer as a matrix of the right shape.
fn buffer<'a>(
    what: &'static str,
    out: &'a mut [f32],
    rows: usize,
    cols: usize,
) -> Result<MatMut<'a>> {
    match rows.checked_mul(cols) {
        Some(expected) if expected == out.len() => Ok(MatMut::new(out, rows, cols)),
        expected => {
            Err(Error::Buffer { what, expected: expected.unwrap_or(usize::MAX), actual: out.len() })
        }
    }
}
