//! Tokens as they come: through an iterator and through a callback.

use crate::toy::Toy;
use headrow::Error;
use headrow::generate::{
    Beam, Callbacks, EarlyStopping, Finish, GenerationOptions, Generator, Limits, Prompt, Sampling,
    StepModel, Strategy, Token, TokenStream,
};
use std::ops::ControlFlow;

fn strategies() -> [Strategy; 3] {
    [Strategy::Greedy, Sampling::new(3).into(), Beam::new(3).into()]
}

fn options(strategy: Strategy) -> GenerationOptions {
    GenerationOptions::default()
        .with_strategy(strategy)
        .with_stop_ids([1])
        .with_max_new_tokens(8usize)
}

#[test]
fn a_stream_yields_the_tokens_of_the_result_in_order() {
    for strategy in [Strategy::Greedy, Sampling::new(3).into()] {
        for seed in 0..30 {
            let mut toy = Toy::new(9, seed, &[1]);
            let options = options(strategy.clone());
            let expected = toy.generate(&[2], &options, &mut ()).unwrap();
            let mut generator = Generator::new(Limits::new(9, 1, 64)).unwrap();
            let (sequence, logits) = toy.feed(&[2]);
            let prompt = Prompt::new(sequence, &[2], &logits);
            let mut stream =
                TokenStream::new(&mut generator, &mut toy, prompt, &options, ()).unwrap();
            let tokens: Vec<Token> = stream.by_ref().map(Result::unwrap).collect();
            assert!(stream.next().is_none());
            assert_eq!(stream.finish().unwrap(), expected);
            let best = expected.best();
            assert_eq!(tokens.iter().map(|t| t.id).collect::<Vec<_>>(), best.tokens);
            let p: Vec<f32> = tokens.iter().map(|t| t.log_probability).collect();
            assert_eq!(p, best.log_probabilities);
            let (last, others) = tokens.split_last().unwrap();
            assert_eq!(last.finish, Some(best.finish));
            assert!(others.iter().all(|token| token.finish.is_none()));
            assert_eq!(toy.live(), 0);
        }
    }
}

#[test]
fn a_stream_of_a_beam_shows_the_leader_and_ends_with_the_best() {
    for seed in 0..30 {
        let mut toy = Toy::new(9, seed, &[1]);
        let beam = Beam::new(3).with_n_best(3).with_early_stopping(EarlyStopping::Never);
        let options = options(beam.into());
        let expected = toy.generate(&[2], &options, &mut ()).unwrap();
        let mut generator = Generator::new(Limits::new(9, 3, 64)).unwrap();
        let (sequence, logits) = toy.feed(&[2]);
        let prompt = Prompt::new(sequence, &[2], &logits);
        let mut lengths = Vec::new();
        let hooks = Callbacks::new().with_progress(|progress| {
            lengths.push((progress.tokens.len(), progress.finish));
            ControlFlow::Continue(())
        });
        let mut stream =
            TokenStream::new(&mut generator, &mut toy, prompt, &options, hooks).unwrap();
        let last = stream.by_ref().map(Result::unwrap).last().unwrap();
        let found = stream.finish().unwrap();
        assert_eq!(found, expected);
        assert_eq!(Some(&last.id), found.best().tokens.last());
        assert_eq!(last.finish, Some(found.best().finish));
        let (end, running) = lengths.split_last().unwrap();
        assert_eq!(*end, (found.best().tokens.len(), last.finish));
        assert!(running.iter().zip(1..).all(|(step, length)| *step == (length, None)));
    }
}

#[test]
fn the_first_token_comes_before_the_model_is_asked_again() {
    let mut toy = Toy::new(9, 1, &[]);
    let mut generator = Generator::new(Limits::new(9, 1, 64)).unwrap();
    let (sequence, logits) = toy.feed(&[2]);
    let prompt = Prompt::new(sequence, &[2], &logits);
    let options = options(Strategy::Greedy);
    let mut stream = TokenStream::new(&mut generator, &mut toy, prompt, &options, ()).unwrap();
    stream.next().unwrap().unwrap();
    drop(stream);
    assert_eq!((toy.steps, toy.live()), (0, 0));
}

#[test]
fn a_stream_that_is_dropped_or_finished_early_gives_everything_back() {
    for strategy in strategies() {
        let mut toy = Toy::new(9, 5, &[]);
        let mut generator = Generator::new(Limits::new(9, 3, 64)).unwrap();
        let options = options(strategy);
        for taken in 0..4 {
            let (sequence, logits) = toy.feed(&[2]);
            let prompt = Prompt::new(sequence, &[2], &logits);
            let mut stream =
                TokenStream::new(&mut generator, &mut toy, prompt, &options, ()).unwrap();
            assert!(stream.by_ref().take(taken).all(|token| token.is_ok()));
            if taken % 2 == 1 {
                let found = stream.finish().unwrap();
                assert_eq!(found.best().tokens.len(), taken);
                assert_eq!(found.best().finish, Finish::Interrupted);
            } else {
                drop(stream);
            }
            assert_eq!((generator.running(), toy.live()), (0, 0));
        }
    }
}

#[test]
fn a_stream_wants_a_generator_for_itself_and_says_what_the_model_said() {
    let mut toy = Toy::new(9, 1, &[]);
    let mut generator = Generator::new(Limits::new(9, 2, 64)).unwrap();
    let options = options(Strategy::Greedy);
    toy.add(&mut generator, &[3], &options, &mut ()).unwrap();
    let (sequence, logits) = toy.feed(&[2]);
    let prompt = Prompt::new(sequence, &[2], &logits);
    let refused = TokenStream::new(&mut generator, &mut toy, prompt, &options, ());
    assert!(matches!(refused.err(), Some(Error::Busy)));
    toy.release(sequence);
    generator.clear(&mut toy);

    let (sequence, logits) = toy.feed(&[2]);
    toy.failing_step = Some(0);
    let prompt = Prompt::new(sequence, &[2], &logits);
    let mut stream = TokenStream::new(&mut generator, &mut toy, prompt, &options, ()).unwrap();
    assert!(stream.next().unwrap().is_ok());
    assert!(matches!(stream.next(), Some(Err(Error::Busy))));
    assert!(stream.next().is_none());
    assert_eq!(stream.finish().unwrap().best().tokens.len(), 1);

    let mut broken = Toy::fixed(&[f32::NAN; 9]);
    let (sequence, logits) = broken.feed(&[2]);
    let prompt = Prompt::new(sequence, &[2], &logits);
    let mut stream = TokenStream::new(&mut generator, &mut broken, prompt, &options, ()).unwrap();
    assert!(matches!(stream.next(), Some(Err(Error::InvalidLogit { .. }))));
    assert!(stream.next().is_none());
}

#[test]
fn a_callback_ends_its_request_and_no_other() {
    for strategy in strategies() {
        let mut toy = Toy::new(9, 7, &[]);
        let mut generator = Generator::new(Limits::new(9, 16, 64)).unwrap();
        let mut hooks = Callbacks::new().with_progress(|progress| {
            match progress.request == 1 && progress.tokens.len() == 3 {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        for prompt in [[1], [2], [3]] {
            let options = options(strategy.clone()).with_stop_ids([]);
            toy.add(&mut generator, &prompt, &options, &mut hooks).unwrap();
        }
        generator.run(&mut toy, &mut hooks).unwrap();
        for (request, length) in [8, 3, 8].into_iter().enumerate() {
            let found = generator.take(request).unwrap().unwrap();
            let interrupted = found.best().finish == Finish::Interrupted;
            assert_eq!((found.best().tokens.len(), interrupted), (length, length == 3));
        }
        assert_eq!(toy.live(), 0);
    }
}

#[test]
fn an_interrupted_beam_answers_with_its_best_so_far() {
    let mut toy = Toy::new(9, 7, &[]);
    let beam = Beam::new(4).with_n_best(4);
    let mut best = Vec::new();
    let mut hooks = Callbacks::new().with_progress(|progress| {
        best = progress.tokens.to_vec();
        if best.len() == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let options = options(beam.into()).with_stop_ids([]);
    let found = toy.generate(&[2], &options, &mut hooks).unwrap();
    drop(hooks);
    assert_eq!(found.hypotheses.len(), 4);
    assert_eq!(found.best().tokens, best);
    assert!(found.hypotheses.is_sorted_by(|a, b| a.score >= b.score));
}
