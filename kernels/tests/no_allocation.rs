//! No operation allocates: a counting allocator watches each once it has its scratch memory.
//!
//! To add one, append a row to [`operations`]: a name and a closure that owns all it needs.

mod support;

use headrow_kernels::rows::math;
use headrow_kernels::{
    Activation, Adagrad, Adam, AttentionExtent, AttentionGradients, AttentionOutput,
    AttentionShape, CachedSegment, Cancel, Cpu, CrossEntropy, Dropout, Epilogue, KvCache,
    LayerNorm, Left, LeftKind, Lookup, Maps, Mask, Mat, MatMut, Moments, Momentum, NormOutput,
    PackedB, Par, PerHead, Relative, Right, RightKind, RmsNorm, Rope, RopeLayout, Scratch, Segment,
    Smoothing, TokenLoss, Visible, Write, activate, activate_backward, adagrad, adam,
    add_column_sums, add_dropout, add_layer_norm, attention, attention_backward,
    attention_backward_scratch, attention_cached, attention_cached_scratch, attention_scratch,
    cross_entropy, cross_entropy_backward, dropout, embed, embed_backward, gate, gate_backward,
    gemm, gemm_scratch, layer_norm, layer_norm_backward, log_softmax, log_softmax_backward,
    masked_softmax, momentum, rms_norm, rope, rope_backward, softmax, softmax_backward,
    sum_of_squares,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::Random;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that is being torn down has no counter any more.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: hands every request on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One operation, with its operands and scratch memory inside.
type Operation = (String, Box<dyn FnMut()>);

/// Everything that must not allocate, on `cpu`.
fn operations(cpu: Cpu) -> Vec<Operation> {
    let mut all = Vec::new();
    gemms(cpu, &mut all);
    attentions(cpu, &mut all);
    cached_attentions(cpu, &mut all);
    rows(cpu, &mut all);
    all
}

fn gemms(cpu: Cpu, all: &mut Vec<Operation>) {
    let (n, k) = (70, 90);
    for m in [1, 7, 16, 130] {
        for left in [LeftKind::Plain, LeftKind::Transposed] {
            for right in [RightKind::Packed, RightKind::Plain, RightKind::Transposed] {
                let mut rng = Random::new(1);
                let (a, b, bias) = (rng.vec(m * k), rng.vec(k * n), rng.vec(n));
                let mut c = vec![0.0; m * n];
                let packed = PackedB::new(cpu, Mat::new(&b, k, n));
                let mut scratch = Scratch::new(gemm_scratch(cpu, 1, m, n, k, left, right));
                let run = move || {
                    let a = match left {
                        LeftKind::Plain => Left::Plain(Mat::new(&a, m, k)),
                        LeftKind::Transposed => Left::Transposed(Mat::new(&a, k, m)),
                    };
                    let b = match right {
                        RightKind::Packed => Right::Packed(&packed),
                        RightKind::Plain => Right::Plain(Mat::new(&b, k, n)),
                        RightKind::Transposed => Right::Transposed(Mat::new(&b, n, k)),
                    };
                    let epilogue = Epilogue {
                        bias: Some(&bias),
                        activation: Activation::GeluErf,
                        ..Epilogue::default()
                    };
                    let (out, mut stack) = (MatMut::new(&mut c, m, n), scratch.stack());
                    gemm(cpu, Par::SERIAL, a, b, Write::Replace, &epilogue, out, &mut stack);
                };
                all.push((format!("gemm m {m} {left:?} {right:?}"), Box::new(run)));
            }
        }
    }
}

fn rows(cpu: Cpu, all: &mut Vec<Operation>) {
    type RowOperation = fn(Cpu, Mat<'_>, MatMut<'_>);
    const OPERATIONS: &[(&str, RowOperation)] = &[
        ("exp", |cpu, _, y| math::exp(cpu, Par::SERIAL, y)),
        ("ln", |cpu, _, y| math::ln(cpu, Par::SERIAL, y)),
        ("erf", |cpu, _, y| math::erf(cpu, Par::SERIAL, y)),
        ("tanh", |cpu, _, y| math::tanh(cpu, Par::SERIAL, y)),
        ("sigmoid", |cpu, _, y| math::sigmoid(cpu, Par::SERIAL, y)),
        ("GELU", |cpu, _, y| activate(cpu, Par::SERIAL, Activation::GeluTanh, y)),
        ("softmax", |cpu, _, y| softmax(cpu, Par::SERIAL, y)),
        ("log softmax", |cpu, _, y| log_softmax(cpu, Par::SERIAL, y)),
        ("masked softmax", |cpu, _, y| {
            masked_softmax(cpu, Par::SERIAL, 0.5, Visible::Diagonal(3), y);
        }),
        ("LayerNorm", |cpu, x, y| {
            let norm = LayerNorm { gamma: x.row(0), beta: Some(x.row(1)), epsilon: 1e-5 };
            add_layer_norm(cpu, Par::SERIAL, &norm, x, x, None, y);
        }),
        ("RMSNorm", |cpu, x, y| {
            let norm = RmsNorm { gamma: x.row(0), epsilon: 1e-5 };
            rms_norm(cpu, Par::SERIAL, &norm, x, y);
        }),
        ("embed", |cpu, x, y| {
            let lookup = Lookup { table: x, ids: &[1, 0, 2, 4, 3, 0, 1], scale: 1.5 };
            embed(cpu, Par::SERIAL, &[lookup, lookup], y);
        }),
        ("gate", |cpu, x, y| gate(cpu, Par::SERIAL, Activation::Silu, x, x, y)),
        ("embed backward", |cpu, x, y| {
            embed_backward(cpu, Par::SERIAL, &[1, 0, 2, 4, 3, 0, 1], 1.5, x, y);
        }),
        ("activation and gate backward", |cpu, x, mut y| {
            activate_backward(cpu, Par::SERIAL, Activation::GeluErf, x, y.reborrow());
            let (d_gate, d_up) = y.split_rows(3);
            let [gate, up, dy] = [0, 2, 4].map(|i| x.rows_range(i..i + 3));
            let d_up = d_up.rows_range(0..3);
            gate_backward(cpu, Par::SERIAL, Activation::Silu, gate, up, dy, d_gate, d_up);
        }),
        ("softmax backward", |cpu, x, mut y| {
            softmax_backward(cpu, Par::SERIAL, x, y.reborrow());
            log_softmax_backward(cpu, Par::SERIAL, x, y);
        }),
        ("norm backward", |cpu, x, mut y| {
            let norm = LayerNorm { gamma: x.row(0), beta: Some(x.row(1)), epsilon: 1e-5 };
            let (mut saved, mut gamma, mut beta) = ([Moments::default(); 7], [0.0; 90], [0.0; 90]);
            let to = NormOutput::from(y.reborrow()).with_moments(&mut saved);
            layer_norm(cpu, Par::SERIAL, &norm, x, to);
            let (write, beta) = (Write::Replace, Some(&mut beta[..]));
            let (par, gamma) = (Par::SERIAL, &mut gamma);
            layer_norm_backward(cpu, par, &norm, &saved, x, x, write, y, gamma, beta);
        }),
        ("cross entropy", |cpu, x, y| {
            let how = CrossEntropy::default().with_smoothing(Smoothing::All(0.1));
            let (labels, mut losses) = ([Some(3); 7], [TokenLoss::default(); 7]);
            cross_entropy(cpu, Par::SERIAL, &how, x, &labels, &mut losses);
            cross_entropy_backward(cpu, Par::SERIAL, &how, 0.5, y, &labels, &mut losses);
        }),
        ("dropout", |cpu, x, mut y| {
            let how = Dropout::new(0.1, 1, 2);
            add_dropout(cpu, Par::SERIAL, &how, x, x, y.reborrow());
            dropout(cpu, Par::SERIAL, &how, y);
        }),
        ("optimisers and sums", |cpu, x, mut y| {
            let (g, mut m, mut v) = (x.row(0), [0.5; 90], [0.5; 90]);
            let p = y.row_mut(0);
            adam(cpu, Par::SERIAL, &Adam::default(), 1, 0.1, 1.0, g, &mut m, &mut v, p);
            momentum(cpu, Par::SERIAL, &Momentum::default(), 1, 0.1, 1.0, g, &mut m, p);
            adagrad(cpu, Par::SERIAL, &Adagrad::default(), 0.1, 1.0, g, &mut v, p);
            add_column_sums(cpu, Par::SERIAL, x, p);
            p[0] += sum_of_squares(cpu, Par::SERIAL, g) as f32;
        }),
        ("RoPE, half-split", |cpu, x, y| rotate(cpu, RopeLayout::HalfSplit, x, y)),
        ("RoPE, interleaved", |cpu, x, y| rotate(cpu, RopeLayout::Interleaved, x, y)),
    ];
    for &(name, operation) in OPERATIONS {
        let (rows, cols) = (7, 90);
        let x = Random::new(3).vec(rows * cols);
        let mut y = x.clone();
        let run = move || operation(cpu, Mat::new(&x, rows, cols), MatMut::new(&mut y, rows, cols));
        all.push((name.to_owned(), Box::new(run)));
    }
}

fn rotate(cpu: Cpu, layout: RopeLayout, tables: Mat<'_>, mut x: MatMut<'_>) {
    let (cos, sin) = (tables.columns(0..20), tables.columns(20..40));
    let (rope_of, places) = (Rope { cos, sin, layout }, [0, 6, 2, 4, 3, 0, 1]);
    rope(cpu, Par::SERIAL, &rope_of, &places, 2, x.reborrow());
    rope_backward(cpu, Par::SERIAL, &rope_of, &places, 2, x);
}

fn attentions(cpu: Cpu, all: &mut Vec<Operation>) {
    let shape = AttentionShape::new(4, 2, 9, 20);
    let segments = [Segment::causal(0..40, 0..60), Segment::full(40..41, 60..400)];
    let (t, s, longest) = (41, 400, 340);
    for masked in [false, true] {
        let mut rng = Random::new(2);
        let (q, k, v) = (rng.vec(t * 36), rng.vec(s * 18), rng.vec(s * 40));
        let (keys, bias) = ((0..s).map(|j| j % 7 != 3).collect::<Vec<_>>(), rng.vec(t * longest));
        let (mut out, d_out) = (vec![0.0; t * 80], rng.vec(t * 80));
        let [mut dq, mut dk, mut dv] = [t * 36, s * 18, s * 40].map(|len| vec![0.0; len]);
        let extent = AttentionExtent::of(&segments);
        let need = attention_scratch(cpu, 1, &shape, extent);
        let mut scratch = Scratch::new(need.or(attention_backward_scratch(cpu, 1, &shape, extent)));
        let segments = segments.clone();
        let run = move || {
            let mut mask = Mask::default();
            if masked {
                mask.keys = Some(&keys);
                mask.bias = Some(PerHead::Shared(Mat::new(&bias, t, longest)));
            }
            let (q, k, v) = (Mat::new(&q, t, 36), Mat::new(&k, s, 18), Mat::new(&v, s, 40));
            let (to, mut stack) = (MatMut::new(&mut out, t, 80), scratch.stack());
            attention(cpu, Par::SERIAL, &shape, q, k, v, &segments, &mask, to, &mut stack);
            let d_out = Mat::new(&d_out, t, 80);
            let to = AttentionGradients::new(
                MatMut::new(&mut dq, t, 36),
                MatMut::new(&mut dk, s, 18),
                MatMut::new(&mut dv, s, 40),
            );
            let (par, segments) = (Par::SERIAL, &segments);
            attention_backward(cpu, par, &shape, q, k, v, d_out, segments, &mask, to, &mut stack);
        };
        all.push((format!("attention and its gradients, masked: {masked}"), Box::new(run)));
    }
}

fn cached_attentions(cpu: Cpu, all: &mut Vec<Operation>) {
    let shape = AttentionShape::new(4, 2, 9, 20).with_softcap(2.0);
    let pages: Vec<u32> = (0..8).rev().collect();
    let (t, s) = (34, 300);
    for (queries, window) in [(t, 70), (1, 9)] {
        let mut rng = Random::new(4);
        let (q, k, v) = (rng.vec(t * 36), rng.vec(s * 18), rng.vec(s * 40));
        let (table, mut out, mut maps) =
            (rng.vec(4 * 601), vec![0.0; t * 80], vec![0.0; t * 2 * s]);
        let mut cache = KvCache::try_new(cpu, 2, 9, 20, 8).unwrap();
        let extent = AttentionExtent { queries, keys: s };
        let mut scratch = Scratch::new(attention_cached_scratch(cpu, 1, &shape, extent));
        let pages = pages.clone();
        let run = move || {
            cache.write(Par::SERIAL, &pages, 0, Mat::new(&k, s, 18), Mat::new(&v, s, 40));
            cache.copy_page(7, 0, 9);
            let segment = CachedSegment::causal(0..queries, &pages, s).with_window(window);
            let relative = Relative { table: Mat::new(&table, 4, 601), zero: 300 };
            let mask = Mask { relative: Some(relative), ..Mask::default() };
            let maps = Maps { heads: &[0, 3], out: MatMut::new(&mut maps, 2 * t, s) };
            let to = AttentionOutput::from(MatMut::new(&mut out, t, 80)).with_maps(maps);
            let (q, segments, mut stack) = (Mat::new(&q, t, 36), [segment], scratch.stack());
            attention_cached(cpu, Par::SERIAL, &shape, q, &cache, &segments, &mask, to, &mut stack);
        };
        all.push((format!("attention over a cache, {queries} queries"), Box::new(run)));
    }
}

#[test]
fn no_operation_allocates() {
    for cpu in Cpu::all() {
        for (name, mut run) in operations(cpu) {
            // Detection of the processor and the like happens once.
            run();
            let before = ALLOCATIONS.get();
            run();
            let allocations = ALLOCATIONS.get() - before;
            assert_eq!(allocations, 0, "{} {name}", cpu.isa());
        }
    }
}

#[test]
fn asking_whether_to_give_up_does_not_allocate() {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(3600);
    for cancel in [Cancel::new(), Cancel::with_deadline(deadline)] {
        let mut x = vec![0.5; 400 * 90];
        let before = ALLOCATIONS.get();
        let par = Par::SERIAL.with_cancel(&cancel);
        softmax(Cpu::detect(), par, MatMut::new(&mut x, 400, 90));
        cancel.cancel();
        assert!(par.is_cancelled());
        assert_eq!(ALLOCATIONS.get() - before, 0);
    }
}

#[test]
fn the_counter_counts() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(ALLOCATIONS.get() - before, 1);
}
