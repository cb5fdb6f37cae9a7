//! Definitions of the operations in [`gemm`](mod@crate::gemm).

use crate::view::Mat;

/// A·B in f64 and, beside it, |A|·|B|, which rounding errors are measured by: (m·n, m·n) values.
///
/// # Panics
/// When the inner dimensions differ.
pub fn product(a: Mat<'_>, b: Mat<'_>) -> (Vec<f64>, Vec<f64>) {
    assert_eq!(a.cols(), b.rows(), "inner dimensions");
    let (m, k, n) = (a.rows(), a.cols(), b.cols());
    let (mut c, mut magnitude) = (vec![0.0; m * n], vec![0.0; m * n]);
    for i in 0..m {
        let (c, magnitude) = (&mut c[i * n..][..n], &mut magnitude[i * n..][..n]);
        for p in 0..k {
            let x = f64::from(a.row(i)[p]);
            for (j, &y) in b.row(p).iter().enumerate() {
                c[j] += x * f64::from(y);
                magnitude[j] += (x * f64::from(y)).abs();
            }
        }
    }
    (c, magnitude)
}

/// The bound on the error of one element of a product of depth k: 2·k·u·(|A|·|B|), u = 2⁻²⁴.
///
/// Twice the a-priori bound of a single chain, as [`gemm`](crate::gemm::gemm) states it.
pub fn error_bound(k: usize, magnitude: f64) -> f64 {
    2.0 * k as f64 * 2f64.powi(-24) * magnitude
}
