//! Block sizes: chosen for the caches and the shape, injectable by tests.

use super::LeftKind;
use crate::cpu::Cpu;

/// How a product is cut into chunks for the workers and blocks for the caches.
///
/// No field changes a bit of the result. A worker's chunk of C is `chunk_rows × chunk_cols`; within it,
/// `mc × kc` of A is met with panels of B of depth `kc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// Rows of a block of A: the block should stay in the second-level cache.
    pub mc: usize,
    /// Depth of a block: `kc` rows of a panel of B, and as many values of each row of A, share the nearest levels. With a
    /// transposed A, an unpacked B is packed in pieces of this depth too.
    pub kc: usize,
    /// Columns of an unpacked B that are packed at a time (rounded up to whole panels).
    pub nc: usize,
    /// Rows of C in a worker's chunk.
    pub chunk_rows: usize,
    /// Columns of C in a worker's chunk (rounded up to whole panels).
    pub chunk_cols: usize,
    /// With at most this many rows of an A that is not packed, a plain B is used where it lies instead of being packed.
    pub direct_rows: usize,
    /// Whether blocks of a plain A are packed, as those of a transposed one always are: the kernel then reads one stream
    /// of A, in place of one for each row of its tile.
    pub pack_left: bool,
}

/// Depth beyond which a product is done in parts: the running sums are stored and loaded once per part.
const WHOLE: usize = 1024;
/// Depth of a part at most.
const PART: usize = 768;
/// The same when A is transposed: B is packed piece by piece of it, and a panel stays in the first level.
const KC_TRANSPOSED: usize = 384;
/// Multiply-adds that one thread does sooner than it could share them out.
const WORTH_SHARING: usize = 1 << 17;
/// Multiply-adds in about half a millisecond of one core.
const SHORT: usize = 1 << 25;
/// Reading an element of B from main memory takes a core as long as this many multiply-adds.
const ROWS_PER_READ: usize = 24;
/// Chunks per worker: enough that a late or slow one leaves little for the others to wait for.
const CHUNKS_PER_WORKER: usize = 4;
/// The same where fewer have the width to pack A.
const FEWEST_CHUNKS: usize = 2;
/// The same when A is transposed: each chunk packs its block of A.
const CHUNKS_TRANSPOSED: usize = 2;
/// Panels of B that a block of A must meet to be worth packing.
const WORTH_PACKING: usize = 12;

impl Blocking {
    /// The sizes that [`gemm`](super::gemm) uses for an m × n × k product on up to `threads` workers, A as it is or
    /// transposed.
    pub fn of(cpu: Cpu, threads: usize, left: LeftKind, m: usize, n: usize, k: usize) -> Blocking {
        match left {
            LeftKind::Plain => Blocking::new(cpu, threads, m, n, k),
            LeftKind::Transposed => Blocking::transposed(cpu, threads, m, n, k),
        }
    }

    /// [`Blocking::of`] a plain A.
    pub fn new(cpu: Cpu, threads: usize, m: usize, n: usize, k: usize) -> Blocking {
        let (mr, nr) = (cpu.table.gemm.mr, cpu.table.gemm.nr);
        // A whole depth where it is moderate; else equal parts, so that none is short.
        let parts = if k <= WHOLE { 1 } else { k.div_ceil(PART) };
        let kc = k.div_ceil(parts).next_multiple_of(32);
        let most = most_rows(cpu, kc);
        let mc = m.div_ceil(m.div_ceil(most).max(1)).next_multiple_of(mr);
        // An unpacked B is packed in pieces of half the second level, but not too narrow to pay.
        let nc = (cpu.caches().l2 / 2 / size_of::<f32>() / k.max(1)).max(8 * nr);
        let (mut chunk_rows, mut chunk_cols) = (m, n);
        let direct_rows = 2 * mr;
        let (mut pack_left, worth_packing) = (m > direct_rows, WORTH_PACKING * nr);
        let work = m.saturating_mul(n).saturating_mul(k);
        if threads > 1 && work > WORTH_SHARING {
            // A chunk has the rows of one block, so that few rows share B out by columns, each part of it
            // read by one worker only, and many rows share both.
            let columns = |chunks_per_worker: usize| {
                let chunks = (threads * chunks_per_worker).min(work / WORTH_SHARING + 1);
                n.div_ceil(chunks.div_ceil(m.div_ceil(mc)))
            };
            chunk_rows = mc;
            chunk_cols = columns(CHUNKS_PER_WORKER);
            if pack_left && (chunk_cols..=columns(FEWEST_CHUNKS)).contains(&worth_packing) {
                chunk_cols = worth_packing;
            }
        }
        pack_left &= chunk_cols >= worth_packing;
        Blocking { mc, kc, nc, chunk_rows, chunk_cols, direct_rows, pack_left }.checked(cpu)
    }

    /// [`Blocking::of`] with blocks of A as large as those of any product of at most m rows: for memory that serves all
    /// of them (with a transposed A, of this one).
    pub(super) fn largest(
        cpu: Cpu,
        threads: usize,
        left: LeftKind,
        m: usize,
        n: usize,
        k: usize,
    ) -> Blocking {
        let blocking = Blocking::of(cpu, threads, left, m, n, k);
        match left {
            LeftKind::Plain => {
                let pack_left = m > blocking.direct_rows;
                Blocking { mc: most_rows(cpu, blocking.kc), pack_left, ..blocking }
            }
            LeftKind::Transposed => blocking,
        }
    }

    /// [`Blocking::of`] a transposed A, as gradients of weights have it: k counts tokens. Blocks of A are packed,
    /// so a block meets as many columns as can be, and the depth is cut first: B is packed piece by piece of it.
    fn transposed(cpu: Cpu, threads: usize, m: usize, n: usize, k: usize) -> Blocking {
        let mr = cpu.table.gemm.mr;
        let l2 = cpu.caches().l2 / size_of::<f32>();
        let kc = k.div_ceil(k.div_ceil(KC_TRANSPOSED).max(1)).next_multiple_of(8);
        let mc = (l2 / 2 / kc.max(1) / mr * mr).clamp(4 * mr, 32 * mr);
        // What does not fit the second level beside A comes from the last one, once for each block of A.
        let nc = 2 * l2 / kc.max(1);
        let (mut chunk_rows, mut chunk_cols) = (m, n);
        let work = m.saturating_mul(n).saturating_mul(k);
        if threads > 1 && work > WORTH_SHARING {
            let chunks = (threads * CHUNKS_TRANSPOSED).min(work / WORTH_SHARING + 1);
            chunk_rows = m.div_ceil(chunks).next_multiple_of(mr).clamp(8 * mr, mc.max(8 * mr));
            chunk_cols = n.div_ceil(chunks.div_ceil(m.div_ceil(chunk_rows)));
        }
        Blocking { mc, kc, nc, chunk_rows, chunk_cols, direct_rows: 0, pack_left: true }
            .checked(cpu)
    }

    /// The same in chunks that take a core about half a millisecond at most, for a product that may be given up
    /// between them. Chunks do not show in the scratch memory.
    pub(crate) fn in_short_chunks(self, cpu: Cpu, k: usize) -> Blocking {
        let chunk_rows = self.chunk_rows.min(self.mc);
        let most = SHORT / (chunk_rows + ROWS_PER_READ) / k.max(1);
        let short =
            Blocking { chunk_rows, chunk_cols: self.chunk_cols.min(most), ..self }.checked(cpu);
        let pack_left = self.pack_left && short.chunk_cols >= WORTH_PACKING * cpu.table.gemm.nr;
        Blocking { pack_left, ..short }
    }

    /// The same with every size at least 1, and columns in whole panels.
    pub(crate) fn checked(self, cpu: Cpu) -> Blocking {
        let nr = cpu.table.gemm.nr;
        let panels = |cols: usize| cols.max(1).checked_next_multiple_of(nr).unwrap_or(nr);
        Blocking {
            mc: self.mc.max(1),
            kc: self.kc.max(1),
            nc: panels(self.nc),
            chunk_rows: self.chunk_rows.max(1),
            chunk_cols: panels(self.chunk_cols),
            ..self
        }
    }
}

/// Rows of the largest block of a plain A: about half the second level, through the rest of which panels of B stream.
fn most_rows(cpu: Cpu, kc: usize) -> usize {
    let mr = cpu.table.gemm.mr;
    (cpu.caches().l2 / 2 / size_of::<f32>() / kc.max(1) / mr * mr).clamp(4 * mr, 16 * mr)
}
