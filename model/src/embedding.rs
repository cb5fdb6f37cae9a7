//! §3.4: from ids to vectors: word + token type + position, then a layer normalisation.
//!
//! The paper scales words by √d_model and adds sinusoids; BERT learns all three tables and scales nothing.

use crate::linear::{Call, room, take};
use crate::position::LearnedPositions;
use crate::session::Batch;
use crate::sublayer::Norm;
use headrow_kernels::{Lookup, Mat, MatMut, Need, Stack, embed};

/// The tables of a BERT-like embedding. Ids were checked against them before.
pub(crate) struct Embedding {
    pub(crate) d_model: usize,
    /// v × d_model.
    pub(crate) words: Vec<f32>,
    pub(crate) positions: LearnedPositions,
    /// One row per token type, or none.
    pub(crate) types: Vec<f32>,
    pub(crate) norm: Norm,
}

impl Embedding {
    /// out ← LN(word + type + position), a row per token.
    pub(crate) fn forward(
        &self,
        call: Call<'_>,
        batch: &Batch<'_>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let tokens = batch.tokens();
        let (positions, mut stack) = stack.take::<u32>(tokens);
        self.positions.rows(batch, positions);
        let (types, mut stack) = stack.take::<u32>(tokens);
        match batch.token_types() {
            Some(given) => types.copy_from_slice(given),
            None => types.fill(0),
        }
        let (mut sum, _) = take(&mut stack, tokens, self.d_model);
        let word = self.lookup(&self.words, batch.ids());
        let token_type = self.lookup(&self.types, types);
        let position = self.lookup(&self.positions.table, positions);
        match self.types.is_empty() {
            true => embed(call.cpu, call.par, &[word, position], sum.reborrow()),
            false => embed(call.cpu, call.par, &[word, token_type, position], sum.reborrow()),
        }
        self.norm.forward(call, sum.as_ref(), out);
    }

    /// Scratch for up to `rows` tokens.
    pub(crate) fn scratch(&self, rows: usize) -> Need {
        Need::of::<u32>(rows).times(2).and(room(rows, self.d_model))
    }

    /// The words as a matrix, v × d_model: what a tied read-out multiplies with.
    pub(crate) fn words(&self) -> Mat<'_> {
        self.table(&self.words)
    }

    pub(crate) fn parameters(&self) -> usize {
        let tables = self.words.len() + self.positions.table.len() + self.types.len();
        tables + self.norm.parameters()
    }

    fn table<'t>(&self, values: &'t [f32]) -> Mat<'t> {
        Mat::new(values, values.len() / self.d_model, self.d_model)
    }

    fn lookup<'t>(&self, table: &'t [f32], ids: &'t [u32]) -> Lookup<'t> {
        Lookup { table: self.table(table), ids, scale: 1.0 }
    }
}
