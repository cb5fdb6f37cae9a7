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

/// The derivative of an activation; ReLU's at 0 is 0.
pub fn activation_slope(activation: Activation, x: f64) -> f64 {
    // Of x·σ(w), w′ being the derivative of w.
    let gated = |w: f64, slope: f64| sigmoid(w) + x * slope * sigmoid(w) * sigmoid(-w);
    match activation {
        Activation::Identity => 1.0,
        Activation::Relu if x.is_nan() => x,
        Activation::Relu => f64::from(u8::from(x > 0.0)),
        // The limits, where the formulas below would multiply ∞ by 0.
        _ if x.is_infinite() => f64::from(u8::from(x > 0.0)),
        Activation::GeluErf => {
            let density = exp(-0.5 * x * x) / std::f64::consts::TAU.sqrt();
            0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2) + x * density
        }
        Activation::GeluTanh => {
            let factor = 2.0 * std::f64::consts::FRAC_2_PI.sqrt();
            let w = factor * (x + 0.044715 * x * x * x);
            if w.abs() > 700.0 {
                return f64::from(u8::from(x > 0.0));
            }
            gated(w, factor * (1.0 + 3.0 * 0.044715 * x * x))
        }
        Activation::GeluQuick => gated(1.702 * x, 1.702),
        Activation::Silu => gated(x, 1.0),
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

/// y ⊙ (d − Σ d·y) of every row: the gradient of softmax with result y.
pub fn softmax_backward(y: Mat<'_>, d: Mat<'_>) -> Vec<f64> {
    let row = |i: usize| {
        let pairs = y.row(i).iter().zip(d.row(i)).map(|(&y, &d)| (f64::from(y), f64::from(d)));
        let sum: f64 = pairs.clone().map(|(y, d)| y * d).sum();
        pairs.map(move |(y, d)| y * (d - sum))
    };
    (0..y.rows()).flat_map(row).collect()
}

/// d − e^y·Σ d of every row: the gradient of ln softmax with result y.
pub fn log_softmax_backward(y: Mat<'_>, d: Mat<'_>) -> Vec<f64> {
    let row = |i: usize| {
        let pairs = y.row(i).iter().zip(d.row(i)).map(|(&y, &d)| (f64::from(y), f64::from(d)));
        let sum: f64 = d.row(i).iter().map(|&d| f64::from(d)).sum();
        pairs.map(move |(y, d)| d - exp(y) * sum)
    };
    (0..y.rows()).flat_map(row).collect()
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

/// Gradients of a norm: of its input (row-major), of γ and of β.
pub struct NormGradients {
    /// dL/dx.
    pub x: Vec<f64>,
    /// dL/dγ.
    pub gamma: Vec<f64>,
    /// dL/dβ.
    pub beta: Vec<f64>,
}

/// Gradients of [`layer_norm`] from dy = dL/dy.
pub fn layer_norm_backward(x: Mat<'_>, dy: Mat<'_>, gamma: &[f32], epsilon: f32) -> NormGradients {
    norm_backward(x, dy, gamma, epsilon, true)
}

/// Gradients of [`rms_norm`] from dy = dL/dy; there is no β.
pub fn rms_norm_backward(x: Mat<'_>, dy: Mat<'_>, gamma: &[f32], epsilon: f32) -> NormGradients {
    norm_backward(x, dy, gamma, epsilon, false)
}

fn norm_backward(
    x: Mat<'_>,
    dy: Mat<'_>,
    gamma: &[f32],
    epsilon: f32,
    centred: bool,
) -> NormGradients {
    let d = x.cols() as f64;
    let zeros = || vec![0.0; x.cols()];
    let mut all = NormGradients { x: Vec::new(), gamma: zeros(), beta: zeros() };
    for i in 0..x.rows() {
        let wide = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let (x, dy) = (wide(x.row(i)), wide(dy.row(i)));
        let mean = if centred { x.iter().sum::<f64>() / d } else { 0.0 };
        let square = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / d;
        let root = (square + f64::from(epsilon)).sqrt();
        let normal: Vec<f64> = x.iter().map(|x| (x - mean) / root).collect();
        let g: Vec<f64> = dy.iter().zip(gamma).map(|(dy, &gamma)| dy * f64::from(gamma)).collect();
        let mean_g = if centred { g.iter().sum::<f64>() / d } else { 0.0 };
        let mean_gx = g.iter().zip(&normal).map(|(g, x)| g * x).sum::<f64>() / d;
        all.x.extend(g.iter().zip(&normal).map(|(g, x)| (g - mean_g - x * mean_gx) / root));
        for (j, (dy, normal)) in dy.iter().zip(&normal).enumerate() {
            all.gamma[j] += dy * normal;
            all.beta[j] += dy;
        }
    }
    all
}
