//! The tensors of a plan, one behind the other.

use crate::origin::{Initial, Planned};
use std::collections::BTreeMap;
use std::ops::Range;

/// What was asked for so far, in this order.
#[derive(Default)]
pub(super) struct Listing {
    pub(super) tensors: Vec<Planned>,
    /// Where in the list each name is: layers are many, and each asks by name.
    by_name: BTreeMap<String, usize>,
}

impl Listing {
    /// The tensor's place behind all that was asked for before. A tensor that several parts have is there once.
    pub(super) fn place(&mut self, name: &str, shape: &[usize], initial: Initial) -> Range<usize> {
        if let Some(&index) = self.by_name.get(name) {
            let known = &mut self.tensors[index];
            if let (Initial::Maps(maps), Initial::Maps(more)) = (&mut known.initial, initial) {
                let new = more.into_iter().filter(|rows| !maps.contains(rows));
                let new = new.collect::<Vec<_>>();
                maps.extend(new);
            }
            return known.place.clone();
        }
        let start = self.tensors.last().map_or(0, |last| last.place.end);
        let size = shape.iter().fold(1usize, |size, &n| size.saturating_mul(n));
        let place = start..start.saturating_add(size);
        self.by_name.insert(name.to_owned(), self.tensors.len());
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.tensors.push(Planned { name, shape, place: place.clone(), initial });
        place
    }
}
