//! What the operations are given.

use super::support::Random;
use headrow_kernels::{Mat, MatMut};

pub(crate) fn matrix<'a>(data: &'a [f32], cols: usize) -> Mat<'a> {
    Mat::new(data, data.len() / cols, cols)
}

/// `rows × cols` values in [−1, 1), in rows with a gap of three between them.
pub(crate) struct Strided(pub(crate) Vec<f32>, pub(crate) usize, pub(crate) usize);

impl Strided {
    pub(crate) fn random(rows: usize, cols: usize, rng: &mut Random) -> Strided {
        Strided(rng.vec(rows * (cols + 3)), rows, cols)
    }

    pub(crate) fn view(&self) -> Mat<'_> {
        Mat::with_stride(&self.0, self.1, self.2, self.2 + 3)
    }

    pub(crate) fn view_mut(&mut self) -> MatMut<'_> {
        MatMut::with_stride(&mut self.0, self.1, self.2, self.2 + 3)
    }

    pub(crate) fn append_to(&self, out: &mut Vec<f32>) {
        (0..self.1).for_each(|i| out.extend(self.view().row(i)));
    }
}

/// All exponents with both signs, some mantissas of each, and the special values; 4 rows.
pub(crate) fn numbers() -> Vec<f32> {
    let mut x: Vec<f32> = (0..=u32::MAX).step_by(1_299_709).map(f32::from_bits).collect();
    x.extend((-1500..1500).map(|i| i as f32 / 128.0));
    x.extend([0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX]);
    x.truncate(x.len() / 4 * 4);
    x
}

/// Row lengths around the 32 lanes and each register's width.
pub(crate) const WIDTHS: [usize; 14] = [1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 47, 64, 203];

/// For each width a matrix with ordinary rows, rows of a wide range, and one with a NaN.
pub(crate) fn scores(mut each: impl FnMut(&mut Strided)) {
    let mut rng = Random::new(4);
    for cols in WIDTHS {
        let mut x = Strided::random(7, cols, &mut rng);
        for i in 2..5 {
            x.view_mut().row_mut(i).iter_mut().for_each(|x| *x *= 60.0);
        }
        x.view_mut().row_mut(5)[cols / 2] = f32::NAN;
        x.view_mut().row_mut(6)[cols / 3] = f32::NEG_INFINITY;
        each(&mut x);
    }
}

/// For each width ordinary rows, rows with a large mean, huge and tiny ones, and a constant one.
pub(crate) fn features(mut each: impl FnMut(&Strided, &Strided, &[f32], &[f32], usize)) {
    let mut rng = Random::new(6);
    for cols in WIDTHS.into_iter().chain([384]) {
        let mut x = Strided::random(6, cols, &mut rng);
        let mut residual = Strided::random(6, cols, &mut rng);
        x.view_mut().row_mut(1).iter_mut().for_each(|x| *x += 1e4);
        x.view_mut().row_mut(2).iter_mut().for_each(|x| *x *= 3e37);
        x.view_mut().row_mut(3).iter_mut().for_each(|x| *x *= 1e-38);
        residual.view_mut().row_mut(3).iter_mut().for_each(|x| *x *= 1e-38);
        x.view_mut().row_mut(4).fill(0.3);
        residual.view_mut().row_mut(4).fill(5.1);
        x.view_mut().row_mut(5)[cols / 2] = f32::INFINITY;
        let (gamma, beta) = (rng.vec(cols), rng.vec(cols));
        each(&x, &residual, &gamma, &beta, cols);
    }
}
