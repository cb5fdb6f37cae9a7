//! The team on real threads.

use super::*;
use crate::view::MatMut;
use rayon::ThreadPoolBuilder;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn counts(par: Par<'_>, chunks: usize) -> Vec<usize> {
    let seen: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
    let threads = par.threads();
    par.run(chunks, &|chunk, worker| {
        assert!(worker < threads);
        seen[chunk].fetch_add(1, Ordering::Relaxed);
    });
    seen.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_chunk_runs_exactly_once_in_every_phase() {
    for threads in 1..=8 {
        let mut team = Team::new(threads);
        for round in 0..20 {
            team.open(|par| {
                for chunks in [0, 1, 2, 3, 17, 400] {
                    assert!(
                        counts(par, chunks).iter().all(|&n| n == 1),
                        "{threads} threads, round {round}, {chunks} chunks"
                    );
                }
            });
        }
    }
}

#[test]
fn a_limit_keeps_worker_indices_below_it() {
    let mut team = Team::new(6);
    team.open(|par| {
        for limit in 1..=6 {
            let par = par.limit(limit);
            assert_eq!(par.threads(), limit);
            par.run(500, &|_, worker| assert!(worker < limit));
        }
    });
}

#[test]
fn workers_have_scratch_of_their_own() {
    let each = Need::of::<u32>(16);
    let mut team = Team::new(4);
    team.open(|par| {
        let mut scratch = crate::Scratch::new(par.need(each));
        par.run_with(300, each, &mut scratch.stack(), &|chunk, mut stack| {
            let (mine, _) = stack.take::<u32>(16);
            mine.fill(chunk as u32);
            std::thread::yield_now();
            assert!(mine.iter().all(|&x| x == chunk as u32));
        });
    });
}

#[test]
fn rows_are_handed_out_once() {
    let mut team = Team::new(3);
    let mut data = vec![0u32; 7 * 5];
    team.open(|par| {
        par.for_rows(MatMut::with_stride(&mut data, 7, 3, 5), 2, &|first, mut block| {
            for i in 0..block.rows() {
                block.row_mut(i).iter_mut().for_each(|x| *x += (first + i) as u32 + 1);
            }
        });
    });
    for (i, row) in data.chunks(5).enumerate() {
        assert_eq!(row[..3], [i as u32 + 1; 3]);
        assert_eq!(row[3..], [0, 0]);
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_team_stays_usable() {
    let mut team = Team::new(3);
    for _ in 0..5 {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            team.open(|par| par.run(50, &|chunk, _| assert_ne!(chunk, 13, "unlucky")));
        }));
        assert!(caught.is_err());
        team.open(|par| assert!(counts(par, 50).iter().all(|&n| n == 1)));
    }
}

#[test]
fn a_panic_of_a_helper_reaches_the_caller_and_the_team_stays_usable() {
    let mut team = Team::new(3);
    let mut caught = 0;
    // Helpers come when they come.
    for _ in 0..10_000 {
        let opened = catch_unwind(AssertUnwindSafe(|| {
            team.open(|par| {
                par.run(50, &|_, worker| {
                    std::thread::sleep(Duration::from_micros(20));
                    if worker > 0 {
                        resume_unwind(Box::new(worker));
                    }
                });
            });
        }));
        if let Err(panic) = opened {
            assert!(panic.downcast_ref::<usize>().is_some_and(|&worker| worker > 0));
            caught += 1;
        }
        team.open(|par| assert!(counts(par, 50).iter().all(|&n| n == 1)));
        if caught == 5 {
            return;
        }
    }
    panic!("{caught} panics of helpers");
}

/// A payload whose drop panics.
struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        resume_unwind(Box::new(()));
    }
}

#[test]
fn panics_behind_the_first_are_dropped_and_leave_the_team_usable() {
    let mut team = Team::new(3);
    let alive = Arc::new(());
    for _ in 0..20 {
        let payload = || Box::new(Arc::clone(&alive));
        let first = catch_unwind(AssertUnwindSafe(|| {
            team.open(|par| par.run(50, &|_, _| resume_unwind(payload())));
        }));
        assert_eq!(Arc::strong_count(&alive), 2);
        assert!(first.is_err());
        drop(first);
        assert_eq!(Arc::strong_count(&alive), 1);
        let first = catch_unwind(AssertUnwindSafe(|| {
            team.open(|par| par.run(50, &|_, _| resume_unwind(Box::new(Payload))));
        }));
        std::mem::forget(first.expect_err("a panic"));
        team.open(|par| assert!(counts(par, 50).iter().all(|&n| n == 1)));
    }
}

#[test]
fn a_flag_that_is_set_beforehand_skips_every_chunk() {
    let cancel = Cancel::new();
    let mut team = Team::new(3);
    team.open(|par| {
        let cancellable = par.with_cancel(&cancel);
        assert!(counts(cancellable, 60).iter().all(|&n| n == 1));
        assert!(!cancellable.is_cancelled());
        cancel.cancel();
        for par in [cancellable, cancellable.limit(2), cancellable.limit(1)] {
            assert!(counts(par, 60).iter().all(|&n| n == 0));
            assert!(par.is_cancelled());
        }
        // Another call of the same team does not know the flag.
        assert!(counts(par, 60).iter().all(|&n| n == 1));
        assert!(!par.is_cancelled());
    });
    team.open(|par| assert!(counts(par, 60).iter().all(|&n| n == 1)));
}

#[test]
fn a_flag_that_another_thread_sets_ends_the_phase() {
    for threads in 1..=3 {
        let cancel = Cancel::new();
        let (started, begun) = std::sync::mpsc::sync_channel(1);
        let handle = cancel.clone();
        let other = std::thread::spawn(move || {
            begun.recv().unwrap();
            handle.cancel();
        });
        let ran = AtomicUsize::new(0);
        Team::new(threads).open(|par| {
            par.with_cancel(&cancel).run(100_000, &|_, _| {
                let _ = started.try_send(());
                ran.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(50));
            });
        });
        other.join().unwrap();
        let ran = ran.into_inner();
        assert!((1..100_000).contains(&ran), "{ran} chunks ran with {threads} threads");
    }
}

#[test]
fn a_deadline_ends_the_phase_when_its_time_comes() {
    for threads in 1..=2 {
        let deadline = Instant::now() + Duration::from_millis(20);
        let cancel = Cancel::with_deadline(deadline);
        assert!(!cancel.is_cancelled());
        let ran = AtomicUsize::new(0);
        Team::new(threads).open(|par| {
            par.with_cancel(&cancel).run(100_000, &|_, _| {
                ran.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            });
        });
        assert!(Instant::now() >= deadline && cancel.is_cancelled());
        // On a busy machine the time may be over before anything ran.
        assert!(ran.into_inner() <= 20 * threads);
    }
}

/// Under load a worker may lose its core between its look at the clock and the chunk it begins; no more than that one
/// chunk of each is late.
#[test]
fn a_deadline_holds_when_every_core_is_busy() {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 * default_threads() {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let mut team = Team::new(3);
        let most_late = (0..20).map(|round| {
            let deadline = Instant::now() + Duration::from_millis(round % 5);
            let (cancel, late) = (Cancel::with_deadline(deadline), AtomicUsize::new(0));
            team.open(|par| {
                par.with_cancel(&cancel).run(100_000, &|_, _| {
                    late.fetch_add(usize::from(Instant::now() >= deadline), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_micros(10));
                });
            });
            late.into_inner()
        });
        let most_late = most_late.max();
        over.store(true, Ordering::Relaxed);
        assert!(most_late <= Some(3), "{most_late:?} chunks began after the deadline");
    });
}

#[test]
fn a_pool_that_is_busy_does_not_delay_the_caller() {
    let pool = Arc::new(ThreadPoolBuilder::new().num_threads(1).build().unwrap());
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    pool.spawn(move || {
        let _ = blocked.recv();
    });
    let mut team = Team::with_pool(Arc::clone(&pool), 2);
    for _ in 0..100 {
        team.open(|par| assert!(counts(par, 10).iter().all(|&n| n == 1)));
    }
    release.send(()).unwrap();
}
