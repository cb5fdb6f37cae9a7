//! Sizes and limits of a session.

use super::pages::pages_for;
use crate::config::{Config, StackConfig};
use headrow_kernels::attention::PAGE;
use headrow_kernels::par::{MAX_THREADS, default_threads};
use rayon::ThreadPool;
use std::sync::Arc;

/// Sizes and limits of a [`Session`](super::Session).
///
/// ```
/// # #[cfg(feature = "embedded-model")]
/// # {
/// use headrow::{SentenceEncoder, Session, SessionOptions};
///
/// let encoder = SentenceEncoder::seeded()?;
/// // For a worker that answers one short request at a time.
/// let options = SessionOptions::default().with_max_tokens(64).with_max_sequences(1).with_threads(1);
/// let bytes = encoder.model().memory_bound(&options)?;
/// let session = Session::new(encoder.model(), &options.with_memory_cap(bytes))?;
/// assert_eq!((session.max_tokens(), session.max_sequences()), (64, 1));
/// # }
/// # Ok::<(), headrow::Error>(())
/// ```
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

    /// The same options with helpers from this pool. In a child of `fork` it must be one that the child made.
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
}
