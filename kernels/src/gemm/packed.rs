//! B in panels: what the kernels read as one stream.

use super::Right;
use crate::arch::{PackArgs, prefetch_near};
use crate::cpu::Cpu;
use crate::par::Par;
use crate::scratch::{ALIGN, Need, Stack, refused, room, zeros};
use crate::view::{Mat, MatMut};
use aligned_vec::{AVec, ConstAlign};
use std::fmt;
use std::ops::Range;

/// A right operand B, k × n, packed for one instruction set.
///
/// Columns are grouped in panels of nr. A panel holds its k rows of nr values one after the
/// other: element \[p, j\] lies at `(j / nr)·k·nr + p·nr + j mod nr`. The last panel is padded with columns
/// of zeros, which no kernel reads into a result. Aligned to 64 bytes.
///
/// ```
/// use headrow_kernels::{Cpu, Mat, PackedB};
/// // Two layers' weights, stored as (outputs × inputs), side by side.
/// let mut packed = PackedB::zeroed(Cpu::detect(), 2, 2);
/// packed.set_columns(0, Mat::new(&[1.0, 2.0], 1, 2));
/// packed.set_columns(1, Mat::new(&[3.0, 4.0], 1, 2));
/// assert_eq!([packed.get(1, 0), packed.get(0, 1)], [2.0, 3.0]);
/// ```
#[derive(Clone)]
pub struct PackedB {
    data: AVec<f32, ConstAlign<ALIGN>>,
    k: usize,
    n: usize,
    nr: usize,
    cpu: Cpu,
}

impl PackedB {
    /// Packs B, given as k × n.
    pub fn new(cpu: Cpu, b: Mat<'_>) -> PackedB {
        let mut packed = PackedB::zeroed(cpu, b.rows(), b.cols());
        let (k, n, nr) = (packed.k, packed.n, packed.nr);
        for (panel, first) in (0..n).step_by(nr).enumerate() {
            let out = &mut packed.data[panel * k * nr..][..k * nr];
            pack_plain(b.columns(first..n.min(first + nr)), nr, out);
        }
        packed
    }

    /// Packs B, given transposed as n × k: a linear layer's weight stored as (outputs × inputs).
    pub fn from_transposed(cpu: Cpu, bt: Mat<'_>) -> PackedB {
        let mut packed = PackedB::zeroed(cpu, bt.cols(), bt.rows());
        packed.set_columns(0, bt);
        packed
    }

    /// A matrix of zeros, to be filled by [`PackedB::set_columns`].
    ///
    /// # Panics
    /// When the size overflows.
    #[track_caller]
    pub fn zeroed(cpu: Cpu, k: usize, n: usize) -> PackedB {
        let (nr, len) = (cpu.table.gemm.nr, packed_len(cpu, k, n));
        let data = zeros(len).unwrap_or_else(|| refused(len * size_of::<f32>()));
        PackedB { data, k, n, nr, cpu }
    }

    /// Packs B some columns at a time, shared out among the workers: `make(first, rows, stack)` writes the rows
    /// first, first + 1, … of Bᵀ one after the other, k values each, and has `own` of scratch memory to itself. For weights that
    /// are read from a file: nobody but the worker who packs a panel touches its memory before. What a
    /// call that is given up ([`Par::with_cancel`]) has made is zeros.
    ///
    /// ```
    /// use headrow_kernels::{Cpu, Need, PackedB, Par, Scratch};
    /// let (cpu, k, n) = (Cpu::detect(), 3, 50);
    /// let mut scratch = Scratch::new(PackedB::made_scratch(cpu, Par::SERIAL, k, Need::NONE));
    /// let own = Need::NONE;
    /// let b = PackedB::made(cpu, Par::SERIAL, (k, n), own, &mut scratch.stack(), &|first, rows, _| {
    ///     for (j, row) in rows.chunks_exact_mut(k).enumerate() {
    ///         row.fill((first + j) as f32);
    ///     }
    /// });
    /// assert_eq!([b.get(0, 0), b.get(2, 49)], [0.0, 49.0]);
    /// ```
    ///
    /// # Panics
    /// When the size overflows, and when the stack holds less than [`PackedB::made_scratch`].
    #[track_caller]
    pub fn made(
        cpu: Cpu,
        par: Par<'_>,
        (k, n): (usize, usize),
        own: Need,
        stack: &mut Stack<'_>,
        make: &(dyn Fn(usize, &mut [f32], Stack<'_>) + Sync),
    ) -> PackedB {
        let (nr, len) = (cpu.table.gemm.nr, packed_len(cpu, k, n));
        let mut data = room::<f32>(len).unwrap_or_else(|| refused(len * size_of::<f32>()));
        let (columns, memory) = (columns_at_once(cpu, k), Panels(data.as_mut_ptr()));
        let each = made_by_each(cpu, k, own);
        par.run_with(n.div_ceil(columns), each, stack, &|chunk, mut stack| {
            let first = chunk * columns;
            let count = columns.min(n - first);
            let (bt, stack) = stack.take::<f32>(count * k);
            make(first, bt, stack);
            // SAFETY: whole panels of the memory's, which has `len` elements: `first` is a multiple of nr. Each chunk is
            // run once.
            let panels = unsafe { memory.zeroed(first * k, count.next_multiple_of(nr) * k) };
            for (panel, bt) in bt.chunks(nr * k.max(1)).enumerate() {
                let bt = Mat::new(bt, bt.len() / k.max(1), k);
                set_panel(cpu, bt, 0, &mut panels[panel * k * nr..][..k * nr]);
            }
        });
        // A call that was given up has skipped some.
        if par.is_cancelled() {
            data.resize(len, 0.0);
        } else {
            // SAFETY: every column is in a chunk, and all chunks have written their panels.
            unsafe { data.set_len(len) };
        }
        PackedB { data, k, n, nr, cpu }
    }

    /// Scratch memory for [`PackedB::made`] of depth k, whose `make` has `own`.
    ///
    /// # Panics
    /// When it overflows.
    #[track_caller]
    pub fn made_scratch(cpu: Cpu, par: Par<'_>, k: usize, own: Need) -> Need {
        par.need(made_by_each(cpu, k, own))
    }

    /// Overwrites columns `first .. first + c` with the rows of `bt`, c × k: for weights that are loaded
    /// block by block, or several layers' weights side by side (Q, K and V in one product).
    ///
    /// # Panics
    /// When `bt` has not k columns, or the block ends beyond column n.
    #[track_caller]
    pub fn set_columns(&mut self, first: usize, bt: Mat<'_>) {
        assert!(
            bt.cols() == self.k && first.checked_add(bt.rows()).is_some_and(|end| end <= self.n),
            "{} columns of depth {} at column {first} of a packed {}×{} matrix",
            bt.rows(),
            bt.cols(),
            self.k,
            self.n
        );
        let (k, nr) = (self.k, self.nr);
        let mut done = 0;
        while done < bt.rows() {
            let (panel, within) = ((first + done) / nr, (first + done) % nr);
            let columns = (nr - within).min(bt.rows() - done);
            let out = &mut self.data[panel * k * nr..][..k * nr];
            set_panel(self.cpu, bt.rows_range(done..done + columns), within, out);
            done += columns;
        }
    }

    /// Overwrites all of it with B as it is or transposed, the panels shared out among the workers: for weights
    /// that change, as those in training do. Allocates nothing.
    ///
    /// # Panics
    /// When B has another shape, or is packed itself.
    #[track_caller]
    pub fn refill<'b>(&mut self, par: Par<'_>, b: impl Into<Right<'b>>) {
        let b = b.into();
        let (k, n) = b.shape();
        assert!(
            (k, n) == (self.k, self.n),
            "a {k}×{n} matrix for a packed {}×{} matrix",
            self.k,
            self.n
        );
        pack_panels(self.cpu, par, b, 0..k, 0..n, &mut self.data);
    }

    /// Depth: rows of B.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Width: columns of B.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Memory in bytes, padding included.
    pub fn bytes(&self) -> usize {
        size_of_val::<[f32]>(&self.data)
    }

    /// Element \[p, j\], unpacked.
    ///
    /// # Panics
    /// When p ≥ k or j ≥ n.
    #[track_caller]
    pub fn get(&self, p: usize, j: usize) -> f32 {
        assert!(p < self.k && j < self.n, "element ({p}, {j}) of a {}×{} matrix", self.k, self.n);
        self.data[(j / self.nr * self.k + p) * self.nr + j % self.nr]
    }

    /// out ← column j, unpacked: its elements lie a panel's width apart.
    ///
    /// # Panics
    /// When j ≥ n, or `out` is not k long.
    #[track_caller]
    pub fn copy_column(&self, j: usize, out: &mut [f32]) {
        assert!(
            j < self.n && out.len() == self.k,
            "column {j} of a {}×{} matrix into {} elements",
            self.k,
            self.n,
            out.len()
        );
        let first = j / self.nr * self.k * self.nr + j % self.nr;
        let column = self.data.get(first..).unwrap_or_default().iter().step_by(self.nr);
        out.iter_mut().zip(column).for_each(|(out, x)| *out = *x);
    }

    /// Columns of a panel.
    pub(crate) fn panel(&self) -> usize {
        self.nr
    }

    pub(crate) fn as_ptr(&self) -> *const f32 {
        self.data.as_ptr()
    }
}

impl fmt::Debug for PackedB {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedB({}×{}, panels of {})", self.k, self.n, self.nr)
    }
}

/// Elements of a packed k × n matrix, padding included.
#[track_caller]
fn packed_len(cpu: Cpu, k: usize, n: usize) -> usize {
    let len = n.checked_next_multiple_of(cpu.table.gemm.nr).and_then(|n| n.checked_mul(k));
    let len = len.filter(|&len| len <= isize::MAX as usize / size_of::<f32>());
    len.unwrap_or_else(|| panic!("a packed {k}×{n} matrix overflows the address space"))
}

/// Columns that [`PackedB::made`] asks for at a time: whole panels, as many as a second-level cache has room for beside
/// what they are made from.
fn columns_at_once(cpu: Cpu, k: usize) -> usize {
    const ELEMENTS: usize = 1 << 15;
    let nr = cpu.table.gemm.nr;
    (ELEMENTS / k.max(1) / nr).max(1) * nr
}

/// What a worker of [`PackedB::made`] takes from the stack.
#[track_caller]
fn made_by_each(cpu: Cpu, k: usize, own: Need) -> Need {
    let rows = columns_at_once(cpu, k).checked_mul(k).expect("scratch size overflows");
    Need::of::<f32>(rows).and(own)
}

/// The memory of panels that several workers write.
struct Panels(*mut f32);

// SAFETY: `zeroed` asks its caller for disjoint parts.
unsafe impl Sync for Panels {}

impl Panels {
    /// `len` elements from `first` on, made zero.
    ///
    /// # Safety
    /// They lie in the memory, and nobody else has any of them.
    #[expect(clippy::mut_from_ref, reason = "the caller promises disjoint parts")]
    unsafe fn zeroed(&self, first: usize, len: usize) -> &mut [f32] {
        // SAFETY: the caller's promise; zero bits are the number 0.
        unsafe {
            let part = self.0.add(first);
            part.write_bytes(0, len);
            std::slice::from_raw_parts_mut(part, len)
        }
    }
}

/// Panels that are packed together: a row of B is then read in long pieces.
const PANELS: usize = 4;
/// How many rows of B below the one that is packed are asked for: the processor does not see by itself that a piece
/// of the next row comes next.
const AHEAD: usize = 8;

/// Panels of some rows and columns of an unpacked B, shared out among the workers.
#[track_caller]
pub(super) fn pack_panels(
    cpu: Cpu,
    par: Par<'_>,
    b: Right<'_>,
    depth: Range<usize>,
    columns: Range<usize>,
    memory: &mut [f32],
) {
    let nr = cpu.table.gemm.nr;
    let panels = MatMut::new(memory, columns.len().div_ceil(nr), depth.len() * nr);
    par.for_rows(panels, PANELS, &|panel, mut out| {
        let first = columns.start + panel * nr;
        let columns = first..columns.end.min(first + out.rows() * nr);
        match b {
            Right::Plain(b) => {
                pack_panels_plain(b.rows_range(depth.clone()).columns(columns), nr, out);
            }
            Right::Transposed(bt) => {
                for (panel, first) in columns.clone().step_by(nr).enumerate() {
                    let columns = first..columns.end.min(first + nr);
                    let bt = bt.rows_range(columns).columns(depth.clone());
                    pack_transposed(cpu, bt, out.row_mut(panel));
                }
            }
            Right::Packed(_) => panic!("a packed matrix is not packed again"),
        }
    });
}

/// One panel of a plain B: `b` is its k × (≤ nr) columns; the rest of each row becomes zero.
fn pack_plain(b: Mat<'_>, nr: usize, out: &mut [f32]) {
    pack_panels_plain(b, nr, MatMut::new(out, 1, b.rows() * nr));
}

/// Neighbouring panels of a plain B, each a row of `out`; what is left of the last panel's rows becomes zero.
pub(super) fn pack_panels_plain(b: Mat<'_>, nr: usize, out: MatMut<'_>) {
    match nr {
        1 => pack_rows_of::<1>(b, out),
        2 => pack_rows_of::<2>(b, out),
        3 => pack_rows_of::<3>(b, out),
        4 => pack_rows_of::<4>(b, out),
        5 => pack_rows_of::<5>(b, out),
        6 => pack_rows_of::<6>(b, out),
        7 => pack_rows_of::<7>(b, out),
        8 => pack_rows_of::<8>(b, out),
        16 => pack_rows_of::<16>(b, out),
        64 => pack_rows_of::<64>(b, out),
        _ => unreachable!("no kernel has panels of {nr}"),
    }
}

/// [`pack_panels_plain`] for panels of NR: whole rows are moved in registers, without a call, and B is read row by
/// row, as it lies.
fn pack_rows_of<const NR: usize>(b: Mat<'_>, mut out: MatMut<'_>) {
    let (k, whole, rest) = (b.rows(), b.cols() / NR, b.cols() % NR);
    assert!(out.rows() == b.cols().div_ceil(NR) && out.cols() == k * NR);
    let (from, to) = (b.as_ptr().cast::<[f32; NR]>(), out.as_mut_ptr().cast::<[f32; NR]>());
    let (down, across) = (b.stride(), out.stride());
    for p in 0..k {
        for panel in 0..whole {
            let from = from.wrapping_byte_add(size_of::<f32>() * p * down).wrapping_add(panel);
            let to = to.wrapping_byte_add(size_of::<f32>() * panel * across).wrapping_add(p);
            prefetch_near(from.wrapping_byte_add(size_of::<f32>() * AHEAD * down).cast());
            // SAFETY: NR columns of row p of B, and row p of a panel: both inside (just asserted), and apart.
            unsafe { to.write_unaligned(from.read_unaligned()) };
        }
    }
    if rest > 0 {
        let (last, _) = out.row_mut(whole).as_chunks_mut::<NR>();
        for (p, out) in last.iter_mut().enumerate() {
            out[..rest].copy_from_slice(&b.row(p)[whole * NR..]);
            out[rest..].fill(0.0);
        }
    }
}

/// One panel from the rows of Bᵀ: `bt` is (1 … nr) × k. Columns beyond the last become copies of it.
pub(crate) fn pack_transposed(cpu: Cpu, bt: Mat<'_>, out: &mut [f32]) {
    let nr = cpu.table.gemm.nr;
    assert!((1..=nr).contains(&bt.rows()) && bt.cols().checked_mul(nr) == Some(out.len()));
    if out.is_empty() {
        return;
    }
    let (rows, depth, from, ld) = (bt.rows(), bt.cols(), bt.as_ptr(), bt.stride());
    let args = PackArgs { rows, depth, from, ld, nr, to: out.as_mut_ptr(), ldt: nr };
    // SAFETY: all rows of `bt`, at least one, and room for nr values of each of their columns (both just
    // asserted); `Cpu` proves the instruction set.
    unsafe { (cpu.table.gemm.pack_rows)(args) };
}

/// Columns `within ..` of one panel from the rows of Bᵀ: `bt` is (≤ nr − within) × k. The others stay.
fn set_panel(cpu: Cpu, bt: Mat<'_>, within: usize, out: &mut [f32]) {
    let nr = cpu.table.gemm.nr;
    if bt.rows() == nr {
        pack_transposed(cpu, bt, out);
    } else {
        set_part(bt, nr, within, out);
    }
}

/// [`set_panel`] for less than a panel.
fn set_part(bt: Mat<'_>, nr: usize, within: usize, out: &mut [f32]) {
    // Sixteen values of each row at a time: the part of the panel being written stays in cache.
    const DEPTH: usize = 16;
    for first in (0..bt.cols()).step_by(DEPTH) {
        let depth = DEPTH.min(bt.cols() - first);
        let out = &mut out[first * nr..][..depth * nr];
        for j in 0..bt.rows() {
            let row = &bt.row(j)[first..first + depth];
            for (p, &x) in row.iter().enumerate() {
                out[p * nr + within + j] = x;
            }
        }
    }
}
