//! Matrices handed out to the workers, in blocks of rows or columns.

use super::Par;
use crate::view::MatMut;
use std::marker::PhantomData;

impl Par<'_> {
    /// Hands out `out` in blocks of `rows_per_chunk` whole rows: `work(first_row, block)`.
    pub fn for_rows<T: Send>(
        self,
        out: MatMut<'_, T>,
        rows_per_chunk: usize,
        work: &(dyn Fn(usize, MatMut<'_, T>) + Sync),
    ) {
        let grain = rows_per_chunk.max(1);
        let out = RowBlocks::new(out);
        self.run(out.rows.div_ceil(grain), &|chunk, _| {
            let first = chunk * grain;
            // SAFETY: each chunk index is run once, and the blocks of different chunks are disjoint.
            let block = unsafe { out.block(first, grain.min(out.rows - first)) };
            work(first, block);
        });
    }

    /// As [`Par::for_rows`] for two outputs of equally many rows: `work(first_row, block of a, block of b)`.
    ///
    /// # Panics
    /// When the numbers of rows differ.
    #[track_caller]
    #[allow(clippy::type_complexity)]
    pub fn for_rows_of_two<A: Send, B: Send>(
        self,
        a: MatMut<'_, A>,
        b: MatMut<'_, B>,
        rows_per_chunk: usize,
        work: &(dyn Fn(usize, MatMut<'_, A>, MatMut<'_, B>) + Sync),
    ) {
        assert_eq!(a.rows(), b.rows(), "two outputs of different numbers of rows");
        let none = MatMut::new(&mut [(); 0], a.rows(), 0);
        self.for_rows_of_three(a, b, none, rows_per_chunk, &|first, a, b, _| work(first, a, b));
    }

    /// As [`Par::for_rows_of_two`] for three.
    ///
    /// # Panics
    /// When the numbers of rows differ.
    #[track_caller]
    #[allow(clippy::type_complexity)]
    pub fn for_rows_of_three<A: Send, B: Send, C: Send>(
        self,
        a: MatMut<'_, A>,
        b: MatMut<'_, B>,
        c: MatMut<'_, C>,
        rows_per_chunk: usize,
        work: &(dyn Fn(usize, MatMut<'_, A>, MatMut<'_, B>, MatMut<'_, C>) + Sync),
    ) {
        let all = [a.rows(), b.rows(), c.rows()];
        assert!(all == [a.rows(); 3], "three outputs of {all:?} rows");
        let grain = rows_per_chunk.max(1);
        let (a, b, c) = (RowBlocks::new(a), RowBlocks::new(b), RowBlocks::new(c));
        self.run(a.rows.div_ceil(grain), &|chunk, _| {
            let first = chunk * grain;
            let rows = grain.min(a.rows - first);
            // SAFETY: each chunk index is run once, and the blocks of different chunks are disjoint.
            let (a, b, c) =
                unsafe { (a.block(first, rows), b.block(first, rows), c.block(first, rows)) };
            work(first, a, b, c);
        });
    }

    /// Hands out `out` in blocks of `columns_per_chunk` columns, all rows of them: `work(first_column, block)`.
    pub(crate) fn for_columns<T: Send>(
        self,
        out: MatMut<'_, T>,
        columns_per_chunk: usize,
        work: &(dyn Fn(usize, ColumnBlock<'_, T>) + Sync),
    ) {
        let grain = columns_per_chunk.max(1);
        let cols = out.cols();
        let out = RowBlocks::new(out);
        self.run(cols.div_ceil(grain), &|chunk, _| {
            let first = chunk * grain;
            work(first, ColumnBlock { all: &out, first, cols: grain.min(cols - first) });
        });
    }
}

/// A matrix that several workers write by disjoint blocks of rows.
struct RowBlocks<'a, T> {
    base: *mut T,
    rows: usize,
    cols: usize,
    stride: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: `block` asks its caller for disjoint blocks, so threads never share an element.
unsafe impl<T: Send> Sync for RowBlocks<'_, T> {}

impl<'a, T> RowBlocks<'a, T> {
    fn new(mut out: MatMut<'a, T>) -> Self {
        let (rows, cols, stride) = (out.rows(), out.cols(), out.stride());
        RowBlocks { base: out.as_mut_ptr(), rows, cols, stride, borrowed: PhantomData }
    }

    /// Rows `first .. first + rows`.
    ///
    /// # Safety
    /// The block lies inside the matrix and overlaps no other live block.
    unsafe fn block(&self, first: usize, rows: usize) -> MatMut<'_, T> {
        if rows == 0 || self.cols == 0 {
            return MatMut::with_stride(&mut [], rows, self.cols, self.stride);
        }
        let len = (rows - 1) * self.stride + self.cols;
        // SAFETY: rows `first..first + rows` span exactly these elements of the borrowed matrix; the
        // last row ends before the next block begins, and the caller promises disjointness.
        let data =
            unsafe { std::slice::from_raw_parts_mut(self.base.add(first * self.stride), len) };
        MatMut::with_stride(data, rows, self.cols, self.stride)
    }
}

/// Some columns of a matrix, which one worker writes while others write other columns. Not a [`MatMut`], whose slice
/// would hold their elements too.
pub(crate) struct ColumnBlock<'a, T> {
    all: &'a RowBlocks<'a, T>,
    first: usize,
    cols: usize,
}

impl<T> ColumnBlock<'_, T> {
    /// These columns of row `i`.
    #[inline]
    pub(crate) fn row_mut(&mut self, i: usize) -> &mut [T] {
        let RowBlocks { base, rows, stride, .. } = *self.all;
        assert!(i < rows, "row {i} of a matrix of {rows} rows");
        // SAFETY: these elements of row i of the borrowed matrix lie in no other block (`Par::for_columns`), and
        // this one is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(base.add(i * stride + self.first), self.cols) }
    }
}
