//! A graph, its inputs, and the loop of a decoder around it.

use crate::Result;
use rten::{Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use rten_tensor::prelude::*;
use rten_tensor::{NdTensor, Tensor};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Steps of a decoding case.
const STEPS: usize = 32;

/// A loaded graph.
pub struct Peer {
    model: Model,
    options: RunOptions,
    vocabulary: usize,
    /// Names of the cache's parts, and the heads and their width; none for an encoder.
    cache: Vec<String>,
    heads: [usize; 2],
}

/// B sequences of the same ids, and what is done with them.
pub struct Case {
    kind: Kind,
    batch: usize,
    ids: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Encode,
    Prefill,
    Decode,
}

/// What a call came to.
pub enum Outcome {
    Values(Vec<f32>),
    Tokens(Vec<u32>),
}

impl Case {
    pub fn new(name: &str, peer: &Peer) -> Result<Case> {
        let (word, shape) = name.split_once(':').ok_or("a case is KIND:BATCHxSIZE")?;
        let (batch, size) = shape.split_once('x').ok_or("a case is KIND:BATCHxSIZE")?;
        let (batch, size): (usize, usize) = (batch.parse()?, size.parse()?);
        let kind = match (word, peer.cache.is_empty()) {
            ("enc", true) => Kind::Encode,
            ("prefill", false) => Kind::Prefill,
            ("decode", false) => Kind::Decode,
            _ => return Err("not a case of rten's".into()),
        };
        let id = |i: usize| ((i * 7919 + 13) % (peer.vocabulary - 100) + 50) as i32;
        Ok(Case { kind, batch, ids: (0..batch * size).map(id).collect() })
    }
}

impl Peer {
    pub fn load(home: &Path, model: &str, threads: usize) -> Result<Peer> {
        let config = std::fs::read(home.join("models").join(model).join("config.json"))?;
        let config: serde_json::Value = serde_json::from_slice(&config)?;
        let number = |names: &[&str]| {
            let found = names.iter().find_map(|&name| config[name].as_u64());
            found.ok_or_else(|| format!("no {}", names[0]))
        };
        let folder = home.join("exports/onnxruntime").join(model);
        let plain = folder.join("plain.onnx");
        let file = if plain.exists() { plain } else { folder.join("model.onnx") };
        if !file.exists() {
            return Err(format!("no graph of {model}").into());
        }
        let mut options = ModelOptions::with_all_ops();
        let model = options.prepack_weights(true).load_file(file)?;
        let names = model.input_ids().iter().filter_map(|&id| model.node_info(id)?.name());
        let cache: Vec<String> =
            names.filter_map(|name| name.strip_prefix("past.")).map(str::to_owned).collect();
        let heads = number(&["num_attention_heads", "n_head"])?;
        let width = number(&["hidden_size", "n_embd"])? / heads;
        let kv_heads = number(&["num_key_value_heads"]).unwrap_or(heads);
        let pool = Arc::new(ThreadPool::with_num_threads(threads));
        let mut options = RunOptions::default();
        options.thread_pool = Some(pool);
        let vocabulary = number(&["vocab_size"])? as usize;
        Ok(Peer { model, options, vocabulary, cache, heads: [kv_heads as usize, width as usize] })
    }

    /// One call; the times of its steps where they count one by one.
    pub fn call(&self, case: &Case, ns: &mut Vec<u64>) -> Result<Outcome> {
        if case.kind == Kind::Encode {
            return self.encode(case, ns);
        }
        let mut past: Vec<Value> = Vec::new();
        for _ in &self.cache {
            past.push(Tensor::<f32>::zeros(&[case.batch, self.heads[0], 0, self.heads[1]]).into());
        }
        let start = Instant::now();
        let mut scores = self.read(case.batch, &case.ids, 0, &mut past)?;
        let mut chosen = self.likeliest(&scores);
        if case.kind == Kind::Prefill {
            ns.push(nanoseconds(start));
            return Ok(Outcome::Values(scores));
        }
        let (length, mut tokens) = (case.ids.len() / case.batch, vec![0; case.batch * STEPS]);
        for step in 0..STEPS {
            let start = Instant::now();
            scores = self.read(case.batch, &chosen, length + step, &mut past)?;
            chosen = self.likeliest(&scores);
            ns.push(nanoseconds(start));
            for (tokens, &id) in tokens.chunks_mut(STEPS).zip(&chosen) {
                tokens[step] = id as u32;
            }
        }
        Ok(Outcome::Tokens(tokens))
    }

    fn encode(&self, case: &Case, ns: &mut Vec<u64>) -> Result<Outcome> {
        let shape = [case.batch, case.ids.len() / case.batch];
        let tensor = |values: Vec<i32>| ValueOrView::from(NdTensor::from_data(shape, values));
        let count = case.ids.len();
        let inputs = vec![
            (self.model.node_id("input_ids")?, tensor(case.ids.clone())),
            (self.model.node_id("attention_mask")?, tensor(vec![1; count])),
            (self.model.node_id("token_type_ids")?, tensor(vec![0; count])),
        ];
        let start = Instant::now();
        let states = self.model.node_id("last_hidden_state")?;
        let [states] = self.model.run_n(inputs, [states], Some(self.options.clone()))?;
        ns.push(nanoseconds(start));
        Ok(Outcome::Values(Tensor::<f32>::try_from(states)?.to_vec()))
    }

    /// The scores of the last positions after ids behind `before` others, whose keys and values `past` holds and gets more of.
    fn read(
        &self,
        batch: usize,
        ids: &[i32],
        before: usize,
        past: &mut Vec<Value>,
    ) -> Result<Vec<f32>> {
        let count = ids.len() / batch;
        let total = (before + count) as i32;
        let places = (0..batch).flat_map(|_| before as i32..total).collect();
        let tensor = |values| ValueOrView::from(NdTensor::from_data([batch, count], values));
        let named = |prefix| self.cache.iter().map(move |name| format!("{prefix}.{name}"));
        let mut inputs: Vec<(NodeId, ValueOrView<'_>)> = vec![
            (self.model.node_id("input_ids")?, tensor(ids.to_vec())),
            (
                self.model.node_id("last")?,
                NdTensor::from_data([batch], vec![total - 1; batch]).into(),
            ),
            (self.model.node_id("total")?, NdTensor::from_data([], vec![total]).into()),
        ];
        if let Ok(positions) = self.model.node_id("positions") {
            inputs.push((positions, tensor(places)));
        }
        for (name, value) in named("past").zip(past.drain(..)) {
            inputs.push((self.model.node_id(&name)?, value.into()));
        }
        let mut outputs = vec![self.model.node_id("logits")?];
        for name in named("present") {
            outputs.push(self.model.node_id(&name)?);
        }
        let mut results = self.model.run(inputs, &outputs, Some(self.options.clone()))?.into_iter();
        let scores = results.next().ok_or("no scores came")?;
        past.extend(results);
        Ok(Tensor::<f32>::try_from(scores)?.to_vec())
    }

    /// The likeliest word of each row of scores.
    fn likeliest(&self, scores: &[f32]) -> Vec<i32> {
        let best = |row: &[f32]| {
            let larger = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
            (0..row.len()).fold(0, larger) as i32
        };
        scores.chunks(self.vocabulary).map(best).collect()
    }
}

fn nanoseconds(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}
