//! What whole models are timed at, named as `KIND:BATCHxSIZE`.
//!
//! All of B sequences of the same ids each: `enc:BxS` is the last hidden state of S tokens; `prefill:BxS` the likeliest
//! word after a prompt of S; `decode:BxC` a time per step, 32 greedy ones after an untimed prompt of C; `s2s:BxK` a
//! translation of 32 tokens into exactly 32, greedy for K = 1, else with a beam of K and the length penalty L^0.6.

use headrow::generate::{Beam, GenerationOptions, LengthPenalty, StepModel, Strategy};
use headrow::{Batch, Chunk, Model, Output, Sequence, Session, SessionOptions};
use headrow_bench_protocol::{Kind, Outcome, STEPS, Shape, TRANSLATED, likeliest, nanoseconds};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use headrow_bench_protocol::Result;

/// A batch of equal sequences, and where its result goes.
pub struct Case {
    kind: Kind,
    ids: Vec<u32>,
    lengths: Vec<usize>,
    out: Vec<f32>,
    tokens: Vec<u32>,
    session: Session,
}

impl Case {
    /// The case of that name with a session of `threads` threads.
    ///
    /// # Errors
    /// When no case has that name, or the model no such case.
    pub fn new(model: &Arc<Model>, case: &str, threads: usize) -> Result<Case> {
        let shape = Shape::parse(case)?;
        let Shape { kind, batch, length } = shape;
        let config = model.config();
        // A vocabulary whose last id is padding counts without it.
        let padding = config.special.padding == u32::try_from(config.vocabulary() - 1).ok();
        let vocabulary = config.vocabulary() - usize::from(padding);
        let tokens = batch * length;
        let ids = shape.ids(vocabulary);
        let options = SessionOptions::default().with_threads(threads);
        let (options, width) = match kind {
            Kind::Encode => (options.with_max_tokens(tokens), tokens * config.d_model),
            Kind::Prefill | Kind::Decode => {
                let longest = length + STEPS;
                let cached = batch * longest.next_multiple_of(64);
                let options = options.with_max_length(longest).with_cache_tokens(cached);
                (options.with_max_tokens(tokens.min(512)), batch * config.vocabulary())
            }
            Kind::Translate(beam) => {
                let cached = (batch * beam * 2) * TRANSLATED.next_multiple_of(64);
                let options = options.with_max_length(TRANSLATED + 1).with_cache_tokens(cached);
                let sources = batch * TRANSLATED.next_multiple_of(64);
                (options.with_max_tokens(tokens.max(batch * beam)).with_source_tokens(sources), 0)
            }
        };
        let most = match kind {
            Kind::Translate(beam) => batch * beam,
            _ => batch,
        };
        let session = Session::new(model, &options.with_max_sequences(most))?;
        let (out, tokens, lengths) = (vec![0.0; width], Vec::new(), vec![length; batch]);
        Ok(Case { kind, ids, lengths, out, tokens, session })
    }

    /// The session's [`warm_up`](Session::warm_up).
    ///
    /// # Errors
    /// The session's.
    pub fn warm_up(&mut self) -> Result<()> {
        Ok(self.session.warm_up()?)
    }

    /// One call; the nanoseconds of its parts, where they count one by one, go behind `ns`.
    ///
    /// # Errors
    /// The session's, and a translation of another length.
    pub fn call(&mut self, ns: &mut Vec<u64>) -> Result<()> {
        let start = Instant::now();
        match self.kind {
            Kind::Encode => {
                let batch = Batch::ragged(&self.ids, &self.lengths);
                self.session.encode(&batch, &mut self.out)?;
            }
            Kind::Prefill => {
                let (sequences, next) = self.prefill()?;
                std::hint::black_box(next);
                self.remove(&sequences)?;
            }
            Kind::Decode => return self.decode(ns),
            Kind::Translate(beam) => self.translate(beam)?,
        }
        ns.push(nanoseconds(start));
        Ok(())
    }

    /// What the last call came to.
    pub fn outcome(&self) -> Outcome<'_> {
        match self.kind {
            Kind::Encode | Kind::Prefill => Outcome::Values((&self.out[..]).into()),
            Kind::Decode | Kind::Translate(_) => Outcome::Tokens((&self.tokens[..]).into()),
        }
    }

    fn prefill(&mut self) -> Result<(Vec<Sequence>, Vec<u32>)> {
        let added = self.lengths.iter().map(|_| self.session.add());
        let sequences = added.collect::<headrow::Result<Vec<Sequence>>>()?;
        let prompts = self.ids.chunks(self.lengths[0]);
        let chunks: Vec<Chunk<'_>> = sequences
            .iter()
            .zip(prompts)
            .map(|(&sequence, ids)| Chunk::new(sequence, ids))
            .collect();
        self.session.extend(&chunks, Output::LastLogits, &mut self.out)?;
        let next = likeliest(&self.out, sequences.len());
        Ok((sequences, next))
    }

    fn decode(&mut self, ns: &mut Vec<u64>) -> Result<()> {
        let (sequences, mut next) = self.prefill()?;
        self.tokens.resize(sequences.len() * STEPS, 0);
        for step in 0..STEPS {
            let start = Instant::now();
            self.session.step(&sequences, &next, &mut self.out)?;
            next = likeliest(&self.out, sequences.len());
            ns.push(nanoseconds(start));
            for (chosen, &token) in self.tokens.chunks_mut(STEPS).zip(&next) {
                chosen[step] = token;
            }
        }
        self.remove(&sequences)
    }

    fn translate(&mut self, beam: usize) -> Result<()> {
        let options = GenerationOptions::default()
            .with_max_new_tokens(TRANSLATED)
            .with_min_new_tokens(TRANSLATED);
        let average = LengthPenalty::Average { alpha: 0.6 };
        let options = match beam {
            1 => options,
            _ => {
                options.with_strategy(Strategy::Beam(Beam::new(beam).with_length_penalty(average)))
            }
        };
        let sources = Batch::ragged(&self.ids, &self.lengths);
        let generated = self.session.generate_from(&sources, &options, &mut ())?;
        self.tokens.clear();
        for request in &generated {
            let tokens = &request.best().tokens;
            if tokens.len() != TRANSLATED {
                return Err(format!("{} tokens came", tokens.len()).into());
            }
            self.tokens.extend(tokens);
        }
        Ok(())
    }

    fn remove(&mut self, sequences: &[Sequence]) -> Result<()> {
        sequences.iter().try_for_each(|&sequence| self.session.remove(sequence))?;
        Ok(())
    }
}

/// Calls until both `budget` and `min_calls` are over, or `max_calls` were made; a time for each call or step.
///
/// # Errors
/// The case's.
pub fn timed(
    case: &mut Case,
    budget: Duration,
    min_calls: usize,
    max_calls: usize,
) -> Result<Vec<u64>> {
    let (started, mut ns, mut calls) = (Instant::now(), Vec::new(), 0);
    while calls < max_calls && (calls < min_calls || started.elapsed() < budget) {
        case.call(&mut ns)?;
        calls += 1;
    }
    Ok(ns)
}
