//! A child process after `fork` has a copy of every team and of its pool, but none of the threads.
#![cfg(unix)]

#[path = "support/child.rs"]
mod child;
mod support;

use child::holds_in_a_child;
use headrow_kernels::{Par, Team};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const THREADS: usize = 3;

/// Some phases whose chunks take a while; the sum of their numbers.
fn work(par: Par<'_>) -> usize {
    let sum = AtomicUsize::new(0);
    for _ in 0..8 {
        par.run(40, &|chunk, _| {
            let steps = (0..500).fold(chunk, |x, i| std::hint::black_box(x ^ i ^ i));
            sum.fetch_add(steps, Ordering::Relaxed);
        });
    }
    sum.into_inner()
}

const EXPECTED: usize = 8 * 780;

#[test]
fn a_team_of_the_parents_runs_in_the_child_and_is_dropped_there() {
    let mut team = Some(Team::new(THREADS));
    for round in 0..100 {
        let mut run = || team.as_mut().map(|team| team.open(work));
        assert_eq!(run(), Some(EXPECTED));
        // Helpers are at work, spinning, or falling asleep.
        let pause = Instant::now();
        while pause.elapsed() < Duration::from_micros(round * 3) {
            std::hint::spin_loop();
        }
        let held = holds_in_a_child(|| {
            let ran = (0..5).all(|_| team.as_mut().map(|team| team.open(work)) == Some(EXPECTED));
            drop(team.take());
            ran
        });
        assert!(held, "round {round}");
    }
}

#[test]
fn a_call_goes_on_in_a_child_that_is_made_in_the_midst_of_it() {
    let mut team = Team::new(THREADS);
    for round in 0..20 {
        team.open(|par| {
            assert_eq!(work(par), EXPECTED);
            assert!(holds_in_a_child(|| work(par) == EXPECTED), "round {round}");
            assert_eq!(work(par), EXPECTED);
        });
    }
}

#[test]
fn a_child_has_teams_of_its_own() {
    // An emulator of one process starts no threads in a child of a process that had some.
    if support::emulated() {
        return;
    }
    let held = holds_in_a_child(|| {
        let mut team = Team::new(THREADS);
        let helped = AtomicUsize::new(0);
        // Until a helper has come, which shows that the child's pool lives.
        let begun = Instant::now();
        while helped.load(Ordering::Relaxed) == 0 && begun.elapsed() < Duration::from_secs(10) {
            team.open(|par| {
                par.run(50, &|_, worker| {
                    helped.fetch_add(usize::from(worker > 0), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_micros(100));
                });
            });
        }
        helped.into_inner() > 0 && team.open(work) == EXPECTED
    });
    assert!(held);
}
