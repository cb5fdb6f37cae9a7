//! How much memory a call takes at its peak, counted per thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // While a thread ends its counters are gone, and nobody asks any more.
    let _ = LIVE.try_with(|live| {
        live.set(live.get().wrapping_add(bytes));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every request goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the system allocator's demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Calls `call`.
///
/// # Panics
/// When this thread had more than `allowed` bytes beyond what it had before, at any moment of the call.
pub(crate) fn within<R>(allowed: usize, call: impl FnOnce() -> R) -> R {
    let before = LIVE.get();
    PEAK.set(before);
    let result = call();
    let peak = PEAK.get() - before;
    assert!(peak <= allowed as isize, "{peak} bytes at the peak, allowed are {allowed}");
    result
}
