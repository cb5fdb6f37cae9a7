//! ONNX operator cases, run through the public kernels.
//!
//! `HEADROW_ONNX_CASES=DIR cargo test --release -p headrow-kernels --test onnx_cases -- --nocapture`
//! prints `name ok|FAIL|skip (reason)` for each case of the folder and ends with
//! `N passed, N failed, N skipped`. Without the variable a bundled sample is run.
//!
//! A row of `index.jsonl` is one operator with its attributes and the names of its inputs and outputs, or
//! a small graph of such nodes. Definitions: the operator pages of ONNX, each in the version that the
//! row's opset selects.

mod attention;
#[path = "../conformance/mod.rs"]
mod conformance;
mod operators;
mod training;

use conformance::array::Array;
use conformance::compare::{Tolerance, compare};
use conformance::tensors::{Kind, Tensors, Value};
use conformance::{Lane, Output, Stop, number, on_every_lane, run_suite};
use operators::{operator, unclaimed};
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
                    let kind = Kind::parse(&place.dtype)?;
                    compare(&place.name, output, &want, kind, tolerance, None)?;
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
                let want = tensors.get(&place.key)?;
                compare("the graph", output, &want, kind, tolerance, None)?;
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
