//! candle's BERT, timed on the same protocol as `peer-worker`: `candle-worker THREADS`.

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use serde::Deserialize;
use serde_json::json;
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Deserialize)]
struct Request {
    op: Option<String>,
    model: String,
    case: String,
    #[serde(default)]
    budget: f64,
    #[serde(default)]
    min_reps: usize,
}

fn load(folder: PathBuf) -> Result<(BertModel, usize)> {
    let config = std::fs::read_to_string(folder.join("config.json"))?;
    let vocabulary = serde_json::from_str::<serde_json::Value>(&config)?["vocab_size"]
        .as_u64()
        .ok_or("no vocab_size")? as usize;
    let config: Config = serde_json::from_str(&config)?;
    let weights = std::fs::read(folder.join("model.safetensors"))?;
    let weights = VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu)?;
    Ok((BertModel::load(weights, &config)?, vocabulary))
}

fn case(name: &str, vocabulary: usize) -> Result<Tensor> {
    let shape = name.strip_prefix("enc:").ok_or("not a case of BERT")?;
    let (batch, length) = shape.split_once('x').ok_or("a case is enc:BATCHxLENGTH")?;
    let (batch, length): (usize, usize) = (batch.parse()?, length.parse()?);
    let ids: Vec<u32> = (0..batch * length)
        .map(|i| ((i * 7919 + 13) % (vocabulary - 100) + 50) as u32)
        .collect();
    Ok(Tensor::from_vec(ids, (batch, length), &Device::Cpu)?)
}

fn answer(
    home: &std::path::Path,
    loaded: &mut Option<(String, BertModel, usize)>,
    request: &Request,
) -> Result<serde_json::Value> {
    if loaded.as_ref().is_none_or(|(name, ..)| *name != request.model) {
        *loaded = None;
        let (model, vocabulary) = load(home.join("models").join(&request.model))?;
        *loaded = Some((request.model.clone(), model, vocabulary));
    }
    let (_, model, vocabulary) = loaded.as_ref().ok_or("no model")?;
    let ids = case(&request.case, *vocabulary)?;
    if request.op.as_deref() == Some("prepare") {
        return Ok(json!({"ok": 1}));
    }
    let types = ids.zeros_like()?;
    let mask = Tensor::ones(ids.shape(), DType::U32, &Device::Cpu)?;
    let call = || -> Result<()> {
        let hidden = model.forward(&ids, &types, Some(&mask))?;
        std::hint::black_box(hidden);
        Ok(())
    };
    call()?;
    let budget = Duration::from_secs_f64(request.budget);
    let (started, mut ns) = (Instant::now(), Vec::new());
    while ns.len() < 5000 && (ns.len() < request.min_reps || started.elapsed() < budget) {
        let begun = Instant::now();
        call()?;
        ns.push(begun.elapsed().as_nanos() as u64);
    }
    Ok(json!({"ns": ns}))
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
