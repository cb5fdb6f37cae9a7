//! What the protocol is built on: atomics, threads and time of the machine, or of the model checker `loom`.

#[cfg(not(all(test, loom)))]
pub(super) use machine::*;
#[cfg(all(test, loom))]
pub(super) use model::*;

#[cfg(not(all(test, loom)))]
mod machine {
    use rayon::ThreadPool;
    use std::sync::Arc;
    pub(in crate::par) use std::sync::Mutex;
    pub(in crate::par) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
    use std::time::{Duration, Instant};

    /// How long a helper without work keeps spinning before it goes back to the pool. Longer than the
    /// gaps between the phases of a forward pass, short against a scheduler's slice.
    const HELPER_PATIENCE: Duration = Duration::from_micros(60);

    /// How long the caller spins for claimed chunks before it yields the core: the helper that holds one may
    /// have been descheduled, perhaps in favour of this very spin.
    const CALLER_PATIENCE: Duration = Duration::from_micros(30);

    /// Where helpers come from. `fork` copies a pool without its threads, and perhaps with locks that one of them
    /// held: in another process than the one it was made in, it is not touched.
    pub(in crate::par) struct Pool {
        threads: Option<Arc<ThreadPool>>,
        process: u32,
    }

    impl From<Arc<ThreadPool>> for Pool {
        fn from(threads: Arc<ThreadPool>) -> Pool {
            Pool { threads: Some(threads), process: process() }
        }
    }

    impl Pool {
        /// Has a thread run `help` some time, if there is one.
        pub(in crate::par) fn spawn(&self, help: impl FnOnce() + Send + 'static) {
            match &self.threads {
                Some(threads) if self.process == process() => threads.spawn(help),
                _ => {}
            }
        }
    }

    impl Drop for Pool {
        fn drop(&mut self) {
            if self.process != process() {
                std::mem::forget(self.threads.take());
            }
        }
    }

    /// Tells processes apart where one can be copied.
    fn process() -> u32 {
        if cfg!(unix) { std::process::id() } else { 0 }
    }

    /// A helper's time without work.
    #[derive(Default)]
    pub(in crate::par) struct Idle {
        since: Option<Instant>,
    }

    impl Idle {
        /// Spins a little; whether it has been long enough.
        pub(in crate::par) fn is_over(&mut self) -> bool {
            // A look at the clock costs as much as a dozen spins.
            for _ in 0..16 {
                std::hint::spin_loop();
            }
            self.since.get_or_insert_with(Instant::now).elapsed() > HELPER_PATIENCE
        }
    }

    /// Spins for a while, then lets others have the core, then sleeps in short steps.
    pub(in crate::par) fn wait_until(done: impl Fn() -> bool) {
        let mut since: Option<Instant> = None;
        loop {
            for _ in 0..32 {
                if done() {
                    return;
                }
                std::hint::spin_loop();
            }
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            if waited > 20 * CALLER_PATIENCE {
                std::thread::sleep(CALLER_PATIENCE);
            } else if waited > CALLER_PATIENCE {
                std::thread::yield_now();
            }
        }
    }
}

/// A checker knows no time: a helper leaves when it has looked for work often enough, and since the checker puts any
/// number of the others' steps between two looks, that is sooner and later than any work.
#[cfg(all(test, loom))]
mod model {
    pub(in crate::par) use loom::sync::Mutex;
    pub(in crate::par) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
    use rayon::ThreadPool;
    use std::sync::Arc;

    /// Every helper is a thread of its own.
    pub(in crate::par) struct Pool;

    impl From<Arc<ThreadPool>> for Pool {
        fn from(_: Arc<ThreadPool>) -> Pool {
            Pool
        }
    }

    impl Pool {
        pub(in crate::par) fn spawn(&self, help: impl FnOnce() + Send + 'static) {
            loom::thread::spawn(help);
        }
    }

    #[derive(Default)]
    pub(in crate::par) struct Idle {
        looks: usize,
    }

    impl Idle {
        pub(in crate::par) fn is_over(&mut self) -> bool {
            loom::thread::yield_now();
            self.looks += 1;
            self.looks > 1
        }
    }

    pub(in crate::par) fn wait_until(done: impl Fn() -> bool) {
        while !done() {
            loom::thread::yield_now();
        }
    }
}
