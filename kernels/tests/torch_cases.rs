//! PyTorch operator cases, run through the public kernels.
//!
//! `HEADROW_TORCH_CASES=DIR cargo test --release -p headrow-kernels --test torch_cases -- --nocapture`
//! prints `name ok|FAIL|skip (reason)` for each case of the folder and ends with
//! `N passed, N failed, N skipped`. Without the variable a bundled sample is run.
//!
//! A row of `index.jsonl` is one call: arguments in order and by keyword, each a tensor of the case's file
//! or a plain value. The record is the result of a run in f64, rounded to f32, and how far PyTorch's own
//! f32 was from it (`f32_err`). The file also holds gradients, which wait for the training kernels: a case
//! whose forward result is right is `ok`.

mod conformance;

use conformance::array::{Array, common_shape};
use conformance::attention::Problem;
use conformance::compare::{Tolerance, compare, magnitude};
use conformance::ops::{Operand, axis, reduced};
use conformance::tensors::{Kind, Tensors, Value};
use conformance::{Lane, Output, Stop, number, on_every_lane, run_suite, training};
use headrow_kernels::rows::math;
use headrow_kernels::{Activation, log_softmax, softmax};
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

#[derive(Deserialize)]
struct Case {
    op: String,
    args: Vec<Json>,
    #[serde(default)]
    kwargs: BTreeMap<String, Json>,
    #[serde(default)]
    multi_output: bool,
    #[serde(default)]
    f32_err: Json,
    file: String,
}

fn main() -> ExitCode {
    run_suite("torch_cases", "HEADROW_TORCH_CASES", run)
}

fn run(folder: &Path, json: &Json) -> Result<(), Stop> {
    let case = Case::deserialize(json).map_err(|e| Stop::fail(format!("the index row: {e}")))?;
    let tensors = Tensors::open(&folder.join(&case.file))?;
    let call = Call::bind(&case, &tensors)?;
    on_every_lane(
        |lane| operator(&case.op, &call, lane),
        |outputs| {
            let largest = magnitude(&tensors.get("out")?);
            for (place, output) in outputs.iter().enumerate() {
                let key = if place == 0 { "out".to_owned() } else { format!("out.{place}") };
                if place > 0 && !tensors.has(&key) {
                    continue;
                }
                let want = tensors.get(&key)?;
                compare(&key, output, &want, Kind::F32, tolerance(&case, &want, largest))?;
            }
            match tensors.has(&format!("out.{}", outputs.len().max(1))) && case.multi_output {
                true => Err(Stop::fail("an output was not computed")),
                false => Ok(()),
            }
        },
    )
}

/// Four times the error that PyTorch's own f32 has on this case, or a few roundings of the largest
/// magnitude in the record where PyTorch happens to be exact.
///
/// Where PyTorch's f32 breaks down (a layer norm around a large mean, say) its error allows nothing: ours
/// counts as at most a thousandth of the magnitude.
///
/// The values of an elementary function may span all of f32, so there a bound on the whole says nothing
/// about the small ones: each value is held to a few roundings of itself. The GELU and erf, which are
/// differences, may also miss by PyTorch's error or a rounding of 1.
fn tolerance(case: &Case, want: &Value, largest: f64) -> Tolerance {
    const ROUNDING: f64 = 1.0 / (1u64 << 24) as f64;
    let own = number(&case.f32_err).filter(|error| error.is_finite()).unwrap_or(0.0);
    let smallest = f64::from(f32::from_bits(1));
    match case.op.trim_start_matches("nn.functional.") {
        "exp" | "log" | "relu" | "sigmoid" | "tanh" | "silu" | "embedding" => {
            Tolerance { absolute: smallest, relative: 8.0 * ROUNDING }
        }
        "gelu" | "erf" => {
            Tolerance { absolute: f64::max(4.0 * own, ROUNDING), relative: 8.0 * ROUNDING }
        }
        _ => {
            let magnitude = magnitude(want);
            // The error was taken of the first output; a smaller one, as attention weights are beside
            // their result, gets its share.
            let share = if largest > magnitude { magnitude / largest } else { 1.0 };
            let own = f64::min(4.0 * own * share, magnitude / 1024.0);
            Tolerance { absolute: f64::max(own, 8.0 * ROUNDING * magnitude), relative: 0.0 }
        }
    }
}

/// Names of an operator's parameters in order, as PyTorch documents them.
fn parameters(op: &str) -> &'static [&'static str] {
    match op.trim_start_matches("nn.functional.").trim_start_matches("special.") {
        "addmm" | "addmv" | "baddbmm" | "addbmm" => &["c", "a", "b"],
        "mm" | "bmm" | "matmul" | "mv" | "dot" | "inner" => &["a", "b"],
        "linear" => &["x", "weight", "bias"],
        "softmax" | "log_softmax" | "softmin" => &["x", "dim"],
        "logsumexp" => &["x", "dim", "keepdim"],
        "gelu" => &["x", "approximate"],
        "layer_norm" => &["x", "normalized_shape", "weight", "bias", "eps"],
        "rms_norm" => &["x", "normalized_shape", "weight", "eps"],
        "group_norm" => &["x", "num_groups", "weight", "bias", "eps"],
        "embedding" => &["ids", "table", "padding_idx", "max_norm", "norm_type"],
        "scaled_dot_product_attention" => {
            &["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]
        }
        "multi_head_attention_forward" => &[
            "query",
            "key",
            "value",
            "embed_dim_to_check",
            "num_heads",
            "in_proj_weight",
            "in_proj_bias",
            "bias_k",
            "bias_v",
            "add_zero_attn",
            "dropout_p",
            "out_proj_weight",
            "out_proj_bias",
            "training",
            "key_padding_mask",
            "need_weights",
            "attn_mask",
            "use_separate_proj_weight",
            "q_proj_weight",
            "k_proj_weight",
            "v_proj_weight",
            "static_k",
            "static_v",
            "average_attn_weights",
            "is_causal",
        ],
        _ => &["x"],
    }
}

/// The arguments of a call by name.
struct Call<'a> {
    arguments: BTreeMap<String, &'a Json>,
    tensors: &'a Tensors,
}

impl<'a> Call<'a> {
    fn bind(case: &'a Case, tensors: &'a Tensors) -> Result<Call<'a>, Stop> {
        let names = parameters(&case.op);
        let mut arguments = BTreeMap::new();
        for (place, json) in case.args.iter().enumerate() {
            let name = names.get(place).map_or_else(|| format!("#{place}"), |&n| n.to_owned());
            arguments.insert(name, json);
        }
        for (name, json) in &case.kwargs {
            // `input` is what keyword calls name the first argument.
            let name = if name == "input" { names[0].to_owned() } else { name.clone() };
            arguments.insert(name, json);
        }
        Ok(Call { arguments, tensors })
    }

    /// An argument that is given and not None.
    fn value(&self, name: &str) -> Option<&Json> {
        self.arguments.get(name)?.get("value").filter(|json| !json.is_null())
    }

    fn optional_tensor(&self, name: &str) -> Result<Option<Value>, Stop> {
        let argument = self.arguments.get(name).filter(|json| json.get("tensor").is_some());
        let Some(argument) = argument else { return Ok(None) };
        let text = |field: &str| argument.get(field).and_then(Json::as_str).unwrap_or("");
        Ok(Some(self.tensors.get(text("tensor"))?.stated(Kind::parse(text("dtype"))?)))
    }

    fn optional(&self, name: &str) -> Result<Option<Array<f32>>, Stop> {
        match (self.optional_tensor(name)?, self.value(name).and_then(number)) {
            (Some(tensor), _) => tensor.floats().map(Some),
            // A plain number stands for a scalar tensor.
            (None, Some(x)) => Ok(Some(Array::scalar(x as f32))),
            (None, None) => Ok(None),
        }
    }

    fn tensor(&self, name: &str) -> Result<Array<f32>, Stop> {
        self.optional(name)?.ok_or_else(|| Stop::fail(format!("argument {name} is missing")))
    }

    fn number(&self, name: &str, default: f64) -> Result<f64, Stop> {
        let wrong = || Stop::fail(format!("argument {name} is no number"));
        self.value(name).map_or(Ok(default), |json| number(json).ok_or_else(wrong))
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool, Stop> {
        Ok(self.number(name, f64::from(u8::from(default)))? != 0.0)
    }

    /// One or several integers.
    fn ints(&self, name: &str) -> Option<Vec<i64>> {
        match self.value(name)? {
            Json::Array(items) => items.iter().map(Json::as_i64).collect(),
            one => Some(vec![one.as_i64()?]),
        }
    }

    /// A computation type other than f32 is refused unless it is the wider one, in which the record of
    /// every case is taken.
    fn claimed_type(&self) -> Result<(), Stop> {
        match self.value("dtype").and_then(Json::as_str) {
            None | Some("torch.float32" | "torch.float64" | "float32" | "float64") => Ok(()),
            Some(other) => Err(Stop::skip(format!("not claimed: results of type {other}"))),
        }
    }
}

/// The reason why an operator is skipped whatever its arguments are.
fn unclaimed(op: &str) -> Option<Stop> {
    let why = match op {
        "glu" => "later: decoders",
        "cross_entropy" | "nll_loss" | "kl_div" | "mse_loss" | "dropout" => "later: training",
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

fn operator(op: &str, call: &Call<'_>, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
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
        "scaled_dot_product_attention" => return scaled_dot_product_attention(call, lane),
        "multi_head_attention_forward" => return multi_head_attention(call, lane),
        other => return Err(Stop::skip(format!("not claimed: operator {other}"))),
    };
    Ok(vec![one.into()])
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

/// A mask as it is given, of truth values or of numbers to add, or none.
type EitherMask = (Option<Array<bool>>, Option<Array<f32>>);

fn mask(call: &Call<'_>, name: &str) -> Result<EitherMask, Stop> {
    match call.optional_tensor(name)? {
        None => Ok((None, None)),
        Some(Value::Bool(mask)) => Ok((Some(mask), None)),
        Some(mask) => Ok((None, Some(mask.floats()?))),
    }
}

/// softmax(Q·Kᵀ/√d_k + mask)·V over the last two dimensions; those before are heads (the third from the
/// end, grouped when asked for) and batch, and broadcast.
fn scaled_dot_product_attention(call: &Call<'_>, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
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
    let problem = Problem {
        q: arrange(&q, heads, t, d_k),
        k: arrange(&k, kv_heads, s, d_k),
        v: arrange(&v, kv_heads, s, d_v),
        scale,
        visible,
        bias,
        lengths: None,
        // Aligned at the start.
        diagonals: causal.then(|| vec![0; batch]),
    };
    // A head dimension of 1 that was only assumed is dropped again.
    let shape = match rank {
        2 if outer.is_empty() && heads == 1 => vec![t],
        _ => [&outer[..], &[heads, t]].concat(),
    };
    let shape_of = |width| [&shape[..], &[width]].concat();
    let blind = Some(problem.blind().reshape(&shape_of(1)));
    Ok(vec![Output { value: problem.run(lane).reshape(&shape_of(d_v)), blind }])
}

/// `torch.nn.functional.multi_head_attention_forward`: projections, attention, output projection, and the
/// attention weights, averaged over the heads or not.
///
/// Sequences stand first: length × batch × width, or length × width.
fn multi_head_attention(call: &Call<'_>, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
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

    // Three projections, from one matrix of 3·d_model rows or from three of their own.
    let separate = call.flag("use_separate_proj_weight", false)?;
    let all_biases = call.optional("in_proj_bias")?;
    let mut projected = Vec::new();
    for (i, (x, name)) in inputs.iter().zip(["q", "k", "v"]).enumerate() {
        let weight = match separate {
            true => call.tensor(&format!("{name}_proj_weight"))?,
            false => call.tensor("in_proj_weight")?.slice(0, i * d_model, d_model),
        };
        let bias = all_biases.as_ref().map(|biases| biases.slice(0, i * d_model, d_model));
        let &[_, rows, width] = x.shape() else { unreachable!() };
        let x = x.clone().reshape(&[batch * rows, width]);
        let weight = Operand { matrix: &weight, transposed: true };
        let y = lane.gemm_with(Operand::from(&x), weight, bias.as_ref(), 1.0, 1.0);
        projected.push(y.reshape(&[batch, rows, d_model]));
    }
    let [q, mut k, mut v] = <[Array<f32>; 3]>::try_from(projected).unwrap();
    let given_keys = k.shape()[1];

    // One more key and value that are learned, and one of zeros. Masks do not hide them.
    let mut more = Vec::new();
    if let (Some(bias_k), Some(bias_v)) = (call.optional("bias_k")?, call.optional("bias_v")?) {
        more.push((bias_k, bias_v));
    }
    if call.flag("add_zero_attn", false)? {
        more.push((Array::full(&[d_model], 0.0), Array::full(&[d_model], 0.0)));
    }
    for (key, value) in &more {
        let row =
            |x: &Array<f32>| x.clone().reshape(&[1, 1, d_model]).broadcast(&[batch, 1, d_model]);
        k = k.concat(&row(key), 1);
        v = v.concat(&row(value), 1);
    }
    let s = k.shape()[1];

    // attn_mask is t × s or (batch · heads) × t × s; in both masks `true` hides.
    let (hidden, added) = mask(call, "attn_mask")?;
    let (hidden_keys, added_keys) = mask(call, "key_padding_mask")?;
    fn of_heads<T: Copy>(m: Array<T>, batch: usize, heads: usize) -> Array<T> {
        match *m.shape() {
            [n, t, s] if n == batch * heads => m.reshape(&[batch, heads, t, s]),
            _ => m.with_rank(4),
        }
    }
    fn of_keys<T: Copy>(m: Array<T>, batch: usize) -> Array<T> {
        let s = m.len() / batch.max(1);
        m.reshape(&[batch, 1, 1, s])
    }
    /// Columns for the keys that were added.
    fn longer<T: Copy>(m: &Array<T>, count: usize, seen: T) -> Array<T> {
        let mut shape = m.shape().to_vec();
        shape[3] = count;
        m.concat(&Array::full(&shape, seen), 3)
    }
    let extra = s - given_keys;
    let seen = |m: Array<bool>| longer(&m.map(|hidden| !hidden), extra, true);
    let sum = |m: Array<f32>| longer(&m, extra, 0.0);
    let visible = hidden.map(|m| seen(of_heads(m, batch, heads)));
    let visible_keys = hidden_keys.map(|m| seen(of_keys(m, batch)));
    let bias = added.map(|m| sum(of_heads(m, batch, heads)));
    let bias_keys = added_keys.map(|m| sum(of_keys(m, batch)));
    let full = [batch, heads, t, s];
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

    let with_heads = |x: &Array<f32>| {
        let rows = x.shape()[1];
        x.clone().reshape(&[batch, rows, heads, d_k]).permute(&[0, 2, 1, 3])
    };
    let problem = Problem {
        q: with_heads(&q),
        k: with_heads(&k),
        v: with_heads(&v),
        scale: 1.0 / (d_k as f64).sqrt(),
        visible,
        bias,
        lengths: None,
        diagonals: None,
    };
    let heads_out = problem.run(lane).permute(&[2, 0, 1, 3]).reshape(&[t * batch, d_model]);
    let weight = call.tensor("out_proj_weight")?;
    let weight = Operand { matrix: &weight, transposed: true };
    let bias = call.optional("out_proj_bias")?;
    let out = lane.gemm_with(Operand::from(&heads_out), weight, bias.as_ref(), 1.0, 1.0);
    let width = out.shape()[1];

    // In PyTorch a query without keys is NaN, and through the output projection so is its whole row.
    let blind = problem.blind().reshape(&[batch, heads, t]);
    let any_head = |b: usize, i: usize| (0..heads).any(|h| blind.data()[(b * heads + h) * t + i]);
    let rows: Vec<bool> = (0..t * batch).map(|row| any_head(row % batch, row / batch)).collect();
    let shape = |width| if batched { vec![t, batch, width] } else { vec![t, width] };
    let out = Output {
        value: out.reshape(&shape(width)),
        blind: Some(Array::new(&shape(1), rows.clone())),
    };
    if !call.flag("need_weights", true)? {
        return Ok(vec![out]);
    }
    let weights = if call.flag("average_attn_weights", true)? {
        let by_batch: Vec<bool> = (0..batch * t).map(|row| any_head(row / t, row % t)).collect();
        let shape = |s| if batched { vec![batch, t, s] } else { vec![t, s] };
        let mean = problem.mean_weights(lane).reshape(&shape(s));
        Output { value: mean, blind: Some(Array::new(&shape(1), by_batch)) }
    } else {
        let shape = |s| if batched { vec![batch, heads, t, s] } else { vec![heads, t, s] };
        let blind = Some(blind.reshape(&shape(1)));
        Output { value: problem.weights(lane).reshape(&shape(s)), blind }
    };
    Ok(vec![out, weights])
}
