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
use crate::rows::norm::forward::Written;
use crate::rows::norm::{self, Moments, Norm};
use crate::rows::optimizer::{self, Step};
use crate::rows::softmax;
use crate::rows::softmax::scores::{self, Scores};
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
    /// The same, always accumulating, for an A that is not packed and says which of its elements take part: one that
    /// is −0 is passed over, as if its p were not there for this row, whatever B holds.
    pub(crate) marked: Tile,
    pub(crate) pack_rows: PackRows,
}

/// The row kernels, handed to the macro `$then`: each with its operands and what it is compiled from, a function of
/// `rows/` or one beside its operation, which says what it does. `simd` stands for the token of an instruction set,
/// `R` for the registers that make 32 lanes there.
macro_rules! row_kernels {
    ($then:ident $how:tt) => {
        $then! {
            $how simd R {
                math(function: Function, x: MatMut<'_>) = math::kernel(simd, function, x);
                activate(how: Activation, x: MatMut<'_>) = activation::kernel(simd, how, x);
                activate_backward(how: Activation, x: Mat<'_>, d: MatMut<'_>)
                    = activation::backward_kernel(simd, how, x, d);
                gate(how: Activation, x: Mat<'_>, up: Mat<'_>, out: MatMut<'_>)
                    = activation::gate_kernel(simd, how, x, up, out);
                gate_backward(how: Activation, read: [Mat<'_>; 3], written: [MatMut<'_>; 2])
                    = activation::gate_backward_kernel(simd, how, read, written);
                softmax(x: MatMut<'_>) = softmax::softmax_kernel::<_, R>(simd, x);
                softmax_backward(y: Mat<'_>, d: MatMut<'_>)
                    = softmax::backward::softmax_kernel::<_, R>(simd, y, d);
                log_softmax(x: MatMut<'_>) = softmax::log_softmax_kernel::<_, R>(simd, x);
                log_softmax_backward(y: Mat<'_>, d: MatMut<'_>)
                    = softmax::backward::log_softmax_kernel::<_, R>(simd, y, d);
                masked_softmax(how: &Scores<'_>, row: &mut [f32])
                    = scores::softmax_kernel::<_, R>(simd, how, row);
                exp_scores(how: &Scores<'_>, row: &mut [f32]) -> f32
                    = scores::exp_kernel::<_, R>(simd, how, row);
                cap_scores(scale: f32, cap: f32, row: &mut [f32])
                    = scores::cap_kernel(simd, scale, cap, row);
                norm(how: &Norm<'_>, x: Mat<'_>, residual: Option<Mat<'_>>, written: Written<'_>)
                    = norm::forward::kernel::<_, R>(simd, how, x, residual, written);
                norm_backward(
                    how: &Norm<'_>,
                    saved: &[Moments],
                    read: [Mat<'_>; 2],
                    write: Write,
                    dx: MatMut<'_>,
                ) = norm::backward::kernel::<_, R>(simd, how, saved, read, write, dx);
                norm_sums(saved: &[Moments], read: [Mat<'_>; 2], sums: [&mut [f32]; 2])
                    = norm::backward::sums_kernel(simd, saved, read, sums);
                column_sums(x: Mat<'_>, sums: &mut [f32]) = sums::column_sums_kernel(simd, x, sums);
                sum_of_squares(x: &[f32]) -> f64 = sums::squares_kernel(x);
                loss_sums(row: &[f32], label: usize, weights: &[f32]) -> LossSums
                    = loss::sums_kernel::<_, R>(simd, row, label, weights);
                loss_exponentials(row: &mut [f32], label: usize, weights: &[f32]) -> LossSums
                    = loss::exponentials_kernel::<_, R>(simd, row, label, weights);
                loss_gradient(how: &LossGradient, weights: Option<&[f32]>, row: &mut [f32])
                    = loss::gradient_kernel(simd, how, weights, row);
                dropout(mask: &RowMask, row: &mut [f32]) = dropout::kernel(mask, row);
                add_dropout(mask: &RowMask, x: &[f32], residual: &[f32], out: &mut [f32])
                    = dropout::add_kernel(mask, x, residual, out);
                optimize(step: &Step, gradients: &[f32], written: [&mut [f32]; 3])
                    = optimizer::kernel(simd, step, gradients, written);
                rope(turn: &Turn<'_>, row: &mut [f32]) = rope::kernel(turn, row);
                finish(row: &mut [f32], how: &Finish<'_>) = epilogue::finish_kernel(row, how);
                gradient(how: Weighed<'_>, weights: &mut [f32], d: &mut [f32])
                    = backward::gradient_kernel(how, weights, d);
                finite(x: &[f32]) -> bool = backward::finite_kernel(x);
            } unsafe {
                scale(factor: f32, part: Part) = backward::scale_kernel(factor, part);
            }
        }
    };
}

/// [`RowKernels`] with a function pointer for each kernel.
macro_rules! declare {
    ([] $simd:ident $r:ident {
        $($name:ident($($x:ident: $t:ty),* $(,)?) $(-> $result:ty)? = $body:expr;)*
    } unsafe {
        $($unsafe_name:ident($($unsafe_x:ident: $unsafe_t:ty),*) = $unsafe_body:expr;)*
    }) => {
        /// The row kernels of one instruction set.
        pub(crate) struct RowKernels {
            $(pub(crate) $name: fn($($t),*) $(-> $result)?,)*
            $(pub(crate) $unsafe_name: unsafe fn($($unsafe_t),*),)*
        }
    };
}
row_kernels!(declare []);

/// [`RowKernels`] for the instruction set that `$token` proves, in `$registers` registers, under an attribute that
/// enables its features: everything below is inlined into these functions. (Closures handed to pulp's own `vectorize`
/// are not always, and then run at a hundredth of the speed.)
macro_rules! compile {
    ([$registers:literal, $token:expr, $features:meta] $simd:ident $r:ident {
        $($name:ident($($x:ident: $t:ty),* $(,)?) $(-> $result:ty)? = $body:expr;)*
    } unsafe {
        $($unsafe_name:ident($($unsafe_x:ident: $unsafe_t:ty),*) = $unsafe_body:expr;)*
    }) => {{
        const $r: usize = $registers;
        $(
            #[$features]
            fn $name($($x: $t),*) $(-> $result)? {
                // Plain loops ask for no token.
                #[allow(unused_variables)]
                let $simd = $token;
                $body
            }
        )*
        $(
            #[$features]
            unsafe fn $unsafe_name($($unsafe_x: $unsafe_t),*) {
                // SAFETY: the caller's promise.
                unsafe { $unsafe_body }
            }
        )*
        // Scalar ones need no promise.
        #[allow(unused_unsafe)]
        RowKernels {
            // SAFETY: this table is handed out by `for_isa` alone, once the processor has been asked for the
            // instruction set with all these features.
            $($name: |$($x),*| unsafe { $name($($x),*) },)*
            // SAFETY: as above, and the caller's promise.
            $($unsafe_name: |$($unsafe_x),*| unsafe { $unsafe_name($($unsafe_x),*) },)*
        }
    }};
}

static SCALAR: Table = Table {
    isa: Isa::Scalar,
    gemm: GemmKernels {
        mr: arch::scalar::gemm::MR,
        nr: arch::scalar::gemm::NR,
        tile: arch::scalar::gemm::f32_gemm_4x16_scalar,
        marked: arch::scalar::marked::f32_gemm_marked_scalar,
        pack_rows: arch::scalar::pack::f32_pack_rows_scalar,
    },
    rows: row_kernels!(compile [32, pulp::Scalar, inline]),
};

#[cfg(target_arch = "x86_64")]
static AVX2: Table = {
    use arch::x86_64::avx2::gemm::{MR, NR, f32_gemm_6x16_avx2};
    let pack_rows = arch::x86_64::avx2::pack::f32_pack_rows_8x8_avx2;
    let marked = arch::x86_64::avx2::marked::f32_gemm_marked_6x16_avx2;
    Table {
        isa: Isa::Avx2,
        gemm: GemmKernels { mr: MR, nr: NR, tile: f32_gemm_6x16_avx2, marked, pack_rows },
        rows: row_kernels!(compile [
            4,
            // SAFETY: only functions with these features make the token.
            unsafe { pulp::x86::V3::new_unchecked() },
            target_feature(enable = "sse,sse2,fxsr,sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi1,bmi2,fma,lzcnt")
        ]),
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
        rows: row_kernels!(compile [
            2,
            // SAFETY: only functions with these features make the token.
            unsafe { pulp::x86::V4::new_unchecked() },
            target_feature(
                enable = "sse,sse2,fxsr,sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi1,bmi2,fma,lzcnt",
                enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
            )
        ]),
    }
};

#[cfg(target_arch = "aarch64")]
static NEON: Table = {
    use arch::aarch64::neon::gemm::{MR, NR, f32_gemm_8x8_neon};
    let pack_rows = arch::aarch64::neon::pack::f32_pack_rows_8x4_neon;
    let marked = arch::aarch64::neon::marked::f32_gemm_marked_8x8_neon;
    Table {
        isa: Isa::Neon,
        gemm: GemmKernels { mr: MR, nr: NR, tile: f32_gemm_8x8_neon, marked, pack_rows },
        rows: row_kernels!(compile [
            8,
            // SAFETY: only functions with this feature make the token.
            unsafe { pulp::aarch64::Neon::new_unchecked() },
            target_feature(enable = "neon")
        ]),
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
    Isa::ALL.iter().copied().rev().find_map(for_isa).unwrap_or(&SCALAR)
}
