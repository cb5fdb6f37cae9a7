//! Contenders that a driver times in turns: a process each, one JSON object per line on stdin, one answer per line on stdout.
//!
//! - `{"op":"prepare","model":"minilm","case":"enc:1x128"}` loads the model, when it is another than before, makes the case
//!   ready and answers `{"ok":1}` or `{"error":"…"}`.
//! - `{"model":…,"case":…,"budget":0.5,"min_reps":2,"warm":1}` makes `warm` calls, repeats the call until both are over, and
//!   answers `{"ns":[…]}`: one time per call, or per step where steps count one by one.
//! - `{"op":"output","model":…,"case":…,"file":"…"}` calls once, writes what came of it to the file, f32 or u32 in
//!   little endian, and answers `{"ok":1}`.

use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What can go wrong is told, not acted upon.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Steps of a decoding case.
pub const STEPS: usize = 32;
/// Tokens of a source, and of its translation.
pub const TRANSLATED: usize = 32;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// The last hidden states.
    Encode,
    /// The scores of the last position.
    Prefill,
    /// A time per step, greedy ones after an untimed prompt.
    Decode,
    /// With a beam of so many.
    Translate(usize),
}

/// A case's name taken apart: sequences of the same number of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// What is done with them.
    pub kind: Kind,
    /// How many there are.
    pub batch: usize,
    /// Tokens of each.
    pub length: usize,
}

impl Shape {
    /// Of `KIND:BATCHxSIZE`.
    ///
    /// # Errors
    /// When no case has that name.
    pub fn parse(name: &str) -> Result<Shape> {
        let unknown = || format!("no case {name}: a case is KIND:BATCHxSIZE");
        let number = |text: &str| text.parse::<usize>().map_err(|_| unknown());
        let (kind, shape) = name.split_once(':').ok_or_else(unknown)?;
        let (batch, size) = shape.split_once('x').ok_or_else(unknown)?;
        let (batch, size) = (number(batch)?, number(size)?);
        let (kind, length) = match kind {
            "enc" => (Kind::Encode, size),
            "prefill" => (Kind::Prefill, size),
            "decode" => (Kind::Decode, size),
            "s2s" => (Kind::Translate(size), TRANSLATED),
            _ => return Err(unknown().into()),
        };
        Ok(Shape { kind, batch, length })
    }

    /// The tokens of all sequences, the same for every contender, out of `vocabulary` words.
    pub fn ids(&self, vocabulary: usize) -> Vec<u32> {
        let id = |i: usize| ((i * 7919 + 13) % (vocabulary - 100) + 50) as u32;
        (0..self.batch * self.length).map(id).collect()
    }
}

/// The likeliest word of each of `rows` rows of scores.
pub fn likeliest(scores: &[f32], rows: usize) -> Vec<u32> {
    let best = |row: &[f32]| {
        let larger = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
        (0..row.len()).fold(0, larger) as u32
    };
    scores.chunks(scores.len() / rows).map(best).collect()
}

/// The nanoseconds since then.
pub fn nanoseconds(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// What a case came to, for a comparison with what others came to.
#[derive(Clone, Debug)]
pub enum Outcome<'a> {
    /// Last hidden states, or scores of the last position.
    Values(Cow<'a, [f32]>),
    /// The words chosen, sequence after sequence.
    Tokens(Cow<'a, [u32]>),
}

impl Outcome<'_> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Outcome::Values(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Outcome::Tokens(tokens) => tokens.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }
}

/// A contender with a model loaded.
pub trait Peer: Sized {
    /// What a call needs beside the model, and what the last one came to.
    type Case;

    /// The model of that name.
    ///
    /// # Errors
    /// When it cannot be had.
    fn load(model: &str, threads: usize) -> Result<Self>;

    /// The case of that name.
    ///
    /// # Errors
    /// When the model has none.
    fn case(&self, name: &str) -> Result<Self::Case>;

    /// One call; the nanoseconds of what is timed go behind `ns`.
    ///
    /// # Errors
    /// The model's.
    fn call(&mut self, case: &mut Self::Case, ns: &mut Vec<u64>) -> Result<()>;

    /// What the last call came to.
    ///
    /// # Errors
    /// The model's.
    fn outcome<'a>(&'a self, case: &'a Self::Case) -> Result<Outcome<'a>>;
}

/// The folder that has `models` and `exports`: what `PEERS_HOME` names.
///
/// # Errors
/// When it names none.
pub fn home() -> Result<PathBuf> {
    Ok(std::env::var_os("PEERS_HOME").ok_or("PEERS_HOME names no folder")?.into())
}

/// The only argument of a contender's program.
///
/// # Errors
/// When there is none.
pub fn threads() -> Result<usize> {
    Ok(std::env::args().nth(1).ok_or("the only argument is the number of threads")?.parse()?)
}

#[derive(Deserialize)]
struct Request {
    op: Option<String>,
    model: String,
    case: String,
    #[serde(default)]
    budget: f64,
    #[serde(default)]
    min_reps: usize,
    #[serde(default)]
    warm: usize,
    file: Option<PathBuf>,
}

/// The model that was asked for last, and the cases made ready for it.
struct Loaded<P: Peer> {
    name: String,
    peer: P,
    cases: HashMap<String, P::Case>,
}

/// Answers requests until there are no more.
///
/// # Errors
/// When they cannot be read, or an answer not be written.
pub fn serve<P: Peer>(threads: usize) -> Result<()> {
    answer_all::<P>(threads, std::io::stdin().lock(), std::io::stdout().lock())
}

fn answer_all<P: Peer>(threads: usize, requests: impl BufRead, mut out: impl Write) -> Result<()> {
    let mut loaded: Option<Loaded<P>> = None;
    for line in requests.lines() {
        let answer = serde_json::from_str(&line?)
            .map_err(Into::into)
            .and_then(|request| answer(&mut loaded, threads, &request))
            .unwrap_or_else(|error| json!({"error": error.to_string()}));
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

fn answer<P: Peer>(
    loaded: &mut Option<Loaded<P>>,
    threads: usize,
    request: &Request,
) -> Result<Value> {
    let name = &request.model;
    if loaded.as_ref().is_none_or(|loaded| loaded.name != *name) {
        // Two models at once may be more than the memory holds.
        *loaded = None;
        let peer = P::load(name, threads)?;
        *loaded = Some(Loaded { name: name.clone(), peer, cases: HashMap::new() });
    }
    let Loaded { peer, cases, .. } = loaded.as_mut().ok_or("no model")?;
    if !cases.contains_key(&request.case) {
        cases.insert(request.case.clone(), peer.case(&request.case)?);
    }
    let case = cases.get_mut(&request.case).ok_or("no case")?;
    match request.op.as_deref() {
        None => {}
        Some("prepare") => return Ok(json!({"ok": 1})),
        Some("output") => {
            peer.call(case, &mut Vec::new())?;
            let file = request.file.as_ref().ok_or("no file is named")?;
            std::fs::write(file, peer.outcome(case)?.bytes())?;
            return Ok(json!({"ok": 1}));
        }
        Some(other) => return Err(format!("no operation {other}").into()),
    }
    for _ in 0..request.warm {
        peer.call(case, &mut Vec::new())?;
    }
    let budget = Duration::from_secs_f64(request.budget);
    let (started, mut ns, mut calls) = (Instant::now(), Vec::new(), 0);
    while calls < request.min_reps || started.elapsed() < budget {
        peer.call(case, &mut ns)?;
        calls += 1;
    }
    Ok(json!({"ns": ns}))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter(u32);

    impl Peer for Counter {
        type Case = u32;

        fn load(model: &str, threads: usize) -> Result<Counter> {
            (model != "none").then_some(Counter(threads as u32)).ok_or("no such model".into())
        }

        fn case(&self, name: &str) -> Result<u32> {
            Ok(Shape::parse(name)?.length as u32)
        }

        fn call(&mut self, case: &mut u32, ns: &mut Vec<u64>) -> Result<()> {
            *case += self.0;
            ns.push(u64::from(*case));
            Ok(())
        }

        fn outcome(&self, case: &u32) -> Result<Outcome<'_>> {
            Ok(Outcome::Tokens(vec![*case].into()))
        }
    }

    #[test]
    fn requests_are_answered() {
        let file = std::env::temp_dir().join(format!("headrow-protocol-{}", std::process::id()));
        let requests = [
            json!({"op": "prepare", "model": "a", "case": "enc:1x8"}),
            json!({"model": "a", "case": "enc:1x8", "min_reps": 2, "warm": 3}),
            json!({"op": "output", "model": "a", "case": "enc:1x8", "file": file}),
            json!({"op": "prepare", "model": "none", "case": "enc:1x8"}),
            json!({"model": "b", "case": "enc:8", "min_reps": 1}),
            json!({"model": "b", "case": "enc:1x8", "min_reps": 1}),
        ];
        let (lines, mut out) =
            (requests.map(|request| format!("{request}\n")).concat(), Vec::new());
        answer_all::<Counter>(2, lines.as_bytes(), &mut out).unwrap();
        let answers = String::from_utf8(out).unwrap();
        let expected = [
            json!({"ok": 1}),
            json!({"ns": [16, 18]}),
            json!({"ok": 1}),
            json!({"error": "no such model"}),
            json!({"error": "no case enc:8: a case is KIND:BATCHxSIZE"}),
            json!({"ns": [10]}),
        ];
        assert_eq!(answers, expected.map(|answer| format!("{answer}\n")).concat());
        assert_eq!(std::fs::read(&file).unwrap(), 20u32.to_le_bytes());
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn names_are_taken_apart() {
        let shape = |name| Shape::parse(name).unwrap();
        assert_eq!(shape("decode:8x128"), Shape { kind: Kind::Decode, batch: 8, length: 128 });
        let translated = Shape { kind: Kind::Translate(4), batch: 1, length: TRANSLATED };
        assert_eq!(shape("s2s:1x4"), translated);
        assert!(["enc", "enc:1", "enc:1xa", "what:1x8"].iter().all(|n| Shape::parse(n).is_err()));
        assert_eq!(shape("enc:1x2").ids(107), [56, 51]);
    }

    #[test]
    fn the_first_of_the_likeliest_wins() {
        assert_eq!(likeliest(&[0.0, 2.0, 1.0, 3.0, 3.0, -1.0], 2), [1, 0]);
    }
}
