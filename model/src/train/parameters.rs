//! All numbers of a model in one vector.

use super::initialise::initialise;
use crate::checkpoint::{Plan, own_names, plan};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::origin::Planned;
use crate::weights::Checkpoint;
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// Bytes of a file that are read at a time.
const STAGING: usize = 256 << 10;

/// The parameters of a model: the tensors of its checkpoint, row-major, one behind the other.
///
/// Tensors that parts share are there once. Gradients are a vector of the same length and order.
///
/// ```
/// use headrow::train::Parameters;
/// use headrow::{Config, StackConfig};
///
/// let mut config = Config::general(16);
/// # let input = headrow::Input::Tokens(headrow::TokenInput::paper(50, 16));
/// config.decoder = Some(StackConfig::paper(input, 2, 16, 4, 32));
/// let parameters = Parameters::initialise(&config, 1)?;
/// assert_eq!(parameters.get("decoder.layers.0.attention_norm.weight"), Some(&[1.0; 16][..]));
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    config: Config,
    tensors: Vec<Planned>,
    /// What a file calls them.
    names: Vec<String>,
    values: Vec<f32>,
}

/// The type of the numbers in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precision {
    /// As they are.
    #[default]
    F32,
    /// Rounded to 8 bits of precision, of the same range.
    Bf16,
    /// Rounded to 11 bits of precision; beyond ±65504 they become ∞.
    F16,
}

impl Parameters {
    /// What training begins with: γ 1, β and biases 0, weights uniform in ±√(6/(inputs + outputs)) (Xavier), embeddings from
    /// N(0, 1/d). A tensor that has several maps is drawn map by map.
    ///
    /// The same seed gives the same numbers on every machine.
    ///
    /// # Errors
    /// When the config does not describe a model, or there is no memory.
    pub fn initialise(config: &Config, seed: u64) -> Result<Parameters> {
        let Plan { tensors, .. } = plan(config, &Checkpoint::nothing())?;
        let names = tensors.iter().map(|tensor| tensor.name.clone()).collect();
        let mut values = zeros(&tensors)?;
        for tensor in &tensors {
            initialise(tensor, seed, &mut values[tensor.place.clone()]);
        }
        Ok(Parameters { config: config.clone(), tensors, names, values })
    }

    /// Those of a folder with `config.json` and `model.safetensors` or its shards, of any family.
    ///
    /// # Errors
    /// As [`Model::from_dir`](crate::Model::from_dir).
    pub fn from_dir(folder: impl AsRef<Path>) -> Result<Parameters> {
        let folder = folder.as_ref();
        let config = Config::from_file(folder.join("config.json"))?;
        Parameters::read(&config, &Checkpoint::open(folder)?)
    }

    /// Those of a safetensors file in memory.
    ///
    /// # Errors
    /// As [`Model::from_bytes`](crate::Model::from_bytes).
    pub fn from_bytes(config: &Config, weights: &[u8]) -> Result<Parameters> {
        Parameters::read(config, &Checkpoint::from_bytes(weights)?)
    }

    fn read(config: &Config, checkpoint: &Checkpoint<'_>) -> Result<Parameters> {
        if checkpoint.tensors.is_empty() {
            return Err(Error::file(&checkpoint.place, "no tensors"));
        }
        let Plan { tensors, .. } = plan(config, checkpoint)?;
        let own = own_names(config.family, checkpoint);
        let names: Vec<String> = tensors.iter().map(|tensor| own[&tensor.name].clone()).collect();
        let values = read_values(checkpoint, &tensors, names.iter())?;
        Ok(Parameters { config: config.clone(), tensors, names, values })
    }

    /// What they are the parameters of.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All of them.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// All of them, to be changed.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Names, shapes and values of the tensors, in their order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        let named = self.names.iter().zip(&self.tensors);
        named.map(|(name, tensor)| {
            (name.as_str(), tensor.shape.as_slice(), &self.values[tensor.place.clone()])
        })
    }

    /// Where a tensor stands among the values, and its gradient among gradients. `name` is what the checkpoint calls it, with or
    /// without what the family puts before all names.
    pub fn place(&self, name: &str) -> Option<Range<usize>> {
        let mut named = self.names.iter().zip(&self.tensors);
        let found = named.find(|(own, tensor)| *own == name || tensor.name == name);
        found.map(|(_, tensor)| tensor.place.clone())
    }

    /// The numbers of a tensor, row-major; see [`Parameters::place`].
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.place(name).map(|place| &self.values[place])
    }

    /// A safetensors file of all tensors under the names that they were read with.
    ///
    /// Rounds to the nearest, ties to even.
    pub fn to_safetensors(&self, precision: Precision) -> Vec<u8> {
        to_safetensors(self.names.iter().zip(&self.tensors), &self.values, precision)
    }

    /// The layout that a network must have for these.
    pub(super) fn planned(&self) -> &[Planned] {
        &self.tensors
    }
}

impl Precision {
    fn encode(self, values: &[f32]) -> (Dtype, Vec<u8>) {
        let of = values.iter();
        match self {
            Precision::F32 => (Dtype::F32, of.flat_map(|x| x.to_le_bytes()).collect()),
            Precision::Bf16 => {
                (Dtype::BF16, of.flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect())
            }
            Precision::F16 => {
                (Dtype::F16, of.flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect())
            }
        }
    }
}

/// A safetensors file of tensors under these names.
pub(crate) fn to_safetensors<'t>(
    named: impl Iterator<Item = (&'t String, &'t Planned)>,
    values: &[f32],
    precision: Precision,
) -> Vec<u8> {
    let (dtype, bytes) = precision.encode(values);
    let width = bytes.len() / values.len().max(1);
    let views = named.map(|(name, tensor)| {
        let data = &bytes[tensor.place.start * width..tensor.place.end * width];
        let view = TensorView::new(dtype, tensor.shape.clone(), data);
        (name, view.expect("a tensor's place has its shape"))
    });
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    serialize(views, Some(format)).expect("names differ and shapes fit")
}

/// The numbers of the tensors, which the checkpoint has under these names.
pub(crate) fn read_values<'t>(
    checkpoint: &Checkpoint<'_>,
    tensors: &[Planned],
    names: impl Iterator<Item = &'t String>,
) -> Result<Vec<f32>> {
    let mut values = zeros(tensors)?;
    let mut staging = vec![0; STAGING];
    for (tensor, name) in tensors.iter().zip(names) {
        let values = &mut values[tensor.place.clone()];
        checkpoint.read(&checkpoint.tensors[name], 0, values, &mut staging)?;
    }
    Ok(values)
}

/// Room for the tensors.
pub(crate) fn zeros(tensors: &[Planned]) -> Result<Vec<f32>> {
    let size = tensors.last().map_or(0, |last| last.place.end);
    let mut values = Vec::new();
    let reserved = values.try_reserve_exact(size);
    reserved.map_err(|_| Error::out_of_memory(format_args!("{size} parameters")))?;
    values.resize(size, 0.0);
    Ok(values)
}
