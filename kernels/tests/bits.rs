//! The bits of every operation, recorded: each instruction set and each number of threads must give these.
//!
//! On a machine without AVX-512 or NEON the same test runs in an emulator, so the records compare all
//! instruction sets with each other, not only those that one machine has.

mod support;

use headrow_kernels::rows::math;
use headrow_kernels::{
    Activation, Adagrad, Adam, AttentionExtent, AttentionGradients, AttentionShape, Cpu,
    CrossEntropy, Dropout, Epilogue, LayerNorm, Left, Look, Lookup, Mask, Mat, MatMut, Moments,
    Momentum, NormOutput, PackedB, Par, PerHead, Relative, Right, RmsNorm, Rope, RopeLayout,
    Scratch, Segment, Smoothing, Team, TokenLoss, Visible, Write, activate, activate_backward,
    adagrad, adam, add_column_sums, add_dropout, add_layer_norm, add_rms_norm, attention,
    attention_backward, attention_backward_scratch, attention_scratch, cross_entropy_backward,
    embed, embed_backward, gate, gate_backward, gemm, gemm_scratch, layer_norm,
    layer_norm_backward, log_softmax, log_softmax_backward, masked_softmax, momentum, rms_norm,
    rms_norm_backward, rope, rope_backward, softmax, softmax_backward, sum_of_squares,
};
use support::{Random, emulated, hash};

/// An operation over fixed inputs; appends its results.
type Operation = fn(Cpu, Par<'_>, &mut Vec<f32>);

const ALL: &[(&str, Operation, u64)] = &[
    ("matrix products", products, 0xe697_84e9_1b09_6721),
    ("epilogues", epilogues, 0x4309_a370_36c1_fe02),
    ("elementary functions", elementary, 0x28b2_9c13_4290_a40b),
    ("activations", activations, 0x1393_c5e9_5bf6_2fcf),
    ("softmax", softmaxes, 0xf7c6_61ef_c56e_400f),
    ("log softmax", log_softmaxes, 0x34ea_92e3_9b08_07bf),
    ("masked softmax", masked_softmaxes, 0xe682_fe96_5bbf_bc37),
    ("LayerNorm", layer_norms, 0xd112_4d48_45a6_4d6f),
    ("RMSNorm", rms_norms, 0x6227_2758_c8ee_8f28),
    ("attention", attentions, 0xbc4c_7b5f_3262_b913),
    ("attention gradients", attentions_backward, 0x6ee2_1d1f_6b3e_d40d),
    ("embedding", embeddings, 0xfb2b_8990_1c7b_09d4),
    ("embedding gradients", embeddings_backward, 0x0d9c_7ad5_fa89_05ff),
    (
        "RoPE gradients",
        |cpu, par, out| rotations(rope_backward, cpu, par, out),
        0xf4b4_4efb_9bb8_7d63,
    ),
    ("gates", gates, 0x86a6_1630_a2b7_aefa),
    ("activation and gate gradients", slopes, 0x5e71_ef64_c70e_41ff),
    ("softmax gradients", softmaxes_backward, 0x2198_c823_1a3d_8520),
    ("norm gradients", norms_backward, 0x37d7_60a1_c8d7_7f1d),
    ("cross entropy and its gradients", losses, 0x20a1_7c0a_57b3_3d47),
    ("dropout", dropouts, 0x94c0_fdd3_3b6a_6746),
    ("optimisers, sums of columns and of squares", optimisers, 0x2028_8c6d_4982_5c7e),
    ("RoPE", |cpu, par, out| rotations(rope, cpu, par, out), 0x5020_545e_e911_c487),
];

#[test]
fn the_recorded_bits_appear_on_every_instruction_set_with_any_number_of_threads() {
    let mut wrong = Vec::new();
    for cpu in Cpu::all() {
        for threads in if emulated() { 1..=2 } else { 1..=8 } {
            for &(name, operation, recorded) in ALL {
                let mut results = Vec::new();
                match threads {
                    1 => operation(cpu, Par::SERIAL, &mut results),
                    _ => Team::new(threads).open(|par| operation(cpu, par, &mut results)),
                }
                let found = hash(&results);
                if found != recorded {
                    wrong.push(format!("{name}, {}, {threads} threads: {found:#018x}", cpu.isa()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "other bits than recorded:\n{}", wrong.join("\n"));
}

/// A row operation in place.
type RowOperation<'a> = (&'a str, &'a dyn Fn(Cpu, Par<'_>, MatMut<'_>));

#[test]
fn many_rows_are_shared_out_and_each_is_as_alone() {
    // Enough elements for every worker of the largest team.
    let (rows, cols) = if emulated() { (200, 97) } else { (700, 97) };
    let mut rng = Random::new(23);
    let x = Strided::random(rows, cols, &mut rng);
    let (gamma, beta) = (rng.vec(cols), rng.vec(cols));
    let layer = LayerNorm { gamma: &gamma, beta: Some(&beta), epsilon: 1e-5 };
    let rms = RmsNorm { gamma: &gamma, epsilon: 1e-5 };
    let copy = |x: &MatMut<'_>| {
        let rows = (0..x.rows()).flat_map(|i| x.as_ref().row(i).to_vec());
        rows.collect::<Vec<f32>>()
    };
    let operations: [RowOperation<'_>; 15] = [
        ("exp", &|cpu, par, x| math::exp(cpu, par, x)),
        ("ln", &|cpu, par, x| math::ln(cpu, par, x)),
        ("erf", &|cpu, par, x| math::erf(cpu, par, x)),
        ("tanh", &|cpu, par, x| math::tanh(cpu, par, x)),
        ("sigmoid", &|cpu, par, x| math::sigmoid(cpu, par, x)),
        ("GELU", &|cpu, par, x| activate(cpu, par, Activation::GeluErf, x)),
        ("gate", &|cpu, par, x| {
            let input = copy(&x);
            let input = matrix(&input, x.cols());
            gate(cpu, par, Activation::Silu, input, input, x);
        }),
        ("softmax", &|cpu, par, x| softmax(cpu, par, x)),
        ("log softmax", &|cpu, par, x| log_softmax(cpu, par, x)),
        ("masked softmax", &|cpu, par, x| {
            masked_softmax(cpu, par, 0.7, Visible::Range(3..50), x);
        }),
        ("LayerNorm", &|cpu, par, x| {
            let input = copy(&x);
            layer_norm(cpu, par, &layer, matrix(&input, x.cols()), x);
        }),
        ("add LayerNorm", &|cpu, par, x| {
            let input = copy(&x);
            let input = matrix(&input, x.cols());
            let mut sum = vec![0.0; input.rows() * input.cols()];
            let sum = MatMut::new(&mut sum, input.rows(), input.cols());
            add_layer_norm(cpu, par, &layer, input, input, Some(sum), x);
        }),
        ("RMSNorm", &|cpu, par, x| {
            let input = copy(&x);
            rms_norm(cpu, par, &rms, matrix(&input, x.cols()), x);
        }),
        ("add RMSNorm", &|cpu, par, x| {
            let input = copy(&x);
            let input = matrix(&input, x.cols());
            add_rms_norm(cpu, par, &rms, input, input, None, x);
        }),
        ("embedding", &|cpu, par, x| {
            let table = copy(&x);
            let ids: Vec<u32> = (0..x.rows() as u32).collect();
            embed(
                cpu,
                par,
                &[Lookup { table: matrix(&table, x.cols()), ids: &ids, scale: 0.3 }],
                x,
            );
        }),
    ];
    let bits = |x: &Strided| {
        let mut values = Vec::new();
        x.append_to(&mut values);
        // The payload of a NaN (here the logarithm of a negative number) is not promised.
        values
            .iter()
            .map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() })
            .collect::<Vec<u32>>()
    };
    for cpu in Cpu::all() {
        for (name, operation) in operations {
            let mut alone = Strided(x.0.clone(), rows, cols);
            for i in 0..rows {
                operation(cpu, Par::SERIAL, alone.view_mut().rows_range(i..i + 1));
            }
            let alone = bits(&alone);
            for threads in 1..=if emulated() { 2 } else { 8 } {
                let mut together = Strided(x.0.clone(), rows, cols);
                Team::new(threads).open(|par| operation(cpu, par, together.view_mut()));
                assert!(bits(&together) == alone, "{name}, {}, {threads} threads", cpu.isa());
            }
        }
    }
}

/// What an emulator, or a machine that is known, must detect.
#[test]
fn the_expected_instruction_set_is_detected() {
    let Ok(expected) = std::env::var("HEADROW_EXPECT_ISA") else { return };
    assert_eq!(Cpu::detect().isa().name(), expected);
}

fn matrix<'a>(data: &'a [f32], cols: usize) -> Mat<'a> {
    Mat::new(data, data.len() / cols, cols)
}

/// `rows × cols` values in [−1, 1), in rows with a gap of three between them.
struct Strided(Vec<f32>, usize, usize);

impl Strided {
    fn random(rows: usize, cols: usize, rng: &mut Random) -> Strided {
        Strided(rng.vec(rows * (cols + 3)), rows, cols)
    }

    fn view(&self) -> Mat<'_> {
        Mat::with_stride(&self.0, self.1, self.2, self.2 + 3)
    }

    fn view_mut(&mut self) -> MatMut<'_> {
        MatMut::with_stride(&mut self.0, self.1, self.2, self.2 + 3)
    }

    fn append_to(&self, out: &mut Vec<f32>) {
        (0..self.1).for_each(|i| out.extend(self.view().row(i)));
    }
}

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

fn products(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
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

fn epilogues(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    let mut rng = Random::new(3);
    let (n, k) = (67, 20);
    let b = Strided::random(k, n, &mut rng);
    let packed = PackedB::new(cpu, b.view());
    let bias = rng.vec(n);
    for activation in Activation::ALL {
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

/// All exponents with both signs, some mantissas of each, and the special values; 4 rows.
fn numbers() -> Vec<f32> {
    let mut x: Vec<f32> = (0..=u32::MAX).step_by(1_299_709).map(f32::from_bits).collect();
    x.extend((-1500..1500).map(|i| i as f32 / 128.0));
    x.extend([0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX]);
    x.truncate(x.len() / 4 * 4);
    x
}

fn elementary(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    for function in [math::exp, math::ln, math::erf, math::tanh, math::sigmoid] {
        let mut x = numbers();
        let cols = x.len() / 4;
        function(cpu, par, MatMut::new(&mut x, 4, cols));
        out.extend(x);
    }
}

fn activations(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    for activation in Activation::ALL {
        let mut x = numbers();
        let cols = x.len() / 4;
        activate(cpu, par, activation, MatMut::new(&mut x, 4, cols));
        out.extend(x);
    }
}

/// Row lengths around the 32 lanes and each register's width.
const WIDTHS: [usize; 14] = [1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 47, 64, 203];

/// For each width a matrix with ordinary rows, rows of a wide range, and one with a NaN.
fn scores(mut each: impl FnMut(&mut Strided)) {
    let mut rng = Random::new(4);
    for cols in WIDTHS {
        let mut x = Strided::random(7, cols, &mut rng);
        for i in 2..5 {
            x.view_mut().row_mut(i).iter_mut().for_each(|x| *x *= 60.0);
        }
        x.view_mut().row_mut(5)[cols / 2] = f32::NAN;
        x.view_mut().row_mut(6)[cols / 3] = f32::NEG_INFINITY;
        each(&mut x);
    }
}

fn softmaxes(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    scores(|x| {
        softmax(cpu, par, x.view_mut());
        x.append_to(out);
    });
}

fn log_softmaxes(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    scores(|x| {
        log_softmax(cpu, par, x.view_mut());
        x.append_to(out);
    });
}

fn masked_softmaxes(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
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

/// For each width ordinary rows, rows with a large mean, huge and tiny ones, and a constant one.
fn features(mut each: impl FnMut(&Strided, &Strided, &[f32], &[f32], usize)) {
    let mut rng = Random::new(6);
    for cols in WIDTHS.into_iter().chain([384]) {
        let mut x = Strided::random(6, cols, &mut rng);
        let mut residual = Strided::random(6, cols, &mut rng);
        x.view_mut().row_mut(1).iter_mut().for_each(|x| *x += 1e4);
        x.view_mut().row_mut(2).iter_mut().for_each(|x| *x *= 3e37);
        x.view_mut().row_mut(3).iter_mut().for_each(|x| *x *= 1e-38);
        residual.view_mut().row_mut(3).iter_mut().for_each(|x| *x *= 1e-38);
        x.view_mut().row_mut(4).fill(0.3);
        residual.view_mut().row_mut(4).fill(5.1);
        x.view_mut().row_mut(5)[cols / 2] = f32::INFINITY;
        let (gamma, beta) = (rng.vec(cols), rng.vec(cols));
        each(&x, &residual, &gamma, &beta, cols);
    }
}

fn layer_norms(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
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

fn rms_norms(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
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

fn attentions(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
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

fn attentions_backward(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
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

fn embeddings(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
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

fn embeddings_backward(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    let mut rng = Random::new(11);
    for cols in [1, 37, 300] {
        let dy = Strided::random(40, cols, &mut rng);
        let ids: Vec<u32> = (0..40).map(|_| rng.below(9) as u32).collect();
        let mut sums = Strided::random(9, cols, &mut rng);
        embed_backward(cpu, par, &ids, 6.1, dy.view(), sums.view_mut());
        sums.append_to(out);
    }
}

fn gates(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    for activation in Activation::ALL {
        let (x, mut y) = (numbers(), numbers());
        let cols = x.len() / 4;
        let (gates, ups) = (Mat::new(&x, 4, cols - 2), Mat::new(&x[5..], 4, cols - 2));
        gate(cpu, par, activation, gates, ups, MatMut::new(&mut y, 4, cols - 2));
        out.extend(y);
    }
}

type Rotation = fn(Cpu, Par<'_>, &Rope<'_>, &[u32], usize, MatMut<'_>);

fn rotations(rotate: Rotation, cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
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

fn slopes(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    for activation in Activation::ALL {
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

fn softmaxes_backward(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
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

fn norms_backward(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
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

fn losses(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
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

fn dropouts(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
    let mut rng = Random::new(15);
    for cols in WIDTHS {
        for rate in [0.0, 0.1, 0.7] {
            let mut x = Strided::random(7, cols, &mut rng);
            let residual = Strided::random(7, cols, &mut rng);
            let mut y = Strided::random(7, cols, &mut rng);
            let how = Dropout::new(rate, 1 << 40 | 3, cols as u64);
            add_dropout(cpu, par, &how, x.view(), residual.view(), y.view_mut());
            headrow_kernels::dropout(cpu, par, &how, x.view_mut());
            x.append_to(out);
            y.append_to(out);
        }
    }
}

fn optimisers(cpu: Cpu, par: Par<'_>, out: &mut Vec<f32>) {
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
