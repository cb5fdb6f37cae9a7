//! Definitions of the operations in `rows`.

use crate::rows::activation::Activation;
use crate::view::Mat;

/// eˣ.
pub fn exp(x: f64) -> f64 {
    libm::exp(x)
}

/// ln x.
pub fn ln(x: f64) -> f64 {
    libm::log(x)
}

/// erf x.
pub fn erf(x: f64) -> f64 {
    libm::erf(x)
}

/// tanh x.
pub fn tanh(x: f64) -> f64 {
    libm::tanh(x)
}

/// 1/(1 + e⁻ˣ).
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// An activation of one number.
pub fn activation(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Identity => x,
        // −0 becomes +0, NaN stays.
        Activation::Relu if x <= 0.0 => 0.0,
        Activation::Relu => x,
        // The limit, where the formulas below would multiply ∞ by 0.
        _ if x == f64::NEG_INFINITY => -0.0,
        Activation::GeluErf => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        Activation::GeluTanh => {
            let u = std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044715 * x * x * x);
            x * sigmoid(2.0 * u)
        }
        Activation::GeluQuick => x * sigmoid(1.702 * x),
        Activation::Silu => x * sigmoid(x),
    }
}

/// activation(gate)·up of every element.
pub fn gate(how: Activation, gate: Mat<'_>, up: Mat<'_>) -> Vec<f64> {
    let row = |i| gate.row(i).iter().zip(up.row(i));
    (0..gate.rows())
        .flat_map(row)
        .map(|(&gate, &up)| activation(how, f64::from(gate)) * f64::from(up))
        .collect()
}

/// Softmax of every row of `x`·`scale` + `bias` over the elements that `visible(row, column)` names; others 0.
///
/// The scaled score is rounded to f32 as the kernels round it: the product, then the sum.
pub fn masked_softmax(
    x: Mat<'_>,
    scale: f32,
    bias: Option<Mat<'_>>,
    visible: impl Fn(usize, usize) -> bool,
) -> Vec<f64> {
    let mut out = vec![0.0; x.rows() * x.cols()];
    for i in 0..x.rows() {
        let s = |j: usize| match bias {
            Some(bias) => f64::from(x.row(i)[j] * scale + bias.row(i)[j]),
            None => f64::from(x.row(i)[j] * scale),
        };
        let seen: Vec<usize> = (0..x.cols()).filter(|&j| visible(i, j)).collect();
        let max = seen.iter().map(|&j| s(j)).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = seen.iter().map(|&j| exp(s(j) - max)).sum();
        for j in seen {
            out[i * x.cols() + j] = exp(s(j) - max) / sum;
        }
    }
    out
}

/// Softmax of every row.
pub fn softmax(x: Mat<'_>) -> Vec<f64> {
    masked_softmax(x, 1.0, None, |_, _| true)
}

/// ln softmax of every row.
pub fn log_softmax(x: Mat<'_>) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.rows() * x.cols());
    for i in 0..x.rows() {
        let row = || x.row(i).iter().map(|&x| f64::from(x));
        let max = row().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row().map(|x| exp(x - max)).sum();
        out.extend(row().map(|x| x - max - ln(sum)));
    }
    out
}

/// (x − µ)/√(σ² + ε)·γ + β of every row, with the biased variance.
pub fn layer_norm(x: Mat<'_>, gamma: &[f32], beta: Option<&[f32]>, epsilon: f32) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.rows() * x.cols());
    for i in 0..x.rows() {
        let row = || x.row(i).iter().map(|&x| f64::from(x));
        let d = x.cols() as f64;
        let mean = row().sum::<f64>() / d;
        let variance = row().map(|x| (x - mean) * (x - mean)).sum::<f64>() / d;
        let root = (variance + f64::from(epsilon)).sqrt();
        for (j, x) in row().enumerate() {
            let beta = beta.map_or(0.0, |beta| f64::from(beta[j]));
            out.push((x - mean) / root * f64::from(gamma[j]) + beta);
        }
    }
    out
}

/// x/√(mean(x²) + ε)·γ of every row.
pub fn rms_norm(x: Mat<'_>, gamma: &[f32], epsilon: f32) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.rows() * x.cols());
    for i in 0..x.rows() {
        let row = || x.row(i).iter().map(|&x| f64::from(x));
        let mean = row().map(|x| x * x).sum::<f64>() / x.cols() as f64;
        let root = (mean + f64::from(epsilon)).sqrt();
        out.extend(row().zip(gamma).map(|(x, &gamma)| x / root * f64::from(gamma)));
    }
    out
}
