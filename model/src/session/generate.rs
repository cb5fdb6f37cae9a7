//! A session as the model that decoding asks, and whole requests in one call.

use super::pages::pages_for;
use super::sequences::Sequences;
use super::{Chunk, Output, Sequence, Session};
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::generate::{Generated, GenerationOptions, Generator, Hooks, Limits, Prompt, StepModel};
use crate::memory::{collected, filled, room};
use headrow_kernels::attention::PAGE;

impl StepModel for Session {
    type Sequence = Sequence;

    fn step(&mut self, sequences: &[Sequence], tokens: &[u32], logits: &mut [f32]) -> Result<()> {
        let memory = self.sequences.as_mut().ok_or(Error::NoStack { stack: "decoder" })?;
        let mut chunks = recycled(std::mem::take(&mut memory.chunks));
        let pairs = sequences.iter().zip(tokens.chunks(1));
        chunks.extend(pairs.map(|(&sequence, token)| Chunk::new(sequence, token)));
        let result = self.extend(&chunks, Output::LastLogits, logits);
        if let Some(Sequences { chunks: memory, .. }) = &mut self.sequences {
            *memory = recycled(chunks);
        }
        result
    }

    fn fork(&mut self, sequence: Sequence) -> Result<Sequence> {
        Session::fork(self, sequence)
    }

    fn release(&mut self, sequence: Sequence) {
        // A caller who removed it already has done what is asked here.
        let _ = self.remove(sequence);
    }
}

/// The memory of a list of chunks for other chunks: ids are borrowed for one step only.
fn recycled<'b>(mut chunks: Vec<Chunk<'_>>) -> Vec<Chunk<'b>> {
    chunks.clear();
    chunks.into_iter().map(|chunk| Chunk::new(chunk.sequence, &[])).collect()
}

impl Session {
    /// A generator for requests over this session: as many live sequences and tokens as the session remembers.
    ///
    /// # Errors
    /// [`Error::NoHead`] in a model without a read-out, [`Error::OutOfMemory`].
    pub fn generator(&self) -> Result<Generator<Sequence>> {
        let read_out = self.model.transformer().read_out.as_ref();
        let vocabulary = read_out.ok_or(Error::NoHead { head: "read-out" })?.outputs();
        let limits = Limits::new(vocabulary, self.limits.sequences, self.limits.length);
        Generator::new(limits.with_cpu(self.model.cpu()))
    }

    /// Continues each prompt, as many at a time as there is room for with all that each may generate; the next one joins when
    /// another is over. (So a limit on new tokens, or larger caches, let more run together.) Each result is
    /// what the prompt gets alone, bit for bit.
    ///
    /// # Errors
    /// As [`Session::extend`] and [`Generator::add`]; the first request that fails ends the call. What the session remembered
    /// before stays as it was.
    pub fn generate(
        &mut self,
        prompts: &[&[u32]],
        options: &GenerationOptions,
        hooks: &mut dyn Hooks,
    ) -> Result<Vec<Generated>> {
        let visit = self.visit();
        let each = |index: usize| prompts[index];
        visit.session.generate_each(prompts.len(), each, options, hooks, |session, _| session.add())
    }

    /// Decodes each source from the options' [`decoder_prompt`](GenerationOptions::decoder_prompt), or from the config's start
    /// token where there is none. Sources are encoded together.
    ///
    /// # Errors
    /// As [`Session::add_sources`] and [`Session::generate`], and [`Error::NoStart`] without a start token.
    pub fn generate_from(
        &mut self,
        sources: &Batch<'_>,
        options: &GenerationOptions,
        hooks: &mut dyn Hooks,
    ) -> Result<Vec<Generated>> {
        let config = self.model.config();
        config.encoder().and_then(|_| config.decoder())?;
        let start = config.special.decoder_start;
        let prompt = match options.decoder_prompt.as_slice() {
            [] => start.as_slice(),
            prompt => prompt,
        };
        if prompt.is_empty() {
            return Err(Error::NoStart);
        }
        let visit = self.visit();
        let sequences = visit.session.add_sources(sources)?;
        let (each, begin) = (|_| prompt, |_: &mut Session, index| Ok(sequences[index]));
        visit.session.generate_each(sequences.len(), each, options, hooks, begin)
    }

    /// Begins a call that forgets, however it ends, what it adds.
    pub(crate) fn visit(&mut self) -> Visit<'_> {
        self.sequences.iter_mut().for_each(Sequences::begin_visit);
        Visit { session: self }
    }

    /// Runs `count` requests, each begun when there is room for it; the prompts of those that begin together are read in one
    /// call. After an error or a panic, sequences are left.
    fn generate_each<'p>(
        &mut self,
        count: usize,
        prompt: impl Fn(usize) -> &'p [u32],
        options: &GenerationOptions,
        hooks: &mut dyn Hooks,
        mut begin: impl FnMut(&mut Session, usize) -> Result<Sequence>,
    ) -> Result<Vec<Generated>> {
        let mut generator = self.generator()?;
        let vocabulary = generator.limits().vocabulary;
        let refused = || Error::out_of_memory(format_args!("{count} requests"));
        // The generator counts its requests from 0, as they are counted here.
        let mut results = collected((0..count).map(|_| None)).ok_or_else(refused)?;
        let free = Room::new(self, options);
        let mut next = 0;
        loop {
            let running = (0..next).filter(|&index| results[index].is_none());
            let mut taken = running
                .fold(Taken::default(), |taken, index| taken.and(free.wants(prompt(index).len())));
            // Without any running, one that has no room says so.
            let mut end = next;
            while end < count {
                taken = taken.and(free.wants(prompt(end).len()));
                if taken.requests > 1 && !free.has(taken) {
                    break;
                }
                end += 1;
            }
            if end > next {
                let mut chunks = room(end - next).ok_or_else(refused)?;
                for index in next..end {
                    chunks.push(Chunk::new(begin(self, index)?, prompt(index)));
                }
                let mut logits = filled(0.0, chunks.len() * vocabulary).ok_or_else(refused)?;
                let fed = self.extend(&chunks, Output::LastLogits, &mut logits);
                fed.map_err(|error| error.counted_from(next))?;
                let begun =
                    chunks.iter().map(|chunk| chunk.sequence).zip(logits.chunks(vocabulary));
                for (index, (sequence, logits)) in (next..end).zip(begun) {
                    let prompt = Prompt::new(sequence, prompt(index), logits);
                    generator.add(self, prompt, options, hooks)?;
                }
                next = end;
            } else if generator.running() > 0 {
                generator.step(self, hooks)?;
            } else {
                let mut all = room(count).ok_or_else(refused)?;
                all.extend(results.into_iter().flatten());
                return Ok(all);
            }
            let waited_for = results[..next].iter_mut().enumerate();
            for (number, result) in waited_for.filter(|(_, result)| result.is_none()) {
                *result = generator.take(number).transpose()?;
            }
        }
    }
}

/// What a session has free when a call begins, and what each of its requests may come to take of it.
struct Room<'o> {
    options: &'o GenerationOptions,
    sequences: usize,
    pages: usize,
    /// The longest sequence.
    length: usize,
}

/// What some requests may come to take.
#[derive(Clone, Copy, Default)]
struct Taken {
    requests: usize,
    sequences: usize,
    pages: usize,
}

impl Taken {
    fn and(self, other: Taken) -> Taken {
        Taken {
            requests: self.requests + other.requests,
            sequences: self.sequences.saturating_add(other.sequences),
            pages: self.pages.saturating_add(other.pages),
        }
    }
}

impl<'o> Room<'o> {
    fn new(session: &Session, options: &'o GenerationOptions) -> Room<'o> {
        Room {
            options,
            sequences: session.limits.sequences.min(session.free_sequences()),
            pages: session.free_tokens() / PAGE,
            length: session.limits.length,
        }
    }

    /// Of a request with a prompt of so many tokens, whose hypotheses share nothing.
    fn wants(&self, prompt: usize) -> Taken {
        let GenerationOptions { max_new_tokens, max_length, .. } = *self.options;
        let longest = max_length.unwrap_or(self.length).min(self.length);
        let length = prompt.saturating_add(max_new_tokens.unwrap_or(self.length)).min(longest);
        let sequences = self.options.rows().max(1);
        let pages = sequences.saturating_mul(pages_for(length.max(prompt)));
        Taken { requests: 1, sequences, pages }
    }

    fn has(&self, taken: Taken) -> bool {
        taken.sequences <= self.sequences && taken.pages <= self.pages
    }
}

/// A call that forgets, however it ends, what it added to a session.
pub(crate) struct Visit<'s> {
    pub(crate) session: &'s mut Session,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if let Some(sequences) = &mut self.session.sequences {
            sequences.end_visit();
        }
    }
}
