//! A graph, its inputs, and the loop of a decoder around it.

use headrow_bench_protocol::{
    Kind, Outcome, Peer, Result, STEPS, Shape, home, likeliest, nanoseconds,
};
use rten::{Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use rten_tensor::prelude::*;
use rten_tensor::{NdTensor, Tensor};
use std::sync::Arc;
use std::time::Instant;

/// A loaded graph.
pub struct Graph {
    model: Model,
    options: RunOptions,
    vocabulary: usize,
    /// Names of the cache's parts, and the heads and their width; none for an encoder.
    cache: Vec<String>,
    heads: [usize; 2],
}

/// B sequences of the same ids, what is done with them, and what the last call came to.
pub struct Case {
    kind: Kind,
    batch: usize,
    ids: Vec<i32>,
    outcome: Outcome<'static>,
}

impl Peer for Graph {
    type Case = Case;

    fn load(model: &str, threads: usize) -> Result<Graph> {
        let home = home()?;
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
        Ok(Graph { model, options, vocabulary, cache, heads: [kv_heads as usize, width as usize] })
    }

    fn case(&self, name: &str) -> Result<Case> {
        let shape = Shape::parse(name)?;
        let encodes = self.cache.is_empty();
        match shape.kind {
            Kind::Encode if encodes => {}
            Kind::Prefill | Kind::Decode if !encodes => {}
            _ => return Err("this graph has no such case".into()),
        }
        let ids = shape.ids(self.vocabulary).into_iter().map(|id| id as i32).collect();
        let outcome = Outcome::Tokens(Vec::new().into());
        Ok(Case { kind: shape.kind, batch: shape.batch, ids, outcome })
    }

    fn call(&mut self, case: &mut Case, ns: &mut Vec<u64>) -> Result<()> {
        case.outcome = match case.kind {
            Kind::Encode => self.encode(case, ns)?,
            _ => self.decode(case, ns)?,
        };
        Ok(())
    }

    fn outcome<'a>(&'a self, case: &'a Case) -> Result<Outcome<'a>> {
        Ok(case.outcome.clone())
    }
}

impl Graph {
    fn decode(&self, case: &Case, ns: &mut Vec<u64>) -> Result<Outcome<'static>> {
        let mut past: Vec<Value> = Vec::new();
        for _ in &self.cache {
            past.push(Tensor::<f32>::zeros(&[case.batch, self.heads[0], 0, self.heads[1]]).into());
        }
        let start = Instant::now();
        let mut scores = self.read(case.batch, &case.ids, 0, &mut past)?;
        let mut chosen = Graph::chosen(&scores, case.batch);
        if case.kind == Kind::Prefill {
            ns.push(nanoseconds(start));
            return Ok(Outcome::Values(scores.into()));
        }
        let (length, mut tokens) = (case.ids.len() / case.batch, vec![0; case.batch * STEPS]);
        for step in 0..STEPS {
            let start = Instant::now();
            scores = self.read(case.batch, &chosen, length + step, &mut past)?;
            chosen = Graph::chosen(&scores, case.batch);
            ns.push(nanoseconds(start));
            for (tokens, &id) in tokens.chunks_mut(STEPS).zip(&chosen) {
                tokens[step] = id as u32;
            }
        }
        Ok(Outcome::Tokens(tokens.into()))
    }

    fn encode(&self, case: &Case, ns: &mut Vec<u64>) -> Result<Outcome<'static>> {
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
        Ok(Outcome::Values(Tensor::<f32>::try_from(states)?.to_vec().into()))
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

    /// The likeliest words, as the graph wants ids.
    fn chosen(scores: &[f32], rows: usize) -> Vec<i32> {
        likeliest(scores, rows).into_iter().map(|id| id as i32).collect()
    }
}
