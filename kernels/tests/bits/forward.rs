//! The operations of inference.

use super::inputs::{Strided, features, matrix, numbers, scores};
use super::support::Random;
use headrow_kernels::rows::math;
use headrow_kernels::{
    Activation, AttentionExtent, AttentionShape, Cpu, Epilogue, LayerNorm, Left, Lookup, Mask, Mat,
    MatMut, PackedB, Par, PerHead, Right, RmsNorm, Rope, RopeLayout, Scratch, Segment, Visible,
    Write, activate, add_layer_norm, add_rms_norm, attention, attention_scratch, embed, gate, gemm,
    gemm_scratch, layer_norm, log_softmax, masked_softmax, rms_norm, softmax,
};

fn transposed(x: Mat<'_>) -> Vec<f32> {
    (0..x.cols()).flat_map(|j| (0..x.rows()).map(move |i| x.row(i)[j])).collect()
}

#[expect(clippy::too_many_arguments, reason = "the operands of a product")]
fn multiply(
    cpu: Cpu,
    par: Par<'_>,
    a: Left<'_>,
    b: Right<'_>,
    k: usize,
    write: Write,
    epilogue: &Epilogue<'_>,
    mut c: MatMut<'_>,
) {
    let (m, n) = (c.rows(), c.cols());
    let mut scratch = Scratch::new(gemm_scratch(cpu, par.threads(), m, n, k, a.kind(), b.kind()));
    gemm(cpu, par, a, b, write, epilogue, c.reborrow(), &mut scratch.stack());
}

pub(crate) fn products(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    let mut rng = Random::new(1);
    for (m, n, k) in [(1, 97, 70), (3, 50, 33), (5, 17, 1), (13, 70, 300), (37, 101, 9)] {
        let a = Strided::random(m, k, &mut rng);
        let b = Strided::random(k, n, &mut rng);
        let (at, bt) = (transposed(a.view()), transposed(b.view()));
        let packed = PackedB::new(cpu, b.view());
        for left in [Left::Plain(a.view()), Left::Transposed(matrix(&at, m))] {
            for right in
                [Right::Packed(&packed), Right::Plain(b.view()), Right::Transposed(matrix(&bt, k))]
            {
                let mut c = Strided::random(m, n, &mut Random::new(2));
                for write in [Write::Replace, Write::Accumulate] {
                    let none = Epilogue::default();
                    multiply(cpu, par, left, right, k, write, &none, c.view_mut());
                }
                c.append_to(out);
            }
        }
    }
}

pub(crate) fn epilogues(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    let mut rng = Random::new(3);
    let (n, k) = (67, 20);
    let b = Strided::random(k, n, &mut rng);
    let packed = PackedB::new(cpu, b.view());
    let bias = rng.vec(n);
    for &activation in Activation::ALL {
        for m in [1, 4, 19] {
            let a = Strided::random(m, k, &mut rng);
            let residual = Strided::random(m, n, &mut rng);
            let epilogue = Epilogue {
                alpha: Some(0.7),
                bias: Some(&bias),
                activation,
                residual: Some(residual.view()),
            };
            let mut c = Strided::random(m, n, &mut rng);
            let (a, b) = (Left::Plain(a.view()), Right::Packed(&packed));
            multiply(cpu, par, a, b, k, Write::Accumulate, &epilogue, c.view_mut());
            c.append_to(out);
        }
    }
}

pub(crate) fn elementary(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    for function in [math::exp, math::ln, math::erf, math::tanh, math::sigmoid] {
        let mut x = numbers();
        let cols = x.len() / 4;
        function(cpu, par, MatMut::new(&mut x, 4, cols));
        out.extend(x);
    }
}

pub(crate) fn activations(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    for &activation in Activation::ALL {
        let mut x = numbers();
        let cols = x.len() / 4;
        activate(cpu, par, activation, MatMut::new(&mut x, 4, cols));
        out.extend(x);
    }
}

pub(crate) fn softmaxes(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    scores(|x| {
        softmax(cpu, par, x.view_mut());
        x.append_to(out);
    });
}

pub(crate) fn log_softmaxes(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    scores(|x| {
        log_softmax(cpu, par, x.view_mut());
        x.append_to(out);
    });
}

pub(crate) fn masked_softmaxes(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    for kind in 0..7 {
        let mut rng = Random::new(5);
        scores(|x| {
            let (rows, cols) = (x.1, x.2);
            let mut bias = Strided::random(rows, cols, &mut rng);
            let hidden: Vec<bool> = (0..rows * cols).map(|_| rng.below(4) > 0).collect();
            for i in 0..rows {
                let row = bias.0[i * (cols + 3)..].iter_mut();
                row.zip(&hidden[i * cols..][..cols]).for_each(|(b, &shown)| {
                    if !shown {
                        *b = f32::NEG_INFINITY;
                    }
                });
            }
            let visible = match kind {
                0 => Visible::All,
                1 => Visible::Range(cols / 3..cols - cols / 4),
                2 => Visible::Diagonal(-2),
                3 => Visible::Diagonal(cols as isize / 2),
                4 => Visible::Columns(&hidden[..cols]),
                5 => Visible::Each(Mat::new(&hidden, rows, cols)),
                _ => Visible::Added(bias.view()),
            };
            masked_softmax(cpu, par, 0.35, visible, x.view_mut());
            x.append_to(out);
        });
    }
}

pub(crate) fn layer_norms(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    features(|x, residual, gamma, beta, cols| {
        for beta in [None, Some(beta)] {
            let norm = LayerNorm { gamma, beta, epsilon: 1e-5 };
            let [mut y, mut z, mut sum] = std::array::from_fn(|_| vec![f32::NAN; 6 * cols]);
            layer_norm(cpu, par, &norm, x.view(), MatMut::new(&mut y, 6, cols));
            let total = Some(MatMut::new(&mut sum, 6, cols));
            let result = MatMut::new(&mut z, 6, cols);
            add_layer_norm(cpu, par, &norm, x.view(), residual.view(), total, result);
            [y, z, sum].into_iter().for_each(|part| out.extend(part));
        }
    });
}

pub(crate) fn rms_norms(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    features(|x, residual, gamma, _, cols| {
        let norm = RmsNorm { gamma, epsilon: 1e-6 };
        let [mut y, mut z, mut sum] = std::array::from_fn(|_| vec![f32::NAN; 6 * cols]);
        rms_norm(cpu, par, &norm, x.view(), MatMut::new(&mut y, 6, cols));
        let total = Some(MatMut::new(&mut sum, 6, cols));
        let result = MatMut::new(&mut z, 6, cols);
        add_rms_norm(cpu, par, &norm, x.view(), residual.view(), total, result);
        [y, z, sum].into_iter().for_each(|part| out.extend(part));
    });
}

pub(crate) fn attentions(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    let mut rng = Random::new(7);
    for (heads, kv_heads, d_k, d_v) in [(1, 1, 1, 3), (4, 2, 17, 8), (2, 2, 32, 32), (3, 1, 5, 33)]
    {
        let shape = AttentionShape::new(heads, kv_heads, d_k, d_v);
        let segments = [
            Segment::full(0..1, 0..70),
            Segment::causal(1..20, 70..95),
            Segment::causal(20..24, 95..97),
            Segment::full(24..45, 97..130),
        ];
        let (t, s, longest) = (45, 130, 70);
        let q = Strided::random(t, heads * d_k, &mut rng);
        let k = Strided::random(s, kv_heads * d_k, &mut rng);
        let v = Strided::random(s, kv_heads * d_v, &mut rng);
        let keys: Vec<bool> = (0..s).map(|_| rng.below(5) > 0).collect();
        let each: Vec<bool> = (0..heads * t * longest).map(|_| rng.below(5) > 0).collect();
        let bias = Strided::random(t, longest, &mut rng);
        let extent = AttentionExtent::of(&segments);
        for kind in 0..8 {
            let mask = Mask {
                keys: (kind & 1 != 0).then_some(&keys),
                visible: (kind & 2 != 0)
                    .then(|| PerHead::Each(Mat::new(&each, heads * t, longest))),
                bias: (kind & 4 != 0).then(|| PerHead::Shared(bias.view())),
                ..Mask::default()
            };
            let mut result = Strided::random(t, heads * d_v, &mut Random::new(8));
            let mut scratch = Scratch::new(attention_scratch(cpu, par.threads(), &shape, extent));
            let (q, k, v) = (q.view(), k.view(), v.view());
            let stack = &mut scratch.stack();
            attention(cpu, par, &shape, q, k, v, &segments, &mask, result.view_mut(), stack);
            result.append_to(out);
        }
    }
}

pub(crate) fn embeddings(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    let mut rng = Random::new(9);
    let words = Strided::random(50, 37, &mut rng);
    let positions = Strided::random(40, 37, &mut rng);
    let ids: Vec<u32> = (0..40).map(|_| rng.below(50) as u32).collect();
    let places: Vec<u32> = (0..40).collect();
    let lookups = [
        Lookup { table: words.view(), ids: &ids, scale: 6.1 },
        Lookup { table: positions.view(), ids: &places, scale: 1.0 },
    ];
    let mut x = Strided::random(40, 37, &mut rng);
    embed(cpu, par, &lookups, x.view_mut());
    x.append_to(out);
}

pub(crate) fn gates(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    for &activation in Activation::ALL {
        let (x, mut y) = (numbers(), numbers());
        let cols = x.len() / 4;
        let (gates, ups) = (Mat::new(&x, 4, cols - 2), Mat::new(&x[5..], 4, cols - 2));
        gate(cpu, par, activation, gates, ups, MatMut::new(&mut y, 4, cols - 2));
        out.extend(y);
    }
}

pub(crate) type Rotation = fn(Cpu, Par<'_>, &Rope<'_>, &[u32], usize, MatMut<'_>);

pub(crate) fn rotations(rotate: Rotation, cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    let mut rng = Random::new(10);
    for (heads, half, width) in [(1, 1, 2), (2, 13, 29), (3, 16, 32), (1, 40, 81)] {
        let (cos, sin) = (rng.vec(50 * half), rng.vec(50 * half));
        let positions: Vec<u32> = (0..40).map(|_| rng.below(50) as u32).collect();
        for layout in [RopeLayout::HalfSplit, RopeLayout::Interleaved] {
            let tables = Rope { cos: matrix(&cos, half), sin: matrix(&sin, half), layout };
            let mut x = Strided::random(40, heads * width, &mut rng);
            rotate(cpu, par, &tables, &positions, heads, x.view_mut());
            x.append_to(out);
        }
    }
}
