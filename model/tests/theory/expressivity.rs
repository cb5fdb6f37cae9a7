//! What T^{2,1,4} learns, and what it cannot without positions: small versions of `examples/expressivity.rs`.

use super::{Random, moved, sequence};
use headrow::theory::symmetry::{equivariant_bound, orbit};
use headrow::theory::yun::{FixedWidth, Positional};
use headrow::theory::{Columns, Fit, SequenceMap};
use headrow::train::{AdamOptions, Schedule};

const D: usize = 2;
/// n.
const N: usize = 3;
const BLOCKS: usize = 2;
const STEPS: u64 = 1500;

type Pairs = Vec<(Columns, Columns)>;

/// All orders of some sequences, with what f has for them, and the least error of an equivariant map there.
fn closed(f: fn(&Columns) -> Columns) -> (Pairs, f64) {
    let mut random = Random(1);
    let bases: Vec<Columns> = (0..8).map(|_| sequence(&mut random, D, N)).collect();
    let bound = bases.iter().map(|x| equivariant_bound(f, x)).sum::<f64>() / bases.len() as f64;
    let pairs = bases.iter().flat_map(orbit).map(|x| (x.clone(), f(&x))).collect();
    (pairs, bound)
}

/// The error on `closed` pairs after learning from others.
fn learn<M: SequenceMap>(map: M, f: fn(&Columns) -> Columns, closed: &Pairs) -> f64 {
    let schedule = Schedule::Cosine { rate: 1e-2, floor: 0.0, warmup: 50, total: STEPS };
    let mut fit = Fit::new(map, schedule, AdamOptions::default()).unwrap();
    let mut random = Random(2);
    for _ in 0..STEPS {
        let inputs = (0..16).map(|_| sequence(&mut random, D, N));
        let pairs: Pairs = inputs.map(|x| (x.clone(), f(&x))).collect();
        fit.step(&pairs).unwrap();
    }
    fit.map().error(closed).unwrap()
}

/// How far each number is from the mean of its row: equivariant.
fn deviation(x: &Columns) -> Columns {
    let mean = |i: usize| (0..x.n()).map(|j| x.column(j)[i]).sum::<f32>() / x.n() as f32;
    Columns::from_fn(x.d(), x.n(), |i, j| (x.column(j)[i] - mean(i)).abs())
}

/// x_1, −x_2, x_3, −x_4 …: depends on the place.
fn alternating(x: &Columns) -> Columns {
    Columns::from_fn(x.d(), x.n(), |i, j| if j % 2 == 0 { 1.0 } else { -1.0 } * x.column(j)[i])
}

#[test]
fn the_plain_class_learns_an_equivariant_map() {
    let (pairs, bound) = closed(deviation);
    assert!(bound < 1e-12, "nothing is in the way");
    let before = FixedWidth::random(D, BLOCKS, 1).unwrap().error(&pairs).unwrap();
    let after = learn(FixedWidth::random(D, BLOCKS, 1).unwrap(), deviation, &pairs);
    assert!(after < 2e-3 && after < before / 50.0, "{before}, then {after}");
}

#[test]
fn only_positions_get_below_the_bound_of_equivariant_maps() {
    let (pairs, bound) = closed(alternating);
    let plain = learn(FixedWidth::random(D, BLOCKS, 1).unwrap(), alternating, &pairs);
    // Equivariant but for rounding, which is far below what is compared.
    assert!(plain >= bound * (1.0 - 1e-5), "{plain} is below the bound {bound}");
    assert!(plain < 1.1 * bound, "{plain} does not come near the bound {bound}");
    let positional = Positional::random(D, N, BLOCKS, 1).unwrap();
    let positional = learn(positional, alternating, &pairs);
    assert!(positional < bound / 10.0, "{positional}, the bound is {bound}");
}

#[test]
fn no_member_of_the_plain_class_is_below_the_bound() {
    let (pairs, bound) = closed(alternating);
    for seed in 0..100 {
        let mut random = Random(seed);
        let blocks = 1 + random.below(4);
        let map = moved(FixedWidth::random(D, blocks, seed).unwrap(), &mut random);
        let error = map.error(&pairs).unwrap();
        assert!(error >= bound * (1.0 - 1e-5), "{error} is below the bound {bound}");
    }
}
