//! §3.4: from ids to vectors: words times √d_model, plus position, plus token type; and back, from vectors to scores of words.

#[cfg(feature = "train")]
pub(crate) mod backward;

#[cfg(feature = "train")]
pub(crate) use backward::{EmbeddingKept, PackedWords};

use crate::config::TokenInput;
use crate::linear::{Call, Linear, room, take};
use crate::origin::Values;
use crate::position::PositionTable;
use crate::sublayer::Norm;
use headrow_kernels::{
    Activation, Cpu, Epilogue, LeftKind, Lookup, Mat, MatMut, Need, PackedB, RightKind, Stack,
    Write, embed, gemm, gemm_scratch,
};
use std::sync::Arc;

/// The table of words, v × width.
pub(crate) enum Words {
    /// Row by row.
    Rows(Values),
    /// As the right operand width × v of the read-out that shares it: one copy for both.
    Packed(PackedB),
}

impl Words {
    /// Bytes of the table.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Words::Rows(rows) => size_of_val(&**rows),
            Words::Packed(packed) => packed.bytes(),
        }
    }
}

/// Tables that turn tokens into vectors. Ids were checked against them before.
pub(crate) struct Embedding {
    /// Features of a row of the tables.
    pub(crate) width: usize,
    pub(crate) words: Arc<Words>,
    /// Multiplies the words: √d_model in the paper.
    pub(crate) scale: f32,
    pub(crate) positions: PositionTable,
    /// One row per token type, or none.
    pub(crate) types: Values,
    pub(crate) norm: Option<Norm>,
    /// From `width` to d_model features where they differ.
    pub(crate) projection: Option<Projection>,
}

/// Which of an embedding's rows are mapped to d_model features.
pub(crate) enum Projection {
    /// Those of the whole sum.
    Sum(Linear),
    /// Those of the words; types and positions are added to what the map gives.
    Words(Linear),
}

impl Projection {
    /// The map, whatever it is given.
    pub(crate) fn map(&self) -> &Linear {
        let (Projection::Sum(map) | Projection::Words(map)) = self;
        map
    }
}

/// Tokens as an embedding reads them.
#[derive(Clone, Copy)]
pub(crate) struct Tokens<'a> {
    pub(crate) ids: &'a [u32],
    /// A type for each id; `None`: all are 0.
    pub(crate) types: Option<&'a [u32]>,
    /// Where each token stands in its sequence.
    pub(crate) places: &'a [u32],
    /// The rows of a table that the session made, when the positions are such.
    pub(crate) sinusoids: Option<Mat<'a>>,
}

impl Embedding {
    /// Words alone, without positions, types, norm or projection.
    pub(crate) fn plain(words: Arc<Words>, tokens: &TokenInput) -> Embedding {
        Embedding {
            width: tokens.width,
            words,
            scale: tokens.scale,
            positions: PositionTable::None,
            types: Values::default(),
            norm: None,
            projection: None,
        }
    }

    /// out ← LN(scale·word + type + position)·W, a row per token, or LN(scale·word·W + type + position), or
    /// without what is not there.
    pub(crate) fn forward(
        &self,
        call: Call<'_>,
        tokens: Tokens<'_>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let Some(Projection::Sum(map)) = &self.projection else {
            return self.normed_sum(call, tokens, out, stack);
        };
        let (mut narrow, mut stack) = take(stack, tokens.ids.len(), self.width);
        self.normed_sum(call, tokens, narrow.reborrow(), &mut stack);
        let identity = Activation::Identity;
        map.forward(call, narrow.as_ref(), identity, None, out, &mut stack);
    }

    /// out ← LN(sum), or the sum alone.
    fn normed_sum(
        &self,
        call: Call<'_>,
        tokens: Tokens<'_>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let Some(norm) = &self.norm else { return self.sum(call, tokens, out, stack) };
        let (mut sum, mut stack) = take(stack, out.rows(), out.cols());
        self.sum(call, tokens, sum.reborrow(), &mut stack);
        norm.forward(call, sum.as_ref(), out);
    }

    /// out ← scale·word + type + position.
    fn sum(&self, call: Call<'_>, tokens: Tokens<'_>, out: MatMut<'_>, stack: &mut Stack<'_>) {
        let (rows, cols) = (out.rows(), out.cols());
        let (positions, mut stack) = stack.take::<u32>(rows);
        self.positions.rows(tokens.ids, tokens.places, positions);
        let (types, mut stack) = stack.take::<u32>(rows);
        match tokens.types {
            Some(given) => types.copy_from_slice(given),
            None => types.fill(0),
        }
        let (counted, mut stack) = stack.take::<u32>(rows);
        let (gathered, mut stack) = stack.take::<f32>(rows * self.width);
        let word = self.word(tokens.ids, counted, gathered);
        let table = |values| table(values, cols);
        let token_type = Lookup { table: table(&self.types), ids: types, scale: 1.0 };
        let token_type = (!self.types.is_empty()).then_some(token_type);
        let position = self.positions.learned().map(table).or(tokens.sinusoids);
        let position = position.map(|table| Lookup { table, ids: positions, scale: 1.0 });
        let Some(Projection::Words(map)) = &self.projection else {
            return add(call, [Some(word), token_type, position], out);
        };
        let (mut words, mut stack) = take(&mut stack, rows, self.width);
        let (mut others, mut stack) = take(&mut stack, rows, cols);
        add(call, [Some(word), None, None], words.reborrow());
        let added = token_type.or(position).is_some();
        add(call, [None, token_type, position], others.reborrow());
        let residual = added.then(|| others.as_ref());
        map.forward(call, words.as_ref(), Activation::Identity, residual, out, &mut stack);
    }

    /// The look-up of these words. A packed table has a word's features nr elements apart, so they go to
    /// `gathered` first.
    fn word<'l>(
        &'l self,
        ids: &'l [u32],
        counted: &'l mut [u32],
        gathered: &'l mut [f32],
    ) -> Lookup<'l> {
        match &*self.words {
            Words::Rows(words) => {
                Lookup { table: table(words, self.width), ids, scale: self.scale }
            }
            Words::Packed(packed) => {
                for (i, (&id, row)) in ids.iter().zip(gathered.chunks_mut(self.width)).enumerate() {
                    counted[i] = i as u32;
                    packed.copy_column(id as usize, row);
                }
                Lookup { table: table(gathered, self.width), ids: counted, scale: self.scale }
            }
        }
    }

    /// Scratch for up to `rows` tokens of d_model features.
    pub(crate) fn scratch(&self, cpu: Cpu, threads: usize, rows: usize, d_model: usize) -> Need {
        let (narrow, wide) = (room(rows, self.width), room(rows, d_model));
        let map = self.projection.as_ref().map(|map| map.map().scratch(cpu, threads, rows));
        let map = map.unwrap_or(Need::NONE);
        // Ids and gathered words; with a map of words also what is mapped and what is added.
        let sum = Need::of::<u32>(rows).times(3).and(narrow).and(narrow).and(wide).and(map);
        // The sum, and in front of it what the norm reads.
        wide.or(narrow).and(narrow).and(sum)
    }

    /// Bytes of tables, norm and projection, beside the words, which others may share.
    pub(crate) fn bytes(&self) -> usize {
        let positions = self.positions.learned().map_or(0, size_of_val);
        let norm = self.norm.as_ref().map_or(0, Norm::bytes);
        let projection = self.projection.as_ref().map_or(0, |projection| projection.map().bytes());
        positions + size_of_val(&*self.types) + norm + projection
    }
}

fn table(values: &[f32], width: usize) -> Mat<'_> {
    Mat::new(values, values.len() / width, width)
}

/// out ← the sum of the rows that are looked up, or 0 where none are.
fn add(call: Call<'_>, lookups: [Option<Lookup<'_>>; 3], out: MatMut<'_>) {
    let (cpu, par) = (call.cpu, call.par);
    let there = lookups.into_iter().flatten();
    let Some(first) = there.clone().next() else { return embed(cpu, par, &[], out) };
    let mut list = [first; 3];
    let count = there.zip(&mut list).map(|(lookup, place)| *place = lookup).count();
    embed(cpu, par, &list[..count], out);
}

/// scores ← scale·(x·P)·Eᵀ + bias: what the last states say about the next word.
pub(crate) struct ReadOut {
    /// P, from d_model to the width of the words where they differ.
    pub(crate) projection: Option<Linear>,
    pub(crate) scale: f32,
    /// Eᵀ: packed, of its own or the embedding's.
    pub(crate) words: Arc<Words>,
    pub(crate) bias: Option<Values>,
}

impl ReadOut {
    /// Writes a row of scores per row of x.
    pub(crate) fn forward(
        &self,
        call: Call<'_>,
        x: Mat<'_>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let packed = self.packed();
        let width = self.projection.as_ref().map_or(0, Linear::outputs);
        let (mut narrow, mut stack) = take(stack, x.rows(), width);
        let x = match &self.projection {
            Some(map) => {
                let narrow = narrow.reborrow();
                map.forward(call, x, Activation::Identity, None, narrow, &mut stack);
                None
            }
            None => Some(x),
        }
        .unwrap_or(narrow.as_ref());
        let bias = self.bias.as_deref();
        let alpha = (self.scale != 1.0).then_some(self.scale);
        let epilogue = Epilogue { alpha, bias, ..Epilogue::default() };
        gemm(call.cpu, call.par, x, packed, Write::Replace, &epilogue, out, &mut stack);
    }

    /// v.
    pub(crate) fn outputs(&self) -> usize {
        self.packed().n()
    }

    /// Eᵀ.
    pub(crate) fn packed(&self) -> &PackedB {
        match &*self.words {
            Words::Packed(packed) => packed,
            Words::Rows(_) => unreachable!("a read-out is loaded with packed words"),
        }
    }

    /// Scratch for up to `rows` rows.
    pub(crate) fn scratch(&self, cpu: Cpu, threads: usize, rows: usize) -> Need {
        let (n, k) = (self.packed().n(), self.packed().k());
        let product = gemm_scratch(cpu, threads, rows, n, k, LeftKind::Plain, RightKind::Packed);
        match &self.projection {
            Some(map) => room(rows, map.outputs()).and(map.scratch(cpu, threads, rows).or(product)),
            None => product,
        }
    }

    /// Bytes of bias and projection, beside the words.
    pub(crate) fn bytes(&self) -> usize {
        let bias = self.bias.as_deref().map_or(0, size_of_val);
        let projection = self.projection.as_ref().map_or(0, Linear::bytes);
        bias + projection
    }
}
