//! Embeddings and read-outs in training.

use super::{Embedding, Projection, ReadOut, Tokens, Words, add, table};
use crate::error::Result;
use crate::linear::backward::weight_scratch;
use crate::linear::{Call, Linear, room, take};
use crate::origin::Values;
use crate::position::PositionTable;
use crate::sublayer::Norm;
use crate::train::claims::Claims;
use crate::train::pass::{Back, TrainingPass, grown};
use headrow_kernels::{
    Activation, Cpu, Epilogue, Left, LeftKind, Lookup, Mat, MatMut, Moments, Need, PackedB, Right,
    RightKind, Stack, Write, add_column_sums, dropout, embed_backward, gemm, gemm_scratch,
};
use std::ops::Range;

impl Words {
    /// Where the table of a plan stands.
    pub(crate) fn place(&self) -> Range<usize> {
        match self {
            Words::Rows(values) => values.place.clone(),
            Words::Packed(_) => unreachable!("nothing is packed in a plan"),
        }
    }
}

/// What an embedding keeps.
#[derive(Debug, Default)]
pub(crate) struct EmbeddingKept {
    positions: Vec<u32>,
    types: Vec<u32>,
    /// What the norm reads.
    sum: Vec<f32>,
    moments: Vec<Moments>,
    /// What the map to d_model reads.
    narrow: Vec<f32>,
}

impl EmbeddingKept {
    /// For up to `rows` tokens.
    pub(crate) fn new(
        embedding: &Embedding,
        rows: usize,
        claims: &mut Claims,
    ) -> Result<EmbeddingKept> {
        let normed = embedding.norm.as_ref().map(Norm::width);
        let narrow = embedding.projection.as_ref().map_or(0, |_| embedding.width);
        Ok(EmbeddingKept {
            positions: claims.zeros(rows, 1)?,
            types: claims.zeros(rows, 1)?,
            sum: claims.zeros(rows, normed.unwrap_or(0))?,
            moments: claims.zeros(normed.map_or(0, |_| rows), 1)?,
            narrow: claims.zeros(rows, narrow)?,
        })
    }

    /// What the map to d_model reads, of an embedding that has one.
    fn narrow(&self, rows: usize, width: usize) -> Mat<'_> {
        Mat::new(&self.narrow[..rows * width], rows, width)
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let counts = grown(&self.positions) + grown(&self.types);
        counts + grown(&self.sum) + grown(&self.moments) + grown(&self.narrow)
    }
}

/// The number of the mask behind what enters a stack.
pub(crate) const MASK: u64 = 0;

impl Embedding {
    /// out ← dropout of what [`Embedding::forward`] gives, from parameters.
    pub(crate) fn apply(
        &self,
        pass: &TrainingPass<'_>,
        tokens: Tokens<'_>,
        kept: &mut EmbeddingKept,
        mut out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let (call, parameters) = (pass.call, pass.parameters);
        let (rows, width) = (tokens.ids.len(), self.width);
        self.positions.rows(tokens.ids, tokens.places, &mut kept.positions[..rows]);
        match tokens.types {
            Some(given) => kept.types[..rows].copy_from_slice(given),
            None => kept.types[..rows].fill(0),
        }
        let EmbeddingKept { positions, types, sum, moments, narrow } = kept;
        let looked_up = self.lookups(parameters, tokens, positions, types);
        let mapped = if narrow.is_empty() { 0 } else { rows };
        let narrow = MatMut::new(narrow, mapped, width);
        match &self.projection {
            Some(Projection::Sum(map)) => {
                let mut narrow = narrow;
                let added = |out: MatMut<'_>| add(call, looked_up, out);
                self.normed(pass, added, sum, moments, narrow.reborrow());
                let (narrow, identity) = (narrow.as_ref(), Activation::Identity);
                map.apply(call, parameters, narrow, identity, None, out.reborrow(), stack);
            }
            Some(Projection::Words(map)) => {
                let [word, token_type, position] = looked_up;
                let mut narrow = narrow;
                add(call, [word, None, None], narrow.reborrow());
                let (mut others, mut stack) = take(stack, rows, out.cols());
                add(call, [None, token_type, position], others.reborrow());
                let added = token_type.or(position).is_some();
                let residual = added.then(|| others.as_ref());
                let (narrow, identity) = (narrow.as_ref(), Activation::Identity);
                let mapped = |out: MatMut<'_>| {
                    map.apply(call, parameters, narrow, identity, residual, out, &mut stack);
                };
                self.normed(pass, mapped, sum, moments, out.reborrow());
            }
            None => {
                let added = |out: MatMut<'_>| add(call, looked_up, out);
                self.normed(pass, added, sum, moments, out.reborrow());
            }
        }
        if let Some(drop) = pass.dropout(MASK) {
            dropout(call.cpu, call.par, &drop, out);
        }
    }

    /// out ← LN(sum), or the sum alone, which `write` writes.
    fn normed(
        &self,
        pass: &TrainingPass<'_>,
        write: impl FnOnce(MatMut<'_>),
        sum: &mut [f32],
        moments: &mut [Moments],
        out: MatMut<'_>,
    ) {
        let Some(norm) = &self.norm else { return write(out) };
        let (rows, cols) = (out.rows(), out.cols());
        let mut sum = MatMut::new(&mut sum[..rows * cols], rows, cols);
        write(sum.reborrow());
        norm.apply(pass.call, pass.parameters, sum.as_ref(), &mut moments[..rows], out);
    }

    /// Words, types and positions, as far as there are such.
    fn lookups<'l>(
        &self,
        parameters: &'l [f32],
        tokens: Tokens<'l>,
        positions: &'l [u32],
        types: &'l [u32],
    ) -> [Option<Lookup<'l>>; 3] {
        let Tokens { ids, sinusoids, .. } = tokens;
        let rows = ids.len();
        let of = |values: &Values, width| table(&parameters[values.place.clone()], width);
        let words = table(&parameters[self.words.place()], self.width);
        let word = Lookup { table: words, ids, scale: self.scale };
        let width = self.sum_width();
        let token_type = (!self.types.place.is_empty()).then(|| Lookup {
            table: of(&self.types, width),
            ids: &types[..rows],
            scale: 1.0,
        });
        let learned = self.learned().map(|values| of(values, width));
        let position = learned.or(sinusoids);
        let position = position.map(|table| Lookup { table, ids: &positions[..rows], scale: 1.0 });
        [Some(word), token_type, position]
    }

    /// The learned table of positions.
    fn learned(&self) -> Option<&Values> {
        match &self.positions {
            PositionTable::Learned(learned) => Some(&learned.table),
            _ => None,
        }
    }

    /// Features of types and positions.
    fn sum_width(&self) -> usize {
        match &self.projection {
            Some(Projection::Words(map)) => map.width(),
            _ => self.width,
        }
    }

    /// Adds to the gradients of the tables, of the norm and of the map, from the gradient `d` of what [`Embedding::apply`]
    /// gave, which is overwritten. Look-ups of `untrained`, the padding of some families, teach nothing.
    pub(crate) fn backward(
        &self,
        pass: &TrainingPass<'_>,
        ids: &[u32],
        untrained: Option<u32>,
        kept: &EmbeddingKept,
        back: Back<'_>,
        stack: &mut Stack<'_>,
    ) {
        let Back { mut d, gradients } = back;
        let (call, parameters, rows) = (pass.call, pass.parameters, ids.len());
        if let Some(drop) = pass.dropout(MASK) {
            dropout(call.cpu, call.par, &drop, d.reborrow());
        }
        let (mut before_map, mut stack) = take(stack, rows, self.width);
        let mut d = match &self.projection {
            Some(Projection::Sum(map)) => {
                let narrow = kept.narrow(rows, self.width);
                map.add_gradients(call, narrow, d.as_ref(), gradients, &mut stack);
                let to = before_map.reborrow();
                map.back(call, parameters, d.as_ref(), Write::Replace, to, &mut stack);
                before_map.reborrow()
            }
            _ => d,
        };
        self.norm_backward(pass, kept, d.reborrow(), gradients, &mut stack);
        let d = d.as_ref();
        if !self.types.place.is_empty() {
            let types = &kept.types[..rows];
            look_back(call, types, 1.0, d, &mut gradients[self.types.place.clone()]);
        }
        if let Some(learned) = self.learned() {
            let positions = &kept.positions[..rows];
            look_back(call, positions, 1.0, d, &mut gradients[learned.place.clone()]);
        }
        let words = self.words.place();
        let row = untrained.map(|id| words.start + id as usize * self.width);
        let row = row.map(|start| start..start + self.width);
        let (before, mut stack) = stack.take::<f32>(self.width);
        if let Some(row) = row.clone() {
            before.copy_from_slice(&gradients[row]);
        }
        self.words_backward(pass, ids, kept, d, gradients, &mut stack);
        if let Some(row) = row {
            gradients[row].copy_from_slice(before);
        }
    }

    /// d, the gradient of what the norm gave, becomes that of the sum which it read.
    fn norm_backward(
        &self,
        pass: &TrainingPass<'_>,
        kept: &EmbeddingKept,
        mut d: MatMut<'_>,
        gradients: &mut [f32],
        stack: &mut Stack<'_>,
    ) {
        let Some(norm) = &self.norm else { return };
        let (rows, cols) = (d.rows(), d.cols());
        let (mut d_sum, _) = take(stack, rows, cols);
        let sum = Mat::new(&kept.sum[..rows * cols], rows, cols);
        let (moments, write) = (&kept.moments[..rows], Write::Replace);
        let (dy, to) = (d.as_ref(), d_sum.reborrow());
        norm.backward(pass.call, pass.parameters, moments, sum, dy, write, to, gradients);
        d.copy_from(d_sum.as_ref());
    }

    /// Adds to the gradients of the table of words and of the map behind it, from the gradient `d` of the sum.
    fn words_backward(
        &self,
        pass: &TrainingPass<'_>,
        ids: &[u32],
        kept: &EmbeddingKept,
        d: Mat<'_>,
        gradients: &mut [f32],
        stack: &mut Stack<'_>,
    ) {
        let (call, rows, words) = (pass.call, ids.len(), self.words.place());
        let Some(Projection::Words(map)) = &self.projection else {
            return look_back(call, ids, self.scale, d, &mut gradients[words]);
        };
        let narrow = kept.narrow(rows, self.width);
        let (d_words, _) = map.backward(pass, narrow, d, gradients, stack);
        look_back(call, ids, self.scale, d_words.as_ref(), &mut gradients[words]);
    }

    /// Scratch in training for up to `rows` tokens of d_model features.
    pub(crate) fn training_scratch(
        &self,
        cpu: Cpu,
        threads: usize,
        rows: usize,
        d_model: usize,
    ) -> Need {
        let map = self.projection.as_ref().map(Projection::map);
        let map = map.map_or(Need::NONE, |map| map.training_scratch(cpu, threads, rows));
        let (narrow, wide) = (room(rows, self.width), room(rows, d_model));
        let others = map.or(wide.or(narrow)).or(narrow.and(map));
        narrow.and(room(1, self.width)).and(others).or(wide.and(map))
    }
}

/// d_table\[ids\[i\]\] += scale·d\[i\].
pub(crate) fn look_back(call: Call<'_>, ids: &[u32], scale: f32, d: Mat<'_>, d_table: &mut [f32]) {
    let (rows, cols) = (d_table.len() / d.cols().max(1), d.cols());
    embed_backward(call.cpu, call.par, ids, scale, d, MatMut::new(d_table, rows, cols));
}

impl ReadOut {
    /// Features that the words' matrix reads.
    pub(crate) fn reads(&self, d_model: usize) -> usize {
        self.projection.as_ref().map_or(d_model, Linear::width)
    }

    /// scores ← scale·x·Eᵀ + bias, from parameters, behind the map.
    pub(crate) fn score(
        &self,
        call: Call<'_>,
        parameters: &[f32],
        words: &PackedWords,
        x: Mat<'_>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let bias = self.bias.as_ref().map(|bias| &parameters[bias.place.clone()]);
        let alpha = (self.scale != 1.0).then_some(self.scale);
        let epilogue = Epilogue { alpha, bias, ..Epilogue::default() };
        gemm(call.cpu, call.par, x, &words.across, Write::Replace, &epilogue, out, stack);
    }

    /// dx ← scale·d·E, dE += scale·dᵀx and db += Σ d, from the gradient d of the scores, which is overwritten.
    #[expect(
        clippy::too_many_arguments,
        reason = "the operands of the product and their gradients"
    )]
    pub(crate) fn score_backward(
        &self,
        call: Call<'_>,
        words: &PackedWords,
        x: Mat<'_>,
        mut d: MatMut<'_>,
        dx: MatMut<'_>,
        gradients: &mut [f32],
        stack: &mut Stack<'_>,
    ) {
        let Call { cpu, par } = call;
        if let Some(bias) = self.bias.as_ref().filter(|bias| !bias.fixed) {
            add_column_sums(cpu, par, d.as_ref(), &mut gradients[bias.place.clone()]);
        }
        if self.scale != 1.0 {
            (0..d.rows()).for_each(|i| d.row_mut(i).iter_mut().for_each(|d| *d *= self.scale));
        }
        let (d, place, epilogue) = (d.as_ref(), self.words.place(), Epilogue::default());
        gemm(cpu, par, d, &words.down, Write::Replace, &epilogue, dx, stack);
        let d_words = MatMut::new(&mut gradients[place], d.cols(), x.cols());
        let (left, add) = (Left::Transposed(d), Write::Accumulate);
        gemm(cpu, par, left, x, add, &epilogue, d_words, stack);
    }

    /// Scratch of both for up to `rows` rows of `width` features.
    pub(crate) fn score_scratch(
        &self,
        cpu: Cpu,
        threads: usize,
        rows: usize,
        width: usize,
    ) -> Need {
        let v = self.words.place().len() / width.max(1);
        let packed =
            |n, k| gemm_scratch(cpu, threads, rows, n, k, LeftKind::Plain, RightKind::Packed);
        packed(v, width).or(packed(width, v)).or(weight_scratch(cpu, threads, rows, v, width))
    }
}

/// The words' matrix E, v × width, packed for both products with it: scores come from some rows at a time, and each block of rows meets all
/// words.
#[derive(Debug)]
pub(crate) struct PackedWords {
    /// Eᵀ, for the scores.
    across: PackedB,
    /// E, for the way back.
    down: PackedB,
}

impl PackedWords {
    /// For the words of a read-out that reads `width` features.
    pub(crate) fn new(cpu: Cpu, read_out: &ReadOut, width: usize) -> PackedWords {
        let v = read_out.words.place().len() / width.max(1);
        PackedWords { across: PackedB::zeroed(cpu, width, v), down: PackedB::zeroed(cpu, v, width) }
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.across.bytes() + self.down.bytes()
    }

    /// Packs the words as they are now for [`ReadOut::score`].
    pub(crate) fn refill(&mut self, call: Call<'_>, read_out: &ReadOut, parameters: &[f32]) {
        let words = table(&parameters[read_out.words.place()], self.across.k());
        self.across.refill(call.par, Right::Transposed(words));
    }

    /// The same for [`ReadOut::score_backward`] too.
    pub(crate) fn refill_both(&mut self, call: Call<'_>, read_out: &ReadOut, parameters: &[f32]) {
        self.refill(call, read_out, parameters);
        self.down.refill(call.par, table(&parameters[read_out.words.place()], self.across.k()));
    }
}
