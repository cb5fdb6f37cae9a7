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
use crate::session::Batch;

/// A field of a config that is out of its range.
fn refused(place: &str, field: &str, problem: impl std::fmt::Display) -> Error {
    let (place, field) = (place.to_owned(), field.to_owned());
    Error::Config { place, field, problem: problem.to_string() }
}

/// An empty vector with room for a table.
fn room(rows: usize, cols: usize) -> Result<Vec<f32>> {
    let mut table = Vec::new();
    let size = rows.checked_mul(cols).filter(|&size| table.try_reserve_exact(size).is_ok());
    let refused = || Error::OutOfMemory(format!("a table of {rows}×{cols} positions"));
    size.map(|_| table).ok_or_else(refused)
}

/// A learned table: one row per position, up to a maximum.
pub(crate) struct LearnedPositions {
    /// Rows of d_model.
    pub(crate) table: Vec<f32>,
    /// The row of a sequence's first token.
    pub(crate) first: u32,
    /// An id that stands outside the count and takes the row before `first`: RoBERTa's padding, also where
    /// a text spells it out.
    pub(crate) padding: Option<u32>,
}

impl LearnedPositions {
    /// The row of the table for every token of a batch: each sequence counts from the start.
    pub(crate) fn rows(&self, batch: &Batch<'_>, out: &mut [u32]) {
        let mut tokens = batch.ids().iter().zip(out);
        for length in batch.lengths() {
            let mut next = self.first;
            for (&id, row) in tokens.by_ref().take(length) {
                if Some(id) == self.padding {
                    *row = self.first - 1;
                } else {
                    *row = next;
                    next += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(first: u32, padding: Option<u32>, ids: &[u32], lengths: &[usize]) -> Vec<u32> {
        let mut rows = vec![u32::MAX; ids.len()];
        let positions = LearnedPositions { table: Vec::new(), first, padding };
        positions.rows(&Batch::ragged(ids, lengths), &mut rows);
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
