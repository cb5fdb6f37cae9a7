//! Scratch memory: how much an operation needs, one allocation for all of it, and lending in stack order.
//!
//! Every operation has a function `…_scratch(shape) -> Need` beside it. A caller adds needs up with
//! [`Need::and`] (live at the same time) and [`Need::or`] (one after the other), allocates once, and
//! lends the memory down the call tree through [`Stack`]. Nothing is allocated inside an operation.
//!
//! ```
//! use headrow_kernels::{Need, Scratch};
//! let need = Need::of::<f32>(100).and(Need::of::<f32>(7)).or(Need::of::<u32>(3));
//! let mut scratch = Scratch::new(need);
//! let mut stack = scratch.stack();
//! let (scores, mut rest) = stack.take::<f32>(100);
//! let (sums, _) = rest.take::<f32>(7);
//! assert_eq!((scores.len(), sums.len()), (100, 7));
//! ```

use aligned_vec::{AVec, ConstAlign};
use std::alloc::{Layout, handle_alloc_error};

/// Alignment of every piece that is lent, in bytes: a cache line, and the widest vector.
pub const ALIGN: usize = 64;

/// Types that scratch memory can hold: every bit pattern is a value, no wider than a cache line.
///
/// Sealed: [`f32`], [`f64`], [`u32`], [`i32`], [`u64`], [`usize`] and [`u8`].
pub trait Plain: sealed::Sealed + Copy + Default + 'static {}

mod sealed {
    /// # Safety
    /// Every bit pattern is a valid value, and the alignment divides [`super::ALIGN`].
    pub unsafe trait Sealed {}
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        // SAFETY: a primitive number: all bit patterns are values, aligned to at most 8 bytes.
        unsafe impl sealed::Sealed for $t {}
        impl Plain for $t {}
    )*};
}
plain!(f32, f64, u32, i32, u64, usize, u8);

/// An amount of scratch memory, in whole cache lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[must_use]
pub struct Need {
    bytes: usize,
}

impl Need {
    /// No memory at all.
    pub const NONE: Need = Need { bytes: 0 };

    /// Room for `len` values of `T`.
    ///
    /// # Panics
    /// When the size in bytes overflows.
    #[track_caller]
    pub fn of<T: Plain>(len: usize) -> Need {
        let bytes = len.checked_mul(size_of::<T>()).and_then(|b| b.checked_next_multiple_of(ALIGN));
        Need { bytes: bytes.expect("scratch size overflows") }
    }

    /// Both at the same time: the sum.
    ///
    /// # Panics
    /// When it overflows.
    #[track_caller]
    pub fn and(self, other: Need) -> Need {
        Need { bytes: self.bytes.checked_add(other.bytes).expect("scratch size overflows") }
    }

    /// One after the other: the maximum.
    pub fn or(self, other: Need) -> Need {
        self.max(other)
    }

    /// `n` of these at the same time, as for `n` workers.
    ///
    /// # Panics
    /// When that overflows.
    #[track_caller]
    pub fn times(self, n: usize) -> Need {
        Need { bytes: self.bytes.checked_mul(n).expect("scratch size overflows") }
    }

    /// The amount in bytes, a multiple of [`ALIGN`].
    pub const fn bytes(self) -> usize {
        self.bytes
    }
}

/// Room for `len` values, aligned to [`ALIGN`] and not touched yet; `None` when the allocator refuses.
pub(crate) fn room<T: Plain>(len: usize) -> Option<AVec<T, ConstAlign<ALIGN>>> {
    let mut memory = AVec::new(ALIGN);
    memory.try_reserve_exact(len).ok()?;
    prefer_large_pages(memory.as_mut_ptr(), len);
    Some(memory)
}

/// `len` zeros, aligned to [`ALIGN`]; `None` when the allocator refuses.
pub(crate) fn zeros<T: Plain>(len: usize) -> Option<AVec<T, ConstAlign<ALIGN>>> {
    let mut memory = room(len)?;
    memory.resize(len, T::default());
    Some(memory)
}

/// What an allocation of so many bytes without an error to give ends in.
pub(crate) fn refused(bytes: usize) -> ! {
    let layout = Layout::from_size_align(bytes, ALIGN);
    handle_alloc_error(layout.expect("the size overflows the address space"))
}

/// Asks for large pages below a large piece of memory that nobody has touched: its pages then come in one fault where there
/// would be hundreds, and take few entries in the processor's tables. A hint; the system may have none.
#[cfg(target_os = "linux")]
fn prefer_large_pages<T>(memory: *mut T, len: usize) {
    /// A multiple of every page that is not large.
    const PAGE: usize = 1 << 16;
    const LARGE: usize = 1 << 21;
    let (first, bytes) = (memory.addr(), len * size_of::<T>());
    if bytes < LARGE {
        return;
    }
    let skipped = first.next_multiple_of(PAGE) - first;
    let bytes = (bytes - skipped) / PAGE * PAGE;
    // SAFETY: whole pages inside one allocation, whose contents this advice does not change. That a system without large
    // pages refuses it is no fault.
    unsafe { libc::madvise(memory.wrapping_byte_add(skipped).cast(), bytes, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn prefer_large_pages<T>(_: *mut T, _: usize) {}

/// One allocation, lent out piece by piece through [`Scratch::stack`].
#[derive(Debug)]
pub struct Scratch {
    memory: AVec<u8, ConstAlign<ALIGN>>,
}

impl Scratch {
    /// Allocates `need`, zeroed.
    ///
    /// Exhausted memory goes to the global allocator's handler, which aborts; see [`Scratch::try_new`].
    pub fn new(need: Need) -> Scratch {
        Scratch::try_new(need).unwrap_or_else(|| refused(need.bytes))
    }

    /// Allocates `need`, zeroed, or gives `None` when the allocator refuses.
    pub fn try_new(need: Need) -> Option<Scratch> {
        Some(Scratch { memory: zeros(need.bytes)? })
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// The whole memory as a stack. What an earlier stack left in it is still there and means nothing.
    pub fn stack(&mut self) -> Stack<'_> {
        Stack { rest: &mut self.memory }
    }
}

/// Scratch memory that is lent in stack order: what [`Stack::take`] hands out is returned when it goes
/// out of scope, and the stack it came from can be used again.
#[derive(Debug)]
pub struct Stack<'a> {
    rest: &'a mut [u8],
}

impl Stack<'_> {
    /// Lends `len` values of `T`, aligned to [`ALIGN`], and a stack of what remains.
    /// The values are whatever an earlier use left there.
    ///
    /// # Panics
    /// When less than that is left: the caller's [`Need`] was too small.
    #[track_caller]
    pub fn take<T: Plain>(&mut self, len: usize) -> (&mut [T], Stack<'_>) {
        let bytes = Need::of::<T>(len).bytes;
        assert!(
            bytes <= self.rest.len(),
            "scratch too small: {bytes} bytes asked, {} left",
            self.rest.len()
        );
        let (piece, rest) = self.rest.split_at_mut(bytes);
        // SAFETY: `piece` is exclusively ours and initialised, starts at a multiple of `ALIGN` (the
        // memory does, and pieces are whole cache lines) or is empty, and holds at least `len`
        // values of `T`, for which every bit pattern is valid (`Plain` is sealed).
        let values = unsafe { std::slice::from_raw_parts_mut(piece.as_mut_ptr().cast::<T>(), len) };
        (values, Stack { rest })
    }

    /// Bytes left.
    pub fn bytes_left(&self) -> usize {
        self.rest.len()
    }

    /// The same memory for a shorter time.
    pub fn reborrow(&mut self) -> Stack<'_> {
        Stack { rest: self.rest }
    }

    /// Cuts the memory into equal parts, one per worker, to be claimed by index from several threads.
    #[track_caller]
    pub(crate) fn share(&mut self, workers: usize, each: Need) -> Shared<'_> {
        let all = each.times(workers);
        assert!(
            all.bytes <= self.rest.len(),
            "scratch too small: {workers} workers of {} bytes asked, {} left",
            each.bytes,
            self.rest.len()
        );
        Shared {
            base: self.rest.as_mut_ptr(),
            each: each.bytes,
            workers,
            lent: std::marker::PhantomData,
        }
    }
}

/// Scratch memory cut into one part per worker.
pub(crate) struct Shared<'a> {
    base: *mut u8,
    each: usize,
    workers: usize,
    lent: std::marker::PhantomData<&'a mut [u8]>,
}

// SAFETY: the parts do not overlap, and `part` asks its caller to use each from one thread at a time.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    /// The part of one worker.
    ///
    /// # Safety
    /// No two live stacks of the same worker's part may exist at the same time.
    pub(crate) unsafe fn part(&self, worker: usize) -> Stack<'_> {
        assert!(worker < self.workers, "worker {worker} of {}", self.workers);
        // SAFETY: part `worker` lies inside the borrowed memory (checked in `share`), disjoint from the
        // other workers' parts; the caller promises that nobody else holds this one.
        let rest =
            unsafe { std::slice::from_raw_parts_mut(self.base.add(worker * self.each), self.each) };
        Stack { rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_add_up_in_cache_lines() {
        assert_eq!(Need::of::<f32>(1).bytes(), 64);
        assert_eq!(Need::of::<f32>(17).bytes(), 128);
        assert_eq!(Need::of::<u8>(64).and(Need::of::<u8>(65)).bytes(), 192);
        assert_eq!(Need::of::<u8>(64).or(Need::of::<u8>(65)).bytes(), 128);
        assert_eq!(Need::of::<u8>(64).times(3).bytes(), 192);
        assert_eq!(Need::of::<f64>(0), Need::NONE);
    }

    #[test]
    #[should_panic(expected = "overflows")]
    fn an_absurd_need_is_refused() {
        let _ = Need::of::<f32>(usize::MAX / 2);
    }

    #[test]
    fn pieces_are_aligned_disjoint_and_returned() {
        let mut scratch = Scratch::new(Need::of::<f32>(3).and(Need::of::<u8>(5)));
        let mut stack = scratch.stack();
        for _ in 0..2 {
            let (a, mut rest) = stack.take::<f32>(3);
            let (b, rest) = rest.take::<u8>(5);
            a.fill(1.5);
            b.fill(7);
            assert_eq!(a.as_ptr() as usize % ALIGN, 0);
            assert_eq!(b.as_ptr() as usize % ALIGN, 0);
            assert_eq!(a, [1.5; 3]);
            assert_eq!(rest.bytes_left(), 0);
        }
    }

    #[test]
    #[should_panic(expected = "scratch too small")]
    fn taking_more_than_is_left_is_refused() {
        let mut scratch = Scratch::new(Need::of::<f32>(16));
        let _ = scratch.stack().take::<f32>(17);
    }

    #[test]
    fn an_impossible_allocation_is_refused() {
        let need = Need::of::<u8>(isize::MAX as usize - 63);
        assert!(Scratch::try_new(need).is_none());
    }
}
