//! Softmax over the rows of a matrix, and over masked rows of attention scores.

use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::rows::for_rows;
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
#[derive(Clone, Copy, Default)]
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

/// Replaces the keys `first..end` of `row` by e^(s − max s), where s is the scaled and biased score, and
/// hidden ones by +0; returns their sum, taken in the lanes key mod 32.
///
/// The sum is 0 exactly when no key is visible, and NaN when a visible score is NaN or +∞, or all of
/// them are −∞.
pub(crate) fn exp_scores(_cpu: Cpu, scores: &Scores<'_>, row: &mut [f32]) -> f32 {
    let Scores { scale, first, end, bias, visible } = *scores;
    let sees = |j: usize| {
        visible.iter().flatten().all(|v| v[j]) && bias.is_none_or(|b| b[j] != f32::NEG_INFINITY)
    };
    let mut max = f32::NEG_INFINITY;
    for j in first..end {
        if sees(j) {
            row[j] = row[j] * scale + bias.map_or(0.0, |b| b[j]);
            if row[j] > max {
                max = row[j];
            }
        }
    }
    let mut sum = 0.0;
    for j in first..end {
        row[j] = if sees(j) { libm::exp(f64::from(row[j] - max)) as f32 } else { 0.0 };
        sum += row[j];
    }
    sum
}

/// Softmax of every row, in place.
pub fn softmax(cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    masked_softmax(cpu, par, 1.0, Visible::All, x);
}

/// log softmax of every row, in place: x − max − ln Σ e^(x − max).
pub fn log_softmax(_cpu: Cpu, par: Par<'_>, x: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    for_rows(par, x, &|_, mut block| {
        for i in 0..block.rows() {
            let row = block.row_mut(i);
            let max = row.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
            let sum: f64 = row.iter().map(|x| libm::exp(f64::from(x - max))).sum();
            let ln = libm::log(sum) as f32;
            row.iter_mut().for_each(|x| *x = *x - max - ln);
        }
    });
}

/// Softmax of the scaled visible scores of every row, in place; the others become +0.
#[track_caller]
pub fn masked_softmax(cpu: Cpu, par: Par<'_>, scale: f32, visible: Visible<'_>, x: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    let cols = x.cols();
    for_rows(par, x, &|first_row, mut block| {
        for i in 0..block.rows() {
            let at = first_row + i;
            let mut scores = Scores { scale, first: 0, end: cols, ..Scores::default() };
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
            let row = block.row_mut(i);
            row[..scores.first].fill(0.0);
            row[scores.end..].fill(0.0);
            let sum = exp_scores(cpu, &scores, row);
            if sum != 0.0 {
                let inverse = 1.0 / sum;
                row[scores.first..scores.end].iter_mut().for_each(|x| *x *= inverse);
            }
        }
    });
}
