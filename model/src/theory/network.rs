//! The layers of a map, and its numbers: one vector, of which the layers know their parts.

use super::column::Dimensions;
use super::columns::Columns;
use crate::attention::SelfAttention;
use crate::checkpoint::{Part, Reader};
use crate::error::{Error, Problems, Result};
use crate::feed_forward::FeedForward;
use crate::origin::{Initial, Planned, Values};
use crate::train::{initialise, read_values, zeros};
use crate::weights::Checkpoint;
use headrow_kernels::{Activation, AttentionShape, Cpu, Par};
use std::fmt;
use std::sync::Arc;

/// FF ∘ Attention.
pub(super) struct Block {
    /// All heads at once, with a scale of 1.
    pub(super) attention: SelfAttention,
    /// W₂ ReLU(W₁X + b₁1ᵀ) + b₂1ᵀ.
    pub(super) feed_forward: FeedForward,
}

/// Which of the maps it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) dimensions: Dimensions,
    /// Whether numbers are added to the queries: W_hꟴX + b_hꟴ1ᵀ.
    pub(super) query_bias: bool,
    /// n of E, which is added to X.
    pub(super) positions: Option<usize>,
}

struct Layers {
    blocks: Vec<Block>,
    /// E, column by column.
    positions: Option<Values>,
}

/// A composition of blocks, behind X + E where there are positions.
#[derive(Clone)]
pub struct Network {
    form: Form,
    layers: Arc<Layers>,
    pub(super) tensors: Vec<Planned>,
    pub(super) values: Vec<f32>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.form.fmt(f)
    }
}

impl Network {
    /// All numbers 0.
    pub(super) fn zeros(form: Form) -> Result<Network> {
        form.dimensions.check()?;
        let nothing = Checkpoint::nothing();
        let mut reader = Reader::plan(&nothing, str::to_owned);
        let layers = Arc::new(form.build(&mut reader)?);
        let tensors = reader.planned();
        let values = zeros(&tensors)?;
        Ok(Network { form, layers, tensors, values })
    }

    /// Weights uniform in ±√(6/(inputs + outputs)) for each matrix, biases 0, E from N(0, 1/d).
    pub(super) fn random(form: Form, seed: u64) -> Result<Network> {
        let mut network = Network::zeros(form)?;
        for tensor in &network.tensors {
            initialise(tensor, seed, &mut network.values[tensor.place.clone()]);
        }
        Ok(network)
    }

    /// Reads what [`SequenceMap::to_safetensors`](super::SequenceMap::to_safetensors) writes.
    pub(super) fn read(bytes: &[u8], query_bias: bool, positional: bool) -> Result<Network> {
        let checkpoint = Checkpoint::from_bytes(bytes)?;
        let form = Form::of(&checkpoint, query_bias, positional)?;
        form.dimensions.check()?;
        let mut survey = Reader::survey(&checkpoint, Cpu::detect(), str::to_owned);
        form.build(&mut survey)?;
        survey.finish(Par::SERIAL, |_| false)?;
        let mut network = Network::zeros(form)?;
        let names = network.tensors.iter().map(|tensor| &tensor.name);
        network.values = read_values(&checkpoint, &network.tensors, names)?;
        Ok(network)
    }

    pub(super) fn dimensions(&self) -> Dimensions {
        self.form.dimensions
    }

    pub(super) fn blocks(&self) -> &[Block] {
        &self.layers.blocks
    }

    /// Where E stands among the values.
    pub(super) fn positions(&self) -> Option<std::ops::Range<usize>> {
        self.layers.positions.as_ref().map(|positions| positions.place.clone())
    }

    /// The numbers of a tensor that there is, to be changed.
    pub(super) fn tensor_mut(&mut self, name: &str) -> &mut [f32] {
        let tensor = self.tensors.iter().find(|tensor| tensor.name == name);
        let place = tensor.expect("a name of this network").place.clone();
        &mut self.values[place]
    }

    /// Takes over what another network has under the same names, its blocks counted from `first`.
    pub(super) fn take_over(&mut self, other: &Network, first: usize) {
        for tensor in &other.tensors {
            let from = &other.values[tensor.place.clone()];
            let name = match numbered(&tensor.name) {
                Some((index, part)) => format!("{}.{part}", block_name(first + index)),
                None => tensor.name.clone(),
            };
            self.tensor_mut(&name).copy_from_slice(from);
        }
    }

    /// Whether the map is defined for X, which `what` names.
    pub(super) fn check(&self, what: &str, x: &Columns) -> Result<()> {
        let Form { dimensions: Dimensions { d, .. }, positions, .. } = self.form;
        let n = positions.unwrap_or(x.n());
        match (x.d(), x.n()) == (d, n) {
            true => Ok(()),
            false => {
                let actual = format!("{}×{}", x.d(), x.n());
                let n = positions.map_or("n".to_owned(), |n| n.to_string());
                Err(Error::dimensions(what, actual, format!("{d}×{n}")))
            }
        }
    }
}

/// What the tensors of a block begin with.
pub(super) fn block_name(index: usize) -> String {
    format!("blocks.{index}")
}

/// The number of the block that a tensor is of, and its name there.
fn numbered(name: &str) -> Option<(usize, &str)> {
    let (index, part) = name.strip_prefix("blocks.")?.split_once('.')?;
    Some((index.parse().ok()?, part))
}

impl Form {
    /// That of the tensors of a file: all dimensions are those of the first block.
    fn of(checkpoint: &Checkpoint<'_>, query_bias: bool, positional: bool) -> Result<Form> {
        let mut problems = Problems::default();
        let mut shape = |name: &str, ranks: usize| -> Vec<usize> {
            let shape = checkpoint.tensors.get(name).map(|tensor| tensor.shape.clone());
            let shape = shape.filter(|shape| shape.len() == ranks);
            shape.unwrap_or_else(|| {
                problems.add(|| format!("{name} with {ranks} dimensions is missing"));
                vec![1; ranks]
            })
        };
        let output = shape("blocks.0.attention.output.weight", 3);
        let hidden = shape("blocks.0.feed_forward.inner.weight", 2)[0];
        let positions = positional.then(|| shape("positions", 2)[0]);
        if problems.count() > 0 {
            return Err(Error::Weights { place: checkpoint.place.clone(), problems });
        }
        let has = |index: &usize| {
            let name = format!("{}.attention.output.weight", block_name(*index));
            checkpoint.tensors.contains_key(&name)
        };
        let dimensions = Dimensions::new(output[0])
            .with_heads(output[1], output[2])
            .with_hidden(hidden)
            .with_blocks((0..).take_while(has).count());
        Ok(Form { dimensions, query_bias, positions })
    }

    fn build(&self, reader: &mut Reader<'_>) -> Result<Layers> {
        let Dimensions { d, blocks, .. } = self.dimensions;
        let positions = match self.positions {
            Some(n) => Some(reader.tensor("positions", &[n, d], Initial::Table(d))?),
            None => None,
        };
        let blocks = (0..blocks).map(|index| self.block(reader, &block_name(index)));
        Ok(Layers { positions, blocks: blocks.collect::<Result<_>>()? })
    }

    /// A block whose tensors' names begin with `name`. Each maps columns from the left, so it has as many rows as outputs.
    fn block(&self, reader: &mut Reader<'_>, name: &str) -> Result<Block> {
        let Dimensions { d, heads, head_width: m, hidden: r, .. } = self.dimensions;
        let scores = AttentionShape::new(heads, heads, m, m).with_scale(1.0);
        // W_1, …, W_H one below the other.
        let stacked = |part: &str, bias: bool| {
            let part = Part::new(format!("{name}.attention.{part}"), heads * m, d);
            part.with_bias(bias).fused(&vec![m; heads])
        };
        let qkv =
            [stacked("query", self.query_bias), stacked("key", false), stacked("value", false)];
        // [W_1ᴼ … W_Hᴼ]: times the heads one below the other this is the sum over h.
        let output = Part::new(format!("{name}.attention.output"), d, heads * m);
        let output = output.with_bias(false).shaped(&[d, heads, m]);
        let inner = Part::new(format!("{name}.feed_forward.inner"), r, d);
        let outer = Part::new(format!("{name}.feed_forward.outer"), d, r);
        Ok(Block {
            attention: SelfAttention {
                shape: scores,
                qkv: reader.linear(&qkv)?,
                output: reader.linear(&[output])?,
            },
            feed_forward: FeedForward {
                inner: reader.linear(&[inner])?,
                activation: Activation::Relu,
                gated: false,
                outer: reader.linear(&[outer])?,
            },
        })
    }
}
