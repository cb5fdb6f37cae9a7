//! The gradients of attention against their definition, that against small steps, and their bits against themselves.

mod support;

use headrow_kernels::attention::{
    BackwardBlocking, attention_backward_blocked, attention_backward_blocked_scratch,
};
use headrow_kernels::reference::attention as definition;
use headrow_kernels::{
    AttentionExtent, AttentionGradients, Cpu, Isa, Mat, MatMut, Par, PerHeadMut, Reach, Scratch,
    Segment, Team, attention_backward, attention_backward_scratch,
};
use support::attention::{
    BIAS, Case, HEADS, KEYS, NO_HOLES, PER_HEAD, RELATIVE, VISIBLE, WIDTHS, all_masks, banded,
    mixed, reach, shape, small_shapes,
};
use support::{Guarded, Random, every, report, unless_emulated, within};

/// A case with the gradient of its result.
struct Back {
    case: Case,
    d_out: Guarded,
}

/// dQ, dK, dV and the gradients of the relative biases and of the bias, which have no element without them.
struct Gradients([Guarded; 5]);

const NAMES: [&str; 5] = ["dQ", "dK", "dV", "relative", "bias"];

impl Gradients {
    /// Rubbish where results are replaced, zeros where they are added.
    fn of(back: &Back) -> Gradients {
        let Case { q, k, v, relative, around, bias, longest, shape, .. } = &back.case;
        let like = |m: Mat<'_>| Guarded::filled(m.rows(), m.cols(), m.cols() + 3, 1, f32::NAN);
        let rows = if relative.is_some() { shape.heads } else { 0 };
        let distances = 2 * around + 1;
        let table = Guarded::filled(rows, distances, distances + 2, 2, 0.0);
        let rows = match bias {
            None => 0,
            Some((_, false)) => q.view().rows(),
            Some((_, true)) => q.view().rows() * shape.heads,
        };
        let bias = Guarded::filled(rows, *longest, longest + 1, 3, 0.0);
        Gradients([like(q.view()), like(k.view()), like(v.view()), table, bias])
    }

    fn places(&mut self, case: &Case) -> AttentionGradients<'_> {
        let [dq, dk, dv, table, bias] = &mut self.0;
        let mut to = AttentionGradients::new(dq.view_mut(), dk.view_mut(), dv.view_mut());
        if case.relative.is_some() {
            to = to.with_relative(table.view_mut());
        }
        match &case.bias {
            None => to,
            Some((_, false)) => to.with_bias(PerHeadMut::Shared(bias.view_mut())),
            Some((_, true)) => to.with_bias(PerHeadMut::Each(bias.view_mut())),
        }
    }

    fn bits(&self) -> [Vec<u32>; 5] {
        std::array::from_fn(|i| self.0[i].bits())
    }

    fn values(&self) -> [Vec<f32>; 5] {
        std::array::from_fn(|i| self.0[i].values())
    }
}

impl Back {
    fn new(case: Case, rng: &mut Random) -> Back {
        let (rows, cols) = (case.q.view().rows(), case.shape.heads * case.shape.d_v);
        let d_out = Guarded::random(rows, cols, cols + rng.below(3), rng.below(4), rng);
        Back { case, d_out }
    }

    fn run(&self, cpu: Cpu, par: Par<'_>) -> Gradients {
        let Case { shape, segments, .. } = &self.case;
        let extent = AttentionExtent::of(segments);
        let need = attention_backward_scratch(cpu, par.threads(), shape, extent);
        let mut gradients = Gradients::of(self);
        self.run_into(cpu, par, gradients.places(&self.case), &mut Scratch::new(need));
        gradients
    }

    fn run_into(&self, cpu: Cpu, par: Par<'_>, to: AttentionGradients<'_>, scratch: &mut Scratch) {
        let Case { shape, segments, q, k, v, .. } = &self.case;
        let (q, k, v, d_out) = (q.view(), k.view(), v.view(), self.d_out.view());
        let (mask, stack) = (self.case.mask(), &mut scratch.stack());
        attention_backward(cpu, par, shape, q, k, v, d_out, segments, &mask, to, stack);
    }

    fn run_blocked(&self, cpu: Cpu, par: Par<'_>, blocking: &BackwardBlocking) -> Gradients {
        let Case { shape, segments, q, k, v, .. } = &self.case;
        let (extent, threads) = (AttentionExtent::of(segments), par.threads());
        let need = attention_backward_blocked_scratch(cpu, blocking, threads, shape, extent);
        let mut scratch = Scratch::new(need);
        let mut gradients = Gradients::of(self);
        let d_out = self.d_out.view();
        attention_backward_blocked(
            cpu,
            par,
            blocking,
            shape,
            q.view(),
            k.view(),
            v.view(),
            d_out,
            segments,
            &self.case.mask(),
            gradients.places(&self.case),
            &mut scratch.stack(),
        );
        gradients
    }

    fn reference(&self) -> definition::AttentionGradients {
        let Case { shape, segments, q, k, v, .. } = &self.case;
        let (q, k, v) = (q.view(), k.view(), v.view());
        definition::attention_backward(
            shape,
            q,
            k,
            v,
            self.d_out.view(),
            segments,
            &self.case.mask(),
        )
    }

    /// Within the stated bound of the definition; nothing beside the matrices is touched.
    fn check(&self, cpu: Cpu, what: &str) {
        let found = self.run(cpu, Par::SERIAL);
        let exact = self.reference();
        let exact = [&exact.dq, &exact.dk, &exact.dv, &exact.relative, &exact.bias];
        for ((found, exact), name) in found.0.iter().zip(exact).zip(NAMES) {
            found.assert_intact(what);
            let values = found.values();
            assert_eq!(values.len(), exact.values.len(), "{name} of {what}");
            for (at, (&x, &y)) in values.iter().zip(&exact.values).enumerate() {
                let (error, bound) = ((f64::from(x) - y).abs(), exact.bound[at]);
                let close = within(error, bound);
                assert!(close, "{name}[{at}] of {what}, {cpu:?}: {x} is {y} ± {bound}");
            }
        }
    }
}

/// Σ out·d_out by the f64 definition of the forward.
fn value(back: &Back) -> f64 {
    let Case { shape, segments, q, k, v, .. } = &back.case;
    let (q, k, v, mask) = (q.view(), k.view(), v.view(), back.case.mask());
    let out = definition::attention(shape, q, k, v, segments, &mask).output;
    out.iter().zip(back.d_out.values()).map(|(y, d)| y * f64::from(d)).sum()
}

/// Puts `x` in place of element `at` of Q, K, V, the relative biases or the bias, and gives the old one.
fn replace(case: &mut Case, operand: usize, at: usize, x: f32) -> f32 {
    let matrix = match operand {
        0 => &mut case.q,
        1 => &mut case.k,
        2 => &mut case.v,
        3 => {
            let table = case.relative.as_mut().expect("the case has relative biases");
            return std::mem::replace(&mut table[at], x);
        }
        _ => {
            let (bias, _) = case.bias.as_mut().expect("the case has a bias");
            return std::mem::replace(&mut bias[at], x);
        }
    };
    let (i, j) = (at / matrix.view().cols(), at % matrix.view().cols());
    let old = matrix.view().row(i)[j];
    matrix.set(i, j, x);
    old
}

#[test]
fn the_definition_is_what_small_steps_give() {
    const STEP: f32 = 1.0 / 1024.0;
    let mut rng = Random::new(1);
    let all = KEYS | VISIBLE | BIAS | RELATIVE | PER_HEAD;
    for (turn, masks) in [0, KEYS, RELATIVE, VISIBLE | BIAS, all].into_iter().enumerate() {
        let mut shape = shape(4, 2, 3, 2);
        if turn % 2 == 0 {
            shape = shape.with_softcap(0.8);
        }
        let lengths =
            [(3, 5, Reach::causal(3, 5)), (2, 3, Reach::ALL), (4, 4, Reach::banded(4, 4, 1, 0))];
        let mut back = Back::new(Case::with_reach(shape, &lengths, masks, &mut rng), &mut rng);
        let exact = back.reference();
        let exact = [exact.dq, exact.dk, exact.dv, exact.relative, exact.bias]
            .map(|gradient| gradient.values);
        for (operand, exact) in exact.iter().enumerate() {
            for (at, exact) in exact.iter().enumerate() {
                let old = replace(&mut back.case, operand, at, 0.0);
                if old == f32::NEG_INFINITY {
                    replace(&mut back.case, operand, at, old);
                    continue;
                }
                let [low, high] = [old - STEP, old + STEP];
                let [below, above] = [low, high].map(|x| {
                    replace(&mut back.case, operand, at, x);
                    value(&back)
                });
                replace(&mut back.case, operand, at, old);
                let found = (above - below) / f64::from(high - low);
                let what = format!("{}[{at}], masks {masks}", NAMES[operand]);
                // The error of a step goes with its square.
                assert!((found - exact).abs() < 2e-5, "{what}: {found}, by definition {exact}");
            }
        }
    }
}

#[test]
fn small_shapes_with_every_mask_are_within_the_stated_bound() {
    for cpu in Cpu::all() {
        let check = |case, rng: &mut Random, what: &str| Back::new(case, rng).check(cpu, what);
        small_shapes(&mut Random::new(2), check);
    }
    report("gradients of attention, small shapes");
}

#[test]
fn every_pair_of_widths_and_every_head_count_is_within_the_bound() {
    for cpu in Cpu::all() {
        let mut rng = Random::new(3);
        for d_k in WIDTHS.into_iter().chain([0]).step_by(every(3)) {
            for d_v in WIDTHS.into_iter().chain([0]) {
                for (heads, kv_heads) in HEADS {
                    let shape = shape(heads, kv_heads, d_k, d_v);
                    let lengths = [(7, 37, Some(30)), (0, 3, None), (1, 18, None), (5, 0, None)];
                    let case = Case::new(shape, &lengths, rng.below(64), &mut rng);
                    Back::new(case, &mut rng).check(cpu, &format!("{shape:?}"));
                }
            }
        }
    }
    report("gradients of attention, all widths");
}

#[test]
fn longer_sequences_are_within_the_bound() {
    for cpu in Cpu::all() {
        let mut rng = Random::new(4);
        for (lengths, masks) in [
            ([(130, 130, None), (3, 700, Some(697))], 0),
            ([(200, 150, Some(-50)), (40, 1100, None)], RELATIVE),
            ([(90, 300, Some(210)), (1, 520, None)], KEYS | NO_HOLES),
            ([(50, 333, None), (100, 100, Some(0))], VISIBLE | BIAS | PER_HEAD),
        ]
        .into_iter()
        .step_by(every(3))
        {
            let case = Case::new(shape(2, 1, 24, 40), &lengths, masks, &mut rng);
            let what = format!("{lengths:?} masks {masks}");
            Back::new(case, &mut rng).check(cpu, &what);
        }
    }
    report("gradients of attention, longer sequences");
}

/// Blocks of these sizes: rows, keys, and from how many rows and keys on something is copied.
fn blocked(cpu: Cpu, [rows, keys, pack_keys, copy_rows]: [usize; 4]) -> BackwardBlocking {
    let mut blocking = BackwardBlocking::new(cpu);
    (blocking.rows, blocking.keys) = (rows, keys);
    (blocking.pack_keys, blocking.copy_rows) = (pack_keys, copy_rows);
    blocking
}

#[test]
fn instruction_sets_threads_and_block_sizes_do_not_show_in_the_bits() {
    let mut rng = Random::new(5);
    let scalar = Cpu::with_isa(Isa::Scalar).unwrap();
    let mut teams: Vec<Team> = (2..=8).step_by(every(2)).map(Team::new).collect();
    for (turn, masks) in all_masks().step_by(3).enumerate() {
        let make = if turn % 2 == 0 { mixed } else { banded };
        let back = Back::new(make(masks, &mut rng), &mut rng);
        let expected = back.run(scalar, Par::SERIAL).bits();
        for cpu in Cpu::all() {
            assert!(back.run(cpu, Par::SERIAL).bits() == expected, "{cpu:?}, masks {masks}");
            for team in &mut teams {
                team.open(|par| {
                    let same = back.run(cpu, par).bits() == expected;
                    assert!(same, "{cpu:?}, {} threads, masks {masks}", par.threads());
                });
            }
            for (rows, keys) in [(1, 1), (2, 7), (7, 16), (33, 50), (200, 1000)] {
                let blocking = blocked(cpu, [rows, keys, rng.below(100), rng.below(100)]);
                let same = back.run_blocked(cpu, Par::SERIAL, &blocking).bits() == expected;
                assert!(same, "{cpu:?}, {blocking:?}, masks {masks}");
            }
        }
    }
}

#[test]
fn a_segment_alone_has_the_bits_it_has_in_a_batch() {
    let mut rng = Random::new(6);
    for masks in [0, KEYS | BIAS] {
        let mut back = Back::new(mixed(masks, &mut rng), &mut rng);
        for cpu in Cpu::all() {
            let segments = back.case.segments.clone();
            let [dq, dk, dv, ..] = back.run(cpu, Par::SERIAL).0;
            for segment in &segments {
                back.case.segments = vec![segment.clone()];
                let alone = back.run(cpu, Par::SERIAL).0;
                let [queries, keys] = [&segment.queries, &segment.keys];
                let rows = [queries, keys, keys];
                for ((all, alone), rows) in [&dq, &dk, &dv].into_iter().zip(&alone).zip(rows) {
                    for row in 0..all.view().rows() {
                        let bits = |m: &Guarded| -> Vec<u32> {
                            m.view().row(row).iter().map(|x| x.to_bits()).collect()
                        };
                        if rows.contains(&row) {
                            assert_eq!(bits(all), bits(alone), "{cpu:?}, {segment:?}");
                        } else {
                            let untouched = alone.view().row(row).iter().all(|x| x.is_nan());
                            assert!(untouched, "{cpu:?}: row {row} is not of {segment:?}");
                        }
                    }
                }
            }
            back.case.segments = segments;
        }
    }
}

#[test]
fn matrices_side_by_side_have_the_bits_of_three() {
    let mut rng = Random::new(7);
    let lengths = [(9, 9, Some(0)), (20, 20, None)];
    let shape = shape(4, 2, 5, 7);
    let back = Back::new(Case::new(shape, &lengths, 0, &mut rng), &mut rng);
    let (t, [q, k, v]) = (29, [20, 10, 14]);
    let cpu = Cpu::detect();
    let [dq, dk, dv, ..] = back.run(cpu, Par::SERIAL).0;
    let extent = AttentionExtent::of(&back.case.segments);
    let mut scratch = Scratch::new(attention_backward_scratch(cpu, 1, &shape, extent));
    let mut all = Guarded::filled(t, q + k + v, q + k + v + 5, 2, f32::NAN);
    back.run_into(cpu, Par::SERIAL, AttentionGradients::side_by_side(all.view_mut()), &mut scratch);
    all.assert_intact("side by side");
    let mut separate = Guarded::filled(t, q, q, 0, f32::NAN);
    let mut both = Guarded::filled(t, k + v, k + v + 1, 3, f32::NAN);
    let to = AttentionGradients::with_source(separate.view_mut(), both.view_mut());
    back.run_into(cpu, Par::SERIAL, to, &mut scratch);
    for row in 0..t {
        let three = [dq.view().row(row), dk.view().row(row), dv.view().row(row)];
        assert_eq!(all.view().row(row), three.concat());
        assert_eq!(separate.view().row(row), three[0]);
        assert_eq!(both.view().row(row), three[1..].concat());
    }
}

#[test]
fn gradients_of_biases_are_added() {
    let mut rng = Random::new(8);
    let back = Back::new(banded(RELATIVE | BIAS, &mut rng), &mut rng);
    let cpu = Cpu::detect();
    let need = attention_backward_scratch(
        cpu,
        1,
        &back.case.shape,
        AttentionExtent::of(&back.case.segments),
    );
    let mut scratch = Scratch::new(need);
    let mut gradients = Gradients::of(&back);
    (3..5).for_each(|i| gradients.0[i].view_mut().fill(1.5));
    back.run_into(cpu, Par::SERIAL, gradients.places(&back.case), &mut scratch);
    let exact = back.reference();
    for (found, exact) in gradients.0[3..].iter().zip([exact.relative, exact.bias]) {
        for (at, (x, y)) in found.values().into_iter().zip(&exact.values).enumerate() {
            let bound = 2.0 * exact.bound[at] + 300.0 * 1.5 * f64::powi(2.0, -24);
            assert!((f64::from(x) - 1.5 - y).abs() <= bound, "[{at}]: {x} is 1.5 + {y}");
        }
    }
}

/// What a bad element in one of the operands reaches.
struct Reached {
    /// dQ of a query with a head.
    dq: Box<dyn Fn(usize, usize) -> bool>,
    /// dK of a key with a head of keys.
    dk: Box<dyn Fn(usize, usize) -> bool>,
    /// dV of a key with a head of keys, in a column.
    dv: Box<dyn Fn(usize, usize, usize) -> bool>,
}

/// What `sees[head][row][j]` lets pass.
type Sees = std::rc::Rc<Vec<Vec<Vec<bool>>>>;

impl Reached {
    /// What the weights and gradients of the queries reach that `bad` names by head and row: all, or for dV one column.
    fn by_queries(
        sees: &Sees,
        group: usize,
        column: Option<usize>,
        bad: impl Fn(usize, usize) -> bool + Clone + 'static,
    ) -> Reached {
        let keys = {
            let (sees, bad) = (sees.clone(), bad.clone());
            move |j: usize, kv_head: usize| {
                (kv_head * group..(kv_head + 1) * group)
                    .any(|head| (0..sees[head].len()).any(|i| bad(head, i) && sees[head][i][j]))
            }
        };
        let sees = sees.clone();
        Reached {
            dq: Box::new(move |i, head| bad(head, i) && sees[head][i].contains(&true)),
            dk: Box::new(keys.clone()),
            dv: Box::new(move |j, kv_head, c| {
                column.is_none_or(|column| column == c) && keys(j, kv_head)
            }),
        }
    }
}

#[test]
fn a_nan_reaches_what_depends_on_it_and_nothing_else() {
    let mut rng = Random::new(9);
    let lengths = [(7, 19, Some(4)), (1, 3, None), (3, 9, None)];
    let kinds = [0, KEYS, VISIBLE | PER_HEAD, BIAS | NO_HOLES, KEYS | VISIBLE | BIAS];
    for masks in kinds.into_iter().step_by(every(2)) {
        let mut back = Back::new(Case::new(shape(4, 2, 3, 5), &lengths, masks, &mut rng), &mut rng);
        let (t, s) = (11, 31);
        let sees: Sees = std::rc::Rc::new(
            (0..4)
                .map(|head| {
                    let row = |i| (0..s).map(|j| back.case.sees(head, i, j)).collect();
                    (0..t).map(row).collect()
                })
                .collect(),
        );
        for cpu in Cpu::all() {
            let clean = back.run(cpu, Par::SERIAL).values();
            let verify = |back: &Back, reached: &Reached, what: &str| {
                let found = back.run(cpu, Par::SERIAL).values();
                for i in 0..3 {
                    let width = [12, 6, 10][i];
                    for (at, (x, clean)) in found[i].iter().zip(&clean[i]).enumerate() {
                        let (row, column) = (at / width, at % width);
                        let hit = match i {
                            0 => (reached.dq)(row, column / 3),
                            1 => (reached.dk)(row, column / 3),
                            _ => (reached.dv)(row, column / 5, column % 5),
                        };
                        let what = format!("{cpu:?}, {what}, {}[{row}, {column}]", NAMES[i]);
                        if hit {
                            assert!(x.is_nan(), "{what}: {x}");
                        } else {
                            assert_eq!(x.to_bits(), clean.to_bits(), "{what}");
                        }
                    }
                }
            };
            for row in (0..t).step_by(every(5)) {
                for column in [0, 4, 11] {
                    let old = replace(&mut back.case, 0, row * 12 + column, f32::NAN);
                    let reached = Reached::by_queries(&sees, 2, None, move |head, i| {
                        head == column / 3 && i == row
                    });
                    verify(&back, &reached, &format!("Q({row}, {column})"));
                    replace(&mut back.case, 0, row * 12 + column, old);
                }
                for column in [0, 8, 19] {
                    let old = back.d_out.view().row(row)[column];
                    back.d_out.set(row, column, f32::NAN);
                    let bad = move |head, i| head == column / 5 && i == row;
                    let reached = Reached::by_queries(&sees, 2, Some(column % 5), bad);
                    verify(&back, &reached, &format!("dO({row}, {column})"));
                    back.d_out.set(row, column, old);
                }
            }
            for key in (0..s).step_by(every(5)) {
                let those_that_see = |kv_head: usize| {
                    let sees = sees.clone();
                    move |head: usize, i: usize| head / 2 == kv_head && sees[head][i][key]
                };
                for column in [0, 5] {
                    let old = replace(&mut back.case, 1, key * 6 + column, f32::NAN);
                    let reached = Reached::by_queries(&sees, 2, None, those_that_see(column / 3));
                    verify(&back, &reached, &format!("K({key}, {column})"));
                    replace(&mut back.case, 1, key * 6 + column, old);
                }
                for column in [0, 9] {
                    let old = replace(&mut back.case, 2, key * 10 + column, f32::NAN);
                    let all = Reached::by_queries(&sees, 2, None, those_that_see(column / 5));
                    // The weights do not depend on values.
                    let reached = Reached { dv: Box::new(|_, _, _| false), ..all };
                    verify(&back, &reached, &format!("V({key}, {column})"));
                    replace(&mut back.case, 2, key * 10 + column, old);
                }
            }
        }
    }
}

/// Long enough for whole tiles, panels and blocks on either side of the diagonal.
#[test]
fn whatever_hidden_keys_hold_stays_hidden() {
    let mut rng = Random::new(10);
    for masks in all_masks() {
        let reaches = [Some(0), Some(-20), Some(37)].map(reach);
        let bands = [Reach::causal(61, 90).with_window(11), Reach::banded(61, 90, 5, 30)];
        for reach in reaches.into_iter().chain(bands).step_by(every(2)) {
            let case = Case::with_reach(shape(2, 1, 8, 20), &[(61, 90, reach)], masks, &mut rng);
            let mut back = Back::new(case, &mut rng);
            let j = rng.below(90);
            for cpu in Cpu::all() {
                let clean = back.run(cpu, Par::SERIAL).values();
                let old_k = replace(&mut back.case, 1, j * 8 + 2, f32::INFINITY);
                let old_v = replace(&mut back.case, 2, j * 20 + 3, f32::NAN);
                let [dq, ..] = back.run(cpu, Par::SERIAL).values();
                for (at, (x, clean)) in dq.iter().zip(&clean[0]).enumerate() {
                    let (row, head) = (at / 16, at / 8 % 2);
                    if back.case.sees(head, row, j) {
                        assert!(x.is_nan(), "{cpu:?}, row {row}, key {j}");
                    } else {
                        assert_eq!(x.to_bits(), clean.to_bits(), "{cpu:?}, row {row}, key {j}");
                    }
                }
                replace(&mut back.case, 1, j * 8 + 2, old_k);
                replace(&mut back.case, 2, j * 20 + 3, old_v);
            }
        }
    }
}

/// A sum that underflows to −0 and a hidden pair after it: −0 + (−0·x) would be +0 or −0, as x and the block sizes have it.
#[test]
fn zeros_have_one_sign() {
    let mut rng = Random::new(13);
    let case =
        Case::with_reach(shape(1, 1, 3, 2), &[(9, 9, Reach::banded(9, 9, 1, 0))], 0, &mut rng);
    let mut back = Back::new(case, &mut rng);
    back.d_out.view_mut().fill(-f32::from_bits(1));
    for cpu in Cpu::all() {
        for rows in [1, 2, 3, 9] {
            let blocking = blocked(cpu, [rows, 4, 0, 0]);
            let [dq, dk, dv, ..] = back.run_blocked(cpu, Par::SERIAL, &blocking).values();
            let all = [dq, dk, dv].concat();
            assert!(all.iter().all(|x| x.is_sign_positive() || *x != 0.0), "{cpu:?}, {rows} rows");
        }
    }
}

#[test]
fn scratch_for_the_longest_serves_every_shorter_call() {
    let (longest, mut rng) = (unless_emulated(700, 90), Random::new(11));
    let shape = shape(2, 1, 9, 20);
    for cpu in Cpu::all() {
        let extent = AttentionExtent { queries: longest, keys: longest };
        let mut scratch = Scratch::new(attention_backward_scratch(cpu, 1, &shape, extent));
        for (t, s) in
            [(longest, longest), (1, longest), (longest, 1), (83, 84), (40, 65), (49, 300)]
        {
            let (t, s) = (t.min(longest), s.min(longest));
            let case = Case::new(shape, &[(t, s, None)], KEYS | RELATIVE, &mut rng);
            let back = Back::new(case, &mut rng);
            let mut gradients = Gradients::of(&back);
            back.run_into(cpu, Par::SERIAL, gradients.places(&back.case), &mut scratch);
            assert!(gradients.0[0].values().iter().all(|x| x.is_finite()), "{t} over {s}");
        }
    }
}

fn small() -> Back {
    let mut rng = Random::new(12);
    Back::new(Case::new(shape(2, 1, 3, 4), &[(3, 5, None), (2, 4, None)], 0, &mut rng), &mut rng)
}

#[test]
#[should_panic(expected = "keys 4..9 after row 5: gradients of shared keys")]
fn keys_that_segments_share_are_refused() {
    let mut back = small();
    back.case.segments[1] = Segment::full(3..5, 4..9);
    back.run(Cpu::detect(), Par::SERIAL);
}

#[test]
#[should_panic(expected = "gradient of K of 9×4, expected 9×3")]
fn gradients_of_another_shape_are_refused() {
    let back = small();
    let [mut dq, mut dk, mut dv] = [vec![0.0; 30], vec![0.0; 36], vec![0.0; 36]];
    let to = AttentionGradients::new(
        MatMut::new(&mut dq, 5, 6),
        MatMut::new(&mut dk, 9, 4),
        MatMut::new(&mut dv, 9, 4),
    );
    back.run_into(Cpu::detect(), Par::SERIAL, to, &mut Scratch::new(Default::default()));
}

#[test]
#[should_panic(expected = "gradient of a table (2, 11) for one of None")]
fn a_gradient_for_biases_that_are_not_there_is_refused() {
    let back = small();
    let mut gradients = Gradients::of(&back);
    let mut table = vec![0.0; 22];
    let to = gradients.places(&back.case).with_relative(MatMut::new(&mut table, 2, 11));
    back.run_into(Cpu::detect(), Par::SERIAL, to, &mut Scratch::new(Default::default()));
}
