//! N registers that go through a computation side by side.
//!
//! One register at a time waits for the latency of every multiply-add of a polynomial; several keep the
//! units busy. Each operation is lane by lane and rounded once, so N does not show in the bits.

use crate::arch::vector::Vector;
use pulp::bytemuck::Zeroable;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Sub};

/// N registers of numbers.
#[derive(Clone, Copy)]
pub(super) struct Pack<S: Vector, const N: usize> {
    simd: S,
    pub(super) registers: [S::f32s; N],
}

/// N registers of 32-bit words.
#[derive(Clone, Copy)]
pub(super) struct Words<S: Vector, const N: usize> {
    simd: S,
    registers: [S::u32s; N],
}

/// N registers of truth values.
#[derive(Clone, Copy)]
pub(super) struct Truths<S: Vector, const N: usize> {
    simd: S,
    pub(super) registers: [S::m32s; N],
}

/// A pack whose register `$r` is `$op`. (A loop: closures handed to `array::from_fn` would be compiled
/// without the processor's features.)
macro_rules! each {
    ($pack:ident, $simd:expr, $r:ident => $op:expr) => {{
        let mut registers = [Zeroable::zeroed(); N];
        for $r in 0..N {
            registers[$r] = $op;
        }
        $pack { simd: $simd, registers }
    }};
}

impl<S: Vector, const N: usize> Pack<S, N> {
    #[inline(always)]
    pub(super) fn new(simd: S, registers: [S::f32s; N]) -> Self {
        Pack { simd, registers }
    }

    /// The same number in every lane.
    #[inline(always)]
    pub(super) fn splat(simd: S, value: f32) -> Self {
        Pack { simd, registers: [simd.splat_f32s(value); N] }
    }

    /// The same number in every lane of a pack like this one.
    #[inline(always)]
    pub(super) fn all(self, value: f32) -> Self {
        Self::splat(self.simd, value)
    }

    /// The same register N times.
    #[inline(always)]
    pub(super) fn repeat(self, register: S::f32s) -> Self {
        Pack { simd: self.simd, registers: [register; N] }
    }

    /// self·factor + addend, rounded once.
    #[inline(always)]
    pub(super) fn mul_add(self, factor: Self, addend: Self) -> Self {
        let (a, b, c) = (self.registers, factor.registers, addend.registers);
        each!(Pack, self.simd, r => self.simd.mul_add_f32s(a[r], b[r], c[r]))
    }

    /// self > other ? self : other; `other` when either is NaN.
    #[inline(always)]
    pub(super) fn larger(self, other: Self) -> Self {
        each!(Pack, self.simd, r => self.simd.larger(self.registers[r], other.registers[r]))
    }

    /// self < other ? self : other; `other` when either is NaN.
    #[inline(always)]
    pub(super) fn smaller(self, other: Self) -> Self {
        each!(Pack, self.simd, r => self.simd.smaller(self.registers[r], other.registers[r]))
    }

    #[inline(always)]
    pub(super) fn abs(self) -> Self {
        each!(Pack, self.simd, r => self.simd.abs_f32s(self.registers[r]))
    }

    #[inline(always)]
    pub(super) fn sqrt(self) -> Self {
        each!(Pack, self.simd, r => self.simd.sqrt_f32s(self.registers[r]))
    }

    #[inline(always)]
    pub(super) fn less_than(self, other: Self) -> Truths<S, N> {
        let (a, b) = (self.registers, other.registers);
        each!(Truths, self.simd, r => self.simd.less_than_f32s(a[r], b[r]))
    }

    #[inline(always)]
    pub(super) fn equals(self, other: Self) -> Truths<S, N> {
        each!(Truths, self.simd, r => self.simd.equal_f32s(self.registers[r], other.registers[r]))
    }

    #[inline(always)]
    pub(super) fn to_bits(self) -> Words<S, N> {
        each!(Words, self.simd, r => self.simd.transmute_u32s_f32s(self.registers[r]))
    }
}

impl<S: Vector, const N: usize> Words<S, N> {
    /// The same word in every lane of a pack like this one.
    #[inline(always)]
    pub(super) fn all(self, value: u32) -> Self {
        Words { simd: self.simd, registers: [self.simd.splat_u32s(value); N] }
    }

    #[inline(always)]
    pub(super) fn shift_left(self, by: u32) -> Self {
        let by = self.simd.splat_u32s(by);
        each!(Words, self.simd, r => self.simd.wrapping_dyn_shl_u32s(self.registers[r], by))
    }

    /// Zeros are shifted in.
    #[inline(always)]
    pub(super) fn shift_right(self, by: u32) -> Self {
        let by = self.simd.splat_u32s(by);
        each!(Words, self.simd, r => self.simd.wrapping_dyn_shr_u32s(self.registers[r], by))
    }

    #[inline(always)]
    pub(super) fn to_number(self) -> Pack<S, N> {
        each!(Pack, self.simd, r => self.simd.transmute_f32s_u32s(self.registers[r]))
    }
}

impl<S: Vector, const N: usize> Truths<S, N> {
    /// The same in every lane.
    #[inline(always)]
    pub(super) fn splat(simd: S, value: bool) -> Self {
        let lanes = if value { S::F32_LANES as isize } else { 0 };
        Truths { simd, registers: [simd.lanes(0, lanes); N] }
    }

    /// Lane by lane one or the other.
    #[inline(always)]
    pub(super) fn select(self, if_true: Pack<S, N>, if_false: Pack<S, N>) -> Pack<S, N> {
        let (mask, a, b) = (self.registers, if_true.registers, if_false.registers);
        each!(Pack, self.simd, r => self.simd.select_f32s(mask[r], a[r], b[r]))
    }
}

macro_rules! operator {
    ($pack:ident, $trait:ident, $function:ident, $op:ident) => {
        impl<S: Vector, const N: usize> $trait for $pack<S, N> {
            type Output = Self;
            #[inline(always)]
            fn $function(self, other: Self) -> Self {
                each!($pack, self.simd, r => self.simd.$op(self.registers[r], other.registers[r]))
            }
        }
    };
}
operator!(Pack, Add, add, add_f32s);
operator!(Pack, Sub, sub, sub_f32s);
operator!(Pack, Mul, mul, mul_f32s);
operator!(Pack, Div, div, div_f32s);
operator!(Pack, BitAnd, bitand, and_f32s);
operator!(Pack, BitOr, bitor, or_f32s);
operator!(Pack, BitXor, bitxor, xor_f32s);
operator!(Words, Add, add, add_u32s);
operator!(Words, Sub, sub, sub_u32s);
operator!(Words, BitAnd, bitand, and_u32s);
operator!(Words, BitOr, bitor, or_u32s);

operator!(Truths, BitAnd, bitand, and_m32s);

impl<S: Vector, const N: usize> Not for Truths<S, N> {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        each!(Truths, self.simd, r => self.simd.not_m32s(self.registers[r]))
    }
}

/// Flips the sign, NaN and zeros included.
impl<S: Vector, const N: usize> Neg for Pack<S, N> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        self ^ self.all(-0.0)
    }
}
