//! What whole models are timed at, named as `KIND:BATCHxSIZE`.
//!
//! All of B sequences of the same ids each: `enc:BxS` is the last hidden state of S tokens; `prefill:BxS` the likeliest
//! word after a prompt of S; `decode:BxC` a time per step, 32 greedy ones after an untimed prompt of C; `s2s:BxK` a
//! translation of 32 tokens into exactly 32, greedy for K = 1, else with a beam of K and the length penalty L^0.6.

use headrow::generate::{Beam, GenerationOptions, LengthPenalty, StepModel, Strategy};
use headrow::{Batch, Chunk, Model, Output, Sequence, Session, SessionOptions};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What can go wrong is told, not acted upon.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Steps of a decoding case.
pub const STEPS: usize = 32;
/// Tokens of a source, and of its translation.
pub const TRANSLATED: usize = 32;

/// What a call does.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Encode,
    Prefill,
    Decode,
    /// With a beam of so many.
    Translate(usize),
}

/// What a case came to, for a comparison with what others came to.
pub enum Outcome<'a> {
    /// Last hidden states, or scores of the last position.
    Values(&'a [f32]),
    /// The words chosen, sequence after sequence.
    Tokens(&'a [u32]),
}

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
        let unknown = || format!("no case of ours: {case}");
        let (word, shape) = case.split_once(':').ok_or_else(unknown)?;
        let (batch, size) = shape.split_once('x').ok_or_else(unknown)?;
        let (batch, size): (usize, usize) = (batch.parse()?, size.parse()?);
        let (kind, length) = match word {
            "enc" => (Kind::Encode, size),
            "prefill" => (Kind::Prefill, size),
            "decode" => (Kind::Decode, size),
            "s2s" => (Kind::Translate(size), TRANSLATED),
            _ => return Err(unknown().into()),
        };
        let config = model.config();
        // A vocabulary whose last id is padding counts without it.
        let padding = config.special.padding == u32::try_from(config.vocabulary() - 1).ok();
        let vocabulary = config.vocabulary() - usize::from(padding);
        let tokens = batch * length;
        let ids = (0..tokens).map(|i| ((i * 7919 + 13) % (vocabulary - 100) + 50) as u32).collect();
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
        ns.push(nanoseconds(start.elapsed()));
        Ok(())
    }

    /// What the last call came to.
    pub fn outcome(&self) -> Outcome<'_> {
        match self.kind {
            Kind::Encode | Kind::Prefill => Outcome::Values(&self.out),
            Kind::Decode | Kind::Translate(_) => Outcome::Tokens(&self.tokens),
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
            ns.push(nanoseconds(start.elapsed()));
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

/// The likeliest word of each of `rows` rows of scores.
fn likeliest(logits: &[f32], rows: usize) -> Vec<u32> {
    let best = |row: &[f32]| {
        let larger = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
        (0..row.len()).fold(0, larger) as u32
    };
    logits.chunks(logits.len() / rows).map(best).collect()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
