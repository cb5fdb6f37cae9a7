//! Memory that workers write to in disjoint parts.

use std::marker::PhantomData;

/// A slice of which each worker writes a part of its own.
pub(super) struct Parts<'a, T> {
    first: *mut T,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: the parts are disjoint: see the uses.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Parts<'a, T> {
        Parts { first: slice.as_mut_ptr(), borrowed: PhantomData }
    }

    /// Address of element `index`.
    ///
    /// # Safety
    /// It lies inside the slice.
    pub(super) unsafe fn at(&self, index: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.first.add(index) }
    }

    /// Elements `first..first + len`.
    ///
    /// # Safety
    /// They lie inside the slice, and nobody else uses them meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that parts are disjoint")]
    pub(super) unsafe fn part(&self, first: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(first), len) }
    }
}
