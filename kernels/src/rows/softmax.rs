//! Softmax over the rows of a matrix, and over masked rows of attention scores.
//!
//! Three passes over a row that stays in the nearest cache: the true maximum m of the scaled scores;
//! e = e^(s − m) and the sum of e in the 32 lanes; y = e·(1/Σ). The maximum skips NaN, which then surfaces
//! through e and the sum.

pub(crate) mod backward;

pub use backward::{log_softmax_backward, softmax_backward};

use super::elementary::{exp_of_negative, ln, tanh};
use super::for_rows;
use super::lanes::{Elementwise, LANES, Lanes, Times, blocks, blocks_mut, load, map_row, store};
use super::pack::{Pack, Truths};
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
    /// What hidden keys become: +0, or −0 as a mark.
    pub(crate) hidden: f32,
}

impl Default for Scores<'_> {
    fn default() -> Self {
        Scores { scale: 1.0, first: 0, end: 0, bias: None, visible: [None; 2], hidden: 0.0 }
    }
}

impl Scores<'_> {
    /// Whether key `j`, between `first` and `end`, takes part.
    fn sees(&self, j: usize) -> bool {
        self.visible.iter().flatten().all(|visible| visible[j])
            && self.bias.is_none_or(|bias| bias[j] != f32::NEG_INFINITY)
    }
}

/// Replaces the keys `first..end` of `row` by e^(s − max s), where s = score·scale (+ bias), each operation
/// rounded, and hidden ones by `hidden`; returns their sum, taken in the lanes key mod 32.
///
/// The sum is 0 exactly when no key is visible (else it is ≥ 1), and NaN when a visible s is NaN or +∞, or
/// all of them are −∞.
pub(crate) fn exp_scores(cpu: Cpu, scores: &Scores<'_>, row: &mut [f32]) -> f32 {
    (cpu.table.rows.exp_scores)(scores, row)
}

/// x ← cap·tanh(x·scale/cap) for every element, each operation rounded.
pub(crate) fn cap_scores(cpu: Cpu, scale: f32, cap: f32, row: &mut [f32]) {
    (cpu.table.rows.cap_scores)(scale, cap, row)
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

/// See [`cap_scores`].
#[inline(always)]
pub(crate) fn cap_scores_kernel<S: Vector>(simd: S, scale: f32, cap: f32, row: &mut [f32]) {
    map_row(simd, row, Capped { scale, cap });
}

/// cap·tanh(x·scale/cap).
#[derive(Clone, Copy)]
struct Capped {
    scale: f32,
    cap: f32,
}

impl<S: Vector> Elementwise<S> for Capped {
    #[inline(always)]
    fn of<const N: usize>(self, x: Pack<S, N>) -> Pack<S, N> {
        let cap = x.all(self.cap);
        tanh(x * x.all(self.scale) / cap) * cap
    }
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

/// One row of [`masked_softmax`].
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
        map_row(simd, &mut row[first..end], Times(1.0 / sum));
    }
}

/// See [`exp_scores`].
#[inline(always)]
pub(crate) fn exp_scores_kernel<S: Vector, const R: usize>(
    simd: S,
    scores: &Scores<'_>,
    row: &mut [f32],
) -> f32 {
    // One copy of the loops for each kind of scores, so that the common ones pay for nothing else.
    // Lanes go by the key's index, so the plain loops serve a row that begins with a block of 32.
    let plain = scores.bias.is_none() && scores.visible.iter().all(Option::is_none);
    if plain && scores.first.is_multiple_of(LANES) {
        let Scores { scale, first, end, .. } = *scores;
        if first >= end {
            return 0.0;
        }
        let row = &mut row[first..end];
        let max = largest::<S, R, true>(simd, row, scale);
        return exponentials::<S, R, true, true>(simd, row, scale, max);
    }
    match (scores.bias.is_some(), scores.visible.iter().any(Option::is_some)) {
        (false, false) => passes::<S, R, false, false>(simd, scores, row),
        (true, false) => passes::<S, R, true, false>(simd, scores, row),
        (false, true) => passes::<S, R, false, true>(simd, scores, row),
        (true, true) => passes::<S, R, true, true>(simd, scores, row),
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

/// The two passes of [`exp_scores`] in the general case, over the blocks of 32 keys that `first..end` touches: whole blocks by whole
/// registers, those at the ends through masks.
#[inline(always)]
fn passes<S: Vector, const R: usize, const BIAS: bool, const MASK: bool>(
    simd: S,
    scores: &Scores<'_>,
    row: &mut [f32],
) -> f32 {
    let Scores { first, end, hidden, .. } = *scores;
    debug_assert!(hidden == 0.0, "a hidden key adds nothing to the sum");
    if first >= end {
        return 0.0;
    }
    let row = &mut row[..end];
    let source = Source::<S, BIAS, MASK>::new(simd, scores);
    let blocks = || (first / LANES * LANES..end).step_by(LANES);
    let is_whole = |block: usize| block >= first && block + LANES <= end;

    // First pass. What is hidden takes no part in the maximum; neither does NaN, which `larger` passes over.
    let mut max = Lanes::<S, R>::splat(simd, f32::NEG_INFINITY);
    for block in blocks() {
        let (s, seen) = if is_whole(block) {
            source.whole::<R>(row, block)
        } else {
            source.part::<R>(row, block)
        };
        let s = seen.select(s, s.all(f32::NEG_INFINITY)).registers;
        for r in 0..R {
            max.0[r] = simd.larger(s[r], max.0[r]);
        }
    }
    let max = Pack::<S, R>::splat(simd, max.largest(simd));

    // Second pass. The scores are scaled, biased and masked once more, which is cheaper than storing them, and
    // a hidden key's exponential, whatever it came to, is replaced before anything sees it.
    let mut sum = Pack::<S, R>::splat(simd, 0.0);
    for block in blocks() {
        if is_whole(block) {
            let (s, seen) = source.whole::<R>(row, block);
            let e = exp_of_negative(s - max, 1.0);
            let e = if BIAS || MASK { seen.select(e, e.all(hidden)) } else { e };
            for r in 0..R {
                store::<S>(&mut row[block + r * S::F32_LANES..][..S::F32_LANES], e.registers[r]);
            }
            sum = sum + e;
        } else {
            let (s, seen) = source.part::<R>(row, block);
            let e = exp_of_negative(s - max, 1.0);
            let e = seen.select(e, e.all(hidden));
            for r in 0..R {
                let at = block + r * S::F32_LANES;
                if at < end {
                    let (from, to) = source.lanes_from(at);
                    simd.store(&mut row[at..], from, to, e.registers[r]);
                }
            }
            sum = sum + e;
        }
    }
    Lanes::<S, R>(sum.registers).sum(simd)
}

/// Scaled, biased and masked scores, block by block.
struct Source<'a, S: Vector, const BIAS: bool, const MASK: bool> {
    simd: S,
    scale: f32,
    first: usize,
    end: usize,
    bias: &'a [f32],
    visible: [Option<&'a [bool]>; 2],
}

impl<'a, S: Vector, const BIAS: bool, const MASK: bool> Source<'a, S, BIAS, MASK> {
    #[inline(always)]
    fn new(simd: S, scores: &Scores<'a>) -> Self {
        let Scores { scale, first, end, bias, visible, .. } = *scores;
        let bias = bias.map_or(&[][..], |bias| &bias[..end]);
        let visible = visible.map(|visible| visible.map(|visible| &visible[..end]));
        Source { simd, scale, first, end, bias, visible }
    }

    /// The lanes of the register at key `at` that lie between the first key and the end.
    #[inline(always)]
    fn lanes_from(&self, at: usize) -> (isize, isize) {
        (self.first as isize - at as isize, self.end as isize - at as isize)
    }

    /// The scores of the 32 keys from `block` on, all of them between the first and the end, and which are visible.
    #[inline(always)]
    fn whole<const R: usize>(&self, row: &[f32], block: usize) -> (Pack<S, R>, Truths<S, R>) {
        let simd = self.simd;
        let width = S::F32_LANES;
        let mut s = Pack::<S, R>::splat(simd, 0.0);
        let mut bias = s;
        for r in 0..R {
            s.registers[r] = load::<S>(&row[block + r * width..][..width]);
            if BIAS {
                bias.registers[r] = load::<S>(&self.bias[block + r * width..][..width]);
            }
        }
        let mut seen = Truths::splat(simd, true);
        if MASK {
            for visible in self.visible.iter().flatten() {
                for r in 0..R {
                    let truths = simd.truths(&visible[block + r * width..][..width]);
                    seen.registers[r] = simd.and_m32s(seen.registers[r], truths);
                }
            }
        }
        self.finish(s, bias, seen)
    }

    /// As [`Source::whole`] for a block that reaches over an end: what lies outside is hidden and not read.
    #[inline(always)]
    fn part<const R: usize>(&self, row: &[f32], block: usize) -> (Pack<S, R>, Truths<S, R>) {
        let simd = self.simd;
        let mut s = Pack::<S, R>::splat(simd, 0.0);
        let mut bias = s;
        let mut seen = Truths::splat(simd, false);
        for r in 0..R {
            let at = block + r * S::F32_LANES;
            if at < self.end {
                let (from, to) = self.lanes_from(at);
                s.registers[r] = simd.load(&row[at..], from, to);
                seen.registers[r] = simd.lanes(from, to);
                if BIAS {
                    bias.registers[r] = simd.load(&self.bias[at..], from, to);
                }
                if MASK {
                    for visible in self.visible.iter().flatten() {
                        let truths = simd.truths(&visible[at..]);
                        seen.registers[r] = simd.and_m32s(seen.registers[r], truths);
                    }
                }
            }
        }
        self.finish(s, bias, seen)
    }

    #[inline(always)]
    fn finish<const R: usize>(
        &self,
        raw: Pack<S, R>,
        bias: Pack<S, R>,
        seen: Truths<S, R>,
    ) -> (Pack<S, R>, Truths<S, R>) {
        let mut s = raw * raw.all(self.scale);
        let mut seen = seen;
        if BIAS {
            s = s + bias;
            seen = seen & !bias.equals(bias.all(f32::NEG_INFINITY));
        }
        (s, seen)
    }
}
