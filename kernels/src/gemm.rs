//! Matrix products: C ← A·B or C ← C + A·B, with an epilogue fused behind the product.
//!
//! # Structure
//!
//! The loops are those of BLIS (Van Zee and van de Geijn, *BLIS: A Framework for Rapidly Instantiating
//! BLAS Functionality*, ACM TOMS 41(3), 2015), around one kernel per instruction set:
//!
//! - [`PackedB`] cuts B into *panels* of nr columns over the whole depth, so that the kernel reads
//!   it as one stream; weights are packed once, at load.
//! - `driver` cuts C into chunks for the workers, and each chunk into blocks of rows and depth that fit
//!   the caches ([`Blocking`]).
//! - `left` copies a block of A in the order in which its tiles read it, where it meets enough panels to
//!   be worth that: one stream, with no rows that fall on the same places of a cache.
//! - With few rows, reading B is all that counts: it is read once, by tiles that take several panels at a
//!   time (`arch::tiles`), and the workers share out its columns.
//! - `epilogue` finishes each strip of C while it is still in a near cache.
//!
//! # Bits
//!
//! Each element of C is ONE chain of fused multiply-adds in ascending k, starting from +0, or from the
//! old C when accumulating. The chain is never split, neither between threads nor between vector lanes,
//! and blocking over k stores and reloads the running value, which rounds nothing. So the result does
//! not depend on tile or block sizes, the number of rows, threads, strides or the instruction set.
//!
//! ```
//! use headrow_kernels::{Cpu, Epilogue, Mat, MatMut, PackedB, Par, Scratch, Write};
//! use headrow_kernels::{LeftKind, RightKind, gemm, gemm_scratch};
//! let cpu = Cpu::detect();
//! // y = x·Wᵀ + b for a weight stored as (outputs × inputs).
//! let (x, w, b) = ([1.0, 2.0], [3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [0.5, 0.0, -0.5]);
//! let weight = PackedB::from_transposed(cpu, Mat::new(&w, 3, 2));
//! let need = gemm_scratch(cpu, 1, 1, 3, 2, LeftKind::Plain, RightKind::Packed);
//! let mut scratch = Scratch::new(need);
//! let mut y = [0.0; 3];
//! let epilogue = Epilogue { bias: Some(&b), ..Epilogue::default() };
//! let out = MatMut::new(&mut y, 1, 3);
//! gemm(cpu, Par::SERIAL, Mat::new(&x, 1, 2), &weight, Write::Replace, &epilogue, out, &mut scratch.stack());
//! assert_eq!(y, [11.5, 17.0, 22.5]);
//! ```

mod blocking;
mod driver;
pub(crate) mod epilogue;
mod left;
mod packed;

pub use blocking::Blocking;
pub use packed::PackedB;

use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::rows::activation::Activation;
use crate::scratch::{Need, Stack};
use crate::view::{Mat, MatMut};

/// The left operand A, m × k.
#[derive(Clone, Copy, Debug)]
pub enum Left<'a> {
    /// A itself, m × k.
    Plain(Mat<'a>),
    /// Aᵀ as k × m.
    Transposed(Mat<'a>),
}

/// The right operand B, k × n.
#[derive(Clone, Copy, Debug)]
pub enum Right<'a> {
    /// B packed beforehand, as weights are.
    Packed(&'a PackedB),
    /// B itself, k × n.
    Plain(Mat<'a>),
    /// Bᵀ as n × k.
    Transposed(Mat<'a>),
}

/// The storage of a left operand, for [`gemm_scratch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftKind {
    /// [`Left::Plain`].
    Plain,
    /// [`Left::Transposed`].
    Transposed,
}

/// The storage of a right operand, for [`gemm_scratch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RightKind {
    /// [`Right::Packed`].
    Packed,
    /// [`Right::Plain`].
    Plain,
    /// [`Right::Transposed`].
    Transposed,
}

impl<'a> From<Mat<'a>> for Left<'a> {
    fn from(a: Mat<'a>) -> Left<'a> {
        Left::Plain(a)
    }
}

impl<'a> From<Mat<'a>> for Right<'a> {
    fn from(b: Mat<'a>) -> Right<'a> {
        Right::Plain(b)
    }
}

impl<'a> From<&'a PackedB> for Right<'a> {
    fn from(b: &'a PackedB) -> Right<'a> {
        Right::Packed(b)
    }
}

impl Left<'_> {
    /// (m, k).
    fn shape(&self) -> (usize, usize) {
        match self {
            Left::Plain(a) => (a.rows(), a.cols()),
            Left::Transposed(at) => (at.cols(), at.rows()),
        }
    }

    /// How it is stored.
    pub fn kind(&self) -> LeftKind {
        match self {
            Left::Plain(_) => LeftKind::Plain,
            Left::Transposed(_) => LeftKind::Transposed,
        }
    }
}

impl Right<'_> {
    /// (k, n).
    fn shape(&self) -> (usize, usize) {
        match self {
            Right::Packed(b) => (b.k(), b.n()),
            Right::Plain(b) => (b.rows(), b.cols()),
            Right::Transposed(bt) => (bt.cols(), bt.rows()),
        }
    }

    /// How it is stored.
    pub fn kind(&self) -> RightKind {
        match self {
            Right::Packed(_) => RightKind::Packed,
            Right::Plain(_) => RightKind::Plain,
            Right::Transposed(_) => RightKind::Transposed,
        }
    }
}

/// What becomes of the old C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Write {
    /// C ← A·B. The old C is never read.
    #[default]
    Replace,
    /// C ← C + A·B: the chain of each element starts from its old value.
    Accumulate,
}

/// What follows the product, element by element, in this order, each step with its own rounding:
///
/// c ← residual + activation(alpha · c + bias)
///
/// The result has the same bits as the separate operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Factor of the finished chain (an accumulated old C included).
    pub alpha: Option<f32>,
    /// Added to every row: n values.
    pub bias: Option<&'a [f32]>,
    /// Applied to each element.
    pub activation: Activation,
    /// Added last: m × n.
    pub residual: Option<Mat<'a>>,
}

/// C ← epilogue(A·B) or C ← epilogue(C + A·B), for A: m × k, B: k × n, C: m × n.
///
/// Each element is one chain of fused multiply-adds in ascending k; see the [module](self) on bits. Against
/// the exact product the error of an element is at most k·u/(1 − k·u) · Σ|a|·|b| with u = 2⁻²⁴ (Higham,
/// *Accuracy and Stability of Numerical Algorithms*, 2nd ed., §3.1), before the epilogue.
///
/// With k = 0 the product is zero (or the old C), and the epilogue follows; with m = 0 or n = 0 nothing
/// is touched. 2·m·n·k floating-point operations.
///
/// # Panics
/// When shapes disagree, when B was packed for another instruction set, or when `stack` holds less
/// than [`gemm_scratch`] of this shape and `par.threads()`.
///
/// ```
/// use headrow_kernels::{Cpu, Epilogue, Left, LeftKind, Mat, MatMut, Par, RightKind, Scratch, Write};
/// use headrow_kernels::{gemm, gemm_scratch};
/// // The gradient of a weight, added to what is there: dW ← dW + Xᵀ·dY.
/// let (x, dy, mut dw) = ([1.0, 2.0], [3.0, 4.0, 5.0, 6.0], [100.0, 200.0]);
/// let (x, dy) = (Left::Transposed(Mat::new(&x, 2, 1)), Mat::new(&dy, 2, 2));
/// let (cpu, par, none) = (Cpu::detect(), Par::SERIAL, Epilogue::default());
/// let need = gemm_scratch(cpu, 1, 1, 2, 2, LeftKind::Transposed, RightKind::Plain);
/// let (mut scratch, c) = (Scratch::new(need), MatMut::new(&mut dw, 1, 2));
/// gemm(cpu, par, x, dy, Write::Accumulate, &none, c, &mut scratch.stack());
/// assert_eq!(dw, [113.0, 216.0]);
/// ```
#[expect(clippy::too_many_arguments, reason = "the operands of a BLAS call")]
#[track_caller]
pub fn gemm<'a>(
    cpu: Cpu,
    par: Par<'_>,
    a: impl Into<Left<'a>>,
    b: impl Into<Right<'a>>,
    write: Write,
    epilogue: &Epilogue<'_>,
    c: MatMut<'_>,
    stack: &mut Stack<'_>,
) {
    let (a, b) = (a.into(), b.into());
    let ((m, k), (_, n)) = (a.shape(), b.shape());
    let mut blocking = Blocking::of(cpu, par.threads(), a.kind(), m, n, k);
    if par.cancel().is_some() {
        blocking = blocking.in_short_chunks(cpu, k);
    }
    gemm_blocked(cpu, par, &blocking, a, b, write, epilogue, c, stack);
}

/// The scratch memory of [`gemm`] with up to `threads` workers.
///
/// Memory for m rows of a plain A serves fewer as well.
///
/// # Panics
/// When the size overflows.
#[track_caller]
pub fn gemm_scratch(
    cpu: Cpu,
    threads: usize,
    m: usize,
    n: usize,
    k: usize,
    left: LeftKind,
    right: RightKind,
) -> Need {
    let blocking = Blocking::largest(cpu, threads, left, m, n, k);
    gemm_blocked_scratch(cpu, &blocking, threads, m, n, k, left, right)
}

/// [`gemm`] with given block sizes: for tests, which inject tiny ones so that every edge occurs, and for
/// tuning. The result's bits do not depend on them.
///
/// # Panics
/// As [`gemm`], with [`gemm_blocked_scratch`].
///
/// ```
/// use headrow_kernels::gemm::{Blocking, gemm_blocked, gemm_blocked_scratch};
/// use headrow_kernels::{Cpu, Epilogue, LeftKind, Mat, MatMut, Par, RightKind, Scratch, Write};
/// let (a, b, mut c) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [0.0; 4]);
/// let (a, b) = (Mat::new(&a, 2, 2), Mat::new(&b, 2, 2));
/// let (cpu, par, none) = (Cpu::detect(), Par::SERIAL, Epilogue::default());
/// let blocking = Blocking { mc: 1, kc: 1, ..Blocking::new(cpu, 1, 2, 2, 2) };
/// let (left, right) = (LeftKind::Plain, RightKind::Plain);
/// let mut scratch = Scratch::new(gemm_blocked_scratch(cpu, &blocking, 1, 2, 2, 2, left, right));
/// let (out, stack) = (MatMut::new(&mut c, 2, 2), &mut scratch.stack());
/// gemm_blocked(cpu, par, &blocking, a, b, Write::Replace, &none, out, stack);
/// assert_eq!(c, [19.0, 22.0, 43.0, 50.0]);
/// ```
#[expect(clippy::too_many_arguments, reason = "the operands of a BLAS call")]
#[track_caller]
pub fn gemm_blocked<'a>(
    cpu: Cpu,
    par: Par<'_>,
    blocking: &Blocking,
    a: impl Into<Left<'a>>,
    b: impl Into<Right<'a>>,
    write: Write,
    epilogue: &Epilogue<'_>,
    c: MatMut<'_>,
    stack: &mut Stack<'_>,
) {
    let _mode = FloatMode::default_scope();
    let (a, b) = (a.into(), b.into());
    let ((m, k), (kb, n)) = (a.shape(), b.shape());
    assert!(
        k == kb && c.rows() == m && c.cols() == n,
        "gemm: A is {m}×{k}, B is {kb}×{n}, C is {}×{}",
        c.rows(),
        c.cols()
    );
    if let Right::Packed(b) = b {
        assert!(
            b.panel() == cpu.table.gemm.nr,
            "gemm: B was packed in panels of {}, {} kernels take {}",
            b.panel(),
            cpu.isa(),
            cpu.table.gemm.nr
        );
    }
    epilogue.check(m, n);
    if m == 0 || n == 0 {
        return;
    }
    driver::run(cpu, par, &blocking.checked(cpu), a, b, write, epilogue, c, stack);
}

/// The scratch memory of [`gemm_blocked`] with up to `threads` workers.
///
/// # Panics
/// When the size overflows.
#[expect(clippy::too_many_arguments, reason = "a shape and the kinds of its operands")]
#[track_caller]
pub fn gemm_blocked_scratch(
    cpu: Cpu,
    blocking: &Blocking,
    threads: usize,
    m: usize,
    n: usize,
    k: usize,
    left: LeftKind,
    right: RightKind,
) -> Need {
    driver::scratch(cpu, &blocking.checked(cpu), threads, m, n, k, left, right)
}
