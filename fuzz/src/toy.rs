//! A model whose prediction is a row of a table: the one of the last token.

use crate::values::any;
use arbitrary::{Result, Unstructured};
use headrow::generate::StepModel;

/// A table of logits, and the last token of each sequence; `None` once it is released.
pub(crate) struct Toy {
    pub(crate) vocabulary: usize,
    table: Vec<f32>,
    last: Vec<Option<u32>>,
}

impl Toy {
    /// Logits of ordinary size, in steps of 2⁻¹²; with `awkward`, some are NaN, ±∞, huge or tiny.
    pub(crate) fn draw(u: &mut Unstructured<'_>, vocabulary: usize, awkward: bool) -> Result<Toy> {
        let mut table = Vec::new();
        for _ in 0..vocabulary * vocabulary {
            let value = f32::from(u.arbitrary::<i16>()?) / 4096.0;
            table.push(if awkward && u.ratio(1, 16)? { any(u)? } else { value });
        }
        Ok(Toy { vocabulary, table, last: Vec::new() })
    }

    /// What follows `token`.
    pub(crate) fn row(&self, token: u32) -> &[f32] {
        &self.table[token as usize * self.vocabulary..][..self.vocabulary]
    }

    /// A sequence that ends with `token`.
    pub(crate) fn begin(&mut self, token: u32) -> usize {
        self.last.push(Some(token));
        self.last.len() - 1
    }

    /// Sequences that were not released.
    pub(crate) fn live(&self) -> usize {
        self.last.iter().flatten().count()
    }
}

impl StepModel for Toy {
    type Sequence = usize;

    fn step(
        &mut self,
        sequences: &[usize],
        tokens: &[u32],
        logits: &mut [f32],
    ) -> headrow::Result<()> {
        let rows = logits.chunks_mut(self.vocabulary);
        for ((&sequence, &token), row) in sequences.iter().zip(tokens).zip(rows) {
            assert!(self.last[sequence].is_some(), "a released sequence is fed");
            self.last[sequence] = Some(token);
            row.copy_from_slice(&self.table[token as usize * self.vocabulary..][..row.len()]);
        }
        Ok(())
    }

    fn fork(&mut self, sequence: usize) -> headrow::Result<usize> {
        let token = self.last[sequence].expect("a live sequence");
        Ok(self.begin(token))
    }

    fn release(&mut self, sequence: usize) {
        assert!(self.last[sequence].take().is_some(), "a sequence is released twice");
    }
}
