//! An allocator that counts what each thread asks it for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts what each thread allocates.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(calls: usize, bytes: isize) {
    // Threads that are ending have no counters any more.
    let _ = CALLS.try_with(|c| c.set(c.get() + calls));
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`, which is this one's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`, and `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls of the allocator, bytes kept and the peak of bytes while `f` runs on this thread.
pub(crate) fn counted<R>(f: impl FnOnce() -> R) -> (R, usize, usize, usize) {
    let (calls, live) = (CALLS.get(), LIVE.get());
    PEAK.set(live);
    let result = f();
    let kept = (LIVE.get() - live).max(0) as usize;
    (result, CALLS.get() - calls, kept, (PEAK.get() - live) as usize)
}
