//! Rotary position embedding against its definition, its properties, and the same bits everywhere.

mod support;

use headrow_kernels::reference::rope as reference;
use headrow_kernels::{Cpu, Isa, Mat, MatMut, Par, Rope, RopeLayout, Team, rope, rope_backward};
use support::{Guarded, Random, every, unless_emulated};

const LAYOUTS: [RopeLayout; 2] = [RopeLayout::HalfSplit, RopeLayout::Interleaved];

/// An operation in place, and its definition.
type Operation = fn(Cpu, Par<'_>, &Rope<'_>, &[u32], usize, MatMut<'_>);
type Definition = fn(&Rope<'_>, &[u32], usize, Mat<'_>) -> Vec<f64>;

const BOTH_WAYS: [(Operation, Definition); 2] =
    [(rope, reference::rope), (rope_backward, reference::rope_backward)];

/// Cosines and sines of p·10000^(−2i/r) for `positions` positions and r = 2·`half`.
struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    positions: usize,
    half: usize,
}

impl Angles {
    fn new(positions: usize, half: usize) -> Angles {
        let angle = |at: usize| {
            let (p, i) = ((at / half) as f64, (at % half) as f64);
            p * libm::pow(10000.0, -i / half as f64)
        };
        let angles = || (0..positions * half).map(angle);
        Angles {
            cos: angles().map(|a| libm::cos(a) as f32).collect(),
            sin: angles().map(|a| libm::sin(a) as f32).collect(),
            positions,
            half,
        }
    }

    fn rope(&self, layout: RopeLayout) -> Rope<'_> {
        let table = |values| Mat::new(values, self.positions, self.half);
        Rope { cos: table(&self.cos), sin: table(&self.sin), layout }
    }
}

fn positions(rows: usize, below: usize, rng: &mut Random) -> Vec<u32> {
    (0..rows).map(|_| rng.below(below) as u32).collect()
}

#[test]
fn every_small_shape_is_within_the_stated_error_and_touches_nothing_else() {
    let mut rng = Random::new(1);
    for half in (0..=40).step_by(every(7)).chain([64]) {
        let angles = Angles::new(9, half);
        for heads in [1, 2, 3] {
            for beyond in [0, 1, 5] {
                for layout in LAYOUTS {
                    let (rows, cols) = (3, heads * (2 * half + beyond));
                    let rope_of = angles.rope(layout);
                    let places = positions(rows, 9, &mut rng);
                    let x = Guarded::random(rows, cols, cols + half % 4, heads, &mut rng);
                    for (operation, definition) in BOTH_WAYS {
                        let exact = definition(&rope_of, &places, heads, x.view());
                        let what = format!("{layout:?} half {half} heads {heads} + {beyond}");
                        for cpu in Cpu::all() {
                            let mut y =
                                Guarded::from_fn(rows, cols, cols + half % 4, heads, |i, j| {
                                    x.view().row(i)[j]
                                });
                            operation(cpu, Par::SERIAL, &rope_of, &places, heads, y.view_mut());
                            for (at, (&y, exact)) in y.values().iter().zip(&exact).enumerate() {
                                // Values below 1: a rounded product and a rounded sum below 2.
                                let bound = 3.0 * f64::powi(2.0, -24);
                                let error = (f64::from(y) - exact).abs();
                                assert!(error <= bound, "{what} [{at}]: {y} is {exact}");
                                if at % cols % (2 * half + beyond) >= 2 * half {
                                    assert_eq!(f64::from(y), *exact, "{what} [{at}] moved");
                                }
                            }
                            y.assert_intact("rope");
                        }
                    }
                }
            }
        }
    }
}

/// The gradient of Σ y·dy is what moving each element of x changes: turning is linear, so one step tells exactly.
#[test]
fn the_gradients_definition_is_what_small_steps_give() {
    let mut rng = Random::new(5);
    let (rows, heads, half) = (2, 2, 3);
    let cols = heads * (2 * half + 1);
    let angles = Angles::new(40, half);
    let places = positions(rows, 40, &mut rng);
    let (x, dy) = (rng.vec(rows * cols), rng.vec(rows * cols));
    for layout in LAYOUTS {
        let rope_of = angles.rope(layout);
        let gradient =
            reference::rope_backward(&rope_of, &places, heads, Mat::new(&dy, rows, cols));
        let value = |x: &[f32]| -> f64 {
            let y = reference::rope(&rope_of, &places, heads, Mat::new(x, rows, cols));
            y.iter().zip(&dy).map(|(y, &dy)| y * f64::from(dy)).sum()
        };
        for at in 0..rows * cols {
            let mut moved = x.clone();
            moved[at] = 0.0;
            let slope = (value(&x) - value(&moved)) / f64::from(x[at]);
            assert!((slope - gradient[at]).abs() < 1e-12, "{layout:?} [{at}]");
        }
    }
}

/// Feature j of a head in the other layout's order.
fn interleaved(j: usize, half: usize) -> usize {
    match j {
        _ if j < half => 2 * j,
        _ if j < 2 * half => 2 * (j - half) + 1,
        _ => j,
    }
}

#[test]
fn the_layouts_are_permutations_of_each_other_bit_for_bit() {
    let mut rng = Random::new(2);
    for half in [1, 3, 8, 16, 21, 32, 64] {
        let angles = Angles::new(50, half);
        let (rows, heads, width) = (4, 2, 2 * half + 3);
        let places = positions(rows, 50, &mut rng);
        let x = Guarded::random(rows, heads * width, heads * width, 0, &mut rng);
        for cpu in Cpu::all() {
            let mut split =
                Guarded::from_fn(rows, heads * width, heads * width, 0, |i, j| x.view().row(i)[j]);
            let mut mixed = Guarded::filled(rows, heads * width, heads * width, 0, 0.0);
            for i in 0..rows {
                for j in 0..heads * width {
                    let to = j / width * width + interleaved(j % width, half);
                    mixed.set(i, to, x.view().row(i)[j]);
                }
            }
            let run = |layout, x: &mut Guarded| {
                let rope_of = angles.rope(layout);
                rope(cpu, Par::SERIAL, &rope_of, &places, heads, x.view_mut());
            };
            run(RopeLayout::HalfSplit, &mut split);
            run(RopeLayout::Interleaved, &mut mixed);
            let (split, mixed) = (split.bits(), mixed.bits());
            for (at, bits) in split.iter().enumerate() {
                let (head, j) = (at / width * width, at % width);
                assert_eq!(*bits, mixed[head + interleaved(j, half)], "half {half} [{at}]");
            }
        }
    }
}

#[test]
fn a_nan_or_infinity_stays_in_its_pair() {
    for layout in LAYOUTS {
        for half in [1, 8, 19] {
            let angles = Angles::new(3, half);
            let (heads, width) = (2, 2 * half + 2);
            for cpu in Cpu::all() {
                for at in 0..heads * width {
                    for poison in [f32::NAN, f32::INFINITY] {
                        let mut x = vec![0.5; heads * width];
                        x[at] = poison;
                        let y = MatMut::new(&mut x, 1, heads * width);
                        rope(cpu, Par::SERIAL, &angles.rope(layout), &[2], heads, y);
                        let pair = |j: usize| match layout {
                            RopeLayout::HalfSplit => j % width % half.max(1),
                            _ => j % width / 2,
                        };
                        for (j, x) in x.iter().enumerate() {
                            let same_pair = j / width == at / width
                                && [j, at].iter().all(|j| j % width < 2 * half)
                                && pair(j) == pair(at);
                            assert_eq!(!x.is_finite(), same_pair || j == at, "{layout:?} {at} {j}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_stride_and_thread_count_gives_the_same_bits() {
    let mut rng = Random::new(3);
    let (rows, heads, half) = (unless_emulated(300, 40), 3, 21);
    let cols = heads * (2 * half + 1);
    let angles = Angles::new(100, half);
    let places = positions(rows, 100, &mut rng);
    let x = Guarded::random(rows, cols, cols, 0, &mut rng);
    for (layout, (operation, _)) in LAYOUTS.into_iter().flat_map(|l| BOTH_WAYS.map(|w| (l, w))) {
        let run = |cpu, par: Par<'_>, stride, offset| {
            let mut y = Guarded::from_fn(rows, cols, stride, offset, |i, j| x.view().row(i)[j]);
            operation(cpu, par, &angles.rope(layout), &places, heads, y.view_mut());
            y.assert_intact("rope");
            y.bits()
        };
        let expected = run(Cpu::with_isa(Isa::Scalar).unwrap(), Par::SERIAL, cols, 0);
        for cpu in Cpu::all() {
            for threads in 1..=4 {
                let got = Team::new(threads).open(|par| run(cpu, par, cols + threads, threads % 3));
                assert!(got == expected, "{layout:?} {} {threads} threads", cpu.isa());
            }
        }
    }
}

/// The score of a query and a key depends on how far apart they are, not on where they stand.
#[test]
fn scores_depend_on_the_distance_alone() {
    let mut rng = Random::new(4);
    let half = 16;
    let angles = Angles::new(2000, half);
    for layout in LAYOUTS {
        let (q, k) = (rng.vec(2 * half), rng.vec(2 * half));
        let score = |m: u32, n: u32| -> f64 {
            let mut x = [q.clone(), k.clone()].concat();
            let both = MatMut::new(&mut x, 2, 2 * half);
            rope(Cpu::detect(), Par::SERIAL, &angles.rope(layout), &[m, n], 1, both);
            let (q, k) = x.split_at(2 * half);
            q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
        };
        for distance in [0, 1, 7, 100, 900] {
            let at_start = score(distance, 0);
            for shift in [1, 10, 555, 1000] {
                let shifted = score(distance + shift, shift);
                let bound = 2.0 * half as f64 * 8.0 * f64::powi(2.0, -24);
                assert!((shifted - at_start).abs() <= bound, "{distance} + {shift}");
            }
        }
        // And on the distance it does depend.
        assert!((score(3, 0) - score(4, 0)).abs() > 1e-3);
    }
}

#[test]
#[should_panic(expected = "position 5 of row 1 in tables of 5 positions")]
fn a_position_beyond_the_tables_is_refused() {
    let angles = Angles::new(5, 2);
    let mut x = [0.0; 8];
    let x = MatMut::new(&mut x, 2, 4);
    rope(Cpu::detect(), Par::SERIAL, &angles.rope(RopeLayout::HalfSplit), &[4, 5], 1, x);
}

#[test]
#[should_panic(expected = "6 features turn in each of 2 heads of 10 columns")]
fn heads_narrower_than_what_turns_are_refused() {
    let angles = Angles::new(5, 3);
    let mut x = [0.0; 10];
    let x = MatMut::new(&mut x, 1, 10);
    rope(Cpu::detect(), Par::SERIAL, &angles.rope(RopeLayout::HalfSplit), &[0], 2, x);
}
