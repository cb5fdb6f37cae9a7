//! Which kernel runs on which instruction set: the only place where one is chosen.

use crate::arch::{self, PackRows, Tile};
use crate::attention::backward::{self, Part, Weighed};
use crate::cpu::Isa;
use crate::gemm::Write;
use crate::gemm::epilogue::{self, Finish};
use crate::rope::{self, Turn};
use crate::rows::activation::{self, Activation};
use crate::rows::dropout::{self, RowMask};
use crate::rows::loss::{self, LossGradient, LossSums};
use crate::rows::math::{self, Function};
use crate::rows::norm::{self, Moments, Norm, Written};
use crate::rows::optimizer::{self, Step};
use crate::rows::softmax::{self, Scores};
use crate::rows::sums;
use crate::view::{Mat, MatMut};

/// The kernels of one instruction set, and the tile shapes they work in.
pub(crate) struct Table {
    pub(crate) isa: Isa,
    pub(crate) gemm: GemmKernels,
    pub(crate) rows: RowKernels,
}

/// GEMM on one instruction set.
pub(crate) struct GemmKernels {
    /// Rows of the largest tile: blocks of a multiple of it leave no small ones.
    pub(crate) mr: usize,
    /// Columns of a panel of B.
    pub(crate) nr: usize,
    pub(crate) tile: Tile,
    /// The same, always accumulating, for an A that says which of its elements take part: one that is −0 is
    /// passed over, as if its p were not there for this row, whatever B holds.
    pub(crate) marked: Tile,
    pub(crate) pack_rows: PackRows,
}

/// The row kernels of one instruction set: `rows/` compiled for it. The functions there say what they do.
pub(crate) struct RowKernels {
    pub(crate) math: fn(Function, MatMut<'_>),
    pub(crate) activate: fn(Activation, MatMut<'_>),
    pub(crate) softmax: fn(MatMut<'_>),
    pub(crate) log_softmax: fn(MatMut<'_>),
    pub(crate) masked_softmax: fn(&Scores<'_>, &mut [f32]),
    pub(crate) exp_scores: fn(&Scores<'_>, &mut [f32]) -> f32,
    pub(crate) cap_scores: fn(f32, f32, &mut [f32]),
    pub(crate) gradient: fn(Weighed<'_>, &mut [f32], &mut [f32]),
    pub(crate) finite: fn(&[f32]) -> bool,
    pub(crate) scale: unsafe fn(f32, Part),
    pub(crate) finish: fn(&mut [f32], &Finish<'_>),
    pub(crate) rope: fn(&Turn<'_>, &mut [f32]),
    pub(crate) gate: fn(Activation, Mat<'_>, Mat<'_>, MatMut<'_>),
    pub(crate) norm: fn(&Norm<'_>, Mat<'_>, Option<Mat<'_>>, Written<'_>),
    pub(crate) activate_backward: fn(Activation, Mat<'_>, MatMut<'_>),
    pub(crate) gate_backward: fn(Activation, [Mat<'_>; 3], [MatMut<'_>; 2]),
    pub(crate) norm_backward: fn(&Norm<'_>, &[Moments], [Mat<'_>; 2], Write, MatMut<'_>),
    pub(crate) norm_sums: fn(&[Moments], [Mat<'_>; 2], [&mut [f32]; 2]),
    pub(crate) column_sums: fn(Mat<'_>, &mut [f32]),
    pub(crate) sum_of_squares: fn(&[f32]) -> f64,
    pub(crate) softmax_backward: fn(Mat<'_>, MatMut<'_>),
    pub(crate) log_softmax_backward: fn(Mat<'_>, MatMut<'_>),
    pub(crate) loss_sums: fn(&[f32], usize, Option<&[f32]>) -> LossSums,
    pub(crate) loss_gradient: fn(&LossGradient, Option<&[f32]>, &mut [f32]),
    pub(crate) dropout: fn(&RowMask, &mut [f32]),
    pub(crate) add_dropout: fn(&RowMask, &[f32], &[f32], &mut [f32]),
    pub(crate) optimize: fn(&Step, &[f32], [&mut [f32]; 3]),
}

/// The row kernels in 32 lanes = `$registers` registers of the instruction set that `$token` proves, compiled with
/// its features: everything below is inlined into these functions. (Closures handed to pulp's own `vectorize` are not
/// always, and then run at a hundredth of the speed.)
macro_rules! row_kernels {
    ($registers:literal, $token:expr $(, $features:literal)?) => {{
        $(#[target_feature(enable = $features)])?
        fn math(function: Function, x: MatMut<'_>) {
            let simd = $token;
            math::kernel(simd, function, x)
        }
        $(#[target_feature(enable = $features)])?
        fn activate(activation: Activation, x: MatMut<'_>) {
            let simd = $token;
            activation::kernel(simd, activation, x)
        }
        $(#[target_feature(enable = $features)])?
        fn softmax(x: MatMut<'_>) {
            let simd = $token;
            softmax::softmax_kernel::<_, $registers>(simd, x)
        }
        $(#[target_feature(enable = $features)])?
        fn log_softmax(x: MatMut<'_>) {
            let simd = $token;
            softmax::log_softmax_kernel::<_, $registers>(simd, x)
        }
        $(#[target_feature(enable = $features)])?
        fn masked_softmax(scores: &Scores<'_>, row: &mut [f32]) {
            let simd = $token;
            softmax::masked_softmax_kernel::<_, $registers>(simd, scores, row)
        }
        $(#[target_feature(enable = $features)])?
        fn exp_scores(scores: &Scores<'_>, row: &mut [f32]) -> f32 {
            let simd = $token;
            softmax::exp_scores_kernel::<_, $registers>(simd, scores, row)
        }
        $(#[target_feature(enable = $features)])?
        fn cap_scores(scale: f32, cap: f32, row: &mut [f32]) {
            let simd = $token;
            softmax::cap_scores_kernel(simd, scale, cap, row)
        }
        $(#[target_feature(enable = $features)])?
        fn gradient(how: Weighed<'_>, weights: &mut [f32], d: &mut [f32]) {
            backward::gradient_kernel(how, weights, d)
        }
        $(#[target_feature(enable = $features)])?
        fn finite(x: &[f32]) -> bool {
            backward::finite_kernel(x)
        }
        $(#[target_feature(enable = $features)])?
        unsafe fn scale(factor: f32, part: Part) {
            // SAFETY: the caller's promise.
            unsafe { backward::scale_kernel(factor, part) }
        }
        $(#[target_feature(enable = $features)])?
        fn finish(row: &mut [f32], how: &Finish<'_>) {
            epilogue::finish_kernel(row, how)
        }
        $(#[target_feature(enable = $features)])?
        fn rope(turn: &Turn<'_>, row: &mut [f32]) {
            rope::kernel(turn, row)
        }
        $(#[target_feature(enable = $features)])?
        fn gate(activation: Activation, gate: Mat<'_>, up: Mat<'_>, out: MatMut<'_>) {
            let simd = $token;
            activation::gate_kernel(simd, activation, gate, up, out)
        }
        $(#[target_feature(enable = $features)])?
        fn norm(how: &Norm<'_>, x: Mat<'_>, residual: Option<Mat<'_>>, written: Written<'_>) {
            let simd = $token;
            norm::kernel::<_, $registers>(simd, how, x, residual, written)
        }
        $(#[target_feature(enable = $features)])?
        fn activate_backward(activation: Activation, x: Mat<'_>, d: MatMut<'_>) {
            let simd = $token;
            activation::backward_kernel(simd, activation, x, d)
        }
        $(#[target_feature(enable = $features)])?
        fn gate_backward(activation: Activation, read: [Mat<'_>; 3], written: [MatMut<'_>; 2]) {
            let simd = $token;
            activation::gate_backward_kernel(simd, activation, read, written)
        }
        $(#[target_feature(enable = $features)])?
        fn norm_backward(
            how: &Norm<'_>,
            saved: &[Moments],
            read: [Mat<'_>; 2],
            write: Write,
            dx: MatMut<'_>,
        ) {
            let simd = $token;
            norm::backward::kernel::<_, $registers>(simd, how, saved, read, write, dx)
        }
        $(#[target_feature(enable = $features)])?
        fn norm_sums(saved: &[Moments], read: [Mat<'_>; 2], to: [&mut [f32]; 2]) {
            let simd = $token;
            norm::backward::sums_kernel(simd, saved, read, to)
        }
        $(#[target_feature(enable = $features)])?
        fn column_sums(x: Mat<'_>, to: &mut [f32]) {
            let simd = $token;
            sums::column_sums_kernel(simd, x, to)
        }
        $(#[target_feature(enable = $features)])?
        fn sum_of_squares(x: &[f32]) -> f64 {
            sums::squares_kernel(x)
        }
        $(#[target_feature(enable = $features)])?
        fn softmax_backward(y: Mat<'_>, d: MatMut<'_>) {
            let simd = $token;
            softmax::backward::softmax_kernel::<_, $registers>(simd, y, d)
        }
        $(#[target_feature(enable = $features)])?
        fn log_softmax_backward(y: Mat<'_>, d: MatMut<'_>) {
            let simd = $token;
            softmax::backward::log_softmax_kernel::<_, $registers>(simd, y, d)
        }
        $(#[target_feature(enable = $features)])?
        fn loss_sums(row: &[f32], label: usize, weights: Option<&[f32]>) -> LossSums {
            let simd = $token;
            loss::sums_kernel::<_, $registers>(simd, row, label, weights)
        }
        $(#[target_feature(enable = $features)])?
        fn loss_gradient(how: &LossGradient, weights: Option<&[f32]>, row: &mut [f32]) {
            let simd = $token;
            loss::gradient_kernel(simd, how, weights, row)
        }
        $(#[target_feature(enable = $features)])?
        fn dropout(mask: &RowMask, row: &mut [f32]) {
            dropout::kernel(mask, row)
        }
        $(#[target_feature(enable = $features)])?
        fn add_dropout(mask: &RowMask, x: &[f32], residual: &[f32], out: &mut [f32]) {
            dropout::add_kernel(mask, x, residual, out)
        }
        $(#[target_feature(enable = $features)])?
        fn optimize(step: &Step, gradients: &[f32], written: [&mut [f32]; 3]) {
            let simd = $token;
            optimizer::kernel(simd, step, gradients, written)
        }
        // SAFETY, of each call: this table is handed out by `for_isa` alone, once the processor has been asked
        // for the instruction set with all these features.
        #[allow(unused_unsafe)]
        RowKernels {
            // SAFETY: as above.
            math: |function, x| unsafe { math(function, x) },
            // SAFETY: as above.
            activate: |activation, x| unsafe { activate(activation, x) },
            // SAFETY: as above.
            softmax: |x| unsafe { softmax(x) },
            // SAFETY: as above.
            log_softmax: |x| unsafe { log_softmax(x) },
            // SAFETY: as above.
            masked_softmax: |scores, row| unsafe { masked_softmax(scores, row) },
            // SAFETY: as above.
            exp_scores: |scores, row| unsafe { exp_scores(scores, row) },
            // SAFETY: as above.
            cap_scores: |scale, cap, row| unsafe { cap_scores(scale, cap, row) },
            // SAFETY: as above.
            gradient: |how, weights, d| unsafe { gradient(how, weights, d) },
            // SAFETY: as above.
            finite: |x| unsafe { finite(x) },
            // SAFETY: as above.
            scale: |factor, part| unsafe { scale(factor, part) },
            // SAFETY: as above.
            finish: |row, how| unsafe { finish(row, how) },
            // SAFETY: as above.
            rope: |turn, row| unsafe { rope(turn, row) },
            // SAFETY: as above.
            gate: |activation, x, up, out| unsafe { gate(activation, x, up, out) },
            // SAFETY: as above.
            norm: |how, x, residual, written| unsafe { norm(how, x, residual, written) },
            // SAFETY: as above.
            activate_backward: |activation, x, d| unsafe { activate_backward(activation, x, d) },
            // SAFETY: as above.
            gate_backward: |activation, read, to| unsafe { gate_backward(activation, read, to) },
            // SAFETY: as above.
            norm_backward: |how, saved, read, write, dx| unsafe {
                norm_backward(how, saved, read, write, dx)
            },
            // SAFETY: as above.
            norm_sums: |saved, read, to| unsafe { norm_sums(saved, read, to) },
            // SAFETY: as above.
            column_sums: |x, to| unsafe { column_sums(x, to) },
            // SAFETY: as above.
            sum_of_squares: |x| unsafe { sum_of_squares(x) },
            // SAFETY: as above.
            softmax_backward: |y, d| unsafe { softmax_backward(y, d) },
            // SAFETY: as above.
            log_softmax_backward: |y, d| unsafe { log_softmax_backward(y, d) },
            // SAFETY: as above.
            loss_sums: |row, label, weights| unsafe { loss_sums(row, label, weights) },
            // SAFETY: as above.
            loss_gradient: |how, weights, row| unsafe { loss_gradient(how, weights, row) },
            // SAFETY: as above.
            dropout: |mask, row| unsafe { dropout(mask, row) },
            // SAFETY: as above.
            add_dropout: |mask, x, residual, out| unsafe { add_dropout(mask, x, residual, out) },
            // SAFETY: as above.
            optimize: |step, gradients, written| unsafe { optimize(step, gradients, written) },
        }
    }};
}

static SCALAR: Table = Table {
    isa: Isa::Scalar,
    gemm: GemmKernels {
        mr: 4,
        nr: 16,
        tile: arch::scalar::gemm::f32_gemm_1x16_scalar,
        marked: arch::scalar::marked::f32_gemm_marked_scalar,
        pack_rows: arch::scalar::pack::f32_pack_rows_scalar,
    },
    rows: row_kernels!(32, pulp::Scalar),
};

#[cfg(target_arch = "x86_64")]
static AVX2: Table = {
    use arch::x86_64::avx2::gemm::{MR, NR, f32_gemm_6x16_avx2};
    let pack_rows = arch::x86_64::avx2::pack::f32_pack_rows_8x8_avx2;
    let marked = arch::x86_64::avx2::marked::f32_gemm_marked_6x16_avx2;
    Table {
        isa: Isa::Avx2,
        gemm: GemmKernels { mr: MR, nr: NR, tile: f32_gemm_6x16_avx2, marked, pack_rows },
        rows: row_kernels!(
            4,
            // SAFETY: only functions with these features make the token.
            unsafe { pulp::x86::V3::new_unchecked() },
            "sse,sse2,fxsr,sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi1,bmi2,fma,lzcnt"
        ),
    }
};

#[cfg(target_arch = "x86_64")]
static AVX512: Table = {
    use arch::x86_64::avx512::gemm::{MR, NR, f32_gemm_6x64_avx512};
    let pack_rows = arch::x86_64::avx2::pack::f32_pack_rows_8x8_avx2;
    let marked = arch::x86_64::avx512::marked::f32_gemm_marked_6x32_avx512;
    Table {
        isa: Isa::Avx512,
        gemm: GemmKernels { mr: MR, nr: NR, tile: f32_gemm_6x64_avx512, marked, pack_rows },
        rows: row_kernels!(
            2,
            // SAFETY: only functions with these features make the token.
            unsafe { pulp::x86::V4::new_unchecked() },
            "sse,sse2,fxsr,sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi1,bmi2,fma,lzcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
        ),
    }
};

#[cfg(target_arch = "aarch64")]
static NEON: Table = {
    use arch::aarch64::neon::gemm::{MR, NR, f32_gemm_8x8_neon};
    let pack_rows = arch::aarch64::neon::pack::f32_pack_rows_4x4_neon;
    let marked = arch::aarch64::neon::marked::f32_gemm_marked_8x8_neon;
    Table {
        isa: Isa::Neon,
        gemm: GemmKernels { mr: MR, nr: NR, tile: f32_gemm_8x8_neon, marked, pack_rows },
        rows: row_kernels!(
            8,
            // SAFETY: only functions with this feature make the token.
            unsafe { pulp::aarch64::Neon::new_unchecked() },
            "neon"
        ),
    }
};

/// The table of `isa`, when this machine and this build have it.
pub(crate) fn for_isa(isa: Isa) -> Option<&'static Table> {
    match isa {
        Isa::Scalar => Some(&SCALAR),
        // The row kernels run on pulp's levels, so these ask for all that pulp asks for.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => pulp::x86::V3::try_new().map(|_| &AVX2),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => pulp::x86::V4::try_new().map(|_| &AVX512),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => pulp::aarch64::Neon::try_new().map(|_| &NEON),
        _ => None,
    }
}

/// The table of the best instruction set here.
pub(crate) fn best() -> &'static Table {
    Isa::ALL.into_iter().rev().find_map(for_isa).unwrap_or(&SCALAR)
}
