//! Sizes of a network in training.

use crate::config::{Config, Input, StackConfig};
use crate::error::{Error, Result};
use headrow_kernels::par::{MAX_THREADS, default_threads};
use headrow_kernels::{Cpu, Isa};
use rayon::ThreadPool;
use std::sync::Arc;

/// Sizes and limits of a [`Network`](super::Network).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NetworkOptions {
    /// Most tokens of a batch on each side, over all its sequences.
    pub max_tokens: usize,
    /// Most tokens of one sequence. `None`: as many as the config declares, up to `max_tokens`. Images and spectrograms are as
    /// long as they are, and `max_tokens` must have room for one.
    pub max_length: Option<usize>,
    /// Threads that work on a batch, the caller included. `None`: as many as [`default_threads`] finds.
    pub threads: Option<usize>,
    /// The pool that helpers come from. `None`: the network makes its own when it has more than one thread.
    pub pool: Option<Arc<ThreadPool>>,
    /// The instruction set; `None` takes the best of this machine. The results have the same bits on each.
    pub isa: Option<Isa>,
}

impl Default for NetworkOptions {
    fn default() -> NetworkOptions {
        NetworkOptions { max_tokens: 4096, max_length: None, threads: None, pool: None, isa: None }
    }
}

impl NetworkOptions {
    /// The same options for batches of up to so many tokens on each side.
    #[must_use]
    pub fn with_max_tokens(mut self, tokens: usize) -> NetworkOptions {
        self.max_tokens = tokens;
        self
    }

    /// The same options for sequences of up to so many tokens.
    #[must_use]
    pub fn with_max_length(mut self, tokens: impl Into<Option<usize>>) -> NetworkOptions {
        self.max_length = tokens.into();
        self
    }

    /// The same options for so many threads.
    #[must_use]
    pub fn with_threads(mut self, threads: impl Into<Option<usize>>) -> NetworkOptions {
        self.threads = threads.into();
        self
    }

    /// The same options with helpers from this pool.
    #[must_use]
    pub fn with_pool(mut self, pool: impl Into<Option<Arc<ThreadPool>>>) -> NetworkOptions {
        self.pool = pool.into();
        self
    }

    /// The same options with this instruction set.
    #[must_use]
    pub fn with_isa(mut self, isa: impl Into<Option<Isa>>) -> NetworkOptions {
        self.isa = isa.into();
        self
    }

    pub(super) fn limits(&self, config: &Config) -> Result<Limits> {
        let cpu = match self.isa {
            Some(isa) => Cpu::with_isa(isa).ok_or(Error::Isa(isa))?,
            None => Cpu::detect(),
        };
        let max_length = self.max_length;
        let lengths = config.stacks().map(|(_, stack)| longest(stack, max_length));
        let longest = lengths.max().unwrap_or(0).min(self.max_tokens);
        let threads = self.threads.unwrap_or_else(default_threads).clamp(1, MAX_THREADS);
        Ok(Limits { rows: self.max_tokens, max_length, longest, threads, cpu })
    }
}

/// The longest sequence of a stack under a limit of the caller's, which does not count for images and spectrograms: they are
/// as long as they are.
pub(super) fn longest(stack: &StackConfig, limit: Option<usize>) -> usize {
    match (&stack.input, limit) {
        (Input::Patches { .. } | Input::Spectrogram { .. }, _) => stack.max_length(),
        (_, Some(limit)) => limit.min(stack.max_length()),
        (_, None) => stack.usual_length(),
    }
}

/// What a network is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) rows: usize,
    /// The limit of the caller's.
    pub(super) max_length: Option<usize>,
    /// The longest sequence of either side.
    pub(super) longest: usize,
    pub(super) threads: usize,
    pub(super) cpu: Cpu,
}
