//! Sequences that a decoder has read, and what it remembers of them.
//!
//! A sequence is a list of pages in the caches of all layers, so a copy of it is a copy of the list: beams share their
//! past, requests a common prompt. Sequences come and go between calls, each call extends those it names.

use super::options::Limits;
use super::pages::{Pages, Pool, pages_for};
use super::places::PlaceTables;
use super::{Chunk, Session};
use crate::batch::Batch;
use crate::config::Input;
use crate::error::{Error, Result};
use crate::linear::take;
use crate::memory::{filled, room};
use crate::model::Model;
use crate::observer::Unobserved;
use headrow_kernels::{CachedSegment, KvCache};

/// A sequence that a session remembers. Of no use in another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequence {
    slot: u32,
    /// Which of the sequences that the slot has seen.
    generation: u32,
}

impl Sequence {
    /// Its slot, while it is alive.
    pub(super) fn index(self) -> usize {
        self.slot as usize
    }
}

/// All that a session remembers.
pub(super) struct Sequences {
    /// Keys and values of what was read, by layer.
    pub(super) caches: Vec<KvCache>,
    pub(super) pool: Pool,
    /// Keys and values of the sources, by layer; none without an encoder.
    pub(super) source_caches: Vec<KvCache>,
    source_pool: Pool,
    pub(super) tables: PlaceTables,
    pub(super) slots: Vec<Slot>,
    /// Memory for the segments of a pass.
    pub(super) segments: Vec<CachedSegment<'static>>,
    pub(super) source_segments: Vec<CachedSegment<'static>>,
    /// Memory for the chunks of a decoding step.
    pub(super) chunks: Vec<Chunk<'static>>,
}

/// Room for one sequence.
pub(super) struct Slot {
    live: bool,
    /// When the latest visit began.
    was_there: bool,
    generation: u32,
    pub(super) own: Pages,
    pub(super) source: Pages,
}

impl std::fmt::Debug for Sequences {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let live = self.slots.iter().filter(|slot| slot.live).count();
        write!(f, "Sequences({live} of {}, {:?})", self.slots.len(), self.caches.first())
    }
}

/// What the lists of [`Sequences`] take, beside the caches.
pub(super) fn bytes(limits: &Limits) -> usize {
    let row = 2 * size_of::<CachedSegment<'static>>() + size_of::<Chunk<'static>>();
    let lists = 4 * (pages_for(limits.length) + pages_for(limits.source_length));
    let slots = limits.slots().saturating_mul(size_of::<Slot>() + lists);
    let pages = limits.pages.saturating_add(limits.source_pages).saturating_mul(8);
    limits.sequences.saturating_mul(row).saturating_add(slots).saturating_add(pages)
}

impl Sequences {
    /// Allocates for a model with a decoder; `None` when the allocator refuses.
    pub(super) fn new(model: &Model, limits: &Limits, tables: PlaceTables) -> Option<Sequences> {
        let stack = model.config().decoder.as_ref()?;
        let caches = |pages: usize, layers: usize| {
            let mut caches = room(layers)?;
            for _ in 0..layers {
                let (cpu, heads) = (model.cpu(), stack.kv_heads);
                caches.push(KvCache::try_new(cpu, heads, stack.d_k, stack.d_v, pages)?);
            }
            Some(caches)
        };
        let source_layers = if model.config().encoder.is_some() { stack.layers } else { 0 };
        let count = limits.slots();
        let mut slots = room(count)?;
        for _ in 0..count {
            let own = Pages::new(limits.length)?;
            let source = Pages::new(limits.source_length)?;
            slots.push(Slot { live: false, was_there: false, generation: 0, own, source });
        }
        Some(Sequences {
            caches: caches(limits.pages, stack.layers)?,
            pool: Pool::new(limits.pages)?,
            source_caches: caches(limits.source_pages, source_layers)?,
            source_pool: Pool::new(limits.source_pages)?,
            tables,
            slots,
            segments: room(limits.sequences)?,
            source_segments: room(limits.sequences)?,
            chunks: room(limits.sequences)?,
        })
    }

    /// The slot of a sequence that is alive.
    pub(super) fn slot(&self, sequence: Sequence) -> Result<usize> {
        let index = sequence.index();
        match self.slots.get(index) {
            Some(slot) if slot.live && slot.generation == sequence.generation => Ok(index),
            _ => Err(Error::NoSequence),
        }
    }

    /// A new sequence without tokens or source.
    fn add(&mut self) -> Result<Sequence> {
        let maximum = self.slots.len();
        let free = self.slots.iter().position(|slot| !slot.live);
        let index = free.ok_or(Error::TooManySequences { maximum })?;
        let slot = &mut self.slots[index];
        slot.live = true;
        Ok(Sequence { slot: index as u32, generation: slot.generation })
    }

    fn remove(&mut self, sequence: Sequence) -> Result<()> {
        let index = self.slot(sequence)?;
        self.clear(index);
        Ok(())
    }

    /// Forgets the sequence in a slot.
    fn clear(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.own.truncate(&mut self.pool, 0);
        slot.source.truncate(&mut self.source_pool, 0);
        slot.live = false;
        slot.generation = slot.generation.wrapping_add(1);
    }

    /// Marks the sequences that are there.
    pub(super) fn begin_visit(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.was_there = slot.live);
    }

    /// Forgets those that came since.
    pub(super) fn end_visit(&mut self) {
        for index in 0..self.slots.len() {
            if self.slots[index].live && !self.slots[index].was_there {
                self.clear(index);
            }
        }
    }

    /// Has room for so many segments, as it was made with unless a panic of an observer took the lists along.
    pub(super) fn reserve_segments(&mut self, count: usize) -> Result<()> {
        let lists =
            [self.segments.try_reserve_exact(count), self.source_segments.try_reserve_exact(count)];
        let refused = |_| Error::out_of_memory(format_args!("{count} segments"));
        lists.into_iter().collect::<Result<(), _>>().map_err(refused)
    }

    /// Takes pages for tokens of a sequence up to `length`. One to be written to that others have too is copied.
    pub(super) fn reserve(&mut self, slot: usize, length: usize) -> Result<()> {
        let Sequences { caches, pool, slots, .. } = self;
        slots[slot].own.reserve(pool, length, |from, to, tokens| {
            caches.iter_mut().for_each(|cache| cache.copy_page(from, to, tokens));
        })
    }
}

impl Session {
    fn sequences(&mut self) -> Result<&mut Sequences> {
        self.sequences.as_mut().ok_or(Error::NoStack { stack: "decoder" })
    }

    /// A new sequence without tokens.
    ///
    /// # Errors
    /// [`Error::NoStack`] in a model without decoder, [`Error::NoSource`] in one whose decoder attends to a source:
    /// there it is [`Session::add_sources`]; [`Error::TooManySequences`].
    pub fn add(&mut self) -> Result<Sequence> {
        if self.model.config().encoder.is_some() && self.model.config().decoder.is_some() {
            return Err(Error::NoSource);
        }
        self.sequences()?.add()
    }

    /// Encodes the sources, remembers the keys and values that every layer of the decoder attends to, and gives a new sequence
    /// without tokens for each.
    ///
    /// # Errors
    /// As [`Session::encode`], and when there is no room for as many sequences or sources; then none was added.
    pub fn add_sources(&mut self, sources: &Batch<'_>) -> Result<Vec<Sequence>> {
        self.check(sources)?;
        let each = self.model.config().encoder()?.max_length();
        let count = sources.sequences();
        let refused = || Error::out_of_memory(format_args!("{count} sequences"));
        let mut added = room(count).ok_or_else(refused)?;
        let result = self.add_all(sources.lengths(each), &mut added);
        match result.and_then(|()| self.encode_sources(sources, &added)) {
            Ok(()) => Ok(added),
            Err(error) => {
                for sequence in added {
                    self.remove(sequence)?;
                }
                Err(error)
            }
        }
    }

    fn add_all(
        &mut self,
        lengths: impl Iterator<Item = usize>,
        added: &mut Vec<Sequence>,
    ) -> Result<()> {
        let sequences = self.sequences()?;
        for length in lengths {
            let sequence = sequences.add()?;
            added.push(sequence);
            let Sequences { slots, source_pool, .. } = &mut *sequences;
            let source = &mut slots[sequence.index()].source;
            let copy = |_, _, _| unreachable!("new pages are not shared");
            source.reserve(source_pool, length, copy)?;
            source.commit(length);
        }
        Ok(())
    }

    fn encode_sources(&mut self, sources: &Batch<'_>, added: &[Sequence]) -> Result<()> {
        let Session { model, workers, reader, sequences, .. } = self;
        let sequences = sequences.as_mut().ok_or(Error::NoStack { stack: "decoder" })?;
        let Sequences { slots, source_caches, source_segments, .. } = sequences;
        reader.run(model, workers, sources, |encoding, call, stack| {
            let d_model = encoding.model.config().d_model;
            let (mut hidden, mut stack) = take(stack, encoding.rows, d_model);
            encoding.forward(call, hidden.reborrow(), &mut stack, &mut Unobserved);
            if call.par.is_cancelled() {
                return;
            }
            let mut segments = recycled(std::mem::take(source_segments));
            for (segment, sequence) in encoding.segments.iter().zip(added) {
                let source = &slots[sequence.index()].source;
                let (rows, pages) = (segment.queries.clone(), source.list());
                segments.push(CachedSegment::full(rows, pages, source.length()));
            }
            let decoder = encoding.model.transformer().decoder.as_ref();
            let (_, decoder) = decoder.expect("there are sequences");
            let hidden = hidden.as_ref();
            decoder.remember(call, hidden, source_caches, &segments, &mut stack);
            *source_segments = recycled(segments);
        })
    }

    /// A second sequence with the past and the source of the first. Nothing is copied until one of them is
    /// extended, and then no more than a page.
    ///
    /// # Errors
    /// [`Error::NoSequence`], [`Error::TooManySequences`].
    pub fn fork(&mut self, sequence: Sequence) -> Result<Sequence> {
        let sequences = self.sequences()?;
        let from = sequences.slot(sequence)?;
        let fork = sequences.add()?;
        let Sequences { slots, pool, source_pool, .. } = sequences;
        let to = fork.index();
        let [from, to] = slots.get_disjoint_mut([from, to]).expect("two slots");
        to.own.share(pool, &from.own, from.own.length());
        to.source.share(source_pool, &from.source, from.source.length());
        Ok(fork)
    }

    /// Forgets all but the first `length` tokens of a sequence.
    ///
    /// # Errors
    /// [`Error::NoSequence`], and [`Error::Truncate`] when it is shorter already.
    pub fn truncate(&mut self, sequence: Sequence, length: usize) -> Result<()> {
        let sequences = self.sequences()?;
        let slot = sequences.slot(sequence)?;
        let Sequences { slots, pool, .. } = sequences;
        let own = &mut slots[slot].own;
        if length > own.length() {
            return Err(Error::Truncate { length, actual: own.length() });
        }
        own.truncate(pool, length);
        Ok(())
    }

    /// Forgets a sequence.
    ///
    /// # Errors
    /// [`Error::NoSequence`] when that has happened before.
    pub fn remove(&mut self, sequence: Sequence) -> Result<()> {
        self.sequences()?.remove(sequence)
    }

    /// How many tokens of a sequence are remembered.
    ///
    /// # Errors
    /// [`Error::NoSequence`].
    pub fn length(&self, sequence: Sequence) -> Result<usize> {
        let sequences = self.sequences.as_ref().ok_or(Error::NoStack { stack: "decoder" })?;
        Ok(sequences.slots[sequences.slot(sequence)?].own.length())
    }

    /// How many more sequences can be remembered.
    pub fn free_sequences(&self) -> usize {
        let sequences = self.sequences.as_ref();
        sequences.map_or(0, |all| all.slots.iter().filter(|slot| !slot.live).count())
    }

    /// Tokens for which whole pages of the caches are free.
    pub fn free_tokens(&self) -> usize {
        self.sequences.as_ref().map_or(0, |sequences| sequences.pool.free_tokens())
    }

    /// Encodes a source and decodes from it; whether there was room to.
    pub(super) fn warm_up_with_source(&mut self, source: &Batch<'_>) -> Result<bool> {
        let added = match self.add_sources(source) {
            Ok(added) => added,
            Err(Error::CacheFull { .. } | Error::TooManySequences { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let result = added.iter().try_for_each(|&sequence| self.warm_up_decoder(sequence));
        added.into_iter().try_for_each(|sequence| self.remove(sequence))?;
        result.map(|()| true)
    }

    /// Reads as much as one pass may have into a sequence without tokens.
    pub(super) fn warm_up_decoder(&mut self, sequence: Sequence) -> Result<()> {
        let rows = self.limits.tokens.min(self.limits.length).min(self.free_tokens());
        let config = self.model.config();
        let lists = match config.decoder()?.input {
            Input::Vectors => filled(0.0, rows * config.d_model).map(|values| (Vec::new(), values)),
            _ => filled(0, rows).map(|ids| (ids, Vec::new())),
        };
        let refused = || Error::out_of_memory(format_args!("{rows} tokens"));
        let (ids, values) = lists.ok_or_else(refused)?;
        let chunk = match ids.is_empty() {
            true => Chunk::vectors(sequence, &values),
            false => Chunk::new(sequence, &ids),
        };
        match rows {
            0 => Ok(()),
            _ => self.extend(&[chunk], super::Output::None, &mut []),
        }
    }
}

/// The memory of a list of segments for other segments: pages are borrowed for one pass only.
pub(super) fn recycled<'b>(mut segments: Vec<CachedSegment<'_>>) -> Vec<CachedSegment<'b>> {
    segments.clear();
    // An empty list has nothing to turn into anything else; `collect` keeps the memory.
    segments.into_iter().map(|segment| CachedSegment::full(segment.queries, &[], 0)).collect()
}
