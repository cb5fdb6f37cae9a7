//! Transformer(XP) = Transformer(X)P.

use super::definition::{Definition, Matrix};
use super::{Random, bits, dimensions, largest, sequence, transformer};
use headrow::theory::column::{Dimensions, Transformer};
use headrow::theory::symmetry::{equivariant_bound, orbit, permutations, symmetrized};
use headrow::theory::{Columns, SequenceMap};

/// How far Transformer(XP) and Transformer(X)P may differ: N(n + 16)·u of the largest entry, u = 2⁻²⁴. Scores are the same bits, since each
/// is a chain over features; only the two sums over the n keys run in another order, and (n + 16)·u is what a sum of n weighted values
/// may lose to first order. What the other maps of these blocks make of it is of the same size: no case here reaches a third of this.
fn bound(map: &Transformer, y: &Columns) -> f32 {
    let u = f32::EPSILON / 2.0;
    map.dimensions().blocks as f32 * (y.n() + 16) as f32 * u * largest(y).max(1.0)
}

fn equivariant(map: &Transformer, x: &Columns, y: &Columns, order: &[usize]) {
    let found = map.forward(&x.permuted(order)).unwrap();
    let difference = found.differences(&y.permuted(order)).fold(0.0, f32::max);
    let bound = bound(map, y);
    assert!(difference <= bound, "{:?}, {order:?}: {difference} > {bound}", map.dimensions());
}

#[test]
fn tokens_in_another_order_give_the_same_tokens_in_that_order() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let dimensions = dimensions(&mut random);
        let map = transformer(dimensions, &mut random);
        let n = 1 + random.below(40);
        let x = sequence(&mut random, dimensions.d, n);
        let y = map.forward(&x).unwrap();
        let mut order: Vec<usize> = (0..n).collect();
        (1..n).for_each(|i| order.swap(i, random.below(i + 1)));
        equivariant(&map, &x, &y, &order);
        let exact = Definition::of(&map);
        let (x, y) = (Matrix::of(&x), exact.forward(&Matrix::of(&x)));
        let distance = exact.forward(&x.permuted(&order)).distance(&y.permuted(&order));
        assert!(distance < 1e-10, "the definition itself: {distance}");
    }
}

#[test]
fn every_permutation_of_up_to_6_tokens_is_one_of_the_result() {
    for n in 1..=6 {
        let mut random = Random(n as u64);
        let dimensions = Dimensions::new(4).with_heads(3, 2).with_hidden(7).with_blocks(2);
        let map = transformer(dimensions, &mut random);
        let x = sequence(&mut random, 4, n);
        let y = map.forward(&x).unwrap();
        let orders = permutations(n);
        assert_eq!(orders.len(), (1..=n).product::<usize>());
        for order in &orders {
            equivariant(&map, &x, &y, order);
        }
    }
}

#[test]
fn tokens_alike_stay_alike_and_a_map_of_one_token_has_no_order() {
    let mut random = Random(3);
    let map = transformer(dimensions(&mut random), &mut random);
    let d = map.dimensions().d;
    let x = sequence(&mut random, d, 4).permuted(&[0, 1, 2, 1, 3]);
    let y = map.forward(&x).unwrap();
    assert_eq!(y.column(1), y.column(3));
    let x = sequence(&mut random, d, 1);
    let y = map.forward(&x).unwrap();
    assert_eq!(bits(&map.forward(&x.permuted(&[0])).unwrap()), bits(&y));
}

#[test]
fn all_orders_are_there_once() {
    for n in 0..=5 {
        let mut orders = permutations(n);
        let count = orders.len();
        orders.sort();
        orders.dedup();
        assert_eq!((orders.len(), count), ((1..=n).product(), (1..=n).product()));
        for order in orders {
            let mut sorted = order;
            sorted.sort();
            assert_eq!(sorted, (0..n).collect::<Vec<_>>());
        }
    }
}

fn reversed(x: &Columns) -> Columns {
    x.permuted(&(0..x.n()).rev().collect::<Vec<_>>())
}

#[test]
fn the_symmetrised_map_of_reversal_has_the_mean_of_the_others() {
    // With n even no token stays, and each goes to the places of all others equally often.
    let mut random = Random(8);
    let x = sequence(&mut random, 2, 4);
    let found = symmetrized(reversed, &x);
    for j in 0..4 {
        for i in 0..2 {
            let others = (0..4).filter(|&k| k != j).map(|k| x.column(k)[i]).sum::<f32>() / 3.0;
            assert!((found.column(j)[i] - others).abs() < 1e-6);
        }
    }
    // It is equivariant, and what it misses is the bound.
    let mut sum = 0.0;
    for (order, x) in permutations(4).iter().zip(orbit(&x)) {
        let here = symmetrized(reversed, &x);
        assert!(here.differences(&found.permuted(order)).fold(0.0, f32::max) < 1e-6);
        sum += here.differences(&reversed(&x)).map(|e| f64::from(e).powi(2)).sum::<f64>();
    }
    let bound = equivariant_bound(reversed, &x);
    assert!((sum / (24.0 * 8.0) - bound).abs() < 1e-6 * bound, "{sum} {bound}");
}

#[test]
fn nothing_is_lost_of_a_map_that_is_equivariant() {
    let mut random = Random(9);
    let map = transformer(Dimensions::new(2), &mut random);
    let x = sequence(&mut random, 2, 4);
    let f = |x: &Columns| map.forward(x).unwrap();
    assert!(equivariant_bound(f, &x) < 1e-12);
    assert!(symmetrized(f, &x).differences(&f(&x)).fold(0.0, f32::max) < 1e-5);
}
