//! §3.5: where a token stands. A learned table, which the paper tried too ("nearly identical results").

use crate::session::Batch;

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
