//! Headrow as one of several contenders that a driver times in turns: `peer-worker THREADS`.
//!
//! One JSON object per line on stdin, one answer per line on stdout.
//!
//! - `{"op":"prepare","model":"minilm","case":"enc:1x128"}` loads the folder `models/minilm` under the path in
//!   `PEERS_HOME`, when the model changes, and answers `{"ok":1}` or `{"error":"…"}`.
//! - `{"model":…,"case":…,"budget":0.5,"min_reps":2}` warms up, repeats the call until both are over,
//!   and answers `{"ns":[…]}`, one time per call.
//!
//! `enc:BxS` is the last hidden state of B sequences of S tokens.

use headrow::{Batch, Model, Session, SessionOptions};
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

/// A batch of equal sequences, and where its result goes.
struct Case {
    ids: Vec<u32>,
    lengths: Vec<usize>,
    hidden: Vec<f32>,
    session: Session,
}

impl Case {
    fn new(model: &Arc<Model>, case: &str, threads: usize) -> Result<Case> {
        let shape = case.strip_prefix("enc:").ok_or_else(|| format!("no case of ours: {case}"))?;
        let (batch, length) = shape.split_once('x').ok_or("a case is enc:BATCHxLENGTH")?;
        let (batch, length): (usize, usize) = (batch.parse()?, length.parse()?);
        let vocabulary = model.config().vocabulary();
        let tokens = batch * length;
        let ids = (0..tokens).map(|i| ((i * 7919 + 13) % (vocabulary - 100) + 50) as u32).collect();
        let options = SessionOptions::default()
            .with_max_tokens(tokens)
            .with_max_sequences(batch)
            .with_threads(threads);
        Ok(Case {
            ids,
            lengths: vec![length; batch],
            hidden: vec![0.0; tokens * model.config().d_model],
            session: Session::new(model, &options)?,
        })
    }

    fn call(&mut self) -> headrow::Result<()> {
        let batch = Batch::ragged(&self.ids, &self.lengths);
        self.session.encode(&batch, &mut self.hidden)
    }
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
            case.call()?;
        }
        let budget = Duration::from_secs_f64(request.budget);
        let (started, mut ns) = (Instant::now(), Vec::new());
        while ns.len() < request.max_reps
            && (ns.len() < request.min_reps || started.elapsed() < budget)
        {
            let call = Instant::now();
            case.call()?;
            ns.push(u64::try_from(call.elapsed().as_nanos())?);
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
