//! What reads numbers and packs them: the caller and, for checkpoints of some size, helpers, each with a staging buffer.

use super::Part;
use crate::error::{Error, Result};
use crate::memory::zeros;
use crate::weights::{Checkpoint, Tensor};
use headrow_kernels::{Cpu, Need, PackedB, Par, Scratch};
use std::ops::Range;
use std::sync::{Mutex, OnceLock};

/// Bytes that a worker reads at a time: they, what becomes of them and its panels have room in a second-level cache.
const STAGING: usize = 128 << 10;

pub(super) struct Loader<'a> {
    checkpoint: &'a Checkpoint<'a>,
    par: Par<'a>,
    scratch: Scratch,
}

/// Some neighbouring columns of a packed matrix, which are neighbouring outputs of a part.
struct Columns<'a> {
    place: Range<usize>,
    part: &'a Part,
    tensor: &'a Tensor,
    /// The first of the part's outputs.
    output: usize,
    /// All numbers of the tensor, where it has inputs first.
    whole: Option<&'a [f32]>,
}

impl<'a> Loader<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint<'a>, par: Par<'a>) -> Loader<'a> {
        Loader { checkpoint, par, scratch: Scratch::new(Need::NONE) }
    }

    /// The numbers of a tensor that has `len`.
    pub(super) fn values(&mut self, name: &str, tensor: &Tensor, len: usize) -> Result<Vec<f32>> {
        let refused = || Error::out_of_memory(format_args!("{name}"));
        let mut values = zeros(len).ok_or_else(refused)?;
        let piece = STAGING / size_of::<f32>();
        let pieces: Vec<Mutex<&mut [f32]>> = values.chunks_mut(piece).map(Mutex::new).collect();
        let staging = Need::of::<u8>(STAGING);
        self.reserve(self.par.need(staging));
        let Loader { checkpoint, par, scratch } = self;
        let failed = OnceLock::new();
        par.run_with(pieces.len(), staging, &mut scratch.stack(), &|index, mut stack| {
            let (bytes, _) = stack.take::<u8>(STAGING);
            let mut out = pieces[index].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            keep(&failed, checkpoint.read(tensor, index * piece, &mut out, bytes));
        });
        drop(pieces);
        ended(failed).map(|()| values)
    }

    /// The parts' weights side by side, as one right operand of inputs × Σ outputs.
    pub(super) fn packed(&mut self, cpu: Cpu, parts: &[(&Part, &Tensor)]) -> Result<PackedB> {
        let mut whole = Vec::with_capacity(parts.len());
        for (part, tensor) in parts {
            let len = part.shape.iter().product();
            whole.push(match part.inputs_first {
                true => Some(self.values(&part.weight, tensor, len)?),
                false => None,
            });
        }
        let mut columns = Vec::new();
        let mut n = 0;
        for (&(part, tensor), whole) in parts.iter().zip(&whole) {
            for outputs in &part.outputs {
                let place = n..n + outputs.len();
                n = place.end;
                let (output, whole) = (outputs.start, whole.as_deref());
                columns.push(Columns { place, part, tensor, output, whole });
            }
        }
        let k = parts[0].0.inputs();
        let staging = Need::of::<u8>(STAGING);
        self.reserve(PackedB::made_scratch(cpu, self.par, k, staging));
        let Loader { checkpoint, par, scratch } = self;
        let failed = OnceLock::new();
        let stack = &mut scratch.stack();
        let packed = PackedB::made(cpu, *par, (k, n), staging, stack, &|first, rows, mut stack| {
            let (bytes, _) = stack.take::<u8>(STAGING);
            let wanted = first..first + rows.len() / k.max(1);
            for columns in &columns {
                let from = columns.place.start.max(wanted.start);
                let to = columns.place.end.min(wanted.end);
                if from < to {
                    let rows = &mut rows[(from - wanted.start) * k..(to - wanted.start) * k];
                    keep(&failed, columns.read(checkpoint, from, rows, bytes));
                }
            }
        });
        ended(failed).map(|()| packed)
    }

    fn reserve(&mut self, need: Need) {
        if self.scratch.bytes() < need.bytes() {
            self.scratch = Scratch::new(need);
        }
    }
}

impl Columns<'_> {
    /// The weights of the outputs that stand from column `from` on, one output after the other.
    fn read(
        &self,
        checkpoint: &Checkpoint<'_>,
        from: usize,
        rows: &mut [f32],
        staging: &mut [u8],
    ) -> Result<()> {
        let (k, output) = (self.part.inputs(), self.output + from - self.place.start);
        match self.whole {
            Some(whole) => transpose(whole, self.part.all_outputs(), output, rows, k),
            None => checkpoint.read(self.tensor, output * k, rows, staging)?,
        }
        if self.part.taps > 1 {
            rows.chunks_exact_mut(k).for_each(|row| taps_first(row, self.part.taps));
        }
        Ok(())
    }
}

/// Remembers the first failure.
fn keep(failed: &OnceLock<Error>, done: Result<()>) {
    if let Err(error) = done {
        let _ = failed.set(error);
    }
}

fn ended(failed: OnceLock<Error>) -> Result<()> {
    failed.into_inner().map_or(Ok(()), Err)
}

/// row\[tap, channel\] ← row\[channel, tap\].
fn taps_first(row: &mut [f32], taps: usize) {
    let channels = row.len() / taps;
    let from = row.to_vec();
    for (i, x) in row.iter_mut().enumerate() {
        *x = from[i % channels * taps + i / channels];
    }
}

/// rows\[i\] ← column `first + i` of a matrix with `columns` columns and k rows.
fn transpose(matrix: &[f32], columns: usize, first: usize, rows: &mut [f32], k: usize) {
    for (p, row) in matrix.chunks_exact(columns).enumerate() {
        for (i, &x) in row[first..first + rows.len() / k].iter().enumerate() {
            rows[i * k + p] = x;
        }
    }
}
