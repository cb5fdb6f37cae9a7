//! The operators: one function each, or one line where a kernel is the operator.

use super::conformance::array::{Array, common_shape};
use super::conformance::einsum::einsum;
use super::conformance::ops::{Operand, axis, reduced};
use super::conformance::{Lane, Output, Stop};
use super::{Inputs, Node, attention, training};
use headrow_kernels::rows::math;
use headrow_kernels::{Activation, Cpu, MatMut, Par, RopeLayout, log_softmax, softmax};

/// The reason why an operator is skipped whatever its inputs are.
pub(crate) fn unclaimed(node: &Node) -> Option<Stop> {
    let why = match node.op.as_str() {
        "Gradient" => "not claimed: differentiation of graphs, computed by no kernel",
        "QuantizeLinear"
        | "DequantizeLinear"
        | "DynamicQuantizeLinear"
        | "MatMulInteger"
        | "QLinearMatMul"
        | "ConvInteger"
        | "QLinearConv" => "later: int8",
        "Transpose" | "Split" if !node.alone => return None,
        "Transpose" | "Where" | "Trilu" | "OneHot" | "GatherND" | "GatherElements"
        | "ScatterND" | "ScatterElements" | "Concat" | "Slice" | "Split" | "Pad" | "Expand"
        | "Tile" => "not claimed: data movement, computed by no kernel",
        "ArgMax" | "ArgMin" | "TopK" => "not claimed: selection, computed by no kernel",
        "CumSum" | "ReduceSum" | "ReduceMax" | "ReduceMean" => {
            "not claimed: a reduction of its own is no part of a Transformer"
        }
        "Elu" | "LeakyRelu" | "HardSwish" | "HardSigmoid" | "Mish" | "Softplus" | "Softsign"
        | "Selu" | "Celu" | "PRelu" | "ThresholdedRelu" => {
            "not claimed: an activation of no supported model"
        }
        "LpNormalization"
        | "MeanVarianceNormalization"
        | "BatchNormalization"
        | "InstanceNormalization" => "not claimed: a normalisation of no supported model",
        "CausalConvWithState" => {
            "not claimed: convolutions with state are no part of a Transformer"
        }
        "LinearAttention" => "not claimed: attention without softmax",
        _ => return None,
    };
    Some(Stop::skip(why))
}

/// One operator. The outputs come in the order of the operator's page; those after the last computed one
/// must not have been asked for.
pub(crate) fn operator(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
    let attrs = &node.attrs;
    let x = || inputs.floats(0);
    let activated = |activation| Ok(lane.activated(&x()?, activation));
    let one = match node.op.as_str() {
        "Erf" => lane.each(&x()?, math::erf),
        "Exp" => lane.each(&x()?, math::exp),
        "Log" => lane.each(&x()?, math::ln),
        "Tanh" => lane.each(&x()?, math::tanh),
        "Sigmoid" => lane.each(&x()?, math::sigmoid),
        "Relu" => activated(Activation::Relu)?,
        "Gelu" => match attrs.text("approximate").unwrap_or("none") {
            "none" => activated(Activation::GeluErf)?,
            "tanh" => activated(Activation::GeluTanh)?,
            other => return Err(Stop::fail(format!("Gelu approximated by {other}"))),
        },
        "SwiGLU" => {
            attrs.only(&[])?;
            lane.gated(Activation::Silu, &x()?, &inputs.floats(1)?)?
        }
        "RotaryEmbedding" => rotary_embedding(node, inputs, lane)?,
        "TensorScatter" => tensor_scatter(node, inputs, lane)?,
        "Swish" => lane.swish(&x()?, attrs.number("alpha")?.unwrap_or(1.0))?,
        "Softmax" => softmaxed(node, inputs, lane, softmax)?,
        "LogSoftmax" => softmaxed(node, inputs, lane, log_softmax)?,
        "ReduceLogSumExp" => reduce_log_sum_exp(node, inputs, lane)?,
        "MatMul" => lane.matmul(&x()?, &inputs.floats(1)?)?,
        "Gemm" => gemm(node, inputs, lane)?,
        "Einsum" => {
            attrs.only(&["equation"])?;
            let equation = attrs.text("equation").ok_or(Stop::fail("Einsum without equation"))?;
            let arrays: Result<Vec<_>, Stop> =
                (0..inputs.values.len()).map(|i| inputs.floats(i)).collect();
            einsum(lane, equation, &arrays?)?
        }
        "Gather" => {
            let (data, ids) = (x()?, inputs.get(1).ok_or(Stop::fail("Gather without indices"))?);
            let axis = axis(attrs.int("axis", 0)?, data.rank())?;
            let ids = ids.ints()?;
            let gathered = lane.gather(&data.moved(axis, 0), &ids)?;
            // The dimensions of the indices stand first; they belong where the axis was.
            (0..ids.rank()).fold(gathered, |g, _| g.moved(0, axis + ids.rank() - 1))
        }
        "LayerNormalization" => return layer_normalization(node, inputs, lane),
        "RMSNormalization" | "SimplifiedLayerNormalization" => {
            attrs.only(&["axis", "epsilon", "stash_type"])?;
            let x = x()?;
            let axis = axis(attrs.int("axis", -1)?, x.rank())?;
            let epsilon = attrs.number("epsilon")?.unwrap_or(1e-5);
            lane.rms_norm(&x, axis, inputs.optional(1)?.as_ref(), epsilon)?
        }
        "GroupNormalization" => group_normalization(node, inputs, lane)?,
        "Attention" => return attention::attention(node, inputs, lane),
        "FlexAttention" => attention::flex_attention(node, inputs, lane)?,
        "Dropout" => return training::dropout(inputs, lane),
        "SoftmaxCrossEntropyLoss" => return training::cross_entropy(node, inputs, lane),
        "NegativeLogLikelihoodLoss" => training::nll(node, inputs, lane)?,
        "Adam" => return training::adam(node, inputs, lane),
        "Adagrad" => return training::adagrad(node, inputs, lane),
        "Momentum" => return training::momentum(node, inputs, lane),
        // Parts of graphs.
        "Identity" => x()?,
        "Transpose" => {
            let x = x()?;
            let reversed = (0..x.rank() as i64).rev().collect();
            let perm = attrs.ints("perm").unwrap_or(reversed);
            x.permute(&perm.iter().map(|&d| d as usize).collect::<Vec<_>>())
        }
        "Split" => return split(node, inputs),
        "Neg" => lane.scaled(&x()?, -1.0),
        "Mul" => lane.gated(Activation::Identity, &x()?, &inputs.floats(1)?)?,
        "Add" => {
            let (a, b) = (x()?, inputs.floats(1)?);
            let shape = common_shape(a.shape(), b.shape());
            let shape = shape.ok_or(Stop::fail("shapes of a sum"))?;
            lane.combined(&[(&a.broadcast(&shape), 1.0), (&b.broadcast(&shape), 1.0)])
        }
        other => return Err(Stop::skip(format!("not claimed: operator {other}"))),
    };
    Ok(vec![one.into()])
}

/// Before opset 13 the input is a matrix: the dimensions from `axis` on (1 by default) are its columns.
fn softmaxed(
    node: &Node,
    inputs: &Inputs,
    lane: Lane<'_>,
    kernel: fn(Cpu, Par<'_>, MatMut<'_>),
) -> Result<Array<f32>, Stop> {
    node.attrs.only(&["axis"])?;
    let x = inputs.floats(0)?;
    if inputs.opset >= 13 {
        return Ok(lane.along(&x, axis(node.attrs.int("axis", -1)?, x.rank())?, kernel));
    }
    // Here the axis may also be the rank itself: rows of one element.
    let first = node.attrs.int("axis", 1)?;
    let first = if first == x.rank() as i64 { x.rank() } else { axis(first, x.rank())? };
    let (outer, inner) = x.shape().split_at(first);
    let matrix = x.clone().reshape(&[outer.iter().product(), inner.iter().product()]);
    Ok(lane.along(&matrix, 1, kernel).reshape(x.shape()))
}

fn reduce_log_sum_exp(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Array<f32>, Stop> {
    node.attrs.only(&["axes", "keepdims", "noop_with_empty_axes"])?;
    let x = inputs.floats(0)?;
    let axes = match inputs.get(1) {
        Some(axes) => axes.ints()?.data().to_vec(),
        None => node.attrs.ints("axes").unwrap_or_default(),
    };
    if axes.is_empty() && node.attrs.int("noop_with_empty_axes", 0)? != 0 {
        return Ok(x);
    }
    let keep = node.attrs.int("keepdims", 1)? != 0;
    reduced(&x, &axes, keep, |rows| lane.log_sum_exp(rows, 1))
}

fn gemm(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Array<f32>, Stop> {
    // `broadcast` is of opset 6 and before, where later versions always broadcast.
    node.attrs.only(&["alpha", "beta", "transA", "transB", "broadcast"])?;
    let (a, b, c) = (inputs.floats(0)?, inputs.floats(1)?, inputs.optional(2)?);
    let operand =
        |matrix, name| Ok::<_, Stop>(Operand { matrix, transposed: node.attrs.int(name, 0)? != 0 });
    let (a, b) = (operand(&a, "transA")?, operand(&b, "transB")?);
    let factor = |name| Ok::<_, Stop>(node.attrs.number(name)?.unwrap_or(1.0));
    Ok(lane.gemm_with(a, b, c.as_ref(), factor("alpha")?, factor("beta")?))
}

/// Y, and the statistics that the page lets a caller ask for. The kernel keeps none (they are for the
/// backward pass), so they are read off its result with γ = 1 and β = 0: with y = (x − µ)·r, two elements
/// give r as the quotient of their differences, and then µ. A row of one value has µ = x, r = 1/√ε.
fn layer_normalization(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
    node.attrs.only(&["axis", "epsilon", "stash_type"])?;
    let x = inputs.floats(0)?;
    let axis = axis(node.attrs.int("axis", -1)?, x.rank())?;
    let epsilon = node.attrs.number("epsilon")?.unwrap_or(1e-5);
    let (gamma, beta) = (inputs.optional(1)?, inputs.optional(2)?);
    let y = lane.layer_norm(&x, axis, gamma.as_ref(), beta.as_ref(), epsilon)?;
    if node.outputs.iter().skip(1).all(String::is_empty) {
        return Ok(vec![y.into()]);
    }
    let plain = lane.layer_norm(&x, axis, None, None, epsilon)?;
    let cols: usize = x.shape()[axis..].iter().product();
    let (mut means, mut inverses) = (Vec::new(), Vec::new());
    for (x, y) in x.data().chunks(cols.max(1)).zip(plain.data().chunks(cols.max(1))) {
        let by_value = |&a: &usize, &b: &usize| x[a].total_cmp(&x[b]);
        let (low, high) =
            ((0..cols).min_by(by_value).unwrap(), (0..cols).max_by(by_value).unwrap());
        let at = |values: &[f32], i: usize| f64::from(values[i]);
        let spread = at(x, high) - at(x, low);
        let inverse = match spread == 0.0 {
            true => 1.0 / epsilon.sqrt(),
            false => (at(y, high) - at(y, low)) / spread,
        };
        means.push((at(x, high) - at(y, high) / inverse) as f32);
        inverses.push(inverse as f32);
    }
    let mut shape = x.shape()[..axis].to_vec();
    shape.resize(x.rank(), 1);
    Ok(vec![y.into(), Array::new(&shape, means).into(), Array::new(&shape, inverses).into()])
}

/// Factors per channel since opset 21, per group before.
fn group_normalization(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Array<f32>, Stop> {
    node.attrs.only(&["epsilon", "num_groups", "stash_type"])?;
    let x = inputs.floats(0)?;
    let groups = node.attrs.int("num_groups", 0)? as usize;
    let channels = x.shape().get(1).copied().unwrap_or(0);
    let per_channel = |place| {
        let factors: Option<Array<f32>> = inputs.optional(place)?;
        Ok::<_, Stop>(factors.map(|f| match f.len() == groups && groups != channels {
            true => {
                let width = channels / groups;
                f.reshape(&[groups, 1]).broadcast(&[groups, width]).reshape(&[channels])
            }
            false => f,
        }))
    };
    let (gamma, beta) = (per_channel(1)?, per_channel(2)?);
    let epsilon = node.attrs.number("epsilon")?.unwrap_or(1e-5);
    lane.group_norm(&x, groups, gamma.as_ref(), beta.as_ref(), epsilon)
}

/// Heads turned in place of their tokens. The input is batch × heads × tokens × width, or batch × tokens × features.
/// Without positions the tables have a row for each token of the batch.
fn rotary_embedding(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Array<f32>, Stop> {
    node.attrs.only(&["interleaved", "num_heads", "rotary_embedding_dim"])?;
    let (x, cos, sin) = (inputs.floats(0)?, inputs.floats(1)?, inputs.floats(2)?);
    let split = x.rank() == 4;
    let tokens = if split { x.permute(&[0, 2, 1, 3]) } else { x.clone() };
    let heads = if split { x.shape()[1] } else { node.attrs.int("num_heads", 0)? as usize };
    let (rows, cols) = (
        tokens.shape()[..2].iter().product(),
        tokens.len() / tokens.shape()[0] / tokens.shape()[1],
    );
    let positions: Option<Vec<u32>> = match inputs.get(3) {
        Some(ids) => ids.ints()?.data().iter().map(|&id| u32::try_from(id).ok()).collect(),
        None => Some((0..rows as u32).collect()),
    };
    let positions = positions.ok_or(Stop::fail("a position below 0"))?;
    let layout = match node.attrs.int("interleaved", 0)? {
        0 => RopeLayout::HalfSplit,
        _ => RopeLayout::Interleaved,
    };
    let turning = match node.attrs.int("rotary_embedding_dim", 0)? as usize {
        0 => cols / heads.max(1),
        turning => turning,
    };
    if cos.shape().last() != Some(&(turning / 2)) {
        return Err(Stop::fail(format!("{turning} features turn by {:?} cosines", cos.shape())));
    }
    let matrix = tokens.clone().reshape(&[rows, cols]);
    let turned =
        lane.rope([&cos, &sin], layout, &positions, heads, &matrix).reshape(tokens.shape());
    Ok(if split { turned.permute(&[0, 2, 1, 3]) } else { turned })
}

/// A cache with rows replaced by those of an update, from a row on that each sequence of the batch has its own;
/// circular caches go on at their start. Rows of both are gathered, as from a table.
fn tensor_scatter(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Array<f32>, Stop> {
    node.attrs.only(&["axis", "mode"])?;
    let (past, update) = (inputs.floats(0)?, inputs.floats(1)?);
    let axis = axis(node.attrs.int("axis", -2)?, past.rank())?;
    let (past, update) = (past.moved(axis, 1), update.moved(axis, 1));
    let (batch, length, count) = (past.shape()[0], past.shape()[1], update.shape()[1]);
    let firsts = match inputs.get(2) {
        Some(firsts) => firsts.ints()?.data().to_vec(),
        None => vec![0; batch],
    };
    // Each sequence's rows: those of the cache, then those of the update.
    let table = past.concat(&update, 1);
    let mut ids: Vec<i64> = Vec::with_capacity(batch * length);
    for (sequence, first) in firsts.into_iter().enumerate() {
        let start = (sequence * (length + count)) as i64;
        let mut rows: Vec<i64> = (start..start + length as i64).collect();
        for i in 0..count {
            let mut to = first as usize + i;
            if node.attrs.text("mode") == Some("circular") {
                to %= length;
            }
            *rows.get_mut(to).ok_or(Stop::fail("a row beyond the cache"))? =
                start + (length + i) as i64;
        }
        ids.extend(rows);
    }
    let row = table.shape()[2..].to_vec();
    let flat = table.reshape(&[&[batch * (length + count)], &row[..]].concat());
    Ok(lane.gather(&flat, &Array::new(&[batch, length], ids))?.moved(1, axis))
}

/// Equal parts along a dimension, one for each output.
fn split(node: &Node, inputs: &Inputs) -> Result<Vec<Output>, Stop> {
    node.attrs.only(&["axis"])?;
    let x = inputs.floats(0)?;
    let axis = axis(node.attrs.int("axis", 0)?, x.rank())?;
    let width = x.shape()[axis] / node.outputs.len();
    Ok((0..node.outputs.len()).map(|i| x.slice(axis, i * width, width).into()).collect())
}
