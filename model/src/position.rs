//! §3.5: where a token stands. Added to the token: a learned table, which the paper tried too ("nearly identical
//! results"), or its sinusoids. Inside attention: rotated queries and keys, or a bias by distance.
//!
//! Every table is computed in f64 with functions that give the same on every platform, and rounded to f32 once.

mod relative;
mod rotary;
mod sinusoid;

pub use relative::{BucketRange, RelativeTable, alibi_slopes, bucket, check_buckets};
pub use rotary::{Rotary, RotaryScaling, RotaryTables};
pub use sinusoid::{SinusoidLayout, sinusoids};

use crate::error::{Error, Result};
use crate::memory;
use crate::origin::Values;

/// An empty vector with room for a table.
fn room<T>(rows: usize, cols: usize) -> Result<Vec<T>> {
    let refused = || Error::out_of_memory(format_args!("a table of {rows}×{cols} positions"));
    rows.checked_mul(cols).and_then(memory::room).ok_or_else(refused)
}

/// What an embedding adds to a token for its place.
pub(crate) enum PositionTable {
    /// Nothing.
    None,
    /// Rows of a learned table, which the paper tried too ("nearly identical results").
    Learned(LearnedPositions),
    /// Sines and cosines, in a table that the session makes as long as its longest sequence.
    Sinusoidal {
        /// The position of a sequence's first token.
        first: u32,
    },
}

/// A learned table: one row per position, up to a maximum.
pub(crate) struct LearnedPositions {
    /// Rows as wide as the words.
    pub(crate) table: Values,
    /// The row of a sequence's first token.
    pub(crate) first: u32,
    /// An id that stands outside the count and takes the row before `first`: RoBERTa's padding, also where
    /// a text spells it out.
    pub(crate) padding: Option<u32>,
}

impl PositionTable {
    /// The row of the table for every token, each standing at its place in its sequence.
    pub(crate) fn rows(&self, ids: &[u32], places: &[u32], out: &mut [u32]) {
        match self {
            PositionTable::None => out.fill(0),
            PositionTable::Learned(learned) => learned.rows(ids, places, out),
            PositionTable::Sinusoidal { first } => {
                out.iter_mut().zip(places).for_each(|(row, place)| *row = first + place);
            }
        }
    }

    /// The learned table.
    pub(crate) fn learned(&self) -> Option<&[f32]> {
        match self {
            PositionTable::Learned(learned) => Some(&learned.table),
            _ => None,
        }
    }
}

impl LearnedPositions {
    fn rows(&self, ids: &[u32], places: &[u32], out: &mut [u32]) {
        let mut next = self.first;
        for ((&id, &place), row) in ids.iter().zip(places).zip(out) {
            if place == 0 {
                next = self.first;
            }
            if Some(id) == self.padding {
                *row = self.first - 1;
            } else {
                // Without padding in between, `next` is `first + place`; a chunk may begin anywhere.
                *row = if self.padding.is_some() { next } else { self.first + place };
                next += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(first: u32, padding: Option<u32>, ids: &[u32], lengths: &[usize]) -> Vec<u32> {
        let mut rows = vec![u32::MAX; ids.len()];
        let positions = LearnedPositions { table: Values::default(), first, padding };
        let places: Vec<u32> = lengths.iter().flat_map(|&length| 0..length as u32).collect();
        positions.rows(ids, &places, &mut rows);
        rows
    }

    #[test]
    fn every_sequence_counts_from_the_start() {
        assert_eq!(rows(0, None, &[1; 6], &[3, 1, 2]), [0, 1, 2, 0, 0, 1]);
        assert_eq!(rows(2, Some(9), &[1; 6], &[3, 1, 2]), [2, 3, 4, 2, 2, 3]);
    }

    #[test]
    fn padding_stands_outside_the_count() {
        assert_eq!(rows(2, Some(1), &[5, 1, 6, 7, 1, 8], &[4, 2]), [2, 1, 3, 4, 1, 2]);
    }
}
