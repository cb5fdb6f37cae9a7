//! The memory of a session, from its limits.

use super::options::{Limits, SessionOptions};
use super::places::PlaceTables;
use super::sequences;
use crate::config::Input;
use crate::decoder::Extents;
use crate::error::{Error, Result};
use crate::linear::room;
use crate::model::Model;
use headrow_kernels::{AttentionExtent, KvCache, Need, Segment};

impl Limits {
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
        let beyond = || Error::out_of_memory(format_args!("a session for {} tokens", self.tokens));
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
            bytes = bytes.saturating_add(sequences::bytes(self));
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
