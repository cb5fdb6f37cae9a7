//! The operations of training.

use super::inputs::{Strided, WIDTHS, features, numbers, scores};
use super::support::Random;
use headrow_kernels::{
    Activation, Adagrad, Adam, AttentionExtent, AttentionGradients, AttentionShape, Cpu,
    CrossEntropy, Dropout, LayerNorm, Look, Mask, Mat, MatMut, Moments, Momentum, NormOutput, Par,
    Relative, RmsNorm, Scratch, Segment, Smoothing, TokenLoss, Write, activate_backward, adagrad,
    adam, add_column_sums, add_dropout, add_rms_norm, attention, attention_backward,
    attention_backward_scratch, attention_scratch, cross_entropy_backward, dropout, embed_backward,
    gate_backward, layer_norm, layer_norm_backward, log_softmax, log_softmax_backward, momentum,
    rms_norm_backward, softmax, softmax_backward, sum_of_squares,
};

pub(crate) fn attentions_backward(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    let mut rng = Random::new(13);
    for (d_k, d_v, softcap) in [(1, 3, None), (17, 8, Some(1.2)), (32, 32, None), (5, 33, None)] {
        let mut shape = AttentionShape::new(4, 2, d_k, d_v);
        if let Some(cap) = softcap {
            shape = shape.with_softcap(cap);
        }
        let segments = [
            Segment::full(0..1, 0..70),
            Segment::causal(1..20, 70..95),
            Segment::causal(20..24, 95..97),
            Segment::full(24..45, 97..130),
            Segment::banded(45..150, 130..235, 20, 3),
        ];
        let (t, s) = (150, 235);
        let q = Strided::random(t, 4 * d_k, &mut rng);
        let k = Strided::random(s, 2 * d_k, &mut rng);
        let v = Strided::random(s, 2 * d_v, &mut rng);
        let d_out = Strided::random(t, 4 * d_v, &mut rng);
        let keys: Vec<bool> = (0..s).map(|_| rng.below(5) > 0).collect();
        let biases = Strided::random(4, 301, &mut rng);
        let table = Some(Relative { table: biases.view(), zero: 150 });
        for (keys, relative) in [(None, None), (Some(&keys[..]), table)] {
            let mask = Mask { keys, relative, ..Mask::default() };
            let mut rng = Random::new(14);
            let [mut result, mut dq, mut dk, mut dv, mut d_table] =
                [(t, 4 * d_v), (t, 4 * d_k), (s, 2 * d_k), (s, 2 * d_v), (4, 301)]
                    .map(|(rows, cols)| Strided::random(rows, cols, &mut rng));
            let extent = AttentionExtent::of(&segments);
            let need = attention_scratch(cpu, par.threads(), &shape, extent);
            let backward = attention_backward_scratch(cpu, par.threads(), &shape, extent);
            let mut scratch = Scratch::new(need.or(backward));
            let (q, k, v) = (q.view(), k.view(), v.view());
            let stack = &mut scratch.stack();
            attention(cpu, par, &shape, q, k, v, &segments, &mask, result.view_mut(), stack);
            let d_out = d_out.view();
            let mut to = AttentionGradients::new(dq.view_mut(), dk.view_mut(), dv.view_mut());
            if relative.is_some() {
                to = to.with_relative(d_table.view_mut());
            }
            attention_backward(cpu, par, &shape, q, k, v, d_out, &segments, &mask, to, stack);
            [dq, dk, dv, d_table].iter().for_each(|gradient| gradient.append_to(out));
        }
    }
}

pub(crate) fn embeddings_backward(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    let mut rng = Random::new(11);
    for cols in [1, 37, 300] {
        let dy = Strided::random(40, cols, &mut rng);
        let ids: Vec<u32> = (0..40).map(|_| rng.below(9) as u32).collect();
        let mut sums = Strided::random(9, cols, &mut rng);
        embed_backward(cpu, par, &ids, 6.1, dy.view(), sums.view_mut());
        sums.append_to(out);
    }
}

pub(crate) fn slopes(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    for &activation in Activation::ALL {
        let x = numbers();
        let cols = x.len() / 4 - 2;
        let [up, dy] = [&x[5..], &x[3..]].map(|x| Mat::new(x, 4, cols));
        let [mut d, mut d_gate, mut d_up] = [(); 3].map(|()| vec![1.5; 4 * cols]);
        let gate = Mat::new(&x, 4, cols);
        activate_backward(cpu, par, activation, gate, MatMut::new(&mut d, 4, cols));
        let written = [&mut d_gate, &mut d_up].map(|d| MatMut::new(d, 4, cols));
        let [to_gate, to_up] = written;
        gate_backward(cpu, par, activation, gate, up, dy, to_gate, to_up);
        [d, d_gate, d_up].into_iter().for_each(|part| out.extend(part));
    }
}

pub(crate) fn softmaxes_backward(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    for logarithm in [false, true] {
        scores(|x| {
            let mut d = Strided::random(x.1, x.2, &mut Random::new(11));
            if logarithm {
                log_softmax(cpu, par, x.view_mut());
                log_softmax_backward(cpu, par, x.view(), d.view_mut());
            } else {
                softmax(cpu, par, x.view_mut());
                softmax_backward(cpu, par, x.view(), d.view_mut());
            }
            d.append_to(out);
        });
    }
}

pub(crate) fn norms_backward(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    features(|x, residual, gamma, beta, cols| {
        let dy = Strided::random(6, cols, &mut Random::new(12));
        let [mut y, mut sum] = [(); 2].map(|()| vec![f32::NAN; 6 * cols]);
        let [mut d_gamma, mut d_beta] = [gamma, beta].map(<[f32]>::to_vec);
        let mut dx = Strided::random(6, cols, &mut Random::new(13));
        let mut saved = [Moments::default(); 6];
        let layer = LayerNorm { gamma, beta: Some(beta), epsilon: 1e-5 };
        let to = NormOutput::from(MatMut::new(&mut y, 6, cols)).with_moments(&mut saved);
        layer_norm(cpu, par, &layer, x.view(), to);
        let (x, dy, to_beta) = (x.view(), dy.view(), Some(&mut d_beta[..]));
        let to = dx.view_mut();
        let write = Write::Replace;
        layer_norm_backward(cpu, par, &layer, &saved, x, dy, write, to, &mut d_gamma, to_beta);
        dx.append_to(out);
        let rms = RmsNorm { gamma, epsilon: 1e-6 };
        let (result, total) = (MatMut::new(&mut y, 6, cols), MatMut::new(&mut sum, 6, cols));
        let to = NormOutput::from(result).with_moments(&mut saved);
        add_rms_norm(cpu, par, &rms, x, residual.view(), Some(total), to);
        let (x, to) = (Mat::new(&sum, 6, cols), dx.view_mut());
        rms_norm_backward(cpu, par, &rms, &saved, x, dy, Write::Accumulate, to, &mut d_gamma);
        dx.append_to(out);
        [d_gamma, d_beta, y].into_iter().for_each(|part| out.extend(part));
    });
}

pub(crate) fn losses(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    for smoothing in [Smoothing::None, Smoothing::All(0.1), Smoothing::Others(0.1)] {
        for weighed in [false, true] {
            scores(|x| {
                let weights = Random::new(14).vec(x.2);
                let how = CrossEntropy::default().with_smoothing(smoothing);
                let how = if weighed { how.with_weights(&weights) } else { how };
                let last = x.2 as u32 - 1;
                let labels = [0, last, last / 2, 0, last, 0, last].map(Some);
                let mut found = [TokenLoss::default(); 7];
                cross_entropy_backward(cpu, par, &how, 0.3, x.view_mut(), &labels, &mut found);
                x.append_to(out);
                for loss in found {
                    // Both halves of the f64, as numbers that are no NaN.
                    let halves = [loss.smoothed, loss.nll].map(|x| match x.is_nan() {
                        true => [0.5; 2],
                        false => [x as f32, (x - f64::from(x as f32)) as f32],
                    });
                    out.extend(halves.as_flattened());
                    out.push(f32::from(u8::from(loss.correct)));
                }
            });
        }
    }
}

pub(crate) fn dropouts(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    let mut rng = Random::new(15);
    for cols in WIDTHS {
        for rate in [0.0, 0.1, 0.7] {
            let mut x = Strided::random(7, cols, &mut rng);
            let residual = Strided::random(7, cols, &mut rng);
            let mut y = Strided::random(7, cols, &mut rng);
            let how = Dropout::new(rate, 1 << 40 | 3, cols as u64);
            add_dropout(cpu, par, &how, x.view(), residual.view(), y.view_mut());
            dropout(cpu, par, &how, x.view_mut());
            x.append_to(out);
            y.append_to(out);
        }
    }
}

pub(crate) fn optimisers(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    let mut rng = Random::new(16);
    let n = 20_011;
    let [g, mut m, v, mut p] = [(); 4].map(|()| rng.vec(n));
    let mut v: Vec<f32> = v.iter().map(|x| x * x).collect();
    let mut decayed = Adam::default();
    decayed.weight_decay = 0.01;
    adam(cpu, par, &decayed, 3, 0.01, 0.3, &g, &mut m, &mut v, &mut p);
    for look in [Look::Back, Look::Ahead] {
        let mut how = Momentum::default();
        how.look = look;
        momentum(cpu, par, &how, 2, 0.01, 0.3, &g, &mut m, &mut p);
    }
    adagrad(cpu, par, &Adagrad::default(), 0.01, 0.3, &g, &mut v, &mut p);
    let squares = sum_of_squares(cpu, par, &g);
    out.extend([squares as f32, (squares - f64::from(squares as f32)) as f32]);
    add_column_sums(cpu, par, Mat::new(&g, 200, 100), &mut m[..100]);
    [m, v, p].into_iter().for_each(|part| out.extend(part));
}
