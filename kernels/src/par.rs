//! Who works on a call: the caller, and helpers from a rayon pool when they come.
//!
//! Waking a sleeping thread costs 10–20 µs, as long as a whole small layer, so nobody waits for it.
//! [`Team::open`] asks the pool for helpers and begins at once. Each phase of the work ([`Par::run`])
//! is cut into chunks that are claimed one by one from an atomic counter: a helper that arrives late
//! takes what is left, and the caller waits only for chunks that somebody has already claimed. Between
//! phases a helper spins for a bounded time, then leaves; it is asked again at the next phase.
//!
//! Every thread that works on a call does so in the default floating-point mode (round to nearest, gradual
//! underflow) and gets its own mode back, so the bits do not depend on what the caller set.
//!
//! ```
//! use headrow_kernels::{Par, Team};
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! let mut team = Team::new(2);
//! let sum = AtomicUsize::new(0);
//! team.open(|par| {
//!     par.run(100, &|chunk, _worker| {
//!         sum.fetch_add(chunk, Ordering::Relaxed);
//!     });
//! });
//! assert_eq!(sum.into_inner(), 4950);
//! Par::SERIAL.run(3, &|_, worker| assert_eq!(worker, 0));
//! ```
//!
//! A call that nobody waits for any more is given up with a [`Cancel`]: [`Par::with_cancel`].

mod cancel;
mod cores;
#[cfg(all(test, loom))]
mod model;
mod rows;
mod state;
mod sync;
mod team;
#[cfg(all(test, not(loom)))]
mod tests;

pub use cancel::Cancel;
pub use cores::default_threads;
pub use team::Team;

use crate::scratch::{Need, Stack};
use std::marker::PhantomData;
use team::Helpers;

/// Most chunks in one phase.
pub const MAX_CHUNKS: usize = (1 << 24) - 1;
/// Most workers in a team.
pub const MAX_THREADS: usize = (1 << 8) - 1;

/// Who may work on this call: [`Par::SERIAL`], or what [`Team::open`] hands to its closure.
///
/// Neither `Send` nor `Sync`: only the thread that opened the team starts phases, one at a time.
#[derive(Clone, Copy)]
pub struct Par<'a> {
    helpers: Option<&'a Helpers>,
    threads: usize,
    cancel: Option<&'a Cancel>,
    here: PhantomData<*const ()>,
}

impl<'a> Par<'a> {
    /// The caller alone; touches no pool.
    pub const SERIAL: Par<'static> =
        Par { helpers: None, threads: 1, cancel: None, here: PhantomData };

    /// The caller and helpers, `threads` workers together.
    fn of(helpers: &'a Helpers, threads: usize) -> Par<'a> {
        Par { helpers: Some(helpers), threads, cancel: None, here: PhantomData }
    }

    /// The same workers, who ask `cancel` before each chunk of work and skip the chunk once it is set.
    ///
    /// Operations then return within about a millisecond of a core's work. What they should have written is
    /// unspecified, partly old and partly new, so a caller looks at [`Par::is_cancelled`] before using any of it.
    /// Without a flag nothing is asked.
    pub fn with_cancel(self, cancel: &'a Cancel) -> Par<'a> {
        Par { cancel: Some(cancel), ..self }
    }

    /// Whether the call was given up, so that results since are no results.
    pub fn is_cancelled(self) -> bool {
        self.cancel.is_some_and(Cancel::is_cancelled)
    }

    /// The flag that is asked, if any.
    pub(crate) fn cancel(self) -> Option<&'a Cancel> {
        self.cancel
    }

    /// Workers at most, the caller included. Worker indices are below this.
    pub fn threads(self) -> usize {
        self.threads
    }

    /// The same team with at most `threads` workers.
    pub fn limit(self, threads: usize) -> Par<'a> {
        match self.threads.min(threads.max(1)) {
            1 => Par { helpers: None, threads: 1, ..self },
            threads => Par { threads, ..self },
        }
    }

    /// Runs `work(chunk, worker)` once for every `chunk` in `0..chunks`, in any order, on this team's
    /// workers, and returns when all are done. With one worker: in ascending order on the caller. Chunks that
    /// begin after a [`Cancel`] was set are skipped.
    ///
    /// # Panics
    /// With the panic of a chunk, after all claimed chunks have ended. When `chunks > MAX_CHUNKS`.
    pub fn run(self, chunks: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        match self.cancel {
            None => self.run_all(chunks, work),
            Some(cancel) => self.run_all(chunks, &|chunk, worker| {
                if !cancel.is_cancelled() {
                    work(chunk, worker);
                }
            }),
        }
    }

    fn run_all(self, chunks: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        match self.helpers {
            Some(helpers) if chunks > 1 && self.threads > 1 => {
                helpers.run(self.threads, chunks, work);
            }
            _ => (0..chunks).for_each(|chunk| work(chunk, 0)),
        }
    }

    /// [`Par::run`] with a part of `stack`, `each` in size, for every worker.
    ///
    /// # Panics
    /// As [`Par::run`], and when the stack holds less than [`Par::need`] of `each`.
    pub fn run_with(
        self,
        chunks: usize,
        each: Need,
        stack: &mut Stack<'_>,
        work: &(dyn Fn(usize, Stack<'_>) + Sync),
    ) {
        let shared = stack.share(self.threads, each);
        self.run(chunks, &|chunk, worker| {
            // SAFETY: `run` gives a worker one chunk at a time, and worker indices are distinct.
            work(chunk, unsafe { shared.part(worker) });
        });
    }

    /// The scratch memory of [`Par::run_with`] when every worker needs `each`.
    pub fn need(self, each: Need) -> Need {
        each.times(self.threads)
    }
}
