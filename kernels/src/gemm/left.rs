//! A as the kernels read it: as it lies, or in blocks that are copied tile by tile.

use super::packed::pack_panels_plain;
use crate::arch::PackArgs;
use crate::arch::tiles::row_tiles;
use crate::cpu::Cpu;
use crate::scratch::{Need, Stack};
use crate::view::{Mat, MatMut};
use std::ops::Range;

/// Rows that the packing kernels take at a time: no tile has more.
const MOST: usize = 8;

/// Where A lies.
#[derive(Clone, Copy)]
pub(super) enum Rows<'a> {
    /// A itself, which the kernels read.
    Plain(Mat<'a>),
    /// A itself, whose blocks are packed.
    Packed(Mat<'a>),
    /// Aᵀ, whose blocks are packed.
    Transposed(Mat<'a>),
}

impl<'a> Rows<'a> {
    /// Some columns of A.
    pub(super) fn depth(self, p: Range<usize>) -> Rows<'a> {
        match self {
            Rows::Plain(a) => Rows::Plain(a.columns(p)),
            Rows::Packed(a) => Rows::Packed(a.columns(p)),
            Rows::Transposed(at) => Rows::Transposed(at.rows_range(p)),
        }
    }

    /// Scratch memory for a block of at most m rows and k columns.
    pub(super) fn need(self, m: usize, k: usize) -> Need {
        match self {
            Rows::Plain(_) => Need::NONE,
            Rows::Packed(_) | Rows::Transposed(_) => packed_need(m, k),
        }
    }

    /// Rows i and columns p of A, packed if that is how they are read: where they start, and the distance from row to
    /// row as [`TileArgs`](crate::arch::TileArgs) has it. What is packed lies at the stack's top until it is used again.
    pub(super) fn block(
        self,
        cpu: Cpu,
        i: Range<usize>,
        p: Range<usize>,
        stack: &mut Stack<'_>,
    ) -> (*const f32, usize) {
        let k = p.len();
        if let Rows::Plain(a) = self {
            // Wrapping, since an A without columns has no elements to point at.
            return (a.as_ptr().wrapping_add(i.start * a.stride() + p.start), a.stride());
        }
        let (out, _) = stack.take::<f32>(packed_len(i.len(), k));
        match self {
            Rows::Plain(a) | Rows::Packed(a) => pack(cpu, a.rows_range(i).columns(p), out),
            Rows::Transposed(at) => pack_transposed(cpu, at.rows_range(p).columns(i), out),
        }
        (out.as_ptr(), k)
    }
}

/// Values of a packed block, and what the packing kernels write behind it.
#[track_caller]
fn packed_len(m: usize, k: usize) -> usize {
    let values = m.checked_mul(k).and_then(|values| values.checked_add(MOST));
    values.expect("scratch size overflows")
}

/// Scratch memory for a packed block of at most m rows and k columns.
#[track_caller]
pub(super) fn packed_need(m: usize, k: usize) -> Need {
    Need::of::<f32>(packed_len(m, k))
}

/// A block in the order in which its tiles read it: \[i, p\] of a tile of r rows from row s on comes to
/// s·k + p·r + (i − s). Some values behind the block are overwritten.
fn pack(cpu: Cpu, a: Mat<'_>, out: &mut [f32]) {
    let (m, k) = (a.rows(), a.cols());
    assert!(cpu.table.gemm.mr <= MOST && packed_len(m, k) <= out.len());
    if k == 0 {
        return;
    }
    let mut first = 0;
    for (tiles, rows) in row_tiles(m, cpu.table.gemm.mr) {
        for _ in 0..tiles {
            let tile = a.rows_range(first..first + rows);
            let to = out[first * k..].as_mut_ptr();
            let (from, ld) = (tile.as_ptr(), tile.stride());
            let args = PackArgs { rows, depth: k, from, ld, nr: MOST, to, ldt: rows };
            // SAFETY: all rows of the tile, at least one and at most nr; behind its own rows · k values there is room
            // for nr more, which either mean nothing or are written later; `Cpu` proves the instruction set.
            unsafe { (cpu.table.gemm.pack_rows)(args) };
            first += rows;
        }
    }
}

/// [`pack`] from Aᵀ: `at` is k × m.
fn pack_transposed(cpu: Cpu, at: Mat<'_>, out: &mut [f32]) {
    let (k, m) = (at.rows(), at.cols());
    let mut first = 0;
    for (tiles, rows) in row_tiles(m, cpu.table.gemm.mr).into_iter().filter(|&(tiles, _)| tiles > 0)
    {
        let columns = first..first + tiles * rows;
        let out = MatMut::new(&mut out[first * k..][..columns.len() * k], tiles, rows * k);
        first = columns.end;
        pack_panels_plain(at.columns(columns), rows, out);
    }
}
