//! The row kernels of the gradient: plain loops, which compilers turn into vectors for each instruction set. A
//! multiplication and an addition are fused only where `mul_add` stands, so the bits are those written here.

use crate::arch::marked::MARK;
use crate::rows::LANES;
use crate::view::Mat;

/// What one row of weights needs to become the row of gradients.
pub(crate) struct Weighed<'a> {
    /// Σ of the unnormalised weights.
    pub(crate) sum: f32,
    /// δ, the gradient's mean under the weights.
    pub(crate) mean: f32,
    /// The cap, and the capped scores.
    pub(crate) capped: Option<(f32, &'a [f32])>,
    /// Sums of the gradients of what is added to scores.
    pub(crate) d_added: Option<&'a mut [f32]>,
}

/// Both rows in place, element by element: the unnormalised weight e becomes p = e·(1/sum), and dp, the gradient of p,
/// that of the score before the cap,
///
/// p·(dp − mean)·(1 − (s/cap)²), s the capped score, without the last factor when there is no cap.
///
/// What is added to scores has the gradient before that factor, which is added to `d_added`. An element whose weight
/// is −0 is hidden: both become −0. No other becomes −0.
#[inline(always)]
pub(crate) fn gradient_kernel(how: Weighed<'_>, weights: &mut [f32], d: &mut [f32]) {
    let Weighed { sum, mean, capped, d_added } = how;
    let inverse = 1.0 / sum;
    let hidden = |weight: f32| weight.to_bits() == MARK;
    for (weight, d) in weights.iter_mut().zip(&mut *d) {
        let p = *weight * inverse;
        // −0 + 0 is +0.
        let ds = p * (*d - mean) + 0.0;
        (*weight, *d) = if hidden(*weight) { (-0.0, -0.0) } else { (p, ds) };
    }
    if let Some(sums) = d_added {
        // Adding −0 changes nothing.
        sums.iter_mut().zip(&*d).for_each(|(sum, ds)| *sum += ds);
    }
    if let Some((cap, scores)) = capped {
        let inverse = 1.0 / cap;
        for ((d, s), weight) in d.iter_mut().zip(scores).zip(weights) {
            let t = s * inverse;
            let dx = *d * (-t).mul_add(t, 1.0) + 0.0;
            *d = if hidden(*weight) { -0.0 } else { dx };
        }
    }
}

/// out\[i\] ← Σ_c a_ic·b_ic, element c fused into lane c mod 32, the lanes folded by halves.
#[inline(always)]
pub(crate) fn dots_kernel(a: Mat<'_>, b: Mat<'_>, out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        let (a, a_rest) = a.row(i).as_chunks::<LANES>();
        let (b, b_rest) = b.row(i).as_chunks::<LANES>();
        let mut lanes = [0.0f32; LANES];
        for (a, b) in a.iter().zip(b) {
            for l in 0..LANES {
                lanes[l] = a[l].mul_add(b[l], lanes[l]);
            }
        }
        for (sum, (&a, &b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
            *sum = a.mul_add(b, *sum);
        }
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for l in 0..width {
                lanes[l] += lanes[l + width];
            }
        }
        *out = lanes[0];
    }
}

/// Whether no element is NaN or infinite.
#[inline(always)]
pub(crate) fn finite_kernel(x: &[f32]) -> bool {
    const INFINITE: u32 = f32::INFINITY.to_bits();
    x.iter().fold(true, |finite, x| finite & (x.to_bits() & INFINITE != INFINITE))
}

/// x·factor, and +0 for −0.
#[inline(always)]
pub(crate) fn scale_kernel(factor: f32, x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = *x * factor + 0.0);
}
