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

use crate::arch::FloatMode;
use crate::scratch::{Need, Stack};
use crate::view::MatMut;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::any::Any;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a helper without work keeps spinning before it goes back to the pool. Longer than the
/// gaps between the phases of a forward pass, short against a scheduler's slice.
const HELPER_PATIENCE: Duration = Duration::from_micros(60);

/// How long the caller spins for claimed chunks before it yields the core: the helper that holds one may
/// have been descheduled, perhaps in favour of this very spin.
const CALLER_PATIENCE: Duration = Duration::from_micros(30);

/// Most chunks in one phase.
pub const MAX_CHUNKS: usize = (1 << 24) - 1;
/// Most workers in a team.
pub const MAX_THREADS: usize = (1 << 8) - 1;

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
struct State {
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
            match *first {
                None => *first = Some(panic),
                // Dropping a payload may panic in turn, and then this chunk would never be counted.
                Some(_) => std::mem::forget(panic),
            }
            drop(first);
            self.panicked.store(true, Ordering::Release);
        }
        self.finished.fetch_add(1, Ordering::Release);
        true
    }

    /// A helper's stay: works while there is work, spins a bounded time while there is none.
    fn help(&self, worker: usize) {
        let _mode = FloatMode::default_scope();
        let mut idle_since: Option<Instant> = None;
        while self.open.load(Ordering::Acquire) {
            if self.work_once(worker) {
                idle_since = None;
                continue;
            }
            // A look at the clock costs as much as a dozen spins.
            for _ in 0..16 {
                std::hint::spin_loop();
            }
            match idle_since {
                None => idle_since = Some(Instant::now()),
                Some(since) if since.elapsed() > HELPER_PATIENCE => break,
                Some(_) => {}
            }
        }
        self.asked[worker - 1].store(false, Ordering::Release);
    }
}

/// The caller and its possible helpers, allocated once and used for one call at a time.
///
/// A team starts no thread: helpers come from the rayon pool it was given, or from one that
/// [`Team::new`] builds and the team owns.
pub struct Team {
    state: Arc<State>,
    pool: Option<Arc<ThreadPool>>,
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
            None => Team::build(None, 0),
        }
    }

    /// A team of up to `threads` workers, the caller included, with helpers from `pool`.
    pub fn with_pool(pool: Arc<ThreadPool>, threads: usize) -> Team {
        let helpers = threads.min(MAX_THREADS).saturating_sub(1).min(pool.current_num_threads());
        Team::build(Some(pool), helpers)
    }

    fn build(pool: Option<Arc<ThreadPool>>, helpers: usize) -> Team {
        let state = State {
            ticket: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            finished: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            asked: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
        };
        Team { state: Arc::new(state), pool }
    }

    /// Workers at most, the caller included.
    pub fn threads(&self) -> usize {
        self.state.asked.len() + 1
    }

    /// Runs `call` with this team's workers. Helpers are asked for and not awaited.
    pub fn open<R>(&mut self, call: impl FnOnce(Par<'_>) -> R) -> R {
        let _mode = FloatMode::default_scope();
        if self.threads() == 1 {
            return call(Par::SERIAL);
        }
        /// Sends the helpers home, also when `call` panics.
        struct Close<'a>(&'a State);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                self.0.open.store(false, Ordering::Release);
            }
        }
        self.state.open.store(true, Ordering::Release);
        let _close = Close(&self.state);
        let par =
            Par { team: Some(self), threads: self.threads(), cancel: None, here: PhantomData };
        par.ask_for_helpers();
        call(par)
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("threads", &self.threads()).finish()
    }
}

/// A request to give up: a flag that any thread may set, and perhaps a time after which it counts as set.
///
/// Clones are handles of the same flag. Making one allocates; asking it does not, and costs a load, or with a
/// deadline a look at the clock (about 25 ns).
///
/// ```
/// use headrow_kernels::{Cancel, Par};
/// let cancel = Cancel::new();
/// let handle = cancel.clone();
/// std::thread::spawn(move || handle.cancel()).join().unwrap();
/// let par = Par::SERIAL.with_cancel(&cancel);
/// par.run(1000, &|_, _| unreachable!("given up before it began"));
/// assert!(par.is_cancelled());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    shared: Arc<Request>,
}

#[derive(Debug, Default)]
struct Request {
    set: AtomicBool,
    deadline: Option<Instant>,
}

impl Cancel {
    /// Set by [`Cancel::cancel`] alone.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Set by [`Cancel::cancel`], or once `deadline` has come.
    pub fn with_deadline(deadline: Instant) -> Cancel {
        let request = Request { set: AtomicBool::new(false), deadline: Some(deadline) };
        Cancel { shared: Arc::new(request) }
    }

    /// Asks whoever works with a handle of this flag to give up. It cannot be taken back.
    pub fn cancel(&self) {
        self.shared.set.store(true, Ordering::Release);
    }

    /// Whether the flag is set or its time has come; once true, always true.
    pub fn is_cancelled(&self) -> bool {
        if self.shared.set.load(Ordering::Acquire) {
            return true;
        }
        let late = self.shared.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if late {
            self.cancel();
        }
        late
    }
}

/// Who may work on this call: [`Par::SERIAL`], or what [`Team::open`] hands to its closure.
///
/// Neither `Send` nor `Sync`: only the thread that opened the team starts phases, one at a time.
#[derive(Clone, Copy)]
pub struct Par<'a> {
    team: Option<&'a Team>,
    threads: usize,
    cancel: Option<&'a Cancel>,
    here: PhantomData<*const ()>,
}

impl<'a> Par<'a> {
    /// The caller alone; touches no pool.
    pub const SERIAL: Par<'static> =
        Par { team: None, threads: 1, cancel: None, here: PhantomData };

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
            1 => Par { team: None, threads: 1, ..self },
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
        let team = match self.team {
            Some(team) if chunks > 1 && self.threads > 1 => team,
            _ => return (0..chunks).for_each(|chunk| work(chunk, 0)),
        };
        assert!(chunks <= MAX_CHUNKS, "{chunks} chunks in one phase");
        let state = &*team.state;
        let job = Job { chunks, work };
        state.finished.store(0, Ordering::Relaxed);
        state.job.store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        let phase = Ticket(state.ticket.load(Ordering::Relaxed)).phase().wrapping_add(1);
        let ticket = Ticket::new(phase, self.threads, chunks);
        state.ticket.store(ticket.0, Ordering::Release);
        self.ask_for_helpers();
        while state.work_once(0) {}
        wait_until(|| state.finished.load(Ordering::Acquire) == chunks);
        if state.panicked.swap(false, Ordering::Acquire) {
            let panic = state.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
            resume_unwind(panic.expect("a panic was recorded before its flag was set"));
        }
    }

    /// [`Par::run`] with a part of `stack`, `each` in size, for every worker.
    ///
    /// The stack must hold [`Par::need`] of `each`.
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

    /// Hands out `out` in blocks of `rows_per_chunk` whole rows: `work(first_row, block)`.
    pub fn for_rows<T: Send>(
        self,
        out: MatMut<'_, T>,
        rows_per_chunk: usize,
        work: &(dyn Fn(usize, MatMut<'_, T>) + Sync),
    ) {
        let grain = rows_per_chunk.max(1);
        let out = RowBlocks::new(out);
        self.run(out.rows.div_ceil(grain), &|chunk, _| {
            let first = chunk * grain;
            // SAFETY: each chunk index is run once, and the blocks of different chunks are disjoint.
            let block = unsafe { out.block(first, grain.min(out.rows - first)) };
            work(first, block);
        });
    }

    /// As [`Par::for_rows`] for two outputs of equally many rows: `work(first_row, block of a, block of b)`.
    ///
    /// # Panics
    /// When the numbers of rows differ.
    #[track_caller]
    #[allow(clippy::type_complexity)]
    pub fn for_rows_of_two<A: Send, B: Send>(
        self,
        a: MatMut<'_, A>,
        b: MatMut<'_, B>,
        rows_per_chunk: usize,
        work: &(dyn Fn(usize, MatMut<'_, A>, MatMut<'_, B>) + Sync),
    ) {
        assert_eq!(a.rows(), b.rows(), "two outputs of different numbers of rows");
        let none = MatMut::new(&mut [(); 0], a.rows(), 0);
        self.for_rows_of_three(a, b, none, rows_per_chunk, &|first, a, b, _| work(first, a, b));
    }

    /// As [`Par::for_rows_of_two`] for three.
    ///
    /// # Panics
    /// When the numbers of rows differ.
    #[track_caller]
    #[allow(clippy::type_complexity)]
    pub fn for_rows_of_three<A: Send, B: Send, C: Send>(
        self,
        a: MatMut<'_, A>,
        b: MatMut<'_, B>,
        c: MatMut<'_, C>,
        rows_per_chunk: usize,
        work: &(dyn Fn(usize, MatMut<'_, A>, MatMut<'_, B>, MatMut<'_, C>) + Sync),
    ) {
        let all = [a.rows(), b.rows(), c.rows()];
        assert!(all == [a.rows(); 3], "three outputs of {all:?} rows");
        let grain = rows_per_chunk.max(1);
        let (a, b, c) = (RowBlocks::new(a), RowBlocks::new(b), RowBlocks::new(c));
        self.run(a.rows.div_ceil(grain), &|chunk, _| {
            let first = chunk * grain;
            let rows = grain.min(a.rows - first);
            // SAFETY: each chunk index is run once, and the blocks of different chunks are disjoint.
            let (a, b, c) =
                unsafe { (a.block(first, rows), b.block(first, rows), c.block(first, rows)) };
            work(first, a, b, c);
        });
    }

    /// Hands out `out` in blocks of `columns_per_chunk` columns, all rows of them: `work(first_column, block)`.
    pub(crate) fn for_columns<T: Send>(
        self,
        out: MatMut<'_, T>,
        columns_per_chunk: usize,
        work: &(dyn Fn(usize, ColumnBlock<'_, T>) + Sync),
    ) {
        let grain = columns_per_chunk.max(1);
        let cols = out.cols();
        let out = RowBlocks::new(out);
        self.run(cols.div_ceil(grain), &|chunk, _| {
            let first = chunk * grain;
            work(first, ColumnBlock { all: &out, first, cols: grain.min(cols - first) });
        });
    }

    /// Tickets for helpers that are neither at work nor already asked.
    fn ask_for_helpers(self) {
        let Some(Team { state, pool: Some(pool) }) = self.team else { return };
        for worker in 1..self.threads {
            let asked = &state.asked[worker - 1];
            if !asked.load(Ordering::Acquire) {
                asked.store(true, Ordering::Relaxed);
                let state = Arc::clone(state);
                pool.spawn(move || state.help(worker));
            }
        }
    }
}

/// A matrix that several workers write by disjoint blocks of rows.
struct RowBlocks<'a, T> {
    base: *mut T,
    rows: usize,
    cols: usize,
    stride: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: `block` asks its caller for disjoint blocks, so threads never share an element.
unsafe impl<T: Send> Sync for RowBlocks<'_, T> {}

impl<'a, T> RowBlocks<'a, T> {
    fn new(mut out: MatMut<'a, T>) -> Self {
        let (rows, cols, stride) = (out.rows(), out.cols(), out.stride());
        RowBlocks { base: out.as_mut_ptr(), rows, cols, stride, borrowed: PhantomData }
    }

    /// Rows `first .. first + rows`.
    ///
    /// # Safety
    /// The block lies inside the matrix and overlaps no other live block.
    unsafe fn block(&self, first: usize, rows: usize) -> MatMut<'_, T> {
        if rows == 0 || self.cols == 0 {
            return MatMut::with_stride(&mut [], rows, self.cols, self.stride);
        }
        let len = (rows - 1) * self.stride + self.cols;
        // SAFETY: rows `first..first + rows` span exactly these elements of the borrowed matrix; the
        // last row ends before the next block begins, and the caller promises disjointness.
        let data =
            unsafe { std::slice::from_raw_parts_mut(self.base.add(first * self.stride), len) };
        MatMut::with_stride(data, rows, self.cols, self.stride)
    }
}

/// Some columns of a matrix, which one worker writes while others write other columns. Not a [`MatMut`], whose slice
/// would hold their elements too.
pub(crate) struct ColumnBlock<'a, T> {
    all: &'a RowBlocks<'a, T>,
    first: usize,
    cols: usize,
}

impl<T> ColumnBlock<'_, T> {
    /// These columns of row `i`.
    #[inline]
    pub(crate) fn row_mut(&mut self, i: usize) -> &mut [T] {
        let RowBlocks { base, rows, stride, .. } = *self.all;
        assert!(i < rows, "row {i} of a matrix of {rows} rows");
        // SAFETY: these elements of row i of the borrowed matrix lie in no other block (`Par::for_columns`), and
        // this one is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(base.add(i * stride + self.first), self.cols) }
    }
}

/// Spins for a while, then lets others have the core, then sleeps in short steps.
fn wait_until(done: impl Fn() -> bool) {
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

/// How many threads a call should use when the caller has no wish: what the affinity mask and the
/// cgroup quota allow (rounded down), at most the number of physical cores, at least 1.
pub fn default_threads() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    physical_cores().map_or(allowed, |cores| allowed.min(cores)).clamp(1, MAX_THREADS)
}

/// Physical cores that the affinity mask reaches, where Linux tells: one per distinct set of sibling
/// threads.
fn physical_cores() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let cores: Option<BTreeSet<String>> = cpu_list(allowed)?
        .map(|cpu| {
            let siblings =
                format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            std::fs::read_to_string(siblings).ok()
        })
        .collect();
    cores.map(|cores| cores.len()).filter(|&cores| cores > 0)
}

/// The numbers in a list as the kernel writes it, such as `0-3,8`; `None` when it is not one.
fn cpu_list(list: &str) -> Option<impl Iterator<Item = usize>> {
    let ranges: Option<Vec<_>> = list
        .trim()
        .split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            (last < 1 << 16).then_some(first..=last)
        })
        .collect();
    Some(ranges?.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!((1..=20 * threads).contains(&ran.into_inner()));
        }
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

    #[test]
    fn lists_of_processors_are_read() {
        let read = |list: &str| cpu_list(list).map(Iterator::collect::<Vec<_>>);
        assert_eq!(read("\t0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(read("5"), Some(vec![5]));
        assert_eq!(read("0-99999999"), None);
        assert_eq!(read("none"), None);
        assert!((1..=MAX_THREADS).contains(&default_threads()));
    }
}
