//! The protocol between a caller and its helpers.
//!
//! The caller publishes a [`Job`] and then a [`Ticket`] of its phase. Who wants a chunk takes it off the ticket in
//! one compare-and-swap, which fails when the phase is another by now; who holds a chunk may read the job, and
//! counts the chunk as finished when it is done. The caller returns, and the job with it, when all chunks are.
//! (`model.rs` tries all interleavings of small cases.)

use super::sync::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Idle, Mutex, wait_until};
use super::{MAX_CHUNKS, MAX_THREADS};
use crate::arch::FloatMode;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// What a phase still has to give away, in one word so that one compare-and-swap claims a chunk of
/// exactly the phase that was seen: the phase's number (32 bits), how many workers it admits (8), how
/// many chunks nobody has claimed (24).
#[derive(Clone, Copy)]
struct Ticket(u64);

impl Ticket {
    fn new(phase: u32, workers: usize, chunks: usize) -> Ticket {
        Ticket(u64::from(phase) << 32 | (workers as u64) << 24 | chunks as u64)
    }
    fn phase(self) -> u32 {
        (self.0 >> 32) as u32
    }
    fn workers(self) -> usize {
        (self.0 >> 24) as usize & MAX_THREADS
    }
    fn unclaimed(self) -> usize {
        self.0 as usize & MAX_CHUNKS
    }
    fn claimed_one(self) -> Ticket {
        Ticket(self.0 - 1)
    }
}

/// One phase of work, on the caller's stack while it runs.
struct Job<'a> {
    chunks: usize,
    work: &'a (dyn Fn(usize, usize) + Sync),
}

/// What the caller and its helpers share. Allocated once per team.
pub(super) struct State {
    /// A [`Ticket`].
    ticket: AtomicU64,
    /// The phase's [`Job`]. Read only by whoever holds a claimed, unfinished chunk of it.
    job: AtomicPtr<Job<'static>>,
    /// Chunks of this phase that are finished.
    finished: AtomicUsize,
    /// Between [`Team::open`] and its end.
    open: AtomicBool,
    /// One flag per helper: asked for and not yet back. At most one request is ever outstanding.
    asked: Box<[AtomicBool]>,
    /// Set beside `panic`, so that a call without one takes no lock.
    panicked: AtomicBool,
    /// The first panic of a chunk, handed to the caller.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl State {
    /// The state of a team with so many helpers, none of them asked for yet.
    pub(super) fn new(helpers: usize) -> State {
        State {
            ticket: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            finished: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            asked: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
        }
    }

    /// How many helpers there may be.
    pub(super) fn helpers(&self) -> usize {
        self.asked.len()
    }

    /// Begins a call, or ends it and sends the helpers home.
    pub(super) fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Release);
    }

    /// Whether a helper is to be asked for, being neither at work nor asked already; from now on it is.
    pub(super) fn asks_for(&self, worker: usize) -> bool {
        let asked = &self.asked[worker - 1];
        // Only the caller sets the flag.
        let absent = !asked.load(Ordering::Acquire);
        if absent {
            asked.store(true, Ordering::Relaxed);
        }
        absent
    }

    /// One phase with up to `threads` workers, the caller being worker 0: once it has begun, `ask` may send for
    /// helpers.
    ///
    /// # Panics
    /// With the first panic of a chunk, after all claimed chunks have ended.
    pub(super) fn run(
        &self,
        threads: usize,
        chunks: usize,
        work: &(dyn Fn(usize, usize) + Sync),
        ask: impl FnOnce(),
    ) {
        assert!(chunks <= MAX_CHUNKS, "{chunks} chunks in one phase");
        let job = Job { chunks, work };
        self.finished.store(0, Ordering::Relaxed);
        self.job.store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        let phase = Ticket(self.ticket.load(Ordering::Relaxed)).phase().wrapping_add(1);
        self.ticket.store(Ticket::new(phase, threads, chunks).0, Ordering::Release);
        ask();
        while self.work_once(0) {}
        wait_until(|| self.finished.load(Ordering::Acquire) == chunks);
        if self.panicked.swap(false, Ordering::Acquire) {
            let panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
            resume_unwind(panic.expect("a panic was recorded before its flag was set"));
        }
    }

    /// Claims one chunk of the current phase and runs it. `false` when none is left.
    fn work_once(&self, worker: usize) -> bool {
        let mut ticket = Ticket(self.ticket.load(Ordering::Acquire));
        loop {
            if ticket.unclaimed() == 0 || worker >= ticket.workers() {
                return false;
            }
            let claimed = ticket.claimed_one().0;
            match self.ticket.compare_exchange_weak(
                ticket.0,
                claimed,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => break,
                Err(now) => ticket = Ticket(now),
            }
        }
        // SAFETY: the swap claimed a chunk of the phase that `ticket` names. `run` published `job`
        // before that ticket and neither returns nor replaces `job` until this chunk is counted in
        // `finished`, so the pointer is this phase's and its target is alive.
        let job = unsafe { &*self.job.load(Ordering::Relaxed) };
        let chunk = job.chunks - ticket.unclaimed();
        let work = job.work;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(chunk, worker))) {
            let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            let later = match &mut *first {
                Some(_) => Some(panic),
                none => none.replace(panic),
            };
            drop(first);
            self.panicked.store(true, Ordering::Release);
            // Dropping a payload may panic in turn, and then this chunk would never be counted.
            if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(later))) {
                std::mem::forget(another);
            }
        }
        self.finished.fetch_add(1, Ordering::Release);
        true
    }

    /// A helper's stay: works while there is work, spins a bounded time while there is none.
    pub(super) fn help(&self, worker: usize) {
        let _mode = FloatMode::default_scope();
        let mut idle = Idle::default();
        while self.open.load(Ordering::Acquire) {
            if self.work_once(worker) {
                idle = Idle::default();
            } else if idle.is_over() {
                break;
            }
        }
        self.asked[worker - 1].store(false, Ordering::Release);
    }
}
