//! Optimisers: what a gradient does to parameters, in one pass over vectors of one length.
//!
//! Each element is computed by itself, so the vector may be cut anywhere and shared out.

use super::lanes::{Combine, combine};
use super::pack::Pack;
use super::rows_per_chunk;
use super::sums::{as_column, column};
use crate::arch::FloatMode;
use crate::arch::vector::Vector;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::view::MatMut;

/// Adam, with decoupled weight decay when asked for (AdamW).
/// (Kingma and Ba, "Adam", 2015; Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.)
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Adam {
    /// β₁: how much of the first moment stays in a step.
    pub beta1: f64,
    /// β₂: how much of the second moment stays.
    pub beta2: f64,
    /// ε, added to the root of the second moment after its bias is corrected.
    pub epsilon: f64,
    /// λ: a step also takes rate·λ of each parameter. 0: none.
    pub weight_decay: f64,
}

/// The settings of "Attention Is All You Need", §5.3: β₁ = 0.9, β₂ = 0.98, ε = 10⁻⁹, no decay.
impl Default for Adam {
    fn default() -> Adam {
        Adam { beta1: 0.9, beta2: 0.98, epsilon: 1e-9, weight_decay: 0.0 }
    }
}

/// Momentum and stochastic gradient descent. (Sutskever et al., "On the importance of initialization and momentum in
/// deep learning", 2013.)
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Momentum {
    /// α: how much of the velocity stays in a step. 0: plain gradient descent.
    pub momentum: f64,
    /// β: what the gradient counts in the velocity. 1 in the first step, whatever it is.
    pub gain: f64,
    /// λ: added to the gradient, times the parameter.
    pub weight_decay: f64,
    /// What is taken off the parameters.
    pub look: Look,
}

/// α = 0.9, β = 1, no decay.
impl Default for Momentum {
    fn default() -> Momentum {
        Momentum { momentum: 0.9, gain: 1.0, weight_decay: 0.0, look: Look::Back }
    }
}

/// What a [`Momentum`] step takes off the parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Look {
    /// The velocity.
    #[default]
    Back,
    /// The gradient and α of the new velocity: Nesterov's.
    Ahead,
}

/// Adagrad. (Duchi, Hazan and Singer, "Adaptive Subgradient Methods", 2011.)
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Adagrad {
    /// ε, added to the root.
    pub epsilon: f64,
    /// λ: added to the gradient, times the parameter.
    pub weight_decay: f64,
}

/// ε = 10⁻¹⁰, no decay.
impl Default for Adagrad {
    fn default() -> Adagrad {
        Adagrad { epsilon: 1e-10, weight_decay: 0.0 }
    }
}

/// One step of Adam, `step` counting from 1, with g = factor·gradient (a factor clips, and divides by tokens):
///
/// m ← m + (1 − β₁)·(g − m);  v ← v + (1 − β₂)·(g² − v);
/// p ← p − rate·(m/(1 − β₁ᵗ)/(√(v/(1 − β₂ᵗ)) + ε) + λ·p).
///
/// In the first step from zeros that is rate·g/(|g| + ε). Moments are updated by differences, which keeps a β near
/// 1 as exact as its distance from 1. The corrections are computed in f64. Each operation rounds once (three of
/// them fused multiply-adds); a NaN gradient makes its own parameter NaN. One pass, in any pieces.
///
/// # Panics
/// When lengths differ or `step` is 0.
///
/// ```
/// use headrow_kernels::{Adam, Cpu, Par, adam};
/// let (mut first, mut second, mut weights) = ([0.0; 2], [0.0; 2], [1.0, 1.0]);
/// let (cpu, how) = (Cpu::detect(), Adam::default());
/// adam(cpu, Par::SERIAL, &how, 1, 0.1, 1.0, &[3.0, -0.2], &mut first, &mut second, &mut weights);
/// // The first step goes a whole rate against the gradient's sign.
/// assert!((weights[0] - 0.9).abs() < 1e-6 && (weights[1] - 1.1).abs() < 1e-6);
/// ```
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of a step")]
pub fn adam(
    cpu: Cpu,
    par: Par<'_>,
    how: &Adam,
    step: u64,
    rate: f32,
    factor: f32,
    gradients: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    parameters: &mut [f32],
) {
    let _mode = FloatMode::default_scope();
    assert!(step > 0, "steps of Adam count from 1");
    // 1/(1 − βᵗ).
    let correction = |beta: f64| (1.0 / (1.0 - libm::pow(beta, step as f64))) as f32;
    let step = Step::Adam(AdamStep {
        factor,
        keep: [(1.0 - how.beta1) as f32, (1.0 - how.beta2) as f32],
        correct: [correction(how.beta1), correction(how.beta2)],
        epsilon: how.epsilon as f32,
        decay: how.weight_decay as f32,
        rate,
    });
    run(cpu, par, &step, gradients, [first, second, parameters]);
}

/// One step with momentum, `step` counting from 1, with g = factor·gradient + λ·p:
/// V ← α·V + β·g (β counts as 1 in step 1); p ← p − rate·V, or looking ahead p ← p − rate·(g + α·V).
///
/// # Panics
/// When lengths differ or `step` is 0.
///
/// ```
/// use headrow_kernels::{Cpu, Momentum, Par, momentum};
/// let (mut velocity, mut weights, how) = ([0.0], [1.0], Momentum::default());
/// for step in 1..=2 {
///     momentum(Cpu::detect(), Par::SERIAL, &how, step, 0.5, 1.0, &[1.0], &mut velocity, &mut weights);
/// }
/// // V is 1, then 0.9 + 1.
/// assert!((velocity[0] - 1.9).abs() < 1e-6 && (weights[0] + 0.45).abs() < 1e-6);
/// ```
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of a step")]
pub fn momentum(
    cpu: Cpu,
    par: Par<'_>,
    how: &Momentum,
    step: u64,
    rate: f32,
    factor: f32,
    gradients: &[f32],
    velocity: &mut [f32],
    parameters: &mut [f32],
) {
    assert!(step > 0, "steps with momentum count from 1");
    let step = Step::Momentum(MomentumStep {
        factor,
        decay: how.weight_decay as f32,
        momentum: how.momentum as f32,
        gain: if step == 1 { 1.0 } else { how.gain as f32 },
        look: how.look,
        rate,
    });
    run(cpu, par, &step, gradients, [velocity, &mut [], parameters]);
}

/// One step of Adagrad, with g = factor·gradient + λ·p: H ← H + g²; p ← p − rate·g/(√H + ε).
///
/// # Panics
/// When lengths differ.
///
/// ```
/// use headrow_kernels::{Adagrad, Cpu, Par, adagrad};
/// let (mut squares, mut weights, how) = ([0.0], [1.0], Adagrad::default());
/// adagrad(Cpu::detect(), Par::SERIAL, &how, 0.25, 1.0, &[-4.0], &mut squares, &mut weights);
/// assert_eq!((squares, weights), ([16.0], [1.25]));
/// ```
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "the operands of a step")]
pub fn adagrad(
    cpu: Cpu,
    par: Par<'_>,
    how: &Adagrad,
    rate: f32,
    factor: f32,
    gradients: &[f32],
    squares: &mut [f32],
    parameters: &mut [f32],
) {
    let step = Step::Adagrad(AdagradStep {
        factor,
        decay: how.weight_decay as f32,
        epsilon: how.epsilon as f32,
        rate,
    });
    run(cpu, par, &step, gradients, [squares, &mut [], parameters]);
}

/// Shares out a step over vectors of one length: what the optimiser keeps (the second may be empty), and the
/// parameters.
#[track_caller]
fn run(cpu: Cpu, par: Par<'_>, step: &Step, gradients: &[f32], written: [&mut [f32]; 3]) {
    let _mode = FloatMode::default_scope();
    let n = gradients.len();
    let lengths = [0, 1, 2].map(|i| written[i].len());
    assert!(
        lengths[0] == n && lengths[2] == n && [0, n].contains(&lengths[1]),
        "{n} gradients for moments and parameters of {lengths:?} elements"
    );
    let [first, second, parameters] = written.map(|values| as_column(values, n));
    let work = |at: usize, mut a: MatMut<'_>, mut b: MatMut<'_>, mut c: MatMut<'_>| {
        let written = [column(&mut a), column(&mut b), column(&mut c)];
        (cpu.table.rows.optimize)(step, &gradients[at..at + written[2].len()], written);
    };
    match rows_per_chunk(par, n, 1) {
        None => work(0, first, second, parameters),
        Some(grain) => par.for_rows_of_three(first, second, parameters, grain, &work),
    }
}

/// A step of one of the optimisers, its numbers rounded to f32.
pub(crate) enum Step {
    Adam(AdamStep),
    Momentum(MomentumStep),
    Adagrad(AdagradStep),
}

/// See [`adam`], [`momentum`], [`adagrad`]; `written` are what the optimiser keeps and the parameters.
#[inline(always)]
pub(crate) fn kernel<S: Vector>(simd: S, step: &Step, gradients: &[f32], written: [&mut [f32]; 3]) {
    let [first, second, parameters] = written;
    match step {
        Step::Adam(step) => combine(simd, [gradients], [first, second, parameters], *step),
        Step::Momentum(step) => combine(simd, [gradients], [first, parameters], *step),
        Step::Adagrad(step) => combine(simd, [gradients], [first, parameters], *step),
    }
}

#[derive(Clone, Copy)]
pub(crate) struct AdamStep {
    factor: f32,
    /// 1 − β₁ and 1 − β₂.
    keep: [f32; 2],
    /// 1/(1 − β₁ᵗ) and 1/(1 − β₂ᵗ).
    correct: [f32; 2],
    epsilon: f32,
    decay: f32,
    rate: f32,
}

impl<S: Vector> Combine<S, 1, 3> for AdamStep {
    #[inline(always)]
    fn of<const N: usize>(
        self,
        [g]: [Pack<S, N>; 1],
        [m, v, p]: [Pack<S, N>; 3],
    ) -> [Pack<S, N>; 3] {
        let g = g * g.all(self.factor);
        let m = (g - m).mul_add(g.all(self.keep[0]), m);
        let v = (g * g - v).mul_add(g.all(self.keep[1]), v);
        let root = (v * g.all(self.correct[1])).sqrt() + g.all(self.epsilon);
        let update = p.mul_add(g.all(self.decay), m * g.all(self.correct[0]) / root);
        [m, v, update.mul_add(g.all(-self.rate), p)]
    }
}

#[derive(Clone, Copy)]
pub(crate) struct MomentumStep {
    factor: f32,
    decay: f32,
    momentum: f32,
    gain: f32,
    look: Look,
    rate: f32,
}

impl<S: Vector> Combine<S, 1, 2> for MomentumStep {
    #[inline(always)]
    fn of<const N: usize>(self, [g]: [Pack<S, N>; 1], [v, p]: [Pack<S, N>; 2]) -> [Pack<S, N>; 2] {
        let g = p.mul_add(g.all(self.decay), g * g.all(self.factor));
        let v = v.mul_add(g.all(self.momentum), g * g.all(self.gain));
        let update = match self.look {
            Look::Back => v,
            Look::Ahead => v.mul_add(g.all(self.momentum), g),
        };
        [v, update.mul_add(g.all(-self.rate), p)]
    }
}

#[derive(Clone, Copy)]
pub(crate) struct AdagradStep {
    factor: f32,
    decay: f32,
    epsilon: f32,
    rate: f32,
}

impl<S: Vector> Combine<S, 1, 2> for AdagradStep {
    #[inline(always)]
    fn of<const N: usize>(self, [g]: [Pack<S, N>; 1], [h, p]: [Pack<S, N>; 2]) -> [Pack<S, N>; 2] {
        let g = p.mul_add(g.all(self.decay), g * g.all(self.factor));
        let h = g.mul_add(g, h);
        let update = g / (h.sqrt() + g.all(self.epsilon));
        [h, update.mul_add(g.all(-self.rate), p)]
    }
}
