//! Where the keys and values of one head lie: packed into panels, in place, or in the pages of a cache.

use crate::arch::PackArgs;
use crate::cpu::Cpu;
use crate::view::Mat;
use std::ops::Range;

/// Keys or values of one head of one sequence, in runs of memory: one run when they are packed or in
/// place; in a cache one for every stretch of pages that follow one another.
///
/// Keys come in panels of nr, transposed: from a panel's first key on, panels are nr·`ld` apart. Values:
/// column c of a key lies `(c / nr)·panel + c mod nr` after its address, keys are `ld` apart.
#[derive(Clone, Copy)]
pub(super) struct Runs<'a> {
    /// Of the first run, or of the cache's first page.
    pub(super) base: *const f32,
    /// The key that the first run begins with.
    pub(super) first: usize,
    pub(super) ld: usize,
    pub(super) panel: usize,
    pub(super) pages: Option<Pages<'a>>,
}

/// Keys in pages.
#[derive(Clone, Copy)]
pub(super) struct Pages<'a> {
    /// Which pages, in order.
    pub(super) numbers: &'a [u32],
    /// Keys of a page.
    pub(super) length: usize,
}

impl Pages<'_> {
    /// The place of key `start` in the whole cache, and the end of the run of keys from there, up to `end`.
    fn run(&self, start: usize, end: usize) -> (usize, usize) {
        let (page, within) = (start / self.length, start % self.length);
        let place = self.numbers[page] as usize;
        let mut next = page + 1;
        while next * self.length < end && self.numbers[next] as usize == place + next - page {
            next += 1;
        }
        (place * self.length + within, end.min(next * self.length))
    }
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
            let next = end.min(start.saturating_add(most));
            let (at, next) = match &self.pages {
                Some(pages) => pages.run(start, next),
                None => (start - self.first, next),
            };
            let part = start..next;
            start = next;
            Some((part, self.base.wrapping_add(at * self.ld)))
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
        let args =
            PackArgs { rows, depth, from, ld: keys.stride(), nr, to: panel.as_mut_ptr(), ldt: nr };
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
    fn runs_end_where_pages_do_not_follow_one_another() {
        let pages = Some(Pages { numbers: &[5, 6, 2, 3, 4, 9], length: 4 });
        let runs = Runs { base: std::ptr::null(), first: 0, ld: 1, panel: 0, pages };
        let cut = |keys, most| -> Vec<(Range<usize>, usize)> {
            runs.cut(keys, most).map(|(part, at)| (part, at as usize / size_of::<f32>())).collect()
        };
        assert_eq!(cut(0..24, 99), [(0..8, 20), (8..20, 8), (20..24, 36)]);
        assert_eq!(cut(3..11, 99), [(3..8, 23), (8..11, 8)]);
        assert_eq!(cut(6..17, 5), [(6..8, 26), (8..13, 8), (13..17, 13)]);
        assert_eq!(cut(7..7, 5), []);
        let run = Runs { first: 8, pages: None, ..runs };
        let parts: Vec<_> = run.cut(10..20, 6).map(|(part, _)| part).collect();
        assert_eq!(parts, [10..16, 16..20]);
    }

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
