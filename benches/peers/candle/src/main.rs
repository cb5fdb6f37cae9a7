//! candle's models, timed on the same protocol as `peer-worker`: `candle-worker THREADS`.
//!
//! BERT, Llama and Marian are candle-transformers' own; GPT-2 is put together from candle's layers. Translation is greedy:
//! candle has no beam search.

mod gpt2;
mod models;

use candle_core::{DType, Tensor};
use models::{Case, Peer};
use serde::Deserialize;
use serde_json::json;
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

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

/// A loaded folder under its name, and its vocabulary.
type Loaded = Option<(String, Peer, usize)>;

fn answer(
    home: &std::path::Path,
    loaded: &mut Loaded,
    request: &Request,
) -> Result<serde_json::Value> {
    if loaded.as_ref().is_none_or(|(name, ..)| *name != request.model) {
        *loaded = None;
        let (peer, vocabulary) = Peer::load(&home.join("models").join(&request.model))?;
        *loaded = Some((request.model.clone(), peer, vocabulary));
    }
    let (_, peer, vocabulary) = loaded.as_mut().ok_or("no model")?;
    let case = Case::new(&request.case, *vocabulary)?;
    if request.op.as_deref() == Some("prepare") {
        return Ok(json!({"ok": 1}));
    }
    if request.op.as_deref() == Some("output") {
        let outcome = peer.call(&case, &mut Vec::new())?;
        std::fs::write(request.file.as_ref().ok_or("no file is named")?, bytes(&outcome)?)?;
        return Ok(json!({"ok": 1}));
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

/// Values in little endian, as the protocol has them.
fn bytes(outcome: &Tensor) -> Result<Vec<u8>> {
    let flat = outcome.flatten_all()?;
    Ok(match flat.dtype() {
        DType::U32 => flat.to_vec1::<u32>()?.iter().flat_map(|x| x.to_le_bytes()).collect(),
        _ => flat.to_vec1::<f32>()?.iter().flat_map(|x| x.to_le_bytes()).collect(),
    })
}

fn main() -> Result<()> {
    let threads = std::env::args().nth(1).ok_or("usage: candle-worker THREADS")?;
    // candle and its matrix product ask rayon's global pool, which reads this at its first use.
    std::env::set_var("RAYON_NUM_THREADS", threads);
    let home = PathBuf::from(std::env::var_os("PEERS_HOME").ok_or("PEERS_HOME names no folder")?);
    let mut loaded = None;
    let mut stdout = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let answer = serde_json::from_str(&line?)
            .map_err(Into::into)
            .and_then(|request| answer(&home, &mut loaded, &request))
            .unwrap_or_else(|error| json!({"error": error.to_string()}));
        writeln!(stdout, "{answer}")?;
        stdout.flush()?;
    }
    Ok(())
}
