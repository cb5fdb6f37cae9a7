//! rten's run of ONNX graphs, timed on the same protocol as `peer-worker`: `rten-worker THREADS`.
//!
//! Graphs lie in `exports/onnxruntime` under the path in `PEERS_HOME`: encoders as they were exported, decoders of fused operators.
//! It has no loop for translations.

mod models;

use models::{Case, Outcome, Peer};
use serde::Deserialize;
use serde_json::json;
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Deserialize)]
struct Request {
    op: Option<String>,
    model: String,
    case: String,
    #[serde(default)]
    budget: f64,
    #[serde(default)]
    min_reps: usize,
    #[serde(default = "default_warm")]
    warm: usize,
    file: Option<PathBuf>,
}

fn default_warm() -> usize {
    1
}

fn answer(
    home: &Path,
    threads: usize,
    loaded: &mut Option<(String, Peer)>,
    request: &Request,
) -> Result<serde_json::Value> {
    if loaded.as_ref().is_none_or(|(name, _)| *name != request.model) {
        *loaded = None;
        *loaded = Some((request.model.clone(), Peer::load(home, &request.model, threads)?));
    }
    let (_, peer) = loaded.as_ref().ok_or("no model")?;
    let case = Case::new(&request.case, peer)?;
    match request.op.as_deref() {
        Some("prepare") => return Ok(json!({"ok": 1})),
        Some("output") => {
            let bytes: Vec<u8> = match peer.call(&case, &mut Vec::new())? {
                Outcome::Values(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
                Outcome::Tokens(tokens) => tokens.iter().flat_map(|x| x.to_le_bytes()).collect(),
            };
            std::fs::write(request.file.as_ref().ok_or("no file is named")?, bytes)?;
            return Ok(json!({"ok": 1}));
        }
        _ => {}
    }
    for _ in 0..request.warm {
        peer.call(&case, &mut Vec::new())?;
    }
    let budget = Duration::from_secs_f64(request.budget);
    let (started, mut ns, mut calls) = (Instant::now(), Vec::new(), 0);
    while calls < 5000 && (calls < request.min_reps || started.elapsed() < budget) {
        peer.call(&case, &mut ns)?;
        calls += 1;
    }
    Ok(json!({"ns": ns}))
}

fn main() -> Result<()> {
    let threads = std::env::args().nth(1).ok_or("usage: rten-worker THREADS")?.parse()?;
    let home = PathBuf::from(std::env::var_os("PEERS_HOME").ok_or("PEERS_HOME names no folder")?);
    let mut loaded = None;
    let mut stdout = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let answer = serde_json::from_str(&line?)
            .map_err(Into::into)
            .and_then(|request| answer(&home, threads, &mut loaded, &request))
            .unwrap_or_else(|error| json!({"error": error.to_string()}));
        writeln!(stdout, "{answer}")?;
        stdout.flush()?;
    }
    Ok(())
}
