//! Tensors by name, compared first and read then.
//!
//! A family's `build` runs twice over the same names. The first [`Reader`] surveys: it compares what is asked for with the
//! header, and finds every problem before anything of the weights' size is allocated. The second one reads
//! tensor by tensor and packs as it reads, so memory peaks near its final size, one linear map above it where a file has its
//! matrices the other way round.
//!
//! A third one only plans: it gives layers without weights, which know where in a checkpoint theirs are.

mod listing;
mod loader;
mod part;

pub(crate) use part::Part;

use crate::config::{NormKind, printable};
use crate::embedding::Words;
use crate::error::{Error, Problems, Result};
use crate::linear::Linear;
use crate::origin::{Initial, Origin, Piece, Planned, Values};
use crate::sublayer::Norm;
use crate::weights::{Checkpoint, Tensor, is_float};
use headrow_kernels::{Cpu, PackedB, Par};
use listing::Listing;
use loader::Loader;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// The tensors of a checkpoint under their canonical names.
pub(crate) struct Reader<'a> {
    checkpoint: &'a Checkpoint<'a>,
    tensors: BTreeMap<String, &'a Tensor>,
    cpu: Cpu,
    mode: Mode<'a>,
}

enum Mode<'a> {
    /// Nothing is read; what is asked for is listed, and the layers learn where it stands in the list.
    Plan(Listing),
    /// Nothing is read; what is asked for is compared and remembered.
    Survey { wanted: BTreeSet<String>, problems: Problems },
    /// All was found in order.
    Load(Loader<'a>),
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

    /// Lists what is asked for: of what is in the checkpoint, or, where that has nothing, of what the config says.
    pub(crate) fn plan(
        checkpoint: &'a Checkpoint<'a>,
        canonical: fn(&str) -> String,
    ) -> Reader<'a> {
        let survey = Reader::survey(checkpoint, Cpu::detect(), canonical);
        Reader { mode: Mode::Plan(Listing::default()), ..survey }
    }

    /// What was asked for, in this order.
    pub(crate) fn planned(self) -> Vec<Planned> {
        match self.mode {
            Mode::Plan(listing) => listing.tensors,
            _ => Vec::new(),
        }
    }

    /// Whether there is no file to look at.
    pub(crate) fn has_no_file(&self) -> bool {
        matches!(self.mode, Mode::Plan(_)) && self.tensors.is_empty()
    }

    /// A reader that loads, when all tensors that were asked for are as they should be, and the others are
    /// `harmless`.
    pub(crate) fn finish(
        self,
        par: Par<'a>,
        harmless: impl Fn(&str) -> bool,
    ) -> Result<Reader<'a>> {
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
        let mode = Mode::Load(Loader::new(checkpoint, par));
        Ok(Reader { checkpoint, tensors, cpu, mode })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Whether the tensor is there, or `otherwise` where there is no file to look at.
    pub(crate) fn finds(&self, name: &str, otherwise: bool) -> bool {
        if self.has_no_file() { otherwise } else { self.has(name) }
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
        if self.has_no_file() {
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
            Mode::Plan(_) => return false,
            Mode::Load(_) => return true,
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

    /// The tensor's place in the plan; `None` unless planning.
    fn place(&mut self, name: &str, shape: &[usize], initial: Initial) -> Option<Range<usize>> {
        match &mut self.mode {
            Mode::Plan(listing) => Some(listing.place(name, shape, initial)),
            Mode::Survey { .. } | Mode::Load(_) => None,
        }
    }

    /// A tensor of this shape in row-major order; without numbers in a survey and in a plan.
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        initial: Initial,
    ) -> Result<Values> {
        if let Some(place) = self.place(name, shape, initial) {
            return Ok(Values::planned(place));
        }
        self.read(name, shape).map(Values::from)
    }

    /// A tensor that is no parameter: training leaves it as it is.
    pub(crate) fn fixed(&mut self, name: &str, shape: &[usize]) -> Result<Values> {
        self.tensor(name, shape, Initial::Zeros).map(Values::fixed)
    }

    /// The numbers of a tensor; none unless loading.
    fn read(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        if !self.open(name, shape) {
            return Ok(Vec::new());
        }
        let Mode::Load(loader) = &mut self.mode else { unreachable!("just opened") };
        loader.values(name, self.tensors[name], shape.iter().product())
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
        let gamma = self.tensor(&format!("{name}.weight"), &[features], Initial::Ones)?;
        let beta = match kind {
            NormKind::Layer if with_beta => {
                Some(self.tensor(&format!("{name}.bias"), &[features], Initial::Zeros)?)
            }
            _ => None,
        };
        Ok(Norm { kind, gamma, beta, epsilon })
    }

    /// One linear map, or several of the same input side by side: \[W₁ W₂ …\], \[b₁ b₂ …\]. Where one part
    /// has a bias, the bias of the others is 0.
    pub(crate) fn linear(&mut self, parts: &[Part]) -> Result<Linear> {
        if let Mode::Plan(_) = self.mode {
            let origin = self.origin(parts);
            return Ok(Linear { origin, ..Linear::new(self.packed(&[])?, None) });
        }
        let mut bias = parts.iter().any(|part| part.bias.is_some()).then(Vec::new);
        for part in parts {
            let Some(bias) = &mut bias else { break };
            match &part.bias {
                Some(name) => {
                    let values = self.read(name, &[part.all_outputs()])?;
                    for range in &part.outputs {
                        bias.extend(values.get(range.clone()).unwrap_or_default());
                    }
                }
                None => bias.resize(bias.len() + part.count(), 0.0),
            }
        }
        Ok(Linear::new(self.packed(parts)?, bias))
    }

    /// Where a planned map has its numbers.
    fn origin(&mut self, parts: &[Part]) -> Origin {
        let biases = parts.iter().map(|part| {
            let name = part.bias.as_ref()?;
            self.place(name, &[part.all_outputs()], Initial::Zeros)
        });
        let biases = biases.collect::<Vec<_>>();
        let pieces = parts.iter().zip(biases).map(|(part, bias)| {
            let initial = Initial::Maps(part.map_rows());
            let weight = self.place(&part.weight, &part.shape, initial).unwrap_or_default();
            let (all, outputs) = (part.all_outputs(), part.outputs.clone());
            Piece { weight, bias, inputs_first: part.inputs_first, all, outputs }
        });
        let pieces = pieces.collect();
        let outputs = parts.iter().map(Part::count).sum();
        Origin { inputs: parts[0].inputs(), outputs, pieces }
    }

    /// Packs the parts' weights side by side, as one right operand of inputs × Σ outputs.
    fn packed(&mut self, parts: &[Part]) -> Result<PackedB> {
        let mut all = !parts.is_empty();
        for part in parts {
            all &= self.open(&part.weight, &part.shape);
        }
        if !all {
            return Ok(PackedB::zeroed(self.cpu, 0, 0));
        }
        let Mode::Load(loader) = &mut self.mode else { unreachable!("just opened") };
        let tensors = parts.iter().map(|part| self.tensors[&part.weight]);
        loader.packed(self.cpu, &parts.iter().zip(tensors).collect::<Vec<_>>())
    }

    /// A table of words: as rows to look up, or `packed`, when the read-out multiplies with it too.
    pub(crate) fn words(
        &mut self,
        name: &str,
        vocabulary: usize,
        width: usize,
        packed: bool,
    ) -> Result<Arc<Words>> {
        self.table(name, [vocabulary, width], packed, Initial::Table(width))
    }

    /// The read-out's matrix, vocabulary × width, where no embedding has it.
    pub(crate) fn read_out_words(
        &mut self,
        name: &str,
        vocabulary: usize,
        width: usize,
    ) -> Result<Arc<Words>> {
        let maps = Part::new("", vocabulary, width).map_rows();
        self.table(name, [vocabulary, width], true, Initial::Maps(maps))
    }

    fn table(
        &mut self,
        name: &str,
        shape: [usize; 2],
        packed: bool,
        initial: Initial,
    ) -> Result<Arc<Words>> {
        let planning = matches!(self.mode, Mode::Plan(_));
        Ok(Arc::new(match packed && !planning {
            true => {
                let part = Part::new("", shape[0], shape[1]).named(name.to_owned(), None);
                Words::Packed(self.packed(&[part])?)
            }
            false => Words::Rows(self.tensor(name, &shape, initial)?),
        }))
    }
}
