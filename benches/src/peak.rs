//! What the machine can do at most: multiply-adds of one core, from registers alone, and reading of memory.

use headrow_kernels::{Isa, Par};
use std::hint::black_box;

/// Multiply-adds per lane and chain in one call of [`burst`].
const STEPS: usize = 20_000;

/// Runs a burst of fused multiply-adds of `isa`'s widest vectors and returns how many floating-point
/// operations it did (two per multiply-add). Time it to get the peak.
///
/// # Panics
/// When this machine lacks `isa`.
pub fn burst(isa: Isa) -> f64 {
    assert!(isa.is_available(), "{isa} is not available here");
    let lanes = match isa {
        // SAFETY: `is_available` says that the machine has the instruction set.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::burst_256() },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::burst_512() },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: NEON is part of aarch64.
        Isa::Neon => unsafe { arm::burst() },
        _ => scalar(),
    };
    2.0 * STEPS as f64 * lanes as f64
}

/// Parts of its memory that a thread may read side by side. Which of them is the fastest way depends on the machine.
pub const STREAMS: [usize; 5] = [1, 2, 4, 8, 16];

/// Adds up `memory`, in as many pieces as there are workers, each by [`read_streams`]: what reading it costs.
///
/// # Panics
/// When `streams` is none of [`STREAMS`].
pub fn read(par: Par<'_>, memory: &[f32], streams: usize) {
    let pieces = memory.len().div_ceil(par.threads()).max(1);
    par.run(memory.len().div_ceil(pieces), &|piece, _| {
        read_streams(&memory[piece * pieces..memory.len().min((piece + 1) * pieces)], streams);
    });
}

/// Adds up `memory` as `streams` parts of it side by side, which keeps more of it on its way than one part after the other.
///
/// # Panics
/// When `streams` is none of [`STREAMS`].
pub fn read_streams(memory: &[f32], streams: usize) {
    #[cfg(target_arch = "x86_64")]
    if Isa::Avx2.is_available() {
        // SAFETY: as asked.
        return unsafe { x86::read_streams_256(memory, streams) };
    }
    add_up_streams(memory, streams);
}

#[inline(always)]
fn add_up_streams(memory: &[f32], streams: usize) {
    match streams {
        1 => side_by_side::<1>(memory),
        2 => side_by_side::<2>(memory),
        4 => side_by_side::<4>(memory),
        8 => side_by_side::<8>(memory),
        16 => side_by_side::<16>(memory),
        _ => panic!("{streams} streams"),
    }
}

/// Blocks of 64 values, one of each part in turn, and those that are over.
#[inline(always)]
fn side_by_side<const PARTS: usize>(memory: &[f32]) {
    let blocks = memory.as_chunks::<64>().0;
    let each = blocks.len() / PARTS;
    let parts: [&[[f32; 64]]; PARTS] =
        std::array::from_fn(|part| &blocks[part * each..(part + 1) * each]);
    let mut sums = [0.0f32; 64];
    for i in 0..each {
        for part in parts {
            sums.iter_mut().zip(&part[i]).for_each(|(sum, x)| *sum += x);
        }
    }
    for block in &blocks[PARTS * each..] {
        sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += x);
    }
    black_box(sums);
}

fn scalar() -> usize {
    let mut sums = std::hint::black_box([1.0f32; 8]);
    let (x, y) = std::hint::black_box((0.999_f32, 0.001_f32));
    for _ in 0..STEPS {
        sums.iter_mut().for_each(|sum| *sum = sum.mul_add(x, y));
    }
    std::hint::black_box(sums);
    8
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    /// See [`super::read_streams`].
    #[target_feature(enable = "avx2")]
    pub(super) fn read_streams_256(memory: &[f32], streams: usize) {
        super::add_up_streams(memory, streams);
    }

    use super::STEPS;
    use std::arch::x86_64::*;

    macro_rules! chains {
        ($name:ident, $features:literal, $vector:ty, $lanes:literal, $set1:ident, $fma:ident) => {
            /// 12 chains: the latency of 4 cycles on 2 units asks for 8.
            #[target_feature(enable = $features)]
            pub(super) fn $name() -> usize {
                let x = $set1(std::hint::black_box(0.999));
                let y = $set1(std::hint::black_box(0.001));
                let mut sums: [$vector; 12] = [$set1(std::hint::black_box(1.0)); 12];
                for _ in 0..STEPS {
                    for sum in &mut sums {
                        *sum = $fma(*sum, x, y);
                    }
                }
                std::hint::black_box(sums);
                12 * $lanes
            }
        };
    }
    chains!(burst_256, "avx2,fma", __m256, 8, _mm256_set1_ps, _mm256_fmadd_ps);
    chains!(burst_512, "avx512f", __m512, 16, _mm512_set1_ps, _mm512_fmadd_ps);
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::STEPS;
    use std::arch::aarch64::*;

    /// 24 chains: up to 4 units of latency 4 ask for 16.
    #[target_feature(enable = "neon")]
    pub(super) fn burst() -> usize {
        let x = vdupq_n_f32(std::hint::black_box(0.999));
        let y = vdupq_n_f32(std::hint::black_box(0.001));
        let mut sums = [vdupq_n_f32(std::hint::black_box(1.0)); 24];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = vfmaq_f32(y, *sum, x);
            }
        }
        std::hint::black_box(sums);
        24 * 4
    }
}
