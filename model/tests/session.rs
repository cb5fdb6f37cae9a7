//! Sessions: what they refuse, how much they take, and that they can be shared out.

#[path = "support/tiny.rs"]
mod tiny;

use headrow::{Batch, Error, Head, Model, Normalization, Pooling, Session, SessionOptions};
use std::sync::Arc;
use tiny::{D, POSITIONS, Tiny, V, sequences};

fn model() -> Arc<Model> {
    Arc::new(Tiny::new("bert").model().unwrap())
}

fn small(model: &Arc<Model>) -> Session {
    let options = SessionOptions::default().with_max_tokens(40).with_max_sequences(3);
    Session::new(model, &options.with_threads(1)).unwrap()
}

#[test]
fn a_batch_that_cannot_be_run_is_refused_with_its_place() {
    let mut session = small(&model());
    let ids = sequences(1, &[40]);
    let mut far = ids.clone();
    far[7] = V as u32;
    let mut last = ids.clone();
    last[39] = u32::MAX;
    let zeros = [0u32; 40];
    let mut types = zeros;
    types[31] = 2;
    type Case<'a> = (&'static str, Batch<'a>);
    let cases: [Case<'_>; 13] = [
        (
            "sequence 1, token 2: id 50 is not below the vocabulary's 50",
            Batch::ragged(&far, &[5, 34, 1]),
        ),
        ("sequence 2, token 29: id 4294967295", Batch::ragged(&last, &[5, 5, 30])),
        (
            "sequence 1, token 1: token type 2 of a model with 2",
            Batch::ragged(&ids, &[30, 10]).with_token_types(&types),
        ),
        ("sequence 1 has no tokens", Batch::ragged(&ids, &[20, 0, 20])),
        ("sequence 0 has no tokens", Batch::one(&[])),
        ("sequence 0 has 35 tokens, the limit is 34", Batch::ragged(&ids, &[35, 5])),
        ("sequence 1 has 35 tokens, the limit is 34", Batch::ragged(&ids, &[5, 35])),
        ("ids: 40 given, the lengths of the sequences add up to 39", Batch::ragged(&ids, &[9, 30])),
        ("add up to 18446744073709551615", Batch::ragged(&ids, &[40, usize::MAX])),
        ("token types: 39 given", Batch::ragged(&ids, &[20, 20]).with_token_types(&zeros[1..])),
        ("the batch has 4 sequences, the session was made for 3", Batch::ragged(&ids, &[10; 4])),
        ("the batch has 41 tokens, the session was made for 40", Batch::one(&[5; 41])),
        ("ids: 40 given, the lengths of the sequences add up to 0", Batch::ragged(&ids, &[])),
    ];
    for (expected, batch) in cases {
        let mut hidden = vec![7.0; batch.ids().len() * D];
        let error = session.encode(&batch, &mut hidden).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}, expected {expected}");
        assert!(hidden.iter().all(|&x| x == 7.0), "{expected}: the buffer was written");
    }
}

#[test]
fn buffers_of_the_wrong_length_are_refused() {
    let mut session = small(&model());
    let ids = sequences(2, &[6]);
    for len in [0, 1, 6 * D - 1, 6 * D + 1] {
        let error = session.encode(&Batch::one(&ids), &mut vec![0.0; len]).unwrap_err();
        assert!(
            matches!(error, Error::Buffer { expected, actual, .. } if expected == 6 * D && actual == len)
        );
    }
    for head in [Head::Pooler, Head::MaskedLm, Head::Pooled(Pooling::Mean, Normalization::L2)] {
        let error = session.predict(&Batch::one(&ids), head, &mut [0.0; 5]).unwrap_err();
        assert!(matches!(error, Error::Buffer { what, .. } if what == head.name()));
    }
}

#[test]
fn a_head_without_weights_is_refused() {
    let mut session = small(&model());
    let ids = sequences(3, &[6]);
    for head in [Head::SequenceClassifier, Head::TokenTagger] {
        assert!(!session.model().has(head));
        let error = session.predict(&Batch::one(&ids), head, &mut [0.0; 5]).unwrap_err();
        assert!(matches!(error, Error::NoHead { .. }), "{error}");
    }
}

#[test]
fn an_empty_batch_is_no_work() {
    let mut session = small(&model());
    let batch = Batch::ragged(&[], &[]);
    session.encode(&batch, &mut []).unwrap();
    session.predict(&batch, Head::Pooler, &mut []).unwrap();
    session.predict(&batch, Head::MaskedLm, &mut []).unwrap();
}

#[test]
fn the_longest_batch_of_every_shape_fits() {
    let model = model();
    let longest = POSITIONS;
    for (tokens, sequences_max) in [(1, 1), (2, 2), (longest, 1), (70, 3), (70, 70), (3, 50)] {
        let options = SessionOptions::default()
            .with_max_tokens(tokens)
            .with_max_sequences(sequences_max)
            .with_threads(2);
        let mut session = Session::new(&model, &options).unwrap();
        let shapes = [
            vec![1; tokens.min(sequences_max)],
            (0..tokens).step_by(longest).map(|at| longest.min(tokens - at)).collect(),
        ];
        for lengths in shapes.iter().filter(|lengths| lengths.len() <= sequences_max) {
            let ids = sequences(4, lengths);
            let batch = Batch::ragged(&ids, lengths);
            session.encode(&batch, &mut vec![0.0; ids.len() * D]).unwrap();
            for head in [Head::Pooler, Head::MaskedLm, Head::NextSentence] {
                let (rows, cols) = model.output_shape(head, ids.len(), lengths.len()).unwrap();
                session.predict(&batch, head, &mut vec![0.0; rows * cols]).unwrap();
            }
        }
    }
}

#[test]
fn every_batch_up_to_the_limit_has_scratch_enough() {
    // Block sizes change with the shape, so smaller is not simply less.
    let model = model();
    let mut session = small(&model);
    for tokens in 1..=POSITIONS {
        let ids = sequences(5, &[tokens]);
        session.encode(&Batch::one(&ids), &mut vec![0.0; tokens * D]).unwrap();
        session.predict(&Batch::one(&ids), Head::MaskedLm, &mut vec![0.0; tokens * V]).unwrap();
    }
}

#[test]
fn a_cap_on_memory_is_kept() {
    let model = model();
    let options = SessionOptions::default().with_max_tokens(100).with_max_sequences(8);
    let options = options.with_threads(1);
    let need = model.memory_bound(&options).unwrap();
    Session::new(&model, &options.clone().with_memory_cap(need)).unwrap();
    let error = Session::new(&model, &options.with_memory_cap(need - 1)).unwrap_err();
    assert!(matches!(error, Error::MemoryCap { need: n, cap } if n == need && cap == need - 1));
}

fn sizes(sequences: usize, tokens: usize, threads: usize) -> SessionOptions {
    let options = SessionOptions::default().with_max_sequences(sequences);
    options.with_max_tokens(tokens).with_threads(threads)
}

#[test]
fn absurd_sizes_are_refused_without_allocating() {
    let model = model();
    for tokens in [1 << 45, usize::MAX / 2, usize::MAX] {
        let options = SessionOptions::default().with_max_tokens(tokens).with_threads(1);
        assert!(matches!(Session::new(&model, &options), Err(Error::OutOfMemory(_))));
    }
    let bound = |sequences, tokens| model.memory_bound(&sizes(sequences, tokens, 1));
    assert!(matches!(bound(1, usize::MAX), Err(Error::OutOfMemory(_))));
    assert_eq!(bound(usize::MAX, 1).unwrap(), bound(1, 1).unwrap());
}

#[test]
fn more_of_anything_never_needs_less_memory() {
    let model = model();
    let bound = |s, t, n| model.memory_bound(&sizes(s, t, n)).unwrap();
    let mut last = 0;
    for tokens in [0, 1, 2, 7, 40, 64, 65, 500, 5000] {
        let now = bound(1, tokens, 1);
        assert!(now >= last, "{tokens} tokens");
        assert!(bound(2, tokens, 1) >= now && bound(1, tokens, 2) >= now);
        last = now;
    }
}

#[test]
fn models_are_shared_and_sessions_sent() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Model>();
    sent::<Session>();
    let model = model();
    let ids = sequences(6, &[20]);
    let run = |model: &Arc<Model>| {
        let mut hidden = vec![0.0; 20 * D];
        small(model).encode(&Batch::one(&ids), &mut hidden).unwrap();
        hidden
    };
    let expected = run(&model);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| run(&model))).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), expected);
        }
    });
}

#[test]
fn a_pool_of_the_callers_serves_several_sessions() {
    let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap());
    let model = model();
    let options = SessionOptions::default().with_pool(Arc::clone(&pool)).with_threads(3);
    let mut first = Session::new(&model, &options).unwrap();
    let mut second = Session::new(&model, &options).unwrap();
    assert_eq!((first.threads(), second.threads()), (3, 3));
    let ids = sequences(7, &[33]);
    let (mut a, mut b) = (vec![0.0; 33 * D], vec![1.0; 33 * D]);
    for _ in 0..50 {
        first.encode(&Batch::one(&ids), &mut a).unwrap();
        second.encode(&Batch::one(&ids), &mut b).unwrap();
        assert_eq!(a, b);
    }
}

#[test]
fn warming_up_changes_nothing_but_the_first_time() {
    let model = model();
    let ids = sequences(8, &[10]);
    let (mut warm, mut cold) = (vec![0.0; 10 * D], vec![1.0; 10 * D]);
    let mut session = small(&model);
    session.warm_up().unwrap();
    session.encode(&Batch::one(&ids), &mut warm).unwrap();
    small(&model).encode(&Batch::one(&ids), &mut cold).unwrap();
    assert_eq!(warm, cold);
    let nothing = SessionOptions::default().with_max_tokens(0);
    Session::new(&model, &nothing).unwrap().warm_up().unwrap();
}
