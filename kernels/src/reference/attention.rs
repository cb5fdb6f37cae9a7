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
    /// δ_j = (d_k + 4)·u·(|scale|·Σ|q·k_j| + |bias_j|) bounds the error of the j-th of s visible scores, with
    /// d_k + 12 for d_k when scores are capped.
    pub bound: Vec<f64>,
    /// The weights p, h·q.rows × the most keys of a segment, row = head · q.rows + row of Q; 0 where a key is hidden.
    pub weights: Vec<f64>,
    /// Per row of `weights`, how far an f32 weight may lie from it, relative to it and plus 2⁻¹²⁶.
    pub weights_bound: Vec<f64>,
}

/// One query of one head: its visible keys with their scores, and the largest δ_j.
struct Row {
    visible: Vec<(usize, f64)>,
    error: f64,
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
    let &AttentionShape { heads, kv_heads, d_v, .. } = shape;
    let mut output = vec![0.0; q.rows() * heads * d_v];
    let mut bound = output.clone();
    let longest = segments.iter().map(|segment| segment.keys.len()).max().unwrap_or(0);
    let mut weights = vec![0.0; heads * q.rows() * longest];
    let mut weights_bound = vec![0.0; heads * q.rows()];
    let unit = 2f64.powi(-24);
    for segment in segments {
        for (i, row) in segment.queries.clone().enumerate() {
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let Row { mut visible, error } = scores(shape, q, k, segment, mask, (i, head));
                // `f64::max` drops NaN, but exp(NaN − max) brings it back into the sum.
                let max = visible.iter().fold(f64::NEG_INFINITY, |max, &(_, s)| max.max(s));
                visible.iter_mut().for_each(|(_, s)| *s = (*s - max).exp());
                let sum: f64 = visible.iter().map(|&(_, p)| p).sum();
                let relative = 4.0 * error + 2.0 * (visible.len() + 16) as f64 * unit;
                let map = head * q.rows() + row;
                weights_bound[map] = relative;
                visible.iter().for_each(|&(j, p)| weights[map * longest + j] = p / sum);
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
    Attention { output, bound, weights, weights_bound }
}

/// Scores of query `i` of a segment, over the keys that it sees.
fn scores(
    shape: &AttentionShape,
    q: Mat<'_>,
    k: Mat<'_>,
    segment: &Segment,
    mask: &Mask<'_>,
    (i, head): (usize, usize),
) -> Row {
    let &AttentionShape { heads, kv_heads, d_k, scale, softcap, .. } = shape;
    let kv_head = head / (heads / kv_heads);
    let row = segment.queries.start + i;
    let query = &q.row(row)[head * d_k..][..d_k];
    let roundings = if softcap.is_some() { d_k + 12 } else { d_k + 4 };
    let (mut visible, mut error) = (Vec::new(), 0f64);
    for j in 0..segment.keys.len() {
        let position = i as isize + segment.reach.offset;
        let hidden = !segment.reach.sees(i, j)
            || mask.keys.is_some_and(|keys| !keys[segment.keys.start + j])
            || mask.visible.is_some_and(|v| !v.row(q.rows(), head, row)[j]);
        if hidden {
            continue;
        }
        let bias = [
            mask.bias.map_or(0.0, |bias| bias.row(q.rows(), head, row)[j]),
            mask.relative.map_or(0.0, |relative| relative.at(head, position, j)),
        ];
        if bias.contains(&f32::NEG_INFINITY) {
            continue;
        }
        let key = &k.row(segment.keys.start + j)[kv_head * d_k..][..d_k];
        let products = || query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k));
        let mut score = products().sum::<f64>() * f64::from(scale);
        if let Some(cap) = softcap {
            score = f64::from(cap) * (score / f64::from(cap)).tanh();
        }
        let bias = bias.map(f64::from);
        let size = products().map(f64::abs).sum::<f64>() * f64::from(scale).abs();
        let all = size + bias[0].abs() + bias[1].abs();
        error = error.max(roundings as f64 * 2f64.powi(-24) * all);
        visible.push((j, score + bias[0] + bias[1]));
    }
    Row { visible, error }
}
