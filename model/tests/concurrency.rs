//! Many threads with sessions on one model, which they use, cancel, send and drop at random: every result has the
//! bits of a serial session that does nothing else.
//!
//! `HEADROW_SECONDS=60` goes on for so long instead of a fixed number of operations.

#[path = "support/general.rs"]
mod general;
#[path = "support/random_models.rs"]
mod random_models;
#[path = "support/tiny.rs"]
mod tiny;

use headrow::generate::{Callbacks, GenerationOptions};
use headrow::{Chunk, Error, Model, Output, Sequence, Session, SessionOptions, Side};
use headrow_kernels::{Cancel, Mat};
use random_models::{LONGEST, Seeded, V, begin};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tiny::Random;

const THREADS: u64 = 64;
const TEXTS: usize = 5;

/// What is read, and what follows each of its tokens.
struct Text {
    source: Vec<u32>,
    ids: Vec<u32>,
    logits: Vec<f32>,
}

fn sizes() -> SessionOptions {
    SessionOptions::default().with_threads(1).with_max_sequences(4).with_max_length(LONGEST)
}

fn texts(model: &Arc<Model>) -> Vec<Text> {
    let mut session = Session::new(model, &sizes()).unwrap();
    let text = |seed| {
        let mut random = Random(seed as u64);
        let mut ids =
            |count: usize| -> Vec<u32> { (0..count).map(|_| random.below(V) as u32).collect() };
        let (source, ids) = (ids(3 + seed), ids(LONGEST));
        let mut logits = vec![0.0; LONGEST * V];
        let sequence = begin(&mut session, &source).unwrap();
        session.extend(&[Chunk::new(sequence, &ids)], Output::AllLogits, &mut logits).unwrap();
        session.remove(sequence).unwrap();
        Text { source, ids, logits }
    };
    (0..TEXTS).map(text).collect()
}

/// A thread's session, and which text each of its sequences follows.
struct User<'t> {
    texts: &'t [Text],
    random: Random,
    session: Session,
    live: Vec<(Sequence, usize)>,
}

impl User<'_> {
    fn operate(&mut self) {
        match self.random.below(10) {
            0 | 1 => self.add(),
            2 => self.fork(),
            3 => self.truncate(),
            4 => self.remove(),
            5 => self.cancel(),
            _ => self.extend(),
        }
    }

    fn drawn(&mut self) -> Option<usize> {
        (!self.live.is_empty()).then(|| self.random.below(self.live.len()))
    }

    fn add(&mut self) {
        let text = self.random.below(TEXTS);
        match begin(&mut self.session, &self.texts[text].source) {
            Ok(sequence) => self.live.push((sequence, text)),
            Err(Error::TooManySequences { .. } | Error::CacheFull { .. }) => self.remove(),
            Err(error) => panic!("{error}"),
        }
    }

    fn fork(&mut self) {
        let Some(at) = self.drawn() else { return };
        let (sequence, text) = self.live[at];
        match self.session.fork(sequence) {
            Ok(fork) => self.live.push((fork, text)),
            Err(Error::TooManySequences { .. }) => self.remove(),
            Err(error) => panic!("{error}"),
        }
    }

    fn truncate(&mut self) {
        let Some(at) = self.drawn() else { return };
        let sequence = self.live[at].0;
        let length = self.session.length(sequence).unwrap();
        self.session.truncate(sequence, self.random.below(length + 1)).unwrap();
    }

    fn remove(&mut self) {
        let Some(at) = self.drawn() else { return };
        let (sequence, _) = self.live.swap_remove(at);
        self.session.remove(sequence).unwrap();
        assert!(self.session.remove(sequence).is_err());
    }

    /// Extends up to three sequences together, each by some tokens of its text.
    fn extend(&mut self) {
        let mut pieces: Vec<(Sequence, usize, usize, usize)> = Vec::new();
        for _ in 0..3 {
            let Some(at) = self.drawn() else { return };
            let (sequence, text) = self.live[at];
            let length = self.session.length(sequence).unwrap();
            let count = (1 + self.random.below(30)).min(LONGEST - length);
            if count > 0 && pieces.iter().all(|piece| piece.0 != sequence) {
                pieces.push((sequence, text, length, count));
            }
        }
        let texts = self.texts;
        let chunk = |&(sequence, text, from, count): &(Sequence, usize, usize, usize)| {
            Chunk::new(sequence, &texts[text].ids[from..from + count])
        };
        let chunks: Vec<_> = pieces.iter().map(chunk).collect();
        let rows: usize = pieces.iter().map(|piece| piece.3).sum();
        let mut logits = vec![f32::NAN; rows * V];
        match self.session.extend(&chunks, Output::AllLogits, &mut logits) {
            Ok(()) => {
                let expected = pieces.iter().flat_map(|&(_, text, from, count)| {
                    &texts[text].logits[from * V..][..count * V]
                });
                assert!(logits.iter().zip(expected).all(|(x, y)| x.to_bits() == y.to_bits()));
            }
            Err(Error::Cancelled) => {
                for (sequence, _, length, _) in pieces {
                    assert_eq!(self.session.length(sequence).unwrap(), length);
                }
            }
            Err(Error::CacheFull { .. }) => self.remove(),
            Err(error) => panic!("{error}"),
        }
    }

    /// Extends while another thread sets the flag, which comes sooner or later or too late.
    fn cancel(&mut self) {
        let cancel = Cancel::new();
        self.session.set_cancel(Some(cancel.clone()));
        let wait = self.random.below(300) as u64;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_micros(wait));
                cancel.cancel();
            });
            self.extend();
        });
        self.session.set_cancel(None);
    }
}

/// Whether a thread that has done so many operations goes on.
fn goes_on(operations: usize, begun: Instant) -> bool {
    let seconds = std::env::var("HEADROW_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    match seconds.map(Duration::from_secs) {
        Some(time) => begun.elapsed() < time,
        None => operations < 60,
    }
}

/// The life of one thread: sessions one after another.
fn live(seed: u64, model: &Arc<Model>, texts: &[Text], pool: &Arc<ThreadPool>) {
    let (mut random, begun, mut operations) = (Random(seed), Instant::now(), 0);
    while goes_on(operations, begun) {
        let options = match random.below(3) {
            0 => sizes().with_threads(3).with_pool(Arc::clone(pool)),
            _ => sizes(),
        };
        let session = Session::new(model, &options).unwrap();
        let mut user = User { texts, random: Random(random.next()), session, live: Vec::new() };
        for _ in 0..random.below(40) {
            user.operate();
            operations += 1;
        }
        // Half of the sessions go on in another thread, and end there.
        if random.below(2) == 0 {
            std::thread::scope(|scope| {
                scope.spawn(move || (0..10).for_each(|_| user.operate()));
            });
        }
    }
}

/// A decoder and a translator, both wide enough that passes are worth helpers.
fn models() -> [Seeded; 2] {
    let decoder = serde_json::json!({
        "model_type": "gpt2", "vocab_size": V, "n_embd": 64, "n_layer": 2, "n_head": 4,
        "n_inner": 256, "n_positions": LONGEST,
    });
    [Seeded::from_json(&decoder, 1), Seeded::seq2seq(1)]
}

#[test]
fn sessions_of_many_threads_give_what_a_serial_one_gives() {
    for seeded in models() {
        let model = seeded.model();
        let texts = texts(&model);
        let pool = Arc::new(ThreadPoolBuilder::new().num_threads(3).build().unwrap());
        std::thread::scope(|scope| {
            for seed in 0..THREADS {
                let (model, texts, pool) = (&model, &texts, &pool);
                scope.spawn(move || live(seed, model, texts, pool));
            }
        });
    }
}

#[test]
fn a_session_outlives_its_callers_handles_of_pool_and_model() {
    let [seeded, _] = models();
    let model = seeded.model();
    let text = texts(&model).swap_remove(0);
    let pool = Arc::new(ThreadPoolBuilder::new().num_threads(2).build().unwrap());
    let options = sizes().with_threads(3).with_pool(Arc::clone(&pool));
    let mut session = Session::new(&model, &options).unwrap();
    drop((pool, options, model));
    assert!(reads(&mut session, &text));
}

/// A pass over a text by a session, in pieces, and whether it gave what it should.
fn reads(session: &mut Session, text: &Text) -> bool {
    reads_into(session, text, &mut vec![0.0; LONGEST * V])
}

fn reads_into(session: &mut Session, text: &Text, logits: &mut [f32]) -> bool {
    let sequence = session.add().unwrap();
    for (ids, logits) in text.ids.chunks(50).zip(logits.chunks_mut(50 * V)) {
        session.extend(&[Chunk::new(sequence, ids)], Output::AllLogits, logits).unwrap();
    }
    session.remove(sequence).unwrap();
    logits == &text.logits[..]
}

/// How often this thread has waited, as for a lock that another holds.
#[cfg(target_os = "linux")]
fn waits() -> usize {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn sessions_on_one_model_do_not_wait_for_each_other() {
    const PASSES: usize = 200;
    const ROUNDS: usize = 5;
    let [seeded, _] = models();
    let model = seeded.model();
    let text = texts(&model).swap_remove(0);
    for threads in [1, 2, 8] {
        // A page that the system takes and gives back is a wait too, as is another test that changes the memory of the process at the
        // same moment. Those come and go; a lock would be waited for in every round.
        let few = 2 * threads;
        let start = Barrier::new(threads);
        let work = || {
            let mut session = Session::new(&model, &sizes()).unwrap();
            // Memory is there when it has been used once, and none is asked for: allocators have locks of their own.
            let mut logits = vec![0.0; LONGEST * V];
            assert!(reads_into(&mut session, &text, &mut logits));
            start.wait();
            let before = waits();
            (0..PASSES).for_each(|_| assert!(reads_into(&mut session, &text, &mut logits)));
            waits() - before
        };
        let round = || -> usize {
            std::thread::scope(|scope| {
                let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                workers.into_iter().map(|worker| worker.join().unwrap()).sum()
            })
        };
        let mut rounds = Vec::new();
        while rounds.len() < ROUNDS && rounds.iter().all(|&waited| waited > few) {
            rounds.push(round());
        }
        println!("{threads} sessions: {rounds:?} waits in {} texts a round", threads * PASSES);
        assert!(rounds.iter().any(|&waited| waited <= few), "{threads} sessions: {rounds:?} waits");
    }
}

#[test]
fn a_pool_is_let_go_of_during_calls() {
    let [seeded, _] = models();
    let model = seeded.model();
    let text = texts(&model).swap_remove(0);
    for round in 0..40 {
        let pool = Arc::new(ThreadPoolBuilder::new().num_threads(2).build().unwrap());
        let options = sizes().with_threads(3).with_pool(Arc::clone(&pool));
        let mut session = Session::new(&model, &options).unwrap();
        std::thread::scope(|scope| {
            // Everybody's handles but the session's.
            scope.spawn(move || {
                std::thread::sleep(Duration::from_micros(round * 20));
                drop((pool, options));
            });
            assert!(reads(&mut session, &text), "round {round}");
        });
        assert!(reads(&mut session, &text), "round {round}");
    }
}

#[test]
fn the_last_handle_of_a_pool_is_dropped_by_one_of_its_own_threads() {
    let [seeded, _] = models();
    let model = seeded.model();
    let text = Arc::new(texts(&model).swap_remove(0));
    for threads in 1..=3 {
        let pool = Arc::new(ThreadPoolBuilder::new().num_threads(threads).build().unwrap());
        let options = sizes().with_threads(3).with_pool(Arc::clone(&pool));
        let mut session = Session::new(&model, &options).unwrap();
        drop(options);
        let (send, receive) = std::sync::mpsc::channel();
        let text = Arc::clone(&text);
        pool.spawn(move || {
            let read = reads(&mut session, &text);
            drop(session);
            send.send(read).unwrap();
        });
        drop(pool);
        let read = receive.recv_timeout(Duration::from_secs(60));
        assert_eq!(read, Ok(true), "{threads} threads");
    }
}

/// Calls `call` while many more threads than there are cores compute without end.
fn under_load<R>(call: impl FnOnce() -> R) -> R {
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // A panic of the call's must end the load too.
        let _done = Done(&done);
        call()
    })
}

/// A decoder of many layers.
fn deep() -> Seeded {
    let decoder = serde_json::json!({
        "model_type": "gpt2", "vocab_size": V, "n_embd": 64, "n_layer": 12, "n_head": 4,
        "n_inner": 256, "n_positions": LONGEST,
    });
    Seeded::from_json(&decoder, 3)
}

#[test]
fn under_load_a_deadline_ends_a_pass_in_the_layer_in_which_it_comes() {
    let model = deep().model();
    let text = texts(&model).swap_remove(0);
    let rooms = sizes().with_max_tokens(LONGEST);
    under_load(|| {
        for (threads, wait, at) in [(1, 0, 0), (1, 3, 0), (3, 3, 0), (1, 9, 5), (3, 9, 5)] {
            let label = format!("{threads} threads, {wait} ms, layer {at}");
            let mut session = Session::new(&model, &rooms.clone().with_threads(threads)).unwrap();
            let sequence = session.add().unwrap();
            let free = session.free_tokens();
            let deadline = Instant::now() + Duration::from_millis(wait);
            session.set_cancel(Some(Cancel::with_deadline(deadline)));
            let (mut late, mut layers) = (0, 0);
            let mut observer = |_: Side, _: usize, _: Mat<'_>| {
                // It comes at this layer if it has not come before.
                while layers >= at && Instant::now() < deadline {
                    std::thread::yield_now();
                }
                layers += 1;
                late += usize::from(Instant::now() >= deadline);
            };
            let chunks = [Chunk::new(sequence, &text.ids)];
            let mut logits = vec![0.0; LONGEST * V];
            let ended =
                session.extend_observed(&chunks, Output::AllLogits, &mut logits, &mut observer);
            assert!(matches!(ended, Err(Error::Cancelled)), "{label}: {ended:?}");
            assert!(late <= 2, "{label}: {late} layers behind the deadline");
            assert_eq!(session.length(sequence).unwrap(), 0, "{label}");
            assert_eq!(session.free_tokens(), free, "{label}");
            session.set_cancel(None);
            assert!(reads(&mut session, &text), "{label}");
        }
    });
}

#[test]
fn under_load_a_deadline_ends_a_generation_at_the_step_in_which_it_comes() {
    let model = deep().model();
    let text = texts(&model).swap_remove(0);
    let options = GenerationOptions::default().with_max_new_tokens(100usize);
    under_load(|| {
        for (threads, wait, at) in [(1, 0, 0), (1, 2, 3), (3, 2, 3), (1, 10, 1), (3, 10, 20)] {
            let label = format!("{threads} threads, {wait} ms, step {at}");
            let mut session = Session::new(&model, &sizes().with_threads(threads)).unwrap();
            let free = (session.free_sequences(), session.free_tokens());
            let deadline = Instant::now() + Duration::from_millis(wait);
            session.set_cancel(Some(Cancel::with_deadline(deadline)));
            let (mut late, mut steps) = (0, 0);
            let mut hooks = Callbacks::new().with_progress(|_| {
                while steps >= at && Instant::now() < deadline {
                    std::thread::yield_now();
                }
                steps += 1;
                late += usize::from(Instant::now() >= deadline);
                ControlFlow::Continue(())
            });
            let ended = session.generate(&[&[3, 4, 5]], &options, &mut hooks);
            drop(hooks);
            assert!(matches!(ended, Err(Error::Cancelled)), "{label}: {ended:?}");
            assert!(late <= 1, "{label}: {late} tokens behind the deadline");
            assert_eq!((session.free_sequences(), session.free_tokens()), free, "{label}");
            session.set_cancel(None);
            assert!(reads(&mut session, &text), "{label}");
        }
    });
}

#[test]
fn a_session_is_dropped_while_another_thread_cancels_it() {
    let [seeded, _] = models();
    let model = seeded.model();
    let cancel = Cancel::new();
    let done = AtomicBool::new(false);
    let extended: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                cancel.cancel();
            }
        });
        while !cancel.is_cancelled() {
            std::thread::yield_now();
        }
        let extend = |threads| {
            let mut session = Session::new(&model, &sizes().with_threads(threads))?;
            session.set_cancel(Some(cancel.clone()));
            let sequence = session.add()?;
            session.extend(&[Chunk::new(sequence, &[1; 100])], Output::None, &mut [])
        };
        let extended = [1, 3].into_iter().cycle().take(40).map(extend).collect();
        // Nothing above panics: the other thread would never end then.
        done.store(true, Ordering::Relaxed);
        extended
    });
    for result in extended {
        assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    }
}
