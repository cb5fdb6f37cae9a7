//! Operations on the rows of a matrix: elementary functions, activations, softmax, normalisation.
//!
//! Each kernel is written once, over a vector of 32 virtual lanes that every instruction set fills
//! with the registers it has. Element i of a row lives in lane i mod 32, sums and maxima are taken lane by
//! lane and folded by halves, so the bits of a result depend on the row alone: not on the
//! instruction set, the alignment, the stride, the neighbours or the number of threads.
#![deny(unsafe_code)]
// Registers of several vectors are walked in step.
#![allow(clippy::needless_range_loop)]

pub mod activation;
pub mod dropout;
mod elementary;
mod lanes;
pub mod loss;
pub mod math;
pub mod norm;
pub mod optimizer;
mod pack;
pub mod softmax;
pub mod sums;

pub(crate) use lanes::LANES;

use crate::par::Par;
use crate::view::MatMut;

/// Elements that one core handles in about the time of handing work to another: less stays on the caller.
const GRAIN: usize = 1 << 13;

/// Rows of `cols` elements that make a chunk worth handing out, where there are chunks to be made: for several
/// workers, or to ask a flag between them. `None` when the caller should do all `rows` at once.
fn rows_per_chunk(par: Par<'_>, rows: usize, cols: usize) -> Option<usize> {
    let grain = GRAIN.div_ceil(cols.max(1));
    let several = par.threads() > 1 && rows > grain;
    (several || par.cancel().is_some()).then_some(grain)
}

/// `work(first_row, block)` over the rows of `x`, shared out when there is enough of it.
pub(crate) fn for_rows(par: Par<'_>, x: MatMut<'_>, work: &(dyn Fn(usize, MatMut<'_>) + Sync)) {
    match rows_per_chunk(par, x.rows(), x.cols()) {
        None => work(0, x),
        Some(grain) => par.for_rows(x, grain, work),
    }
}
