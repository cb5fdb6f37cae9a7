//! Sizes and limits of a session, and the memory that follows from them.

use super::pages::pages_for;
use super::places::PlaceTables;
use crate::config::{Config, Input, StackConfig};
use crate::decoder::Extents;
use crate::error::{Error, Result};
use crate::linear::room;
use crate::model::Model;
use headrow_kernels::attention::PAGE;
use headrow_kernels::par::{MAX_THREADS, default_threads};
use headrow_kernels::{AttentionExtent, KvCache, Need, Segment};
use rayon::ThreadPool;
use std::sync::Arc;

/// Sizes and limits of a [`Session`](super::Session).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Most tokens in one batch of an encoder, over all its sequences, and in one pass of a decoder, which reads longer
    /// prompts in pieces. `None`: the encoder's longest sequence, or up to 512.
    pub max_tokens: Option<usize>,
    /// Most sequences in one batch, or extended in one call. A decoder remembers up to twice as many, so that
    /// some can wait. `None`: 32.
    pub max_sequences: Option<usize>,
    /// Most tokens of one sequence that a decoder remembers. `None`: as many as the checkpoint declares, up to 4096. A
    /// `linear` or `dynamic` rotary scaling lets a session ask for `factor` times as many.
    pub max_length: Option<usize>,
    /// Room for tokens that a decoder remembers, over all sequences; those with a common past share
    /// it. `None`: one sequence of the greatest length, and a page for each other one.
    pub cache_tokens: Option<usize>,
    /// Room for tokens of sources that a decoder attends to. `None`: as `max_tokens`, and a page for each sequence.
    pub source_tokens: Option<usize>,
    /// Threads that work on a call, the caller included. `None`: as many as
    /// [`default_threads`] finds.
    pub threads: Option<usize>,
    /// Most bytes the session may allocate. `None`: no cap.
    pub memory_cap: Option<usize>,
    /// The pool that helpers come from. `None`: the session makes its own when it has more than one thread.
    pub pool: Option<Arc<ThreadPool>>,
}

impl SessionOptions {
    /// The same options for batches or passes of up to so many tokens.
    #[must_use]
    pub fn with_max_tokens(mut self, tokens: usize) -> SessionOptions {
        self.max_tokens = Some(tokens);
        self
    }

    /// The same options for up to so many sequences.
    #[must_use]
    pub fn with_max_sequences(mut self, sequences: usize) -> SessionOptions {
        self.max_sequences = Some(sequences);
        self
    }

    /// The same options for sequences of up to so many tokens.
    #[must_use]
    pub fn with_max_length(mut self, tokens: usize) -> SessionOptions {
        self.max_length = Some(tokens);
        self
    }

    /// The same options with room for so many tokens that a decoder remembers.
    #[must_use]
    pub fn with_cache_tokens(mut self, tokens: usize) -> SessionOptions {
        self.cache_tokens = Some(tokens);
        self
    }

    /// The same options with room for so many tokens of sources.
    #[must_use]
    pub fn with_source_tokens(mut self, tokens: usize) -> SessionOptions {
        self.source_tokens = Some(tokens);
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

/// [`SessionOptions`] with all choices made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Rows of a pass.
    pub(super) tokens: usize,
    pub(super) sequences: usize,
    /// Tokens of a sequence in the decoder.
    pub(super) length: usize,
    /// Tokens of a sequence in the encoder.
    pub(super) source_length: usize,
    /// Pages of the decoder's own caches, and of those of the sources.
    pub(super) pages: usize,
    pub(super) source_pages: usize,
    pub(super) threads: usize,
}

impl Limits {
    pub(super) fn new(config: &Config, options: &SessionOptions) -> Limits {
        let longest = |stack: &StackConfig, unlimited: usize| match stack.usual_length() {
            StackConfig::UNLIMITED => unlimited,
            length => length,
        };
        let encoder = config.encoder.as_ref();
        let tokens = options.max_tokens.unwrap_or_else(|| {
            let encoder = encoder.map_or(0, |stack| longest(stack, 512));
            let decoder = config.decoder.as_ref().map_or(0, |stack| longest(stack, 512).min(512));
            encoder.max(decoder)
        });
        let sequences = options.max_sequences.unwrap_or(32).min(tokens);
        let source_length = encoder.map_or(0, |stack| stack.max_length().min(tokens));
        let (mut length, mut pages, mut source_pages) = (0, 0, 0);
        if let Some(stack) = &config.decoder {
            let wanted = options.max_length.unwrap_or(longest(stack, 1024).min(4096));
            length = wanted.min(stack.max_length());
            let others = sequences.saturating_mul(PAGE);
            pages = pages_for(options.cache_tokens.unwrap_or(length.saturating_add(others)));
            if encoder.is_some() {
                let sources = options.source_tokens.unwrap_or(tokens.saturating_add(others));
                source_pages = pages_for(sources);
            }
        }
        let threads = options.threads.unwrap_or_else(default_threads).clamp(1, MAX_THREADS);
        Limits { tokens, sequences, length, source_length, pages, source_pages, threads }
    }

    /// Sequences that a decoder remembers at a time.
    pub(super) fn slots(&self) -> usize {
        self.sequences.saturating_mul(2)
    }

    /// Longest sequences of the decoder's passes.
    fn extents(&self) -> Extents {
        let queries = self.tokens.min(self.length);
        Extents {
            own: AttentionExtent { queries, keys: self.length },
            source: AttentionExtent { queries, keys: self.source_length },
        }
    }

    /// Scratch of a session: the states, and what computes them or something of them.
    pub(super) fn scratch(&self, model: &Model) -> Need {
        let &Limits { tokens, sequences, threads, .. } = self;
        let (cpu, d_model) = (model.cpu(), model.config().d_model);
        let transformer = model.transformer();
        let places = Need::of::<u32>(tokens);
        let mut need = Need::NONE;
        if let Some((entrance, encoder)) = &transformer.encoder {
            let layers = encoder.scratch(cpu, threads, tokens, self.source_length, d_model);
            let heads = transformer.heads.scratch(cpu, threads, d_model, tokens, sequences);
            need = need.or(entrance.scratch(cpu, threads, tokens, d_model).or(layers).or(heads));
        }
        if let Some((entrance, decoder)) = &transformer.decoder {
            let layers = decoder.scratch(cpu, threads, tokens, self.extents(), d_model);
            let remember = decoder.remember_scratch(cpu, threads, tokens);
            need = need.or(entrance.scratch(cpu, threads, tokens, d_model).or(layers).or(remember));
        }
        if let Some(read_out) = &transformer.read_out {
            need = need.or(room(tokens, d_model).and(read_out.scratch(cpu, threads, tokens)));
        }
        places.and(room(tokens, d_model)).and(need)
    }

    /// Most bytes that a session allocates, beside the weights and a pool of its own.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the number is beyond any memory.
    pub(super) fn memory(&self, model: &Model) -> Result<usize> {
        let config = model.config();
        let beyond = || Error::OutOfMemory(format!("a session for {} tokens", self.tokens));
        // Wider than all that is live for one token, so that no size below overflows.
        let widest = config.stacks().map(|(_, stack)| {
            let heads = stack.heads as u128 * (stack.d_k as u128 + stack.d_v as u128);
            let read = match stack.input {
                Input::Patches { patch, channels, .. } => {
                    (patch as u128 * patch as u128).saturating_mul(channels as u128)
                }
                _ => stack.vocabulary() as u128,
            };
            16 * (config.d_model as u128 + 2 * stack.d_ff as u128 + 2 * heads) + read
        });
        let width = widest.max().unwrap_or(0);
        let longest = self.tokens.max(self.length).max(self.source_length) as u128;
        if (longest + 64) * width * 64 > isize::MAX as u128 {
            return Err(beyond());
        }
        let mut bytes = self.scratch(model).bytes();
        bytes += self.sequences * size_of::<Segment>() + team_bytes(self.threads);
        if let Some(stack) = &config.encoder {
            let tables = PlaceTables::bytes(stack, config.d_model, self.source_length);
            bytes = bytes.saturating_add(tables);
        }
        if let Some(stack) = &config.decoder {
            let tables = PlaceTables::bytes(stack, config.d_model, self.length);
            bytes = bytes.saturating_add(tables);
            let sources = config.encoder.as_ref().map(|_| self.source_pages);
            for pages in [self.pages].into_iter().chain(sources) {
                let cache = KvCache::bytes_for(stack.kv_heads, stack.d_k, stack.d_v, pages);
                let cache = cache.and_then(|bytes| bytes.checked_add(size_of::<KvCache>()));
                let caches = cache.and_then(|bytes| bytes.checked_mul(stack.layers));
                bytes = caches.and_then(|caches| caches.checked_add(bytes)).ok_or_else(beyond)?;
            }
            bytes = bytes.saturating_add(super::sequences::bytes(self));
        }
        if bytes > isize::MAX as usize { Err(beyond()) } else { Ok(bytes) }
    }
}

/// What a team of so many workers allocates: its shared state, with a flag per helper.
const fn team_bytes(threads: usize) -> usize {
    512 + threads
}

impl Model {
    /// Most bytes that a [`Session`](super::Session) with these options allocates, beside the
    /// weights and a pool of its own.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the number is beyond any memory.
    pub fn memory_bound(&self, options: &SessionOptions) -> Result<usize> {
        Limits::new(self.config(), options).memory(self)
    }
}
