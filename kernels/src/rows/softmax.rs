//! Softmax over the rows of a matrix, and over masked rows of attention scores.
//!
//! Three passes over a row that stays in the nearest cache: the true maximum m of the scaled scores;
//! e = e^(s − m) and the sum of e in the 32 lanes; y = e·(1/Σ). The maximum skips NaN, which then surfaces
//! through e and the sum.

pub(crate) mod backward;
pub(crate) mod scores;

pub use backward::{log_softmax_backward, softmax_backward};

use super::elementary::{exp_of_negative, ln};
use super::for_rows;
use super::lanes::{Elementwise, Lanes, Times, blocks, blocks_mut, map_row};
use super::pack::Pack;
use crate::arch::FloatMode;
use crate::arch::vector::Vector;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::view::{Mat, MatMut};
use scores::Scores;
use std::ops::Range;

/// Which elements of a matrix of scores take part, for [`masked_softmax`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Visible<'a> {
    /// All of them.
    All,
    /// The same range of columns in every row.
    Range(Range<usize>),
    /// In row i the columns j ≤ i + offset: the causal mask.
    Diagonal(isize),
    /// The same columns in every row: those whose entry is `true`.
    Columns(&'a [bool]),
    /// Those whose entry is `true`, one entry per element.
    Each(Mat<'a, bool>),
    /// Those whose entry is not −∞; the entry is added to the scaled score.
    Added(Mat<'a>),
}

impl Visible<'_> {
    /// Whether it is of a matrix of this shape.
    fn fits(&self, rows: usize, cols: usize) -> bool {
        match self {
            Visible::All | Visible::Diagonal(_) => true,
            Visible::Range(range) => range.start <= range.end && range.end <= cols,
            Visible::Columns(columns) => columns.len() == cols,
            Visible::Each(each) => (each.rows(), each.cols()) == (rows, cols),
            Visible::Added(bias) => (bias.rows(), bias.cols()) == (rows, cols),
        }
    }

    /// What becomes of row `i` of a matrix of `cols` columns.
    fn scores(&self, scale: f32, i: usize, cols: usize) -> Scores<'_> {
        let mut scores = Scores { scale, end: cols, ..Scores::default() };
        match self {
            Visible::All => {}
            Visible::Range(range) => (scores.first, scores.end) = (range.start, range.end),
            Visible::Diagonal(offset) => {
                let end = (i as isize).saturating_add(*offset).saturating_add(1);
                scores.end = end.clamp(0, cols as isize) as usize;
            }
            Visible::Columns(columns) => scores.visible[0] = Some(columns),
            Visible::Each(each) => scores.visible[0] = Some(each.row(i)),
            Visible::Added(bias) => scores.bias = Some(bias.row(i)),
        }
        scores
    }
}

/// Softmax of every row, in place: y_j = e^(x_j − m)/Σ_k e^(x_k − m) with m = max x.
///
/// Error ≤ (n/32 + 12 + |x_j − m|)·u relative to each y_j, u = 2⁻²⁴; a row sums to 1 within (n/32 + 12)·u.
/// A NaN, a +∞, or −∞ alone makes that row NaN. Three passes: O(rows·cols).
///
/// ```
/// use headrow_kernels::{Cpu, MatMut, Par, softmax};
/// let mut scores = [0.0, 0.0, f32::NEG_INFINITY];
/// softmax(Cpu::detect(), Par::SERIAL, MatMut::new(&mut scores, 1, 3));
/// assert_eq!(scores, [0.5, 0.5, 0.0]);
/// ```
pub fn softmax(cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    for_rows(par, x, &|_, block| (cpu.table.rows.softmax)(block));
}

/// ln softmax of every row, in place: (x − m) − ln Σ e^(x − m), in this order, with m = max x.
///
/// Error ≤ (2·|y| + n/32 + 12 + 2·ln n)·u. NaN as in [`softmax`]; finite for finite rows, unless x − m
/// overflows. Three passes: O(rows·cols).
///
/// ```
/// use headrow_kernels::{Cpu, MatMut, Par, log_softmax};
/// let mut scores = [3.0, 3.0, f32::NEG_INFINITY];
/// log_softmax(Cpu::detect(), Par::SERIAL, MatMut::new(&mut scores, 1, 3));
/// assert!((scores[0] + std::f32::consts::LN_2).abs() < 1e-6);
/// assert_eq!(scores[2], f32::NEG_INFINITY);
/// ```
pub fn log_softmax(cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    for_rows(par, x, &|_, block| (cpu.table.rows.log_softmax)(block));
}

/// Softmax of the visible scores, row by row, in place:
///
/// y_j = e^(s_j − m)/Σ_k e^(s_k − m) with s_j = x_j·`scale` (+ what is added) and m = max s, over the visible k; +0
/// where hidden.
///
/// A hidden element is never read as a number. A row without a visible element becomes zeros; one whose
/// visible scores hold a NaN or +∞, or −∞ alone, becomes NaN where visible. Error as of [`softmax`], relative to the
/// scores s as they are rounded. Three passes: O(rows·cols).
///
/// # Panics
/// When a mask's shape is not that of `x`.
///
/// ```
/// use headrow_kernels::{Cpu, MatMut, Par, Visible, masked_softmax};
/// // Each row sees the columns up to its own; what the others hold does not matter.
/// let mut scores = [1.0, f32::NAN, f32::NAN, 5.0, 5.0, f32::NAN, 0.0, 0.0, f32::NEG_INFINITY];
/// let x = MatMut::new(&mut scores, 3, 3);
/// masked_softmax(Cpu::detect(), Par::SERIAL, 0.5, Visible::Diagonal(0), x);
/// assert_eq!(scores, [1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.5, 0.5, 0.0]);
/// ```
#[track_caller]
pub fn masked_softmax(cpu: Cpu, par: Par<'_>, scale: f32, visible: Visible<'_>, x: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    let (rows, cols) = (x.rows(), x.cols());
    assert!(visible.fits(rows, cols), "a mask that does not fit {rows}×{cols} scores: {visible:?}");
    for_rows(par, x, &|first, mut block| {
        for i in 0..block.rows() {
            let scores = visible.scores(scale, first + i, cols);
            (cpu.table.rows.masked_softmax)(&scores, block.row_mut(i));
        }
    });
}

/// See [`softmax`].
#[inline(always)]
pub(crate) fn softmax_kernel<S: Vector, const R: usize>(simd: S, mut x: MatMut<'_>) {
    for i in 0..x.rows() {
        let row = x.row_mut(i);
        let max = largest::<S, R, false>(simd, row, 1.0);
        let sum = exponentials::<S, R, false, true>(simd, row, 1.0, max);
        map_row(simd, row, Times(1.0 / sum));
    }
}

/// See [`log_softmax`]: the exponentials are only summed, the row is read a third time instead.
#[inline(always)]
pub(crate) fn log_softmax_kernel<S: Vector, const R: usize>(simd: S, mut x: MatMut<'_>) {
    for i in 0..x.rows() {
        let row = x.row_mut(i);
        let max = largest::<S, R, false>(simd, row, 1.0);
        let sum = exponentials::<S, R, false, false>(simd, row, 1.0, max);
        let [ln_sum] = ln(Pack::new(simd, [simd.splat_f32s(sum)])).registers;
        map_row(simd, row, Less::<S> { max: simd.splat_f32s(max), ln_sum });
    }
}

/// (x − m) − ln Σ.
#[derive(Clone, Copy)]
struct Less<S: Vector> {
    max: S::f32s,
    ln_sum: S::f32s,
}

impl<S: Vector> Elementwise<S> for Less<S> {
    #[inline(always)]
    fn of<const N: usize>(self, x: Pack<S, N>) -> Pack<S, N> {
        x - x.repeat(self.max) - x.repeat(self.ln_sum)
    }
}

/// The largest element (times `scale` when `SCALED`), NaN skipped; −∞ when there is none.
#[inline(always)]
pub(super) fn largest<S: Vector, const R: usize, const SCALED: bool>(
    simd: S,
    row: &[f32],
    scale: f32,
) -> f32 {
    let scale = simd.splat_f32s(scale);
    let (blocks, rest) = blocks::<S, R>(row);
    let mut max = Lanes::<S, R>::splat(simd, f32::NEG_INFINITY);
    for block in blocks {
        for r in 0..R {
            let s = if SCALED { simd.mul_f32s(block[r], scale) } else { block[r] };
            max.0[r] = simd.larger(s, max.0[r]);
        }
    }
    // The last, incomplete block: lanes without an element hold −∞, the identity.
    for r in 0..R {
        let (at, end) = (r * S::F32_LANES, rest.len());
        if at < end {
            let end = (end - at) as isize;
            let x = simd.load(&rest[at..], 0, end);
            let s = if SCALED { simd.mul_f32s(x, scale) } else { x };
            let low = simd.splat_f32s(f32::NEG_INFINITY);
            max.0[r] = simd.larger(simd.select_f32s(simd.lanes(0, end), s, low), max.0[r]);
        }
    }
    max.largest(simd)
}

/// e^(x − max), or e^(x·scale − max), of every element of a row: their sum; with `STORE` they replace x.
#[inline(always)]
fn exponentials<S: Vector, const R: usize, const SCALED: bool, const STORE: bool>(
    simd: S,
    row: &mut [f32],
    scale: f32,
    max: f32,
) -> f32 {
    let step = Exponential::<SCALED> { scale, max };
    let (blocks, rest) = blocks_mut::<S, R>(row);
    let mut sum = Pack::<S, R>::splat(simd, 0.0);
    for block in blocks {
        let e = step.of(Pack::new(simd, *block));
        if STORE {
            *block = e.registers;
        }
        sum = sum + e;
    }
    // The last, incomplete block: lanes without an element add +0, the identity.
    let mut sum = Lanes::<S, R>(sum.registers);
    for r in 0..R {
        let (at, end) = (r * S::F32_LANES, rest.len());
        if at < end {
            let rest = &mut rest[at..];
            let end = (end - at) as isize;
            let [e] = step.of(Pack::new(simd, [simd.load(rest, 0, end)])).registers;
            if STORE {
                simd.store(rest, 0, end, e);
            }
            let e = simd.select_f32s(simd.lanes(0, end), e, simd.splat_f32s(0.0));
            sum.0[r] = simd.add_f32s(sum.0[r], e);
        }
    }
    sum.sum(simd)
}

/// e^(x − max), or e^(x·scale − max).
#[derive(Clone, Copy)]
struct Exponential<const SCALED: bool> {
    scale: f32,
    max: f32,
}

impl<const SCALED: bool, S: Vector> Elementwise<S> for Exponential<SCALED> {
    #[inline(always)]
    fn of<const N: usize>(self, x: Pack<S, N>) -> Pack<S, N> {
        let s = if SCALED { x * x.all(self.scale) } else { x };
        exp_of_negative(s - x.all(self.max), 1.0)
    }
}
