//! Dropout from a counter: which elements are dropped is a function of a key, a counter and an element's place, so
//! that the backward pass computes the mask again instead of keeping it.
//!
//! The generator mixes key, counter and row into two words, and these with the column by two rounds of multiplication
//! and shifting (the finaliser of MurmurHash3 with the constants of Wellons, "Prospecting for Hash Functions", 2018).
//! It is plain integer arithmetic, compiled for each instruction set: the same elements everywhere.

use super::for_rows;
use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::view::{Mat, MatMut};

/// Which elements are dropped, and how many.
///
/// (Srivastava et al., "Dropout", 2014; in the places of "Attention Is All You Need", §5.4.)
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    rate: f32,
    key: u64,
    counter: u64,
}

impl Dropout {
    /// Drops each element with probability `rate`. The same `key` (a seed, say) and `counter` (the step and the place
    /// in the network) drop the same elements of a matrix; any other pair drops others, independently.
    ///
    /// # Panics
    /// When `rate` is not at least 0 and less than 1.
    #[track_caller]
    pub fn new(rate: f32, key: u64, counter: u64) -> Dropout {
        assert!((0.0..1.0).contains(&rate), "a dropout rate of {rate}");
        Dropout { rate, key, counter }
    }

    /// The probability to be dropped.
    pub fn rate(&self) -> f32 {
        self.rate
    }

    /// What row `i` is masked with.
    fn row(&self, i: usize) -> RowMask {
        let words = mixed(mixed(mixed(self.key) ^ self.counter) ^ i as u64);
        RowMask {
            words: [words as u32, (words >> 32) as u32],
            // Of 2³² equally probable words as many are below it as are to be dropped.
            threshold: (f64::from(self.rate) * 4294967296.0) as u32,
            scale: 1.0 / (1.0 - self.rate),
        }
    }
}

/// A permutation of the 64-bit words that looks random (SplitMix64).
fn mixed(word: u64) -> u64 {
    let z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The mask of one row, as a function of the column.
#[derive(Clone, Copy)]
pub(crate) struct RowMask {
    words: [u32; 2],
    threshold: u32,
    scale: f32,
}

impl RowMask {
    /// x/(1 − rate), or +0 where column `j` is dropped.
    #[inline(always)]
    fn apply(&self, j: u32, x: f32) -> f32 {
        let z = (j ^ self.words[0]).wrapping_mul(0x9e37_79b1);
        let z = (z ^ (z >> 16)).wrapping_mul(0x7feb_352d) ^ self.words[1];
        let z = (z ^ (z >> 15)).wrapping_mul(0x846c_a68b);
        if z ^ (z >> 16) < self.threshold { 0.0 } else { x * self.scale }
    }
}

/// x ← mask ⊙ x/(1 − rate), element by element; a dropped element becomes +0 whatever it was.
///
/// The backward pass is the same call on the gradient. At rate 0 nothing happens. One rounding; one pass.
///
/// # Panics
/// When a row has more than 2³² elements.
///
/// ```
/// use headrow_kernels::{Cpu, Dropout, MatMut, Par, dropout};
/// let drop = |counter| {
///     let mut x = [1.0; 8];
///     let how = Dropout::new(0.5, 7, counter);
///     dropout(Cpu::detect(), Par::SERIAL, &how, MatMut::new(&mut x, 1, 8));
///     x
/// };
/// assert!(drop(1).iter().all(|&x| x == 0.0 || x == 2.0));
/// assert_eq!(drop(1), drop(1));
/// ```
#[track_caller]
pub fn dropout(cpu: Cpu, par: Par<'_>, how: &Dropout, x: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    assert!(u32::try_from(x.cols()).is_ok(), "dropout in rows of {} elements", x.cols());
    if how.rate == 0.0 {
        return;
    }
    for_rows(par, x, &|first, mut block| {
        for i in 0..block.rows() {
            (cpu.table.rows.dropout)(&how.row(first + i), block.row_mut(i));
        }
    });
}

/// out ← mask ⊙ x/(1 − rate): [`dropout`] of a copy. One pass.
///
/// # Panics
/// When the shapes differ, and as [`dropout`].
///
/// ```
/// use headrow_kernels::{Cpu, Dropout, Mat, MatMut, Par, dropout, dropout_into};
/// let (cpu, how) = (Cpu::detect(), Dropout::new(0.5, 7, 1));
/// let (x, mut y) = ([1.0; 8], [0.0; 8]);
/// dropout_into(cpu, Par::SERIAL, &how, Mat::new(&x, 1, 8), MatMut::new(&mut y, 1, 8));
/// let mut in_place = x;
/// dropout(cpu, Par::SERIAL, &how, MatMut::new(&mut in_place, 1, 8));
/// assert_eq!(y, in_place);
/// ```
#[track_caller]
pub fn dropout_into(cpu: Cpu, par: Par<'_>, how: &Dropout, x: Mat<'_>, out: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    let shape = (out.rows(), out.cols());
    assert!((x.rows(), x.cols()) == shape, "dropout_into: {x:?} into {out:?}");
    assert!(u32::try_from(shape.1).is_ok(), "dropout in rows of {} elements", shape.1);
    for_rows(par, out, &|first, mut block| {
        for i in 0..block.rows() {
            let row = block.row_mut(i);
            row.copy_from_slice(x.row(first + i));
            if how.rate != 0.0 {
                (cpu.table.rows.dropout)(&how.row(first + i), row);
            }
        }
    });
}

/// out ← residual + mask ⊙ x/(1 − rate): [`dropout`] of a sublayer's result on its way into the residual stream.
///
/// The bits of the two steps. One pass.
///
/// # Panics
/// When the shapes differ, and as [`dropout`].
///
/// ```
/// use headrow_kernels::{Cpu, Dropout, Mat, MatMut, Par, add_dropout};
/// let (x, residual, mut y) = ([1.0; 8], [10.0; 8], [0.0; 8]);
/// let [x, residual] = [&x, &residual].map(|x| Mat::new(x, 1, 8));
/// let (how, out) = (Dropout::new(0.5, 7, 1), MatMut::new(&mut y, 1, 8));
/// add_dropout(Cpu::detect(), Par::SERIAL, &how, x, residual, out);
/// assert!(y.iter().all(|&y| y == 10.0 || y == 12.0));
/// ```
#[track_caller]
pub fn add_dropout(
    cpu: Cpu,
    par: Par<'_>,
    how: &Dropout,
    x: Mat<'_>,
    residual: Mat<'_>,
    out: MatMut<'_>,
) {
    let _mode = FloatMode::default_scope();
    let shape = (out.rows(), out.cols());
    assert!(
        [x, residual].iter().all(|x| (x.rows(), x.cols()) == shape),
        "add_dropout: {x:?} and {residual:?} into {out:?}"
    );
    assert!(u32::try_from(shape.1).is_ok(), "dropout in rows of {} elements", shape.1);
    for_rows(par, out, &|first, mut block| {
        for i in 0..block.rows() {
            let at = first + i;
            let mask = how.row(at);
            (cpu.table.rows.add_dropout)(&mask, x.row(at), residual.row(at), block.row_mut(i));
        }
    });
}

/// See [`dropout`].
#[inline(always)]
pub(crate) fn kernel(mask: &RowMask, row: &mut [f32]) {
    for (j, x) in row.iter_mut().enumerate() {
        *x = mask.apply(j as u32, *x);
    }
}

/// See [`add_dropout`].
#[inline(always)]
pub(crate) fn add_kernel(mask: &RowMask, x: &[f32], residual: &[f32], out: &mut [f32]) {
    for (j, ((out, x), residual)) in out.iter_mut().zip(x).zip(residual).enumerate() {
        *out = residual + mask.apply(j as u32, *x);
    }
}
