//! Gradients of attention, and through its projections.

use super::Call;
use super::attention::{Projected, Stated, projected, stated};
use super::conformance::array::Array;
use super::conformance::attention::Problem;
use super::conformance::ops::{Operand, matrix};
use super::conformance::{Lane, Stop};
use super::gradients::Gradients;
use super::product_gradients::summed_to;
use headrow_kernels::add_column_sums;

/// Gradients of Q, K and V, and of the bias.
type OfProblem = ([Array<f32>; 3], Option<Array<f32>>);

/// What is carried back to the arguments.
#[derive(Clone, Copy, PartialEq)]
enum Carried {
    Gradients,
    /// How far those may be off where attention itself is computed in f32, by the bound of its definition: through the
    /// magnitudes of weights and inputs.
    Bounds,
}

impl Carried {
    fn of(self, problem: &Problem, d: &Array<f32>, lane: Lane<'_>) -> OfProblem {
        match self {
            Carried::Gradients => problem.gradients(lane, d),
            Carried::Bounds => problem.gradient_bounds(d),
        }
    }

    fn factor(self, x: Array<f32>) -> Array<f32> {
        if self == Carried::Gradients { x } else { x.map(f32::abs) }
    }
}

/// How far the gradients of attention may be off, the largest of each.
pub(crate) fn bounds(
    op: &str,
    call: &Call<'_>,
    d: &Array<f32>,
    lane: Lane<'_>,
) -> Result<Vec<(&'static str, f64)>, Stop> {
    let bounds = match op.ends_with("scaled_dot_product_attention") {
        true => dot_products(Carried::Bounds, call, d, lane)?,
        false => projections(Carried::Bounds, call, d, lane)?,
    };
    let largest = |x: &Array<f32>| x.data().iter().fold(0.0, |max, &x| f64::max(max, x.into()));
    Ok(bounds.iter().map(|(name, bound)| (*name, largest(bound))).collect())
}

/// Of Q, K, V and a mask of numbers.
pub(crate) fn scaled_dot_product_attention(
    call: &Call<'_>,
    d: &Array<f32>,
    lane: Lane<'_>,
) -> Result<Gradients, Stop> {
    dot_products(Carried::Gradients, call, d, lane)
}

/// Of the inputs, all weights, what is added to keys and values, and a mask of numbers.
pub(crate) fn multi_head_attention(
    call: &Call<'_>,
    d: &Array<f32>,
    lane: Lane<'_>,
) -> Result<Gradients, Stop> {
    let forward = projected(call, lane)?;
    let weight = call.tensor("out_proj_weight")?;
    let (heads_out, outputs) = (forward.heads_out(lane), weight.shape()[0]);
    let rows = heads_out.shape()[0];
    let d_rows = d.clone().reshape(&[rows, outputs]);
    let [_, d_weight, d_bias] = linear(&heads_out, &weight, &d_rows, lane);
    let mut all = projections(Carried::Gradients, call, d, lane)?;
    all.push(("out_proj_weight", d_weight));
    all.extend(call.optional("out_proj_bias")?.map(|_| ("out_proj_bias", d_bias)));
    Ok(all)
}

/// Back to the arguments of `scaled_dot_product_attention`.
fn dot_products(
    carried: Carried,
    call: &Call<'_>,
    d: &Array<f32>,
    lane: Lane<'_>,
) -> Result<Gradients, Stop> {
    let Stated { problem, outer, .. } = stated(call)?;
    let [batch, heads, t, _] = *problem.q.shape() else { unreachable!() };
    let d = d.clone().reshape(&[batch, heads, t, problem.v.shape()[3]]);
    let (qkv, d_mask) = carried.of(&problem, &d, lane);
    let back = |name: &'static str, dx: Array<f32>| {
        let full = [&outer[..], &dx.shape()[1..]].concat();
        Ok::<_, Stop>((name, summed_to(&dx.reshape(&full), call.tensor(name)?.shape(), lane)))
    };
    let names = ["query", "key", "value"].into_iter().zip(qkv);
    let all = names.chain(d_mask.map(|d_mask| ("attn_mask", d_mask)));
    all.map(|(name, dx)| back(name, dx)).collect()
}

/// Of y = x·Wᵀ + b: dx, dW and db.
fn linear(x: &Array<f32>, weight: &Array<f32>, d: &Array<f32>, lane: Lane<'_>) -> [Array<f32>; 3] {
    let across = Operand { matrix: d, transposed: true };
    let mut db = Array::full(&[weight.shape()[0]], 0.0);
    add_column_sums(lane.cpu, lane.par, matrix(d), db.data_mut());
    [
        lane.gemm(d, weight, None, &Default::default()),
        lane.gemm(across, x, None, &Default::default()),
        db,
    ]
}

/// Back from the result of `multi_head_attention_forward` to all that comes before its output projection.
fn projections(
    carried: Carried,
    call: &Call<'_>,
    d: &Array<f32>,
    lane: Lane<'_>,
) -> Result<Gradients, Stop> {
    let Projected { batched, inputs, problem, given } = projected(call, lane)?;
    let [batch, heads, t, d_k] = *problem.q.shape() else { unreachable!() };
    let d_model = heads * d_k;
    let mut all: Gradients = Vec::new();
    let weight = call.tensor("out_proj_weight")?;
    let d = d.clone().reshape(&[t * batch, weight.shape()[0]]);
    let d_heads = lane.gemm(&d, &weight, None, &Default::default());
    let d_heads = d_heads.reshape(&[t, batch, heads, d_k]).permute(&[1, 2, 0, 3]);
    let (d_qkv, d_mask) = carried.of(&problem, &d_heads, lane);
    let [dq, dk, dv] = d_qkv.map(|dx| {
        let rows = dx.shape()[2];
        dx.permute(&[0, 2, 1, 3]).reshape(&[batch, rows, d_model])
    });
    if let Some(given_bias) = call.optional("bias_k")? {
        let first = |dx: &Array<f32>| summed_to(&dx.slice(1, given, 1), given_bias.shape(), lane);
        all.extend([("bias_k", first(&dk)), ("bias_v", first(&dv))]);
    }
    if let (Some(d_mask), Some(mask)) = (d_mask, call.optional_tensor("attn_mask")?)
        && let Ok(mask) = mask.floats()
    {
        let d_mask = d_mask.slice(3, 0, given);
        let shape = d_mask.shape().to_vec();
        let by_head = mask.rank() == 3 && mask.shape()[0] == batch * heads;
        let d_mask = match by_head {
            true => d_mask.reshape(&[batch * heads, shape[2], shape[3]]),
            false => summed_to(&d_mask, mask.shape(), lane),
        };
        all.push(("attn_mask", d_mask));
    }

    let separate = call.flag("use_separate_proj_weight", false)?;
    let mut weights: Vec<Array<f32>> = Vec::new();
    let mut biases: Vec<Array<f32>> = Vec::new();
    let d_projected = [dq, dk.slice(1, 0, given), dv.slice(1, 0, given)];
    let names = [("query", "q_proj_weight"), ("key", "k_proj_weight"), ("value", "v_proj_weight")];
    for (i, ((name, weight_name), dy)) in names.into_iter().zip(d_projected).enumerate() {
        let weight = match separate {
            true => call.tensor(weight_name)?,
            false => call.tensor("in_proj_weight")?.slice(0, i * d_model, d_model),
        };
        let &[batch, rows, width] = inputs[i].shape() else { unreachable!() };
        let x = inputs[i].clone().reshape(&[batch * rows, width]);
        let dy = dy.reshape(&[batch * rows, d_model]);
        let (x, weight) = (carried.factor(x), carried.factor(weight));
        let [dx, d_weight, d_bias] = linear(&x, &weight, &dy, lane);
        let dx = dx.reshape(&[batch, rows, width]).permute(&[1, 0, 2]);
        all.push((name, if batched { dx } else { dx.reshape(&[rows, width]) }));
        if separate {
            all.push((weight_name, d_weight));
        } else {
            weights.push(d_weight);
        }
        biases.push(d_bias);
    }
    let stacked = |parts: Vec<Array<f32>>| parts.into_iter().reduce(|a, b| a.concat(&b, 0));
    all.extend(stacked(weights).map(|d_weight| ("in_proj_weight", d_weight)));
    if call.optional("in_proj_bias")?.is_some() {
        all.extend(stacked(biases).map(|d_bias| ("in_proj_bias", d_bias)));
    }
    Ok(all)
}
