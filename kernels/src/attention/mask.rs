//! Which keys a query sees.

use super::{Mask, Segment};

/// What one query sees: `[first, end, count]`, that is `count` of the keys `first..end`, the first and the
/// last of them included. Without holes, `count = end − first`; seeing nothing is `[0, 0, 0]`.
pub(super) type Seen = [usize; 3];

impl Segment {
    /// The end of the keys that the diagonal lets query `i` see.
    pub(super) fn end_for(&self, i: usize) -> usize {
        let keys = self.keys.len();
        self.diagonal.map_or(keys, |diagonal| {
            (i as isize).saturating_add(diagonal).saturating_add(1).clamp(0, keys as isize) as usize
        })
    }
}

impl Mask<'_> {
    /// Whether only diagonals hide keys.
    pub(super) fn is_none(&self) -> bool {
        self.keys.is_none() && self.visible.is_none() && self.bias.is_none()
    }

    /// What query `i` of a segment sees. See [`Mask::seen_through`].
    #[inline(always)]
    pub(super) fn seen(
        &self,
        segment: &Segment,
        queries: usize,
        head: usize,
        i: usize,
        visible: &mut [u8],
    ) -> Seen {
        if self.is_none() {
            let end = segment.end_for(i);
            return [0, end, end];
        }
        self.seen_through(segment, queries, head, i, visible)
    }

    /// What query `i` of a segment sees with `head`; of a Q with `queries` rows. Writes 1 or 0 per key to
    /// `visible[..end]`.
    #[inline(never)]
    fn seen_through(
        &self,
        segment: &Segment,
        queries: usize,
        head: usize,
        i: usize,
        visible: &mut [u8],
    ) -> Seen {
        let end = segment.end_for(i);
        let row = segment.queries.start + i;
        let visible = &mut visible[..end];
        match self.keys {
            Some(keys) => {
                let keys = &keys[segment.keys.start..];
                visible.iter_mut().zip(keys).for_each(|(v, &key)| *v = u8::from(key));
            }
            None => visible.fill(1),
        }
        if let Some(mask) = self.visible {
            let mask = mask.row(queries, head, row);
            visible.iter_mut().zip(mask).for_each(|(v, &key)| *v &= u8::from(key));
        }
        if let Some(bias) = self.bias {
            let bias = bias.row(queries, head, row);
            let sees = |&b: &f32| u8::from(b != f32::NEG_INFINITY);
            visible.iter_mut().zip(bias).for_each(|(v, b)| *v &= sees(b));
        }
        match visible.iter().position(|&v| v != 0) {
            Some(first) => {
                let end = visible.iter().rposition(|&v| v != 0).map_or(first, |last| last + 1);
                [first, end, visible[first..end].iter().map(|&v| usize::from(v)).sum()]
            }
            None => [0, 0, 0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diagonals_of_any_size_are_clamped() {
        let segment = |diagonal| Segment { queries: 0..4, keys: 10..15, diagonal };
        assert_eq!(segment(None).end_for(0), 5);
        assert_eq!([0, 1, 2, 3].map(|i| segment(Some(-2)).end_for(i)), [0, 0, 1, 2]);
        assert_eq!([0, 1, 2, 3].map(|i| segment(Some(3)).end_for(i)), [4, 5, 5, 5]);
        assert_eq!(segment(Some(isize::MAX)).end_for(3), 5);
        assert_eq!(segment(Some(isize::MIN)).end_for(3), 0);
    }
}
