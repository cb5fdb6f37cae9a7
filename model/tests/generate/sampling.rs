//! Sampling against its definition.

use crate::toy::{Random, Toy};
use headrow::generate::{GenerationOptions, Sampling, Strategy};

const DRAWS: usize = 4000;

/// How often each token of a fixed prediction is drawn.
fn counts(logits: &[f32], sampling: Sampling) -> Vec<usize> {
    let options = GenerationOptions::default().with_strategy(sampling).with_max_new_tokens(DRAWS);
    let mut counts = vec![0; logits.len()];
    for token in Toy::fixed(logits).tokens(&[0], &options) {
        counts[token as usize] += 1;
    }
    counts
}

/// The probabilities that the definition gives: f64, a full sort, one rule after another.
fn probabilities(logits: &[f32], sampling: Sampling) -> Vec<f64> {
    let temperature = f64::from(sampling.temperature);
    let mut p: Vec<f64> = logits.iter().map(|&x| (f64::from(x) / temperature).exp()).collect();
    let mut ranks: Vec<usize> = (0..p.len()).collect();
    ranks.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if sampling.top_k > 0 {
        ranks.truncate(sampling.top_k);
    }
    let total: f64 = ranks.iter().map(|&i| p[i]).sum();
    if sampling.top_p < 1.0 {
        let mut sum = 0.0;
        let mut crossed = false;
        ranks.retain(|&i| {
            let keep = !crossed;
            sum += p[i] / total;
            crossed |= sum >= f64::from(sampling.top_p);
            keep
        });
    }
    let best = p[ranks[0]];
    ranks.retain(|&i| p[i] / best >= f64::from(sampling.min_p));
    let total: f64 = ranks.iter().map(|&i| p[i]).sum();
    for (i, p) in p.iter_mut().enumerate() {
        *p = if ranks.contains(&i) { *p / total } else { 0.0 };
    }
    p
}

fn assert_follows(logits: &[f32], sampling: Sampling) {
    let (counts, p) = (counts(logits, sampling), probabilities(logits, sampling));
    for (i, (&count, p)) in counts.iter().zip(p).enumerate() {
        let (mean, deviation) = (DRAWS as f64 * p, (DRAWS as f64 * p * (1.0 - p)).sqrt());
        // A certain or an impossible token has no deviation: the count is exact.
        let off = (count as f64 - mean).abs();
        assert!(off <= 4.5 * deviation, "token {i} of {sampling:?}: {count}, not {mean}");
    }
}

#[test]
fn tokens_come_as_often_as_the_definition_says() {
    let mut random = Random(1);
    for seed in 0..60 {
        let n = 2 + random.below(90);
        let logits: Vec<f32> = (0..n).map(|_| random.below(2000) as f32 / 300.0 - 3.0).collect();
        let sampling = Sampling::new(seed)
            .with_temperature(random.pick(&[0.3, 0.7, 1.0, 1.9]))
            .with_top_k(random.pick(&[0, 0, 1, 2, 5, 70]))
            .with_top_p(random.pick(&[1.0, 1.0, 0.2, 0.63, 0.97]))
            .with_min_p(random.pick(&[0.0, 0.0, 0.013, 0.3]));
        assert_follows(&logits, sampling);
    }
}

#[test]
fn equally_likely_tokens_are_kept_from_the_lowest_id_up() {
    let logits = [0.0, 2.0, 0.0, 2.0, 2.0, 0.0];
    let drawn = |sampling| -> Vec<bool> {
        counts(&logits, sampling).into_iter().map(|count| count > 0).collect()
    };
    let sampling = Sampling::new(9);
    assert_eq!(drawn(sampling.with_top_k(2)), [false, true, false, true, false, false]);
    assert_eq!(drawn(sampling.with_top_k(4)), [true, true, false, true, true, false]);
    assert_eq!(drawn(sampling.with_top_p(0.5)), [false, true, false, true, false, false]);
    assert_eq!(drawn(sampling.with_min_p(1.0)), [false, true, false, true, true, false]);
}

#[test]
fn the_token_that_reaches_top_p_is_kept_and_one_always_is() {
    // Probabilities 1/2, 1/4, 1/4 exactly.
    let logits = [0.0, 1.0, 0.0].map(|x: f32| x * std::f32::consts::LN_2);
    let kept = |top_p| {
        counts(&logits, Sampling::new(2).with_top_p(top_p)).into_iter().filter(|&c| c > 0).count()
    };
    for (top_p, expected) in
        [(-1.0, 1), (0.0, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (1.0, 3), (7.0, 3)]
    {
        assert_eq!(kept(top_p), expected, "top_p {top_p}");
    }
}

#[test]
fn a_wide_nucleus_is_found_in_a_large_vocabulary() {
    // 5000 almost equal tokens: top-p alone keeps thousands, more than are ranked at first.
    let logits: Vec<f32> = (0..5000).map(|i| -1e-6 * i as f32).collect();
    let counts = counts(&logits, Sampling::new(4).with_top_p(0.5));
    let last = counts.iter().rposition(|&count| count > 0).unwrap();
    assert!((2400..2500).contains(&last), "{last}");
}

#[test]
fn temperature_zero_is_greedy_and_extreme_ones_are_no_accident() {
    for seed in 0..20 {
        let mut toy = Toy::new(50, seed, &[]);
        let options = GenerationOptions::default().with_max_new_tokens(30usize);
        let greedy = toy.tokens(&[1], &options);
        for temperature in [0.0, -0.0, 1e-45, 1e-30] {
            let sampling = Sampling::new(seed).with_temperature(temperature);
            assert_eq!(toy.tokens(&[1], &options.clone().with_strategy(sampling)), greedy);
        }
    }
    // So hot that all tokens are equally likely.
    let hot = Sampling::new(6).with_temperature(f32::MAX);
    let counts = counts(&[-100.0, 0.0, 30.0, 7.0], hot);
    assert!(counts.iter().all(|&count| (850..1150).contains(&count)), "{counts:?}");
}

#[test]
fn rules_that_cut_nothing_off_change_no_draw() {
    for seed in 0..20 {
        let mut toy = Toy::new(40, seed, &[]);
        let options = GenerationOptions::default().with_max_new_tokens(60usize);
        let mut drawn = |sampling: Sampling| {
            toy.tokens(&[1], &options.clone().with_strategy(Strategy::Sample(sampling)))
        };
        let plain = Sampling::new(seed);
        let expected = drawn(plain);
        for same in [
            plain.with_top_k(40),
            plain.with_top_k(1000),
            plain.with_top_p(1.5),
            plain.with_top_p(0.999_999_9),
            plain.with_min_p(1e-9),
        ] {
            assert_eq!(drawn(same), expected, "{same:?}");
        }
        assert_ne!(drawn(Sampling::new(seed + 1)), expected, "another seed draws other tokens");
    }
}
