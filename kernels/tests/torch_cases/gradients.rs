//! Gradients: what the backward kernels give for the operators that have one.
//!
//! A record is d Σ out_i·cos i / d argument, so `d` below is cos 0, cos 1, … in the shape of the result.

use super::Call;
use super::conformance::array::Array;
use super::conformance::ops::{Operand, axis, matrix, matrix_mut};
use super::conformance::{Lane, Stop};
use super::operators::loss;
use super::{attention_gradients as attention, product_gradients as products};
use headrow_kernels::{
    Activation, LayerNorm, Mat, MatMut, Moments, NormOutput, RmsNorm, Write, activate_backward,
    add_column_sums, layer_norm, layer_norm_backward, log_softmax, log_softmax_backward, rms_norm,
    rms_norm_backward, softmax, softmax_backward,
};
use serde_json::Value as Json;

/// Gradients by the name of the argument.
pub(crate) type Gradients = Vec<(&'static str, Array<f32>)>;

/// Those of an operator whose result was right; none where no kernel goes backward.
pub(crate) fn gradients(
    op: &str,
    call: &Call<'_>,
    d: &Array<f32>,
    lane: Lane<'_>,
) -> Result<Gradients, Stop> {
    let op = op.trim_start_matches("nn.functional.").trim_start_matches("special.");
    let x = || call.tensor("x");
    let activated = |how| Ok::<_, Stop>(activated(&x()?, how, d, lane));
    let dx = match op {
        "relu" => activated(Activation::Relu)?,
        "silu" => activated(Activation::Silu)?,
        "gelu" => match call.value("approximate").and_then(Json::as_str) {
            Some("tanh") => activated(Activation::GeluTanh)?,
            _ => activated(Activation::GeluErf)?,
        },
        "sigmoid" | "expit" => sigmoid(&x()?, d, lane),
        "glu" => glu(&x()?, axis(call.number("dim", -1.0)? as i64, x()?.rank())?, d, lane)?,
        "softmax" | "log_softmax" | "softmin" => {
            let dims = call.ints("dim").unwrap_or_default();
            let axis = axis(*dims.first().unwrap_or(&-1), x()?.rank())?;
            match op {
                "softmax" => soft(&x()?, axis, d, false, lane),
                "log_softmax" => soft(&x()?, axis, d, true, lane),
                _ => lane.scaled(&soft(&lane.scaled(&x()?, -1.0), axis, d, false, lane), -1.0),
            }
        }
        "layer_norm" | "rms_norm" | "group_norm" => return norm(op, call, d, lane),
        "linear" => return linear(call, d, lane),
        "cross_entropy" => {
            let loss = loss(call)?;
            let (dx, d_target) = lane.cross_entropy_backward(&loss, d);
            return Ok([("x", dx)].into_iter().chain(d_target.map(|d| ("target", d))).collect());
        }
        "nll_loss" => lane.nll_backward(&loss(call)?, d)?,
        "mm" | "bmm" | "matmul" | "mv" | "dot" => return products::matmul(call, d, lane),
        "addmm" | "baddbmm" => return products::add_product(call, d, lane),
        "embedding" => return products::embedding(call, d, lane),
        "scaled_dot_product_attention" => {
            return attention::scaled_dot_product_attention(call, d, lane);
        }
        "multi_head_attention_forward" => return attention::multi_head_attention(call, d, lane),
        _ => return Ok(Vec::new()),
    };
    Ok(vec![("x", dx)])
}

fn activated(x: &Array<f32>, how: Activation, d: &Array<f32>, lane: Lane<'_>) -> Array<f32> {
    let mut d = d.clone();
    activate_backward(lane.cpu, lane.par, how, matrix(x), matrix_mut(&mut d));
    d
}

/// Softmax or its logarithm along a dimension.
fn soft(
    x: &Array<f32>,
    axis: usize,
    d: &Array<f32>,
    logarithm: bool,
    lane: Lane<'_>,
) -> Array<f32> {
    let last = x.rank().max(1) - 1;
    let along = |x: &Array<f32>| if x.rank() == 0 { x.clone() } else { x.moved(axis, last) };
    let (mut y, mut d) = (along(x), along(d));
    if logarithm {
        log_softmax(lane.cpu, lane.par, matrix_mut(&mut y));
        log_softmax_backward(lane.cpu, lane.par, matrix(&y), matrix_mut(&mut d));
    } else {
        softmax(lane.cpu, lane.par, matrix_mut(&mut y));
        softmax_backward(lane.cpu, lane.par, matrix(&y), matrix_mut(&mut d));
    }
    if d.rank() == 0 { d } else { d.moved(last, axis) }
}

/// σ(x) is the first of softmax(x, 0).
fn sigmoid(x: &Array<f32>, d: &Array<f32>, lane: Lane<'_>) -> Array<f32> {
    let beside = |x: &Array<f32>| {
        let column = x.clone().reshape(&[x.len(), 1]);
        column.concat(&Array::full(&[x.len(), 1], 0.0), 1)
    };
    soft(&beside(x), 1, &beside(d), false, lane).slice(1, 0, 1).reshape(x.shape())
}

/// Of a·σ(b), a and b being the halves of x along a dimension.
fn glu(x: &Array<f32>, axis: usize, d: &Array<f32>, lane: Lane<'_>) -> Result<Array<f32>, Stop> {
    let half = x.shape().get(axis).map_or(0, |width| width / 2);
    let (a, b) = (x.slice(axis, 0, half), x.slice(axis, half, half));
    let open = lane.each(&b, headrow_kernels::rows::math::sigmoid);
    let da = lane.product(d, &open);
    let db = sigmoid(&b, &lane.product(d, &a), lane);
    Ok(da.concat(&db, axis))
}

/// Layer, group and RMS norms. A group is a row of its own whose factors are repeated over a channel's places.
fn norm(op: &str, call: &Call<'_>, d: &Array<f32>, lane: Lane<'_>) -> Result<Gradients, Stop> {
    let (x, weight, bias) = (call.tensor("x")?, call.optional("weight")?, call.optional("bias")?);
    let default = if op == "rms_norm" { f64::from(f32::EPSILON) } else { 1e-5 };
    let epsilon = call.number("eps", default)? as f32;
    let all = |shape: &[usize]| shape.iter().product::<usize>();
    // Groups of a row, channels of a group, places of a channel.
    let (rows, groups, channels, places) = match op {
        "group_norm" => {
            let groups = call.number("num_groups", 1.0)? as usize;
            (x.shape()[0], groups, x.shape()[1] / groups, all(&x.shape()[2..]))
        }
        _ => {
            let normal = call.ints("normalized_shape").ok_or(Stop::fail("no normalized_shape"))?;
            let axis = x.rank() - normal.len();
            (all(&x.shape()[..axis]), 1, all(&x.shape()[axis..]), 1)
        }
    };
    let width = channels * places;
    let mut dx = Array::full(&[rows, groups * width], f32::NAN);
    let [mut d_weight, mut d_bias] = [(); 2].map(|()| Array::full(&[groups * channels], 0.0));
    for group in 0..groups {
        let columns = group * width..(group + 1) * width;
        let whole = |x: &Array<f32>| x.clone().reshape(&[rows, groups * width]);
        let (x, d) = (whole(&x), whole(d));
        let gamma = match &weight {
            Some(w) => {
                let w =
                    w.clone().reshape(&[groups * channels]).slice(0, group * channels, channels);
                w.reshape(&[channels, 1]).broadcast(&[channels, places]).reshape(&[width])
            }
            None => Array::full(&[width], 1.0),
        };
        let [x, d] = [matrix(&x).columns(columns.clone()), matrix(&d).columns(columns.clone())];
        let dx = matrix_mut(&mut dx).columns(columns);
        let [mut d_gamma, mut d_beta] = [(); 2].map(|()| vec![0.0; width]);
        backward(op, lane, gamma.data(), epsilon, [x, d], dx, [&mut d_gamma, &mut d_beta]);
        for (sums, total) in [(d_gamma, &mut d_weight), (d_beta, &mut d_bias)] {
            let by_place = Array::new(&[channels, places], sums).transposed();
            let total = &mut total.data_mut()[group * channels..(group + 1) * channels];
            add_column_sums(lane.cpu, lane.par, Mat::new(by_place.data(), places, channels), total);
        }
    }
    let mut all = vec![("x", dx.reshape(x.shape()))];
    all.extend(weight.map(|weight| ("weight", d_weight.reshape(weight.shape()))));
    all.extend(bias.map(|bias| ("bias", d_bias.reshape(bias.shape()))));
    Ok(all)
}

/// One norm of rows, forward and back.
fn backward(
    op: &str,
    lane: Lane<'_>,
    gamma: &[f32],
    epsilon: f32,
    [x, d]: [Mat<'_>; 2],
    dx: MatMut<'_>,
    [d_gamma, d_beta]: [&mut Vec<f32>; 2],
) {
    let Lane { cpu, par, .. } = lane;
    let mut saved = vec![Moments::default(); x.rows()];
    let mut y = vec![f32::NAN; x.rows() * x.cols()];
    let to = NormOutput::from(MatMut::new(&mut y, x.rows(), x.cols())).with_moments(&mut saved);
    let write = Write::Replace;
    if op == "rms_norm" {
        let norm = RmsNorm { gamma, epsilon };
        rms_norm(cpu, par, &norm, x, to);
        rms_norm_backward(cpu, par, &norm, &saved, x, d, write, dx, d_gamma);
    } else {
        let norm = LayerNorm { gamma, beta: None, epsilon };
        layer_norm(cpu, par, &norm, x, to);
        layer_norm_backward(cpu, par, &norm, &saved, x, d, write, dx, d_gamma, Some(d_beta));
    }
}

/// Of x·Wᵀ + b: dx = d·W, dW = dᵀ·x, db = Σ d.
fn linear(call: &Call<'_>, d: &Array<f32>, lane: Lane<'_>) -> Result<Gradients, Stop> {
    let (x, weight, bias) = (call.tensor("x")?, call.tensor("weight")?, call.optional("bias")?);
    let (&inner, outer) = x.shape().split_last().ok_or(Stop::fail("linear of a scalar"))?;
    let (rows, w) = (outer.iter().product(), weight.clone().with_rank(2));
    let outputs = w.shape()[0];
    let (x_rows, d) = (x.clone().reshape(&[rows, inner]), d.clone().reshape(&[rows, outputs]));
    let dx = lane.gemm(&d, &w, None, &Default::default());
    let transposed = Operand { matrix: &d, transposed: true };
    let d_weight = lane.gemm(transposed, &x_rows, None, &Default::default());
    let mut all = vec![("x", dx.reshape(x.shape())), ("weight", d_weight.reshape(weight.shape()))];
    if let Some(bias) = bias {
        let mut sums = Array::full(&[outputs], 0.0);
        add_column_sums(lane.cpu, lane.par, matrix(&d), sums.data_mut());
        all.push(("bias", sums.reshape(bias.shape())));
    }
    Ok(all)
}
