//! Views of row-major matrices: rows, columns and a row stride over a borrowed slice.
//!
//! Columns are adjacent (column stride 1); rows are `stride ≥ cols` elements apart. A head of a
//! multi-head projection is a range of columns, so Q, K and V are never copied to be split.
//!
//! ```
//! use headrow_kernels::Mat;
//! // Two tokens, d_model = 4, two heads of width 2.
//! let x = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0];
//! let x = Mat::new(&x, 2, 4);
//! let head1 = x.columns(2..4);
//! assert_eq!(head1.row(1), &[12.0, 13.0]);
//! assert_eq!(head1.stride(), 4);
//! ```

use std::fmt;
use std::ops::Range;

/// Elements spanned by `rows` rows of `cols` elements that lie `stride` apart, or `None` on overflow.
/// An empty matrix spans nothing, whatever its stride.
const fn span(rows: usize, cols: usize, stride: usize) -> Option<usize> {
    if rows == 0 || cols == 0 {
        return Some(0);
    }
    match (rows - 1).checked_mul(stride) {
        Some(before_last) => before_last.checked_add(cols),
        None => None,
    }
}

#[track_caller]
fn check(len: usize, rows: usize, cols: usize, stride: usize) {
    assert!(stride >= cols, "row stride {stride} is smaller than the {cols} columns of a row");
    let need = span(rows, cols, stride);
    assert!(
        need.is_some_and(|need| need <= len),
        "a {rows}×{cols} view with row stride {stride} does not fit in {len} elements"
    );
}

/// Rows and stride of a view of every `step`-th row from `first` on.
#[track_caller]
fn every(rows: usize, stride: usize, first: usize, step: usize) -> (usize, usize) {
    let stride = stride.checked_mul(step);
    (rows.saturating_sub(first).div_ceil(step), stride.expect("the distance of the rows overflows"))
}

/// A borrowed `rows × cols` matrix, row-major, column stride 1.
#[derive(Clone, Copy)]
pub struct Mat<'a, T = f32> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    stride: usize,
}

/// A mutably borrowed `rows × cols` matrix, row-major, column stride 1.
pub struct MatMut<'a, T = f32> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a, T> Mat<'a, T> {
    /// A contiguous matrix: the stride is `cols`.
    ///
    /// # Panics
    /// When `data` holds fewer than `rows · cols` elements.
    #[track_caller]
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// A matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// When `stride < cols`, or the last row ends beyond `data`.
    #[track_caller]
    pub fn with_stride(data: &'a [T], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Self { data, rows, cols, stride }
    }

    /// One row.
    pub fn from_row(row: &'a [T]) -> Self {
        Self { data: row, rows: 1, cols: row.len(), stride: row.len() }
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row's start to the next one's.
    pub const fn stride(&self) -> usize {
        self.stride
    }

    /// Row `i` as a slice of `cols` elements.
    ///
    /// # Panics
    /// When `i ≥ rows`.
    #[inline]
    #[track_caller]
    pub fn row(&self, i: usize) -> &'a [T] {
        assert!(i < self.rows, "row {i} of a matrix of {} rows", self.rows);
        if self.cols == 0 {
            return &[];
        }
        &self.data[i * self.stride..][..self.cols]
    }

    /// The rows in `range`, as a view of the same columns.
    ///
    /// # Panics
    /// When the range ends beyond the last row or is reversed.
    #[track_caller]
    pub fn rows_range(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.rows,
            "rows {range:?} of a matrix of {} rows",
            self.rows
        );
        let rows = range.len();
        let data =
            if rows == 0 || self.cols == 0 { &[] } else { &self.data[range.start * self.stride..] };
        Self { data, rows, cols: self.cols, stride: self.stride }
    }

    /// The columns in `range` of every row: for a head, `i·d_k .. (i+1)·d_k`.
    ///
    /// # Panics
    /// When the range ends beyond the last column or is reversed.
    #[track_caller]
    pub fn columns(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.cols,
            "columns {range:?} of a matrix of {} columns",
            self.cols
        );
        let cols = range.len();
        let data = if self.rows == 0 || cols == 0 { &[] } else { &self.data[range.start..] };
        Self { data, rows: self.rows, cols, stride: self.stride }
    }

    /// The rows `first`, `first + step`, `first + 2·step` …
    ///
    /// # Panics
    /// When `step` is 0, or the distance of the rows overflows.
    #[track_caller]
    pub fn every(&self, first: usize, step: usize) -> Self {
        let (rows, stride) = every(self.rows, self.stride, first, step);
        let data =
            if rows == 0 || self.cols == 0 { &[] } else { &self.data[first * self.stride..] };
        Self { data, rows, cols: self.cols, stride }
    }

    /// Address of the first element: valid for `rows` rows of `cols` reads, `stride` apart.
    pub(crate) fn as_ptr(&self) -> *const T {
        self.data.as_ptr()
    }
}

impl<'a, T> MatMut<'a, T> {
    /// A contiguous matrix: the stride is `cols`.
    ///
    /// # Panics
    /// When `data` holds fewer than `rows · cols` elements.
    #[track_caller]
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// A matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// When `stride < cols`, or the last row ends beyond `data`.
    #[track_caller]
    pub fn with_stride(data: &'a mut [T], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Self { data, rows, cols, stride }
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row's start to the next one's.
    pub const fn stride(&self) -> usize {
        self.stride
    }

    /// The same matrix, read-only.
    pub fn as_ref(&self) -> Mat<'_, T> {
        Mat { data: self.data, rows: self.rows, cols: self.cols, stride: self.stride }
    }

    /// The same matrix for a shorter time, so that the view can be used again afterwards.
    pub fn reborrow(&mut self) -> MatMut<'_, T> {
        MatMut { data: self.data, rows: self.rows, cols: self.cols, stride: self.stride }
    }

    /// Row `i` as a mutable slice of `cols` elements.
    ///
    /// # Panics
    /// When `i ≥ rows`.
    #[inline]
    #[track_caller]
    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        assert!(i < self.rows, "row {i} of a matrix of {} rows", self.rows);
        if self.cols == 0 {
            return &mut [];
        }
        &mut self.data[i * self.stride..][..self.cols]
    }

    /// All elements in one slice, when the rows lie back to back.
    pub(crate) fn as_contiguous(&mut self) -> Option<&mut [T]> {
        let back_to_back = self.stride == self.cols || self.rows == 1;
        back_to_back.then(|| &mut self.data[..self.rows * self.cols])
    }

    /// The rows in `range`, as a view of the same columns.
    ///
    /// # Panics
    /// When the range ends beyond the last row or is reversed.
    #[track_caller]
    pub fn rows_range(self, range: Range<usize>) -> MatMut<'a, T> {
        let (head, _) = self.split_rows(range.end);
        head.split_rows(range.start).1
    }

    /// Rows `..at` and rows `at..`, both writable at once.
    ///
    /// # Panics
    /// When `at > rows`.
    #[track_caller]
    pub fn split_rows(self, at: usize) -> (MatMut<'a, T>, MatMut<'a, T>) {
        assert!(at <= self.rows, "split at row {at} of a matrix of {} rows", self.rows);
        let Self { data, rows, cols, stride } = self;
        let cut = if cols == 0 { 0 } else { (at * stride).min(data.len()) };
        let (top, bottom) = data.split_at_mut(cut);
        (
            MatMut { data: top, rows: at, cols, stride },
            MatMut { data: bottom, rows: rows - at, cols, stride },
        )
    }

    /// The columns in `range` of every row.
    ///
    /// # Panics
    /// When the range ends beyond the last column or is reversed.
    #[track_caller]
    pub fn columns(self, range: Range<usize>) -> MatMut<'a, T> {
        assert!(
            range.start <= range.end && range.end <= self.cols,
            "columns {range:?} of a matrix of {} columns",
            self.cols
        );
        let cols = range.len();
        let data =
            if self.rows == 0 || cols == 0 { &mut [] } else { &mut self.data[range.start..] };
        MatMut { data, rows: self.rows, cols, stride: self.stride }
    }

    /// The rows `first`, `first + step`, `first + 2·step` …
    ///
    /// # Panics
    /// When `step` is 0, or the distance of the rows overflows.
    #[track_caller]
    pub fn every(self, first: usize, step: usize) -> MatMut<'a, T> {
        let (rows, stride) = every(self.rows, self.stride, first, step);
        let data = match rows == 0 || self.cols == 0 {
            true => &mut [],
            false => &mut self.data[first * self.stride..],
        };
        MatMut { data, rows, cols: self.cols, stride }
    }

    /// Address of the first element: valid for `rows` rows of `cols` reads and writes, `stride` apart.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut T {
        self.data.as_mut_ptr()
    }
}

impl<T: Copy> MatMut<'_, T> {
    /// Copies `src` into this matrix, element by element.
    ///
    /// # Panics
    /// When the shapes differ.
    #[track_caller]
    pub fn copy_from(&mut self, src: Mat<'_, T>) {
        assert_eq!(
            (self.rows, self.cols),
            (src.rows, src.cols),
            "copy between matrices of different shapes"
        );
        for i in 0..self.rows {
            self.row_mut(i).copy_from_slice(src.row(i));
        }
    }

    /// Sets every element to `value`.
    pub fn fill(&mut self, value: T) {
        for i in 0..self.rows {
            self.row_mut(i).fill(value);
        }
    }
}

impl<T> fmt::Debug for Mat<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mat({}×{}, stride {})", self.rows, self.cols, self.stride)
    }
}

impl<T> fmt::Debug for MatMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MatMut({}×{}, stride {})", self.rows, self.cols, self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_row_may_end_before_its_stride() {
        let data = [0.0f32; 8];
        let m = Mat::with_stride(&data, 2, 3, 5);
        assert_eq!(m.row(1).len(), 3);
    }

    #[test]
    #[should_panic(expected = "does not fit in 7")]
    fn a_view_beyond_its_slice_is_refused() {
        let data = [0.0f32; 7];
        let _ = Mat::with_stride(&data, 2, 3, 5);
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn an_overflowing_span_is_refused() {
        let data = [0.0f32; 7];
        let _ = Mat::with_stride(&data, usize::MAX, 2, 3);
    }

    #[test]
    fn every_other_row_is_a_view_of_twice_the_stride() {
        let mut data: Vec<u8> = (0..14).collect();
        let view =
            |m: Mat<'_, u8>| -> Vec<Vec<u8>> { (0..m.rows()).map(|i| m.row(i).to_vec()).collect() };
        let m = Mat::with_stride(&data, 5, 2, 3);
        assert_eq!(view(m.every(0, 2)), [[0, 1], [6, 7], [12, 13]]);
        assert_eq!(view(m.every(1, 2)), [[3, 4], [9, 10]]);
        assert_eq!(view(m.every(4, 9)), [[12, 13]]);
        assert_eq!(m.every(5, 1).rows(), 0);
        MatMut::with_stride(&mut data, 5, 2, 3).every(1, 2).fill(99);
        assert_eq!(data, [0, 1, 2, 99, 99, 5, 6, 7, 8, 99, 99, 11, 12, 13]);
    }

    #[test]
    fn empty_views_need_no_data() {
        let m: Mat<'_, f32> = Mat::with_stride(&[], 5, 0, 7);
        assert!(m.row(4).is_empty());
        let m: Mat<'_, f32> = Mat::with_stride(&[], 0, 9, 9);
        assert_eq!(m.columns(3..9).cols(), 6);
    }

    #[test]
    fn rows_and_columns_of_a_mutable_view_are_disjoint_parts() {
        let mut data: Vec<f32> = (0..20).map(|x| x as f32).collect();
        let m = MatMut::with_stride(&mut data, 4, 4, 5);
        let (mut top, bottom) = m.split_rows(1);
        let mut right = bottom.columns(2..4);
        top.row_mut(0)[0] = -1.0;
        right.row_mut(2)[1] = -2.0;
        assert_eq!(right.rows(), 3);
        assert_eq!(data[0], -1.0);
        assert_eq!(data[18], -2.0);
    }
}
