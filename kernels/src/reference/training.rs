//! Definitions of losses and optimisers.

use super::rows::{exp, ln};
use crate::rows::loss::{CrossEntropy, Smoothing};
use crate::rows::optimizer::{Adagrad, Adam, Look, Momentum};
use crate::view::Mat;

/// w·q of every class for one label.
fn targets(how: &CrossEntropy<'_>, classes: usize, label: u32) -> Vec<f64> {
    let n = classes as f64;
    let (other, own) = match how.smoothing {
        Smoothing::None => (0.0, 1.0),
        Smoothing::All(epsilon) => {
            let share = f64::from(epsilon) / n;
            (share, 1.0 - f64::from(epsilon) + share)
        }
        Smoothing::Others(_) if classes <= 1 => (0.0, 1.0),
        Smoothing::Others(epsilon) => (f64::from(epsilon) / (n - 1.0), 1.0 - f64::from(epsilon)),
    };
    let weight = |c: usize| how.weights.map_or(1.0, |weights| f64::from(weights[c]));
    let q = |c: usize| if c == label as usize { own } else { other };
    (0..classes).map(|c| weight(c) * q(c)).collect()
}

/// −ln p of every class.
fn surprise(logits: &[f32]) -> Vec<f64> {
    let z = || logits.iter().map(|&z| f64::from(z));
    let max = z().fold(f64::NEG_INFINITY, f64::max);
    let log: f64 = ln(z().map(|z| exp(z - max)).sum());
    z().map(|z| log + max - z).collect()
}

/// Σ w·q·(−ln p), and −ln p of the label, of every row; zeros without a label.
pub fn cross_entropy(
    how: &CrossEntropy<'_>,
    logits: Mat<'_>,
    labels: &[Option<u32>],
) -> Vec<[f64; 2]> {
    let row = |(i, label): (usize, &Option<u32>)| {
        let Some(label) = *label else { return [0.0; 2] };
        let surprise = surprise(logits.row(i));
        let targets = targets(how, logits.cols(), label);
        // A class that does not count does not count where it is impossible either.
        let terms = targets.iter().zip(&surprise).filter(|&(&q, _)| q != 0.0);
        [terms.map(|(q, s)| q * s).sum(), surprise[label as usize]]
    };
    labels.iter().enumerate().map(row).collect()
}

/// p·Σ w·q − w·q of every row; zeros without a label.
pub fn cross_entropy_backward(
    how: &CrossEntropy<'_>,
    logits: Mat<'_>,
    labels: &[Option<u32>],
) -> Vec<f64> {
    let row = |(i, label): (usize, &Option<u32>)| {
        let Some(label) = *label else { return vec![0.0; logits.cols()] };
        let targets = targets(how, logits.cols(), label);
        let total: f64 = targets.iter().sum();
        let terms = surprise(logits.row(i)).into_iter().zip(targets);
        terms.map(|(s, q)| exp(-s) * total - q).collect()
    };
    labels.iter().enumerate().flat_map(row).collect()
}

/// One parameter after step `step` of Adam from gradient `g`: the new moments and the parameter.
pub fn adam(how: &Adam, step: u64, rate: f64, g: f64, [m, v, p]: [f64; 3]) -> [f64; 3] {
    let Adam { beta1, beta2, epsilon, weight_decay, .. } = *how;
    let m = beta1 * m + (1.0 - beta1) * g;
    let v = beta2 * v + (1.0 - beta2) * g * g;
    let corrected = |x: f64, beta: f64| x / (1.0 - libm::pow(beta, step as f64));
    let update = corrected(m, beta1) / (corrected(v, beta2).sqrt() + epsilon);
    [m, v, p - rate * (update + weight_decay * p)]
}

/// One parameter after step `step` with momentum: the velocity and the parameter.
pub fn momentum(how: &Momentum, step: u64, rate: f64, g: f64, [v, p]: [f64; 2]) -> [f64; 2] {
    let g = g + how.weight_decay * p;
    let v = how.momentum * v + if step == 1 { g } else { how.gain * g };
    let update = match how.look {
        Look::Back => v,
        Look::Ahead => g + how.momentum * v,
    };
    [v, p - rate * update]
}

/// One parameter after a step of Adagrad: the sum of squares and the parameter.
pub fn adagrad(how: &Adagrad, rate: f64, g: f64, [h, p]: [f64; 2]) -> [f64; 2] {
    let g = g + how.weight_decay * p;
    let h = h + g * g;
    [h, p - rate * g / (h.sqrt() + how.epsilon)]
}
