//! Times of one layer: attention by itself, and all the rest.

use crate::failure::Failure;
use headrow::train::{Parameters, Precision};
use headrow::{
    Batch, Config, Cpu, Input, LoadOptions, Mat, Model, NormPlacement, RelativePositions, Session,
    SessionOptions, StackConfig,
};
use headrow_kernels::{
    AttentionExtent, AttentionShape, Mask, MatMut, Scratch, Segment, Team, attention,
    attention_scratch,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest length that is timed.
const SHORTEST: usize = 32;
/// Runs of one length: at least so many, and for at least so long.
const RUNS: usize = 3;
const LONG_ENOUGH: Duration = Duration::from_millis(100);

/// Seconds of one layer over n tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    pub(super) n: usize,
    /// Scores, softmax, and the weights times V.
    pub(super) attention: f64,
    /// Projections, feed-forward network, norms and sums.
    pub(super) rest: f64,
}

/// Times one layer of the stack's widths, in which every token sees every other, at lengths up to `longest`. Gives the config
/// that was timed too.
pub(super) fn time_layer(
    config: &Config,
    stack: &StackConfig,
    longest: usize,
    cpu: Cpu,
    threads: usize,
) -> Result<(Config, Vec<Timing>), Failure> {
    let one = one_layer(config, stack);
    let weights = Parameters::initialise(&one, 1)?.to_safetensors(Precision::F32);
    let options = LoadOptions::default().with_isa(cpu.isa());
    let model = Arc::new(Model::from_bytes_with(&one, &weights, &options)?);
    let options = SessionOptions::default().with_max_tokens(longest).with_threads(threads);
    let mut session = Session::new(&model, &options)?;
    let lengths = std::iter::successors(Some(longest), |n| Some(n / 2));
    let mut timings = lengths
        .take_while(|&n| n >= SHORTEST)
        .map(|n| {
            let whole = time_session(&mut session, n, one.d_model)?;
            let attention = time_attention(stack, n, cpu, threads);
            // Clocks err; a part is no more than the whole.
            let attention = attention.min(whole);
            Ok(Timing { n, attention, rest: whole - attention })
        })
        .collect::<Result<Vec<Timing>, Failure>>()?;
    timings.reverse();
    Ok((one, timings))
}

/// An encoder of one layer as wide as the stack's, which reads vectors.
fn one_layer(config: &Config, stack: &StackConfig) -> Config {
    let mut one = stack.clone();
    (one.input, one.layers, one.distinct_layers) = (Input::Vectors, 1, 1);
    (one.window, one.relative) = (None, RelativePositions::None);
    one.final_norm = one.placement != NormPlacement::Post;
    let mut general = Config::general(config.d_model);
    general.encoder = Some(one);
    general
}

/// The fastest of some runs.
fn fastest(mut run: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let started = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
    while runs < RUNS || started.elapsed() < LONG_ENOUGH {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    Ok(best)
}

/// Numbers of either sign, none of which is large.
pub(super) fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37) % 23) as f32 / 11.0 - 1.0).collect()
}

fn time_session(session: &mut Session, n: usize, d_model: usize) -> Result<f64, Failure> {
    let (values, lengths) = (numbers(n * d_model), [n]);
    let batch = Batch::vectors(&values, &lengths);
    let mut hidden = vec![0.0; n * d_model];
    fastest(|| Ok(session.encode(&batch, &mut hidden)?))
}

fn time_attention(stack: &StackConfig, n: usize, cpu: Cpu, threads: usize) -> f64 {
    let StackConfig { heads, kv_heads, d_k, d_v, .. } = *stack;
    let shape =
        AttentionShape::new(heads, kv_heads, d_k, d_v).with_scale(1.0 / (d_k as f32).sqrt());
    let extent = AttentionExtent { queries: n, keys: n };
    let mut scratch = Scratch::new(attention_scratch(cpu, threads, &shape, extent));
    let [q, k, v] =
        [heads * d_k, kv_heads * d_k, kv_heads * d_v].map(|width| (numbers(n * width), width));
    let [q, k, v] = [&q, &k, &v].map(|(values, width)| Mat::new(values, n, *width));
    let segments = [Segment::full(0..n, 0..n)];
    let mut out = vec![0.0; n * heads * d_v];
    let mut team = Team::new(threads);
    let timed = fastest(|| {
        team.open(|par| {
            let out = MatMut::new(&mut out, n, heads * d_v);
            let (mask, stack) = (Mask::default(), &mut scratch.stack());
            attention(cpu, par, &shape, q, k, v, &segments, &mask, out, stack);
        });
        Ok(())
    });
    timed.unwrap_or(f64::INFINITY)
}
