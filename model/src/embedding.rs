//! §3.4: from ids to vectors: words times √d_model, plus position, plus token type; and back, from vectors to scores of words.

use crate::config::TokenInput;
use crate::linear::{Call, Linear, Size, room, take};
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
    Rows(Vec<f32>),
    /// As the right operand width × v of the read-out that shares it: one copy for both.
    Packed(PackedB),
}

impl Words {
    pub(crate) fn size(&self) -> Size {
        match self {
            Words::Rows(rows) => Size::plain(rows),
            Words::Packed(packed) => Size::packed(packed),
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
    pub(crate) types: Vec<f32>,
    pub(crate) norm: Option<Norm>,
    /// From `width` to d_model features where they differ.
    pub(crate) projection: Option<Linear>,
}

/// Tokens as an embedding reads them.
#[derive(Clone, Copy)]
pub(crate) struct Tokens<'a> {
    pub(crate) ids: &'a [u32],
    /// A type for each id; `None`: all are 0.
    pub(crate) types: Option<&'a [u32]>,
    /// Where each token stands in its sequence.
    pub(crate) places: &'a [u32],
}

impl Embedding {
    /// Words alone, without positions, types, norm or projection.
    pub(crate) fn plain(words: Arc<Words>, tokens: &TokenInput) -> Embedding {
        Embedding {
            width: tokens.width,
            words,
            scale: tokens.scale,
            positions: PositionTable::None,
            types: Vec::new(),
            norm: None,
            projection: None,
        }
    }

    /// out ← LN(scale·word + type + position)·W, a row per token. `sinusoids` are the rows of a table that
    /// the session made, when the positions are such.
    pub(crate) fn forward(
        &self,
        call: Call<'_>,
        tokens: Tokens<'_>,
        sinusoids: Option<Mat<'_>>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let (mut sum, mut stack) = take(stack, tokens.ids.len(), self.width);
        self.sum(call, tokens, sinusoids, sum.reborrow(), &mut stack);
        let sum = sum.as_ref();
        match (&self.norm, &self.projection) {
            (None, None) => copy(sum, out),
            (Some(norm), None) => norm.forward(call, sum, out),
            (norm, Some(projection)) => {
                let (mut normed, mut stack) = take(&mut stack, sum.rows(), sum.cols());
                match norm {
                    Some(norm) => norm.forward(call, sum, normed.reborrow()),
                    None => copy(sum, normed.reborrow()),
                }
                let normed = normed.as_ref();
                projection.forward(call, normed, Activation::Identity, None, out, &mut stack);
            }
        }
    }

    /// out ← scale·word + type + position.
    fn sum(
        &self,
        call: Call<'_>,
        tokens: Tokens<'_>,
        sinusoids: Option<Mat<'_>>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let rows = tokens.ids.len();
        let (positions, mut stack) = stack.take::<u32>(rows);
        self.positions.rows(tokens.ids, tokens.places, positions);
        let (types, mut stack) = stack.take::<u32>(rows);
        match tokens.types {
            Some(given) => types.copy_from_slice(given),
            None => types.fill(0),
        }
        let (counted, mut stack) = stack.take::<u32>(rows);
        let (mut gathered, _) = take(&mut stack, rows, self.width);
        let word = match &*self.words {
            Words::Rows(words) => {
                Lookup { table: self.table(words), ids: tokens.ids, scale: self.scale }
            }
            // A packed table has a word's features nr elements apart.
            Words::Packed(packed) => {
                for (i, &id) in tokens.ids.iter().enumerate() {
                    counted[i] = i as u32;
                    packed.copy_column(id as usize, gathered.row_mut(i));
                }
                Lookup { table: gathered.as_ref(), ids: counted, scale: self.scale }
            }
        };
        let token_type = Lookup { table: self.table(&self.types), ids: types, scale: 1.0 };
        let position = self.positions.learned().map(|table| self.table(table)).or(sinusoids);
        let position = position.map(|table| Lookup { table, ids: positions, scale: 1.0 });
        let (cpu, par) = (call.cpu, call.par);
        match (self.types.is_empty(), position) {
            (true, None) => embed(cpu, par, &[word], out),
            (true, Some(position)) => embed(cpu, par, &[word, position], out),
            (false, None) => embed(cpu, par, &[word, token_type], out),
            (false, Some(position)) => embed(cpu, par, &[word, token_type, position], out),
        }
    }

    /// Scratch for up to `rows` tokens.
    pub(crate) fn scratch(&self, cpu: Cpu, threads: usize, rows: usize) -> Need {
        let ids = Need::of::<u32>(rows).times(3).and(room(rows, self.width));
        let after = match &self.projection {
            Some(map) => room(rows, self.width).and(map.scratch(cpu, threads, rows)),
            None => Need::NONE,
        };
        room(rows, self.width).and(ids.or(after))
    }

    /// Tables, norm and projection, beside the words, which others may share.
    pub(crate) fn size(&self) -> Size {
        let positions = self.positions.learned().map_or(Size::default(), Size::plain);
        let norm = self.norm.as_ref().map_or(Size::default(), Norm::size);
        let projection = self.projection.as_ref().map_or(Size::default(), Linear::size);
        positions + Size::plain(&self.types) + norm + projection
    }

    fn table<'t>(&self, values: &'t [f32]) -> Mat<'t> {
        Mat::new(values, values.len() / self.width, self.width)
    }
}

fn copy(from: Mat<'_>, mut to: MatMut<'_>) {
    to.copy_from(from);
}

/// scores ← scale·(x·P)·Eᵀ + bias: what the last states say about the next word.
pub(crate) struct ReadOut {
    /// P, from d_model to the width of the words where they differ.
    pub(crate) projection: Option<Linear>,
    pub(crate) scale: f32,
    /// Eᵀ: packed, of its own or the embedding's.
    pub(crate) words: Arc<Words>,
    pub(crate) bias: Option<Vec<f32>>,
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

    /// Bias and projection, beside the words.
    pub(crate) fn size(&self) -> Size {
        let bias = self.bias.as_deref().map_or(Size::default(), Size::plain);
        let projection = self.projection.as_ref().map_or(Size::default(), Linear::size);
        bias + projection
    }
}
