//! The loops around the kernel.

use super::left::{self, Rows};
use super::packed::pack_panels;
use super::{Blocking, Epilogue, Left, LeftKind, Right, RightKind, Write};
use crate::arch::{Distance, TileArgs};
use crate::cpu::Cpu;
use crate::par::Par;
use crate::rows::activation::Activation;
use crate::scratch::{Need, Stack};
use crate::view::MatMut;
use std::ops::Range;

/// A larger B (in values) is taken to come from beyond the second-level cache: a little more than a usual one
/// holds, since most of what was used last is still there.
const FAR: usize = (640 << 10) / size_of::<f32>();
/// A B of which so many would fill the last cache is taken to come from main memory: it is one of a model's many.
const LAYERS: usize = 16;
/// What follows a part of the depth that is not the last.
const NO_EPILOGUE: Epilogue<'static> =
    Epilogue { alpha: None, bias: None, activation: Activation::Identity, residual: None };
/// Bytes of C that are finished while they are still near.
const STRIP: usize = 96 << 10;

/// Where some columns of B lie: element \[p, j\] at `base + (j / nr)·panel + p·ldb + j mod nr`, j counted
/// from the first of them.
#[derive(Clone, Copy)]
struct Columns {
    base: *const f32,
    ldb: usize,
    panel: usize,
}

/// C as the workers see it.
#[derive(Clone, Copy)]
struct Out {
    base: *mut f32,
    ldc: usize,
}

/// Columns `first .. first + n` of the product, B laid out for the kernel.
struct Product<'a> {
    cpu: Cpu,
    blocking: &'a Blocking,
    m: usize,
    n: usize,
    k: usize,
    first: usize,
    a: Rows<'a>,
    b: Columns,
    c: Out,
    accumulate: bool,
    from: Distance,
    epilogue: &'a Epilogue<'a>,
}

// SAFETY: A and B are only read; of C each worker touches only the elements of the chunks it claimed, and
// `run` cuts disjoint ones. `Mat` and the epilogue's views are `Sync` themselves.
unsafe impl Sync for Product<'_> {}

/// The product, shapes checked, m and n not zero.
#[expect(clippy::too_many_arguments, reason = "the operands of a BLAS call")]
#[track_caller]
pub(super) fn run(
    cpu: Cpu,
    par: Par<'_>,
    blocking: &Blocking,
    a: Left<'_>,
    b: Right<'_>,
    write: Write,
    epilogue: &Epilogue<'_>,
    mut c: MatMut<'_>,
    stack: &mut Stack<'_>,
) {
    let nr = cpu.table.gemm.nr;
    let (m, k) = a.shape();
    let n = c.cols();
    let product = Product {
        cpu,
        blocking,
        m,
        n,
        k,
        first: 0,
        a: match a {
            Left::Plain(a) if blocking.pack_left => Rows::Packed(a),
            Left::Plain(a) => Rows::Plain(a),
            Left::Transposed(at) => Rows::Transposed(at),
        },
        b: Columns { base: std::ptr::null(), ldb: 0, panel: 0 },
        c: Out { ldc: c.stride(), base: c.as_mut_ptr() },
        accumulate: write == Write::Accumulate,
        from: distance(cpu, n.saturating_mul(k)),
        epilogue,
    };
    match b {
        Right::Packed(b) => {
            let b = Columns { base: b.as_ptr(), ldb: nr, panel: k * nr };
            Product { b, ..product }.share_out(par, stack);
        }
        Right::Plain(b) if in_place(blocking, m, a.kind()) => {
            let b = Columns { base: b.as_ptr(), ldb: b.stride(), panel: nr };
            Product { b, ..product }.share_out(par, stack);
        }
        Right::Plain(_) | Right::Transposed(_) => {
            let nc = blocking.nc.min(n.next_multiple_of(nr));
            let depth = packed_depth(blocking, k, a.kind());
            let (memory, mut stack) = stack.take::<f32>(depth * nc);
            for first in (0..n).step_by(nc) {
                let columns = first..n.min(first + nc);
                product.by_depth(par, b, columns, depth, memory, &mut stack);
            }
        }
    }
}

/// Whether a plain B is used where it lies. It is packed where A is, as the kernels have it.
fn in_place(blocking: &Blocking, m: usize, left: LeftKind) -> bool {
    left == LeftKind::Plain && !blocking.pack_left && m <= blocking.direct_rows
}

/// Depth of the pieces in which an unpacked B is packed.
fn packed_depth(blocking: &Blocking, k: usize, left: LeftKind) -> usize {
    match left {
        LeftKind::Plain => k,
        // Its blocks are packed for each piece of columns, so that pieces are wide and not deep.
        LeftKind::Transposed => blocking.kc.min(k),
    }
}

/// Where a B of so many values is likely to lie.
fn distance(cpu: Cpu, values: usize) -> Distance {
    let memory = cpu.caches().l3 / LAYERS / size_of::<f32>();
    match values {
        _ if values <= FAR => Distance::Near,
        _ if values <= memory => Distance::Far,
        _ => Distance::Memory,
    }
}

/// What `run` takes from its stack.
#[expect(clippy::too_many_arguments, reason = "a shape and the kinds of its operands")]
#[track_caller]
pub(super) fn scratch(
    cpu: Cpu,
    blocking: &Blocking,
    threads: usize,
    m: usize,
    n: usize,
    k: usize,
    left: LeftKind,
    right: RightKind,
) -> Need {
    if m == 0 || n == 0 {
        return Need::NONE;
    }
    let packed_b = match right {
        RightKind::Packed => Need::NONE,
        RightKind::Plain if in_place(blocking, m, left) => Need::NONE,
        RightKind::Plain | RightKind::Transposed => {
            let nr = cpu.table.gemm.nr;
            let nc = n.checked_next_multiple_of(nr).map_or(blocking.nc, |n| n.min(blocking.nc));
            let depth = packed_depth(blocking, k, left);
            Need::of::<f32>(depth.checked_mul(nc).expect("scratch size overflows"))
        }
    };
    packed_b.and(block_of_a(blocking, m, k, left).times(threads.max(1)))
}

/// A worker's copy of a block of A, where it needs one.
#[track_caller]
fn block_of_a(blocking: &Blocking, m: usize, k: usize, left: LeftKind) -> Need {
    match left {
        LeftKind::Plain if !blocking.pack_left => Need::NONE,
        LeftKind::Plain | LeftKind::Transposed => {
            left::packed_need(blocking.mc.min(m), blocking.kc.min(k))
        }
    }
}

impl<'a> Product<'a> {
    /// Some columns of the product with an unpacked B, of which `depth` rows are packed at a time.
    #[track_caller]
    fn by_depth(
        &self,
        par: Par<'_>,
        b: Right<'_>,
        columns: Range<usize>,
        depth: usize,
        memory: &mut [f32],
        stack: &mut Stack<'_>,
    ) {
        let nr = self.cpu.table.gemm.nr;
        let mut blocking = *self.blocking;
        if blocking.chunk_cols < self.n {
            // A piece may be narrower than the chunks are that all workers would have some of.
            let beside = par.threads().div_ceil(self.m.div_ceil(blocking.chunk_rows));
            let most = columns.len().div_ceil(beside).next_multiple_of(nr);
            blocking.chunk_cols = blocking.chunk_cols.min(most);
        }
        let mut p = 0;
        loop {
            let k = depth.min(self.k - p);
            // Phase 1: the workers pack panels of these columns.
            pack_panels(self.cpu, par, b, p..p + k, columns.clone(), memory);
            // Phase 2: they multiply by them.
            let last = p + k == self.k;
            let part = Product {
                blocking: &blocking,
                k,
                n: columns.len(),
                first: columns.start,
                a: self.a.depth(p..p + k),
                b: Columns { base: memory.as_ptr(), ldb: nr, panel: k * nr },
                accumulate: self.accumulate || p > 0,
                // It was written a moment ago.
                from: distance(self.cpu, columns.len() * k),
                epilogue: if last { self.epilogue } else { &NO_EPILOGUE },
                ..*self
            };
            part.share_out(par, stack);
            if last {
                break;
            }
            p += k;
        }
    }

    /// Cuts C into chunks, which the workers claim.
    #[track_caller]
    fn share_out(&self, par: Par<'_>, stack: &mut Stack<'_>) {
        let Blocking { chunk_rows, chunk_cols, .. } = *self.blocking;
        let down = self.m.div_ceil(chunk_rows);
        let across = self.n.div_ceil(chunk_cols);
        let each = self.a.need(self.blocking.mc.min(self.m), self.blocking.kc.min(self.k));
        par.run_with(down * across, each, stack, &|chunk, stack| {
            let (i, j) = (chunk / across * chunk_rows, chunk % across * chunk_cols);
            self.chunk(i..self.m.min(i + chunk_rows), j..self.n.min(j + chunk_cols), stack);
        });
    }

    /// One worker's part of C. The columns start at a panel.
    fn chunk(&self, rows: Range<usize>, columns: Range<usize>, mut stack: Stack<'_>) {
        let Blocking { mc, kc, .. } = *self.blocking;
        let nr = self.cpu.table.gemm.nr;
        // Wrapping, since a B without rows has no elements to point at.
        let b = self.b.base.wrapping_add(columns.start / nr * self.b.panel);
        for i in rows.clone().step_by(mc) {
            let m = mc.min(rows.end - i);
            let mut p = 0;
            loop {
                let k = kc.min(self.k - p);
                let (a, lda) = self.a.block(self.cpu, i..i + m, p..p + k, &mut stack);
                let last = p + k == self.k;
                // What the epilogue comes back to is still in a near cache.
                let strip = if last && !self.epilogue.is_none() {
                    (STRIP / size_of::<f32>() / m).max(nr) / nr * nr
                } else {
                    columns.len()
                };
                for j in columns.clone().step_by(strip) {
                    let n = strip.min(columns.end - j);
                    let tile = TileArgs {
                        m,
                        n,
                        k,
                        a,
                        lda,
                        packed: !matches!(self.a, Rows::Plain(_)),
                        b: b.wrapping_add((j - columns.start) / nr * self.b.panel + p * self.b.ldb),
                        ldb: self.b.ldb,
                        panel: self.b.panel,
                        // SAFETY: an element of C.
                        c: unsafe { self.c.base.add(i * self.c.ldc + self.first + j) },
                        ldc: self.c.ldc,
                        accumulate: self.accumulate || p > 0,
                        from: self.from,
                    };
                    // SAFETY: the blocks of A, B and C lie inside their matrices, a packed A on the stack as the tiles
                    // of these m rows want it; then B is packed too (`in_place`), so that ldb = nr. C is borrowed
                    // mutably, so it overlaps neither, and no other worker has this chunk; `Cpu` proves the
                    // instruction set.
                    unsafe { (self.cpu.table.gemm.tile)(tile) };
                    if last {
                        self.finish(i..i + m, j..j + n);
                    }
                }
                if last {
                    break;
                }
                p += k;
            }
        }
    }

    /// The epilogue on a finished block.
    fn finish(&self, rows: Range<usize>, columns: Range<usize>) {
        if self.epilogue.is_none() {
            return;
        }
        let first = self.first + columns.start;
        for i in rows {
            // SAFETY: a part of row i of C, inside this worker's chunk.
            let row = unsafe {
                let start = self.c.base.add(i * self.c.ldc + first);
                std::slice::from_raw_parts_mut(start, columns.len())
            };
            self.epilogue.finish(self.cpu, i, first, row);
        }
    }
}
