//! A warmed decoding step allocates nothing, and sessions with decoders allocate what was computed before.

#[path = "support/counting.rs"]
mod counting;
#[path = "support/general.rs"]
mod general;
#[path = "support/random_models.rs"]
mod random_models;
#[path = "support/tiny.rs"]
mod tiny;

use counting::counted;
use headrow::generate::{Beam, EarlyStopping, GenerationOptions, Prompt, Sampling, Strategy};
use headrow::{Chunk, Error, Output, Session, SessionOptions};
use random_models::{LONGEST, Seeded, V, begin};

fn options() -> SessionOptions {
    SessionOptions::default().with_threads(1).with_max_sequences(8).with_max_length(LONGEST)
}

fn models() -> impl Iterator<Item = Seeded> {
    let decoders = (0..2).map(Seeded::gpt2).chain((0..8).map(Seeded::decoder));
    decoders.chain((0..6).map(Seeded::seq2seq)).chain((0..20).map(Seeded::general))
}

#[test]
fn a_warmed_step_allocates_nothing() {
    let sampling = Sampling::new(3);
    let strategies: [Strategy; 4] = [
        Strategy::Greedy,
        sampling.with_top_k(9).into(),
        sampling.with_top_p(0.9).with_min_p(0.01).into(),
        Beam::new(4).with_early_stopping(EarlyStopping::Never).into(),
    ];
    for seeded in models() {
        let model = seeded.model();
        let mut session = Session::new(&model, &options().with_cache_tokens(16 * 64)).unwrap();
        session.warm_up().unwrap();
        let mut generator = session.generator().unwrap();
        for strategy in &strategies {
            let options = GenerationOptions::default().with_strategy(strategy.clone());
            let options = options.with_max_new_tokens(80usize).with_log_probabilities(2usize);
            let (sequence, mut logits) = (begin(&mut session, &[7; 9]).unwrap(), [0.0; V]);
            let prompt = [3, 4, 5];
            let chunk = Chunk::new(sequence, &prompt);
            session.extend(&[chunk], Output::LastLogits, &mut logits).unwrap();
            let prompt = Prompt::new(sequence, &prompt, &logits);
            generator.add(&mut session, prompt, &options, &mut ()).unwrap();
        }
        // Steps over the border of a page, with forks, copies of pages and new pages.
        let ((), calls, ..) = counted(|| {
            for _ in 0..78 {
                assert_eq!(generator.step(&mut session, &mut ()).unwrap(), strategies.len());
            }
        });
        assert_eq!(calls, 0, "{}", seeded.label);
    }
}

#[test]
fn a_life_of_sequences_allocates_nothing() {
    for seeded in models() {
        let mut session = Session::new(&seeded.model(), &options()).unwrap();
        session.warm_up().unwrap();
        let first = begin(&mut session, &[7; 9]).unwrap();
        let mut logits = [0.0; 90 * V];
        let ((), calls, ..) = counted(|| {
            let prompt = [5; 90];
            session.extend(&[Chunk::new(first, &prompt)], Output::AllLogits, &mut logits).unwrap();
            let fork = session.fork(first).unwrap();
            session.truncate(first, 64).unwrap();
            let chunks = [Chunk::new(first, &prompt[..3]), Chunk::new(fork, &prompt[..1])];
            session.extend(&chunks, Output::LastLogits, &mut logits[..2 * V]).unwrap();
            session.remove(fork).unwrap();
            assert!(session.extend(&chunks, Output::None, &mut []).is_err());
        });
        assert_eq!(calls, 0, "{}", seeded.label);
    }
}

#[test]
fn absurd_sizes_are_refused_without_allocating() {
    for seeded in models() {
        let model = seeded.model();
        for size in [1 << 43, 1 << 50, usize::MAX / 2, usize::MAX] {
            let mut absurd = vec![
                options().with_max_tokens(size).with_max_sequences(size),
                options().with_cache_tokens(size),
            ];
            if seeded.config.encoder.is_some() {
                absurd.push(options().with_source_tokens(size));
            }
            for options in absurd {
                let refused = Session::new(&model, &options).map(|_| ());
                assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{options:?}: {refused:?}");
            }
            if seeded.config.max_length() == LONGEST {
                let bound = |length| model.memory_bound(&options().with_max_length(length));
                assert_eq!(bound(size).unwrap(), bound(LONGEST).unwrap());
            }
        }
    }
}

#[test]
fn a_session_allocates_what_was_computed_before() {
    for seeded in models() {
        let model = seeded.model();
        for options in [
            options(),
            options().with_max_tokens(1),
            options().with_max_sequences(1).with_max_length(20),
            options().with_max_tokens(300).with_max_sequences(100).with_cache_tokens(5000),
            options().with_max_tokens(40).with_source_tokens(3000).with_threads(4),
        ] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
            let options = match options.threads {
                Some(1) => options,
                _ => options.with_pool(std::sync::Arc::new(pool)),
            };
            let (session, _, kept, peak) = counted(|| Session::new(&model, &options).unwrap());
            let bound = model.memory_bound(&options).unwrap();
            assert!(peak <= bound, "{}: a peak of {peak} over {bound}", seeded.label);
            assert!(kept + 4096 >= bound, "{}: {kept} of {bound}", seeded.label);
            drop(session);
        }
    }
}
