//! A caller and its possible helpers.

use super::state::State;
use super::sync::Pool;
use super::{MAX_THREADS, Par};
use crate::arch::FloatMode;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::Arc;

/// The caller and its possible helpers, allocated once and used for one call at a time.
///
/// A team starts no thread: helpers come from the rayon pool it was given, or from one that
/// [`Team::new`] builds and the team owns.
///
/// In a child process after `fork`, where the pool's threads do not exist, a team of the parent's is the caller alone.
pub struct Team {
    helpers: Option<Helpers>,
}

/// What a team has when it is more than its caller.
pub(super) struct Helpers {
    state: Arc<State>,
    pool: Pool,
}

impl Helpers {
    pub(super) fn new(pool: Pool, helpers: usize) -> Helpers {
        Helpers { state: Arc::new(State::new(helpers)), pool }
    }

    /// One phase with up to `threads` workers.
    pub(super) fn run(&self, threads: usize, chunks: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        self.state.run(threads, chunks, work, || self.ask(threads));
    }

    /// Tickets for helpers that are neither at work nor already asked.
    fn ask(&self, threads: usize) {
        for worker in (1..threads).filter(|&worker| self.state.asks_for(worker)) {
            let state = Arc::clone(&self.state);
            self.pool.spawn(move || state.help(worker));
        }
    }
}

impl Team {
    /// A team of `threads` workers, the caller included. With more than one, a rayon pool of
    /// `threads − 1` threads is built and owned by the team; when the system refuses threads,
    /// the team is the caller alone.
    pub fn new(threads: usize) -> Team {
        let helpers = threads.min(MAX_THREADS).saturating_sub(1);
        let pool = (helpers > 0)
            .then(|| {
                ThreadPoolBuilder::new()
                    .num_threads(helpers)
                    .thread_name(|i| format!("headrow-{i}"))
                    .build()
                    .ok()
            })
            .flatten();
        match pool {
            Some(pool) => Team::with_pool(Arc::new(pool), threads),
            None => Team { helpers: None },
        }
    }

    /// A team of up to `threads` workers, the caller included, with helpers from `pool`. For one worker nothing is
    /// allocated.
    ///
    /// The pool must be of this process: one that was made before a `fork` has no threads in the child, perhaps locks that nobody
    /// gives back, and nothing to tell it by, so a team that is made on it there may hang.
    pub fn with_pool(pool: Arc<ThreadPool>, threads: usize) -> Team {
        let helpers = threads.min(MAX_THREADS).saturating_sub(1).min(pool.current_num_threads());
        Team::of(Pool::from(pool), helpers)
    }

    pub(super) fn of(pool: Pool, helpers: usize) -> Team {
        Team { helpers: (helpers > 0).then(|| Helpers::new(pool, helpers)) }
    }

    /// Workers at most, the caller included.
    pub fn threads(&self) -> usize {
        self.helpers.as_ref().map_or(0, |helpers| helpers.state.helpers()) + 1
    }

    /// Runs `call` with this team's workers. Helpers are asked for and not awaited.
    pub fn open<R>(&mut self, call: impl FnOnce(Par<'_>) -> R) -> R {
        let _mode = FloatMode::default_scope();
        let threads = self.threads();
        let Some(helpers) = &self.helpers else { return call(Par::SERIAL) };
        /// Sends the helpers home, also when `call` panics.
        struct Close<'a>(&'a State);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                self.0.set_open(false);
            }
        }
        helpers.state.set_open(true);
        let _close = Close(&helpers.state);
        helpers.ask(threads);
        call(Par::of(helpers, threads))
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("threads", &self.threads()).finish()
    }
}
