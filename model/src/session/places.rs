//! Tables of positions, as long as the sequences of a session.
//!
//! Sines and cosines know no longest sequence, and a rotary base may depend on the longest one; so the session, which has
//! one, makes the tables.

use crate::attention::Pass;
use crate::config::{Positions, RelativePositions, StackConfig};
use crate::error::Result;
use crate::linear::Call;
use crate::position::{BucketRange, RelativeTable, RotaryTables, SinusoidLayout, sinusoids};
use headrow_kernels::{Mat, Relative};

/// What one stack needs to know where its tokens stand.
#[derive(Debug, Default)]
pub(crate) struct PlaceTables {
    /// Added to words: rows of their width.
    sinusoids: Vec<f32>,
    width: usize,
    rotary: Option<RotaryTables>,
    relative: Option<RelativeTable>,
}

impl PlaceTables {
    /// Tables for sequences of up to `longest` tokens; `buckets` is what T5 learned, buckets × heads.
    pub(crate) fn new(
        stack: &StackConfig,
        d_model: usize,
        buckets: &[f32],
        longest: usize,
        past: bool,
    ) -> Result<PlaceTables> {
        let (table, width) = match sinusoidal(stack, d_model) {
            Some((layout, first, width)) => {
                (sinusoids(layout, first.saturating_add(longest), width)?, width)
            }
            None => (Vec::new(), 0),
        };
        let rotary = match &stack.relative {
            RelativePositions::Rotary(rotary) => Some(rotary.tables(longest)?),
            _ => None,
        };
        let relative = match &stack.relative {
            &RelativePositions::Buckets { buckets: count, max_distance } => {
                let weights = Mat::new(buckets, count, stack.heads);
                let range = if past { BucketRange::Past } else { BucketRange::Both };
                Some(RelativeTable::from_buckets(weights, range, max_distance, longest)?)
            }
            RelativePositions::Alibi => Some(RelativeTable::alibi(stack.heads, longest)?),
            _ => None,
        };
        Ok(PlaceTables { sinusoids: table, width, rotary, relative })
    }

    /// Bytes of the tables for sequences of up to `longest` tokens.
    pub(crate) fn bytes(stack: &StackConfig, d_model: usize, longest: usize) -> usize {
        let sinusoids = sinusoidal(stack, d_model)
            .map_or(0, |(_, first, width)| first.saturating_add(longest).saturating_mul(width));
        let relative = match &stack.relative {
            RelativePositions::None => 0,
            RelativePositions::Rotary(rotary) => longest.saturating_mul(rotary.width),
            _ => longest.saturating_mul(2).saturating_mul(stack.heads),
        };
        sinusoids.saturating_add(relative).saturating_mul(size_of::<f32>())
    }

    /// The rows that are added to words.
    pub(crate) fn sinusoids(&self) -> Option<Mat<'_>> {
        let rows = self.sinusoids.len().checked_div(self.width)?;
        Some(Mat::new(&self.sinusoids, rows, self.width))
    }

    /// Bytes that they take.
    #[cfg(feature = "train")]
    pub(crate) fn size(&self) -> usize {
        let rotary = self.rotary.as_ref().map_or(0, RotaryTables::bytes);
        let relative = self.relative.as_ref().map_or(0, RelativeTable::bytes);
        self.sinusoids.capacity() * size_of::<f32>() + rotary + relative
    }

    /// The biases by distance, to be made anew of what was learned since.
    #[cfg(feature = "train")]
    pub(crate) fn relative_mut(&mut self) -> Option<&mut RelativeTable> {
        self.relative.as_mut()
    }

    /// What the layers share in a pass over tokens at these places.
    pub(crate) fn pass<'a>(&'a self, call: Call<'a>, places: &'a [u32]) -> Pass<'a> {
        let relative = self.relative.as_ref();
        Pass {
            call,
            places,
            rope: self.rotary.as_ref().map(RotaryTables::rope),
            relative: relative.map(|table| Relative { table: table.table(), zero: table.zero() }),
        }
    }
}

/// Layout, first position and width of the sinusoids, where words are given such.
fn sinusoidal(stack: &StackConfig, d_model: usize) -> Option<(SinusoidLayout, usize, usize)> {
    let tokens = stack.tokens()?;
    match tokens.positions {
        Positions::Sinusoidal { layout, first } => Some((layout, first, tokens.sum_width(d_model))),
        _ => None,
    }
}
