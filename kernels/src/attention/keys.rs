//! Where the keys and values of one head lie: packed into panels, in place, or in the pages of a cache.

use crate::cpu::Cpu;
use crate::table::PackArgs;
use crate::view::Mat;
use std::ops::Range;

/// Keys or values of one head of one sequence, in runs of memory: one run when they are packed or in
/// place, one per page in a cache.
///
/// Keys come in panels of nr, transposed: from a panel's first key on, panels are nr·`ld` apart. Values:
/// column c of a key lies `(c / nr)·panel + c mod nr` after its address, keys are `ld` apart.
#[derive(Clone, Copy)]
pub(super) struct Runs<'a> {
    /// Of the first run, or of the first page of the cache.
    pub(super) base: *const f32,
    /// The key that lies there.
    pub(super) first: usize,
    pub(super) ld: usize,
    pub(super) panel: usize,
    pub(super) pages: Option<Pages<'a>>,
}

/// Runs that are pages.
#[derive(Clone, Copy)]
pub(super) struct Pages<'a> {
    /// Which pages, in order.
    pub(super) numbers: &'a [u32],
    /// Keys of a page.
    pub(super) length: usize,
    /// Elements from one page to the next.
    pub(super) stride: usize,
}

impl<'a> Runs<'a> {
    /// The same values from column panel · nr on.
    pub(super) fn columns_from(self, panel: usize) -> Runs<'a> {
        Runs { base: self.base.wrapping_add(panel * self.panel), ..self }
    }

    /// Cuts keys where a run ends, and after `most` keys: each part with the address of its first key.
    pub(super) fn cut(
        self,
        keys: Range<usize>,
        most: usize,
    ) -> impl Iterator<Item = (Range<usize>, *const f32)> {
        let Range { mut start, end } = keys;
        std::iter::from_fn(move || {
            if start >= end {
                return None;
            }
            let mut next = end.min(start.saturating_add(most));
            let mut at = self.base;
            let mut within = start - self.first;
            if let Some(Pages { numbers, length, stride }) = self.pages {
                at = at.wrapping_add(numbers[start / length] as usize * stride);
                within = start % length;
                next = next.min(start - within + length);
            }
            let part = start..next;
            start = next;
            Some((part, at.wrapping_add(within * self.ld)))
        })
    }
}

/// Packs keys, s × d_k, into panels of nr keys, transposed: element p of key j lies at
/// `(j / nr)·d_k·nr + p·nr + j mod nr`. The last panel is filled up with copies, whose scores nobody reads.
pub(super) fn pack_keys(cpu: Cpu, keys: Mat<'_>, out: &mut [f32]) {
    let (depth, nr) = (keys.cols(), cpu.table.gemm.nr);
    if depth == 0 {
        return;
    }
    for (panel, first) in out.chunks_exact_mut(depth * nr).zip((0..keys.rows()).step_by(nr)) {
        let from = keys.as_ptr().wrapping_add(first * keys.stride());
        let rows = nr.min(keys.rows() - first);
        let args = PackArgs { rows, depth, from, ld: keys.stride(), nr, to: panel.as_mut_ptr() };
        // SAFETY: rows `first..first + rows`, at least one, of `keys`, and a panel of depth · nr elements;
        // `Cpu` proves the instruction set.
        unsafe { (cpu.table.gemm.pack_rows)(args) };
    }
}

/// Packs values, s × d_v, into panels of `nr` columns: column c of key j lies at
/// `(c / nr)·s·nr + j·nr + c mod nr`. What is beyond the last column is not written.
pub(super) fn pack_values(values: Mat<'_>, nr: usize, out: &mut [f32]) {
    let (rows, columns) = (values.rows(), values.cols());
    for (panel, first) in out.chunks_exact_mut((rows * nr).max(1)).zip((0..columns).step_by(nr)) {
        let columns = first..columns.min(first + nr);
        for (j, out) in panel.chunks_exact_mut(nr).enumerate() {
            let from = &values.row(j)[columns.clone()];
            // Pieces of a known size are moved in registers, without a call.
            match (from.first_chunk::<16>(), from.len()) {
                (Some(from), 16) => out[..16].copy_from_slice(from),
                _ => out[..from.len()].copy_from_slice(from),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_hold_every_key_and_value_once() {
        for cpu in Cpu::all() {
            let nr = cpu.table.gemm.nr;
            for (s, d) in [(1, 1), (5, 3), (9, 8), (17, 6), (33, 19), (4, 0), (0, 4), (70, 64)] {
                let data: Vec<f32> = (1..=s * (d + 2)).map(|x| x as f32).collect();
                let mat = Mat::with_stride(&data, s, d, d + 2);
                let mut panels = vec![-1.0; s.next_multiple_of(nr) * d];
                pack_keys(cpu, mat, &mut panels);
                for j in 0..s.next_multiple_of(nr) {
                    for p in 0..d {
                        let found = panels[j / nr * d * nr + p * nr + j % nr];
                        assert_eq!(found, mat.row(j.min(s - 1))[p], "{cpu:?}, key {j} of {s}×{d}");
                    }
                }
                let mut panels = vec![-1.0; s * d.next_multiple_of(nr)];
                pack_values(mat, nr, &mut panels);
                for j in 0..s {
                    for c in 0..d {
                        assert_eq!(panels[c / nr * s * nr + j * nr + c % nr], mat.row(j)[c]);
                    }
                }
            }
        }
    }
}
