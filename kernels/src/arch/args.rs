//! What the matrix kernels of every instruction set are called with.

/// A block of a matrix product:
///
/// C\[i, j\] ← Σ_p A\[i, p\]·B\[p, j\] for i < m, j < n, each as ONE chain of fused multiply-adds in ascending
/// p, starting from +0, or from the old C\[i, j\] when `accumulate`.
///
/// Element \[i, p\] of A is at `a + i·lda + p`: A is row-major, whatever `lda`. B comes in panels of nr
/// columns: \[p, j\] is at `b + (j / nr)·panel + p·ldb + j mod nr`. So a packed B has `ldb = nr` and
/// `panel = k·nr` (more when the block is a part of its depth); a row-major B has its row stride as
/// `ldb` and `panel = nr`; with n ≤ nr, `panel` means nothing. \[i, j\] of C is at `c + i·ldc + j`.
///
/// In a `packed` block A lies in one piece for each of the [tiles](crate::arch::tiles::row_tiles) into which m rows fall
/// with the kernel's mr, so that such a block is not cut by rows: of a tile of r rows from row s on, \[i, p\] is at
/// `a + s·lda + p·r + (i − s)`, with `lda = k`; and `ldb = nr`.
///
/// Any m and n: the kernel cuts the block into its tiles, panel after panel, so that a panel meets all rows while
/// it is in the first-level cache. Exactly the named elements are read and written. Without
/// `accumulate` C is not read.
///
/// # Safety
/// m, n ≥ 1; the elements named above are valid; C overlaps neither A nor B; the machine runs the kernel's
/// instruction set.
pub(crate) type Tile = unsafe fn(tile: TileArgs);

/// The operands of a [`Tile`].
#[derive(Clone, Copy)]
pub(crate) struct TileArgs {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: *const f32,
    pub(crate) lda: usize,
    /// A lies as the tiles of this block read it, and B in its panels without gaps.
    pub(crate) packed: bool,
    pub(crate) b: *const f32,
    pub(crate) ldb: usize,
    pub(crate) panel: usize,
    pub(crate) c: *mut f32,
    pub(crate) ldc: usize,
    pub(crate) accumulate: bool,
    /// A hint: when B comes from beyond the second-level cache, it pays to ask for the next panels in advance.
    pub(crate) from: Distance,
}

/// Where an operand is likely to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distance {
    /// In the second-level cache, or nearer.
    Near,
    /// Beyond it.
    Far,
    /// In main memory.
    Memory,
}

/// Packs rows as the columns of one panel: Bᵀ as the kernel wants B.
///
/// `to[p·ldt + j] = from[min(j, rows − 1)·ld + p]` for j < nr and p < depth: columns beyond the last row repeat
/// it, so that nothing in a panel is stale (a product with a denormal left over costs time). With ldt < nr = 8 columns
/// j < ldt are meant: the others may be written before the next row of the panel is.
///
/// # Safety
/// `rows ≥ 1`, nr is a multiple of 8, and 8 when ldt is less; the elements named above are valid for reading and
/// writing and do not overlap, but for the rows of a panel with ldt < nr; the machine runs the kernel's instruction set.
pub(crate) type PackRows = unsafe fn(args: PackArgs);

/// The operands of [`PackRows`].
#[derive(Clone, Copy)]
pub(crate) struct PackArgs {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) from: *const f32,
    pub(crate) ld: usize,
    pub(crate) nr: usize,
    pub(crate) to: *mut f32,
    /// From one row of the panel to the next.
    pub(crate) ldt: usize,
}
