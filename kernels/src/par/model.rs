//! Small cases of the protocol in all interleavings that memory orderings allow, with up to a number of preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p headrow-kernels --lib par::model`

use super::sync::Pool;
use super::{Par, Team};
use loom::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A number that the checker lets nobody reach while another thread writes it, or before it has been told of that.
struct Place(UnsafeCell<usize>);

// SAFETY: the checker fails when two accesses are not ordered, which is what it is used for.
unsafe impl Sync for Place {}

impl Place {
    fn list(count: usize) -> Vec<Place> {
        (0..count).map(|_| Place(UnsafeCell::new(0))).collect()
    }

    fn add(&self, value: usize) {
        // SAFETY: the checker has found no other access at this time.
        self.0.with_mut(|place| unsafe { *place += value });
    }

    fn value(&self) -> usize {
        // SAFETY: the checker has found no write at this time.
        self.0.with(|place| unsafe { *place })
    }
}

/// One phase: every chunk once, by one worker at a time per index, and all of it seen by the caller.
fn phase(par: Par<'_>, chunks: usize) {
    let (places, workers) = (Place::list(chunks), Place::list(par.threads()));
    par.run(chunks, &|chunk, worker| {
        places[chunk].add(chunk + 1);
        workers[worker].add(1);
    });
    assert!((0..chunks).all(|chunk| places[chunk].value() == chunk + 1));
    assert_eq!(workers.iter().map(Place::value).sum::<usize>(), chunks);
}

/// Runs `case` with a new team of so many threads, in every interleaving with up to `preemptions` preemptions.
fn check(threads: usize, preemptions: usize, case: impl Fn(&mut Team) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || case(&mut Team::of(Pool, threads - 1)));
}

#[test]
fn phases_follow_one_another() {
    check(2, 3, |team| {
        team.open(|par| {
            phase(par, 2);
            phase(par, 3);
        });
    });
}

#[test]
fn a_team_is_closed_and_opened_again() {
    check(2, 3, |team| {
        team.open(|par| phase(par, 2));
        team.open(|par| phase(par, 2));
    });
}

#[test]
fn two_helpers_share_the_chunks() {
    check(3, 2, |team| team.open(|par| phase(par, 3)));
}

#[test]
fn a_limit_keeps_a_helper_out() {
    check(3, 2, |team| {
        team.open(|par| {
            phase(par.limit(2), 2);
        });
    });
}

#[test]
fn a_panic_reaches_the_caller_after_the_last_claimed_chunk() {
    check(2, 2, |team| {
        let places = Place::list(2);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            team.open(|par| {
                par.run(2, &|chunk, _| {
                    places[chunk].add(1);
                    std::panic::resume_unwind(Box::new(chunk));
                });
            });
        }));
        let chunk = caught.unwrap_err().downcast::<usize>().unwrap();
        assert!(*chunk < 2 && places.iter().all(|place| place.value() == 1));
        team.open(|par| phase(par, 2));
    });
}
