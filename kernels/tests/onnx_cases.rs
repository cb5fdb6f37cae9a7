//! ONNX operator cases, run through the public kernels.
//!
//! `HEADROW_ONNX_CASES=DIR cargo test --release -p headrow-kernels --test onnx_cases -- --nocapture`
//! prints `name ok|FAIL|skip (reason)` for each case of the folder and ends with
//! `N passed, N failed, N skipped`. Without the variable a bundled sample is run.
//!
//! A row of `index.jsonl` is one operator with its attributes and the names of its inputs and outputs, or
//! a small graph of such nodes. Definitions: the operator pages of ONNX, each in the version that the
//! row's opset selects.

mod conformance;

use conformance::array::{Array, common_shape};
use conformance::attention::Problem;
use conformance::compare::{Tolerance, compare};
use conformance::einsum::einsum;
use conformance::ops::{Operand, axis, reduced};
use conformance::tensors::{Kind, Tensors, Value};
use conformance::{Lane, Output, Stop, decoders, number, on_every_lane, run_suite, training};
use headrow_kernels::rows::math;
use headrow_kernels::{Activation, log_softmax, softmax};
use serde::Deserialize;
use serde_json::Value as Json;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

#[derive(Deserialize)]
struct Case {
    op: String,
    #[serde(default)]
    domain: String,
    #[serde(default)]
    opset: BTreeMap<String, i64>,
    #[serde(default)]
    attrs: Attributes,
    #[serde(default)]
    node_inputs: Vec<String>,
    #[serde(default)]
    node_outputs: Vec<String>,
    /// Set when the case is a graph; the single node's fields are then empty.
    #[serde(default)]
    nodes: Vec<Node>,
    #[serde(default)]
    graph_inputs: Vec<String>,
    #[serde(default)]
    graph_outputs: Vec<String>,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    rtol: f64,
    atol: f64,
    file: String,
}

#[derive(Clone, Deserialize)]
struct Node {
    op: String,
    #[serde(default)]
    domain: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    #[serde(default)]
    attrs: Attributes,
    /// The case is this node, not a graph around it.
    #[serde(skip)]
    alone: bool,
}

/// An input or output: what a node calls it and where the file holds it.
#[derive(Clone, Deserialize)]
struct Place {
    key: String,
    name: String,
    dtype: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(transparent)]
struct Attributes(BTreeMap<String, Json>);

impl Attributes {
    fn number(&self, name: &str) -> Result<Option<f64>, Stop> {
        let wrong = || Stop::fail(format!("attribute {name} is no number"));
        self.0.get(name).map(|json| number(json).ok_or_else(wrong)).transpose()
    }

    fn int(&self, name: &str, default: i64) -> Result<i64, Stop> {
        Ok(self.number(name)?.map_or(default, |x| x as i64))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.0.get(name)?.as_array()?.iter().map(|x| x.as_i64()).collect()
    }

    /// An attribute outside of `known` would be ignored silently; it makes the case a skip.
    fn only(&self, known: &[&str]) -> Result<(), Stop> {
        match self.0.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(Stop::skip(format!("not claimed: attribute {name}"))),
            None => Ok(()),
        }
    }
}

fn main() -> ExitCode {
    run_suite("onnx_cases", "HEADROW_ONNX_CASES", run)
}

fn run(folder: &Path, json: &Json) -> Result<(), Stop> {
    let case = Case::deserialize(json).map_err(|e| Stop::fail(format!("the index row: {e}")))?;
    let tensors = Tensors::open(&folder.join(&case.file))?;
    let tolerance = Tolerance { absolute: case.atol, relative: case.rtol };
    if case.nodes.is_empty() {
        let node = Node {
            op: case.op.clone(),
            domain: case.domain.clone(),
            inputs: case.node_inputs.clone(),
            outputs: case.node_outputs.clone(),
            attrs: case.attrs.clone(),
            alone: true,
        };
        let attends = ["Attention", "FlexAttention"].contains(&node.op.as_str());
        if attends && case.inputs.iter().any(|place| place.dtype == "bfloat16") {
            // Such records round every intermediate result to 8 bits, even the running sum of the softmax,
            // and so lie further from the exact result than their tolerance.
            return Err(Stop::skip(
                "not claimed: attention in bf16 arithmetic (kernels compute in f32)",
            ));
        }
        let read = |name: &str| match case.inputs.iter().find(|place| place.name == name) {
            Some(place) => Ok(tensors.get(&place.key)?.stated(Kind::parse(&place.dtype)?)),
            None => tensors.get(&format!("init.{name}")),
        };
        let inputs = Inputs::read(&node, case.opset(&node.domain), read)?;
        let wanted = |slot: usize| {
            let name = node.outputs.get(slot).filter(|name| !name.is_empty())?;
            case.outputs.iter().find(|place| place.name == *name)
        };
        return on_every_lane(
            |lane| operator(&node, &inputs, lane),
            |outputs| {
                for (slot, output) in outputs.iter().enumerate() {
                    let Some(place) = wanted(slot) else { continue };
                    let want = tensors.get(&place.key)?;
                    compare(&place.name, output, &want, Kind::parse(&place.dtype)?, tolerance)?;
                }
                let unchecked = (outputs.len()..node.outputs.len()).find_map(wanted);
                unchecked.map_or(Ok(()), |place| {
                    Err(Stop::fail(format!("output {} was not computed", place.name)))
                })
            },
        );
    }
    on_every_lane(
        |lane| graph(&case, &tensors, lane),
        |outputs| {
            for (output, place) in outputs.iter().zip(&case.outputs) {
                let kind = Kind::parse(&place.dtype)?;
                compare("the graph", output, &tensors.get(&place.key)?, kind, tolerance)?;
            }
            Ok(())
        },
    )
}

impl Case {
    fn opset(&self, domain: &str) -> i64 {
        let domain = if domain.is_empty() { "ai.onnx" } else { domain };
        let opset = self.opset.get(domain).or_else(|| self.opset.get(""));
        opset.copied().unwrap_or(i64::MAX)
    }
}

/// A graph's nodes in their order, each through [`operator`].
fn graph(case: &Case, tensors: &Tensors, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
    // A gated linear unit is written out: half of the input times the sigmoid of the other half.
    if case.nodes.iter().any(|n| n.op == "Sigmoid") && case.nodes.iter().any(|n| n.op == "Mul") {
        return decoders();
    }
    let values: RefCell<BTreeMap<String, Value>> = RefCell::default();
    let mut given = case.inputs.iter();
    for name in &case.graph_inputs {
        let initial = format!("init.{name}");
        let value = if tensors.has(&initial) {
            tensors.get(&initial)?
        } else {
            let place = given.next().ok_or_else(|| Stop::fail("too few inputs recorded"))?;
            tensors.get(&place.key)?.stated(Kind::parse(&place.dtype)?)
        };
        values.borrow_mut().insert(name.clone(), value);
    }
    for node in &case.nodes {
        let read = |name: &str| match values.borrow().get(name) {
            Some(value) => Ok(value.clone()),
            None => tensors.get(&format!("init.{name}")),
        };
        let inputs = Inputs::read(node, case.opset(&node.domain), read)?;
        for (name, output) in node.outputs.iter().zip(operator(node, &inputs, lane)?) {
            let value = Value::Float(output.value.map(f64::from));
            values.borrow_mut().insert(name.clone(), value);
        }
    }
    let values = values.into_inner();
    let output = |name: &String| match values.get(name) {
        Some(value) => Ok(value.floats()?.into()),
        None => Err(Stop::fail(format!("output {name} was not computed"))),
    };
    case.graph_outputs.iter().map(output).collect()
}

/// A node's inputs by place, absent ones empty.
struct Inputs {
    values: Vec<Option<Value>>,
    opset: i64,
}

impl Inputs {
    fn read(
        node: &Node,
        opset: i64,
        read: impl Fn(&str) -> Result<Value, Stop>,
    ) -> Result<Inputs, Stop> {
        let value = |name: &String| (!name.is_empty()).then(|| read(name)).transpose();
        // What is skipped need not be readable.
        if let Some(stop) = unclaimed(node) {
            return Err(stop);
        }
        Ok(Inputs { values: node.inputs.iter().map(value).collect::<Result<_, _>>()?, opset })
    }

    fn get(&self, place: usize) -> Option<&Value> {
        self.values.get(place)?.as_ref()
    }

    fn optional(&self, place: usize) -> Result<Option<Array<f32>>, Stop> {
        self.get(place).map(Value::floats).transpose()
    }

    fn floats(&self, place: usize) -> Result<Array<f32>, Stop> {
        self.optional(place)?.ok_or_else(|| Stop::fail(format!("input {place} is missing")))
    }
}

/// The reason why an operator is skipped whatever its inputs are.
fn unclaimed(node: &Node) -> Option<Stop> {
    let why = match node.op.as_str() {
        "RotaryEmbedding" | "SwiGLU" | "TensorScatter" | "GLU" => "later: decoders",
        "NegativeLogLikelihoodLoss"
        | "SoftmaxCrossEntropyLoss"
        | "Adagrad"
        | "Adam"
        | "Momentum"
        | "Gradient" => "later: training",
        "QuantizeLinear"
        | "DequantizeLinear"
        | "DynamicQuantizeLinear"
        | "MatMulInteger"
        | "QLinearMatMul"
        | "ConvInteger"
        | "QLinearConv" => "later: int8",
        "Transpose" if !node.alone => return None,
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
fn operator(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
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
        "Attention" => return attention(node, inputs, lane),
        "FlexAttention" => flex_attention(node, inputs, lane)?,
        "Dropout" => return dropout(inputs),
        // Parts of graphs.
        "Identity" => x()?,
        "Transpose" => {
            let x = x()?;
            let reversed = (0..x.rank() as i64).rev().collect();
            let perm = attrs.ints("perm").unwrap_or(reversed);
            x.permute(&perm.iter().map(|&d| d as usize).collect::<Vec<_>>())
        }
        "Neg" => lane.scaled(&x()?, -1.0),
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
    kernel: fn(headrow_kernels::Cpu, headrow_kernels::Par<'_>, headrow_kernels::MatMut<'_>),
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

/// Outside of training dropout is the identity and nothing is computed.
fn dropout(inputs: &Inputs) -> Result<Vec<Output>, Stop> {
    match inputs.get(2) {
        Some(Value::Bool(at_work)) if at_work.data() == [true] => training(),
        _ => Err(Stop::skip("not claimed: dropout outside of training computes nothing")),
    }
}

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
fn attention(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
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
    let windows =
        attrs.int("left_window_size", -1)? >= 0 || attrs.int("right_window_size", -1)? >= 0;
    let softcap = attrs.number("softcap")?.unwrap_or(0.0) != 0.0;
    let scores_wanted = node.outputs.get(3).is_some_and(|name| !name.is_empty());
    if windows || softcap || scores_wanted {
        return decoders();
    }
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

    // Causal masks align at the start, shifted by a past; with lengths of a cache that is managed
    // outside, the last query is at the last real key.
    let causal = attrs.int("is_causal", 0)? != 0;
    let diagonals = causal.then(|| match (past_length, &lengths) {
        (Some(past), _) => vec![past as isize; batch],
        (None, Some(lengths)) => lengths.iter().map(|&n| n as isize - t as isize).collect(),
        (None, None) => vec![0; batch],
    });
    let (mut visible, mut bias) = (None, None);
    match inputs.get(3) {
        None => {}
        Some(Value::Bool(mask)) => visible = Some(padded(mask, s, false)),
        Some(mask) => bias = Some(padded(&mask.floats()?, s, f32::NEG_INFINITY)),
    }
    let scale = attrs.number("scale")?.unwrap_or(1.0 / (d_k as f64).sqrt());
    let problem = Problem { q, k, v, scale, visible, bias, lengths, diagonals };
    let mut y = problem.run(lane);
    let mut blind = problem.blind();
    if flat {
        let &[_, heads, _, d_v] = y.shape() else { unreachable!() };
        let blind_flat = blind.broadcast(&[batch, heads, t, d_v]).permute(&[0, 2, 1, 3]);
        blind = blind_flat.reshape(&[batch, t, heads * d_v]);
        y = y.permute(&[0, 2, 1, 3]).reshape(&[batch, t, heads * d_v]);
    }
    let y = Output { value: y, blind: Some(blind) };
    Ok(vec![y, problem.k.into(), problem.v.into()])
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
fn flex_attention(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Array<f32>, Stop> {
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
    let plain =
        Problem { q, k, v, scale, visible: None, bias: None, lengths: None, diagonals: None };
    Ok(plain.run(lane))
}
