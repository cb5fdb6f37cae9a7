//! Gradients of the mean squared error against central differences of the definition in f64; steps of learning.

use super::definition::{Definition, Matrix};
use super::{Random, dimensions, moved, sequence, transformer};
use headrow::Error;
use headrow::theory::yun::{FixedWidth, Positional};
use headrow::theory::{Columns, Fit, SequenceMap};
use headrow::train::{AdamOptions, Schedule};

/// Step of the differences, in f64.
const STEP: f64 = 1e-6;

/// Pairs (X, Y) of some lengths.
fn pairs(random: &mut Random, d: usize, lengths: &[usize]) -> Vec<(Columns, Columns)> {
    lengths.iter().map(|&n| (sequence(random, d, n), sequence(random, d, n))).collect()
}

/// The mean squared error by its definition.
fn error(definition: &Definition, pairs: &[(Columns, Columns)]) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for (x, y) in pairs {
        let (found, wanted) = (definition.forward(&Matrix::of(x)), Matrix::of(y));
        let entries = found.0.iter().flatten().zip(wanted.0.iter().flatten());
        sum += entries.map(|(x, y)| (x - y).powi(2)).sum::<f64>();
        count += y.values().len();
    }
    sum / count as f64
}

/// Compares every entry, in units of the largest.
fn compare(label: &str, map: &impl SequenceMap, pairs: &[(Columns, Columns)]) {
    let mut definition = Definition::of(map);
    let (found, gradient) = map.gradient(pairs).unwrap();
    let expected = error(&definition, pairs);
    assert!((found / expected - 1.0).abs() < 1e-5, "{label}: {found}, expected {expected}");
    assert_eq!(map.error(pairs).unwrap(), found);
    let unit = gradient.iter().fold(0.0f64, |most, g| most.max(f64::from(g.abs())));
    assert!(unit > 0.0 && unit.is_finite(), "{label}");
    let mut actual = gradient.iter();
    let names = map.tensors().map(|(name, _, values)| (name.to_owned(), values.len()));
    for (name, length) in names {
        for index in 0..length {
            definition.nudge(&name, index, STEP);
            let above = error(&definition, pairs);
            definition.nudge(&name, index, -2.0 * STEP);
            let below = error(&definition, pairs);
            definition.nudge(&name, index, STEP);
            let expected = (above - below) / (2.0 * STEP);
            let actual = f64::from(*actual.next().unwrap());
            let error = (actual - expected).abs() / unit;
            assert!(error < 5e-5, "{label}: {name}[{index}]: {actual}, expected {expected}");
        }
    }
    assert!(actual.next().is_none());
}

#[test]
fn gradients_are_the_differences_of_the_definition() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let dimensions = dimensions(&mut random);
        let map = transformer(dimensions, &mut random);
        let pairs = pairs(&mut random, dimensions.d, &[3, 1, 7]);
        compare(&format!("{dimensions:?}"), &map, &pairs);
    }
}

#[test]
fn query_biases_and_positions_have_gradients_too() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let (d, blocks) = (1 + random.below(5), 1 + random.below(4));
        let map = moved(FixedWidth::random(d, blocks, seed).unwrap(), &mut random);
        compare("T^{2,1,4}", &map, &pairs(&mut random, d, &[4, 2, 6]));
        let map = moved(Positional::random(d, 5, blocks, seed).unwrap(), &mut random);
        compare("with positions", &map, &pairs(&mut random, d, &[5, 5, 5]));
    }
}

fn fit<M: SequenceMap>(map: M) -> Fit<M> {
    let schedule = Schedule::Constant { rate: 1e-2, warmup: 0 };
    Fit::new(map, schedule, AdamOptions::default()).unwrap()
}

#[test]
fn the_first_step_goes_against_the_sign_of_the_gradient() {
    let mut random = Random(4);
    let map = moved(FixedWidth::random(2, 2, 1).unwrap(), &mut random);
    let pairs = pairs(&mut random, 2, &[3, 5]);
    let (error, gradient) = map.gradient(&pairs).unwrap();
    let before = map.parameters().to_vec();
    let mut fit = fit(map);
    assert_eq!(fit.step(&pairs).unwrap(), error);
    assert_eq!(fit.steps(), 1);
    let after = fit.map().parameters();
    for ((before, after), g) in before.iter().zip(after).zip(gradient) {
        let expected = if g == 0.0 { 0.0 } else { -1e-2 * g.signum() };
        assert!((after - before - expected).abs() < 1e-5, "{before} {after} {g}");
    }
}

#[test]
fn learning_has_the_same_bits_again_and_for_batches_of_other_sizes_between() {
    let learn = |between: bool| {
        let mut random = Random(6);
        let mut fit = fit(Positional::random(3, 4, 2, 5).unwrap());
        for count in [2, 5, 1] {
            let pairs = pairs(&mut random, 3, &vec![4; count]);
            if between {
                fit.map().error(&pairs).unwrap();
            }
            fit.step(&pairs).unwrap();
        }
        fit.into_map().parameters().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(learn(false), learn(true));
}

#[test]
fn errors_change_nothing() {
    let mut random = Random(7);
    let map = Positional::random(2, 3, 1, 1).unwrap();
    let before = map.parameters().to_vec();
    let good = pairs(&mut random, 2, &[3]);
    let mut fit = fit(map);
    let nan = (Columns::from_fn(2, 3, |_, _| f32::NAN), good[0].1.clone());
    assert!(matches!(fit.step(&[nan]), Err(Error::NotFinite { step: 1, .. })));
    let x = good[0].0.clone();
    let short = (x.clone(), sequence(&mut random, 2, 2));
    let message = fit.step(&[good[0].clone(), short]).unwrap_err().to_string();
    assert_eq!(message, "Y of pair 1 is 2×2, expected 2×3");
    let long = sequence(&mut random, 2, 4);
    let message = fit.step(&[(long.clone(), long)]).unwrap_err().to_string();
    assert_eq!(message, "X of pair 0 is 2×4, expected 2×3");
    assert!(matches!(fit.step(&[]), Err(Error::Dimensions { .. })));
    assert_eq!((fit.steps(), fit.map().parameters()), (0, &before[..]));
    assert!(fit.step(&good).is_ok());
    let bad = Schedule::Constant { rate: f64::NAN, warmup: 0 };
    let refused = Fit::new(fit.into_map(), bad, AdamOptions::default());
    assert!(matches!(refused, Err(Error::TrainingOption { .. })));
}
