//! Rotary position embedding: queries and keys turned by an angle that grows with their position, so that a
//! score depends on the distance alone. (Su et al., "RoFormer", 2021, §3.2.)

use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::rows::for_rows;
use crate::view::{Mat, MatMut};

/// Which features of a head make a pair. Checkpoints are trained for one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RopeLayout {
    /// Feature i goes with feature i + r/2: LLaMA as Hugging Face stores it, GPT-NeoX.
    HalfSplit,
    /// Feature 2i goes with feature 2i + 1: the paper's, GPT-J.
    Interleaved,
}

/// The angles of [`rope`] by position, as cosines and sines.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// cos(p·θ_i) at row p, column i: a row per position, r/2 columns for r features that turn.
    pub cos: Mat<'a>,
    /// sin(p·θ_i), shaped as `cos`.
    pub sin: Mat<'a>,
    /// How the features are paired.
    pub layout: RopeLayout,
}

/// Turns the first r features of every head of `x` in place, row j by the angles of `positions[j]`:
///
/// (x₁, x₂) ← (x₁·cos − x₂·sin, x₂·cos + x₁·sin) for each pair, r being twice the columns of the tables.
///
/// `x` holds `heads` heads of equal width side by side, r ≤ width; features from r on stay as they are. Q and K
/// are turned in one call when they lie next to each other. The product with the cosine is rounded, the other one
/// is fused into the sum, so an element's error is at most u·(|x₁·cos| + |y|) with u = 2⁻²⁴, y the result, tables
/// taken as exact. A NaN or ∞ stays in its pair. One pass, O(rows·heads·r).
///
/// # Panics
/// When the tables differ in shape, a position is beyond them, there is not one position per row, or `x` is no
/// whole number of heads at least r wide.
///
/// ```
/// use headrow_kernels::{Cpu, Mat, MatMut, Par, Rope, RopeLayout, rope};
/// // Positions 0 and 1, a pair of features, a quarter of a turn a position.
/// let (cos, sin) = ([1.0, 0.0], [0.0, 1.0]);
/// let (cos, sin) = (Mat::new(&cos, 2, 1), Mat::new(&sin, 2, 1));
/// let angles = Rope { cos, sin, layout: RopeLayout::Interleaved };
/// let mut x = [1.0, 2.0, 1.0, 2.0];
/// rope(Cpu::detect(), Par::SERIAL, &angles, &[0, 1], 1, MatMut::new(&mut x, 2, 2));
/// assert_eq!(x, [1.0, 2.0, -2.0, 1.0]);
/// ```
#[track_caller]
pub fn rope(
    cpu: Cpu,
    par: Par<'_>,
    rope: &Rope<'_>,
    positions: &[u32],
    heads: usize,
    x: MatMut<'_>,
) {
    turn_rows(cpu, par, rope, Direction::On, positions, heads, x);
}

/// The gradient of [`rope`], in place: `x` holds dy on entry and dx on return. A rotation's transpose is its
/// inverse, so each pair is turned back by the same angle:
///
/// (x₁, x₂) ← (x₁·cos + x₂·sin, x₂·cos − x₁·sin).
///
/// Shapes, error and time as for [`rope`].
///
/// # Panics
/// As [`rope`].
///
/// ```
/// use headrow_kernels::{Cpu, Mat, MatMut, Par, Rope, RopeLayout, rope, rope_backward};
/// // A quarter of a turn, and back.
/// let (cos, sin) = (Mat::new(&[0.0], 1, 1), Mat::new(&[1.0], 1, 1));
/// let angles = Rope { cos, sin, layout: RopeLayout::HalfSplit };
/// let (cpu, mut x) = (Cpu::detect(), [1.0, 2.0]);
/// rope(cpu, Par::SERIAL, &angles, &[0], 1, MatMut::new(&mut x, 1, 2));
/// assert_eq!(x, [-2.0, 1.0]);
/// rope_backward(cpu, Par::SERIAL, &angles, &[0], 1, MatMut::new(&mut x, 1, 2));
/// assert_eq!(x, [1.0, 2.0]);
/// ```
#[track_caller]
pub fn rope_backward(
    cpu: Cpu,
    par: Par<'_>,
    rope: &Rope<'_>,
    positions: &[u32],
    heads: usize,
    x: MatMut<'_>,
) {
    turn_rows(cpu, par, rope, Direction::Back, positions, heads, x);
}

/// Which way pairs are turned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    On,
    Back,
}

/// [`rope`] and [`rope_backward`].
#[track_caller]
fn turn_rows(
    cpu: Cpu,
    par: Par<'_>,
    rope: &Rope<'_>,
    direction: Direction,
    positions: &[u32],
    heads: usize,
    x: MatMut<'_>,
) {
    let _mode = FloatMode::default_scope();
    let Rope { cos, sin, layout } = *rope;
    let (rows, cols) = (x.rows(), x.cols());
    assert!(
        (cos.rows(), cos.cols()) == (sin.rows(), sin.cols()),
        "rope: {cos:?} of cosines, {sin:?} of sines"
    );
    assert!(positions.len() == rows, "rope: {} positions for {rows} rows", positions.len());
    let width = cols.checked_div(heads).unwrap_or(0);
    assert!(
        heads * width == cols && 2 * cos.cols() <= width,
        "rope: {} features turn in each of {heads} heads of {cols} columns together",
        2 * cos.cols()
    );
    if let Some((row, p)) = positions.iter().enumerate().find(|&(_, &p)| p as usize >= cos.rows()) {
        panic!("rope: position {p} of row {row} in tables of {} positions", cos.rows());
    }
    if cos.cols() == 0 {
        return;
    }
    for_rows(par, x, &|first, mut block| {
        for i in 0..block.rows() {
            let position = positions[first + i] as usize;
            let (cos, sin) = (cos.row(position), sin.row(position));
            let turn = Turn { cos, sin, layout, direction, width };
            (cpu.table.rows.rope)(&turn, block.row_mut(i));
        }
    });
}

/// One row of [`rope`] or [`rope_backward`].
pub(crate) struct Turn<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
    layout: RopeLayout,
    direction: Direction,
    width: usize,
}

/// The kernel behind [`rope`] and [`rope_backward`]; the table compiles it for each instruction set. Plain loops,
/// which compilers turn into vectors: a multiplication and an addition are never contracted, so the bits are those
/// written here.
#[inline(always)]
pub(crate) fn kernel(turn: &Turn<'_>, row: &mut [f32]) {
    let Turn { cos, sin, layout, direction, width } = *turn;
    let half = cos.len();
    // Turning a pair back is turning the exchanged pair on.
    let back = direction == Direction::Back;
    for head in row.chunks_exact_mut(width) {
        let (turning, _) = head.split_at_mut(2 * half);
        match layout {
            RopeLayout::HalfSplit => {
                let (mut first, mut second) = turning.split_at_mut(half);
                if back {
                    std::mem::swap(&mut first, &mut second);
                }
                for (((x1, x2), &cos), &sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    [*x1, *x2] = turned([*x1, *x2], cos, sin);
                }
            }
            RopeLayout::Interleaved => {
                let (pairs, _) = turning.as_chunks_mut::<2>();
                for (([x1, x2], &cos), &sin) in pairs.iter_mut().zip(cos).zip(sin) {
                    if back {
                        [*x2, *x1] = turned([*x2, *x1], cos, sin);
                    } else {
                        [*x1, *x2] = turned([*x1, *x2], cos, sin);
                    }
                }
            }
        }
    }
}

/// A pair turned by an angle.
#[inline(always)]
fn turned([x1, x2]: [f32; 2], cos: f32, sin: f32) -> [f32; 2] {
    [(-x2).mul_add(sin, x1 * cos), x1.mul_add(sin, x2 * cos)]
}
