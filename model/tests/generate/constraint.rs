//! What may not, or must, come next. (How the constraints combine in searches is recorded in `options.rs`.)

use crate::toy::{Random, Toy, log_softmax};
use headrow::generate::{Beam, Callbacks, GenerationOptions, Sampling, Strategy};

/// Each strategy once.
fn strategies() -> [Strategy; 3] {
    [Strategy::Greedy, Sampling::new(3).into(), Beam::new(3).into()]
}

#[test]
fn no_ngram_occurs_twice() {
    for strategy in strategies() {
        for n in 1..4usize {
            let options = GenerationOptions::default()
                .with_strategy(strategy.clone())
                .with_max_new_tokens(5usize)
                .with_no_repeat_ngram(n);
            for seed in 0..20 {
                let prompt = [3, 4, 3];
                let tokens = Toy::new(8, seed, &[]).tokens(&prompt, &options);
                let all = [&prompt[..], &tokens].concat();
                // The prompt may repeat itself.
                let generated = prompt.len().max(n)..=all.len();
                for end in generated {
                    let ngram = &all[end - n..end];
                    let earlier = all[..end - 1].windows(n).any(|other| other == ngram);
                    assert!(end == prompt.len() || !earlier, "{all:?}");
                }
            }
        }
    }
}

#[test]
fn suppressed_tokens_and_bad_words_do_not_come() {
    for strategy in strategies() {
        for seed in 0..20 {
            let mut toy = Toy::new(6, seed, &[]);
            let options = GenerationOptions::default()
                .with_strategy(strategy.clone())
                .with_max_new_tokens(12usize)
                .with_suppressed([2, 600])
                .with_suppressed_first([0, 1])
                .with_bad_words([vec![3], vec![4, 5], vec![5, 0, 4]]);
            let tokens = toy.tokens(&[4], &options);
            assert_eq!(tokens.len(), 12);
            let all = [&[4], &tokens[..]].concat();
            assert!(tokens.iter().all(|token| ![2, 3].contains(token)), "{tokens:?}");
            assert!(tokens[0] > 1, "{tokens:?}");
            assert!(!all.windows(2).any(|pair| pair == [4, 5]), "{all:?}");
            assert!(!all.windows(3).any(|three| three == [5, 0, 4]), "{all:?}");
        }
    }
}

#[test]
fn a_bad_word_of_a_stop_id_alone_is_none() {
    let mut toy = Toy::fixed(&[0.0, 3.0, 1.0]);
    let options = GenerationOptions::default().with_stop_ids([1]).with_bad_words([vec![1]]);
    assert_eq!(toy.tokens(&[0], &options), [1]);
}

#[test]
fn lengths_have_their_limits() {
    for strategy in strategies() {
        let options = GenerationOptions::default().with_strategy(strategy).with_stop_ids([1]);
        // Nothing but the stop id is likely.
        let mut toy = Toy::fixed(&[0.0, 9.0, 0.5]);
        assert_eq!(toy.tokens(&[0, 0], &options), [1]);
        let new = toy.tokens(&[0, 0], &options.clone().with_min_new_tokens(3usize));
        assert_eq!((new.len(), new[3]), (4, 1));
        let all = toy.tokens(&[0, 0], &options.clone().with_min_length(4usize));
        assert_eq!((all.len(), all[2]), (3, 1));
        // And here it never comes.
        let mut toy = Toy::fixed(&[0.0, f32::NEG_INFINITY, 0.5]);
        let most = options.clone().with_max_new_tokens(5usize).with_max_length(100usize);
        assert_eq!(toy.tokens(&[0, 0], &most).len(), 5);
        let most = options.with_max_new_tokens(50usize).with_max_length(6usize);
        assert_eq!(toy.tokens(&[0, 0], &most).len(), 4);
    }
}

#[test]
fn forced_tokens_come_first_and_last() {
    for strategy in strategies() {
        let options = GenerationOptions::default()
            .with_strategy(strategy)
            .with_stop_ids([1])
            .with_max_new_tokens(6usize)
            .with_min_new_tokens(6usize)
            .with_forced_first(4u32)
            .with_forced_last(1u32)
            .with_suppressed_first([0, 2, 3]);
        for seed in 0..10 {
            let tokens = Toy::new(6, seed, &[1]).tokens(&[0, 5], &options);
            assert_eq!((tokens.len(), tokens[0], tokens[5]), (6, 4, 1));
            assert!(![0, 2, 3].contains(&tokens[1]), "suppressed after the forced one");
        }
    }
}

#[test]
fn a_penalty_counts_each_token_once() {
    // 2 and −1 become 1 and −2, once, however often the prompt repeats them.
    let mut toy = Toy::fixed(&[2.0, 1.1, -1.0, -1.9]);
    let options = GenerationOptions::default()
        .with_repetition_penalty(2.0)
        .with_max_new_tokens(4usize)
        .with_log_probabilities(4usize);
    let found = toy.generate(&[0, 2, 0, 0, 2], &options, &mut ()).unwrap();
    // First 1.1 > 1; then 1.1 is 0.55 as well, and 1 is the largest.
    assert_eq!(found.best().tokens, [1, 0, 0, 0]);
    // What is reported is the model's own.
    let own = log_softmax(&[2.0, 1.1, -1.0, -1.9]);
    for top in &found.best().top {
        assert_eq!(top.iter().map(|score| score.token).collect::<Vec<_>>(), [0, 1, 2, 3]);
        for (score, own) in top.iter().zip(&own) {
            assert!((f64::from(score.log_probability) - own).abs() < 1e-6);
        }
    }
}

#[test]
fn a_processor_sees_all_tokens_and_decides() {
    let mut random = Random(1);
    for strategy in strategies() {
        let options =
            GenerationOptions::default().with_strategy(strategy).with_max_new_tokens(7usize);
        let prompt = [random.below(9) as u32, 2];
        // Only the token that follows the last one by number is let through.
        let mut hooks = Callbacks::new().with_processor(|tokens: &[u32], logits: &mut [f32]| {
            assert_eq!(tokens[..2], prompt);
            let next = (tokens[tokens.len() - 1] + 1) as usize % logits.len();
            for (token, x) in logits.iter_mut().enumerate() {
                if token != next {
                    *x = f32::NEG_INFINITY;
                }
            }
        });
        let found = Toy::new(9, 4, &[]).generate(&prompt, &options, &mut hooks).unwrap();
        assert_eq!(found.best().tokens, [3, 4, 5, 6, 7, 8, 0]);
    }
}
