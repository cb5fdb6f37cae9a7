//! Beam search.

use crate::toy::{Random, Toy, log_softmax};
use headrow::generate::{Beam, EarlyStopping, Finish, GenerationOptions, LengthPenalty, Strategy};

const STOP: u32 = 1;

fn options(beam: Beam, max_new_tokens: usize) -> GenerationOptions {
    GenerationOptions::default()
        .with_strategy(beam)
        .with_stop_ids([STOP])
        .with_max_new_tokens(max_new_tokens)
}

fn random_penalty(random: &mut Random) -> LengthPenalty {
    let alpha = random.pick(&[-1.5, -0.3, 0.0, 0.6, 1.0, 2.0]);
    match random.below(4) {
        0 => LengthPenalty::None,
        1 => LengthPenalty::Gnmt { alpha },
        2 => LengthPenalty::Average { alpha },
        _ => {
            let word_penalty = random.pick(&[-2.0, -0.4, 0.0, 0.3]);
            LengthPenalty::Marian { normalize: alpha, word_penalty }
        }
    }
}

/// All sequences that end with the stop token or have the most tokens, and their Σ ln p.
fn all_sequences(toy: &Toy, prompt: &[u32], most: usize) -> Vec<(Vec<u32>, f64)> {
    let (mut open, mut ended) = (vec![(Vec::new(), 0.0)], Vec::new());
    let mut row = vec![0.0; toy.vocabulary];
    while let Some((tokens, sum)) = open.pop() {
        if tokens.last() == Some(&STOP) || tokens.len() == most {
            ended.push((tokens, sum));
            continue;
        }
        toy.logits(&[prompt, &tokens].concat(), &mut row);
        for (token, log_probability) in (0..).zip(log_softmax(&row)) {
            let mut longer: Vec<u32> = tokens.clone();
            longer.push(token);
            open.push((longer, sum + log_probability));
        }
    }
    ended
}

#[test]
fn a_beam_that_is_wide_enough_finds_what_an_exhaustive_search_finds() {
    let mut random = Random(3);
    for seed in 0..12 {
        let mut toy = Toy::new(4, seed, &[STOP]);
        let length_penalty = random_penalty(&mut random);
        let mut all = all_sequences(&toy, &[2, 3], 4);
        let score = |entry: &(Vec<u32>, f64)| length_penalty.score(entry.1, entry.0.len());
        all.sort_by(|a, b| score(b).total_cmp(&score(a)));
        for early_stopping in [EarlyStopping::ByBound, EarlyStopping::Never] {
            let beam = Beam::new(128)
                .with_n_best(12)
                .with_length_penalty(length_penalty)
                .with_early_stopping(early_stopping);
            let found = toy.generate(&[2, 3], &options(beam, 4), &mut ()).unwrap();
            assert_eq!(found.hypotheses.len(), 12);
            for (hypothesis, best) in found.hypotheses.iter().zip(&all) {
                assert_eq!(hypothesis.tokens, best.0, "{seed} {length_penalty:?}");
                assert!((hypothesis.score - score(best)).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn a_beam_of_one_is_greedy_search() {
    for seed in 0..50 {
        let mut toy = Toy::new(20, seed, &[STOP]);
        let beam = options(Beam::new(1), 12);
        let greedy = beam.clone().with_strategy(Strategy::Greedy);
        let (beam, greedy) = (
            toy.generate(&[5], &beam, &mut ()).unwrap(),
            toy.generate(&[5], &greedy, &mut ()).unwrap(),
        );
        assert_eq!(beam.best().tokens, greedy.best().tokens);
        assert_eq!(beam.best().log_probabilities, greedy.best().log_probabilities);
        assert_eq!(beam.best().finish, greedy.best().finish);
    }
}

#[test]
fn stopping_by_bound_changes_no_answer() {
    let mut random = Random(11);
    let (mut bounded, mut full) = (0, 0);
    for seed in 0..300 {
        let mut toy = Toy::new(9, seed, &[STOP]);
        let size = 1 + random.below(5);
        let beam = Beam::new(size)
            .with_length_penalty(random_penalty(&mut random))
            .with_n_best(1 + random.below(size));
        let most = 2 + random.below(14);
        let by_bound = toy.generate(&[4], &options(beam, most), &mut ()).unwrap();
        bounded += std::mem::take(&mut toy.steps);
        let never = beam.with_early_stopping(EarlyStopping::Never);
        let never = toy.generate(&[4], &options(never, most), &mut ()).unwrap();
        full += toy.steps;
        assert_eq!(by_bound, never, "{seed} {beam:?}");
    }
    assert!(bounded < full * 9 / 10, "{bounded} steps of {full}");
}

#[test]
fn a_better_hypothesis_behind_the_first_complete_ones_is_found_by_bound_alone() {
    // Mean log-probabilities make long hypotheses better than short ones that end early.
    let (mut better, mut worse) = (0, 0);
    for seed in 0..200 {
        let mut toy = Toy::new(8, seed, &[STOP]);
        let beam = Beam::new(2).with_length_penalty(LengthPenalty::Average { alpha: 1.5 });
        let mut score = |early_stopping| {
            let options = options(beam.with_early_stopping(early_stopping), 15);
            toy.generate(&[3], &options, &mut ()).unwrap().best().score
        };
        let by_bound = score(EarlyStopping::ByBound);
        for other in [EarlyStopping::FirstComplete, EarlyStopping::Heuristic] {
            match score(other) {
                other if other < by_bound => better += 1,
                other if other > by_bound => worse += 1,
                _ => {}
            }
        }
    }
    assert_eq!(worse, 0);
    assert!(better > 50, "{better}");
}

#[test]
fn a_beam_needs_no_more_sequences_than_its_size() {
    for seed in 0..20 {
        let mut toy = Toy::new(30, seed, &[STOP]);
        toy.generate(&[3], &options(Beam::new(5), 20), &mut ()).unwrap();
        assert!(toy.most <= 5, "{}", toy.most);
    }
}

#[test]
fn scores_are_sums_with_the_penalty_and_answers_are_in_order() {
    for seed in 0..30 {
        let mut toy = Toy::new(12, seed, &[STOP]);
        let length_penalty = LengthPenalty::Gnmt { alpha: 0.6 };
        let beam = Beam::new(4).with_n_best(4).with_early_stopping(EarlyStopping::FirstComplete);
        let found = toy.generate(&[3, 7], &options(beam, 9), &mut ()).unwrap();
        assert_eq!(found.hypotheses.len(), 4);
        assert!(found.hypotheses.is_sorted_by(|a, b| a.score >= b.score));
        for hypothesis in &found.hypotheses {
            let sum: f64 = hypothesis.log_probabilities.iter().map(|&x| f64::from(x)).sum();
            let score = length_penalty.score(sum, hypothesis.tokens.len());
            assert_eq!(hypothesis.score, score);
            match hypothesis.finish {
                Finish::StopToken => {
                    assert_eq!(hypothesis.tokens.last(), Some(&STOP));
                    assert!(!hypothesis.content().contains(&STOP));
                }
                Finish::Length => assert_eq!(hypothesis.tokens.len(), 9),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_beam_over_few_tokens_is_as_wide_as_it_can_be() {
    // Three tokens, and five hypotheses are asked for: the first step has three, the second seven.
    let mut toy = Toy::new(3, 5, &[STOP]);
    let beam = Beam::new(5).with_n_best(5).with_early_stopping(EarlyStopping::Never);
    let found = toy.generate(&[2], &options(beam, 3), &mut ()).unwrap();
    assert_eq!(found.hypotheses.len(), 5);
    for (i, hypothesis) in found.hypotheses.iter().enumerate() {
        assert!(found.hypotheses[..i].iter().all(|other| other.tokens != hypothesis.tokens));
    }
}

#[test]
fn equally_likely_candidates_go_by_their_ids() {
    let mut toy = Toy::fixed(&[0.0; 6]);
    let beam = Beam::new(3).with_n_best(3);
    let found = toy.generate(&[0], &options(beam, 2).with_stop_ids([]), &mut ()).unwrap();
    let tokens: Vec<_> = found.hypotheses.iter().map(|h| h.tokens.clone()).collect();
    assert_eq!(tokens, [[0, 0], [0, 1], [0, 2]]);
}

#[test]
fn many_stop_ids_leave_a_full_beam() {
    // Half of the tokens end a sequence, and they are the likeliest.
    let stops: Vec<u32> = (0..8).collect();
    let mut toy = Toy::new(16, 2, &stops);
    let beam = Beam::new(3).with_n_best(3).with_early_stopping(EarlyStopping::Never);
    let all = options(beam, 8).with_stop_ids(stops);
    let mut widths = Vec::new();
    let mut count = headrow::generate::Callbacks::new().with_progress(|progress| {
        widths.push(progress.tokens.len());
        std::ops::ControlFlow::Continue(())
    });
    let found = toy.generate(&[9], &all, &mut count).unwrap();
    drop(count);
    assert_eq!(widths[..7], [1, 2, 3, 4, 5, 6, 7], "the beam lives to the end");
    assert_eq!(found.hypotheses.len(), 3);
}
