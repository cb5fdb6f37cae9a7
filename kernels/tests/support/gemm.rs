//! Products in every storage of their operands, and the definition of their bits.

use super::Guarded;
use headrow_kernels::gemm::{Blocking, gemm_blocked, gemm_blocked_scratch};
use headrow_kernels::{
    Cpu, Epilogue, Left, LeftKind, Mat, PackedB, Par, Right, RightKind, Scratch, Write,
};

/// How a product is run; the result may depend on none of it.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub cpu: Cpu,
    pub par: Par<'a>,
    pub blocking: Option<Blocking>,
    pub left: LeftKind,
    pub right: RightKind,
    /// Added to every stride.
    pub gap: usize,
    /// Shifts every first element against its alignment.
    pub offset: usize,
}

impl<'a> Run<'a> {
    pub fn plain(cpu: Cpu) -> Run<'static> {
        let (left, right) = (LeftKind::Plain, RightKind::Packed);
        Run { cpu, par: Par::SERIAL, blocking: None, left, right, gap: 0, offset: 0 }
    }

    /// Every pair of storages of A and B.
    pub fn layouts(self) -> impl Iterator<Item = Run<'a>> {
        let rights = [RightKind::Packed, RightKind::Plain, RightKind::Transposed];
        let pairs = move |right| {
            [LeftKind::Plain, LeftKind::Transposed].map(|left| Run { left, right, ..self })
        };
        rights.into_iter().flat_map(pairs)
    }

    pub fn name(&self, m: usize, n: usize, k: usize) -> String {
        let Run { cpu, left, right, gap, offset, .. } = self;
        format!("{} {m}×{n}×{k} {left:?} {right:?}, gap {gap}, offset {offset}", cpu.isa())
    }

    /// The product of `a` and `b` into `c`, whose guard words are looked after. C holds `old` first.
    pub fn product(
        &self,
        a: Mat<'_>,
        b: Mat<'_>,
        old: Option<Mat<'_>>,
        epilogue: &Epilogue<'_>,
    ) -> Guarded {
        let (m, k, n) = (a.rows(), a.cols(), b.cols());
        let guarded = |x: Mat<'_>, transposed: bool| {
            let (rows, cols) = if transposed { (x.cols(), x.rows()) } else { (x.rows(), x.cols()) };
            let value = |i, j| if transposed { x.row(j)[i] } else { x.row(i)[j] };
            Guarded::from_fn(rows, cols, cols + self.gap, self.offset, value)
        };
        let a = guarded(a, self.left == LeftKind::Transposed);
        let packed;
        let b = match self.right {
            RightKind::Packed => {
                packed = PackedB::new(self.cpu, b);
                guarded(b.rows_range(0..0), false)
            }
            RightKind::Plain | RightKind::Transposed => {
                packed = PackedB::zeroed(self.cpu, 0, 0);
                guarded(b, self.right == RightKind::Transposed)
            }
        };
        let mut c = Guarded::filled(m, n, n + self.gap, self.offset, f32::NAN);
        if let Some(old) = old {
            c.view_mut().copy_from(old);
        }
        let left = match self.left {
            LeftKind::Plain => Left::Plain(a.view()),
            LeftKind::Transposed => Left::Transposed(a.view()),
        };
        let right = match self.right {
            RightKind::Packed => Right::Packed(&packed),
            RightKind::Plain => Right::Plain(b.view()),
            RightKind::Transposed => Right::Transposed(b.view()),
        };
        let write = if old.is_some() { Write::Accumulate } else { Write::Replace };
        let threads = self.par.threads();
        let blocking = self.blocking.unwrap_or(Blocking::new(self.cpu, threads, m, n, k));
        let need =
            gemm_blocked_scratch(self.cpu, &blocking, threads, m, n, k, self.left, self.right);
        let mut scratch = Scratch::new(need);
        // What is left from earlier uses means nothing.
        let mut stack = scratch.stack();
        stack.take::<u8>(need.bytes()).0.fill(0xff);
        let out = c.view_mut();
        gemm_blocked(self.cpu, self.par, &blocking, left, right, write, epilogue, out, &mut stack);
        for (x, what) in [(&a, "A"), (&b, "B"), (&c, "C")] {
            x.assert_intact(&format!("{what} of {}", self.name(m, n, k)));
        }
        c
    }
}

/// The definition of the bits: one chain per element.
pub fn chain(a: Mat<'_>, b: Mat<'_>, old: Option<Mat<'_>>) -> Vec<f32> {
    let mut c = Vec::with_capacity(a.rows() * b.cols());
    for i in 0..a.rows() {
        for j in 0..b.cols() {
            let start = old.map_or(0.0, |c| c.row(i)[j]);
            let products = a.row(i).iter().enumerate();
            c.push(products.fold(start, |sum, (p, &x)| x.mul_add(b.row(p)[j], sum)));
        }
    }
    c
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Rows and columns of a tile, told by the panels of a packed matrix and the rows of the largest tile.
pub fn tile(cpu: Cpu) -> (usize, usize) {
    let nr = PackedB::zeroed(cpu, 1, 1).bytes() / size_of::<f32>();
    (if nr == 8 { 8 } else { 6 }, nr)
}
