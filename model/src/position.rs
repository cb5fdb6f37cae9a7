//! §3.5: where a token stands. A learned table, which the paper tried too ("nearly identical results").

/// A learned table: one row per position, up to a maximum.
pub(crate) struct LearnedPositions {
    /// Rows of d_model.
    pub(crate) table: Vec<f32>,
    /// The row of a sequence's first token: RoBERTa keeps the rows up to its padding id unused.
    pub(crate) first: usize,
}

impl LearnedPositions {
    /// The row of the table for every token of a batch: each sequence counts from the start.
    pub(crate) fn rows(&self, lengths: impl Iterator<Item = usize>, out: &mut [u32]) {
        let mut out = out.iter_mut();
        for length in lengths {
            let rows = self.first as u32..;
            out.by_ref().take(length).zip(rows).for_each(|(out, row)| *out = row);
        }
    }
}
