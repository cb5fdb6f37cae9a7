//! Tensors by name, compared first and read then.
//!
//! A family's `build` runs twice over the same names. The first [`Reader`] surveys: it compares what is asked for with the
//! header, and finds every problem before anything of the weights' size is allocated. The second one reads
//! tensor by tensor through one staging buffer and packs as it reads, so memory peaks near its final
//! size, one tensor above it where a file has its matrices the other way round.

use crate::config::{NormKind, printable};
use crate::embedding::Words;
use crate::error::{Error, Problems, Result};
use crate::linear::Linear;
use crate::sublayer::Norm;
use crate::weights::{Checkpoint, Tensor, is_float};
use headrow_kernels::{Cpu, Mat, PackedB};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Bytes read at a time.
const STAGING: usize = 256 << 10;

/// The tensors of a checkpoint under their canonical names.
pub(crate) struct Reader<'a> {
    checkpoint: &'a Checkpoint<'a>,
    tensors: BTreeMap<String, &'a Tensor>,
    cpu: Cpu,
    mode: Mode,
}

enum Mode {
    /// There is no file; what is asked for is listed.
    List(Vec<(String, Vec<usize>)>),
    /// Nothing is read; what is asked for is compared and remembered.
    Survey { wanted: BTreeSet<String>, problems: Problems },
    /// All was found in order. `bytes` holds data as it is in the file, `rows` a block of it, widened.
    Load { bytes: Vec<u8>, rows: Vec<f32> },
}

/// Rows of one tensor that make a linear map, or a part of one.
pub(crate) struct Part {
    weight: String,
    bias: Option<String>,
    /// Of the weight: outputs first, or inputs first.
    shape: Vec<usize>,
    inputs_first: bool,
    /// Which outputs, in this order.
    outputs: Vec<Range<usize>>,
    /// Places that a convolution's window has, which lie innermost in the file and are to come outermost.
    taps: usize,
}

impl Part {
    /// `name.weight`, outputs × inputs, and `name.bias`.
    pub(crate) fn new(name: impl AsRef<str>, outputs: usize, inputs: usize) -> Part {
        let name = name.as_ref();
        Part {
            weight: format!("{name}.weight"),
            bias: Some(format!("{name}.bias")),
            shape: vec![outputs, inputs],
            inputs_first: false,
            outputs: std::iter::once(0..outputs).collect(),
            taps: 1,
        }
    }

    /// A convolution over `taps` places of `channels` features, outputs × channels × taps in the file, as a linear map of
    /// the places' features side by side.
    pub(crate) fn convolution(
        name: impl AsRef<str>,
        outputs: usize,
        channels: usize,
        taps: usize,
    ) -> Part {
        let part = Part::new(name, outputs, channels * taps).shaped(&[outputs, channels, taps]);
        Part { taps, ..part }
    }

    /// The same with other names.
    pub(crate) fn named(mut self, weight: String, bias: Option<String>) -> Part {
        (self.weight, self.bias) = (weight, bias);
        self
    }

    /// The same, with a bias or without.
    pub(crate) fn with_bias(mut self, bias: bool) -> Part {
        self.bias = self.bias.filter(|_| bias);
        self
    }

    /// The same of a file that has inputs × outputs.
    pub(crate) fn inputs_first(mut self) -> Part {
        self.shape.reverse();
        self.inputs_first = true;
        self
    }

    /// The same where the file has several dimensions for the inputs.
    pub(crate) fn shaped(mut self, shape: &[usize]) -> Part {
        self.shape = shape.to_vec();
        self
    }

    /// Only these outputs, in this order.
    pub(crate) fn only(mut self, outputs: Vec<Range<usize>>) -> Part {
        self.outputs = outputs;
        self
    }

    fn inputs(&self) -> usize {
        if self.inputs_first { self.shape[0] } else { self.shape[1..].iter().product() }
    }

    fn all_outputs(&self) -> usize {
        if self.inputs_first { self.shape[1] } else { self.shape[0] }
    }

    /// How many outputs it gives.
    fn count(&self) -> usize {
        self.outputs.iter().map(Range::len).sum()
    }
}

impl<'a> Reader<'a> {
    /// Renames every tensor by `canonical`; reads nothing yet.
    pub(crate) fn survey(
        checkpoint: &'a Checkpoint<'a>,
        cpu: Cpu,
        canonical: fn(&str) -> String,
    ) -> Reader<'a> {
        let mut problems = Problems::default();
        let mut tensors = BTreeMap::new();
        for (name, tensor) in &checkpoint.tensors {
            if tensors.insert(canonical(name), tensor).is_some() {
                problems.add(|| format!("{} is there under two names", printable(name)));
            }
        }
        let mode = Mode::Survey { wanted: BTreeSet::new(), problems };
        Reader { checkpoint, tensors, cpu, mode }
    }

    /// Lists what is asked for, without a file.
    pub(crate) fn list(nothing: &'a Checkpoint<'a>, canonical: fn(&str) -> String) -> Reader<'a> {
        let survey = Reader::survey(nothing, Cpu::detect(), canonical);
        Reader { mode: Mode::List(Vec::new()), ..survey }
    }

    /// What was asked for, in this order.
    pub(crate) fn listed(self) -> Vec<(String, Vec<usize>)> {
        match self.mode {
            Mode::List(tensors) => tensors,
            _ => Vec::new(),
        }
    }

    /// A reader that loads, when all tensors that were asked for are as they should be, and the others are
    /// `harmless`.
    pub(crate) fn finish(self, harmless: impl Fn(&str) -> bool) -> Result<Reader<'a>> {
        let Reader { checkpoint, tensors, cpu, mode } = self;
        let Mode::Survey { wanted, mut problems } = mode else {
            unreachable!("only a survey is finished")
        };
        for name in tensors.keys().filter(|name| !wanted.contains(*name) && !harmless(name)) {
            problems.add(|| format!("{} is unexpected", printable(name)));
        }
        if problems.count() > 0 {
            return Err(Error::Weights { place: checkpoint.place.clone(), problems });
        }
        let mode = Mode::Load { bytes: vec![0; STAGING], rows: Vec::new() };
        Ok(Reader { checkpoint, tensors, cpu, mode })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Whether the tensor is there, or `otherwise` where there is no file to look at.
    pub(crate) fn finds(&self, name: &str, otherwise: bool) -> bool {
        if matches!(self.mode, Mode::List(_)) { otherwise } else { self.has(name) }
    }

    /// Whether there is a file, and the tensor is not in it.
    pub(crate) fn lacks(&self, name: &str) -> bool {
        !self.finds(name, true)
    }

    /// Whether any of a linear map's two tensors is there; then both must be.
    pub(crate) fn has_linear(&self, name: &str) -> bool {
        self.has(&format!("{name}.weight")) || self.has(&format!("{name}.bias"))
    }

    /// The shape of a tensor that sets a size by itself, such as a classifier's labels.
    pub(crate) fn shape(&self, name: &str) -> Option<&'a [usize]> {
        self.tensors.get(name).map(|tensor| tensor.shape.as_slice())
    }

    pub(crate) fn problem(&mut self, problem: impl FnOnce() -> String) {
        if let Mode::Survey { problems, .. } = &mut self.mode {
            problems.add(problem);
        }
    }

    /// How many layers to build: as many as the config has, and the file bears out. They are numbered
    /// behind `prefix` in names, as in `encoder.layer.11.`.
    pub(crate) fn layers(&mut self, prefix: &str, in_config: usize) -> usize {
        if matches!(self.mode, Mode::List(_)) {
            return in_config;
        }
        let numbers = self.tensors.keys().filter_map(|name| {
            let (number, _) = name.strip_prefix(prefix)?.split_once('.')?;
            number.parse::<u64>().ok()
        });
        let in_file = numbers.collect::<BTreeSet<u64>>().len();
        if in_file != in_config {
            self.problem(|| {
                format!("the config has {in_config} layers, the file {in_file} at {prefix}")
            });
        }
        in_config.min(in_file)
    }

    /// Whether the tensor is to be read now. A survey compares it with what is expected instead.
    fn open(&mut self, name: &str, shape: &[usize]) -> bool {
        let (wanted, problems) = match &mut self.mode {
            Mode::Survey { wanted, problems } => (wanted, problems),
            Mode::List(tensors) => {
                if !tensors.iter().any(|(known, _)| known == name) {
                    tensors.push((name.to_owned(), shape.to_vec()));
                }
                return false;
            }
            Mode::Load { .. } => return true,
        };
        match self.tensors.get(name) {
            None => problems.add(|| format!("{name} is missing")),
            Some(tensor) if tensor.shape != shape => problems.add(|| {
                let found = printable(&format!("{:?}", tensor.shape));
                format!("{name} has shape {found}, expected {shape:?}")
            }),
            Some(tensor) if !is_float(tensor.dtype) => problems
                .add(|| format!("{name} has type {}, expected F32, F16 or BF16", tensor.dtype)),
            Some(_) => {}
        }
        wanted.insert(name.to_owned());
        false
    }

    /// A tensor of this shape in row-major order; empty in a survey.
    pub(crate) fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        if !self.open(name, shape) {
            return Ok(Vec::new());
        }
        let Mode::Load { bytes, .. } = &mut self.mode else { unreachable!("just opened") };
        let tensor = self.tensors[name];
        let len = shape.iter().product();
        let mut values = Vec::new();
        if values.try_reserve_exact(len).is_err() {
            return Err(Error::OutOfMemory(name.to_owned()));
        }
        values.resize(len, 0.0);
        self.checkpoint.read(tensor, 0, &mut values, bytes)?;
        Ok(values)
    }

    /// `name.weight` and, but for RMSNorm, `name.bias`, which LayerNorms without β leave out.
    pub(crate) fn norm(
        &mut self,
        kind: NormKind,
        name: &str,
        features: usize,
        epsilon: f32,
        with_beta: bool,
    ) -> Result<Norm> {
        let gamma = self.tensor(&format!("{name}.weight"), &[features])?;
        let beta = match kind {
            NormKind::Layer if with_beta => {
                Some(self.tensor(&format!("{name}.bias"), &[features])?)
            }
            _ => None,
        };
        Ok(Norm { kind, gamma, beta, epsilon })
    }

    /// One linear map, or several of the same input side by side: \[W₁ W₂ …\], \[b₁ b₂ …\]. Where one part
    /// has a bias, the bias of the others is 0.
    pub(crate) fn linear(&mut self, parts: &[Part]) -> Result<Linear> {
        let mut bias = parts.iter().any(|part| part.bias.is_some()).then(Vec::new);
        for part in parts {
            let Some(bias) = &mut bias else { break };
            match &part.bias {
                Some(name) => {
                    let values = self.tensor(name, &[part.all_outputs()])?;
                    for range in &part.outputs {
                        bias.extend(values.get(range.clone()).unwrap_or_default());
                    }
                }
                None => bias.resize(bias.len() + part.count(), 0.0),
            }
        }
        Ok(Linear { weight: self.packed(parts)?, bias })
    }

    /// Packs the parts' weights side by side, as one right operand of inputs × Σ outputs.
    pub(crate) fn packed(&mut self, parts: &[Part]) -> Result<PackedB> {
        let mut all = true;
        for part in parts {
            all &= self.open(&part.weight, &part.shape);
        }
        if !all {
            return Ok(PackedB::zeroed(self.cpu, 0, 0));
        }
        let (k, n) = (parts[0].inputs(), parts.iter().map(Part::count).sum());
        let mut packed = PackedB::zeroed(self.cpu, k, n);
        let mut first = 0;
        for part in parts {
            let whole = match part.inputs_first {
                true => Some(self.tensor(&part.weight, &part.shape)?),
                false => None,
            };
            let tensor = self.tensors[&part.weight];
            let Mode::Load { bytes, rows } = &mut self.mode else { unreachable!("just opened") };
            let block = (STAGING / (4 * k.max(1))).max(1);
            for range in &part.outputs {
                for start in range.clone().step_by(block) {
                    let count = block.min(range.end - start);
                    rows.resize(count * k, 0.0);
                    match &whole {
                        Some(whole) => transpose(whole, part.all_outputs(), start, rows, k),
                        None => self.checkpoint.read(tensor, start * k, rows, bytes)?,
                    }
                    if part.taps > 1 {
                        rows.chunks_exact_mut(k).for_each(|row| taps_first(row, part.taps));
                    }
                    packed.set_columns(first, Mat::new(rows, count, k));
                    first += count;
                }
            }
        }
        Ok(packed)
    }

    /// A table of words: as rows to look up, or `packed`, when the read-out multiplies with it too.
    pub(crate) fn words(
        &mut self,
        name: &str,
        vocabulary: usize,
        width: usize,
        packed: bool,
    ) -> Result<Arc<Words>> {
        Ok(Arc::new(match packed {
            true => {
                let part = Part::new("", vocabulary, width).named(name.to_owned(), None);
                Words::Packed(self.packed(&[part])?)
            }
            false => Words::Rows(self.tensor(name, &[vocabulary, width])?),
        }))
    }
}

/// row\[tap, channel\] ← row\[channel, tap\].
fn taps_first(row: &mut [f32], taps: usize) {
    let channels = row.len() / taps;
    let from = row.to_vec();
    for (i, x) in row.iter_mut().enumerate() {
        *x = from[i % channels * taps + i / channels];
    }
}

/// rows\[i\] ← column `first + i` of a matrix with `columns` columns and k rows.
fn transpose(matrix: &[f32], columns: usize, first: usize, rows: &mut [f32], k: usize) {
    for (p, row) in matrix.chunks_exact(columns).enumerate() {
        for (i, &x) in row[first..first + rows.len() / k].iter().enumerate() {
            rows[i * k + p] = x;
        }
    }
}
