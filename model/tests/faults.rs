//! Faults around a session: an allocator that refuses, and panics in the caller's code. A refusal is an error and no
//! abort; after either the session goes on as if nothing had been.

#[path = "support/general.rs"]
mod general;
#[path = "support/random_models.rs"]
mod random_models;
#[path = "support/refusing.rs"]
mod refusing;
#[path = "support/tiny.rs"]
mod tiny;

use headrow::generate::{
    Beam, Callbacks, EarlyStopping, Generated, GenerationOptions, Prompt, Sampling, Strategy,
    TokenStream,
};
use headrow::{Batch, Chunk, Error, Head, Output, Result, Sequence, Session, SessionOptions, Side};
use headrow_kernels::Mat;
use random_models::{LONGEST, Seeded, V, begin};
use refusing::{Refused, refusing};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use tiny::{D, FAMILIES, Tiny, sequences};

fn sizes() -> SessionOptions {
    SessionOptions::default().with_threads(1).with_max_sequences(8).with_max_length(LONGEST)
}

fn models() -> Vec<Seeded> {
    let decoders = (0..2).map(Seeded::gpt2).chain((0..6).map(Seeded::decoder));
    decoders.chain((0..6).map(Seeded::seq2seq)).chain((0..12).map(Seeded::general)).collect()
}

/// A model whose passes are worth helpers.
fn wide() -> Seeded {
    let json = serde_json::json!({
        "model_type": "gpt2", "vocab_size": V, "n_embd": 96, "n_layer": 2, "n_head": 4,
        "n_inner": 384, "n_positions": LONGEST,
    });
    Seeded::from_json(&json, 1)
}

/// Refuses each request of `attempt` in turn, alone and with all that follow: an error every time, and `check` holds after
/// it. Returns how many requests there are.
fn refuse_each<T>(
    label: &str,
    mut attempt: impl FnMut() -> Result<T>,
    mut check: impl FnMut(&str),
) -> usize {
    let (result, requests) = refusing(Refused::None, &mut attempt);
    assert!(result.is_ok(), "{label}");
    drop(result);
    for number in 0..requests {
        for refused in [Refused::Only(number), Refused::From(number)] {
            let (result, _) = refusing(refused, &mut attempt);
            let label = format!("{label}: {refused:?} of {requests}");
            let error = result.err().unwrap_or_else(|| panic!("{label}: no error"));
            assert!(matches!(error, Error::OutOfMemory(_)), "{label}: {error:?}");
            assert!(error.to_string().len() > "no memory for ".len());
            check(&label);
        }
    }
    requests
}

#[test]
fn a_session_without_memory_is_an_error() {
    for family in FAMILIES {
        let model = std::sync::Arc::new(Tiny::new(family).model().unwrap());
        let requests = refuse_each(family, || Session::new(&model, &sizes()), |_| {});
        assert!(requests > 0);
    }
    for seeded in models() {
        let (model, sizes) = (seeded.model(), sizes().with_max_tokens(40));
        let requests = refuse_each(&seeded.label, || Session::new(&model, &sizes), |_| {});
        assert!(requests > 10, "{requests}");
    }
}

/// Ways to decode that together need all there is, and the text of a token: letters, some of them in two bytes.
fn decodings() -> Vec<GenerationOptions> {
    let strategies: [Strategy; 4] = [
        Strategy::Greedy,
        Sampling::new(3).with_top_p(0.9).into(),
        Beam::new(3).with_n_best(2).into(),
        Beam::new(2).with_early_stopping(EarlyStopping::Never).into(),
    ];
    let options = |strategy| {
        GenerationOptions::default()
            .with_strategy(strategy)
            .with_max_new_tokens(9usize)
            .with_log_probabilities(2usize)
            .with_stop_strings(["qqqq".to_owned(), "zz".to_owned()])
            .with_bad_words([vec![5, 6], vec![7]])
            .with_suppressed([9])
            .with_repetition_penalty(1.1)
    };
    strategies.into_iter().map(options).collect()
}

fn text(_: &[u32], token: u32, bytes: &mut Vec<u8>) {
    let letters = [b'a' + (token % 26) as u8, 0xc3, 0xa4];
    bytes.extend_from_slice(if token.is_multiple_of(3) { &letters } else { &letters[..1] });
}

/// Decodes two requests, from sources where the model has an encoder.
fn decode(
    session: &mut Session,
    options: &GenerationOptions,
    hooks: &mut Callbacks<'_>,
) -> Result<Vec<Generated>> {
    match session.model().config().encoder {
        Some(_) => {
            let sources = Batch::ragged(&[7, 8, 9, 10, 11], &[2, 3]);
            session.generate_from(&sources, options, hooks)
        }
        None => session.generate(&[&[3, 4, 5], &[6]], options, hooks),
    }
}

#[test]
fn a_generation_without_memory_is_an_error_and_leaves_nothing_behind() {
    for seeded in models() {
        let mut session = Session::new(&seeded.model(), &sizes()).unwrap();
        let free = (session.free_sequences(), session.free_tokens());
        for options in decodings() {
            let label = format!("{}, {:?}", seeded.label, options.strategy);
            let decoded = |session: &mut Session| {
                decode(session, &options, &mut Callbacks::new().with_detokenizer(text)).unwrap()
            };
            let expected = decoded(&mut session);
            let session = std::cell::RefCell::new(&mut session);
            let mut hooks = Callbacks::new().with_detokenizer(text);
            refuse_each(
                &label,
                || decode(&mut session.borrow_mut(), &options, &mut hooks),
                |label| {
                    let mut session = session.borrow_mut();
                    let left = (session.free_sequences(), session.free_tokens());
                    assert_eq!(left, free, "{label}");
                    assert_eq!(decoded(&mut session), expected, "{label}");
                },
            );
        }
    }
}

/// Streams one request to its end; the tokens' ids and texts, as one number each.
fn stream(session: &mut Session, sequence: Sequence, logits: &mut [f32]) -> Result<Generated> {
    let mut generator = session.generator()?;
    let prompt = [3, 4];
    session.extend(&[Chunk::new(sequence, &prompt)], Output::LastLogits, logits)?;
    let prompt = Prompt::new(sequence, &prompt, logits);
    let options = GenerationOptions::default().with_max_new_tokens(12usize);
    let hooks = Callbacks::default();
    let mut stream = TokenStream::new(&mut generator, session, prompt, &options, hooks)?;
    match stream.find_map(Result::err) {
        Some(error) => Err(error),
        None => stream.finish(),
    }
}

#[test]
fn other_calls_without_memory_are_errors() {
    for seeded in models() {
        let mut session = Session::new(&seeded.model(), &sizes()).unwrap();
        let session = std::cell::RefCell::new(&mut session);
        let free = |session: &Session| (session.free_sequences(), session.free_tokens());
        let before = free(&session.borrow());
        let same = |label: &str| assert_eq!(free(&session.borrow()), before, "{label}");
        refuse_each(&seeded.label, || session.borrow_mut().warm_up(), same);
        refuse_each(&seeded.label, || session.borrow().generator(), same);
        let mut logits = [0.0; V];
        refuse_each(
            &seeded.label,
            || {
                let mut session = session.borrow_mut();
                let sequence = begin(&mut session, &[7; 9])?;
                let streamed = stream(&mut session, sequence, &mut logits);
                // A stream that never began leaves the sequence to its caller.
                let _ = session.remove(sequence);
                streamed
            },
            same,
        );
        // What a life of sequences asks for is nothing: nothing can be refused.
        let mut session = session.borrow_mut();
        let sequence = begin(&mut session, &[7; 9]).unwrap();
        let (lived, requests) = refusing(Refused::From(0), || {
            session.extend(&[Chunk::new(sequence, &[5; 70])], Output::LastLogits, &mut logits)?;
            let fork = session.fork(sequence)?;
            let chunks = [Chunk::new(sequence, &[6]), Chunk::new(fork, &[7, 8])];
            session.extend(&chunks, Output::None, &mut [])?;
            session.truncate(sequence, 3)?;
            session.remove(fork)
        });
        assert!(lived.is_ok() && requests == 0, "{}: {requests}, {lived:?}", seeded.label);
    }
}

#[test]
fn an_encoder_needs_no_memory_for_a_call() {
    for family in FAMILIES {
        let model = std::sync::Arc::new(Tiny::new(family).model().unwrap());
        let session = std::cell::RefCell::new(Session::new(&model, &sizes()).unwrap());
        refuse_each(family, || session.borrow_mut().warm_up(), |_| {});
        let mut session = session.into_inner();
        let ids = sequences(1, &[9, 4]);
        let batch = Batch::ragged(&ids, &[9, 4]);
        let (mut hidden, mut scores) = (vec![0.0; 13 * D], vec![0.0; 13 * tiny::V]);
        let (encoded, requests) = refusing(Refused::From(0), || {
            session.encode(&batch, &mut hidden)?;
            session.predict(&batch, Head::MaskedLm, &mut scores)
        });
        assert!(encoded.is_ok() && requests == 0, "{family}: {requests}, {encoded:?}");
    }
}

/// The caller's mistake.
fn panic() {
    resume_unwind(Box::new("the caller's"));
}

fn caught<T>(call: impl FnOnce() -> T) {
    let panic = catch_unwind(AssertUnwindSafe(call)).err().expect("a panic");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"the caller's"));
}

/// Hooks that panic in their call number `at` of one kind.
fn panicking(kind: usize, at: usize) -> Callbacks<'static> {
    let count = |mine: usize| {
        let mut calls = 0;
        move || {
            calls += 1;
            if kind == mine && calls > at {
                panic();
            }
        }
    };
    let (mut processor, mut detokenizer, mut progress) = (count(0), count(1), count(2));
    Callbacks::new()
        .with_processor(move |_: &[u32], _: &mut [f32]| processor())
        .with_detokenizer(move |before: &[u32], token, bytes: &mut Vec<u8>| {
            detokenizer();
            text(before, token, bytes);
        })
        .with_progress(move |_| {
            progress();
            ControlFlow::Continue(())
        })
}

#[test]
fn a_panic_of_a_hook_leaves_the_session_as_it_was() {
    for seeded in models().into_iter().chain([wide()]) {
        for threads in [1, 3] {
            let mut session =
                Session::new(&seeded.model(), &sizes().with_threads(threads)).unwrap();
            let free = (session.free_sequences(), session.free_tokens());
            for options in decodings() {
                let expected = decode(&mut session, &options, &mut panicking(3, 0)).unwrap();
                for (kind, at) in [(0, 0), (0, 7), (1, 0), (1, 5), (2, 0), (2, 3)] {
                    caught(|| decode(&mut session, &options, &mut panicking(kind, at)));
                    let label = format!("{}, {:?}, {kind}", seeded.label, options.strategy);
                    let left = (session.free_sequences(), session.free_tokens());
                    assert_eq!(left, free, "{label}");
                    let again = decode(&mut session, &options, &mut panicking(3, 0)).unwrap();
                    assert_eq!(again, expected, "{label}");
                }
            }
        }
    }
}

#[test]
fn a_panic_of_an_observer_leaves_lengths_and_pages_as_they_were() {
    for seeded in models().into_iter().chain([wide()]) {
        for threads in [1, 3] {
            let mut session =
                Session::new(&seeded.model(), &sizes().with_threads(threads)).unwrap();
            let sequence = begin(&mut session, &[7; 9]).unwrap();
            let ids = [5; 100];
            let chunks = [Chunk::new(sequence, &ids)];
            let (mut expected, mut again) = (vec![0.0; 100 * V], vec![0.0; 100 * V]);
            session.extend(&chunks, Output::AllLogits, &mut expected).unwrap();
            session.truncate(sequence, 0).unwrap();
            let free = session.free_tokens();
            for wanted in [0, 1] {
                let mut observer = |_: Side, layer: usize, _: Mat<'_>| {
                    if layer == wanted {
                        panic();
                    }
                };
                caught(|| session.extend_observed(&chunks, Output::None, &mut [], &mut observer));
                assert_eq!(session.length(sequence).unwrap(), 0);
                assert_eq!(session.free_tokens(), free, "{}", seeded.label);
                session.extend(&chunks, Output::AllLogits, &mut again).unwrap();
                assert_eq!(again, expected, "{}, {threads} threads", seeded.label);
                session.truncate(sequence, 0).unwrap();
            }
        }
    }
}

#[test]
fn what_a_panic_of_an_observer_took_along_may_be_refused_too() {
    for seeded in models() {
        let mut session = Session::new(&seeded.model(), &sizes()).unwrap();
        let sequence = begin(&mut session, &[7; 9]).unwrap();
        let chunks = [Chunk::new(sequence, &[5; 9])];
        let mut observer = |_: Side, _: usize, _: Mat<'_>| panic();
        let mut panicked = |session: &mut Session| {
            caught(|| session.extend_observed(&chunks, Output::None, &mut [], &mut observer));
        };
        panicked(&mut session);
        for number in 0..2 {
            let (extended, _) =
                refusing(Refused::From(number), || session.extend(&chunks, Output::None, &mut []));
            assert!(matches!(extended, Err(Error::OutOfMemory(_))), "{}", seeded.label);
            panicked(&mut session);
        }
        session.extend(&chunks, Output::None, &mut []).unwrap();
        assert_eq!(session.length(sequence).unwrap(), 9);
    }
}
