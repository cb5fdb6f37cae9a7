//! Elementary functions of one register: the one definition of their bits.
//!
//! Every operation is a single IEEE operation (fused multiply-adds included), in one order, so each
//! lane's result is the same whatever the width of the register. The polynomials are minimax fits
//! (Remez exchange in 120-bit arithmetic, coefficients then rounded to f32); each says its interval and error.

// The constants are written with all the digits of their f32 value.
#![allow(clippy::excessive_precision)]

use crate::arch::vector::Vector;

/// log₂ e.
const LOG2_E: f32 = 1.44269502;
/// ln 2 in two parts: 16 bits, so that n·LN2_HIGH and x − n·LN2_HIGH are exact for |n| ≤ 255, and the rest.
const LN2_HIGH: f32 = 0.693145752;
const LN2_LOW: f32 = 1.42860677e-6;
/// 3·2²²: adding it to a small number rounds that number to an integer and leaves it in the low bits.
const ROUND: f32 = 12582912.0;
/// Below this exp rounds to 0.
const EXP_ZERO: f32 = -104.0;

/// c₀ + c₁·x + c₂·x² + … by Horner's rule.
#[inline(always)]
fn polynomial<S: Vector, const N: usize>(simd: S, x: S::f32s, c: [f32; N]) -> S::f32s {
    let mut y = simd.splat_f32s(c[N - 1]);
    for i in (0..N - 1).rev() {
        y = simd.mul_add_f32s(y, x, simd.splat_f32s(c[i]));
    }
    y
}

/// x = n·ln 2 + r with |r| ≤ ln 2/2: gives eʳ and the word ROUND + BIAS + n, whose low bits hold
/// BIAS + n. Exactly 1 at 0.
#[inline(always)]
fn exp_reduced<S: Vector>(simd: S, x: S::f32s, bias: f32) -> (S::f32s, S::u32s) {
    let round = simd.splat_f32s(ROUND + bias);
    let shifted = simd.mul_add_f32s(x, simd.splat_f32s(LOG2_E), round);
    let n = simd.sub_f32s(shifted, round);
    let r = simd.mul_add_f32s(n, simd.splat_f32s(-LN2_HIGH), x);
    let r = simd.mul_add_f32s(n, simd.splat_f32s(-LN2_LOW), r);
    // eʳ on |r| ≤ 0.34668: degree 6, the first two coefficients exactly 1, relative error 2^-28.2.
    let c = [
        1.0,
        1.0,
        0.4999999403953552,
        0.16666516661643982,
        0.04166810214519501,
        0.008369188755750656,
        0.0013838778249919415,
    ];
    (polynomial(simd, r, c), simd.transmute_u32s_f32s(shifted))
}

/// 2ⁿ, from a word whose low bits hold n + 127. (Adding n to the exponent of another number instead would turn
/// a NaN with a payload into a number.)
#[inline(always)]
fn power_of_two<S: Vector>(simd: S, n: S::u32s) -> S::f32s {
    simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(n, simd.splat_u32s(23)))
}

/// `factor`·eˣ for x ≤ 0, with right denormals, +0 below −103.98; NaN stays NaN. `factor` is a power of two.
#[inline(always)]
pub(super) fn exp_of_negative<S: Vector>(simd: S, x: S::f32s, factor: f32) -> S::f32s {
    let x = simd.larger(simd.splat_f32s(EXP_ZERO), x);
    // n ≥ −150: eʳ·2ⁿ⁺²⁵ is a normal number, and the product with 2⁻²⁵ is rounded once.
    let (y, n) = exp_reduced(simd, x, 127.0 + 25.0);
    let y = simd.mul_f32s(y, power_of_two(simd, n));
    simd.mul_f32s(y, simd.splat_f32s(factor / 33554432.0))
}

/// eˣ for −87 ≤ x ≤ 88, where both 2ⁿ and the result are normal numbers.
#[inline(always)]
fn exp_of_moderate<S: Vector>(simd: S, x: S::f32s) -> S::f32s {
    let (y, n) = exp_reduced(simd, x, 127.0);
    simd.mul_f32s(y, power_of_two(simd, n))
}

/// eˣ: ≤ 1 ulp, exactly 1 at 0, right denormals, +0 below −103.98, +∞ above 88.73, NaN for NaN.
#[inline(always)]
pub(super) fn exp<S: Vector>(simd: S, x: S::f32s) -> S::f32s {
    let x = simd.larger(simd.splat_f32s(EXP_ZERO), x);
    let x = simd.smaller(simd.splat_f32s(89.0), x);
    // eʳ·2ⁿ = eʳ·2ʰ·2ⁿ⁻ʰ with h = ⌊n/2⌋, and only the last product is rounded. The word holds n + 254.
    let (y, n) = exp_reduced(simd, x, 254.0);
    let half = simd.wrapping_dyn_shr_u32s(n, simd.splat_u32s(1));
    let other = simd.sub_u32s(n, half);
    simd.mul_f32s(simd.mul_f32s(y, power_of_two(simd, half)), power_of_two(simd, other))
}

/// The natural logarithm: ≤ 1 ulp; −∞ at ±0, NaN below.
#[inline(always)]
pub(super) fn ln<S: Vector>(simd: S, x: S::f32s) -> S::f32s {
    // Denormals are scaled up by 2²⁵.
    let small = simd.less_than_f32s(x, simd.splat_f32s(f32::MIN_POSITIVE));
    let scaled = simd.select_f32s(small, simd.mul_f32s(x, simd.splat_f32s(33554432.0)), x);
    // x = m·2ᵏ with √½ ≤ m < √2: subtracting the bits of √½ makes the exponent field count from there.
    let root_half = simd.splat_u32s(0x3f35_04f3);
    let bits = simd.sub_u32s(simd.transmute_u32s_f32s(scaled), root_half);
    let exponent = simd.and_u32s(bits, simd.splat_u32s(0xff80_0000));
    let m = simd.sub_u32s(simd.transmute_u32s_f32s(scaled), exponent);
    let f = simd.sub_f32s(simd.transmute_f32s_u32s(m), simd.splat_f32s(1.0));
    // k as a number: its two's complement in the high 9 bits becomes k + 256 in the low bits of 2²³ + k + 256.
    let raised = simd.add_u32s(exponent, simd.splat_u32s(0x8000_0000));
    let word = simd.wrapping_dyn_shr_u32s(raised, simd.splat_u32s(23));
    let word = simd.or_u32s(word, simd.splat_u32s(0x4b00_0000));
    let offset = simd.select_f32s(
        small,
        simd.splat_f32s(8388608.0 + 256.0 + 25.0),
        simd.splat_f32s(8388608.0 + 256.0),
    );
    let k = simd.sub_f32s(simd.transmute_f32s_u32s(word), offset);
    // ln(1 + f) = f − f²/2 + f³·P(f) on [√½ − 1, √2 − 1]: degree 8, relative error 2^-28.2.
    let c = [
        0.3333331346511841,
        -0.25000008940696716,
        0.2000211924314499,
        -0.1666799634695053,
        0.14219552278518677,
        -0.12405585497617722,
        0.11888164281845093,
        -0.11675672978162766,
        0.0674666240811348,
    ];
    let p = polynomial(simd, f, c);
    let square = simd.mul_f32s(f, f);
    let rest = simd.mul_f32s(square, simd.mul_add_f32s(f, p, simd.splat_f32s(-0.5)));
    let rest = simd.mul_add_f32s(k, simd.splat_f32s(LN2_LOW), rest);
    // k·LN2_HIGH is exact; what its sum with f loses is added back.
    let high = simd.mul_f32s(k, simd.splat_f32s(LN2_HIGH));
    let sum = simd.add_f32s(high, f);
    let lost = simd.sub_f32s(f, simd.sub_f32s(sum, high));
    let y = simd.add_f32s(sum, simd.add_f32s(rest, lost));
    // x < 0: NaN; ±0: −∞; +∞ and NaN: themselves.
    let y = simd.select_f32s(simd.less_than_f32s(x, simd.splat_f32s(f32::INFINITY)), y, x);
    let y = simd.select_f32s(
        simd.less_than_f32s(x, simd.splat_f32s(0.0)),
        simd.splat_f32s(f32::NAN),
        y,
    );
    simd.select_f32s(
        simd.equal_f32s(x, simd.splat_f32s(0.0)),
        simd.splat_f32s(f32::NEG_INFINITY),
        y,
    )
}

/// 1/(1 + e⁻ˣ), also where it is tiny.
#[inline(always)]
pub(super) fn sigmoid<S: Vector>(simd: S, x: S::f32s) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    let sign = simd.splat_f32s(-0.0);
    let e = exp_of_negative(simd, simd.or_f32s(x, sign), 1.0);
    let above = simd.select_f32s(simd.less_than_f32s(x, simd.splat_f32s(0.0)), e, one);
    simd.div_f32s(above, simd.add_f32s(one, e))
}

/// x·σ(v), finite for every finite x; −0 where v is below −88, also for x = −∞.
///
/// Takes w = −v: x/(1 + eʷ).
#[inline(always)]
pub(super) fn gated<S: Vector>(simd: S, x: S::f32s, w: S::f32s) -> S::f32s {
    let closed = simd.greater_than_f32s(w, simd.splat_f32s(88.0));
    let x = simd.select_f32s(closed, simd.splat_f32s(-0.0), x);
    // Below −87 the sum is 1 all the same.
    let w = simd.smaller(simd.splat_f32s(88.0), simd.larger(simd.splat_f32s(-87.0), w));
    simd.div_f32s(x, simd.add_f32s(simd.splat_f32s(1.0), exp_of_moderate(simd, w)))
}

/// The hyperbolic tangent: ≤ 2 ulp, odd, |y| ≤ 1.
#[inline(always)]
pub(super) fn tanh<S: Vector>(simd: S, x: S::f32s) -> S::f32s {
    let sign = simd.and_f32s(x, simd.splat_f32s(-0.0));
    let a = simd.abs_f32s(x);
    // |x| < 0.625: x + x³·P(x²), degree 4, relative error 2^-27.7.
    let c = [
        -0.3333328068256378,
        0.13331405818462372,
        -0.05373651534318924,
        0.02062816731631756,
        -0.0056922961957752705,
    ];
    let t = simd.mul_f32s(a, a);
    let p = polynomial(simd, t, c);
    let near = simd.mul_add_f32s(simd.mul_f32s(a, t), p, a);
    // Else 1 − 2/(e²ᵃ + 1), which is 1 from 9.02 on.
    let twice = simd.smaller(simd.splat_f32s(20.0), simd.add_f32s(a, a));
    let e = exp_of_moderate(simd, twice);
    let far = simd.div_f32s(simd.splat_f32s(2.0), simd.add_f32s(e, simd.splat_f32s(1.0)));
    let far = simd.sub_f32s(simd.splat_f32s(1.0), far);
    let y = simd.select_f32s(simd.less_than_f32s(a, simd.splat_f32s(0.625)), near, far);
    simd.or_f32s(y, sign)
}

/// erfc(a/√2)·`factor` = 2·Φ(−a)·`factor` for 0 ≤ a ≤ 14, and 0 at 14; NaN for NaN.
///
/// As e^(−q(a)) with q(a) = −ln erfc(a/√2), a smooth function: −q is a polynomial of degree 10 without
/// constant term, error 2^-24.5 on [0, 5.3] (relative where q > 1). Beyond it keeps falling, faster
/// than −q.
#[inline(always)]
fn twice_normal_tail<S: Vector>(simd: S, a: S::f32s, factor: f32) -> S::f32s {
    let c = [
        -0.7978855967521667,
        -0.31829890608787537,
        -0.03637591376900673,
        0.004852553363889456,
        -2.827118987624999e-05,
        -0.0001816542207961902,
        4.9952130211750045e-05,
        -7.176341114245588e-06,
        5.655480208588415e-07,
        -1.924612647030699e-08,
    ];
    let exponent = simd.mul_f32s(a, polynomial(simd, a, c));
    exp_of_negative(simd, exponent, factor)
}

/// The error function: ≤ 2 ulp, odd, |y| ≤ 1.
#[inline(always)]
pub(super) fn erf<S: Vector>(simd: S, x: S::f32s) -> S::f32s {
    let sign = simd.and_f32s(x, simd.splat_f32s(-0.0));
    let a = simd.abs_f32s(x);
    // |x| < 0.8: x + x·P(x²), degree 5, relative error 2^-27.4.
    let c = [
        0.12837916612625122,
        -0.3761260211467743,
        0.11283113062381744,
        -0.02682080678641796,
        0.005085130222141743,
        -0.0006535236025229096,
    ];
    let t = simd.mul_f32s(a, a);
    let near = simd.mul_add_f32s(a, polynomial(simd, t, c), a);
    // Else 1 − erfc, which is 1 from 3.92 on.
    let scaled = simd
        .mul_f32s(simd.smaller(simd.splat_f32s(9.0), a), simd.splat_f32s(std::f32::consts::SQRT_2));
    let far = simd.sub_f32s(simd.splat_f32s(1.0), twice_normal_tail(simd, scaled, 1.0));
    let y = simd.select_f32s(simd.less_than_f32s(a, simd.splat_f32s(0.8)), near, far);
    simd.or_f32s(y, sign)
}

/// x·Φ(x), finite for every finite x, −0 at −∞.
#[inline(always)]
pub(super) fn gelu_erf<S: Vector>(simd: S, x: S::f32s) -> S::f32s {
    // At ±14 the tail is exactly 0.
    let x = simd.larger(simd.splat_f32s(-14.0), x);
    let a = simd.smaller(simd.splat_f32s(14.0), simd.abs_f32s(x));
    let below = twice_normal_tail(simd, a, 0.5);
    let above = simd.sub_f32s(simd.splat_f32s(1.0), below);
    let phi = simd.select_f32s(simd.less_than_f32s(x, simd.splat_f32s(0.0)), below, above);
    simd.mul_f32s(x, phi)
}

/// x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))) = x·σ(2·√(2/π)·(x + 0.044715·x³)).
#[inline(always)]
pub(super) fn gelu_tanh<S: Vector>(simd: S, x: S::f32s) -> S::f32s {
    // −2·√(2/π) and that times 0.044715.
    let linear = simd.splat_f32s(-1.595769122);
    let cubic = simd.splat_f32s(-0.07135481628);
    let w = simd.mul_f32s(x, simd.mul_add_f32s(simd.mul_f32s(x, x), cubic, linear));
    gated(simd, x, w)
}

/// x·σ(1.702·x).
#[inline(always)]
pub(super) fn gelu_quick<S: Vector>(simd: S, x: S::f32s) -> S::f32s {
    gated(simd, x, simd.mul_f32s(x, simd.splat_f32s(-1.702)))
}

/// x·σ(x).
#[inline(always)]
pub(super) fn silu<S: Vector>(simd: S, x: S::f32s) -> S::f32s {
    gated(simd, x, simd.xor_f32s(x, simd.splat_f32s(-0.0)))
}

/// max(x, 0) with NaN for NaN and +0 for −0.
#[inline(always)]
pub(super) fn relu<S: Vector>(simd: S, x: S::f32s) -> S::f32s {
    let zero = simd.splat_f32s(0.0);
    simd.select_f32s(simd.less_than_or_equal_f32s(x, zero), zero, x)
}
