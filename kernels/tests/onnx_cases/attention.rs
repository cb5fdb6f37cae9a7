//! Attention (opset 23 to 25) and FlexAttention.

use super::conformance::array::Array;
use super::conformance::attention::{Problem, Stage};
use super::conformance::tensors::Value;
use super::conformance::{Blind, Lane, Output, Stop};
use super::{Inputs, Node};
use headrow_kernels::Reach;

/// batch × t × (heads · d) becomes batch × heads × t × d; four dimensions stay.
fn with_heads(x: Array<f32>, heads: Option<i64>) -> Result<Array<f32>, Stop> {
    match (x.shape(), heads) {
        (&[_, _, _, _], _) => Ok(x),
        (&[batch, rows, width], Some(heads)) if heads > 0 && width % heads as usize == 0 => {
            let heads = heads as usize;
            Ok(x.reshape(&[batch, rows, heads, width / heads]).permute(&[0, 2, 1, 3]))
        }
        (shape, heads) => Err(Stop::fail(format!("heads of {shape:?}: {heads:?}"))),
    }
}

/// Attention of opset 23 to 25.
pub(crate) fn attention(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
    let attrs = &node.attrs;
    attrs.only(&[
        "is_causal",
        "kv_num_heads",
        "left_window_size",
        "q_num_heads",
        "qk_matmul_output_mode",
        "right_window_size",
        "scale",
        "softcap",
        "softmax_precision",
    ])?;
    let heads = |name| attrs.number(name).map(|n| n.map(|n| n as i64));
    let flat = inputs.floats(0)?.rank() == 3;
    let q = with_heads(inputs.floats(0)?, heads("q_num_heads")?)?;
    let mut k = with_heads(inputs.floats(1)?, heads("kv_num_heads")?)?;
    let mut v = with_heads(inputs.floats(2)?, heads("kv_num_heads")?)?;
    let past = inputs.optional(4)?;
    let past_length = past.as_ref().map(|past| past.shape()[2]);
    if let (Some(past_k), Some(past_v)) = (past, inputs.optional(5)?) {
        k = past_k.concat(&k, 2);
        v = past_v.concat(&v, 2);
    }
    let (&[batch, _, t, d_k], s) = (q.shape(), k.shape()[2]) else { unreachable!() };
    let lengths = inputs.get(6).map(Value::ints).transpose()?;
    let lengths = lengths.map(|l| l.data().iter().map(|&n| n.max(0) as usize).collect::<Vec<_>>());

    // Queries stand behind a past; else at the start, but with lengths of a cache that is managed outside the
    // last query is at the last real key.
    let offsets = match (past_length, &lengths) {
        (Some(past), _) => vec![past as isize; batch],
        (None, Some(lengths)) => lengths.iter().map(|&n| n as isize - t as isize).collect(),
        (None, None) => vec![0; batch],
    };
    let window = |name| attrs.int(name, -1).map(|size| usize::try_from(size).ok());
    let (behind, mut ahead) = (window("left_window_size")?, window("right_window_size")?);
    if attrs.int("is_causal", 0)? != 0 {
        ahead = Some(0);
    }
    let reach = offsets.into_iter().map(|offset| Reach { offset, behind, ahead }).collect();
    let (mut visible, mut bias) = (None, None);
    match inputs.get(3) {
        None => {}
        Some(Value::Bool(mask)) => visible = Some(padded(mask, s, false)),
        Some(mask) => bias = Some(padded(&mask.floats()?, s, f32::NEG_INFINITY)),
    }
    let scale = attrs.number("scale")?.unwrap_or(1.0 / (d_k as f64).sqrt());
    let softcap = attrs.number("softcap")?.filter(|&cap| cap > 0.0);
    let plain = Problem::new(q, k, v, scale);
    let problem = Problem { visible, bias, lengths, reach: Some(reach), softcap, ..plain };
    let mut y = problem.run(lane);
    let mut blind = problem.blind();
    if flat {
        let &[_, heads, _, d_v] = y.shape() else { unreachable!() };
        let blind_flat = blind.broadcast(&[batch, heads, t, d_v]).permute(&[0, 2, 1, 3]);
        blind = blind_flat.reshape(&[batch, t, heads * d_v]);
        y = y.permute(&[0, 2, 1, 3]).reshape(&[batch, t, heads * d_v]);
    }
    let y = Output { value: y, blind: Some(Blind::zeros(&blind)) };
    let stage = match attrs.int("qk_matmul_output_mode", 0)? {
        0 => Stage::Scaled,
        1 => Stage::Capped,
        2 => Stage::Masked,
        3 => Stage::Weights,
        mode => return Err(Stop::fail(format!("qk_matmul_output_mode {mode}"))),
    };
    let wanted = node.outputs.get(3).is_some_and(|name| !name.is_empty());
    let scores = wanted.then(|| problem.scores(lane, stage)).transpose()?;
    let mut outputs = vec![y, problem.k.into(), problem.v.into()];
    outputs.extend(scores.map(Output::from));
    Ok(outputs)
}

/// A mask may be shorter than the keys, which are then hidden; it broadcasts from the right.
fn padded<T: Copy>(mask: &Array<T>, keys: usize, hidden: T) -> Array<T> {
    let mask = mask.clone().with_rank(4);
    let missing = keys.saturating_sub(mask.shape()[3]);
    let mut shape = mask.shape().to_vec();
    shape[3] = missing;
    if missing == 0 { mask } else { mask.concat(&Array::full(&shape, hidden), 3) }
}

/// FlexAttention without functions on scores or weights is attention.
pub(crate) fn flex_attention(
    node: &Node,
    inputs: &Inputs,
    lane: Lane<'_>,
) -> Result<Array<f32>, Stop> {
    let modified = ["score_mod", "prob_mod"].iter().any(|name| node.attrs.0.contains_key(*name));
    if modified {
        return Err(Stop::skip(
            "not claimed: graphs inside attention (scores are changed by masks only)",
        ));
    }
    node.attrs.only(&["scale", "softmax_precision"])?;
    let (q, k, v) = (inputs.floats(0)?, inputs.floats(1)?, inputs.floats(2)?);
    let width = q.shape().last().copied().unwrap_or(1);
    let scale = node.attrs.number("scale")?.unwrap_or(1.0 / (width as f64).sqrt());
    Ok(Problem::new(q, k, v, scale).run(lane))
}
