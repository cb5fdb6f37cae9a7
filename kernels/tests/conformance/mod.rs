//! Conformance: recorded operator cases of others, run through the public kernels.
//!
//! A folder of cases holds `index.jsonl`, one case per line, and a safetensors file per case. The two
//! suites (`onnx_cases`, `torch_cases`) differ in how a case is stated; what they share is here: reading,
//! running on every instruction set with one thread and with two, comparing, reporting.
//!
//! The harness moves numbers about (transposes, broadcasts, concatenations); every number that is
//! compared comes out of a kernel.
#![allow(dead_code)] // Each suite uses its part.

pub(crate) mod array;
pub(crate) mod attention;
pub(crate) mod compare;
pub(crate) mod einsum;
pub(crate) mod loss;
pub(crate) mod ops;
pub(crate) mod tensors;

use array::Array;
use headrow_kernels::{Cpu, Par, Team};
use serde_json::Value as Json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Why a case did not pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stop {
    /// Outside of what is claimed; the text says what and why.
    Skip(String),
    Fail(String),
}

impl Stop {
    pub(crate) fn skip(reason: impl Into<String>) -> Stop {
        Stop::Skip(reason.into())
    }

    pub(crate) fn fail(reason: impl Into<String>) -> Stop {
        Stop::Fail(reason.into())
    }
}

/// Dropout at work: what it drops depends on the generator, and a record on that of others.
pub(crate) fn training<T>() -> Result<T, Stop> {
    Err(Stop::skip("not claimed: what another random generator drops"))
}

/// One way to run the kernels. All ways owe the same bits.
#[derive(Clone, Copy)]
pub(crate) struct Lane<'a> {
    pub(crate) cpu: Cpu,
    pub(crate) par: Par<'a>,
    /// Right-hand matrices are packed before the product, as weights are.
    pub(crate) packed: bool,
}

/// What a case computes at one of its output places.
pub(crate) struct Output {
    pub(crate) value: Array<f32>,
    /// Elements that belong to a query without any visible key; the shape broadcasts to that of the value.
    pub(crate) blind: Option<Array<Blind>>,
}

/// What is owed where the record holds NaN because a query sees no key. The policies differ there: zeros, and
/// what follows from them, with us, NaN in references that divide 0 by 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Blind {
    /// The query sees keys: NaN is owed where NaN is recorded.
    No,
    /// Exactly this number.
    Exactly(f32),
    /// Some heads see keys and others do not, so that the record says nothing about the sum over them.
    InSomeHeads,
}

impl Blind {
    /// For the result of attention itself.
    pub(crate) fn zeros(blind: &Array<bool>) -> Array<Blind> {
        blind.map(|blind| if blind { Blind::Exactly(0.0) } else { Blind::No })
    }
}

impl From<Array<f32>> for Output {
    fn from(value: Array<f32>) -> Output {
        Output { value, blind: None }
    }
}

/// Runs `compute` on every instruction set of this machine, alone with plain operands and in a team of
/// two with packed ones. The first result goes to `check`, all others must equal it bit for bit.
pub(crate) fn on_every_lane(
    compute: impl Fn(Lane<'_>) -> Result<Vec<Output>, Stop>,
    check: impl Fn(&[Output]) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let mut first: Option<(String, Vec<Output>)> = None;
    let mut team = Team::new(2);
    for cpu in Cpu::all() {
        for threads in [1, 2] {
            let outputs = match threads {
                1 => compute(Lane { cpu, par: Par::SERIAL, packed: false })?,
                _ => team.open(|par| compute(Lane { cpu, par, packed: true }))?,
            };
            let name = format!("{} with {threads} thread(s)", cpu.isa());
            match &first {
                Some((other, expected)) => same_bits(expected, &outputs).map_err(|difference| {
                    Stop::fail(format!("{other} and {name} differ: {difference}"))
                })?,
                None => {
                    check(&outputs)?;
                    first = Some((name, outputs));
                }
            }
        }
    }
    Ok(())
}

fn same_bits(a: &[Output], b: &[Output]) -> Result<(), String> {
    for (place, (a, b)) in a.iter().zip(b).enumerate() {
        let pairs = a.value.data().iter().zip(b.value.data());
        for (i, (x, y)) in pairs.enumerate() {
            // Payloads of NaN are not promised.
            if x.to_bits() != y.to_bits() && !(x.is_nan() && y.is_nan()) {
                return Err(format!("output {place} element {i}: {x:e} and {y:e}"));
            }
        }
    }
    Ok(())
}

/// The index, as JSON values. Python writes NaN and Infinity bare, which JSON does not know: outside of
/// strings they become strings, and [`number`] reads them back.
pub(crate) fn parse_index(text: &str) -> Result<Vec<Json>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| {
            serde_json::from_str(&quote_bare_numbers(line))
                .map_err(|e| format!("index.jsonl, line {}: {e}", i + 1))
        })
        .collect()
}

fn quote_bare_numbers(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let (mut rest, mut inside) = (line, false);
    while let Some(c) = rest.chars().next() {
        let bare = ["NaN", "-Infinity", "Infinity"].into_iter().find(|w| rest.starts_with(w));
        let taken = match (inside, c, bare) {
            (true, '\\', _) => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (_, '"', _) => {
                inside = !inside;
                1
            }
            (false, _, Some(word)) => {
                out.extend(["\"", word, "\""]);
                rest = &rest[word.len()..];
                continue;
            }
            _ => c.len_utf8(),
        };
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out
}

/// A number, also one that Python wrote as NaN or Infinity.
pub(crate) fn number(json: &Json) -> Option<f64> {
    match json {
        Json::Bool(b) => Some(f64::from(u8::from(*b))),
        Json::String(s) => match s.trim_start_matches("float").trim_matches(['(', ')', '\'']) {
            "NaN" | "nan" => Some(f64::NAN),
            "Infinity" | "inf" => Some(f64::INFINITY),
            "-Infinity" | "-inf" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => json.as_f64(),
    }
}

/// A suite's command line. The target has no libtest around it, so that its output is the report alone:
/// it prints all of it with `--nocapture` and else, as libtest does, only what went wrong and the counts.
struct Arguments {
    verbose: bool,
    filters: Vec<String>,
}

impl Arguments {
    /// `None` when something other than running is asked for (`--list`).
    fn parse() -> Option<Arguments> {
        let mut arguments = Arguments { verbose: false, filters: Vec::new() };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--nocapture" | "--no-capture" | "--show-output" => arguments.verbose = true,
                "--list" | "--ignored" => return None,
                // Options of libtest that take a value.
                "--test-threads" | "--skip" | "--format" | "--color" | "--logfile" | "-Z" => {
                    words.next();
                }
                option if option.starts_with('-') => {}
                filter => arguments.filters.push(filter.to_owned()),
            }
        }
        Some(arguments)
    }
}

/// Where the cases are: the folder that the variable names, or the sample that is part of the sources.
fn folder(variable: &str, sample: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => {
            println!("{variable} is not set: running the bundled sample of cases");
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(sample)
        }
    }
}

/// The rows of a folder's index. A folder without cases is an error: a wrong path must not look like success.
pub(crate) fn read_index(folder: &Path) -> Result<Vec<Json>, String> {
    let index = folder.join("index.jsonl");
    let text = std::fs::read_to_string(&index).map_err(|e| format!("{}: {e}", index.display()))?;
    match parse_index(&text)? {
        rows if rows.is_empty() => Err(format!("{}: no case in it, 0 cases run", index.display())),
        rows => Ok(rows),
    }
}

/// Runs every case of a folder and reports: `name ok|FAIL|skip (reason)` each, then the counts.
pub(crate) fn run_suite(
    suite: &str,
    variable: &str,
    run: impl Fn(&Path, &Json) -> Result<(), Stop>,
) -> ExitCode {
    let Some(arguments) = Arguments::parse() else { return ExitCode::SUCCESS };
    let folder = folder(variable, suite);
    let cases = match read_index(&folder) {
        Ok(cases) => cases,
        Err(e) => {
            eprintln!("{suite}: {e}");
            return ExitCode::FAILURE;
        }
    };
    // A panic of a kernel is that case's failure; its message goes into the report.
    std::panic::set_hook(Box::new(|_| {}));
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for case in &cases {
        let name = case["name"].as_str().unwrap_or("(a case without a name)");
        let asked = |filter: &String| name.contains(filter.as_str()) || suite.contains(filter);
        if !arguments.filters.is_empty() && !arguments.filters.iter().any(asked) {
            continue;
        }
        match catch_unwind(AssertUnwindSafe(|| run(&folder, case))).unwrap_or_else(panicked) {
            Ok(()) => {
                passed += 1;
                if arguments.verbose {
                    println!("{name} ok");
                }
            }
            Err(Stop::Skip(reason)) => {
                skipped += 1;
                if arguments.verbose {
                    println!("{name} skip ({reason})");
                }
            }
            Err(Stop::Fail(reason)) => {
                failed += 1;
                println!("{name} FAIL ({})", reason.replace('\n', " "));
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> Result<(), Stop> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Err(Stop::fail(format!("panic: {text}")))
}
