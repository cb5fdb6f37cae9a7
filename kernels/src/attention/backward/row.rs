//! The row kernels of the gradient: plain loops, which compilers turn into vectors for each instruction set. A
//! multiplication and an addition are fused only where `mul_add` stands, so the bits are those written here.

use crate::arch::marked::MARK;
use crate::rows::LANES;

/// What one row of weights needs to become the row of gradients.
pub(crate) struct Weighed<'a> {
    /// Σ of the unnormalised weights.
    pub(crate) sum: f32,
    /// The cap, and the capped scores.
    pub(crate) capped: Option<(f32, &'a [f32])>,
    /// Sums of the gradients of what is added to scores.
    pub(crate) d_added: [Option<&'a mut [f32]>; 2],
}

/// Both rows in place, element by element: the unnormalised weight e becomes p = e·(1/sum), and dp, the gradient of p,
/// that of the score before the cap,
///
/// p·(dp − Σ p·dp)·(1 − (s/cap)²), s the capped score, without the last factor when there is no cap.
///
/// The sum is fused, element j into lane j mod 32, the lanes folded by halves. What is added to scores has the gradient
/// before the last factor, which is added to `d_added`. An element whose weight is −0 is hidden: both become −0. No
/// other becomes −0.
#[inline(always)]
pub(crate) fn gradient_kernel(how: Weighed<'_>, weights: &mut [f32], d: &mut [f32]) {
    let Weighed { sum, capped, d_added } = how;
    let mean = normalise(1.0 / sum, weights, d);
    for (weight, d) in weights.iter().zip(&mut *d) {
        // −0 + 0 is +0.
        let ds = weight * (*d - mean) + 0.0;
        *d = if is_hidden(*weight) { -0.0 } else { ds };
    }
    for sums in d_added.into_iter().flatten() {
        // Adding −0 changes nothing.
        sums.iter_mut().zip(&*d).for_each(|(sum, ds)| *sum += ds);
    }
    if let Some((cap, scores)) = capped {
        let inverse = 1.0 / cap;
        for ((d, s), weight) in d.iter_mut().zip(scores).zip(weights) {
            let t = s * inverse;
            let dx = *d * (-t).mul_add(t, 1.0) + 0.0;
            *d = if is_hidden(*weight) { -0.0 } else { dx };
        }
    }
}

#[inline(always)]
fn is_hidden(weight: f32) -> bool {
    weight.to_bits() == MARK
}

/// Multiplies the weights that are not hidden, and gives Σ weight·d over them.
#[inline(always)]
fn normalise(inverse: f32, weights: &mut [f32], d: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (blocks, rest) = weights.as_chunks_mut::<LANES>();
    let (d_blocks, d_rest) = d.as_chunks::<LANES>();
    for (weights, d) in blocks.iter_mut().zip(d_blocks) {
        for l in 0..LANES {
            weigh(inverse, &mut weights[l], d[l], &mut lanes[l]);
        }
    }
    for ((weight, &d), lane) in rest.iter_mut().zip(d_rest).zip(&mut lanes) {
        weigh(inverse, weight, d, lane);
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for l in 0..width {
            lanes[l] += lanes[l + width];
        }
    }
    lanes[0]
}

#[inline(always)]
fn weigh(inverse: f32, weight: &mut f32, d: f32, lane: &mut f32) {
    let p = *weight * inverse;
    let with = p.mul_add(d, *lane);
    (*weight, *lane) = if is_hidden(*weight) { (*weight, *lane) } else { (p, with) };
}

/// Whether no element is NaN or infinite.
#[inline(always)]
pub(crate) fn finite_kernel(x: &[f32]) -> bool {
    const INFINITE: u32 = f32::INFINITY.to_bits();
    x.iter().fold(true, |finite, x| finite & (x.to_bits() & INFINITE != INFINITE))
}

/// Some columns of some rows, which one worker owns.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) first: *mut f32,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) ld: usize,
}

impl Part {
    /// `work` on each row.
    ///
    /// # Safety
    /// The elements are there, and nobody else uses them meanwhile.
    #[inline(always)]
    pub(super) unsafe fn each_row(self, mut work: impl FnMut(&mut [f32])) {
        let Part { first, rows, cols, ld } = self;
        if cols == 0 {
            return;
        }
        for i in 0..rows {
            // SAFETY: row i < rows; the caller's promise.
            work(unsafe { std::slice::from_raw_parts_mut(first.add(i * ld), cols) });
        }
    }

    /// Zeros in all of it.
    ///
    /// # Safety
    /// As for [`Part::each_row`].
    pub(super) unsafe fn clear(self) {
        // SAFETY: the caller's promise.
        unsafe { self.each_row(|row| row.fill(0.0)) };
    }
}

/// x·factor, and +0 for −0.
///
/// # Safety
/// As for [`Part::each_row`].
#[inline(always)]
pub(crate) unsafe fn scale_kernel(factor: f32, part: Part) {
    // SAFETY: the caller's promise.
    unsafe { part.each_row(|row| row.iter_mut().for_each(|x| *x = *x * factor + 0.0)) };
}
