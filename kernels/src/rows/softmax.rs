//! Softmax over the rows of a matrix, and over masked rows of attention scores.
//!
//! Three passes over a row that stays in the nearest cache: the true maximum m of the scaled scores;
//! e = e^(s − m) and the sum of e in the 32 lanes; y = e·(1/Σ). The maximum skips NaN, which then surfaces
//! through e and the sum.

use super::elementary::{exp_of_negative, ln};
use super::for_rows;
use super::lanes::{LANES, Lanes, blocks, blocks_mut, map_row};
use crate::arch::FloatMode;
use crate::arch::vector::Vector;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::view::{Mat, MatMut};
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

/// What becomes of one row of scores on its way to softmax, before the division.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scores<'a> {
    /// Multiplies the score.
    pub(crate) scale: f32,
    /// The first key that takes part, and the one after the last. Keys outside are neither read nor written.
    pub(crate) first: usize,
    pub(crate) end: usize,
    /// Added to the scaled score, indexed by key; −∞ hides.
    pub(crate) bias: Option<&'a [f32]>,
    /// Indexed by key; a key is visible when both are true.
    pub(crate) visible: [Option<&'a [bool]>; 2],
}

impl Default for Scores<'_> {
    fn default() -> Self {
        Scores { scale: 1.0, first: 0, end: 0, bias: None, visible: [None; 2] }
    }
}

impl Scores<'_> {
    fn is_masked(&self) -> bool {
        self.bias.is_some() || self.visible.iter().any(Option::is_some)
    }

    /// Whether key `j`, between `first` and `end`, takes part.
    fn sees(&self, j: usize) -> bool {
        self.visible.iter().flatten().all(|visible| visible[j])
            && self.bias.is_none_or(|bias| bias[j] != f32::NEG_INFINITY)
    }
}

/// Replaces the keys `first..end` of `row` by e^(s − max s), where s = score·scale (+ bias), each operation
/// rounded, and hidden ones by +0; returns their sum, taken in the lanes key mod 32.
///
/// The sum is 0 exactly when no key is visible (else it is ≥ 1), and NaN when a visible s is NaN or +∞, or
/// all of them are −∞.
pub(crate) fn exp_scores(cpu: Cpu, scores: &Scores<'_>, row: &mut [f32]) -> f32 {
    (cpu.table.rows.exp_scores)(scores, row)
}

/// Softmax of every row, in place: y_j = e^(x_j − m)/Σ_k e^(x_k − m) with m = max x.
///
/// Error ≤ (n/32 + 12 + |x_j − m|)·u relative to each y_j, u = 2⁻²⁴; a row sums to 1 within (n/32 + 12)·u.
/// A NaN, a +∞, or −∞ alone makes that row NaN. Three passes: O(rows·cols).
pub fn softmax(cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    for_rows(par, x, &|_, block| (cpu.table.rows.softmax)(block));
}

/// ln softmax of every row, in place: (x − m) − ln Σ e^(x − m), in this order.
///
/// Error ≤ (2·|y| + n/32 + 12 + 2·ln n)·u. NaN as in [`softmax`]; finite for finite rows, unless x − m
/// overflows.
pub fn log_softmax(cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    for_rows(par, x, &|_, block| (cpu.table.rows.log_softmax)(block));
}

/// Softmax of the visible scores times `scale`, row by row, in place; hidden elements become +0.
///
/// A hidden element is never read as a number. A row without a visible element becomes zeros; one whose
/// visible scores hold a NaN or +∞, or −∞ alone, becomes NaN where visible.
///
/// # Panics
/// When a mask's shape is not that of `x`.
#[track_caller]
pub fn masked_softmax(cpu: Cpu, par: Par<'_>, scale: f32, visible: Visible<'_>, x: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    let (rows, cols) = (x.rows(), x.cols());
    let fits = match &visible {
        Visible::All | Visible::Diagonal(_) => true,
        Visible::Range(range) => range.start <= range.end && range.end <= cols,
        Visible::Columns(columns) => columns.len() == cols,
        Visible::Each(each) => (each.rows(), each.cols()) == (rows, cols),
        Visible::Added(bias) => (bias.rows(), bias.cols()) == (rows, cols),
    };
    assert!(fits, "a mask that does not fit {rows}×{cols} scores: {visible:?}");
    for_rows(par, x, &|first_row, mut block| {
        for i in 0..block.rows() {
            let at = first_row + i;
            let mut scores = Scores { scale, end: cols, ..Scores::default() };
            match &visible {
                Visible::All => {}
                Visible::Range(range) => (scores.first, scores.end) = (range.start, range.end),
                Visible::Diagonal(offset) => {
                    let end = (at as isize).saturating_add(*offset).saturating_add(1);
                    scores.end = end.clamp(0, cols as isize) as usize;
                }
                Visible::Columns(columns) => scores.visible[0] = Some(columns),
                Visible::Each(each) => scores.visible[0] = Some(each.row(at)),
                Visible::Added(bias) => scores.bias = Some(bias.row(at)),
            }
            (cpu.table.rows.masked_softmax)(&scores, block.row_mut(i));
        }
    });
}

#[inline(always)]
pub(crate) fn softmax_kernel<S: Vector, const R: usize>(simd: S, mut x: MatMut<'_>) {
    for i in 0..x.rows() {
        let row = x.row_mut(i);
        let scores = Scores { end: row.len(), ..Scores::default() };
        let sum = plain_exp_scores::<S, R, false>(simd, &scores, row);
        multiply(simd, row, 1.0 / sum);
    }
}

#[inline(always)]
pub(crate) fn log_softmax_kernel<S: Vector, const R: usize>(simd: S, mut x: MatMut<'_>) {
    for i in 0..x.rows() {
        let row = x.row_mut(i);
        let (blocks, rest) = blocks::<S, R>(row);
        let end = rest.len() as isize;
        let m = largest::<S, R, false>(simd, 1.0, blocks, [(0, 0, &[]), (0, end, rest)]);
        let max = simd.splat_f32s(m);
        let mut sum = Lanes::<S, R>::splat(simd, 0.0);
        for block in blocks {
            for r in 0..R {
                let e = exp_of_negative(simd, simd.sub_f32s(block[r], max), 1.0);
                sum.0[r] = simd.add_f32s(sum.0[r], e);
            }
        }
        if !rest.is_empty() {
            for r in 0..R {
                let (part, first, end) = register::<S>(rest, r, 0, end);
                let e = exp_of_negative(simd, simd.sub_f32s(simd.load(part, first, end), max), 1.0);
                let e = simd.select_f32s(simd.lanes(first, end), e, simd.splat_f32s(0.0));
                sum.0[r] = simd.add_f32s(sum.0[r], e);
            }
        }
        let ln_sum = ln(simd, simd.splat_f32s(sum.sum(simd)));
        map_row(
            simd,
            row,
            #[inline(always)]
            |simd, x| simd.sub_f32s(simd.sub_f32s(x, max), ln_sum),
        );
    }
}

#[inline(always)]
pub(crate) fn masked_softmax_kernel<S: Vector, const R: usize>(
    simd: S,
    scores: &Scores<'_>,
    row: &mut [f32],
) {
    let Scores { first, end, .. } = *scores;
    row[..first].fill(0.0);
    row[end..].fill(0.0);
    let sum = exp_scores_kernel::<S, R>(simd, scores, row);
    if sum == 0.0 {
        // No visible key: the row holds zeros.
    } else if sum.is_nan() {
        // Zeros must stay where keys are hidden.
        for j in first..end {
            row[j] = if scores.sees(j) { f32::NAN } else { 0.0 };
        }
    } else {
        multiply(simd, &mut row[first..end], 1.0 / sum);
    }
}

/// See [`exp_scores`].
#[inline(always)]
pub(crate) fn exp_scores_kernel<S: Vector, const R: usize>(
    simd: S,
    scores: &Scores<'_>,
    row: &mut [f32],
) -> f32 {
    if scores.is_masked() {
        masked_exp_scores::<S, R>(simd, scores, row)
    } else if scores.scale == 1.0 {
        plain_exp_scores::<S, R, false>(simd, scores, row)
    } else {
        plain_exp_scores::<S, R, true>(simd, scores, row)
    }
}

#[inline(always)]
fn multiply<S: Vector>(simd: S, row: &mut [f32], factor: f32) {
    let factor = simd.splat_f32s(factor);
    map_row(
        simd,
        row,
        #[inline(always)]
        |simd, e| simd.mul_f32s(e, factor),
    );
}

/// Register `r` of an incomplete block of 32: its elements, and the lanes of it between `first` and `end`.
#[inline(always)]
fn register<S: Vector>(
    block: &[f32],
    r: usize,
    first: isize,
    end: isize,
) -> (&[f32], isize, isize) {
    let at = r * S::F32_LANES;
    (&block[at.min(block.len())..], first - at as isize, end - at as isize)
}

/// An incomplete block at an end of the range: the lanes that take part, and the elements.
type Edge<'a> = (isize, isize, &'a [f32]);

/// The largest element times `scale`, NaN skipped; −∞ when there is none.
#[inline(always)]
fn largest<S: Vector, const R: usize, const SCALED: bool>(
    simd: S,
    scale: f32,
    blocks: &[[S::f32s; R]],
    edges: [Edge<'_>; 2],
) -> f32 {
    let scale = simd.splat_f32s(scale);
    let mut max = Lanes::<S, R>::splat(simd, f32::NEG_INFINITY);
    for block in blocks {
        for r in 0..R {
            let s = if SCALED { simd.mul_f32s(block[r], scale) } else { block[r] };
            max.0[r] = simd.larger(s, max.0[r]);
        }
    }
    for (first, end, block) in edges {
        if first < end {
            for r in 0..R {
                let (part, first, end) = register::<S>(block, r, first, end);
                let s = simd.load(part, first, end);
                let s = if SCALED { simd.mul_f32s(s, scale) } else { s };
                let hidden = simd.splat_f32s(f32::NEG_INFINITY);
                let s = simd.select_f32s(simd.lanes(first, end), s, hidden);
                max.0[r] = simd.larger(s, max.0[r]);
            }
        }
    }
    max.largest(simd)
}

/// e^(x·scale − m).
#[derive(Clone, Copy)]
struct Exponential<S: Vector, const SCALED: bool> {
    simd: S,
    scale: S::f32s,
    max: S::f32s,
}

impl<S: Vector, const SCALED: bool> Exponential<S, SCALED> {
    #[inline(always)]
    fn of(self, x: S::f32s) -> S::f32s {
        let simd = self.simd;
        let s = if SCALED { simd.mul_f32s(x, self.scale) } else { x };
        exp_of_negative(simd, simd.sub_f32s(s, self.max), 1.0)
    }
}

/// [`exp_scores`] where every key between `first` and `end` is visible.
#[inline(always)]
fn plain_exp_scores<S: Vector, const R: usize, const SCALED: bool>(
    simd: S,
    scores: &Scores<'_>,
    row: &mut [f32],
) -> f32 {
    let Scores { scale, first, end, .. } = *scores;
    if first >= end {
        return 0.0;
    }
    // Whole blocks of keys, after an incomplete one at the head and before one at the tail.
    let start = first / LANES * LANES;
    let row = &mut row[start..end];
    let (head, bulk) =
        if first > start { row.split_at_mut(LANES.min(end - start)) } else { row.split_at_mut(0) };
    let head_lanes = ((first - start) as isize, head.len() as isize);
    let (bulk, tail) = blocks_mut::<S, R>(bulk);
    let tail_end = tail.len() as isize;

    let edges = [(head_lanes.0, head_lanes.1, &*head), (0, tail_end, &*tail)];
    let max = simd.splat_f32s(largest::<S, R, SCALED>(simd, scale, bulk, edges));

    let step = Exponential::<S, SCALED> { simd, scale: simd.splat_f32s(scale), max };
    let mut sum = Lanes::<S, R>::splat(simd, 0.0);
    edge(simd, head, head_lanes.0, head_lanes.1, &mut sum, step);
    for block in bulk {
        for r in 0..R {
            block[r] = step.of(block[r]);
            sum.0[r] = simd.add_f32s(sum.0[r], block[r]);
        }
    }
    edge(simd, tail, 0, tail_end, &mut sum, step);
    sum.sum(simd)
}

/// e^(s − m) of the lanes `first..end` of an incomplete block, in place and added to `sum`.
#[inline(always)]
fn edge<S: Vector, const R: usize, const SCALED: bool>(
    simd: S,
    block: &mut [f32],
    first: isize,
    end: isize,
    sum: &mut Lanes<S, R>,
    step: Exponential<S, SCALED>,
) {
    if first >= end {
        return;
    }
    for r in 0..R {
        let at = (r * S::F32_LANES).min(block.len());
        let part = &mut block[at..];
        let (first, end) = (first - (r * S::F32_LANES) as isize, end - (r * S::F32_LANES) as isize);
        let e = step.of(simd.load(part, first, end));
        simd.store(part, first, end, e);
        let e = simd.select_f32s(simd.lanes(first, end), e, simd.splat_f32s(0.0));
        sum.0[r] = simd.add_f32s(sum.0[r], e);
    }
}

/// Scaled, biased and masked scores, register by register.
struct Source<'a, S: Vector> {
    simd: S,
    scale: S::f32s,
    first: usize,
    end: usize,
    bias: Option<&'a [f32]>,
    visible: [Option<&'a [bool]>; 2],
}

impl<S: Vector> Source<'_, S> {
    /// The scores of the register at key `at`, and which of them are visible.
    #[inline(always)]
    fn load(&self, row: &[f32], at: usize) -> (S::f32s, S::m32s) {
        let simd = self.simd;
        let (from, to) = (self.first as isize - at as isize, self.end as isize - at as isize);
        let mut seen = simd.lanes(from, to);
        let mut s = simd.mul_f32s(simd.load(&row[at..], from, to), self.scale);
        if let Some(bias) = self.bias {
            let bias = simd.load(&bias[at..], from, to);
            s = simd.add_f32s(s, bias);
            let hides = simd.equal_f32s(bias, simd.splat_f32s(f32::NEG_INFINITY));
            seen = simd.and_m32s(seen, simd.not_m32s(hides));
        }
        for visible in self.visible.iter().flatten() {
            seen = simd.and_m32s(seen, simd.truths(&visible[at..]));
        }
        (s, seen)
    }
}

/// [`exp_scores`] with a bias, a mask or both.
#[inline(always)]
fn masked_exp_scores<S: Vector, const R: usize>(
    simd: S,
    scores: &Scores<'_>,
    row: &mut [f32],
) -> f32 {
    let Scores { scale, first, end, bias, visible } = *scores;
    let row = &mut row[..end];
    let bias = bias.map(|bias| &bias[..end]);
    let visible = visible.map(|visible| visible.map(|visible| &visible[..end]));
    let source = Source { simd, scale: simd.splat_f32s(scale), first, end, bias, visible };
    let start = first / LANES * LANES;
    let width = S::F32_LANES;

    let mut max = Lanes::<S, R>::splat(simd, f32::NEG_INFINITY);
    for block in (start..end).step_by(LANES) {
        for r in 0..R {
            let at = block + r * width;
            if at < end {
                let (s, seen) = source.load(row, at);
                let s = simd.select_f32s(seen, s, simd.splat_f32s(f32::NEG_INFINITY));
                max.0[r] = simd.larger(s, max.0[r]);
            }
        }
    }
    let max = simd.splat_f32s(max.largest(simd));

    let mut sum = Lanes::<S, R>::splat(simd, 0.0);
    for block in (start..end).step_by(LANES) {
        for r in 0..R {
            let at = block + r * width;
            if at < end {
                let (s, seen) = source.load(row, at);
                let e = exp_of_negative(simd, simd.sub_f32s(s, max), 1.0);
                let e = simd.select_f32s(seen, e, simd.splat_f32s(0.0));
                let (from, to) = (first as isize - at as isize, end as isize - at as isize);
                simd.store(&mut row[at..], from, to, e);
                sum.0[r] = simd.add_f32s(sum.0[r], e);
            }
        }
    }
    sum.sum(simd)
}
