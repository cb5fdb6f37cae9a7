//! An allocator that can be told to refuse.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Refuses some of what a thread asks for.
struct Refusing;

/// Which requests of a thread are refused, counted from where the counting began.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refused {
    None,
    Only(usize),
    From(usize),
}

thread_local! {
    static REFUSED: Cell<Refused> = const { Cell::new(Refused::None) };
    static REQUESTS: Cell<usize> = const { Cell::new(0) };
}

/// Counts a request; whether it is refused.
fn refuses() -> bool {
    // Threads that are ending count no more.
    let Ok(number) = REQUESTS.try_with(|requests| requests.replace(requests.get() + 1)) else {
        return false;
    };
    REFUSED.try_with(Cell::get).is_ok_and(|refused| match refused {
        Refused::None => false,
        Refused::Only(refused) => number == refused,
        Refused::From(first) => number >= first,
    })
}

// SAFETY: every call is passed on to the system's allocator unchanged or answered by null, which an allocator may do;
// counting allocates nothing.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match refuses() {
            true => std::ptr::null_mut(),
            // SAFETY: the caller keeps the contract of `alloc`, which is this one's.
            false => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// What `call` gives when these requests of it are refused, and how many there were.
pub(crate) fn refusing<R>(refused: Refused, call: impl FnOnce() -> R) -> (R, usize) {
    REQUESTS.set(0);
    REFUSED.set(refused);
    let result = call();
    REFUSED.set(Refused::None);
    (result, REQUESTS.get())
}
