//! Where the numbers of the layers lie among the parameters of a whole model.
//!
//! A structure that was only planned ([`Reader::plan`](crate::checkpoint::Reader::plan)) holds no weights. Its layers know
//! places in one vector instead, which has the tensors of a checkpoint one behind the other: training computes from that
//! vector and adds to a second one of the same form.
#![cfg_attr(not(feature = "train"), allow(dead_code, reason = "places are for training"))]

use std::ops::{Deref, Range};

/// Numbers that a layer keeps, or the place where a planned layer has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Values {
    values: Vec<f32>,
    /// Empty but in a plan.
    pub(crate) place: Range<usize>,
    /// Whether training leaves them as they are.
    pub(crate) fixed: bool,
}

impl Values {
    /// Numbers of a plan.
    pub(crate) fn planned(place: Range<usize>) -> Values {
        Values { place, ..Values::default() }
    }

    /// The same, which training leaves as they are.
    pub(crate) fn fixed(self) -> Values {
        Values { fixed: true, ..self }
    }
}

impl From<Vec<f32>> for Values {
    fn from(values: Vec<f32>) -> Values {
        Values { values, ..Values::default() }
    }
}

impl Deref for Values {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values
    }
}

/// Where a linear map of a plan has its numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// Features that it reads.
    pub(crate) inputs: usize,
    /// Features that it gives.
    pub(crate) outputs: usize,
    /// Whose outputs stand side by side.
    pub(crate) pieces: Vec<Piece>,
}

/// Some outputs of a linear map, which are made of one tensor.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// The whole tensor of weights.
    pub(crate) weight: Range<usize>,
    /// The whole tensor of biases.
    pub(crate) bias: Option<Range<usize>>,
    /// Whether the tensor is inputs × outputs.
    pub(crate) inputs_first: bool,
    /// How many outputs the tensor has.
    pub(crate) all: usize,
    /// Which of them these are, in this order.
    pub(crate) outputs: Vec<Range<usize>>,
}

/// What a tensor holds before training, by what it is for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Initial {
    /// Biases and β.
    Zeros,
    /// γ.
    Ones,
    /// Tables whose rows have this many features: N(0, 1/features).
    Table(usize),
    /// Weights: uniform up to √(6/(inputs + outputs)) for each of the maps that the tensor has side by side.
    Maps(Vec<MapRows>),
}

/// Outputs of a tensor of weights that belong to one linear map.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MapRows {
    pub(crate) outputs: Range<usize>,
    /// Outputs of the whole map.
    pub(crate) count: usize,
    pub(crate) inputs: usize,
    /// Whether the tensor is inputs × outputs, that is, of `all` columns.
    pub(crate) inputs_first: bool,
    pub(crate) all: usize,
}

/// A tensor of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planned {
    /// Its canonical name.
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) place: Range<usize>,
    pub(crate) initial: Initial,
}
