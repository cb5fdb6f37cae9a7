//! Definitions of the operations in [`attention`](mod@crate::attention).

use crate::attention::{AttentionShape, Mask, Segment};
use crate::view::Mat;

/// What [`attention()`] gives, and how far an f32 result may lie from it.
#[derive(Clone, Debug)]
pub struct Attention {
    /// The result, q.rows × h·d_v. Rows of no segment are 0.
    pub output: Vec<f64>,
    /// Per element, to first order in u = 2⁻²⁴:
    /// (4·max_j δ_j + 2(s + 16)·u)·Σ_j p_j|v_j| + 2⁻¹²⁶·(1 + Σ_j |v_j|), where
    /// δ_j = (d_k + 4)·u·(|scale|·Σ|q·k_j| + |bias_j|) bounds the error of the j-th of s visible scores.
    pub bound: Vec<f64>,
}

/// Scaled dot-product attention in f64; see [`attention`](crate::attention::attention()) for the equation.
///
/// NaN and ∞ in the operands go by the rules of f64 arithmetic, and the bound is then not meaningful.
pub fn attention(
    shape: &AttentionShape,
    q: Mat<'_>,
    k: Mat<'_>,
    v: Mat<'_>,
    segments: &[Segment],
    mask: &Mask<'_>,
) -> Attention {
    let &AttentionShape { heads, kv_heads, d_k, d_v, scale } = shape;
    let mut output = vec![0.0; q.rows() * heads * d_v];
    let mut bound = output.clone();
    let unit = 2f64.powi(-24);
    for segment in segments {
        let keys = segment.keys.len();
        for (i, row) in segment.queries.clone().enumerate() {
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let query = &q.row(row)[head * d_k..][..d_k];
                // Visible keys with their scores, and the largest δ_j.
                let mut visible = Vec::new();
                let mut error = 0f64;
                for j in 0..keys {
                    let bias = mask.bias.map_or(0.0, |bias| bias.row(q.rows(), head, row)[j]);
                    let hidden = segment
                        .diagonal
                        .is_some_and(|d| (j as isize).saturating_sub(d) > i as isize)
                        || mask.keys.is_some_and(|keys| !keys[segment.keys.start + j])
                        || mask.visible.is_some_and(|v| !v.row(q.rows(), head, row)[j])
                        || bias == f32::NEG_INFINITY;
                    if hidden {
                        continue;
                    }
                    let key = &k.row(segment.keys.start + j)[kv_head * d_k..][..d_k];
                    let products =
                        || query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k));
                    let score = products().sum::<f64>() * f64::from(scale) + f64::from(bias);
                    let size = products().map(f64::abs).sum::<f64>() * f64::from(scale).abs();
                    error = error.max((d_k + 4) as f64 * unit * (size + f64::from(bias).abs()));
                    visible.push((j, score));
                }
                // `f64::max` drops NaN, but exp(NaN − max) brings it back into the sum.
                let max = visible.iter().fold(f64::NEG_INFINITY, |max, &(_, s)| max.max(s));
                visible.iter_mut().for_each(|(_, s)| *s = (*s - max).exp());
                let sum: f64 = visible.iter().map(|&(_, p)| p).sum();
                let relative = 4.0 * error + 2.0 * (visible.len() + 16) as f64 * unit;
                for column in 0..d_v {
                    let (mut value, mut size, mut all) = (0.0, 0.0, 0.0);
                    for &(j, p) in &visible {
                        let v = f64::from(v.row(segment.keys.start + j)[kv_head * d_v + column]);
                        value += p / sum * v;
                        size += p / sum * v.abs();
                        all += v.abs();
                    }
                    let at = row * heads * d_v + head * d_v + column;
                    output[at] = value;
                    bound[at] = relative * size + f64::from(f32::MIN_POSITIVE) * (1.0 + all);
                }
            }
        }
    }
    Attention { output, bound }
}
