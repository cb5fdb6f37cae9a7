//! What candle has for each kind of folder, behind one interface: a call of a case, timed.

use candle_core::{safetensors, DType, Device, IndexOp, Tensor, D};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, llama, marian};
use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use crate::gpt2::{self, Gpt2};
use headrow_bench_protocol::{home, nanoseconds, Kind, Outcome, Peer, Result, Shape, STEPS};

/// A loaded folder.
enum Model {
    Bert(bert::BertModel),
    Gpt2(Gpt2),
    Llama(llama::Llama, llama::Cache),
    Marian(marian::MTModel, u32),
}

/// B sequences of the same ids, what is done with them, and what the last call came to.
pub struct Case {
    kind: Kind,
    ids: Tensor,
    outcome: Option<Tensor>,
}

/// A model, and the words that cases draw from.
pub struct Candle {
    model: Model,
    vocabulary: usize,
}

impl Peer for Candle {
    type Case = Case;

    fn load(model: &str, _: usize) -> Result<Candle> {
        let (model, vocabulary) = Model::load(&home()?.join("models").join(model))?;
        Ok(Candle { model, vocabulary })
    }

    fn case(&self, name: &str) -> Result<Case> {
        let shape = Shape::parse(name)?;
        if matches!(shape.kind, Kind::Translate(beam) if beam > 1) {
            return Err("it has no beam search".into());
        }
        let ids = shape.ids(self.vocabulary);
        let ids = Tensor::from_vec(ids, (shape.batch, shape.length), &Device::Cpu)?;
        Ok(Case { kind: shape.kind, ids, outcome: None })
    }

    fn call(&mut self, case: &mut Case, ns: &mut Vec<u64>) -> Result<()> {
        case.outcome = Some(self.model.call(case, ns)?);
        Ok(())
    }

    fn outcome<'a>(&'a self, case: &'a Case) -> Result<Outcome<'a>> {
        let outcome = case.outcome.as_ref().ok_or("no call was made")?.flatten_all()?;
        Ok(match outcome.dtype() {
            DType::U32 => Outcome::Tokens(outcome.to_vec1()?.into()),
            _ => Outcome::Values(outcome.to_vec1()?.into()),
        })
    }
}

impl Model {
    /// The model of a folder, and the words that cases draw from.
    fn load(folder: &Path) -> Result<(Model, usize)> {
        let text = std::fs::read_to_string(folder.join("config.json"))?;
        let config: serde_json::Value = serde_json::from_str(&text)?;
        let vocabulary = config["vocab_size"].as_u64().ok_or("no vocab_size")? as usize;
        let mut tensors = safetensors::load(folder.join("model.safetensors"), &Device::Cpu)?;
        let model = match config["model_type"].as_str().unwrap_or_default() {
            "bert" => {
                Model::Bert(bert::BertModel::load(weights(tensors), &serde_json::from_str(&text)?)?)
            }
            "gpt2" => Model::Gpt2(Gpt2::load(&weights(tensors), &serde_json::from_str(&text)?)?),
            "llama" => {
                let config: llama::LlamaConfig = serde_json::from_str(&text)?;
                let config = config.into_config(false);
                let cache = llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
                Model::Llama(llama::Llama::load(weights(tensors), &config)?, cache)
            }
            "marian" => {
                let mut config = config;
                // A folder says null where candle wants an id.
                config["forced_eos_token_id"] = config["eos_token_id"].clone();
                let config: marian::Config = serde_json::from_value(config)?;
                let bias = Tensor::zeros((1, vocabulary), DType::F32, &Device::Cpu)?;
                tensors.entry("final_logits_bias".to_owned()).or_insert(bias);
                let start = config.decoder_start_token_id;
                let model = marian::MTModel::new(&config, weights(tensors))?;
                // The last id is padding.
                return Ok((Model::Marian(model, start), vocabulary - 1));
            }
            other => return Err(format!("{other} is not a model of candle's here").into()),
        };
        Ok((model, vocabulary))
    }

    /// One call; the times of its steps where they count one by one. What it came to: states, scores, or the words chosen.
    fn call(&mut self, case: &Case, ns: &mut Vec<u64>) -> Result<Tensor> {
        let (ids, start) = (&case.ids, Instant::now());
        let outcome = match (self, case.kind) {
            (Model::Bert(model), Kind::Encode) => {
                let mask = Tensor::ones(ids.shape(), DType::U32, &Device::Cpu)?;
                model.forward(ids, &ids.zeros_like()?, Some(&mask))?
            }
            (Model::Gpt2(model), kind @ (Kind::Prefill | Kind::Decode)) => {
                let mut cache = gpt2::Cache::default();
                return decode(kind, ids, ns, |ids, past| model.forward(ids, past, &mut cache));
            }
            (Model::Llama(model, fresh), kind @ (Kind::Prefill | Kind::Decode)) => {
                let mut cache = fresh.clone();
                return decode(
                    kind,
                    ids,
                    ns,
                    |ids, past| Ok(model.forward(ids, past, &mut cache)?),
                );
            }
            (Model::Marian(model, first), Kind::Translate(_)) => {
                model.reset_kv_cache();
                let encoded = model.encoder().forward(ids, 0)?;
                let mut next = Tensor::full(*first, (ids.dim(0)?, 1), &Device::Cpu)?;
                let mut chosen = Vec::with_capacity(STEPS);
                for past in 0..STEPS {
                    let logits = model.decode(&next, &encoded, past)?;
                    next = logits.i((.., 0))?.argmax(D::Minus1)?.unsqueeze(1)?;
                    chosen.push(next.clone());
                }
                Tensor::cat(&chosen, 1)?
            }
            _ => return Err("this model has no such case".into()),
        };
        ns.push(nanoseconds(start));
        Ok(outcome)
    }
}

/// The prompt, and for [`Kind::Decode`] 32 greedy steps, each timed with its read-out and its argmax. `forward` gives the last
/// token's scores after as many tokens as it is told.
fn decode(
    kind: Kind,
    ids: &Tensor,
    ns: &mut Vec<u64>,
    mut forward: impl FnMut(&Tensor, usize) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut step = |ids: &Tensor, past| -> Result<(Tensor, Tensor)> {
        let logits = forward(ids, past)?;
        let next = logits.argmax(D::Minus1)?.unsqueeze(1)?;
        Ok((logits, next))
    };
    let start = Instant::now();
    let (logits, mut next) = step(ids, 0)?;
    if kind == Kind::Prefill {
        ns.push(nanoseconds(start));
        return Ok(logits);
    }
    let mut chosen = Vec::with_capacity(STEPS);
    for past in ids.dim(1)?..ids.dim(1)? + STEPS {
        let start = Instant::now();
        (_, next) = step(&next, past)?;
        ns.push(nanoseconds(start));
        chosen.push(next.clone());
    }
    Ok(Tensor::cat(&chosen, 1)?)
}

fn weights(tensors: HashMap<String, Tensor>) -> VarBuilder<'static> {
    VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu)
}
