//! Which keys a query sees, and the stretches of keys over which nothing changes for a few queries.

use super::{Mask, Segment};
use std::ops::Range;

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

/// Most rows in one call of [`for_each_run`].
pub(super) const RUN_ROWS: usize = 32;

/// Cuts the keys `within` into runs over which none of the rows begins or ceases to see, in ascending
/// order, and calls `run(keys, rows)` for each run and each group of adjacent rows that see it.
///
/// So row r meets exactly the keys it sees, in their order. `visible` holds a row of marks
/// per row, `stride` apart; it is read for rows with holes only.
pub(super) fn for_each_run(
    seen: &[Seen],
    visible: &[u8],
    stride: usize,
    within: Range<usize>,
    mut run: impl FnMut(Range<usize>, Range<usize>),
) {
    assert!(seen.len() <= RUN_ROWS, "{} rows in one call", seen.len());
    // Whether row r sees key `at`, and the next key for which that is different.
    let look = |r: usize, at: usize| {
        let [first, end, count] = seen[r];
        if at < first {
            (false, first)
        } else if at >= end {
            (false, usize::MAX)
        } else if count == end - first {
            (true, end)
        } else {
            let marks = &visible[r * stride..][at..end];
            let change = marks.iter().position(|&v| v != marks[0]);
            (marks[0] != 0, change.map_or(end, |n| at + n))
        }
    };
    let mut at = within.start;
    let mut change = [at; RUN_ROWS];
    let change = &mut change[..seen.len()];
    let mut sees = 0u32;
    while at < within.end {
        for (r, change) in change.iter_mut().enumerate().filter(|(_, change)| **change == at) {
            let (now, next) = look(r, at);
            sees = sees & !(1 << r) | u32::from(now) << r;
            *change = next;
        }
        let next = change.iter().fold(within.end, |next, &c| next.min(c));
        let mut rest = sees;
        while rest != 0 {
            let first = rest.trailing_zeros();
            let count = (rest >> first).trailing_ones();
            run(at..next, first as usize..(first + count) as usize);
            rest &= u32::MAX.checked_shl(first + count).unwrap_or(0);
        }
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every (row, key) that the runs cover, in the order of the calls.
    fn covered(
        seen: &[Seen],
        visible: &[u8],
        stride: usize,
        within: Range<usize>,
    ) -> Vec<Vec<usize>> {
        let mut rows = vec![Vec::new(); seen.len()];
        for_each_run(seen, visible, stride, within, |keys, group| {
            group.for_each(|r| rows[r].extend(keys.clone()));
        });
        rows
    }

    #[test]
    fn a_staircase_gives_each_row_its_own_end() {
        let seen = [[0, 3, 3], [0, 4, 4], [0, 5, 5], [0, 0, 0]];
        let rows = covered(&seen, &[], 0, 0..9);
        assert_eq!(rows, [vec![0, 1, 2], vec![0, 1, 2, 3], vec![0, 1, 2, 3, 4], vec![]]);
        let rows = covered(&seen, &[], 0, 3..4);
        assert_eq!(rows, [vec![], vec![3], vec![3], vec![]]);
    }

    #[test]
    fn rows_with_holes_meet_exactly_their_visible_keys() {
        let keys = 7;
        for pattern in 0u32..1 << (2 * keys) {
            let visible: Vec<u8> = (0..2 * keys).map(|j| (pattern >> j & 1) as u8).collect();
            let expected: Vec<Vec<usize>> = visible
                .chunks(keys)
                .map(|row| (0..keys).filter(|&j| row[j] != 0).collect())
                .collect();
            let seen: Vec<Seen> = expected
                .iter()
                .map(|row| match (row.first(), row.last()) {
                    (Some(&first), Some(&last)) => [first, last + 1, row.len()],
                    _ => [0, 0, 0],
                })
                .collect();
            assert_eq!(covered(&seen, &visible, keys, 0..keys), expected, "pattern {pattern:b}");
        }
    }

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
