//! Headrow as one of several contenders that a driver times in turns: `peer-worker THREADS`.
//!
//! One JSON object per line on stdin, one answer per line on stdout.
//!
//! - `{"op":"prepare","model":"minilm","case":"enc:1x128"}` loads the folder `models/minilm` under the path in
//!   `PEERS_HOME`, when the model changes, and answers `{"ok":1}` or `{"error":"…"}`.
//! - `{"model":…,"case":…,"budget":0.5,"min_reps":2}` warms up, repeats the call until both are over,
//!   and answers `{"ns":[…]}`, one time per call.
//!
//! Cases, all of B sequences of the same ids each: `enc:BxS` is the last hidden state of S tokens; `prefill:BxS` the likeliest
//! word after a prompt of S; `decode:BxC` a time per step, 32 greedy ones after an untimed prompt of C; `s2s:BxK` a
//! translation of 32 tokens into exactly 32, greedy for K = 1, else with a beam of K and the length penalty L^0.6.

use headrow::generate::{Beam, GenerationOptions, LengthPenalty, StepModel, Strategy};
use headrow::{Batch, Chunk, Model, Output, Sequence, Session, SessionOptions};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Deserialize)]
struct Request {
    op: Option<String>,
    model: String,
    case: String,
    #[serde(default)]
    budget: f64,
    #[serde(default)]
    min_reps: usize,
    #[serde(default = "default_max_reps")]
    max_reps: usize,
    #[serde(default = "default_warm")]
    warm: usize,
}

fn default_max_reps() -> usize {
    5000
}

fn default_warm() -> usize {
    1
}

#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Ready { ok: u8 },
    Times { ns: Vec<u64> },
    Error { error: String },
}

/// Steps of a decoding case.
const STEPS: usize = 32;
/// Tokens of a source, and of its translation.
const TRANSLATED: usize = 32;

/// What a call does.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Encode,
    Prefill,
    Decode,
    /// With a beam of so many.
    Translate(usize),
}

/// A batch of equal sequences, and where its result goes.
struct Case {
    kind: Kind,
    ids: Vec<u32>,
    lengths: Vec<usize>,
    out: Vec<f32>,
    session: Session,
}

impl Case {
    fn new(model: &Arc<Model>, case: &str, threads: usize) -> Result<Case> {
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
        Ok(Case { kind, ids, lengths: vec![length; batch], out: vec![0.0; width], session })
    }

    /// One call; the times of its parts where they count one by one.
    fn call(&mut self, ns: &mut Vec<u64>) -> Result<()> {
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
        ns.push(u64::try_from(start.elapsed().as_nanos())?);
        Ok(())
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
        for _ in 0..STEPS {
            let start = Instant::now();
            self.session.step(&sequences, &next, &mut self.out)?;
            next = likeliest(&self.out, sequences.len());
            ns.push(u64::try_from(start.elapsed().as_nanos())?);
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
        for request in &generated {
            if request.best().tokens.len() != TRANSLATED {
                return Err(format!("{} tokens came", request.best().tokens.len()).into());
            }
        }
        Ok(())
    }

    fn remove(&mut self, sequences: &[Sequence]) -> Result<()> {
        sequences.iter().try_for_each(|&sequence| self.session.remove(sequence))?;
        Ok(())
    }
}

/// The likeliest word of each of `rows` rows of scores.
fn likeliest(logits: &[f32], rows: usize) -> Vec<u32> {
    let best = |row: &[f32]| {
        let larger = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
        (0..row.len()).fold(0, larger) as u32
    };
    logits.chunks(logits.len() / rows).map(best).collect()
}

/// The loaded model and the cases prepared for it.
struct Worker {
    home: PathBuf,
    threads: usize,
    model: Option<(String, Arc<Model>)>,
    cases: HashMap<String, Case>,
}

impl Worker {
    fn answer(&mut self, request: &Request) -> Result<Answer> {
        if request.op.as_deref() == Some("prepare") {
            self.prepare(request)?;
            return Ok(Answer::Ready { ok: 1 });
        }
        let case = self.cases.get_mut(&request.case).ok_or("this case was not prepared")?;
        for _ in 0..request.warm {
            case.call(&mut Vec::new())?;
        }
        let budget = Duration::from_secs_f64(request.budget);
        let (started, mut ns, mut calls) = (Instant::now(), Vec::new(), 0);
        while calls < request.max_reps && (calls < request.min_reps || started.elapsed() < budget) {
            case.call(&mut ns)?;
            calls += 1;
        }
        Ok(Answer::Times { ns })
    }

    fn prepare(&mut self, request: &Request) -> Result<()> {
        if self.model.as_ref().is_none_or(|(name, _)| *name != request.model) {
            self.cases.clear();
            self.model = None;
            let model = Model::from_dir(self.home.join("models").join(&request.model))?;
            self.model = Some((request.model.clone(), Arc::new(model)));
        }
        let (_, model) = self.model.as_ref().ok_or("no model")?;
        let case = Case::new(model, &request.case, self.threads)?;
        self.cases.insert(request.case.clone(), case);
        Ok(())
    }
}

fn main() -> Result<()> {
    let threads = std::env::args().nth(1).ok_or("usage: peer-worker THREADS")?.parse()?;
    let home = std::env::var_os("PEERS_HOME").ok_or("PEERS_HOME names no folder")?.into();
    let mut worker = Worker { home, threads, model: None, cases: HashMap::new() };
    let mut stdout = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let answer = serde_json::from_str(&line?)
            .map_err(Into::into)
            .and_then(|request| worker.answer(&request))
            .unwrap_or_else(|error| Answer::Error { error: error.to_string() });
        writeln!(stdout, "{}", serde_json::to_string(&answer)?)?;
        stdout.flush()?;
    }
    Ok(())
}
