//! Cross entropy over the classes of a row, and what comes back from it.
//!
//! With p = softmax(z) and target weights q, a row's loss is Σ_c w_c·q_c·(−ln p_c). By −ln p_c = ln Σ e^(z − m) +
//! (m − z_c), m being the largest logit, two sums along the row give it without a logarithm per class; the rest is
//! in f64, one number a row. The gradient to z_c is p_c·Σ_k w_k·q_k − w_c·q_c.

use super::elementary::exp_of_negative;
use super::lanes::{Combine, Replaced, Summed, combine, sums_along, sums_replacing};
use super::pack::Pack;
use super::rows_per_chunk;
use super::softmax::largest;
use crate::arch::FloatMode;
use crate::arch::vector::Vector;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::view::{Mat, MatMut};

/// What a target is worth beside the labelled class: label smoothing.
/// (Szegedy et al., "Rethinking the Inception Architecture", 2016; "Attention Is All You Need", §5.4.)
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Smoothing {
    /// The label alone: q = 1 there, else 0.
    #[default]
    None,
    /// ε is spread over all v classes, the label included: q = ε/v, and 1 − ε more at the label (as PyTorch has it).
    All(f32),
    /// ε is spread over the v − 1 other classes: q = ε/(v − 1), and 1 − ε at the label (tensor2tensor, fairseq's
    /// older criterion). Of a single class nothing is taken.
    Others(f32),
}

impl Smoothing {
    /// q of any class, and what the label has beyond it.
    fn parts(self, classes: usize) -> (f64, f64) {
        let (epsilon, share) = match self {
            Smoothing::None => (0.0, 0.0),
            Smoothing::All(epsilon) => (f64::from(epsilon), 1.0 / classes as f64),
            Smoothing::Others(_) if classes <= 1 => (0.0, 0.0),
            Smoothing::Others(epsilon) => (f64::from(epsilon), 1.0 / (classes - 1) as f64),
        };
        let anywhere = epsilon * share;
        match self {
            Smoothing::Others(_) => (anywhere, 1.0 - epsilon - anywhere),
            _ => (anywhere, 1.0 - epsilon),
        }
    }
}

/// How [`cross_entropy`] weighs classes.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct CrossEntropy<'a> {
    /// Label smoothing.
    pub smoothing: Smoothing,
    /// w, one per class: what each class's term counts. None: 1.
    pub weights: Option<&'a [f32]>,
}

impl<'a> CrossEntropy<'a> {
    /// With label smoothing.
    pub fn with_smoothing(self, smoothing: Smoothing) -> CrossEntropy<'a> {
        CrossEntropy { smoothing, ..self }
    }

    /// With a weight per class.
    pub fn with_weights<'b>(self, weights: &'b [f32]) -> CrossEntropy<'b> {
        CrossEntropy { smoothing: self.smoothing, weights: Some(weights) }
    }
}

/// The loss of one row; all zeros for a row without a label.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TokenLoss {
    /// Σ_c w_c·q_c·(−ln p_c): what is minimised.
    pub smoothed: f64,
    /// −ln p of the label, whatever the smoothing and the weights: what perplexity is made of.
    pub nll: f64,
    /// Whether the label is the most probable class; of equal ones the first counts.
    pub correct: bool,
}

/// The loss of every row of logits (rows × v) against its label; a row whose label is `None` is not looked at.
///
/// Error: that of one sum of exponentials, (v/32 + 12)·u absolute in each −ln p, and with smoothing (v/32 + 4)·u
/// relative to Σ_c w_c·q_c·(m − z_c). A NaN, a +∞ or −∞ alone makes a row's loss NaN, and it is not correct. The caller
/// sums rows in f64, in their order. Two passes.
///
/// # Panics
/// When there are not as many labels and losses as rows, or not as many weights as classes; when a label is no class
/// or ε is not between 0 and 1.
///
/// ```
/// use headrow_kernels::{CrossEntropy, Cpu, Mat, Par, TokenLoss, cross_entropy};
/// // Four classes that are as probable as each other; the second row has no label.
/// let (z, mut losses) = ([0.0; 8], [TokenLoss::default(); 2]);
/// let (how, logits) = (CrossEntropy::default(), Mat::new(&z, 2, 4));
/// cross_entropy(Cpu::detect(), Par::SERIAL, &how, logits, &[Some(2), None], &mut losses);
/// assert!((losses[0].nll - f64::ln(4.0)).abs() < 1e-6);
/// assert_eq!(losses[1], TokenLoss::default());
/// ```
#[track_caller]
pub fn cross_entropy(
    cpu: Cpu,
    par: Par<'_>,
    how: &CrossEntropy<'_>,
    logits: Mat<'_>,
    labels: &[Option<u32>],
    losses: &mut [TokenLoss],
) {
    let _mode = FloatMode::default_scope();
    let (rows, classes) = (logits.rows(), logits.cols());
    let targets = Targets::new(how, rows, classes, labels, losses);
    let work = |first, mut losses: MatMut<'_, TokenLoss>| {
        let rows = first..first + losses.rows();
        for (i, at) in rows.enumerate() {
            let sums =
                |label, weights: &_| (cpu.table.rows.loss_sums)(logits.row(at), label, weights);
            losses.row_mut(i)[0] =
                targets.of(at, sums).map_or_else(TokenLoss::default, |row| row.loss);
        }
    };
    let losses = MatMut::new(losses, rows, 1);
    match rows_per_chunk(par, rows, classes) {
        None => work(0, losses),
        Some(grain) => par.for_rows(losses, grain, &work),
    }
}

/// [`cross_entropy`], and the logits are replaced by `scale` times its gradient: p_c·Σ_k w_k·q_k − w_c·q_c, zeros for
/// rows without a label.
///
/// The same losses, bit for bit. Error of a gradient: ≤ ((v/32 + 12 + |z_c − m|)·p_c·Σ w·q + 3·w_c·q_c)·u·|scale|.
/// Three passes.
///
/// # Panics
/// As [`cross_entropy`].
///
/// ```
/// use headrow_kernels::{CrossEntropy, Cpu, MatMut, Par, TokenLoss, cross_entropy_backward};
/// // Two rows of scores for two classes; the second row has no label.
/// let (mut z, mut losses) = ([0.0, 0.0, 5.0, 1.0], [TokenLoss::default(); 2]);
/// let (how, labels) = (CrossEntropy::default(), [Some(1), None]);
/// let logits = MatMut::new(&mut z, 2, 2);
/// cross_entropy_backward(Cpu::detect(), Par::SERIAL, &how, 1.0, logits, &labels, &mut losses);
/// assert!((losses[0].nll - f64::ln(2.0)).abs() < 1e-6);
/// assert_eq!(z, [0.5, -0.5, 0.0, 0.0]);
/// ```
#[track_caller]
pub fn cross_entropy_backward(
    cpu: Cpu,
    par: Par<'_>,
    how: &CrossEntropy<'_>,
    scale: f32,
    logits: MatMut<'_>,
    labels: &[Option<u32>],
    losses: &mut [TokenLoss],
) {
    let _mode = FloatMode::default_scope();
    let (rows, classes) = (logits.rows(), logits.cols());
    let targets = Targets::new(how, rows, classes, labels, losses);
    let work = |first, mut logits: MatMut<'_>, mut losses: MatMut<'_, TokenLoss>| {
        for i in 0..logits.rows() {
            let row = logits.row_mut(i);
            let sums = |label, weights: &_| (cpu.table.rows.loss_exponentials)(row, label, weights);
            losses.row_mut(i)[0] = match targets.of(first + i, sums) {
                Some(found) => {
                    targets.write_gradient(cpu, &found, scale, row);
                    found.loss
                }
                None => {
                    row.fill(0.0);
                    TokenLoss::default()
                }
            };
        }
    };
    let losses = MatMut::new(losses, rows, 1);
    match rows_per_chunk(par, rows, classes) {
        None => work(0, logits, losses),
        Some(grain) => par.for_rows_of_two(logits, losses, grain, &work),
    }
}

/// The targets of a call.
struct Targets<'a> {
    labels: &'a [Option<u32>],
    weights: Option<&'a [f32]>,
    /// Σ w.
    total_weight: f64,
    /// q of any class, and what the label has beyond it.
    anywhere: f64,
    label: f64,
}

/// What the forward passes find out about a row.
struct Found {
    label: usize,
    /// Σ e^(z − max).
    sum: f32,
    /// Σ w·q.
    target: f64,
    loss: TokenLoss,
}

impl<'a> Targets<'a> {
    #[track_caller]
    fn new(
        how: &CrossEntropy<'a>,
        rows: usize,
        classes: usize,
        labels: &'a [Option<u32>],
        losses: &[TokenLoss],
    ) -> Targets<'a> {
        let CrossEntropy { smoothing, weights } = *how;
        check_labels(weights, rows, classes, labels, losses.len());
        if let Smoothing::All(epsilon) | Smoothing::Others(epsilon) = smoothing {
            assert!((0.0..=1.0).contains(&epsilon), "label smoothing by {epsilon}");
        }
        let total_weight =
            weights.map_or(classes as f64, |weights| weights.iter().map(|&w| f64::from(w)).sum());
        let (anywhere, label) = smoothing.parts(classes);
        Targets { labels, weights, total_weight, anywhere, label }
    }

    /// The losses of row `i`, along which `sums` are found for a label and weights; `None` when it has no label.
    fn of(&self, i: usize, sums: impl FnOnce(usize, &[f32]) -> LossSums) -> Option<Found> {
        let label = self.labels[i]? as usize;
        let LossSums { max, own, sum, below, correct } =
            sums(label, self.weights.unwrap_or_default());
        let weight = self.weights.map_or(1.0, |weights| f64::from(weights[label]));
        let log = libm::log(f64::from(sum));
        let own = f64::from(max) - f64::from(own);
        let target = self.anywhere * self.total_weight + self.label * weight;
        let smoothed = match self.anywhere {
            0.0 => (log + own) * self.label * weight,
            _ => log * target + self.label * weight * own + self.anywhere * f64::from(below),
        };
        let loss = TokenLoss { smoothed, nll: log + own, correct };
        Some(Found { label, sum, target, loss })
    }

    /// Replaces the exponentials of a row by `scale` times the gradient.
    fn write_gradient(&self, cpu: Cpu, found: &Found, scale: f32, row: &mut [f32]) {
        let wide = f64::from(scale);
        let step = LossGradient {
            factor: (wide * found.target / f64::from(found.sum)) as f32,
            target: (wide * self.anywhere) as f32,
        };
        (cpu.table.rows.loss_gradient)(&step, self.weights, row);
        let weight = self.weights.map_or(1.0, |weights| f64::from(weights[found.label]));
        row[found.label] -= (wide * self.label * weight) as f32;
    }
}

/// What is found out along a row of logits.
pub(crate) struct LossSums {
    /// The largest.
    max: f32,
    /// The label's.
    own: f32,
    /// Σ e^(z − max).
    sum: f32,
    /// Σ w·(max − z).
    below: f32,
    /// Whether the label is the first of the largest, and the sum a number.
    correct: bool,
}

impl LossSums {
    /// Those of a row whose sums are still to be found.
    #[inline(always)]
    fn before<S: Vector, const R: usize>(simd: S, row: &[f32], label: usize) -> LossSums {
        let (max, own) = (largest::<S, R, false>(simd, row, 1.0), row[label]);
        let correct = own == max && largest::<S, R, false>(simd, &row[..label], 1.0) < max;
        LossSums { max, own, sum: 0.0, below: 0.0, correct }
    }

    #[inline(always)]
    fn with(self, [sum, below]: [f32; 2]) -> LossSums {
        LossSums { sum, below, correct: self.correct && !sum.is_nan(), ..self }
    }
}

/// The sums of a row. No `weights` mean 1.
#[inline(always)]
pub(crate) fn sums_kernel<S: Vector, const R: usize>(
    simd: S,
    row: &[f32],
    label: usize,
    weights: &[f32],
) -> LossSums {
    let found = LossSums::before::<S, R>(simd, row, label);
    let step = Distances(found.max);
    found.with(match weights {
        [] => sums_along::<S, R, 1, 2>(simd, [row], step),
        weights => sums_along::<S, R, 2, 2>(simd, [row, weights], step),
    })
}

/// [`sums_kernel`], and e^(z − max) takes the place of each logit.
#[inline(always)]
pub(crate) fn exponentials_kernel<S: Vector, const R: usize>(
    simd: S,
    row: &mut [f32],
    label: usize,
    weights: &[f32],
) -> LossSums {
    let found = LossSums::before::<S, R>(simd, row, label);
    let (len, step) = (row.len(), Distances(found.max));
    found.with(match weights {
        [] => sums_replacing::<S, R, 0, 1, 2>(simd, len, [], [row], step),
        weights => sums_replacing::<S, R, 1, 1, 2>(simd, len, [weights], [row], step),
    })
}

/// Sums of e^(z − max) and of w·(max − z).
#[derive(Clone, Copy)]
struct Distances(f32);

impl Distances {
    /// e^(z − max) and z − max.
    #[inline(always)]
    fn of<S: Vector, const N: usize>(self, z: Pack<S, N>) -> (Pack<S, N>, Pack<S, N>) {
        let d = z - z.all(self.0);
        (exp_of_negative(d, 1.0), d)
    }
}

impl<S: Vector> Replaced<S, 0, 1, 2> for Distances {
    #[inline(always)]
    fn add<const N: usize>(
        self,
        _: [Pack<S, N>; 0],
        [z]: [Pack<S, N>; 1],
        [sum, below]: [Pack<S, N>; 2],
    ) -> ([Pack<S, N>; 1], [Pack<S, N>; 2]) {
        let (e, d) = self.of(z);
        ([e], [sum + e, below - d])
    }
}

impl<S: Vector> Replaced<S, 1, 1, 2> for Distances {
    #[inline(always)]
    fn add<const N: usize>(
        self,
        [weight]: [Pack<S, N>; 1],
        [z]: [Pack<S, N>; 1],
        [sum, below]: [Pack<S, N>; 2],
    ) -> ([Pack<S, N>; 1], [Pack<S, N>; 2]) {
        let (e, d) = self.of(z);
        ([e], [sum + e, (-d).mul_add(weight, below)])
    }
}

impl<S: Vector> Summed<S, 1, 2> for Distances {
    #[inline(always)]
    fn add<const N: usize>(self, z: [Pack<S, N>; 1], sums: [Pack<S, N>; 2]) -> [Pack<S, N>; 2] {
        Replaced::add(self, [], z, sums).1
    }
}

impl<S: Vector> Summed<S, 2, 2> for Distances {
    #[inline(always)]
    fn add<const N: usize>(
        self,
        [z, weight]: [Pack<S, N>; 2],
        sums: [Pack<S, N>; 2],
    ) -> [Pack<S, N>; 2] {
        Replaced::add(self, [weight], [z], sums).1
    }
}

/// e·factor − w·target, e standing for e^(z − max).
#[derive(Clone, Copy)]
pub(crate) struct LossGradient {
    factor: f32,
    target: f32,
}

impl<S: Vector> Combine<S, 0, 1> for LossGradient {
    #[inline(always)]
    fn of<const N: usize>(self, _: [Pack<S, N>; 0], [e]: [Pack<S, N>; 1]) -> [Pack<S, N>; 1] {
        [e * e.all(self.factor) - e.all(self.target)]
    }
}

impl<S: Vector> Combine<S, 1, 1> for LossGradient {
    #[inline(always)]
    fn of<const N: usize>(
        self,
        [weight]: [Pack<S, N>; 1],
        [e]: [Pack<S, N>; 1],
    ) -> [Pack<S, N>; 1] {
        [weight.mul_add(e.all(-self.target), e * e.all(self.factor))]
    }
}

/// The gradient of a row of exponentials without what the label has beyond other classes.
#[inline(always)]
pub(crate) fn gradient_kernel<S: Vector>(
    simd: S,
    how: &LossGradient,
    weights: Option<&[f32]>,
    row: &mut [f32],
) {
    match weights {
        None => combine::<S, 0, 1>(simd, [], [row], *how),
        Some(weights) => combine::<S, 1, 1>(simd, [weights], [row], *how),
    }
}

/// −w·ln p of each row's label, from logarithms of probabilities: the second half of [`cross_entropy`], for
/// callers whose model ends in a log-softmax. 0 for a row without a label; one rounding each.
///
/// # Panics
/// As [`cross_entropy`].
///
/// ```
/// use headrow_kernels::{Mat, nll};
/// let (log_p, mut losses) = ([-0.5, -1.0, -2.0, -0.25], [0.0; 2]);
/// nll(Some(&[1.0, 3.0]), Mat::new(&log_p, 2, 2), &[Some(1), None], &mut losses);
/// assert_eq!(losses, [3.0, 0.0]);
/// ```
#[track_caller]
pub fn nll(weights: Option<&[f32]>, log_p: Mat<'_>, labels: &[Option<u32>], losses: &mut [f32]) {
    check_labels(weights, log_p.rows(), log_p.cols(), labels, losses.len());
    for (i, (label, loss)) in labels.iter().zip(losses).enumerate() {
        *loss = label.map_or(0.0, |label| {
            let (log_p, label) = (log_p.row(i), label as usize);
            -log_p[label] * weights.map_or(1.0, |weights| weights[label])
        });
    }
}

/// d ← the gradient of Σ_i scale_i·loss_i to the logarithms that [`nll`] read: −scale·w at the label, else 0.
///
/// # Panics
/// As [`cross_entropy`].
///
/// ```
/// use headrow_kernels::{MatMut, nll_backward};
/// let mut d = [f32::NAN; 4];
/// nll_backward(None, &[Some(1), None], &[0.5, 0.5], MatMut::new(&mut d, 2, 2));
/// assert_eq!(d, [0.0, -0.5, 0.0, 0.0]);
/// ```
#[track_caller]
pub fn nll_backward(
    weights: Option<&[f32]>,
    labels: &[Option<u32>],
    scales: &[f32],
    mut d: MatMut<'_>,
) {
    check_labels(weights, d.rows(), d.cols(), labels, scales.len());
    d.fill(0.0);
    for (i, (label, scale)) in labels.iter().zip(scales).enumerate() {
        if let Some(label) = label.map(|label| label as usize) {
            d.row_mut(i)[label] = -scale * weights.map_or(1.0, |weights| weights[label]);
        }
    }
}

/// Panics unless there is one label and one loss a row, one weight a class, and every label is a class.
#[track_caller]
fn check_labels(
    weights: Option<&[f32]>,
    rows: usize,
    classes: usize,
    labels: &[Option<u32>],
    losses: usize,
) {
    assert!(
        labels.len() == rows && losses == rows,
        "{} labels and {losses} losses for {rows} rows of {classes} classes",
        labels.len()
    );
    let weighed = weights.map_or(classes, <[f32]>::len);
    assert!(weighed == classes, "{weighed} weights of {classes} classes");
    for (i, label) in labels.iter().enumerate() {
        let label = label.unwrap_or(0) as usize;
        assert!(
            label < classes || labels[i].is_none(),
            "label {label} of row {i} among {classes} classes"
        );
    }
}
