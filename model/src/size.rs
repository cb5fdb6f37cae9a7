//! How large the parts of a model are.

use headrow_kernels::PackedB;
use std::iter::Sum;
use std::ops::Add;
use std::sync::Arc;

/// How many numbers a part has, and the memory they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) numbers: usize,
    pub(crate) bytes: usize,
}

impl Size {
    /// Numbers side by side.
    pub(crate) fn plain(numbers: &[f32]) -> Size {
        Size { numbers: numbers.len(), bytes: size_of_val(numbers) }
    }

    /// A packed matrix, which is padded to whole panels.
    pub(crate) fn packed(matrix: &PackedB) -> Size {
        Size { numbers: matrix.k() * matrix.n(), bytes: matrix.bytes() }
    }
}

impl Add for Size {
    type Output = Size;

    fn add(self, other: Size) -> Size {
        Size { numbers: self.numbers + other.numbers, bytes: self.bytes + other.bytes }
    }
}

impl Sum for Size {
    fn sum<I: Iterator<Item = Size>>(sizes: I) -> Size {
        sizes.fold(Size::default(), Add::add)
    }
}

/// Sizes by the name of the part.
#[derive(Default)]
pub(crate) struct Sizes {
    pub(crate) parts: Vec<(&'static str, Size)>,
    /// Addresses of what several parts may have, and was counted.
    shared: Vec<*const ()>,
}

impl Sizes {
    /// Adds to a part. Empty parts are not listed.
    pub(crate) fn add(&mut self, name: &'static str, size: Size) {
        match self.parts.iter_mut().find(|(part, _)| *part == name) {
            Some((_, sum)) => *sum = *sum + size,
            None if size.numbers > 0 => self.parts.push((name, size)),
            None => {}
        }
    }

    /// Adds something that several parts may share, unless another part has it too.
    pub(crate) fn shared<T>(&mut self, name: &'static str, shared: &Arc<T>, size: Size) {
        let address = Arc::as_ptr(shared).cast();
        if !self.shared.contains(&address) {
            self.shared.push(address);
            self.add(name, size);
        }
    }
}
