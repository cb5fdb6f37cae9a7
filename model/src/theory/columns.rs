//! Sequences as the columns of a matrix.

use crate::error::{Error, Result};
use headrow_kernels::Mat;

/// X ∈ ℝ^{d×n}: n tokens of d features, one token a column.
///
/// Columns lie one behind the other. The same memory, read row by row, is Xᵀ ∈ ℝ^{n×d} with one token a row, as the kernels have it: Wx
/// for a column x is xᵀWᵀ for a row, and nothing is ever transposed.
///
/// ```
/// use headrow::theory::Columns;
///
/// // Two tokens of three features.
/// let x = Columns::new(3, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// assert_eq!((x.d(), x.n(), x.column(1)), (3, 2, &[4.0, 5.0, 6.0][..]));
/// assert_eq!(x.permuted(&[1, 0]).column(0), x.column(1));
/// assert_eq!(x.as_rows().row(1), x.column(1));
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Columns {
    d: usize,
    values: Vec<f32>,
}

impl Columns {
    /// The matrix with these columns of `d` numbers, one behind the other.
    ///
    /// # Errors
    /// [`Error::Dimensions`] when there is no column, or the last one is not whole.
    pub fn new(d: usize, values: Vec<f32>) -> Result<Columns> {
        match d > 0 && !values.is_empty() && values.len().is_multiple_of(d) {
            true => Ok(Columns { d, values }),
            false => {
                let expected = format!("a multiple of {d}");
                Err(Error::dimensions("the length of whole columns", values.len(), expected))
            }
        }
    }

    /// The d × n matrix with `entry(i, j)` in row i and column j, both counted from 0.
    ///
    /// # Panics
    /// When d or n is 0.
    #[track_caller]
    pub fn from_fn(d: usize, n: usize, entry: impl Fn(usize, usize) -> f32) -> Columns {
        assert!(d > 0 && n > 0, "a matrix of {d}×{n}");
        let columns = (0..n).flat_map(|j| (0..d).map(move |i| (i, j)));
        Columns { d, values: columns.map(|(i, j)| entry(i, j)).collect() }
    }

    /// d: features of a token.
    pub fn d(&self) -> usize {
        self.d
    }

    /// n: tokens.
    pub fn n(&self) -> usize {
        self.values.len() / self.d
    }

    /// Column j, a token.
    ///
    /// # Panics
    /// When j ≥ n.
    #[track_caller]
    pub fn column(&self, j: usize) -> &[f32] {
        &self.values[j * self.d..(j + 1) * self.d]
    }

    /// All numbers, column by column.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Xᵀ, n × d: the same memory, row by row.
    pub fn as_rows(&self) -> Mat<'_> {
        Mat::new(&self.values, self.n(), self.d)
    }

    /// XP for the permutation matrix P that brings column `order[j]` to place j.
    ///
    /// # Panics
    /// When there is no such column.
    #[track_caller]
    pub fn permuted(&self, order: &[usize]) -> Columns {
        let columns = order.iter().flat_map(|&j| self.column(j).iter().copied());
        Columns { d: self.d, values: columns.collect() }
    }

    /// |x − y| of the entries of two matrices.
    ///
    /// # Panics
    /// When their dimensions differ.
    #[track_caller]
    pub fn differences<'a>(&'a self, other: &'a Columns) -> impl Iterator<Item = f32> + 'a {
        let dimensions = |x: &Columns| (x.d(), x.n());
        assert_eq!(dimensions(self), dimensions(other), "matrices of different dimensions");
        self.values.iter().zip(&other.values).map(|(x, y)| (x - y).abs())
    }
}
