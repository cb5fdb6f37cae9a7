//! Rows of attention scores: scaled, capped, biased and masked on their way to softmax.
//!
//! Keys go by the lane of their index, wherever the first visible one lies, so hiding keys by a range, by a
//! mask or by a bias of −∞ is all the same to the bits.

use super::{exponentials, largest};
use crate::arch::vector::Vector;
use crate::cpu::Cpu;
use crate::rows::elementary::{exp_of_negative, tanh};
use crate::rows::lanes::{Elementwise, LANES, Lanes, Times, load, map_row, store};
use crate::rows::pack::{Pack, Truths};

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

/// One row of [`masked_softmax`](super::masked_softmax).
#[inline(always)]
pub(crate) fn softmax_kernel<S: Vector, const R: usize>(
    simd: S,
    scores: &Scores<'_>,
    row: &mut [f32],
) {
    let Scores { first, end, .. } = *scores;
    row[..first].fill(0.0);
    row[end..].fill(0.0);
    let sum = exp_kernel::<S, R>(simd, scores, row);
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
pub(crate) fn exp_kernel<S: Vector, const R: usize>(
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

/// See [`cap_scores`].
#[inline(always)]
pub(crate) fn cap_kernel<S: Vector>(simd: S, scale: f32, cap: f32, row: &mut [f32]) {
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

/// The two passes of [`exp_scores`] in the general case, over the blocks of 32 keys that `first..end` touches: whole
/// blocks by whole registers, those at the ends through masks.
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

    /// Scales, adds the bias, and hides where that is −∞.
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
