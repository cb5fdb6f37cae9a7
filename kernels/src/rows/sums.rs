//! Sums down the columns of a matrix, and of the squares of a vector: what gradients of biases and of norms are, and
//! the length of a gradient.

use super::lanes::{ABREAST, load_pack, store_pack};
use super::pack::Pack;
use super::rows_per_chunk;
use crate::arch::FloatMode;
use crate::arch::vector::Vector;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::view::{Mat, MatMut};
use std::ops::Range;

/// sums\[j\] += Σ_i x_ij: the gradient of a bias that was added to every row.
///
/// A chain of additions in ascending order of the rows, from what `sums` held: error ≤ rows·u·Σ_i |x_ij| and the same
/// bits for one matrix as for its parts one after the other. Workers share the columns. One pass.
///
/// # Panics
/// When there are not as many sums as columns.
///
/// ```
/// use headrow_kernels::{Cpu, Mat, Par, add_column_sums};
/// let mut sums = [10.0, 0.0];
/// let x = [1.0, 2.0, 3.0, 4.0];
/// add_column_sums(Cpu::detect(), Par::SERIAL, Mat::new(&x, 2, 2), &mut sums);
/// assert_eq!(sums, [14.0, 6.0]);
/// ```
#[track_caller]
pub fn add_column_sums(cpu: Cpu, par: Par<'_>, x: Mat<'_>, sums: &mut [f32]) {
    let _mode = FloatMode::default_scope();
    assert!(x.cols() == sums.len(), "column sums of {x:?} into {}", sums.len());
    for_columns(par, x.rows(), [sums, &mut []], &|columns, [sums, _]| {
        (cpu.table.rows.column_sums)(x.columns(columns), sums);
    });
}

/// Most partial sums of [`sum_of_squares`].
const PARTS: usize = 256;

/// Σ x², in f64, where the squares of all f32 are exact and none overflows: the square of a gradient's length.
///
/// The vector is cut into blocks of 4096 elements, or into 256 blocks of equal length when there would be more; the
/// sums of the blocks (in 16 lanes, folded by halves) are added in ascending order. The cut depends on the length
/// alone, so the bits do not depend on the workers. Error ≤ (n/4096 + 4096)·2⁻⁵³ relative at worst. A NaN or ∞
/// surfaces. One pass.
///
/// ```
/// use headrow_kernels::{Cpu, Par, sum_of_squares};
/// assert_eq!(sum_of_squares(Cpu::detect(), Par::SERIAL, &[3.0, -4.0]), 25.0);
/// ```
pub fn sum_of_squares(cpu: Cpu, par: Par<'_>, x: &[f32]) -> f64 {
    let _mode = FloatMode::default_scope();
    let block = x.len().div_ceil(PARTS).max(4096);
    let blocks = x.len().div_ceil(block);
    let mut sums = [0.0; PARTS];
    par.for_rows(MatMut::new(&mut sums, blocks, 1), 1, &|at, mut sum| {
        let end = x.len().min((at + 1) * block);
        sum.row_mut(0)[0] = (cpu.table.rows.sum_of_squares)(&x[at * block..end]);
    });
    sums.iter().sum()
}

/// The sum of one block.
#[inline(always)]
pub(crate) fn squares_kernel(x: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for i in 0..16 {
            let x = f64::from(chunk[i]);
            lanes[i] += x * x;
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(x) * f64::from(x);
    }
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// Sums down the columns of two matrices; the second may be empty.
pub(super) type TwoSums<'a> = [&'a mut [f32]; 2];

/// `work(columns, their parts of a and of b)` over sums down `rows` rows, shared out by columns. `b` is as
/// long as `a`, or empty.
pub(super) fn for_columns(
    par: Par<'_>,
    rows: usize,
    [a, b]: TwoSums<'_>,
    work: &(dyn Fn(Range<usize>, TwoSums<'_>) + Sync),
) {
    let cols = a.len();
    let (a, b) = (as_column(a, cols), as_column(b, cols));
    let work = |first, mut a: MatMut<'_>, mut b: MatMut<'_>| {
        work(first..first + a.rows(), [column(&mut a), column(&mut b)]);
    };
    match rows_per_chunk(par, cols, rows) {
        None => work(0, a, b),
        // Whole packs on every instruction set, and lines of memory that no two workers touch.
        Some(grain) => par.for_rows_of_two(a, b, grain.next_multiple_of(64), &work),
    }
}

/// A vector of `n` elements as a matrix of one column, to be shared out by rows; an empty one has no column.
pub(super) fn as_column<T>(values: &mut [T], n: usize) -> MatMut<'_, T> {
    let cols = usize::from(!values.is_empty());
    MatMut::new(values, n, cols)
}

/// The elements of a part of [`as_column`].
pub(super) fn column<'a, T>(part: &'a mut MatMut<'_, T>) -> &'a mut [T] {
    part.as_contiguous().expect("a column has stride 1")
}

/// A step of `O` sums down the columns of `I` matrices.
pub(super) trait ColumnStep<S: Vector, const I: usize, const O: usize>: Copy {
    /// The sums with the elements of row `i` added.
    fn add<const N: usize>(
        self,
        i: usize,
        read: [Pack<S, N>; I],
        sums: [Pack<S, N>; O],
    ) -> [Pack<S, N>; O];
}

/// `step` for each of `rows` rows, in ascending order, a few registers of columns at a time.
#[inline(always)]
pub(super) fn down_columns<S: Vector, const I: usize, const O: usize>(
    simd: S,
    rows: usize,
    read: [Mat<'_>; I],
    mut sums: [&mut [f32]; O],
    step: impl ColumnStep<S, I, O>,
) {
    let (cols, width) = (sums[0].len(), S::F32_LANES);
    let mut at = 0;
    while at + ABREAST * width <= cols {
        down::<S, I, O, ABREAST>(simd, rows, read, &mut sums, at, step);
        at += ABREAST * width;
    }
    while at + width <= cols {
        down::<S, I, O, 1>(simd, rows, read, &mut sums, at, step);
        at += width;
    }
    if at < cols {
        let end = (cols - at) as isize;
        let mut totals = [Pack::<S, 1>::splat(simd, 0.0); O];
        for o in 0..O {
            totals[o].registers = [simd.load(&sums[o][at..], 0, end)];
        }
        for i in 0..rows {
            let mut row = [Pack::<S, 1>::splat(simd, 0.0); I];
            for m in 0..I {
                row[m].registers = [simd.load(&read[m].row(i)[at..], 0, end)];
            }
            totals = step.add(i, row, totals);
        }
        for o in 0..O {
            simd.store(&mut sums[o][at..], 0, end, totals[o].registers[0]);
        }
    }
}

/// [`down_columns`] for N registers from column `at` on.
#[inline(always)]
fn down<S: Vector, const I: usize, const O: usize, const N: usize>(
    simd: S,
    rows: usize,
    read: [Mat<'_>; I],
    sums: &mut [&mut [f32]; O],
    at: usize,
    step: impl ColumnStep<S, I, O>,
) {
    let mut totals = [Pack::<S, N>::splat(simd, 0.0); O];
    for o in 0..O {
        totals[o] = load_pack(simd, &sums[o][at..]);
    }
    for i in 0..rows {
        let mut row = [Pack::<S, N>::splat(simd, 0.0); I];
        for m in 0..I {
            row[m] = load_pack(simd, &read[m].row(i)[at..]);
        }
        totals = step.add(i, row, totals);
    }
    for o in 0..O {
        store_pack(&mut sums[o][at..], totals[o]);
    }
}

/// x itself.
#[derive(Clone, Copy)]
struct Plain;

impl<S: Vector> ColumnStep<S, 1, 1> for Plain {
    #[inline(always)]
    fn add<const N: usize>(
        self,
        _: usize,
        [x]: [Pack<S, N>; 1],
        [sum]: [Pack<S, N>; 1],
    ) -> [Pack<S, N>; 1] {
        [sum + x]
    }
}

/// See [`add_column_sums`].
#[inline(always)]
pub(crate) fn column_sums_kernel<S: Vector>(simd: S, x: Mat<'_>, sums: &mut [f32]) {
    down_columns(simd, x.rows(), [x], [sums], Plain);
}
