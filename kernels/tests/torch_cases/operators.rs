//! The operators, all but attention.

use super::conformance::array::Array;
use super::conformance::loss::{Loss, Reduction};
use super::conformance::ops::{Operand, axis, reduced};
use super::conformance::tensors::Value;
use super::conformance::{Lane, Output, Stop};
use super::{Call, attention};
use headrow_kernels::rows::math;
use headrow_kernels::{Activation, log_softmax, softmax};
use serde_json::Value as Json;

/// The reason why an operator is skipped whatever its arguments are.
fn unclaimed(op: &str) -> Option<Stop> {
    let why = match op {
        "kl_div" | "mse_loss" | "l1_loss" | "binary_cross_entropy" => {
            "not claimed: a loss of no supported model"
        }
        "dropout" => "not claimed: what another random generator drops",
        "gather" | "masked_fill" | "where" | "index_select" | "take_along_dim" | "scatter"
        | "tril" | "triu" | "cat" | "one_hot" => {
            "not claimed: data movement, computed by no kernel"
        }
        "argmax" | "argmin" | "topk" | "sort" => "not claimed: selection, computed by no kernel",
        "cumsum" | "sum" | "mean" | "var" => {
            "not claimed: a reduction of its own is no part of a Transformer"
        }
        "hardswish" | "softplus" | "elu" | "leaky_relu" | "mish" | "selu" | "celu" | "prelu"
        | "hardsigmoid" | "hardtanh" | "relu6" | "softsign" | "logsigmoid" => {
            "not claimed: an activation of no supported model"
        }
        "batch_norm" | "instance_norm" | "local_response_norm" | "normalize" => {
            "not claimed: a normalisation of no supported model"
        }
        _ => return None,
    };
    Some(Stop::skip(why))
}

pub(crate) fn operator(op: &str, call: &Call<'_>, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
    let op = op.trim_start_matches("nn.functional.").trim_start_matches("special.");
    if let Some(stop) = unclaimed(op) {
        return Err(stop);
    }
    let x = || call.tensor("x");
    let one = match op {
        "exp" => lane.each(&x()?, math::exp),
        "log" => lane.each(&x()?, math::ln),
        "erf" => lane.each(&x()?, math::erf),
        "tanh" => lane.each(&x()?, math::tanh),
        "sigmoid" | "expit" => lane.each(&x()?, math::sigmoid),
        "relu" => lane.activated(&x()?, Activation::Relu),
        "silu" => lane.activated(&x()?, Activation::Silu),
        "gelu" => match call.value("approximate").and_then(Json::as_str).unwrap_or("none") {
            "none" => lane.activated(&x()?, Activation::GeluErf),
            "tanh" => lane.activated(&x()?, Activation::GeluTanh),
            other => return Err(Stop::fail(format!("gelu approximated by {other}"))),
        },
        "glu" => {
            let (x, dim) = (x()?, call.number("dim", -1.0)? as i64);
            lane.glu(&x, axis(dim, x.rank())?)?
        }
        "softmax" | "log_softmax" | "softmin" => {
            call.claimed_type()?;
            let x = x()?;
            let dim = call.ints("dim").ok_or(Stop::skip("not claimed: softmax without dim"))?;
            let axis = axis(dim[0], x.rank())?;
            match op {
                "softmax" => lane.along(&x, axis, softmax),
                "log_softmax" => lane.along(&x, axis, log_softmax),
                _ => lane.softmin(&x, axis),
            }
        }
        "logsumexp" => {
            let axes = call.ints("dim").unwrap_or_default();
            let keep = call.flag("keepdim", false)?;
            reduced(&x()?, &axes, keep, |rows| lane.log_sum_exp(rows, 1))?
        }
        "layer_norm" | "rms_norm" => {
            let x = x()?;
            let shape = call.ints("normalized_shape").ok_or(Stop::fail("no normalized_shape"))?;
            let axis = x.rank().checked_sub(shape.len()).ok_or(Stop::fail("normalized_shape"))?;
            let (weight, bias) = (call.optional("weight")?, call.optional("bias")?);
            match op {
                "layer_norm" => {
                    let eps = call.number("eps", 1e-5)?;
                    lane.layer_norm(&x, axis, weight.as_ref(), bias.as_ref(), eps)?
                }
                _ => {
                    // Without ε PyTorch takes the machine's, of the type it computes in.
                    let eps = call.number("eps", f64::from(f32::EPSILON))?;
                    lane.rms_norm(&x, axis, weight.as_ref(), eps)?
                }
            }
        }
        "group_norm" => {
            let (weight, bias) = (call.optional("weight")?, call.optional("bias")?);
            let groups = call.number("num_groups", 1.0)? as usize;
            let eps = call.number("eps", 1e-5)?;
            lane.group_norm(&x()?, groups, weight.as_ref(), bias.as_ref(), eps)?
        }
        "linear" => linear(call, lane)?,
        "mm" | "bmm" | "matmul" | "mv" | "dot" => {
            lane.matmul(&call.tensor("a")?, &call.tensor("b")?)?
        }
        "addmm" | "baddbmm" => add_product(call, lane)?,
        "embedding" => embedding(call, lane)?,
        "cross_entropy" => lane.cross_entropy(&loss(call)?),
        "nll_loss" => lane.nll(&loss(call)?)?,
        "scaled_dot_product_attention" => {
            return attention::scaled_dot_product_attention(call, lane);
        }
        "multi_head_attention_forward" => return attention::multi_head_attention(call, lane),
        other => return Err(Stop::skip(format!("not claimed: operator {other}"))),
    };
    Ok(vec![one.into()])
}

/// The operands of a cross entropy or of its second half.
pub(crate) fn loss(call: &Call<'_>) -> Result<Loss, Stop> {
    let x = call.tensor("x")?;
    let target = call.optional_tensor("target")?.ok_or(Stop::fail("a loss without target"))?;
    let mut loss = match &target {
        Value::Float(_) => Loss::of_shares(&x, &target.floats()?)?,
        _ => {
            let ignored = call.number("ignore_index", -100.0)? as i64;
            Loss::of_labels(&x, &target.ints()?, Some(ignored))?
        }
    };
    loss.weights = call.optional("weight")?;
    loss.smoothing = call.number("label_smoothing", 0.0)? as f32;
    loss.reduction = Reduction::named(call.value("reduction").and_then(Json::as_str))?;
    Ok(loss)
}

/// x·Wᵀ + b with W as out × in, or a vector of in for a single feature.
fn linear(call: &Call<'_>, lane: Lane<'_>) -> Result<Array<f32>, Stop> {
    let (x, weight, bias) = (call.tensor("x")?, call.tensor("weight")?, call.optional("bias")?);
    let single = weight.rank() == 1;
    let weight = weight.with_rank(2);
    let (outer, inner) = match x.shape() {
        [outer @ .., inner] => (outer.to_vec(), *inner),
        [] => return Err(Stop::fail("linear of a scalar")),
    };
    let x = x.reshape(&[outer.iter().product(), inner]);
    let weight_t = Operand { matrix: &weight, transposed: true };
    let y = lane.gemm_with(Operand::from(&x), weight_t, bias.as_ref(), 1.0, 1.0);
    let features = weight.shape()[0];
    Ok(y.reshape(&if single { outer } else { [&outer[..], &[features]].concat() }))
}

/// β·C + α·A·B, for matrices or stacks of them.
fn add_product(call: &Call<'_>, lane: Lane<'_>) -> Result<Array<f32>, Stop> {
    let (a, b, c) = (call.tensor("a")?, call.tensor("b")?, call.tensor("c")?);
    let (alpha, beta) = (call.number("alpha", 1.0)?, call.number("beta", 1.0)?);
    let (&[.., m, k], &[.., n]) = (a.shape(), b.shape()) else {
        return Err(Stop::fail("a product of vectors"));
    };
    let count = if a.rank() == 3 { a.shape()[0] } else { 1 };
    let (a, b) = (a.with_rank(3), b.with_rank(3));
    let c = c.with_rank(3);
    let mut data = Vec::with_capacity(count * m * n);
    for i in 0..count {
        let part = |x: &Array<f32>, rows, cols| x.slice(0, i, 1).reshape(&[rows, cols]);
        let (a, b) = (part(&a, m, k), part(&b, k, n));
        let (rows, cols) = (c.shape()[1], c.shape()[2]);
        let c =
            if c.shape()[0] == 1 { c.clone().reshape(&[rows, cols]) } else { part(&c, rows, cols) };
        data.extend(lane.gemm_with(&a, &b, Some(&c), alpha, beta).data());
    }
    let shape = if call.tensor("a")?.rank() == 3 { vec![count, m, n] } else { vec![m, n] };
    Ok(Array::new(&shape, data))
}

/// Rows of a table. What pads, sparse gradients and their scale concern the backward pass only.
fn embedding(call: &Call<'_>, lane: Lane<'_>) -> Result<Array<f32>, Stop> {
    if call.value("max_norm").is_some() {
        let why = "not claimed: embedding with max_norm rewrites the table";
        return Err(Stop::skip(why));
    }
    // Recorded calls have the two either way round; the ids are the integers.
    let missing = || Stop::fail("embedding without ids or table");
    let first = call.optional_tensor("ids")?.ok_or_else(missing)?;
    let second = call.optional_tensor("table")?.ok_or_else(missing)?;
    match (&first, &second) {
        (Value::Int(ids), _) => lane.gather(&second.floats()?, ids),
        (_, Value::Int(ids)) => lane.gather(&first.floats()?, ids),
        _ => Err(missing()),
    }
}
