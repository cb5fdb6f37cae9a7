//! The Transformer by its definition, in f64: the general family with all its options, one sequence at a time and with plain
//! loops. Test targets that use it have `mod tiny` and `mod general` at their root.
#![allow(dead_code, reason = "each test target uses a part")]

use crate::general::General;
use headrow::position::{BucketRange, alibi_slopes, bucket, sinusoids};
use headrow::{
    Activation, Config, Gating, NormKind, NormPlacement, Positions, RelativePositions, RopeLayout,
    RotaryScaling, ScoreScale, StackConfig, Widening,
};
use std::collections::BTreeMap;
use std::ops::Range;

pub(crate) type Rows = Vec<Vec<f64>>;

/// What a stack reads.
#[derive(Clone, Copy)]
pub(crate) enum Given<'a> {
    Ids(&'a [u32]),
    Vectors(&'a [f32]),
    Rows(&'a Rows),
}

pub(crate) struct Reference {
    config: Config,
    tensors: BTreeMap<String, Vec<f64>>,
    /// The longest sequence of the session, which dynamic rotary scaling looks at.
    longest: usize,
}

/// One stack on its way: its options, its name in tensors, and what it attends to.
#[derive(Clone, Copy)]
struct Side<'a> {
    stack: &'a StackConfig,
    name: &'static str,
    causal: bool,
    source: Option<&'a Rows>,
}

impl Reference {
    pub(crate) fn new(general: &General, longest: usize) -> Reference {
        let tensors = general.tensors.iter().map(|tensor| {
            let numbers = tensor.data.as_chunks().0.iter();
            let values = numbers.map(|&b| f64::from(f32::from_le_bytes(b))).collect();
            (tensor.name.clone(), values)
        });
        Reference { config: general.config.clone(), tensors: tensors.collect(), longest }
    }

    /// The numbers of a tensor.
    pub(crate) fn tensor(&self, name: &str) -> &[f64] {
        &self.tensors[name]
    }

    /// Adds to one number of a tensor.
    pub(crate) fn nudge(&mut self, name: &str, index: usize, by: f64) {
        self.tensors.get_mut(name).expect(name)[index] += by;
    }

    /// The encoder's output.
    pub(crate) fn encode(&self, given: Given<'_>) -> Rows {
        let stack = self.config.encoder.as_ref().unwrap();
        self.run(Side { stack, name: "encoder", causal: false, source: None }, given)
    }

    /// The decoder's output for a whole sequence.
    pub(crate) fn decode(&self, given: Given<'_>, source: Option<&Rows>) -> Rows {
        let stack = self.config.decoder.as_ref().unwrap();
        self.run(Side { stack, name: "decoder", causal: true, source }, given)
    }

    /// Layers `layers` of the only stack, from the residual stream that enters the first of them: the stream behind the last, and what
    /// each sublayer has added.
    pub(crate) fn layers(&self, layers: Range<usize>, mut x: Rows) -> (Rows, Vec<Rows>) {
        let side = match (&self.config.encoder, &self.config.decoder) {
            (Some(stack), None) => Side { stack, name: "encoder", causal: false, source: None },
            (None, Some(stack)) => Side { stack, name: "decoder", causal: true, source: None },
            _ => panic!("one stack is expected"),
        };
        let mut increments = Vec::new();
        for layer in layers {
            x = self.layer(side, layer, x, &mut increments);
        }
        (x, increments)
    }

    /// Scores of words from the decoder's output.
    pub(crate) fn scores(&self, states: &Rows) -> Rows {
        let options = self.config.read_out;
        let words = match options.tied {
            true => self.words("decoder"),
            false => &self.tensors["read_out.weight"],
        };
        let bias = self.tensors.get("read_out.bias");
        let scores = states.iter().map(|x| {
            let projection = self.tensors.get("read_out.projection.weight");
            let x = projection.map_or_else(|| x.clone(), |map| multiply(map, x));
            let mut scores = multiply(words, &x);
            for (v, score) in scores.iter_mut().enumerate() {
                *score = *score * f64::from(options.scale) + bias.map_or(0.0, |bias| bias[v]);
            }
            scores
        });
        scores.collect()
    }

    fn words(&self, side: &str) -> &Vec<f64> {
        let own = self.tensors.get(&format!("{side}.words.weight"));
        own.unwrap_or_else(|| &self.tensors["words.weight"])
    }

    fn run(&self, side: Side<'_>, given: Given<'_>) -> Rows {
        let Side { stack, name, .. } = side;
        let mut x = match given {
            Given::Ids(ids) => self.embed(side, ids),
            Given::Vectors(values) => {
                let rows = values.chunks(self.config.d_model);
                rows.map(|row| row.iter().map(|&x| x.into()).collect()).collect()
            }
            Given::Rows(rows) => rows.clone(),
        };
        for layer in 0..stack.layers {
            x = self.layer(side, layer, x, &mut Vec::new());
        }
        match stack.final_norm {
            true => self.norm(stack, &format!("{name}.norm"), &x),
            false => x,
        }
    }

    /// LN(scale·word + type + position)·W.
    fn embed(&self, side: Side<'_>, ids: &[u32]) -> Rows {
        let Side { stack, name, .. } = side;
        let tokens = stack.tokens().unwrap();
        let width = tokens.width;
        let words = self.words(name);
        let projection = format!("{name}.projection");
        let (narrow, early) = (width != self.config.d_model, tokens.widening == Widening::Words);
        let added = if early { self.config.d_model } else { width };
        let mut counted = 0;
        let rows = ids.iter().enumerate().map(|(place, &id)| {
            let word = &words[id as usize * width..][..width];
            let mut row: Vec<f64> = word.iter().map(|x| x * f64::from(tokens.scale)).collect();
            if narrow && early {
                row = self.linear(&projection, &vec![row]).remove(0);
            }
            let mut add = |values: &[f64]| row.iter_mut().zip(values).for_each(|(x, y)| *x += y);
            if tokens.token_types > 0 {
                add(&self.tensors[&format!("{name}.types.weight")][..added]);
            }
            match tokens.positions {
                Positions::Learned { first, padding, .. } => {
                    let position = match padding == Some(id) {
                        true => first - 1,
                        false => {
                            counted += 1;
                            first + counted - 1
                        }
                    };
                    let table = &self.tensors[&format!("{name}.positions.weight")];
                    add(&table[position * added..][..added]);
                }
                Positions::Sinusoidal { layout, first } => {
                    let table = sinusoids(layout, first + place + 1, added).unwrap();
                    let row = &table[(first + place) * added..];
                    add(&row.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>());
                }
                _ => {}
            }
            row
        });
        let mut x: Rows = rows.collect();
        if tokens.norm {
            x = self.norm(stack, &format!("{name}.input_norm"), &x);
        }
        match narrow && !early {
            true => self.linear(&projection, &x),
            false => x,
        }
    }

    /// What each sublayer adds to the stream goes behind `increments`.
    fn layer(&self, side: Side<'_>, layer: usize, x: Rows, increments: &mut Vec<Rows>) -> Rows {
        let Side { stack, name, .. } = side;
        let own = layer * stack.distinct_layers / stack.layers;
        let prefix = &format!("{name}.layers.{own}.");
        let attention = |z: &Rows| self.attention(side, layer, prefix, "attention", z, None);
        let feed = |z: &Rows| self.feed_forward(stack, prefix, z);
        let norm = |part: &str, x: &Rows| self.norm(stack, &format!("{prefix}{part}"), x);
        if stack.placement == NormPlacement::Parallel {
            let first = attention(&norm("attention_norm", &x));
            let second = feed(&norm("feed_forward_norm", &x));
            let both = sum(&sum(&x, &first), &second);
            increments.extend([first, second]);
            return both;
        }
        let post = stack.placement == NormPlacement::Post;
        let mut sublayer = |x: Rows, part: &str, f: &dyn Fn(&Rows) -> Rows| {
            let increment = if post { f(&x) } else { f(&norm(part, &x)) };
            let sum = sum(&x, &increment);
            increments.push(increment);
            if post { norm(part, &sum) } else { sum }
        };
        let mut x = sublayer(x, "attention_norm", &attention);
        if let Some(source) = side.source {
            let name = "cross_attention";
            x = sublayer(x, "cross_attention_norm", &|z| {
                self.attention(side, layer, prefix, name, z, Some(source))
            });
        }
        sublayer(x, "feed_forward_norm", &feed)
    }

    fn attention(
        &self,
        side: Side<'_>,
        layer: usize,
        prefix: &str,
        name: &str,
        x: &Rows,
        source: Option<&Rows>,
    ) -> Rows {
        let stack = side.stack;
        let map = |part: &str, x: &Rows| self.linear(&format!("{prefix}{name}.{part}"), x);
        let from = source.unwrap_or(x);
        let (mut q, mut k, v) = (map("query", x), map("key", from), map("value", from));
        if source.is_none() {
            self.turn(stack, &mut q);
            self.turn(stack, &mut k);
        }
        let (d_k, d_v) = (stack.d_k, stack.d_v);
        let scale = match stack.scale {
            ScoreScale::One => 1.0,
            ScoreScale::PaperByLayer => 1.0 / ((d_k as f64).sqrt() * (layer + 1) as f64),
            _ => 1.0 / (d_k as f64).sqrt(),
        };
        let window = stack.window.unwrap_or(usize::MAX);
        let sees = |i: usize, j: usize| match source {
            Some(_) => true,
            None => i.abs_diff(j) < window && !(side.causal && j > i),
        };
        let concat = q.iter().enumerate().map(|(i, q)| {
            let mut row = Vec::new();
            for head in 0..stack.heads {
                let group = head / (stack.heads / stack.kv_heads);
                let seen: Vec<usize> = (0..k.len()).filter(|&j| sees(i, j)).collect();
                let scores: Vec<f64> = seen
                    .iter()
                    .map(|&j| {
                        let q = &q[head * d_k..][..d_k];
                        let score = scale * dot(q, &k[j][group * d_k..][..d_k]);
                        let capped = |cap: f32| f64::from(cap) * (score / f64::from(cap)).tanh();
                        let score = stack.softcap.map_or(score, capped);
                        let biased = source.is_none();
                        score + if biased { self.bias(side, head, i, j) } else { 0.0 }
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                row.extend((0..d_v).map(|c| {
                    let terms = weights.iter().zip(&seen);
                    terms.map(|(w, &j)| w / total * v[j][group * d_v + c]).sum::<f64>()
                }));
            }
            row
        });
        map("output", &concat.collect())
    }

    /// What is added to the score of query i and key j.
    fn bias(&self, side: Side<'_>, head: usize, i: usize, j: usize) -> f64 {
        let Side { stack, name, causal, .. } = side;
        let offset = j as isize - i as isize;
        match stack.relative {
            RelativePositions::Buckets { buckets, max_distance } => {
                let range = if causal { BucketRange::Past } else { BucketRange::Both };
                let row = bucket(range, buckets, max_distance, offset);
                self.tensors[&format!("{name}.buckets.weight")][row * stack.heads + head]
            }
            RelativePositions::Alibi => {
                -f64::from(alibi_slopes(stack.heads)[head]) * offset.unsigned_abs() as f64
            }
            _ => 0.0,
        }
    }

    /// Turns each pair of the heads' first features by its angle.
    fn turn(&self, stack: &StackConfig, x: &mut Rows) {
        let RelativePositions::Rotary(rotary) = &stack.relative else { return };
        let amplitude = match rotary.scaling {
            RotaryScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        };
        let thetas = rotary.frequencies(self.longest.min(rotary.max_position));
        for (place, row) in x.iter_mut().enumerate() {
            for head in row.chunks_mut(stack.d_k) {
                for (i, theta) in thetas.iter().enumerate() {
                    let (a, b) = match rotary.layout {
                        RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                        _ => (i, i + rotary.width / 2),
                    };
                    let (sin, cos) = (place as f64 * theta).sin_cos();
                    let (x, y) = (head[a], head[b]);
                    head[a] = amplitude * (x * cos - y * sin);
                    head[b] = amplitude * (y * cos + x * sin);
                }
            }
        }
    }

    fn feed_forward(&self, stack: &StackConfig, prefix: &str, x: &Rows) -> Rows {
        let map = |part: &str, x: &Rows| self.linear(&format!("{prefix}feed_forward.{part}"), x);
        let activated = |mut x: Rows| {
            x.iter_mut().flatten().for_each(|x| *x = activate(stack.activation, *x));
            x
        };
        let mut wide = match stack.gating {
            Gating::Gated => activated(map("gate", x)),
            _ => activated(map("inner", x)),
        };
        if stack.gating == Gating::Gated {
            let values = map("inner", x);
            wide.iter_mut().flatten().zip(values.iter().flatten()).for_each(|(x, y)| *x *= y);
        }
        map("outer", &wide)
    }

    pub(crate) fn linear(&self, name: &str, x: &Rows) -> Rows {
        let weight = &self.tensors[&format!("{name}.weight")];
        let bias = self.tensors.get(&format!("{name}.bias"));
        let mut y: Rows = x.iter().map(|x| multiply(weight, x)).collect();
        if let Some(bias) = bias {
            y.iter_mut().for_each(|y| y.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        }
        y
    }

    fn norm(&self, stack: &StackConfig, name: &str, x: &Rows) -> Rows {
        let gamma = &self.tensors[&format!("{name}.weight")];
        let beta = self.tensors.get(&format!("{name}.bias"));
        let rows = x.iter().map(|x| {
            let d = x.len() as f64;
            let mean = match stack.norm {
                NormKind::Rms => 0.0,
                _ => x.iter().sum::<f64>() / d,
            };
            let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / d;
            let root = (variance + f64::from(stack.epsilon)).sqrt();
            let normed = x.iter().zip(gamma).map(|(x, g)| (x - mean) / root * g);
            normed.enumerate().map(|(i, x)| x + beta.map_or(0.0, |beta| beta[i])).collect()
        });
        rows.collect()
    }
}

pub(crate) fn activate(activation: Activation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::Relu => x.max(0.0),
        Activation::GeluErf => x / 2.0 * (1.0 + libm::erf(x / 2f64.sqrt())),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / 2.0 * (1.0 + inner.tanh())
        }
        Activation::GeluQuick => x * sigmoid(1.702 * x),
        Activation::Silu => x * sigmoid(x),
        _ => x,
    }
}

/// W·x of an outputs × inputs matrix.
fn multiply(weight: &[f64], x: &[f64]) -> Vec<f64> {
    weight.chunks(x.len()).map(|row| dot(row, x)).collect()
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

fn sum(x: &Rows, y: &Rows) -> Rows {
    let rows = x.iter().zip(y);
    rows.map(|(x, y)| x.iter().zip(y).map(|(x, y)| x + y).collect()).collect()
}
