//! What inputs are made of: shapes, strides and numbers, the awkward ones more often than the plain.

use arbitrary::{Result, Unstructured};
use headrow_kernels::{Cpu, Mat, MatMut};

/// A matrix with a row stride of its own; the gaps between its rows are watched.
#[derive(Debug, Clone)]
pub struct Matrix {
    data: Vec<f32>,
    rows: usize,
    cols: usize,
    stride: usize,
}

/// What the gaps hold: a NaN that no kernel makes.
const GAP: u32 = 0x7fa5_5aa5;

impl Matrix {
    /// Values drawn from `u`; rows are plain, or mixtures with NaN, ±∞, denormals, huge values, ±0.
    pub fn draw(u: &mut Unstructured<'_>, rows: usize, cols: usize) -> Result<Matrix> {
        let mut matrix = Matrix::filled(u, rows, cols, 0.0)?;
        for i in 0..rows {
            let awkward = u.ratio(1, 4)?;
            for j in 0..cols {
                matrix.row_mut(i)[j] = if awkward { any(u)? } else { plain(u)? };
            }
        }
        Ok(matrix)
    }

    /// Finite values of ordinary size.
    pub fn draw_plain(u: &mut Unstructured<'_>, rows: usize, cols: usize) -> Result<Matrix> {
        let mut matrix = Matrix::filled(u, rows, cols, 0.0)?;
        for i in 0..rows {
            for x in matrix.row_mut(i) {
                *x = plain(u)?;
            }
        }
        Ok(matrix)
    }

    /// All elements hold `value`.
    pub fn filled(
        u: &mut Unstructured<'_>,
        rows: usize,
        cols: usize,
        value: f32,
    ) -> Result<Matrix> {
        let stride = cols + u.int_in_range(0..=3)?;
        let mut matrix =
            Matrix { data: vec![f32::from_bits(GAP); rows * stride], rows, cols, stride };
        matrix.view_mut().fill(value);
        Ok(matrix)
    }

    /// The same shape and stride, filled with `value`.
    pub fn like(&self, value: f32) -> Matrix {
        let mut matrix = self.clone();
        matrix.view_mut().fill(value);
        matrix
    }

    pub fn view(&self) -> Mat<'_> {
        Mat::with_stride(&self.data, self.rows, self.cols, self.stride)
    }

    pub fn view_mut(&mut self) -> MatMut<'_> {
        MatMut::with_stride(&mut self.data, self.rows, self.cols, self.stride)
    }

    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.stride..][..self.cols]
    }

    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.stride..][..self.cols]
    }

    /// The bits of all elements, every NaN as one and the same.
    ///
    /// # Panics
    /// When something was written between the rows.
    #[track_caller]
    pub fn bits(&self) -> Vec<u32> {
        for (at, x) in self.data.iter().enumerate() {
            let inside = at % self.stride.max(1) < self.cols;
            assert!(inside || x.to_bits() == GAP, "{x} written into the gap at {at} of {self:?}");
        }
        (0..self.rows)
            .flat_map(|i| self.row(i))
            .map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() })
            .collect()
    }
}

/// A few significant bits around 1, either sign.
pub fn plain(u: &mut Unstructured<'_>) -> Result<f32> {
    Ok(f32::from(u.arbitrary::<i16>()?) / 4096.0)
}

/// Any bit pattern, the awkward ones often.
pub fn any(u: &mut Unstructured<'_>) -> Result<f32> {
    Ok(match u.int_in_range(0..=11)? {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => f32::NEG_INFINITY,
        3 => 0.0,
        4 => -0.0,
        5 => f32::MIN_POSITIVE / 8.0,
        6 => f32::MAX,
        7 => f32::MIN,
        8 => f32::from_bits(u.arbitrary()?),
        _ => plain(u)?,
    })
}

/// One instruction set of this machine.
pub fn cpu(u: &mut Unstructured<'_>) -> Result<Cpu> {
    let all: Vec<Cpu> = Cpu::all().collect();
    Ok(*u.choose(&all)?)
}

/// A size that is small, or lies around a tile's edge.
pub fn size(u: &mut Unstructured<'_>, most: usize) -> Result<usize> {
    let edge = *u.choose(&[0usize, 1, 4, 6, 8, 16, 32, 48, 64, 65])?;
    let near = (edge + u.int_in_range(0..=2)?).saturating_sub(1);
    Ok(near.min(most))
}

/// Panics unless `got` is within `bound` of `want`, or both are the same kind of non-number.
#[track_caller]
pub fn assert_close(got: f32, want: f64, bound: f64, what: std::fmt::Arguments<'_>) {
    let same_kind = match (f64::from(got), want) {
        (g, w) if w.is_nan() => g.is_nan(),
        // Rounding may carry a large value over the end of the range.
        (g, w) if g.is_infinite() => w == g || w * g.signum() > f64::from(f32::MAX) - bound,
        (g, w) => (g - w).abs() <= bound,
    };
    assert!(same_kind, "{what}: {got} instead of {want} (bound {bound:e})");
}
