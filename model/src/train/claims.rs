//! Memory of a network in training. It is counted as a whole before any of it is taken: a size beyond the machine is an error, and not
//! the end of the process.

use crate::error::{Error, Result};
use std::hint::black_box;

/// What buffers ask for: counted first, then taken.
#[derive(Debug)]
pub(crate) struct Claims {
    counting: bool,
    bytes: usize,
}

impl Claims {
    /// Counts: every buffer stays empty.
    pub(crate) fn counting() -> Claims {
        Claims { counting: true, bytes: 0 }
    }

    /// Takes.
    pub(crate) fn taking() -> Claims {
        Claims { counting: false, bytes: 0 }
    }

    /// Bytes of all claims so far, as many as there are numbers for.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Claims bytes that somebody else takes, and says whether they are only counted.
    pub(crate) fn counts(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        self.counting
    }

    /// Room for so many values.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when it is to be taken and is not there.
    pub(crate) fn room<T>(&mut self, count: usize) -> Result<Vec<T>> {
        let bytes = count.saturating_mul(size_of::<T>());
        let mut values = Vec::new();
        if !self.counts(bytes) {
            values.try_reserve_exact(count).map_err(|_| refused(bytes))?;
        }
        Ok(values)
    }

    /// Rows × columns values, all zero.
    ///
    /// # Errors
    /// As [`Claims::room`].
    pub(crate) fn zeros<T: Clone + Default>(&mut self, rows: usize, cols: usize) -> Result<Vec<T>> {
        let count = rows.saturating_mul(cols);
        let mut values = self.room(count)?;
        if !self.counting {
            values.resize(count, T::default());
        }
        Ok(values)
    }
}

/// Refuses what the system would not give at once. Nothing of it is kept or touched.
///
/// A system may promise piece by piece more than it has, and end the process when that is used; for a single piece beyond all its
/// memory it does not.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub(crate) fn probe(bytes: usize) -> Result<()> {
    let mut whole = Vec::<u8>::new();
    let done = whole.try_reserve_exact(bytes);
    // A compiler may take away an allocation that nobody looks at.
    black_box(&mut whole);
    done.map_err(|_| refused(bytes))
}

fn refused(bytes: usize) -> Error {
    Error::out_of_memory(format_args!("{bytes} bytes of training"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_what_is_taken() {
        let claim = |claims: &mut Claims| {
            let (a, b) = (claims.zeros::<f32>(3, 5).unwrap(), claims.room::<u64>(7).unwrap());
            (a.len(), a.capacity() * 4 + b.capacity() * 8)
        };
        let (mut counting, mut taking) = (Claims::counting(), Claims::taking());
        assert_eq!(claim(&mut counting), (0, 0));
        assert_eq!(claim(&mut taking), (15, 116));
        assert_eq!((counting.bytes(), taking.bytes()), (116, 116));
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        let mut counting = Claims::counting();
        counting.zeros::<f32>(usize::MAX, 3).unwrap();
        counting.zeros::<f32>(usize::MAX, 3).unwrap();
        assert_eq!(counting.bytes(), usize::MAX);
        for bytes in [usize::MAX, isize::MAX as usize] {
            assert!(matches!(probe(bytes), Err(Error::OutOfMemory(_))));
        }
        assert!(Claims::taking().zeros::<f32>(usize::MAX / 64, 16).is_err());
        assert!(probe(1 << 20).is_ok());
    }
}
