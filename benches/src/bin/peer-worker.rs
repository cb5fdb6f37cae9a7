//! Headrow as one of several contenders that a driver times in turns: `peer-worker THREADS`.
//!
//! One JSON object per line on stdin, one answer per line on stdout. Folders of models lie in `models` under the path in
//! `PEERS_HOME`; the cases are those of [`headrow_benches::cases`].
//!
//! - `{"op":"prepare","model":"minilm","case":"enc:1x128"}` loads the folder `minilm`, when the model changes, and
//!   answers `{"ok":1}` or `{"error":"…"}`.
//! - `{"model":…,"case":…,"budget":0.5,"min_reps":2}` warms up, repeats the call until both are over,
//!   and answers `{"ns":[…]}`, one time per call.
//! - `{"op":"output","model":…,"case":…,"file":"…"}` calls once, writes what came of it to the file, f32 or u32 in
//!   little endian, and answers `{"ok":1}`.

use headrow::Model;
use headrow_benches::cases::{Case, Outcome, Result, timed};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

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
    file: Option<PathBuf>,
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
        if request.op.as_deref() == Some("output") {
            case.call(&mut Vec::new())?;
            let bytes: Vec<u8> = match case.outcome() {
                Outcome::Values(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
                Outcome::Tokens(tokens) => tokens.iter().flat_map(|x| x.to_le_bytes()).collect(),
            };
            std::fs::write(request.file.as_ref().ok_or("no file is named")?, bytes)?;
            return Ok(Answer::Ready { ok: 1 });
        }
        for _ in 0..request.warm {
            case.call(&mut Vec::new())?;
        }
        let budget = Duration::from_secs_f64(request.budget);
        Ok(Answer::Times { ns: timed(case, budget, request.min_reps, request.max_reps)? })
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
