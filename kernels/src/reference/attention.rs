//! Definitions of the operations in [`attention`](mod@crate::attention).

use crate::attention::{AttentionShape, Mask, PerHead, Relative, Segment};
use crate::view::Mat;

/// u = 2⁻²⁴.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

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

/// One query of one head: its visible keys, and the largest δ_j.
struct Row {
    visible: Vec<Visible>,
    error: f64,
}

/// A key that a query sees.
struct Visible {
    key: usize,
    /// Biased; its weight, once there is one.
    score: f64,
    /// The derivative of the cap, and how far an f32 one may lie from it.
    slope: f64,
    slope_error: f64,
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
    for segment in segments {
        for (i, row) in segment.queries.clone().enumerate() {
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let Row { visible, error } = weights_of(shape, q, k, segment, mask, (i, head));
                let relative = 4.0 * error + 2.0 * (visible.len() + 16) as f64 * UNIT;
                let map = head * q.rows() + row;
                weights_bound[map] = relative;
                visible.iter().for_each(|v| weights[map * longest + v.key] = v.score);
                for column in 0..d_v {
                    let (mut value, mut size, mut all) = (0.0, 0.0, 0.0);
                    for &Visible { key, score: p, .. } in &visible {
                        let v = f64::from(v.row(segment.keys.start + key)[kv_head * d_v + column]);
                        value += p * v;
                        size += p * v.abs();
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

/// [`scores`] with their weights p in their place.
fn weights_of(
    shape: &AttentionShape,
    q: Mat<'_>,
    k: Mat<'_>,
    segment: &Segment,
    mask: &Mask<'_>,
    at: (usize, usize),
) -> Row {
    let mut row = scores(shape, q, k, segment, mask, at);
    // `f64::max` drops NaN, but exp(NaN − max) brings it back into the sum.
    let max = row.visible.iter().fold(f64::NEG_INFINITY, |max, v| max.max(v.score));
    row.visible.iter_mut().for_each(|v| v.score = (v.score - max).exp());
    let sum: f64 = row.visible.iter().map(|v| v.score).sum();
    row.visible.iter_mut().for_each(|v| v.score /= sum);
    row
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
        let size = products().map(f64::abs).sum::<f64>() * f64::from(scale).abs();
        let (mut slope, mut slope_error) = (1.0, 0.0);
        if let Some(cap) = softcap.map(f64::from) {
            let tanh = (score / cap).tanh();
            score = cap * tanh;
            slope = 1.0 - tanh * tanh;
            slope_error = 2.0 * tanh.abs() * roundings as f64 * UNIT * size / cap + 8.0 * UNIT;
        }
        let bias = bias.map(f64::from);
        let all = size + bias[0].abs() + bias[1].abs();
        error = error.max(roundings as f64 * UNIT * all);
        visible.push(Visible { key: j, score: score + bias[0] + bias[1], slope, slope_error });
    }
    Row { visible, error }
}

/// Gradients of the operands of attention, each with how far an f32 one may lie from it.
#[derive(Clone, Debug)]
pub struct AttentionGradients {
    /// q.rows × h·d_k.
    pub dq: Gradient,
    /// k.rows × h_kv·d_k.
    pub dk: Gradient,
    /// v.rows × h_kv·d_v.
    pub dv: Gradient,
    /// As the table of relative biases; empty without one.
    pub relative: Gradient,
    /// As the bias; empty without one.
    pub bias: Gradient,
}

/// One gradient of [`AttentionGradients`], row-major.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// The values.
    pub values: Vec<f64>,
    /// Per element, to first order in u = 2⁻²⁴: the sum over its terms of the term's own bound, (terms +
    /// 2)·u·Σ|term|, and what underflow may lose.
    pub bound: Vec<f64>,
    /// Terms so far, and Σ|term|.
    terms: Vec<(usize, f64)>,
}

impl Gradient {
    fn zeros(len: usize) -> Gradient {
        Gradient { values: vec![0.0; len], bound: vec![0.0; len], terms: vec![(0, 0.0); len] }
    }

    /// Adds a term.
    fn add(&mut self, at: usize, term: Known) {
        self.values[at] += term.value;
        self.bound[at] += term.error;
        self.terms[at].0 += 1;
        self.terms[at].1 += term.value.abs();
    }

    fn finish(mut self) -> Gradient {
        for (bound, &(count, size)) in self.bound.iter_mut().zip(&self.terms) {
            *bound += (count + 2) as f64 * (UNIT * size + f64::from(f32::MIN_POSITIVE));
        }
        self
    }
}

/// The gradients of Σ out·`d_out` for the operands of [`attention`], in f64.
///
/// With ρ_i the relative error of the weights of query i, bounded as in [`Attention`] with one rounding more, ε_ij
/// = (d_v + 2)·u·Σ|dO_i·V_j| that of dP_ij, and η_i = Σ_j p_ij·((ρ_i + (s + 2)·u)·|dP_ij| + ε_ij) that of δ_i,
/// dX_ij is known within slope·(ρ_i·p_ij·|dP_ij − δ_i| + p_ij·(ε_ij + η_i)) + |dS_ij|·(error of the slope) +
/// 4·u·|dX_ij|.
pub fn attention_backward(
    shape: &AttentionShape,
    q: Mat<'_>,
    k: Mat<'_>,
    v: Mat<'_>,
    d_out: Mat<'_>,
    segments: &[Segment],
    mask: &Mask<'_>,
) -> AttentionGradients {
    let &AttentionShape { heads, kv_heads, d_k, d_v, .. } = shape;
    let scale = f64::from(shape.scale);
    let mut dq = Gradient::zeros(q.rows() * heads * d_k);
    let mut dk = Gradient::zeros(k.rows() * kv_heads * d_k);
    let mut dv = Gradient::zeros(v.rows() * kv_heads * d_v);
    let mut added = AddedGradients::of(mask, heads);
    let places = segments.iter().flat_map(|segment| (0..heads).map(move |head| (segment, head)));
    for (segment, head) in places {
        let kv_head = head / (heads / kv_heads);
        for (i, row) in segment.queries.clone().enumerate() {
            let scored = weights_of(shape, q, k, segment, mask, (i, head));
            let d_out = &d_out.row(row)[head * d_v..][..d_v];
            let products: Vec<Known> = scored
                .visible
                .iter()
                .map(|seen| &v.row(segment.keys.start + seen.key)[kv_head * d_v..][..d_v])
                .map(|values| product(d_out, values))
                .collect();
            for Pair { key, p, ds, dx } in pairs(&scored, &products) {
                let key_row = segment.keys.start + key;
                for (c, &g) in d_out.iter().enumerate() {
                    dv.add((key_row * kv_heads + kv_head) * d_v + c, p.times(g));
                }
                for c in 0..d_k {
                    let (at_q, at_k) = (head * d_k + c, kv_head * d_k + c);
                    let dx = Known { value: scale * dx.value, error: (scale * dx.error).abs() };
                    dq.add(row * heads * d_k + at_q, dx.times(k.row(key_row)[at_k]));
                    dk.add(key_row * kv_heads * d_k + at_k, dx.times(q.row(row)[at_q]));
                }
                let position = i as isize + segment.reach.offset;
                added.add(mask, (head, q.rows(), row), (position, key), ds);
            }
        }
    }
    AttentionGradients {
        dq: dq.finish(),
        dk: dk.finish(),
        dv: dv.finish(),
        relative: added.relative.finish(),
        bias: added.bias.finish(),
    }
}

/// A value, and how far an f32 one may lie from it.
#[derive(Clone, Copy)]
struct Known {
    value: f64,
    error: f64,
}

impl Known {
    /// Times an exact number.
    fn times(self, x: f32) -> Known {
        let x = f64::from(x);
        Known { value: self.value * x, error: self.error * x.abs() }
    }
}

/// A visible key of a query: its weight, and the gradients of its score after the cap and before.
struct Pair {
    key: usize,
    p: Known,
    ds: Known,
    dx: Known,
}

/// dO·V_j.
fn product(d_out: &[f32], values: &[f32]) -> Known {
    let terms = || d_out.iter().zip(values).map(|(&g, &v)| f64::from(g) * f64::from(v));
    let size: f64 = terms().map(f64::abs).sum();
    Known { value: terms().sum(), error: (values.len() + 2) as f64 * UNIT * size }
}

/// The pairs of a query, whose weights are in its `row`, from its dO·V_j.
fn pairs<'a>(row: &'a Row, products: &'a [Known]) -> impl Iterator<Item = Pair> + 'a {
    let tiny = f64::from(f32::MIN_POSITIVE);
    let weight_error = 4.0 * row.error + 2.0 * (row.visible.len() + 17) as f64 * UNIT;
    let sum_error = weight_error + (row.visible.len() + 2) as f64 * UNIT;
    let weighed = || row.visible.iter().map(|v| v.score).zip(products);
    let mean: f64 = weighed().map(|(p, product)| p * product.value).sum();
    let mean_error: f64 =
        weighed().map(|(p, product)| p * (sum_error * product.value.abs() + product.error)).sum();
    let visible = row.visible.iter().zip(products);
    visible.map(move |(&Visible { key, score: p, slope, slope_error }, product)| {
        let difference = product.value - mean;
        let difference_error = product.error + mean_error;
        let ds = p * difference;
        let p_error = weight_error * p + tiny;
        let ds_error =
            p_error * difference.abs() + p * difference_error + 4.0 * UNIT * ds.abs() + tiny;
        let dx = ds * slope;
        let dx_error = ds_error * slope + ds.abs() * slope_error + 4.0 * UNIT * dx.abs() + tiny;
        Pair {
            key,
            p: Known { value: p, error: p_error },
            ds: Known { value: ds, error: ds_error },
            dx: Known { value: dx, error: dx_error },
        }
    })
}

/// The gradients of what is added to scores.
struct AddedGradients {
    relative: Gradient,
    bias: Gradient,
}

impl AddedGradients {
    fn of(mask: &Mask<'_>, heads: usize) -> AddedGradients {
        let relative = mask.relative.map_or(0, |relative| heads * relative.table.cols());
        let bias = mask.bias.map_or(0, |bias| match bias {
            PerHead::Shared(bias) | PerHead::Each(bias) => bias.rows() * bias.cols(),
        });
        AddedGradients { relative: Gradient::zeros(relative), bias: Gradient::zeros(bias) }
    }

    /// Adds the gradient of a score: of a head and row of a Q of so many rows, at a position, for a key.
    fn add(
        &mut self,
        mask: &Mask<'_>,
        (head, rows, row): (usize, usize, usize),
        (position, key): (isize, usize),
        ds: Known,
    ) {
        if let Some(Relative { table, zero }) = mask.relative {
            let column = (key as isize - position + zero as isize) as usize;
            self.relative.add(head * table.cols() + column, ds);
        }
        match mask.bias {
            None => {}
            Some(PerHead::Shared(bias)) => self.bias.add(row * bias.cols() + key, ds),
            Some(PerHead::Each(bias)) => {
                self.bias.add((head * rows + row) * bias.cols() + key, ds);
            }
        }
    }
}
