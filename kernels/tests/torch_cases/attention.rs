//! `scaled_dot_product_attention` and `multi_head_attention_forward`.

use super::Call;
use super::conformance::array::{Array, common_shape};
use super::conformance::attention::Problem;
use super::conformance::ops::Operand;
use super::conformance::tensors::Value;
use super::conformance::{Blind, Lane, Output, Stop, training};
use headrow_kernels::Reach;

/// A mask as it is given, of truth values or of numbers to add, or none.
type EitherMask = (Option<Array<bool>>, Option<Array<f32>>);

fn mask(call: &Call<'_>, name: &str) -> Result<EitherMask, Stop> {
    match call.optional_tensor(name)? {
        None => Ok((None, None)),
        Some(Value::Bool(mask)) => Ok((Some(mask), None)),
        Some(mask) => Ok((None, Some(mask.floats()?))),
    }
}

/// A call of `scaled_dot_product_attention`.
pub(crate) struct Stated {
    pub(crate) problem: Problem,
    /// Leading dimensions without the heads, and the dimensions of the result without the width.
    pub(crate) outer: Vec<usize>,
    shape: Vec<usize>,
}

/// softmax(Q·Kᵀ/√d_k + mask)·V over the last two dimensions; those before are heads (the third from the
/// end, grouped when asked for) and batch, and broadcast.
pub(crate) fn scaled_dot_product_attention(
    call: &Call<'_>,
    lane: Lane<'_>,
) -> Result<Vec<Output>, Stop> {
    let Stated { problem, shape, .. } = stated(call)?;
    let shape_of = |width| [&shape[..], &[width]].concat();
    let blind = Some(Blind::zeros(&problem.blind()).reshape(&shape_of(1)));
    let d_v = problem.v.shape()[3];
    Ok(vec![Output { value: problem.run(lane).reshape(&shape_of(d_v)), blind }])
}

/// The arguments of a call, laid out.
pub(crate) fn stated(call: &Call<'_>) -> Result<Stated, Stop> {
    if call.number("dropout_p", 0.0)? > 0.0 {
        return training();
    }
    let (q, k, v) = (call.tensor("query")?, call.tensor("key")?, call.tensor("value")?);
    let rank = q.rank().max(k.rank()).max(v.rank());
    let (&[.., t, d_k], &[.., s, _], &[.., d_v]) = (q.shape(), k.shape(), v.shape()) else {
        return Err(Stop::fail("attention without two dimensions"));
    };
    let scale = call.number("scale", 1.0 / (d_k as f64).sqrt())?;
    let grouped = call.flag("enable_gqa", false)?;
    let (mut visible, mut bias) = mask(call, "attn_mask")?;
    let mask_shape = visible.as_ref().map(Array::shape).or(bias.as_ref().map(Array::shape));
    let mask_outer = mask_shape.map_or(&[][..], |shape| &shape[..shape.len().saturating_sub(2)]);

    // Leading dimensions of each, heads apart.
    let split = |shape: &[usize]| {
        let outer = &shape[..shape.len() - 2];
        match outer.split_last() {
            Some((&heads, batch)) => (batch.to_vec(), heads),
            None => (Vec::new(), 1),
        }
    };
    let ((q_batch, q_heads), (k_batch, k_heads)) = (split(q.shape()), split(k.shape()));
    let (v_batch, v_heads) = split(v.shape());
    let (m_batch, m_heads) = match mask_outer.split_last() {
        Some((&heads, batch)) => (batch.to_vec(), heads),
        None => (Vec::new(), 1),
    };
    let outer = [&k_batch, &v_batch, &m_batch]
        .into_iter()
        .try_fold(q_batch, |batch, other| common_shape(&batch, other));
    let outer = outer.ok_or(Stop::fail("batches do not broadcast"))?;
    let (heads, kv_heads) = if grouped {
        (q_heads, k_heads)
    } else {
        let all = [k_heads, v_heads, m_heads]
            .iter()
            .fold(q_heads, |all, &n| if all == 1 { n } else { all });
        (all, all)
    };
    let batch: usize = outer.iter().product();
    let arrange = |x: &Array<f32>, heads, rows, width| {
        x.broadcast(&[&outer[..], &[heads, rows, width]].concat())
            .reshape(&[batch, heads, rows, width])
    };
    // Masks keep dimensions of 1 for heads, queries and keys: the kernel shares them.
    fn four<T: Copy>(mask: &Array<T>, outer: &[usize]) -> Array<T> {
        let mask = mask.clone().with_rank(outer.len() + 3);
        let [.., heads, rows, cols] = *mask.shape() else { unreachable!() };
        let full = mask.broadcast(&[outer, &[heads, rows, cols]].concat());
        full.reshape(&[outer.iter().product(), heads, rows, cols])
    }
    visible = visible.map(|mask| four(&mask, &outer));
    bias = bias.map(|mask| four(&mask, &outer));
    let causal = call.flag("is_causal", false)?;
    let (q, k) = (arrange(&q, heads, t, d_k), arrange(&k, kv_heads, s, d_k));
    let plain = Problem::new(q, k, arrange(&v, kv_heads, s, d_v), scale);
    // Aligned at the start.
    let reach = causal.then(|| vec![Reach { ahead: Some(0), ..Reach::ALL }; batch]);
    let problem = Problem { visible, bias, reach, ..plain };
    // A head dimension of 1 that was only assumed is dropped again.
    let shape = match rank {
        2 if outer.is_empty() && heads == 1 => vec![t],
        _ => [&outer[..], &[heads, t]].concat(),
    };
    Ok(Stated { problem, outer, shape })
}

/// A call of `multi_head_attention_forward` up to the output projection.
pub(crate) struct Projected {
    pub(crate) batched: bool,
    /// Batch × length × width each.
    pub(crate) inputs: [Array<f32>; 3],
    pub(crate) problem: Problem,
    /// Keys of the input, before others were added.
    pub(crate) given: usize,
}

impl Projected {
    /// Attention's result: rows by query, then sequence.
    pub(crate) fn heads_out(&self, lane: Lane<'_>) -> Array<f32> {
        let [batch, heads, t, d_k] = *self.problem.q.shape() else { unreachable!() };
        self.problem.run(lane).permute(&[2, 0, 1, 3]).reshape(&[t * batch, heads * d_k])
    }
}

/// The projections of a call.
///
/// Sequences stand first: length × batch × width, or length × width.
pub(crate) fn projected(call: &Call<'_>, lane: Lane<'_>) -> Result<Projected, Stop> {
    if call.flag("training", true)? && call.number("dropout_p", 0.0)? > 0.0 {
        return training();
    }
    for name in ["static_k", "static_v"] {
        if call.optional_tensor(name)?.is_some() {
            return Err(Stop::skip("not claimed: keys and values that are projected elsewhere"));
        }
    }
    let heads = call.number("num_heads", 1.0)? as usize;
    let query = call.tensor("query")?;
    let batched = query.rank() == 3;
    let batch_first = |name: &str| {
        let x = call.tensor(name)?;
        let x = if batched { x } else { x.clone().reshape(&[x.shape()[0], 1, x.shape()[1]]) };
        Ok::<_, Stop>(x.permute(&[1, 0, 2]))
    };
    let inputs = [batch_first("query")?, batch_first("key")?, batch_first("value")?];
    let &[batch, t, d_model] = inputs[0].shape() else {
        return Err(Stop::fail("queries of other than two or three dimensions"));
    };
    let d_k = d_model / heads;

    let [q, k, v] = projections(call, &inputs, d_model, lane)?;
    let given = k.shape()[1];
    let (k, v) = with_added_keys(call, k, v)?;
    let added = k.shape()[1] - given;
    let (visible, bias) = masks(call, [batch, heads, t, k.shape()[1]], added, lane)?;

    let with_heads = |x: &Array<f32>| {
        let rows = x.shape()[1];
        x.clone().reshape(&[batch, rows, heads, d_k]).permute(&[0, 2, 1, 3])
    };
    let scale = 1.0 / (d_k as f64).sqrt();
    let plain = Problem::new(with_heads(&q), with_heads(&k), with_heads(&v), scale);
    Ok(Projected { batched, inputs, problem: Problem { visible, bias, ..plain }, given })
}

/// `torch.nn.functional.multi_head_attention_forward`: projections, attention, output projection, and the
/// attention weights, averaged over the heads or not.
pub(crate) fn multi_head_attention(call: &Call<'_>, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
    let projected = projected(call, lane)?;
    let heads_out = projected.heads_out(lane);
    let Projected { batched, problem, .. } = projected;
    let [batch, heads, t, d_k] = *problem.q.shape() else { unreachable!() };
    let (d_model, s) = (heads * d_k, problem.k.shape()[2]);
    let blind = problem.blind().reshape(&[batch, heads, t]);
    let blind_head = |b: usize, i: usize, h: usize| blind.data()[(b * heads + h) * t + i];
    // A head that sees nothing gives zeros, also where the others see something.
    for (row, x) in heads_out.data().chunks(d_model.max(1)).enumerate() {
        let zero = |h: usize| x[h * d_k..(h + 1) * d_k].iter().all(|&x| x == 0.0);
        if (0..heads).any(|h| blind_head(row % batch, row / batch, h) && !zero(h)) {
            return Err(Stop::fail("a head without visible keys is not 0"));
        }
    }
    let weight = call.tensor("out_proj_weight")?;
    let weight = Operand { matrix: &weight, transposed: true };
    let bias = call.optional("out_proj_bias")?;
    let out = lane.gemm_with(Operand::from(&heads_out), weight, bias.as_ref(), 1.0, 1.0);
    let width = out.shape()[1];

    // In PyTorch a query without keys is NaN, and through the output projection so is its whole row. With us
    // zeros are projected, which leaves the bias.
    let row_is =
        |b: usize, i: usize, x: f32| match (0..heads).filter(|&h| blind_head(b, i, h)).count() {
            0 => Blind::No,
            n if n == heads => Blind::Exactly(x),
            _ => Blind::InSomeHeads,
        };
    let elements = (0..t * batch).flat_map(|row| (0..width).map(move |j| (row, j)));
    let bias_at = |j: usize| bias.as_ref().map_or(0.0, |bias| bias.data()[j]);
    let rows: Vec<Blind> =
        elements.map(|(row, j)| row_is(row % batch, row / batch, bias_at(j))).collect();
    let shape = |width| if batched { vec![t, batch, width] } else { vec![t, width] };
    let out =
        Output { value: out.reshape(&shape(width)), blind: Some(Array::new(&shape(width), rows)) };
    if !call.flag("need_weights", true)? {
        return Ok(vec![out]);
    }
    let weights = if call.flag("average_attn_weights", true)? {
        let by_batch = (0..batch * t).map(|row| row_is(row / t, row % t, 0.0)).collect();
        let shape = |s| if batched { vec![batch, t, s] } else { vec![t, s] };
        let mean = problem.mean_weights(lane).reshape(&shape(s));
        Output { value: mean, blind: Some(Array::new(&shape(1), by_batch)) }
    } else {
        let shape = |s| if batched { vec![batch, heads, t, s] } else { vec![heads, t, s] };
        let blind = Some(Blind::zeros(&blind).reshape(&shape(1)));
        Output { value: problem.weights(lane).reshape(&shape(s)), blind }
    };
    Ok(vec![out, weights])
}

/// Q, K and V of width d_model, from one matrix of 3·d_model rows or from three of their own.
fn projections(
    call: &Call<'_>,
    inputs: &[Array<f32>; 3],
    d_model: usize,
    lane: Lane<'_>,
) -> Result<[Array<f32>; 3], Stop> {
    let separate = call.flag("use_separate_proj_weight", false)?;
    let biases = call.optional("in_proj_bias")?;
    let project = |i: usize, name: &str| {
        let weight = match separate {
            true => call.tensor(&format!("{name}_proj_weight"))?,
            false => call.tensor("in_proj_weight")?.slice(0, i * d_model, d_model),
        };
        let bias = biases.as_ref().map(|biases| biases.slice(0, i * d_model, d_model));
        let &[batch, rows, width] = inputs[i].shape() else { unreachable!() };
        let x = inputs[i].clone().reshape(&[batch * rows, width]);
        let weight = Operand { matrix: &weight, transposed: true };
        let y = lane.gemm_with(Operand::from(&x), weight, bias.as_ref(), 1.0, 1.0);
        Ok::<_, Stop>(y.reshape(&[batch, rows, d_model]))
    };
    Ok([project(0, "q")?, project(1, "k")?, project(2, "v")?])
}

/// One more key and value that are learned, and one of zeros, when asked for.
fn with_added_keys(
    call: &Call<'_>,
    mut k: Array<f32>,
    mut v: Array<f32>,
) -> Result<(Array<f32>, Array<f32>), Stop> {
    let &[batch, _, d_model] = k.shape() else { unreachable!() };
    let mut more = Vec::new();
    if let (Some(bias_k), Some(bias_v)) = (call.optional("bias_k")?, call.optional("bias_v")?) {
        more.push((bias_k, bias_v));
    }
    if call.flag("add_zero_attn", false)? {
        more.push((Array::full(&[d_model], 0.0), Array::full(&[d_model], 0.0)));
    }
    let row = |x: Array<f32>| x.reshape(&[1, 1, d_model]).broadcast(&[batch, 1, d_model]);
    for (key, value) in more {
        k = k.concat(&row(key), 1);
        v = v.concat(&row(value), 1);
    }
    Ok((k, v))
}

/// The mask of scores (t × s or (batch · heads) × t × s) and the one of keys (batch × s) as one of each
/// type. `true` hides in both; neither hides the keys that were `added`.
fn masks(
    call: &Call<'_>,
    full: [usize; 4],
    added: usize,
    lane: Lane<'_>,
) -> Result<EitherMask, Stop> {
    fn of_scores<T: Copy>(mask: Array<T>, [batch, heads, ..]: [usize; 4]) -> Array<T> {
        match *mask.shape() {
            [n, t, s] if n == batch * heads => mask.reshape(&[batch, heads, t, s]),
            _ => mask.with_rank(4),
        }
    }
    fn of_keys<T: Copy>(mask: Array<T>, [batch, ..]: [usize; 4]) -> Array<T> {
        let s = mask.len() / batch.max(1);
        mask.reshape(&[batch, 1, 1, s])
    }
    /// With columns for the keys that were added.
    fn longer<T: Copy>(mask: Array<T>, added: usize, seen: T) -> Array<T> {
        let mut shape = mask.shape().to_vec();
        shape[3] = added;
        mask.concat(&Array::full(&shape, seen), 3)
    }
    let (hidden, bias) = mask(call, "attn_mask")?;
    let (hidden_keys, bias_keys) = mask(call, "key_padding_mask")?;
    let seen = |mask: Array<bool>| longer(mask.map(|hidden| !hidden), added, true);
    let visible = hidden.map(|mask| seen(of_scores(mask, full)));
    let visible_keys = hidden_keys.map(|mask| seen(of_keys(mask, full)));
    let bias = bias.map(|mask| longer(of_scores(mask, full), added, 0.0));
    let bias_keys = bias_keys.map(|mask| longer(of_keys(mask, full), added, 0.0));
    let visible = match (visible, visible_keys) {
        (Some(a), Some(b)) => {
            let (a, b) = (a.broadcast(&full), b.broadcast(&full));
            let both = a.data().iter().zip(b.data()).map(|(&a, &b)| a && b).collect();
            Some(Array::new(&full, both))
        }
        (a, b) => a.or(b),
    };
    let bias = match (bias, bias_keys) {
        (Some(a), Some(b)) => {
            Some(lane.combined(&[(&a.broadcast(&full), 1.0), (&b.broadcast(&full), 1.0)]))
        }
        (a, b) => a.or(b),
    };
    Ok((visible, bias))
}
