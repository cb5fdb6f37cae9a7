//! The 32 virtual lanes: sums and maxima over a row with the same bits on every instruction set.
//!
//! | | registers | lanes of a register |
//! |---|---|---|
//! | AVX-512 | 2 | 16 |
//! | AVX2 | 4 | 8 |
//! | NEON | 8 | 4 |
//! | scalar | 32 | 1 |
//!
//! Element i of a row is added to lane i mod 32, in ascending i. At the end lane i is combined with lane i + 16,
//! then i + 8, i + 4, i + 2, i + 1: first whole registers, then the halves of one.

use super::pack::Pack;
use crate::arch::vector::Vector;
use crate::view::MatMut;

/// Virtual lanes of a reduction: element i of a row belongs to lane i mod 32.
pub(crate) const LANES: usize = 32;

/// 32 lanes in R registers.
#[derive(Clone, Copy)]
pub(super) struct Lanes<S: Vector, const R: usize>(pub(super) [S::f32s; R]);

impl<S: Vector, const R: usize> Lanes<S, R> {
    const WIDTH: usize = S::F32_LANES;

    #[inline(always)]
    pub(super) fn splat(simd: S, value: f32) -> Self {
        const { assert!(R * Self::WIDTH == LANES) };
        Lanes([simd.splat_f32s(value); R])
    }

    /// The sum of all lanes: lane i with i + 16, then 8, 4, 2, 1.
    #[inline(always)]
    pub(super) fn sum(self, simd: S) -> f32 {
        let mut lanes = self.0;
        let mut width = R;
        while width > 1 {
            width /= 2;
            for r in 0..width {
                lanes[r] = simd.add_f32s(lanes[r], lanes[r + width]);
            }
        }
        simd.fold_sum(lanes[0])
    }

    /// The largest lane, in the same order; lanes never hold NaN.
    #[inline(always)]
    pub(super) fn largest(self, simd: S) -> f32 {
        let mut lanes = self.0;
        let mut width = R;
        while width > 1 {
            width /= 2;
            for r in 0..width {
                lanes[r] = simd.larger(lanes[r], lanes[r + width]);
            }
        }
        simd.fold_larger(lanes[0])
    }
}

/// The whole blocks of 32 elements of a row, and the rest: fewer than 32 elements.
#[inline(always)]
pub(super) fn blocks<S: Vector, const R: usize>(row: &[f32]) -> (&[[S::f32s; R]], &[f32]) {
    let (registers, _) = S::as_simd_f32s(row);
    let (blocks, _) = pulp::as_arrays::<R, _>(registers);
    (blocks, &row[blocks.len() * LANES..])
}

/// As [`blocks`], writable.
#[inline(always)]
pub(super) fn blocks_mut<S: Vector, const R: usize>(
    row: &mut [f32],
) -> (&mut [[S::f32s; R]], &mut [f32]) {
    let (whole, rest) = row.split_at_mut(row.len() / LANES * LANES);
    let (registers, _) = S::as_mut_simd_f32s(whole);
    let (blocks, _) = pulp::as_arrays_mut::<R, _>(registers);
    (blocks, rest)
}

/// Registers that go through an element-wise function side by side: enough to hide its latency, few enough
/// to stay in registers, mostly: with AVX2's sixteen a few spill, but two side by side were slower by a tenth (SiLU)
/// to two fifths (erf).
pub(super) const ABREAST: usize = 4;

/// A function of every element by itself.
///
/// A trait and not a closure: a closure that is passed on by reference goes through a shim that is compiled
/// without the processor's features, and every intrinsic in it becomes a call.
pub(super) trait Elementwise<S: Vector>: Copy {
    fn of<const N: usize>(self, x: Pack<S, N>) -> Pack<S, N>;
}

/// A whole register from as many elements.
#[inline(always)]
pub(super) fn load<S: Vector>(from: &[f32]) -> S::f32s {
    S::as_simd_f32s(from).0[0]
}

/// A whole register to as many elements.
#[inline(always)]
pub(super) fn store<S: Vector>(to: &mut [f32], value: S::f32s) {
    S::as_mut_simd_f32s(to).0[0] = value;
}

/// `f` of every element, in place.
#[inline(always)]
pub(super) fn map<S: Vector>(simd: S, mut x: MatMut<'_>, f: impl Elementwise<S>) {
    if let Some(all) = x.as_contiguous() {
        return map_row(simd, all, f);
    }
    for i in 0..x.rows() {
        map_row(simd, x.row_mut(i), f);
    }
}

/// `f` of every element of a row, in place.
#[inline(always)]
pub(super) fn map_row<S: Vector>(simd: S, row: &mut [f32], f: impl Elementwise<S>) {
    let (registers, rest) = S::as_mut_simd_f32s(row);
    let (packs, single) = pulp::as_arrays_mut::<ABREAST, _>(registers);
    for x in packs {
        *x = f.of(Pack::new(simd, *x)).registers;
    }
    for x in single {
        [*x] = f.of(Pack::new(simd, [*x])).registers;
    }
    if !rest.is_empty() {
        let end = rest.len() as isize;
        let [y] = f.of(Pack::new(simd, [simd.load(rest, 0, end)])).registers;
        simd.store(rest, 0, end, y);
    }
}

/// A function of the elements at the same place of `I` rows that are read and `O` that are written.
///
/// It is handed the old values of the latter too; where it ignores them they are not read.
pub(super) trait Combine<S: Vector, const I: usize, const O: usize>: Copy {
    fn of<const N: usize>(self, read: [Pack<S, N>; I], old: [Pack<S, N>; O]) -> [Pack<S, N>; O];
}

/// `f` at every place of rows of one length.
#[inline(always)]
pub(super) fn combine<S: Vector, const I: usize, const O: usize>(
    simd: S,
    mut read: [&[f32]; I],
    mut written: [&mut [f32]; O],
    f: impl Combine<S, I, O>,
) {
    let (len, width) = (written[0].len(), S::F32_LANES);
    // Of one length that the compiler sees, so that it checks a place once for all rows.
    for i in 0..I {
        read[i] = &read[i][..len];
    }
    for o in 0..O {
        written[o] = &mut std::mem::take(&mut written[o])[..len];
    }
    let mut at = 0;
    while len - at >= ABREAST * width {
        combine_at::<S, I, O, ABREAST>(simd, read, &mut written, at, f);
        at += ABREAST * width;
    }
    while len - at >= width {
        combine_at::<S, I, O, 1>(simd, read, &mut written, at, f);
        at += width;
    }
    if at < len {
        let end = (len - at) as isize;
        let mut ins = [Pack::splat(simd, 0.0); I];
        for i in 0..I {
            ins[i] = Pack::new(simd, [simd.load(&read[i][at..], 0, end)]);
        }
        let mut outs = [Pack::splat(simd, 0.0); O];
        for o in 0..O {
            outs[o] = Pack::new(simd, [simd.load(&written[o][at..], 0, end)]);
        }
        let outs = f.of::<1>(ins, outs);
        for o in 0..O {
            simd.store(&mut written[o][at..], 0, end, outs[o].registers[0]);
        }
    }
}

/// `f` at N registers' places from `at` on.
#[inline(always)]
fn combine_at<S: Vector, const I: usize, const O: usize, const N: usize>(
    simd: S,
    read: [&[f32]; I],
    written: &mut [&mut [f32]; O],
    at: usize,
    f: impl Combine<S, I, O>,
) {
    let mut ins = [Pack::splat(simd, 0.0); I];
    for i in 0..I {
        ins[i] = load_pack::<S, N>(simd, &read[i][at..]);
    }
    let mut outs = [Pack::splat(simd, 0.0); O];
    for o in 0..O {
        outs[o] = load_pack::<S, N>(simd, &written[o][at..]);
    }
    let outs = f.of::<N>(ins, outs);
    for o in 0..O {
        store_pack(&mut written[o][at..], outs[o]);
    }
}

/// The first N registers of a row.
#[inline(always)]
pub(super) fn load_pack<S: Vector, const N: usize>(simd: S, from: &[f32]) -> Pack<S, N> {
    let from = &from[..N * S::F32_LANES];
    let mut pack = Pack::splat(simd, 0.0);
    for r in 0..N {
        pack.registers[r] = load::<S>(&from[r * S::F32_LANES..][..S::F32_LANES]);
    }
    pack
}

/// A pack to the first N registers of a row.
#[inline(always)]
pub(super) fn store_pack<S: Vector, const N: usize>(to: &mut [f32], pack: Pack<S, N>) {
    let to = &mut to[..N * S::F32_LANES];
    for r in 0..N {
        store::<S>(&mut to[r * S::F32_LANES..][..S::F32_LANES], pack.registers[r]);
    }
}

/// A step of `O` sums along `I` rows of one length.
pub(super) trait Summed<S: Vector, const I: usize, const O: usize>: Copy {
    /// The sums with these elements added.
    fn add<const N: usize>(self, read: [Pack<S, N>; I], sums: [Pack<S, N>; O]) -> [Pack<S, N>; O];
}

/// The elements themselves.
#[derive(Clone, Copy)]
pub(super) struct Elements;

impl<S: Vector> Summed<S, 1, 1> for Elements {
    #[inline(always)]
    fn add<const N: usize>(self, [x]: [Pack<S, N>; 1], [sum]: [Pack<S, N>; 1]) -> [Pack<S, N>; 1] {
        [sum + x]
    }
}

/// [`Summed`] that also replaces the elements of `W` rows.
pub(super) trait Replaced<S: Vector, const I: usize, const W: usize, const O: usize>:
    Copy
{
    /// What takes the place of the old elements, and the sums with these elements added.
    fn add<const N: usize>(
        self,
        read: [Pack<S, N>; I],
        old: [Pack<S, N>; W],
        sums: [Pack<S, N>; O],
    ) -> ([Pack<S, N>; W], [Pack<S, N>; O]);
}

/// A step that replaces nothing.
#[derive(Clone, Copy)]
struct Kept<T>(T);

impl<S: Vector, T: Summed<S, I, O>, const I: usize, const O: usize> Replaced<S, I, 0, O>
    for Kept<T>
{
    #[inline(always)]
    fn add<const N: usize>(
        self,
        read: [Pack<S, N>; I],
        _: [Pack<S, N>; 0],
        sums: [Pack<S, N>; O],
    ) -> ([Pack<S, N>; 0], [Pack<S, N>; O]) {
        ([], self.0.add(read, sums))
    }
}

/// The sums of `step` along rows of one length, from +0 in the 32 lanes, folded.
#[inline(always)]
pub(super) fn sums_along<S: Vector, const R: usize, const I: usize, const O: usize>(
    simd: S,
    read: [&[f32]; I],
    step: impl Summed<S, I, O>,
) -> [f32; O] {
    sums_replacing::<S, R, I, 0, O>(simd, read[0].len(), read, [], Kept(step))
}

/// [`sums_along`] rows of `len` elements, those of the `written` ones being replaced.
#[inline(always)]
pub(super) fn sums_replacing<
    S: Vector,
    const R: usize,
    const I: usize,
    const W: usize,
    const O: usize,
>(
    simd: S,
    len: usize,
    read: [&[f32]; I],
    written: [&mut [f32]; W],
    step: impl Replaced<S, I, W, O>,
) -> [f32; O] {
    // Of one length that the compiler sees, so that it checks none of the places.
    let count = len / LANES;
    let mut rows: [&[[S::f32s; R]]; I] = [&[]; I];
    for i in 0..I {
        rows[i] = &blocks::<S, R>(read[i]).0[..count];
    }
    let mut sums = [Pack::<S, R>::splat(simd, 0.0); O];
    for at in 0..count {
        let mut block = [Pack::<S, R>::splat(simd, 0.0); I];
        for i in 0..I {
            block[i] = Pack::new(simd, rows[i][at]);
        }
        let mut old = [Pack::<S, R>::splat(simd, 0.0); W];
        for w in 0..W {
            old[w] = load_pack(simd, &written[w][at * LANES..]);
        }
        let new;
        (new, sums) = step.add(block, old, sums);
        for w in 0..W {
            store_pack(&mut written[w][at * LANES..], new[w]);
        }
    }
    // The last, incomplete block: lanes that it lacks keep their sums.
    for r in 0..R {
        let at = count * LANES + r * S::F32_LANES;
        if at < len {
            let end = (len - at) as isize;
            let mut block = [Pack::<S, 1>::splat(simd, 0.0); I];
            for i in 0..I {
                block[i].registers = [simd.load(&read[i][at..], 0, end)];
            }
            let mut old = [Pack::<S, 1>::splat(simd, 0.0); W];
            for w in 0..W {
                old[w].registers = [simd.load(&written[w][at..], 0, end)];
            }
            let mut before = [Pack::<S, 1>::splat(simd, 0.0); O];
            for o in 0..O {
                before[o].registers = [sums[o].registers[r]];
            }
            let (new, after) = step.add(block, old, before);
            for w in 0..W {
                simd.store(&mut written[w][at..], 0, end, new[w].registers[0]);
            }
            for o in 0..O {
                let [before, after] = [before[o].registers[0], after[o].registers[0]];
                sums[o].registers[r] = simd.select_f32s(simd.lanes(0, end), after, before);
            }
        }
    }
    let mut totals = [0.0; O];
    for o in 0..O {
        totals[o] = Lanes::<S, R>(sums[o].registers).sum(simd);
    }
    totals
}

/// `$f` as an [`Elementwise`] function.
macro_rules! elementwise {
    ($name:ident, $f:path) => {
        #[derive(Clone, Copy)]
        struct $name;
        impl<S: $crate::arch::vector::Vector> $crate::rows::lanes::Elementwise<S> for $name {
            #[inline(always)]
            fn of<const N: usize>(
                self,
                x: $crate::rows::pack::Pack<S, N>,
            ) -> $crate::rows::pack::Pack<S, N> {
                $f(x)
            }
        }
    };
}
pub(super) use elementwise;

/// Multiplies by a number.
#[derive(Clone, Copy)]
pub(super) struct Times(pub(super) f32);

impl<S: Vector> Elementwise<S> for Times {
    #[inline(always)]
    fn of<const N: usize>(self, x: Pack<S, N>) -> Pack<S, N> {
        x * x.all(self.0)
    }
}
