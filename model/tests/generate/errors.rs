//! Everything that can go wrong, and that nothing is broken afterwards.

use crate::toy::Toy;
use headrow::Error;
use headrow::generate::{
    Beam, Callbacks, GenerationOptions, Generator, LengthPenalty, Limits, Prompt, Sampling,
    Strategy,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn strategies() -> [Strategy; 3] {
    [Strategy::Greedy, Sampling::new(3).into(), Beam::new(3).into()]
}

#[test]
fn every_option_out_of_its_range_is_named() {
    let options = GenerationOptions::default;
    let sampling = Sampling::new(0);
    let beam = Beam::new(2);
    let nan = f32::NAN;
    let marian = |normalize, word_penalty| LengthPenalty::Marian { normalize, word_penalty };
    for (field, refused) in [
        ("repetition_penalty", options().with_repetition_penalty(0.0)),
        ("repetition_penalty", options().with_repetition_penalty(nan)),
        ("repetition_penalty", options().with_repetition_penalty(f32::INFINITY)),
        ("max_new_tokens", options().with_max_new_tokens(0usize)),
        ("max_length", options().with_max_length(2usize)),
        ("stop_strings", options().with_stop_strings(["".to_owned()])),
        ("stop_strings", options().with_stop_strings(["x".to_owned()])),
        ("bad_words", options().with_bad_words([vec![]])),
        ("bad_words", options().with_bad_words([vec![1, 8]])),
        ("forced_first", options().with_forced_first(8u32)),
        ("forced_last", options().with_forced_last(8u32)),
        ("temperature", options().with_strategy(sampling.with_temperature(-1.0))),
        ("temperature", options().with_strategy(sampling.with_temperature(nan))),
        ("temperature", options().with_strategy(sampling.with_temperature(f32::INFINITY))),
        ("top_p", options().with_strategy(sampling.with_top_p(nan))),
        ("min_p", options().with_strategy(sampling.with_min_p(-0.1))),
        ("min_p", options().with_strategy(sampling.with_min_p(1.5))),
        ("min_p", options().with_strategy(sampling.with_min_p(nan))),
        ("beam.size", options().with_strategy(Beam::new(0))),
        ("beam.n_best", options().with_strategy(beam.with_n_best(0))),
        ("beam.n_best", options().with_strategy(beam.with_n_best(3))),
        (
            "length_penalty.alpha",
            options()
                .with_strategy(beam.with_length_penalty(LengthPenalty::Gnmt { alpha: f64::NAN })),
        ),
        (
            "length_penalty.normalize",
            options().with_strategy(beam.with_length_penalty(marian(f64::INFINITY, 0.0))),
        ),
        (
            "length_penalty.word_penalty",
            options().with_strategy(beam.with_length_penalty(marian(0.0, f64::NAN))),
        ),
    ] {
        match Toy::new(8, 1, &[]).generate(&[1, 2], &refused, &mut ()) {
            Err(Error::GenerationOption { field: named, .. }) => assert_eq!(named, field),
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn a_generator_refuses_what_it_has_no_room_for() {
    let mut toy = Toy::new(8, 1, &[]);
    let mut generator = Generator::new(Limits::new(8, 4, 10)).unwrap();
    let options = GenerationOptions::default();
    let refused = toy.add(&mut generator, &[], &options, &mut ());
    assert!(matches!(refused, Err(Error::EmptySequence { sequence: 0 })), "{refused:?}");
    let refused = toy.add(&mut generator, &[0; 10], &options, &mut ());
    assert!(matches!(refused, Err(Error::SequenceTooLong { tokens: 10, maximum: 9, .. })));
    toy.add(&mut generator, &[0; 7], &options.clone().with_strategy(Beam::new(3)), &mut ())
        .unwrap();
    let refused =
        toy.add(&mut generator, &[0], &options.clone().with_strategy(Beam::new(2)), &mut ());
    assert!(matches!(refused, Err(Error::BatchTooLarge { actual: 5, maximum: 4, .. })));
    toy.add(&mut generator, &[0; 9], &options, &mut ()).unwrap();
    generator.run(&mut toy, &mut ()).unwrap();
    assert_eq!(generator.take(0).unwrap().unwrap().best().tokens.len(), 3);
    assert_eq!(generator.take(1).unwrap().unwrap().best().tokens.len(), 1);
    assert_eq!(toy.live(), 0);
}

#[test]
fn no_number_of_logits_is_too_large_to_be_refused() {
    for limits in [Limits::new(1 << 40, 1 << 40, 8), Limits::new(1 << 50, 1, 8)] {
        let refused = Generator::<usize>::new(limits);
        assert!(matches!(refused, Err(Error::OutOfMemory(_))));
    }
}

#[test]
fn logits_that_are_no_numbers_end_their_request_alone() {
    for strategy in strategies() {
        for flaw in [f32::NAN, f32::INFINITY] {
            let options = GenerationOptions::default()
                .with_strategy(strategy.clone())
                .with_max_new_tokens(6usize);
            let mut toy = Toy::new(8, 1, &[]);
            let mut generator = Generator::new(Limits::new(8, 16, 64)).unwrap();
            // The processor stands for a model that goes wrong at the third token of request 1.
            let mut hooks =
                Callbacks::new().with_processor(|tokens: &[u32], logits: &mut [f32]| {
                    if tokens[0] == 7 && tokens.len() == 4 {
                        logits[5] = flaw;
                    }
                });
            toy.add(&mut generator, &[6, 1], &options, &mut hooks).unwrap();
            toy.add(&mut generator, &[7, 1], &options, &mut hooks).unwrap();
            generator.run(&mut toy, &mut hooks).unwrap();
            assert_eq!(generator.take(0).unwrap().unwrap().best().tokens.len(), 6);
            match generator.take(1).unwrap() {
                Err(Error::InvalidLogit { sequence: 1, step: 2, id: 5, value }) => {
                    assert_eq!(value.to_bits(), flaw.to_bits());
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(toy.live(), 0);
            // The same from the model itself.
            let found = Toy::fixed(&[0.0, flaw, 1.0]).generate(&[0], &options, &mut ());
            assert!(matches!(found, Err(Error::InvalidLogit { step: 0, id: 1, .. })), "{found:?}");
        }
    }
}

#[test]
fn a_request_without_a_possible_token_is_an_error() {
    for strategy in strategies() {
        let options = GenerationOptions::default().with_strategy(strategy);
        let refused = Toy::new(3, 1, &[]).generate(
            &[0],
            &options.clone().with_suppressed([0, 1, 2]),
            &mut (),
        );
        assert!(matches!(refused, Err(Error::NoToken { sequence: 0, step: 0 })), "{refused:?}");
        let refused = Toy::fixed(&[f32::NEG_INFINITY; 3]).generate(&[0], &options, &mut ());
        assert!(matches!(refused, Err(Error::NoToken { step: 0, .. })), "{refused:?}");
        // All tokens are used up after three.
        let once = options.with_no_repeat_ngram(1usize);
        let refused = Toy::new(4, 1, &[]).generate(&[0], &once, &mut ());
        assert!(matches!(refused, Err(Error::NoToken { step: 3, .. })), "{refused:?}");
    }
}

#[test]
fn a_model_without_room_for_a_fork_ends_the_request() {
    let mut toy = Toy::new(8, 1, &[]);
    toy.refuses_forks = true;
    let options = GenerationOptions::default().with_max_new_tokens(6usize);
    let mut generator = Generator::new(Limits::new(8, 16, 64)).unwrap();
    toy.add(&mut generator, &[1], &options.clone().with_strategy(Beam::new(3)), &mut ()).unwrap();
    toy.add(&mut generator, &[1], &options, &mut ()).unwrap();
    generator.run(&mut toy, &mut ()).unwrap();
    assert!(matches!(generator.take(0), Some(Err(Error::OutOfMemory(_)))));
    assert!(generator.take(1).unwrap().is_ok());
    assert_eq!(toy.live(), 0);
}

#[test]
fn a_panic_in_the_callers_code_leaves_a_generator_that_can_be_cleared() {
    for strategy in strategies() {
        let options =
            GenerationOptions::default().with_strategy(strategy).with_max_new_tokens(9usize);
        let mut toy = Toy::new(8, 1, &[]);
        let mut generator = Generator::new(Limits::new(8, 16, 64)).unwrap();
        let mut calls = 0;
        let mut hooks = Callbacks::new().with_processor(|_: &[u32], _: &mut [f32]| {
            calls += 1;
            assert!(calls < 8, "enough");
        });
        for prompt in [[1, 2], [3, 4]] {
            toy.add(&mut generator, &prompt, &options, &mut hooks).unwrap();
        }
        let panicked =
            catch_unwind(AssertUnwindSafe(|| generator.run(&mut toy, &mut hooks))).is_err();
        assert!(panicked);
        drop(hooks);
        assert!(matches!(generator.step(&mut toy, &mut ()), Err(Error::Unfinished)));
        let refused = toy.add(&mut generator, &[1], &options, &mut ());
        assert!(matches!(refused, Err(Error::Unfinished)));
        generator.clear(&mut toy);
        assert_eq!(toy.live(), 0);
        toy.add(&mut generator, &[1, 2], &options, &mut ()).unwrap();
        generator.run(&mut toy, &mut ()).unwrap();
        let again = generator.take(0).unwrap().unwrap();
        assert_eq!(again, toy.generate(&[1, 2], &options, &mut ()).unwrap());
    }
}

#[test]
#[should_panic(expected = "logits of a vocabulary of another size")]
fn logits_of_another_size_are_a_bug() {
    let mut toy = Toy::new(8, 1, &[]);
    let (sequence, logits) = toy.feed(&[1]);
    let mut generator = Generator::new(Limits::new(9, 1, 64)).unwrap();
    let prompt = Prompt::new(sequence, &[1], &logits);
    let _ = generator.add(&mut toy, prompt, &GenerationOptions::default(), &mut ());
}
