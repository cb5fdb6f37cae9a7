//! The largest of a row: a vocabulary of logits holds few that matter.

use std::cmp::Reverse;

/// An element of a row and its index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scored {
    pub(crate) id: u32,
    pub(crate) value: f32,
}

impl Scored {
    /// Sorts by rank: the larger value first, of equal ones the lower id. The value is no NaN.
    ///
    /// A float's bits are in order once the sign is taken out: integers are compared without a branch.
    pub(crate) fn rank(&self) -> Reverse<u64> {
        // −0 becomes +0, as they are equal.
        let bits = (self.value + 0.0).to_bits();
        let negative = (bits as i32 >> 31) as u32;
        let ordered = bits ^ (negative | 1 << 31);
        Reverse(u64::from(ordered) << 32 | u64::from(!self.id))
    }
}

/// Up to here the best are kept in order as they come; beyond, a partition is cheaper.
const FEW: usize = 128;

/// Elements that are compared with the least of the kept ones at once.
const BLOCK: usize = 128;

/// Writes the `k` largest elements of `row` to `out`, by rank; −∞ is none of them. The row holds no NaN.
///
/// Allocates nothing when `out` has room for `min(k, row)` elements, or for the row when k > 128.
/// One pass: O(row + k·ln(row/k)·log k) comparisons for few, O(row + k·log k) for many.
pub(crate) fn top_k(row: &[f32], k: usize, out: &mut Vec<Scored>) {
    out.clear();
    match k.min(row.len()) {
        0 => {}
        k if k <= FEW => insert_best(row, k, out),
        k => partition_best(row, k, out),
    }
}

fn insert_best(row: &[f32], k: usize, out: &mut Vec<Scored>) {
    let mut floor = f32::NEG_INFINITY;
    for (block, values) in row.chunks(BLOCK).enumerate() {
        // One vector comparison a register, no early exit: almost every block is passed over.
        if !values.iter().fold(false, |any, &value| any | (value > floor)) {
            continue;
        }
        for (i, &value) in values.iter().enumerate() {
            if value > floor {
                let at = out.partition_point(|kept| kept.value >= value);
                if out.len() == k {
                    out.pop();
                }
                out.insert(at, Scored { id: (block * BLOCK + i) as u32, value });
                if out.len() == k {
                    floor = out[k - 1].value;
                }
            }
        }
    }
}

/// The elements of a row that are above −∞, by index.
pub(crate) fn candidates(row: &[f32]) -> impl Iterator<Item = Scored> {
    let scored = row.iter().enumerate().map(|(i, &value)| Scored { id: i as u32, value });
    scored.filter(|element| element.value > f32::NEG_INFINITY)
}

fn partition_best(row: &[f32], k: usize, out: &mut Vec<Scored>) {
    out.extend(candidates(row));
    if k < out.len() {
        out.select_nth_unstable_by_key(k, Scored::rank);
        out.truncate(k);
    }
    out.sort_unstable_by_key(Scored::rank);
}

/// The first element that is NaN or +∞: nothing can be made of such a row.
pub(crate) fn flaw(row: &[f32]) -> Option<Scored> {
    let flawed = |value: f32| value.is_nan() || value == f32::INFINITY;
    if !row.iter().fold(false, |any, &value| any | flawed(value)) {
        return None;
    }
    let id = row.iter().position(|&value| flawed(value))?;
    Some(Scored { id: id as u32, value: row[id] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::random::uniform;

    #[test]
    fn the_best_are_those_of_a_full_sort() {
        for (n, levels) in [(0, 1.0), (1, 5.0), (7, 2.0), (129, 1e9), (1000, 1e9), (3000, 40.0)] {
            let mut row: Vec<f32> =
                (0..n).map(|i| (uniform(n, i) * levels).floor() as f32 - 3.0).collect();
            for i in (0..row.len()).step_by(11) {
                row[i] = f32::NEG_INFINITY;
            }
            let ids = 0..row.len() as u32;
            let scored = ids.zip(&row).map(|(id, &value)| Scored { id, value });
            let mut sorted: Vec<Scored> = scored.filter(|s| s.value.is_finite()).collect();
            sorted.sort_by(|a, b| b.value.total_cmp(&a.value).then(a.id.cmp(&b.id)));
            let mut out = Vec::new();
            for k in [0, 1, 2, 5, 127, 128, 129, 500, 5000] {
                top_k(&row, k, &mut out);
                assert_eq!(out, sorted[..k.min(sorted.len())], "{k} of {n}");
            }
        }
    }

    #[test]
    fn ranks_are_those_of_the_values_and_zeros_are_equal() {
        let values = [f32::MAX, 2.5, 1e-40, 0.0, -1e-40, -7.0, f32::MIN, f32::NEG_INFINITY];
        let rank = |id, value| Scored { id, value }.rank();
        assert!(values.map(|value| rank(9, value)).is_sorted_by(|a, b| a < b));
        assert!(values.windows(2).all(|pair| rank(9, pair[0]) < rank(0, pair[1])));
        assert!(rank(3, -0.0) < rank(4, 0.0) && rank(3, 0.0) < rank(4, -0.0));
    }

    #[test]
    fn a_flaw_is_found_where_it_is() {
        let mut row = vec![f32::NEG_INFINITY; 300];
        assert_eq!(flaw(&row), None);
        row[299] = f32::INFINITY;
        assert_eq!(flaw(&row).map(|f| f.id), Some(299));
        row[17] = f32::NAN;
        assert_eq!(flaw(&row).map(|f| f.id), Some(17));
    }
}
