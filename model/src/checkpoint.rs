//! From names in a file to the layers of this library.
//!
//! Opening goes in two steps. [`Inventory`] compares the header with what the config implies: every problem is found
//! before anything of the weights' size is allocated. [`Loader`] then reads tensor by tensor through one
//! staging buffer and packs as it reads, so memory peaks near its final size.

pub(crate) mod bert;

use crate::config::printable;
use crate::error::{Error, Problems, Result};
use crate::linear::Linear;
use crate::sublayer::Norm;
use crate::weights::{Checkpoint, Tensor, is_float};
use headrow_kernels::{Cpu, Mat, PackedB};
use std::collections::{BTreeMap, BTreeSet};

/// The tensors of a checkpoint under their names without a family's prefix, and what is wrong with them.
pub(crate) struct Inventory<'a> {
    checkpoint: &'a Checkpoint<'a>,
    tensors: BTreeMap<String, &'a Tensor>,
    wanted: BTreeSet<String>,
    problems: Problems,
}

impl<'a> Inventory<'a> {
    /// Renames every tensor by `canonical`.
    pub(crate) fn new(
        checkpoint: &'a Checkpoint<'a>,
        canonical: impl Fn(&str) -> String,
    ) -> Inventory<'a> {
        let mut problems = Problems::default();
        let mut tensors = BTreeMap::new();
        for (name, tensor) in &checkpoint.tensors {
            if tensors.insert(canonical(name), tensor).is_some() {
                problems.add(|| format!("{} is there under two names", printable(name)));
            }
        }
        Inventory { checkpoint, tensors, wanted: BTreeSet::new(), problems }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The shape of a tensor that sets a size by itself, such as a classifier's labels.
    pub(crate) fn shape(&self, name: &str) -> Option<&'a [usize]> {
        self.tensors.get(name).map(|tensor| tensor.shape.as_slice())
    }

    /// Distinct numbers that follow `prefix` in names, as in `encoder.layer.11.`.
    pub(crate) fn numbered(&self, prefix: &str) -> usize {
        let numbers = self.tensors.keys().filter_map(|name| {
            let (number, _) = name.strip_prefix(prefix)?.split_once('.')?;
            number.parse::<u64>().ok()
        });
        numbers.collect::<BTreeSet<u64>>().len()
    }

    pub(crate) fn problem(&mut self, problem: impl FnOnce() -> String) {
        self.problems.add(problem);
    }

    /// A tensor that must be there, in this shape, as floating-point numbers.
    pub(crate) fn want(&mut self, name: &str, shape: &[usize]) {
        match self.tensors.get(name) {
            None => self.problems.add(|| format!("{name} is missing")),
            Some(tensor) if tensor.shape != shape => self.problems.add(|| {
                let found = printable(&format!("{:?}", tensor.shape));
                format!("{name} has shape {found}, expected {shape:?}")
            }),
            Some(tensor) if !is_float(tensor.dtype) => self
                .problems
                .add(|| format!("{name} has type {}, expected F32, F16 or BF16", tensor.dtype)),
            Some(_) => {}
        }
        self.wanted.insert(name.to_owned());
    }

    /// `name.weight` (`output × input`) and `name.bias`.
    pub(crate) fn want_linear(&mut self, name: &str, output: usize, input: usize) {
        self.want(&format!("{name}.weight"), &[output, input]);
        self.want(&format!("{name}.bias"), &[output]);
    }

    /// γ and β as `name.weight` and `name.bias`.
    pub(crate) fn want_norm(&mut self, name: &str, features: usize) {
        self.want(&format!("{name}.weight"), &[features]);
        self.want(&format!("{name}.bias"), &[features]);
    }

    /// All tensors that were asked for are as they should be, and the others are `harmless`.
    pub(crate) fn finish(
        mut self,
        cpu: Cpu,
        harmless: impl Fn(&str) -> bool,
    ) -> Result<Loader<'a>> {
        for name in self.tensors.keys() {
            if !self.wanted.contains(name) && !harmless(name) {
                self.problems.add(|| format!("{} is unexpected", printable(name)));
            }
        }
        if self.problems.count() > 0 {
            let place = self.checkpoint.place.clone();
            return Err(Error::Weights { place, problems: self.problems });
        }
        let Inventory { checkpoint, tensors, .. } = self;
        Ok(Loader { checkpoint, tensors, cpu, bytes: vec![0; STAGING], rows: Vec::new() })
    }
}

/// Bytes read at a time.
const STAGING: usize = 256 << 10;

/// Reads tensors that an [`Inventory`] found in order.
pub(crate) struct Loader<'a> {
    checkpoint: &'a Checkpoint<'a>,
    tensors: BTreeMap<String, &'a Tensor>,
    cpu: Cpu,
    /// Data as it is in the file.
    bytes: Vec<u8>,
    /// A block of whole rows, widened.
    rows: Vec<f32>,
}

impl Loader<'_> {
    /// A tensor as it is, in row-major order.
    pub(crate) fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        let tensor = self.tensors[name];
        let len = tensor.shape.iter().product();
        let mut values = Vec::new();
        if values.try_reserve_exact(len).is_err() {
            return Err(Error::OutOfMemory(name.to_owned()));
        }
        values.resize(len, 0.0);
        self.checkpoint.read(tensor, 0, &mut values, &mut self.bytes)?;
        Ok(values)
    }

    /// γ and β.
    pub(crate) fn norm(&mut self, name: &str, epsilon: f32) -> Result<Norm> {
        let gamma = self.read(&format!("{name}.weight"))?;
        let beta = self.read(&format!("{name}.bias"))?;
        Ok(Norm { gamma, beta, epsilon })
    }

    /// One linear map, or several of the same input side by side: \[W₁ W₂ …\], \[b₁ b₂ …\].
    pub(crate) fn linear(&mut self, names: &[&str]) -> Result<Linear> {
        let mut bias = Vec::new();
        for name in names {
            bias.extend(self.read(&format!("{name}.bias"))?);
        }
        let weights: Vec<String> = names.iter().map(|name| format!("{name}.weight")).collect();
        Ok(Linear { weight: self.packed(&weights)?, bias })
    }

    /// Packs matrices of shape `out × k`, stacked, as one right operand of k × Σ out.
    pub(crate) fn packed(&mut self, names: &[String]) -> Result<PackedB> {
        let tensors: Vec<&Tensor> = names.iter().map(|name| self.tensors[name]).collect();
        let k = tensors[0].shape[1];
        let n = tensors.iter().map(|tensor| tensor.shape[0]).sum();
        let mut packed = PackedB::zeroed(self.cpu, k, n);
        let block = (STAGING / (4 * k)).max(1);
        let mut first = 0;
        for tensor in tensors {
            let rows = tensor.shape[0];
            for start in (0..rows).step_by(block) {
                let count = block.min(rows - start);
                self.rows.resize(count * k, 0.0);
                self.checkpoint.read(tensor, start * k, &mut self.rows, &mut self.bytes)?;
                packed.set_columns(first + start, Mat::new(&self.rows, count, k));
            }
            first += rows;
        }
        Ok(packed)
    }
}
