//! Which pages of the caches belong to which sequence.
//!
//! A sequence's keys and values lie in pages of [`PAGE`] tokens, the same pages in the cache of every layer. Sequences with
//! a common past share its pages; who writes to a shared one gets a copy first, and that can only be the
//! last page, unless it is full.

use crate::error::{Error, Result};
use crate::memory::{filled, room};
use headrow_kernels::attention::PAGE;

/// The pages that nobody has, and how many sequences have each of the others.
#[derive(Debug)]
pub(super) struct Pool {
    free: Vec<u32>,
    owners: Vec<u32>,
}

/// The pages of one sequence in their order. Made with room for as many as it may ever have.
#[derive(Debug)]
pub(super) struct Pages {
    list: Vec<u32>,
    /// Tokens in them.
    length: usize,
}

/// Pages for so many tokens.
pub(super) fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE)
}

impl Pool {
    pub(super) fn new(pages: usize) -> Option<Pool> {
        // The lowest is handed out first.
        let mut free = room(pages)?;
        free.extend((0..pages as u32).rev());
        Some(Pool { free, owners: filled(0, pages)? })
    }

    fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.owners[page as usize] = 1;
        Some(page)
    }

    fn give_back(&mut self, page: u32) {
        let owners = &mut self.owners[page as usize];
        *owners -= 1;
        if *owners == 0 {
            self.free.push(page);
        }
    }

    /// Tokens for which whole pages are free.
    pub(super) fn free_tokens(&self) -> usize {
        self.free.len() * PAGE
    }
}

impl Pages {
    /// No tokens, and room for the pages of `longest`.
    pub(super) fn new(longest: usize) -> Option<Pages> {
        Some(Pages { list: room(pages_for(longest))?, length: 0 })
    }

    pub(super) fn list(&self) -> &[u32] {
        &self.list
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Free pages that [`Pages::reserve`] for tokens up to `length` takes.
    fn wants(&self, pool: &Pool, length: usize) -> usize {
        let new = pages_for(length).saturating_sub(self.list.len());
        new + usize::from(self.shared_end(pool).is_some())
    }

    /// The place of the page to which the next token is written, when it has tokens and others have it too.
    fn shared_end(&self, pool: &Pool) -> Option<usize> {
        let place = self.length / PAGE;
        let partial = !self.length.is_multiple_of(PAGE);
        (partial && pool.owners[self.list[place] as usize] > 1).then_some(place)
    }

    /// Takes pages for tokens up to `length`, which are there once [`Pages::commit`] says so. `copy(from, to, tokens)` is
    /// called for a page that tokens will be written to and others have too, with so many tokens in it.
    ///
    /// # Errors
    /// [`Error::CacheFull`] when too few are free; nothing has changed then.
    pub(super) fn reserve(
        &mut self,
        pool: &mut Pool,
        length: usize,
        copy: impl FnOnce(u32, u32, usize),
    ) -> Result<()> {
        let wanted = self.wants(pool, length);
        if wanted > pool.free.len() {
            let tokens = wanted * PAGE;
            return Err(Error::CacheFull { tokens, free: pool.free_tokens() });
        }
        if let Some(place) = self.shared_end(pool) {
            let (shared, own) = (self.list[place], pool.take().expect("counted above"));
            copy(shared, own, self.length % PAGE);
            pool.give_back(shared);
            self.list[place] = own;
        }
        while self.list.len() < pages_for(length) {
            self.list.push(pool.take().expect("counted above"));
        }
        Ok(())
    }

    /// Tokens up to `length` are in the pages now.
    pub(super) fn commit(&mut self, length: usize) {
        self.length = length;
    }

    /// Becomes a second owner of the first `length` tokens of `other`.
    pub(super) fn share(&mut self, pool: &mut Pool, other: &Pages, length: usize) {
        self.truncate(pool, 0);
        let shared = &other.list[..pages_for(length)];
        shared.iter().for_each(|&page| pool.owners[page as usize] += 1);
        self.list.extend_from_slice(shared);
        self.length = length;
    }

    /// Gives back what lies behind the first `length` tokens.
    pub(super) fn truncate(&mut self, pool: &mut Pool, length: usize) {
        let kept = pages_for(length);
        self.list.drain(kept..).for_each(|page| pool.give_back(page));
        self.length = length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Pages {
        fn take(
            &mut self,
            pool: &mut Pool,
            length: usize,
            copy: impl FnOnce(u32, u32, usize),
        ) -> Result<()> {
            self.reserve(pool, length, copy)?;
            self.commit(length);
            Ok(())
        }
    }

    fn no_copy(from: u32, to: u32, _tokens: usize) {
        panic!("page {from} was copied to {to}");
    }

    #[test]
    fn pages_are_taken_and_given_back() {
        let mut pool = Pool::new(3).unwrap();
        let mut a = Pages::new(3 * PAGE).unwrap();
        a.take(&mut pool, 1, no_copy).unwrap();
        a.take(&mut pool, PAGE, no_copy).unwrap();
        assert_eq!((a.list(), a.length(), pool.free.len()), (&[0][..], PAGE, 2));
        a.take(&mut pool, PAGE + 1, no_copy).unwrap();
        assert_eq!(a.list(), [0, 1]);
        assert!(matches!(
            a.take(&mut pool, 3 * PAGE + 1, no_copy),
            Err(Error::CacheFull { free, .. }) if free == PAGE
        ));
        assert_eq!((a.list().len(), a.length()), (2, PAGE + 1));
        // Pages for tokens that never came are given back, or taken later.
        a.reserve(&mut pool, 3 * PAGE, no_copy).unwrap();
        assert_eq!((a.list().len(), a.length(), pool.free.len()), (3, PAGE + 1, 0));
        a.take(&mut pool, PAGE + 2, no_copy).unwrap();
        a.truncate(&mut pool, 5);
        assert_eq!((a.list(), pool.free.len()), (&[0][..], 2));
        a.truncate(&mut pool, 0);
        assert_eq!(pool.free.len(), 3);
    }

    #[test]
    fn a_shared_page_is_copied_when_written_to() {
        let mut pool = Pool::new(8).unwrap();
        let mut a = Pages::new(3 * PAGE).unwrap();
        let mut b = Pages::new(3 * PAGE).unwrap();
        a.take(&mut pool, PAGE + 3, no_copy).unwrap();
        b.share(&mut pool, &a, PAGE + 3);
        assert_eq!((b.list(), pool.free.len()), (a.list(), 6));
        // The first to write copies, the second has the page to itself by then.
        let mut copied = None;
        b.take(&mut pool, PAGE + 4, |from, to, tokens| copied = Some((from, to, tokens))).unwrap();
        assert_eq!((copied, a.list()[0], b.list()[0]), (Some((1, b.list()[1], 3)), 0, 0));
        a.take(&mut pool, PAGE + 4, no_copy).unwrap();
        // Whole pages stay shared.
        let mut c = Pages::new(3 * PAGE).unwrap();
        c.share(&mut pool, &a, PAGE);
        c.take(&mut pool, PAGE + 1, no_copy).unwrap();
        assert_eq!(c.list()[0], 0);
        for pages in [&mut a, &mut b, &mut c] {
            pages.truncate(&mut pool, 0);
        }
        assert_eq!(pool.free.len(), 8);
        assert!(pool.owners.iter().all(|&owners| owners == 0));
    }
}
