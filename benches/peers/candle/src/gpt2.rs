//! GPT-2 on candle's layers: candle-transformers has none.

use candle_core::{DType, Device, IndexOp, Tensor};
use candle_nn::{embedding, layer_norm, ops, Embedding, LayerNorm, Linear, Module, VarBuilder};
use serde::Deserialize;

use headrow_bench_protocol::Result;

#[derive(Deserialize)]
pub struct Config {
    n_embd: usize,
    n_head: usize,
    n_layer: usize,
    n_positions: usize,
    vocab_size: usize,
    layer_norm_epsilon: f64,
}

struct Layer {
    attention_norm: LayerNorm,
    qkv: Linear,
    output: Linear,
    feed_forward_norm: LayerNorm,
    inner: Linear,
    outer: Linear,
}

pub struct Gpt2 {
    words: Embedding,
    positions: Embedding,
    layers: Vec<Layer>,
    norm: LayerNorm,
    read_out: Linear,
    heads: usize,
}

/// Keys and values of each layer, batch × heads × tokens × width.
#[derive(Default)]
pub struct Cache(Vec<(Tensor, Tensor)>);

/// A map whose weight lies inputs first.
fn map(weights: &VarBuilder, inputs: usize, outputs: usize) -> Result<Linear> {
    let weight = weights.get((inputs, outputs), "weight")?.t()?.contiguous()?;
    Ok(Linear::new(weight, Some(weights.get(outputs, "bias")?)))
}

impl Gpt2 {
    pub fn load(weights: &VarBuilder, config: &Config) -> Result<Gpt2> {
        let weights = match weights.contains_tensor("transformer.wte.weight") {
            true => weights.pp("transformer"),
            false => weights.clone(),
        };
        let (d, epsilon) = (config.n_embd, config.layer_norm_epsilon);
        let norm = |weights: VarBuilder| layer_norm(d, epsilon, weights);
        let layers = (0..config.n_layer).map(|i| -> Result<Layer> {
            let weights = weights.pp(format!("h.{i}"));
            Ok(Layer {
                attention_norm: norm(weights.pp("ln_1"))?,
                qkv: map(&weights.pp("attn.c_attn"), d, 3 * d)?,
                output: map(&weights.pp("attn.c_proj"), d, d)?,
                feed_forward_norm: norm(weights.pp("ln_2"))?,
                inner: map(&weights.pp("mlp.c_fc"), d, 4 * d)?,
                outer: map(&weights.pp("mlp.c_proj"), 4 * d, d)?,
            })
        });
        let words = embedding(config.vocab_size, d, weights.pp("wte"))?;
        Ok(Gpt2 {
            read_out: Linear::new(words.embeddings().clone(), None),
            words,
            positions: embedding(config.n_positions, d, weights.pp("wpe"))?,
            layers: layers.collect::<Result<_>>()?,
            norm: norm(weights.pp("ln_f"))?,
            heads: config.n_head,
        })
    }

    /// Scores of the word after the last of `ids`, batch × vocabulary, with `past` tokens in the cache.
    pub fn forward(&self, ids: &Tensor, past: usize, cache: &mut Cache) -> Result<Tensor> {
        let (_, t) = ids.dims2()?;
        let places = Tensor::arange(past as u32, (past + t) as u32, &Device::Cpu)?;
        let mut x = self.words.forward(ids)?.broadcast_add(&self.positions.forward(&places)?)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let attended = self.attend(layer, i, &layer.attention_norm.forward(&x)?, cache)?;
            x = (x + layer.output.forward(&attended)?)?;
            let inner = layer.inner.forward(&layer.feed_forward_norm.forward(&x)?)?.gelu()?;
            x = (x + layer.outer.forward(&inner)?)?;
        }
        let last = self.norm.forward(&x.i((.., t - 1))?)?;
        Ok(self.read_out.forward(&last)?)
    }

    fn attend(&self, layer: &Layer, i: usize, z: &Tensor, cache: &mut Cache) -> Result<Tensor> {
        let (batch, t, d) = z.dims3()?;
        let qkv = layer.qkv.forward(z)?;
        let part = |n: usize| {
            let part = qkv.narrow(2, n * d, d)?.reshape((batch, t, self.heads, d / self.heads))?;
            part.transpose(1, 2)?.contiguous()
        };
        let (q, mut k, mut v) = (part(0)?, part(1)?, part(2)?);
        if let Some((keys, values)) = cache.0.get(i) {
            k = Tensor::cat(&[keys, &k], 2)?;
            v = Tensor::cat(&[values, &v], 2)?;
        }
        let scale = 1.0 / ((d / self.heads) as f64).sqrt();
        let mut scores = (q.matmul(&k.t()?)? * scale)?;
        if t > 1 {
            let s = k.dim(2)?;
            let hidden = |i: usize, j: usize| if j > i + s - t { f32::NEG_INFINITY } else { 0.0 };
            let mask: Vec<f32> = (0..t * s).map(|at| hidden(at / s, at % s)).collect();
            let mask = Tensor::from_vec(mask, (t, s), &Device::Cpu)?.to_dtype(DType::F32)?;
            scores = scores.broadcast_add(&mask)?;
        }
        let heads = ops::softmax_last_dim(&scores)?.matmul(&v)?;
        match cache.0.get_mut(i) {
            Some(entry) => *entry = (k, v),
            None => cache.0.push((k, v)),
        }
        Ok(heads.transpose(1, 2)?.reshape((batch, t, d))?)
    }
}
