//! Attention at the edges: NaN and ∞, what is hidden, special scores, operands that do not fit.

mod support;

use headrow_kernels::{
    AttentionExtent, AttentionShape, Cpu, Mask, Mat, MatMut, Need, Par, PerHead, Reach, Relative,
    Scratch, Segment, attention, attention_backward_scratch, attention_cached_scratch,
    attention_scratch,
};
use support::attention::{
    BIAS, Case, KEYS, NO_HOLES, PER_HEAD, RELATIVE, VISIBLE, all_masks, reach, shape,
};
use support::{Random, every};

#[test]
fn a_nan_reaches_what_depends_on_it_and_nothing_else() {
    let mut rng = Random::new(8);
    let poison = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let lengths = [(7, 19, Some(4)), (1, 3, None), (3, 9, None)];
    let kinds = [0, KEYS, VISIBLE | PER_HEAD, BIAS | NO_HOLES, KEYS | VISIBLE | BIAS];
    for masks in kinds.into_iter().step_by(every(2)) {
        let mut case = Case::new(shape(4, 2, 3, 5), &lengths, masks, &mut rng);
        let AttentionShape { heads, kv_heads, d_k, d_v, .. } = case.shape;
        let (t, s) = (case.q.view().rows(), case.k.view().rows());
        for cpu in Cpu::all() {
            let clean = case.run(cpu, Par::SERIAL).values();
            // depends(row, head, column) with a bad element put in place by `set`.
            let verify = |case: &Case,
                          bad: f32,
                          depends: &dyn Fn(usize, usize, usize) -> bool,
                          what: &str| {
                let out = case.run(cpu, Par::SERIAL).values();
                for row in 0..t {
                    for head in 0..heads {
                        for column in 0..d_v {
                            let at = (row * heads + head) * d_v + column;
                            if !depends(row, head, column) {
                                assert_eq!(out[at].to_bits(), clean[at].to_bits(), "{what}");
                            } else if bad.is_nan() {
                                assert!(out[at].is_nan(), "{what}: {}", out[at]);
                            }
                        }
                    }
                }
            };
            for bad in poison.into_iter().step_by(every(3)) {
                for row in 0..t {
                    for p in 0..heads * d_k {
                        let old = case.q.view().row(row)[p];
                        case.q.set(row, p, bad);
                        let any = |head| (0..s).any(|j| case.sees(head, row, j));
                        verify(
                            &case,
                            bad,
                            &|r, head, _| r == row && head == p / d_k && any(head),
                            &format!("{cpu:?} {bad} in Q({row}, {p})"),
                        );
                        case.q.set(row, p, old);
                    }
                }
                for j in 0..s {
                    for p in 0..kv_heads * d_k {
                        let old = case.k.view().row(j)[p];
                        case.k.set(j, p, bad);
                        verify(
                            &case,
                            bad,
                            &|r, head, _| head / 2 == p / d_k && case.sees(head, r, j),
                            &format!("{cpu:?} {bad} in K({j}, {p})"),
                        );
                        case.k.set(j, p, old);
                    }
                    for c in 0..kv_heads * d_v {
                        let old = case.v.view().row(j)[c];
                        case.v.set(j, c, bad);
                        verify(
                            &case,
                            bad,
                            &|r, head, column| {
                                head / 2 == c / d_v && column == c % d_v && case.sees(head, r, j)
                            },
                            &format!("{cpu:?} {bad} in V({j}, {c})"),
                        );
                        case.v.set(j, c, old);
                    }
                }
            }
        }
    }
}

/// Long enough for whole tiles, panels and blocks on either side of the diagonal.
#[test]
fn whatever_hidden_keys_hold_stays_hidden() {
    let mut rng = Random::new(9);
    for masks in all_masks() {
        let reaches = [None, Some(0), Some(-20), Some(37)].map(reach);
        let bands = [Reach::causal(61, 90).with_window(11), Reach::banded(61, 90, 5, 30)];
        for reach in reaches.into_iter().chain(bands) {
            let mut case =
                Case::with_reach(shape(2, 1, 8, 20), &[(61, 90, reach)], masks, &mut rng);
            for cpu in Cpu::all() {
                let clean = case.run(cpu, Par::SERIAL).values();
                let j = rng.below(90);
                let (old_k, old_v) = (case.k.view().row(j)[2], case.v.view().row(j)[3]);
                case.k.set(j, 2, f32::NAN);
                case.v.set(j, 3, f32::INFINITY);
                let out = case.run(cpu, Par::SERIAL).values();
                if masks & KEYS == 0 {
                    let bits: Vec<u32> = out.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(case.run_cached(cpu, Par::SERIAL, None), bits, "{cpu:?}");
                }
                for (at, (x, clean)) in out.iter().zip(&clean).enumerate() {
                    let (row, head) = (at / 40, at / 20 % 2);
                    if case.sees(head, row, j) {
                        assert!(x.is_nan(), "{cpu:?}, row {row}, key {j}");
                    } else {
                        assert_eq!(x.to_bits(), clean.to_bits(), "{cpu:?}, row {row}, key {j}");
                    }
                }
                case.k.set(j, 2, old_k);
                case.v.set(j, 3, old_v);
            }
        }
    }
}

/// One head of width 1, one query of value 1 and factor 1, so that scores are the keys.
fn by_scores(cpu: Cpu, scores: &[f32], values: &[f32], mask: &Mask<'_>) -> f32 {
    let shape = AttentionShape::new(1, 1, 1, 1);
    let s = scores.len();
    let segments = [Segment::full(0..1, 0..s)];
    let mut scratch =
        Scratch::new(attention_scratch(cpu, 1, &shape, AttentionExtent::of(&segments)));
    let mut out = [7.0];
    attention(
        cpu,
        Par::SERIAL,
        &shape,
        Mat::new(&[1.0], 1, 1),
        Mat::new(scores, s, 1),
        Mat::new(values, s, 1),
        &segments,
        mask,
        MatMut::new(&mut out, 1, 1),
        &mut scratch.stack(),
    );
    out[0]
}

#[test]
fn edge_values_follow_the_policy() {
    const INF: f32 = f32::INFINITY;
    for cpu in Cpu::all() {
        let plain =
            |scores: &[f32], values: &[f32]| by_scores(cpu, scores, values, &Mask::default());
        assert_eq!(plain(&[], &[]).to_bits(), 0);
        assert!(plain(&[INF, 0.0], &[1.0, 1.0]).is_nan());
        assert!(plain(&[f32::NAN, 0.0], &[1.0, 1.0]).is_nan());
        assert!(plain(&[-INF, -INF], &[1.0, 1.0]).is_nan());
        assert_eq!(plain(&[-INF, 0.0], &[1.0, 3.0]), 3.0);
        // A visible key of weight 0 counts: 0·∞.
        assert!(plain(&[-INF, 0.0], &[INF, 3.0]).is_nan());
        assert_eq!(plain(&[3e38, 3e38, -3e38], &[1.0, 2.0, 100.0]), 1.5);
        // Nothing visible: +0, whatever lies there.
        let (none, hidden) = ([false; 3], [-INF; 3]);
        let mask = Mask { keys: Some(&none), ..Mask::default() };
        assert_eq!(by_scores(cpu, &[f32::NAN; 3], &[INF; 3], &mask).to_bits(), 0);
        let added =
            |bias| Mask { bias: Some(PerHead::Shared(Mat::from_row(bias))), ..Mask::default() };
        assert_eq!(by_scores(cpu, &[INF; 3], &[f32::NAN; 3], &added(&hidden)).to_bits(), 0);
        // Only a true −∞ hides: with the lowest number on all keys the weights are equal.
        let low = [f32::MIN; 4];
        assert_eq!(by_scores(cpu, &[0.5; 4], &[1.0, 2.0, 3.0, 6.0], &added(&low)), 3.0);
        // One bias hides, whatever the other says there.
        for other in [f32::NAN, INF, 1.0, -INF] {
            for (bias, table) in [([other, 0.0], [-INF, 0.0]), ([-INF, 0.0], [other, 0.0])] {
                let table = Relative { table: Mat::from_row(&table), zero: 0 };
                let bias = Some(PerHead::Shared(Mat::from_row(&bias)));
                let mask = Mask { bias, relative: Some(table), ..Mask::default() };
                assert_eq!(by_scores(cpu, &[0.5; 2], &[1.0, 3.0], &mask), 3.0, "{other}");
            }
        }
        // Two that are low come to no −∞.
        let table = Relative { table: Mat::from_row(&[f32::MIN; 2]), zero: 0 };
        let mask = Mask { relative: Some(table), ..added(&[f32::MIN; 2]) };
        assert_eq!(by_scores(cpu, &[0.5; 2], &[1.0, 3.0], &mask), 2.0);
        // A visible score of −∞ among hidden keys is still arithmetic.
        let one = [true, false];
        let mask = Mask { keys: Some(&one), ..Mask::default() };
        assert!(by_scores(cpu, &[-INF, 0.0], &[1.0, 1.0], &mask).is_nan());
    }
}

#[test]
#[should_panic(expected = "2 heads of keys do not divide 3 heads")]
fn groups_of_unequal_size_are_refused() {
    let case = Case::new(shape(3, 2, 1, 1), &[(1, 1, None)], 0, &mut Random::new(0));
    case.run(Cpu::detect(), Par::SERIAL);
}

#[test]
#[should_panic(expected = "does not fit AttentionShape")]
fn widths_that_overflow_are_refused() {
    let x = [1.0; 6];
    let mut out = [0.0; 2];
    // Twice this many heads wrap around to 2 columns.
    let shape = shape((usize::MAX >> 1) + 2, 1, 2, 2);
    attention(
        Cpu::detect(),
        Par::SERIAL,
        &shape,
        Mat::new(&x, 1, 2),
        Mat::new(&x, 3, 2),
        Mat::new(&x, 3, 2),
        &[Segment::full(0..1, 0..3)],
        &Mask::default(),
        MatMut::new(&mut out, 1, 2),
        &mut Scratch::new(Need::of::<f32>(1 << 20)).stack(),
    );
}

#[test]
#[should_panic(expected = "queries 1..3 after row 2")]
fn overlapping_queries_are_refused() {
    let mut case = Case::new(shape(1, 1, 1, 1), &[(3, 1, None)], 0, &mut Random::new(0));
    case.segments = vec![Segment::full(0..2, 0..1), Segment::full(1..3, 0..1)];
    case.run(Cpu::detect(), Par::SERIAL);
}

#[test]
#[should_panic(expected = "for distances 0 to 6")]
fn a_relative_bias_that_is_too_narrow_is_refused() {
    let mut case = Case::new(shape(1, 1, 1, 1), &[(4, 7, None)], RELATIVE, &mut Random::new(0));
    case.around = 5;
    case.run(Cpu::detect(), Par::SERIAL);
}

#[test]
fn memory_grows_with_the_keys_and_not_with_the_scores() {
    let shape = shape(12, 12, 64, 64);
    for cpu in Cpu::all() {
        for threads in [1, 2, 16] {
            let forward = |extent| attention_scratch(cpu, threads, &shape, extent).bytes();
            let cached = |extent| attention_cached_scratch(cpu, threads, &shape, extent).bytes();
            let of = |queries, keys| AttentionExtent { queries, keys };
            for forward in [&forward as &dyn Fn(_) -> usize, &cached] {
                assert_eq!(forward(of(65536, 4096)), forward(of(8192, 4096)), "{cpu:?} {threads}");
            }
            let forward = |n| forward(of(n, n));
            let cached = |n| cached(of(n, n));
            let backward = |n| attention_backward_scratch(cpu, threads, &shape, of(n, n)).bytes();
            let kinds: [&dyn Fn(usize) -> usize; 3] = [&forward, &cached, &backward];
            for (kind, bytes) in kinds.iter().enumerate() {
                // What a key takes does not depend on how many there are, but for the odd line of a row.
                let each = (bytes(32768) - bytes(16384)) as f64 / 16384.0;
                let further = (bytes(131072) - bytes(65536)) as f64 / 65536.0;
                assert!(
                    (further / each - 1.0).abs() < 0.01,
                    "{cpu:?} {threads} {kind}: {each} {further}"
                );
                // Scores of a whole head would be 4 · 8192² bytes for each thread.
                assert!(
                    bytes(8192) < threads * (32 << 20),
                    "{cpu:?} {threads} {kind}: {}",
                    bytes(8192)
                );
            }
        }
    }
}
