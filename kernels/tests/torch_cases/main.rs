//! PyTorch operator cases, run through the public kernels.
//!
//! `HEADROW_TORCH_CASES=DIR cargo test --release -p headrow-kernels --test torch_cases -- --nocapture`
//! prints `name ok|FAIL|skip (reason)` for each case of the folder and ends with
//! `N passed, N failed, N skipped`. Without the variable a bundled sample is run.
//!
//! A row of `index.jsonl` is one call: arguments in order and by keyword, each a tensor of the case's file
//! or a plain value. The record is the result of a run in f64, rounded to f32, and how far PyTorch's own
//! f32 was from it (`f32_err`). The file also holds gradients of Σ out_i·cos i, to which those of the backward
//! kernels are held where an operator has one.

mod attention;
mod attention_gradients;
#[path = "../conformance/mod.rs"]
mod conformance;
mod gradients;
mod operators;
mod product_gradients;

use conformance::array::Array;
use conformance::compare::{Tolerance, compare, magnitude};
use conformance::tensors::{Kind, Tensors, Value};
use conformance::{Lane, Output, Stop, number, on_every_lane, run_suite};
use gradients::gradients;
use headrow_kernels::{Cpu, Par};
use operators::operator;
use serde::Deserialize;
use serde_json::Value as Json;
use std::cell::RefCell;
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
            let sums = call.sums(&case.op)?;
            let overflow = sums.as_ref().map(|sums| sums.map(f32::is_infinite));
            for (place, output) in outputs.iter().enumerate() {
                let key = if place == 0 { "out".to_owned() } else { format!("out.{place}") };
                if place > 0 && !tensors.has(&key) {
                    continue;
                }
                let want = tensors.get(&key)?;
                let tolerance = tolerance(&case, sums.as_ref(), &want, largest);
                compare(&key, output, &want, Kind::F32, tolerance, overflow.as_ref())?;
            }
            match tensors.has(&format!("out.{}", outputs.len().max(1))) && case.multi_output {
                true => Err(Stop::fail("an output was not computed")),
                false => Ok(()),
            }
        },
    )?;
    backward(&case, &call, &tensors)
}

/// Recorded gradients that no kernel computes, by operator and name.
const UNCLAIMED: [(&str, &str); 4] = [
    ("exp", "grad.arg0"),
    ("tanh", "grad.arg0"),
    ("logsumexp", "grad.arg0"),
    ("cross_entropy", "grad.weight"),
];

/// Compares all gradients that are recorded.
fn backward(case: &Case, call: &Call<'_>, tensors: &Tensors) -> Result<(), Stop> {
    let out = tensors.get("out")?;
    let len = out.shape().iter().product::<usize>();
    let d = Array::new(out.shape(), (0..len).map(|i| libm::cos(i as f64) as f32).collect());
    let names: RefCell<Vec<&str>> = RefCell::default();
    let recorded = tensors.names().into_iter().filter(|name| name.starts_with("grad."));
    let missing = RefCell::new(recorded.collect::<Vec<_>>());
    let doubt = if case.op.contains("attention") { doubt(case, call, &d)? } else { Vec::new() };
    on_every_lane(
        |lane| {
            let (found, values) = gradients(&case.op, call, &d, lane)?.into_iter().unzip();
            names.replace(found);
            let values: Vec<Array<f32>> = values;
            Ok(values.into_iter().map(Output::from).collect())
        },
        |outputs| {
            for (name, output) in names.borrow().iter().zip(outputs) {
                let key = call.gradient_key(name)?;
                if !tensors.has(&key) {
                    continue;
                }
                let want = tensors.get(&key)?;
                let doubt: f64 = doubt.iter().filter(|(of, _)| of == name).map(|(_, x)| x).sum();
                let absolute = GRADIENTS * f64::max(magnitude(&want), 1.0) + doubt;
                let tolerance = Tolerance { absolute, relative: 0.0 };
                compare(&key, output, &want, Kind::F32, tolerance, None)?;
                missing.borrow_mut().retain(|name| *name != key);
            }
            Ok(())
        },
    )?;
    let op = case.op.trim_start_matches("nn.functional.").trim_start_matches("special.");
    let claimed = |name: &&String| !UNCLAIMED.contains(&(op, name.as_str()));
    match missing.borrow().iter().find(claimed) {
        Some(name) => Err(Stop::fail(format!("{name} was not computed"))),
        None => Ok(()),
    }
}

/// What f32 can know of each gradient of attention. The recorded cases have scores of many thousands: a weight is
/// known to a few digits only, and beside one of nearly 1 the others' gradients drown in its rounding. No magnitude
/// tells how many digits are left; the bound of the definition does for what attention itself computes, and for the
/// projections before it how far the gradient moves when a rounding is added to every number that goes in, a few
/// times over.
fn doubt(case: &Case, call: &Call<'_>, d: &Array<f32>) -> Result<Vec<(&'static str, f64)>, Stop> {
    let lane = Lane { cpu: Cpu::detect(), par: Par::SERIAL, packed: false };
    let mut doubt = attention_gradients::bounds(&case.op, call, d, lane)?;
    let still = gradients(&case.op, call, d, lane)?;
    let mut sway = vec![0.0; still.len()];
    for seed in 1..=TURNS {
        let moved = Call { arguments: call.arguments.clone(), tensors: call.tensors, seed };
        let moved = gradients(&case.op, &moved, d, lane)?;
        for (sway, ((_, a), (_, b))) in sway.iter_mut().zip(still.iter().zip(moved)) {
            let differences = a.data().iter().zip(b.data()).map(|(a, b)| f64::from((a - b).abs()));
            *sway = differences.filter(|x| x.is_finite()).fold(*sway, f64::max);
        }
    }
    doubt.extend(still.iter().zip(sway).map(|((name, _), sway)| (*name, SWAY * sway)));
    Ok(doubt)
}

/// How often inputs are moved, and how many times the largest change a gradient may miss by: roundings
/// happen all along the way, and not only at its beginning.
const TURNS: u64 = 4;
const SWAY: f64 = 8.0;

/// What a gradient may miss by, relative to the largest or to the largest cosine: they are sums of up to a thousand
/// terms that cancel, and no error of PyTorch's own is recorded for them.
const GRADIENTS: f64 = 1e-5;

/// Half a unit in the last place of 1: a rounding, relative.
const ROUNDING: f64 = 1.0 / (1u64 << 24) as f64;
/// The smallest f32: what a result near 0 may miss by.
const SMALLEST: f64 = f32::from_bits(1) as f64;

/// Eight times the error that PyTorch's own f32 has on this case: two runs in f32 that sum in different
/// orders err alike, but the largest of a few errors varies. Where PyTorch happens to be exact, a few
/// roundings of the largest magnitude count.
///
/// Where PyTorch's f32 breaks down (a layer norm around a large mean, say) its error allows nothing: ours
/// counts as at most a thousandth of the magnitude.
///
/// The values of an elementary function may span all of f32, so there a bound on the whole says nothing
/// about the small ones: each value is held to a few roundings of itself. Erf and the activations, which
/// vanish on one side, may also miss by PyTorch's error or a rounding of 1.
///
/// `sums` are those of [`Call::sums`]: sums that cancel still carry the roundings of their terms.
fn tolerance(case: &Case, sums: Option<&Array<f32>>, want: &Value, largest: f64) -> Tolerance {
    let own = number(&case.f32_err).filter(|error| error.is_finite()).unwrap_or(0.0);
    match case.op.trim_start_matches("nn.functional.") {
        "exp" | "log" | "relu" | "sigmoid" | "tanh" | "embedding" => {
            Tolerance { absolute: SMALLEST, relative: 8.0 * ROUNDING }
        }
        "gelu" | "silu" | "erf" => {
            Tolerance { absolute: f64::max(4.0 * own, ROUNDING), relative: 8.0 * ROUNDING }
        }
        _ => {
            let magnitude = magnitude(want);
            // The error was taken of the first output; a smaller one, as attention weights are beside
            // their result, gets its share.
            let share = if largest > magnitude { magnitude / largest } else { 1.0 };
            let own = f64::min(8.0 * own * share, magnitude / 1024.0);
            let sums = sums.into_iter().flat_map(Array::data).filter(|x| x.is_finite());
            let summed = 2.0 * ROUNDING * sums.fold(0.0, |max, &x| f64::max(max, x.into()));
            let few = f64::max(8.0 * ROUNDING * magnitude, summed) + 8.0 * SMALLEST;
            Tolerance { absolute: f64::max(own, few), relative: 0.0 }
        }
    }
}

/// Names of an operator's parameters in order, as PyTorch documents them.
fn parameters(op: &str) -> &'static [&'static str] {
    match op.trim_start_matches("nn.functional.").trim_start_matches("special.") {
        "addmm" | "addmv" | "baddbmm" | "addbmm" => &["c", "a", "b"],
        "mm" | "bmm" | "matmul" | "mv" | "dot" | "inner" => &["a", "b"],
        "linear" => &["x", "weight", "bias"],
        "softmax" | "log_softmax" | "softmin" | "glu" => &["x", "dim"],
        "logsumexp" => &["x", "dim", "keepdim"],
        "gelu" => &["x", "approximate"],
        "layer_norm" => &["x", "normalized_shape", "weight", "bias", "eps"],
        "rms_norm" => &["x", "normalized_shape", "weight", "eps"],
        "cross_entropy" => &[
            "x",
            "target",
            "weight",
            "size_average",
            "ignore_index",
            "reduce",
            "reduction",
            "label_smoothing",
        ],
        "nll_loss" => {
            &["x", "target", "weight", "size_average", "ignore_index", "reduce", "reduction"]
        }
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
    /// Of the roundings that are added to numbers; 0 for none.
    seed: u64,
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
        Ok(Call { arguments, tensors, seed: 0 })
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

    /// Where the file holds the gradient to an argument.
    fn gradient_key(&self, name: &str) -> Result<String, Stop> {
        let key = self.arguments.get(name).and_then(|json| json.get("tensor")?.as_str());
        let key =
            key.ok_or_else(|| Stop::fail(format!("a gradient to {name}, which is no tensor")))?;
        Ok(key.replacen("in.", "grad.", 1))
    }

    fn optional(&self, name: &str) -> Result<Option<Array<f32>>, Stop> {
        match (self.optional_tensor(name)?, self.value(name).and_then(number)) {
            (Some(tensor), _) => tensor.floats().map(|x| Some(self.moved(x))),
            // A plain number stands for a scalar tensor.
            (None, Some(x)) => Ok(Some(Array::scalar(x as f32))),
            (None, None) => Ok(None),
        }
    }

    /// Each number times 1 ± 2⁻²³, unless the seed is 0.
    fn moved(&self, mut x: Array<f32>) -> Array<f32> {
        if self.seed > 0 {
            for (i, x) in x.data_mut().iter_mut().enumerate() {
                let hash = (i as u64 + self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                let up = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 63 == 0;
                *x *= if up { 1.0 + f32::EPSILON } else { 1.0 - f32::EPSILON };
            }
        }
        x
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

    /// Of a matrix product |A|·|B|. An element is infinite where finite terms may leave f32 on their way,
    /// and nowhere else: with operands that are not finite, infinities say nothing and become NaN.
    fn sums(&self, op: &str) -> Result<Option<Array<f32>>, Stop> {
        let (a, b) = match op.trim_start_matches("nn.functional.") {
            "linear" => {
                let weight = self.tensor("weight")?;
                (self.tensor("x")?, if weight.rank() == 2 { weight.transposed() } else { weight })
            }
            _ if parameters(op).contains(&"b") => (self.tensor("a")?, self.tensor("b")?),
            _ => return Ok(None),
        };
        let finite = a.data().iter().chain(b.data()).all(|x| x.is_finite());
        let lane = Lane { cpu: Cpu::detect(), par: Par::SERIAL, packed: false };
        let sums = lane.matmul(&a.map(f32::abs), &b.map(f32::abs))?;
        Ok(Some(sums.map(|x| if finite || x.is_finite() { x } else { f32::NAN })))
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
