//! Elementary functions, N registers at a time: the one definition of their bits.
//!
//! Every operation is a single IEEE operation (fused multiply-adds included), in one order, so each
//! lane's result is the same whatever the width of the registers. The polynomials are minimax fits
//! (Remez exchange in 120-bit arithmetic, coefficients then rounded to f32); each says its interval and error.

// The constants are written with all the digits of their f32 value.
#![allow(clippy::excessive_precision)]

use super::pack::{Pack, Words};
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
/// 2²⁵.
const TWO_25: f32 = 33554432.0;

/// c₀ + c₁·x + c₂·x² + … by Horner's rule.
#[inline(always)]
fn polynomial<S: Vector, const N: usize, const C: usize>(x: Pack<S, N>, c: [f32; C]) -> Pack<S, N> {
    let mut y = x.all(c[C - 1]);
    for i in (0..C - 1).rev() {
        y = y.mul_add(x, x.all(c[i]));
    }
    y
}

/// x = n·ln 2 + r with |r| ≤ ln 2/2: gives eʳ, and words whose low bits hold n + `bias`. Exactly 1 at 0.
#[inline(always)]
fn exp_reduced<S: Vector, const N: usize>(x: Pack<S, N>, bias: f32) -> (Pack<S, N>, Words<S, N>) {
    let round = x.all(ROUND + bias);
    let shifted = x.mul_add(x.all(LOG2_E), round);
    let n = shifted - round;
    let r = n.mul_add(x.all(-LN2_HIGH), x);
    let r = n.mul_add(x.all(-LN2_LOW), r);
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
    (polynomial(r, c), shifted.to_bits())
}

/// 2ⁿ, from words whose low bits hold n + 127. (Adding n to the exponent of another number instead would turn
/// a NaN with a payload into a number.)
#[inline(always)]
fn power_of_two<S: Vector, const N: usize>(n: Words<S, N>) -> Pack<S, N> {
    n.shift_left(23).to_number()
}

/// `factor`·eˣ for x ≤ 0, with right denormals, +0 below −103.98; NaN stays NaN. `factor` is a power of two.
#[inline(always)]
pub(super) fn exp_of_negative<S: Vector, const N: usize>(x: Pack<S, N>, factor: f32) -> Pack<S, N> {
    let x = x.all(EXP_ZERO).larger(x);
    // n ≥ −150: eʳ·2ⁿ⁺²⁵ is a normal number, and the product with 2⁻²⁵ is rounded once.
    let (y, n) = exp_reduced(x, 127.0 + 25.0);
    y * power_of_two(n) * x.all(factor / TWO_25)
}

/// eˣ for −87 ≤ x ≤ 88, where both 2ⁿ and the result are normal numbers.
#[inline(always)]
fn exp_of_moderate<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    let (y, n) = exp_reduced(x, 127.0);
    y * power_of_two(n)
}

/// eˣ: ≤ 1 ulp, exactly 1 at 0, right denormals, +0 below −103.98, +∞ above 88.73, NaN for NaN.
#[inline(always)]
pub(super) fn exp<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    let x = x.all(EXP_ZERO).larger(x);
    let x = x.all(89.0).smaller(x);
    // eʳ·2ⁿ = eʳ·2ʰ·2ⁿ⁻ʰ with h = ⌊n/2⌋, and only the last product is rounded. The words hold n + 254.
    let (y, n) = exp_reduced(x, 254.0);
    let half = n.shift_right(1);
    y * power_of_two(half) * power_of_two(n - half)
}

/// The natural logarithm: ≤ 1 ulp; −∞ at ±0, NaN below.
#[inline(always)]
pub(super) fn ln<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    // Denormals are scaled up by 2²⁵.
    let small = x.less_than(x.all(f32::MIN_POSITIVE));
    let scaled = small.select(x * x.all(TWO_25), x).to_bits();
    // x = m·2ᵏ with √½ ≤ m < √2: subtracting the bits of √½ makes the exponent field count from there.
    let exponent = (scaled - scaled.all(0x3f35_04f3)) & scaled.all(0xff80_0000);
    let f = (scaled - exponent).to_number() - x.all(1.0);
    // k as a number: its two's complement in the high 9 bits becomes k + 256 in the low bits of 2²³ + k + 256.
    let word = (exponent + scaled.all(0x8000_0000)).shift_right(23) | scaled.all(0x4b00_0000);
    let offset = 8388608.0 + 256.0;
    let k = word.to_number() - small.select(x.all(offset + 25.0), x.all(offset));
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
    let rest = f * f * f.mul_add(polynomial(f, c), x.all(-0.5));
    let rest = k.mul_add(x.all(LN2_LOW), rest);
    // k·LN2_HIGH is exact; what its sum with f loses is added back.
    let high = k * x.all(LN2_HIGH);
    let sum = high + f;
    let lost = f - (sum - high);
    let y = sum + (rest + lost);
    // +∞ and NaN: themselves; x < 0: NaN; ±0: −∞.
    let y = x.less_than(x.all(f32::INFINITY)).select(y, x);
    let y = x.less_than(x.all(0.0)).select(x.all(f32::NAN), y);
    x.equals(x.all(0.0)).select(x.all(f32::NEG_INFINITY), y)
}

/// 1/(1 + e⁻ˣ), also where it is tiny.
#[inline(always)]
pub(super) fn sigmoid<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    let one = x.all(1.0);
    let e = exp_of_negative(x | x.all(-0.0), 1.0);
    x.less_than(x.all(0.0)).select(e, one) / (one + e)
}

/// x·σ(−w) = x/(1 + eʷ), finite for every finite x; −0 where w is above 88, also for x = −∞.
#[inline(always)]
fn gated<S: Vector, const N: usize>(x: Pack<S, N>, w: Pack<S, N>) -> Pack<S, N> {
    let most = x.all(88.0);
    let x = most.less_than(w).select(x.all(-0.0), x);
    // Below −87 the sum is 1 all the same.
    let w = most.smaller(x.all(-87.0).larger(w));
    x / (x.all(1.0) + exp_of_moderate(w))
}

/// The hyperbolic tangent: ≤ 2 ulp, odd, |y| ≤ 1.
#[inline(always)]
pub(super) fn tanh<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    let (sign, a) = (x & x.all(-0.0), x.abs());
    // |x| < 0.625: x + x³·P(x²), degree 4, relative error 2^-27.7.
    let c = [
        -0.3333328068256378,
        0.13331405818462372,
        -0.05373651534318924,
        0.02062816731631756,
        -0.0056922961957752705,
    ];
    let t = a * a;
    let near = (a * t).mul_add(polynomial(t, c), a);
    // Else 1 − 2/(e²ᵃ + 1), which is 1 from 9.02 on.
    let e = exp_of_moderate(x.all(20.0).smaller(a + a));
    let far = x.all(1.0) - x.all(2.0) / (e + x.all(1.0));
    a.less_than(x.all(0.625)).select(near, far) | sign
}

/// erfc(a/√2)·`factor` = 2·Φ(−a)·`factor` for 0 ≤ a ≤ 14, and 0 at 14; NaN for NaN.
///
/// As e^(−q(a)) with q(a) = −ln erfc(a/√2), a smooth function: −q is a polynomial of degree 10 without
/// constant term, error 2^-24.5 on [0, 5.3] (relative where q > 1). Beyond it keeps falling, faster
/// than −q.
#[inline(always)]
fn twice_normal_tail<S: Vector, const N: usize>(a: Pack<S, N>, factor: f32) -> Pack<S, N> {
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
    exp_of_negative(a * polynomial(a, c), factor)
}

/// The error function: ≤ 2 ulp, odd, |y| ≤ 1.
#[inline(always)]
pub(super) fn erf<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    let (sign, a) = (x & x.all(-0.0), x.abs());
    // |x| < 0.8: x + x·P(x²), degree 5, relative error 2^-27.4.
    let c = [
        0.12837916612625122,
        -0.3761260211467743,
        0.11283113062381744,
        -0.02682080678641796,
        0.005085130222141743,
        -0.0006535236025229096,
    ];
    let near = a.mul_add(polynomial(a * a, c), a);
    // Else 1 − erfc, which is 1 from 3.92 on.
    let scaled = x.all(9.0).smaller(a) * x.all(std::f32::consts::SQRT_2);
    let far = x.all(1.0) - twice_normal_tail(scaled, 1.0);
    a.less_than(x.all(0.8)).select(near, far) | sign
}

/// x·Φ(x), finite for every finite x, −0 at −∞.
#[inline(always)]
pub(super) fn gelu_erf<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    // At ±14 the tail is exactly 0.
    let x = x.all(-14.0).larger(x);
    let below = twice_normal_tail(x.all(14.0).smaller(x.abs()), 0.5);
    x * x.less_than(x.all(0.0)).select(below, x.all(1.0) - below)
}

/// x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))) = x·σ(2·√(2/π)·(x + 0.044715·x³)).
#[inline(always)]
pub(super) fn gelu_tanh<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    // −2·√(2/π), and that times 0.044715.
    let (linear, cubic) = (x.all(-1.595769122), x.all(-0.07135481628));
    gated(x, x * (x * x).mul_add(cubic, linear))
}

/// x·σ(1.702·x).
#[inline(always)]
pub(super) fn gelu_quick<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    gated(x, x * x.all(-1.702))
}

/// x·σ(x).
#[inline(always)]
pub(super) fn silu<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    gated(x, -x)
}

/// max(x, 0) with NaN for NaN and, through the sum, +0 for −0.
#[inline(always)]
pub(super) fn relu<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    x.all(0.0).larger(x) + x.all(0.0)
}

/// The slope of x, which is 1.
#[inline(always)]
pub(super) fn identity_slope<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    x.all(1.0)
}

/// 1 above 0, else 0; NaN for NaN.
#[inline(always)]
pub(super) fn relu_slope<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    let slope = x.all(0.0).less_than(x).select(x.all(1.0), x.all(0.0));
    x.equals(x).select(slope, x)
}

/// x between −`most` and `most`, where a slope is 0 and 1; NaN stays NaN.
#[inline(always)]
fn within<S: Vector, const N: usize>(x: Pack<S, N>, most: f32) -> Pack<S, N> {
    let x = x.all(-most).larger(x);
    x.all(most).smaller(x)
}

/// Φ(x) + x·φ(x), with φ(x) = e^(−x²/2)/√(2π).
#[inline(always)]
pub(super) fn gelu_erf_slope<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    // At ±15 the density is exactly 0, from ±14 on the tail.
    let x = within(x, 15.0);
    let below = twice_normal_tail(x.all(14.0).smaller(x.abs()), 0.5);
    let normal = x.less_than(x.all(0.0)).select(below, x.all(1.0) - below);
    let density = exp_of_negative(x * x * x.all(-0.5), 1.0) * x.all(0.398942280);
    x.mul_add(density, normal)
}

/// The slope of x·σ(w): σ(w) + x·w′·σ(w)·σ(−w). x·w′ must be finite where w is beyond ±104, where σ(w)·σ(−w) is 0.
#[inline(always)]
fn gated_slope<S: Vector, const N: usize>(
    x: Pack<S, N>,
    w: Pack<S, N>,
    dw: Pack<S, N>,
) -> Pack<S, N> {
    let one = x.all(1.0);
    let e = exp_of_negative(w | x.all(-0.0), 1.0);
    let larger = one / (one + e);
    let smaller = e * larger;
    let sigmoid = w.less_than(x.all(0.0)).select(smaller, larger);
    (x * dw).mul_add(larger * smaller, sigmoid)
}

/// The slope of x·σ(w) with w = 2·√(2/π)·(x + 0.044715·x³).
#[inline(always)]
pub(super) fn gelu_tanh_slope<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    let x = within(x, 16.0);
    let square = x * x;
    // 2·√(2/π), times 0.044715, and times 3 in the derivative.
    let w = x * square.mul_add(x.all(0.07135481628), x.all(1.595769122));
    gated_slope(x, w, square.mul_add(x.all(0.21406444884), x.all(1.595769122)))
}

/// The slope of x·σ(1.702·x).
#[inline(always)]
pub(super) fn gelu_quick_slope<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    let x = within(x, 64.0);
    gated_slope(x, x * x.all(1.702), x.all(1.702))
}

/// The slope of x·σ(x).
#[inline(always)]
pub(super) fn silu_slope<S: Vector, const N: usize>(x: Pack<S, N>) -> Pack<S, N> {
    let x = within(x, 110.0);
    gated_slope(x, x, x.all(1.0))
}
