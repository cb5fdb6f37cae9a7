//! What sessions refuse, and that it leaves them as they were.

use crate::generation::generate;
use crate::random_models::{LONGEST, Seeded, V, begin};
use crate::tiny::{Tiny, file};
use crate::{Random, SOURCE, decoders, fresh, options, session, to_bits, tokens};
use headrow::generate::{Beam, Callbacks, GenerationOptions, Sampling, Strategy};
use headrow::{
    Batch, Cancel, Chunk, Error, Input, Mat, Model, Output, Positions, Sequence, Session,
    SessionOptions, Side,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A session whose one sequence has read some tokens, and what follows them.
struct Begun {
    session: Session,
    sequence: Sequence,
    expected: Vec<u32>,
}

const NEXT: [u32; 3] = [7, 8, 9];

impl Begun {
    fn new(seeded: &Seeded, options: &SessionOptions) -> Begun {
        let model = seeded.model();
        let past = tokens(&mut Random(5), 60);
        let all: Vec<u32> = past.iter().chain(&NEXT).copied().collect();
        let expected = fresh(&mut session(&model), &all, Output::LastLogits);
        let mut session = Session::new(&model, options).unwrap();
        let sequence = begin(&mut session, &SOURCE).unwrap();
        session.extend(&[Chunk::new(sequence, &past)], Output::None, &mut []).unwrap();
        Begun { session, sequence, expected }
    }

    /// Its sequence goes on as if nothing had happened.
    fn is_whole(&mut self) {
        let Begun { session, sequence, expected } = self;
        assert_eq!(session.length(*sequence).unwrap(), 60);
        let mut logits = vec![f32::NAN; V];
        session.extend(&[Chunk::new(*sequence, &NEXT)], Output::LastLogits, &mut logits).unwrap();
        assert!(to_bits(&logits) == *expected);
        session.truncate(*sequence, 60).unwrap();
    }
}

#[test]
fn what_cannot_be_read_is_refused_with_its_place_and_changes_nothing() {
    for seeded in decoders().step_by(5) {
        let mut begun = Begun::new(&seeded, &options());
        let Begun { session, sequence, .. } = &mut begun;
        let (one, two) = (*sequence, begin(session, &SOURCE).unwrap());
        let gone = begin(session, &SOURCE).unwrap();
        session.remove(gone).unwrap();
        let long = [1; LONGEST];
        let chunk = Chunk::new;
        let cases: [(&[Chunk<'_>], &str); 9] = [
            (&[chunk(one, &[1, V as u32, 1])], "sequence 0, token 1: id 61"),
            (&[chunk(one, &[1]), chunk(two, &[u32::MAX])], "sequence 1, token 0: id 4294967295"),
            (&[chunk(one, &[1]), chunk(two, &[])], "sequence 1 has no tokens"),
            (&[chunk(one, &long[..91])], "sequence 0 has 151 tokens, the limit is 150"),
            (&[chunk(two, &[1; LONGEST + 1])], "sequence 0 has 151 tokens, the limit is 150"),
            (&[chunk(one, &[1]), chunk(two, &[1]), chunk(one, &[1])], "chunk 2 extends a sequence"),
            (&[chunk(one, &[1]), chunk(gone, &[1])], "no such sequence"),
            (&[chunk(one, &[1]); 9], "the batch has 9 sequences, the session was made for 8"),
            (&[Chunk::vectors(one, &[0.0])], "the model reads tokens, not vectors"),
        ];
        for (chunks, expected) in cases {
            let mut out = vec![7.0; chunks.len() * V];
            let error = session.extend(chunks, Output::LastLogits, &mut out).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}, expected {expected}");
            assert!(out.iter().all(|&x| x == 7.0), "{expected}: the buffer was written");
        }
        for (output, right) in [
            (Output::None, 0),
            (Output::LastLogits, V),
            (Output::AllLogits, 2 * V),
            (Output::LastHidden, seeded.config.d_model),
            (Output::AllHidden, 2 * seeded.config.d_model),
        ] {
            for wrong in [right + 1, right.saturating_sub(1), 0] {
                let mut out = vec![7.0; wrong];
                match session.extend(&[chunk(one, &[1, 2])], output, &mut out) {
                    Ok(()) => {
                        assert_eq!(wrong, right);
                        session.truncate(one, 60).unwrap();
                    }
                    Err(Error::Buffer { expected, actual, .. }) => {
                        assert_eq!((expected, actual), (right, wrong));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        session.extend(&[], Output::LastLogits, &mut []).unwrap();
        begun.is_whole();
    }
}

#[test]
fn full_caches_are_an_error_before_anything_is_lost() {
    for seeded in decoders().step_by(5) {
        let mut begun = Begun::new(&seeded, &options().with_cache_tokens(3 * 64));
        let Begun { session, sequence, .. } = &mut begun;
        let (one, two) = (*sequence, begin(session, &SOURCE).unwrap());
        // The first chunk finds room, the second does not.
        let long = [1; 129];
        let chunks = [Chunk::new(one, &long[..10]), Chunk::new(two, &long)];
        let refused = session.extend(&chunks, Output::None, &mut []);
        assert!(matches!(refused, Err(Error::CacheFull { tokens: 192, free: 64 })), "{refused:?}");
        assert_eq!((session.length(two).unwrap(), session.free_tokens()), (0, 128));
        let fork = session.fork(one).unwrap();
        // A fork that goes on needs a page of its own.
        session.extend(&[Chunk::new(two, &long[..128])], Output::None, &mut []).unwrap();
        let refused = session.extend(&[Chunk::new(fork, &[1])], Output::None, &mut []);
        assert!(matches!(refused, Err(Error::CacheFull { tokens: 64, free: 0 })), "{refused:?}");
        session.remove(fork).unwrap();
        begun.is_whole();
        let prompts: [&[u32]; 2] = [&[1, 2], &[3]];
        let options = GenerationOptions::default().with_max_new_tokens(70usize);
        let refused = generate(&mut begun.session, &prompts, &options, &mut ());
        assert!(matches!(refused, Err(Error::CacheFull { .. })));
        assert_eq!(begun.session.free_sequences(), 16 - 2);
        begun.is_whole();
    }
}

#[test]
fn a_call_that_is_given_up_changes_nothing() {
    for seeded in decoders().step_by(5) {
        for threads in [1, 2] {
            let mut begun = Begun::new(&seeded, &options().with_threads(threads));
            let Begun { session, sequence, .. } = &mut begun;
            let prompt = [1u32; 80];
            let chunks = [Chunk::new(*sequence, &prompt)];
            let before = Cancel::new();
            before.cancel();
            for cancel in [before, Cancel::with_deadline(Instant::now())] {
                session.set_cancel(Some(cancel));
                let given_up = session.extend(&chunks, Output::AllLogits, &mut [0.0; 80 * V]);
                assert!(matches!(given_up, Err(Error::Cancelled)));
                let greedy = GenerationOptions::default();
                let given_up = generate(session, &[&prompt], &greedy, &mut ());
                assert!(matches!(given_up, Err(Error::Cancelled)));
                session.set_cancel(None);
            }
            // From inside a pass, behind its first layer.
            let during = Cancel::new();
            session.set_cancel(Some(during.clone()));
            let mut layers = 0;
            let mut stop = |_: Side, _: usize, _: Mat<'_>| {
                layers += 1;
                during.cancel();
            };
            let given_up = session.extend_observed(&chunks, Output::None, &mut [], &mut stop);
            assert!(matches!(given_up, Err(Error::Cancelled)));
            assert!(layers <= 2, "{layers} states of a pass that was given up at the first");
            session.set_cancel(None);
            begun.is_whole();
        }
    }
}

#[test]
fn another_thread_gives_a_call_up() {
    let seeded = Seeded::decoder(1);
    let mut begun = Begun::new(&seeded, &options().with_max_tokens(1));
    let cancel = Cancel::new();
    begun.session.set_cancel(Some(cancel.clone()));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            cancel.cancel();
        });
        let prompt = [3u32; 80];
        let chunks = [Chunk::new(begun.sequence, &prompt)];
        let given_up = loop {
            match begun.session.extend(&chunks, Output::None, &mut []) {
                Ok(()) => begun.session.truncate(begun.sequence, 60).unwrap(),
                Err(error) => break error,
            }
        };
        assert!(matches!(given_up, Error::Cancelled));
    });
    begun.session.set_cancel(None);
    begun.is_whole();
}

#[test]
fn a_panic_of_an_observer_leaves_a_session_that_goes_on() {
    for (seeded, threads) in decoders().step_by(5).zip([1, 2, 3].into_iter().cycle()) {
        let mut begun = Begun::new(&seeded, &options().with_threads(threads));
        let Begun { session, sequence, .. } = &mut begun;
        let fork = session.fork(*sequence).unwrap();
        let free = session.free_tokens();
        let prompt = [1; 80];
        for layer in 0..2 {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let mut observer = |_: Side, at: usize, _: Mat<'_>| assert!(at < layer, "enough");
                let chunks = [Chunk::new(*sequence, &prompt), Chunk::new(fork, &prompt[..2])];
                session.extend_observed(&chunks, Output::None, &mut [], &mut observer)
            }));
            assert!(panicked.is_err());
        }
        session.remove(fork).unwrap();
        begun.is_whole();
        // All pages but those of the 60 tokens are to be had again.
        assert!(begun.session.free_tokens() >= free, "{}", seeded.label);
    }
}

#[test]
fn a_panic_of_a_hook_leaves_no_sequence_behind() {
    let strategies = [Strategy::Greedy, Sampling::new(1).into(), Beam::new(3).into()];
    let models = [Seeded::decoder(2), Seeded::seq2seq(1)];
    for (seeded, strategy) in models.iter().flat_map(|m| strategies.iter().map(move |s| (m, s))) {
        let mut begun = Begun::new(seeded, &options());
        let options = GenerationOptions::default().with_strategy(strategy.clone());
        let options = options.with_max_new_tokens(6usize);
        let free = begun.session.free_tokens();
        for last in 0..6 {
            let mut calls = 0;
            let mut hooks = Callbacks::new().with_processor(|_: &[u32], _: &mut [f32]| {
                assert!(calls < last, "enough");
                calls += 1;
            });
            let prompts: [&[u32]; 3] = [&[1, 2], &[3], &[4, 5, 6]];
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                generate(&mut begun.session, &prompts, &options, &mut hooks)
            }));
            assert!(panicked.is_err());
            assert_eq!(begun.session.free_sequences(), 15, "after {last} calls");
        }
        begun.is_whole();
        assert_eq!(begun.session.free_tokens(), free);
    }
}

#[test]
fn weights_that_are_no_numbers_end_a_request_with_an_error() {
    let mut seeded = Seeded::gpt2(3);
    seeded.fill_row("wte.weight", 9, f32::NAN);
    let mut session = session(&seeded.model());
    for strategy in [Strategy::Greedy, Sampling::new(1).into(), Beam::new(3).into()] {
        let options = GenerationOptions::default().with_strategy(strategy);
        let refused = session.generate(&[&[1, 2]], &options, &mut ());
        assert!(matches!(refused, Err(Error::InvalidLogit { sequence: 0, step: 0, id: 9, .. })));
        assert_eq!(session.free_sequences(), 16);
    }
}

#[test]
fn requests_that_cannot_be_begun_are_refused() {
    let seeded = Seeded::gpt2(1);
    let mut begun = Begun::new(&seeded, &options());
    let greedy = GenerationOptions::default().with_max_new_tokens(2usize);
    let Begun { session, .. } = &mut begun;
    let long = [1; LONGEST];
    for (prompt, expected) in [
        (&[][..], "sequence 1 has no tokens"),
        (&[V as u32][..], "sequence 1, token 0: id 61 is not below the vocabulary's 61"),
        (&long[..], "sequence 1 has 150 tokens, the limit is 149"),
    ] {
        let error = session.generate(&[&[1], prompt], &greedy, &mut ()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}, expected {expected}");
        assert_eq!(session.free_sequences(), 15);
    }
    let wide = greedy.clone().with_strategy(Beam::new(9));
    let refused = session.generate(&[&[1]], &wide, &mut ());
    assert!(matches!(refused, Err(Error::BatchTooLarge { actual: 9, maximum: 8, .. })));
    assert!(session.generate(&[], &greedy, &mut ()).unwrap().is_empty());
    let refused = session.generate_from(&Batch::one(&[1]), &greedy, &mut ());
    assert!(matches!(refused, Err(Error::NoStack { stack: "encoder" })), "{refused:?}");
    let refused = session.encode(&Batch::one(&[1]), &mut []);
    assert!(matches!(refused, Err(Error::NoStack { stack: "encoder" })));
    let refused = session.add_sources(&Batch::one(&[1]));
    assert!(matches!(refused, Err(Error::NoStack { stack: "encoder" })));
    begun.is_whole();
}

#[test]
fn a_decoder_that_would_not_count_its_padding_is_refused() {
    let mut seeded = Seeded::gpt2(1);
    let Some(Input::Tokens(tokens)) = seeded.config.decoder.as_mut().map(|stack| &mut stack.input)
    else {
        panic!("GPT-2 reads tokens")
    };
    tokens.positions = Positions::Learned { rows: LONGEST, first: 2, padding: Some(1) };
    let refused = Model::from_bytes(&seeded.config, &file(&seeded.tensors)).map(|_| ());
    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
}

#[test]
fn an_encoder_remembers_no_sequences() {
    let model = Arc::new(Tiny::new("bert").model().unwrap());
    let mut session = Session::new(&model, &SessionOptions::default().with_threads(1)).unwrap();
    let no_decoder = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::NoStack { stack: "decoder" })), "{result:?}");
    };
    no_decoder(session.add().map(|_| ()));
    no_decoder(session.add_sources(&Batch::one(&[1])).map(|_| ()));
    no_decoder(session.extend(&[], Output::None, &mut []));
    assert!(matches!(session.generator().map(|_| ()), Err(Error::NoHead { .. })));
    assert_eq!((session.free_sequences(), session.free_tokens()), (0, 0));
}

#[test]
fn sources_that_find_no_room_leave_nothing_behind() {
    for seeded in (0..4).map(Seeded::seq2seq) {
        let mut begun = Begun::new(&seeded, &options().with_source_tokens(4 * 64));
        let Begun { session, .. } = &mut begun;
        assert!(matches!(session.add(), Err(Error::NoSource)));
        let refused = session.generate(&[&[1]], &GenerationOptions::default(), &mut ());
        assert!(matches!(refused, Err(Error::NoSource)));
        // The first has two of four pages; of three new ones the last finds none.
        let ids = [3; 9];
        let refused = session.add_sources(&Batch::ragged(&ids, &[3; 3]));
        assert!(matches!(refused, Err(Error::CacheFull { tokens: 64, free: 0 })), "{refused:?}");
        assert_eq!(session.free_sequences(), 15);
        let refused = session.add_sources(&Batch::ragged(&ids, &[5, 4, 0]));
        assert!(matches!(refused, Err(Error::EmptySequence { sequence: 2 })), "{refused:?}");
        session.set_cancel(Some(Cancel::with_deadline(Instant::now())));
        let refused = session.add_sources(&Batch::ragged(&ids, &[5, 4]));
        assert!(matches!(refused, Err(Error::Cancelled)), "{refused:?}");
        session.set_cancel(None);
        let added = session.add_sources(&Batch::ragged(&ids, &[5, 4])).unwrap();
        assert_eq!(session.free_sequences(), 13);
        for sequence in added {
            session.remove(sequence).unwrap();
        }
        begun.is_whole();
    }
}

#[test]
fn a_decoder_without_a_start_begins_with_what_the_options_say() {
    let mut seeded = Seeded::seq2seq(1);
    let mut known = session(&seeded.model());
    seeded.config.special.decoder_start = None;
    let mut unknown = session(&seeded.model());
    let greedy = GenerationOptions::default().with_max_new_tokens(5usize);
    let source = Batch::one(&[4, 5, 6]);
    let refused = unknown.generate_from(&source, &greedy, &mut ());
    assert!(matches!(refused, Err(Error::NoStart)));
    let started = greedy.clone().with_decoder_prompt([2]);
    let found = unknown.generate_from(&source, &started, &mut ()).unwrap();
    assert_eq!(found, known.generate_from(&source, &greedy, &mut ()).unwrap());
}
