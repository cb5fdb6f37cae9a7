//! What a family says of a tensor of weights: its name, and which of its rows are which outputs of a linear map.

use crate::origin::MapRows;
use std::ops::Range;

/// Rows of one tensor that make a linear map, or a part of one.
pub(crate) struct Part {
    pub(super) weight: String,
    pub(super) bias: Option<String>,
    /// Of the weight: outputs first, or inputs first.
    pub(super) shape: Vec<usize>,
    pub(super) inputs_first: bool,
    /// Which outputs, in this order.
    pub(super) outputs: Vec<Range<usize>>,
    /// Places that a convolution's window has, which lie innermost in the file and are to come outermost.
    pub(super) taps: usize,
    /// How many of `outputs`, from the first on, make one linear map, how many the next, and so on.
    maps: Vec<usize>,
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
            maps: vec![outputs],
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

    /// Only these outputs, in this order. Fewer than all are one map.
    pub(crate) fn only(mut self, outputs: Vec<Range<usize>>) -> Part {
        self.outputs = outputs;
        if self.count() != self.all_outputs() {
            self.maps = vec![self.count()];
        }
        self
    }

    /// Several maps of so many outputs in one tensor.
    pub(crate) fn fused(mut self, maps: &[usize]) -> Part {
        self.maps = maps.to_vec();
        self
    }

    /// Which outputs of the tensor belong to which map.
    pub(super) fn map_rows(&self) -> Vec<MapRows> {
        let mut rows = Vec::new();
        let mut maps = self.maps.iter().copied();
        let (mut count, mut left) = (0, 0);
        for range in &self.outputs {
            let mut range = range.clone();
            while !range.is_empty() {
                if left == 0 {
                    count = maps.next().unwrap_or(range.len());
                    left = count.max(1);
                }
                let outputs = range.start..range.end.min(range.start + left);
                range.start = outputs.end;
                left -= outputs.len();
                let (inputs, all) = (self.inputs(), self.all_outputs());
                let inputs_first = self.inputs_first;
                rows.push(MapRows { outputs, count, inputs, inputs_first, all });
            }
        }
        rows
    }

    /// Features that the map reads.
    pub(super) fn inputs(&self) -> usize {
        if self.inputs_first { self.shape[0] } else { self.shape[1..].iter().product() }
    }

    /// Outputs of the tensor.
    pub(super) fn all_outputs(&self) -> usize {
        if self.inputs_first { self.shape[1] } else { self.shape[0] }
    }

    /// How many outputs it gives.
    pub(super) fn count(&self) -> usize {
        self.outputs.iter().map(Range::len).sum()
    }
}
