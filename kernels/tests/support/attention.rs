//! Cases of attention: segments, operands and masks drawn at random.

mod run;

use super::{Guarded, Random, every};
use headrow_kernels::{AttentionShape, Mask, Mat, PerHead, Reach, Relative, Segment};

/// The operands of one call.
pub struct Case {
    pub shape: AttentionShape,
    pub segments: Vec<Segment>,
    pub q: Guarded,
    pub k: Guarded,
    pub v: Guarded,
    pub keys: Option<Vec<bool>>,
    /// Values, and whether each head has its own.
    pub visible: Option<(Vec<bool>, bool)>,
    pub bias: Option<(Vec<f32>, bool)>,
    /// A row for each head, of `around` distances below 0, 0, and as many above.
    pub relative: Option<Vec<f32>>,
    pub around: usize,
    pub longest: usize,
}

/// Which masks a case has.
pub const KEYS: usize = 1;
pub const VISIBLE: usize = 2;
pub const BIAS: usize = 4;
pub const PER_HEAD: usize = 8;
/// Hidden keys lie at the ends only.
pub const NO_HOLES: usize = 16;
pub const RELATIVE: usize = 32;

pub fn shape(heads: usize, kv_heads: usize, d_k: usize, d_v: usize) -> AttentionShape {
    AttentionShape::new(heads, kv_heads, d_k, d_v)
}

/// Query i sees the keys j ≤ i + diagonal, or all.
pub fn reach(diagonal: Option<isize>) -> Reach {
    diagonal.map_or(Reach::ALL, |offset| Reach { offset, ahead: Some(0), ..Reach::ALL })
}

impl Case {
    /// Segments given as (queries, keys, diagonal), one after the other.
    pub fn new(
        shape: AttentionShape,
        lengths: &[(usize, usize, Option<isize>)],
        masks: usize,
        rng: &mut Random,
    ) -> Case {
        let lengths: Vec<_> = lengths.iter().map(|&(t, s, d)| (t, s, reach(d))).collect();
        Case::with_reach(shape, &lengths, masks, rng)
    }

    /// Segments given as (queries, keys, reach), one after the other.
    pub fn with_reach(
        shape: AttentionShape,
        lengths: &[(usize, usize, Reach)],
        masks: usize,
        rng: &mut Random,
    ) -> Case {
        let (mut t, mut s) = (0, 0);
        let segments: Vec<Segment> = lengths
            .iter()
            .map(|&(queries, keys, reach)| {
                let segment = Segment::full(t..t + queries, s..s + keys).with_reach(reach);
                (t, s) = (segment.queries.end, segment.keys.end);
                segment
            })
            .collect();
        let longest = lengths.iter().map(|l| l.1).max().unwrap_or(0) + rng.below(3);
        let mut matrix = |rows, cols| {
            let (gap, offset) = (rng.below(5), rng.below(4));
            Guarded::from_fn(rows, cols, cols + gap, offset, |_, _| 2.0 * rng.unit())
        };
        let q = matrix(t, shape.heads * shape.d_k);
        let k = matrix(s, shape.kv_heads * shape.d_k);
        let v = matrix(s, shape.kv_heads * shape.d_v);
        // One row of marks: random ones, or a random interval.
        let marks = |rng: &mut Random, len: usize| -> Vec<bool> {
            if masks & NO_HOLES == 0 {
                return (0..len).map(|_| rng.below(4) > 0).collect();
            }
            let (a, b) = (rng.below(len + 1), rng.below(len + 1));
            (0..len).map(|j| (a.min(b)..a.max(b)).contains(&j)).collect()
        };
        let rows = if masks & PER_HEAD == 0 { t } else { t * shape.heads };
        let each = masks & PER_HEAD != 0;
        let keys = (masks & KEYS != 0).then(|| marks(rng, s));
        let visible = (masks & VISIBLE != 0)
            .then(|| ((0..rows).flat_map(|_| marks(rng, longest)).collect(), each));
        let bias = (masks & BIAS != 0).then(|| {
            let values = (0..rows).flat_map(|_| {
                let seen = marks(rng, longest);
                seen.into_iter()
                    .map(|seen| if seen { rng.unit() } else { f32::NEG_INFINITY })
                    .collect::<Vec<_>>()
            });
            (values.collect(), each)
        });
        let around = lengths.iter().map(|(t, s, reach)| t + s + reach.offset.unsigned_abs());
        let around = around.max().unwrap_or(0);
        let relative = (masks & RELATIVE != 0).then(|| {
            let width = shape.heads * (2 * around + 1);
            let mut entry = || if rng.below(30) == 0 { f32::NEG_INFINITY } else { rng.unit() };
            (0..width).map(|_| entry()).collect()
        });
        Case { shape, segments, q, k, v, keys, visible, bias, relative, around, longest }
    }

    pub fn mask(&self) -> Mask<'_> {
        fn matrix<T: Copy>(
            m: &(Vec<T>, bool),
            rows: usize,
            heads: usize,
            cols: usize,
        ) -> PerHead<'_, T> {
            match m {
                (values, false) => PerHead::Shared(Mat::new(values, rows, cols)),
                (values, true) => PerHead::Each(Mat::new(values, rows * heads, cols)),
            }
        }
        let (rows, heads) = (self.q.view().rows(), self.shape.heads);
        Mask {
            keys: self.keys.as_deref(),
            visible: self.visible.as_ref().map(|m| matrix(m, rows, heads, self.longest)),
            bias: self.bias.as_ref().map(|m| matrix(m, rows, heads, self.longest)),
            relative: self.relative.as_ref().map(|table| Relative {
                table: Mat::new(table, heads, 2 * self.around + 1),
                zero: self.around,
            }),
        }
    }

    /// Whether a query row sees the key in row j of K, with this head.
    pub fn sees(&self, head: usize, row: usize, j: usize) -> bool {
        let Some(segment) = self.segments.iter().find(|s| s.queries.contains(&row)) else {
            return false;
        };
        if !segment.keys.contains(&j) {
            return false;
        }
        let (i, key) = (row - segment.queries.start, j - segment.keys.start);
        let at = |each: bool| {
            (if each { head * self.q.view().rows() + row } else { row }) * self.longest + key
        };
        let Reach { offset, behind, ahead } = segment.reach;
        let distance = key as isize - i as isize - offset;
        behind.is_none_or(|behind| distance >= -(behind as isize))
            && ahead.is_none_or(|ahead| distance <= ahead as isize)
            && self.keys.as_ref().is_none_or(|keys| keys[j])
            && self.visible.as_ref().is_none_or(|(v, each)| v[at(*each)])
            && self.bias.as_ref().is_none_or(|(b, each)| b[at(*each)] != f32::NEG_INFINITY)
            && self.relative(head, distance) != Some(f32::NEG_INFINITY)
    }

    pub fn relative(&self, head: usize, distance: isize) -> Option<f32> {
        let column = (self.around as isize + distance) as usize;
        self.relative.as_ref().map(|table| table[head * (2 * self.around + 1) + column])
    }
}

/// Sizes up to two tiles and one, for the tiles of every instruction set.
fn queries() -> impl Iterator<Item = usize> {
    (0..=13).chain([16, 17, 28, 29]).step_by(every(4))
}

fn keys() -> impl Iterator<Item = usize> {
    (0..=17).chain([31, 32, 33, 47, 48, 63, 64, 65, 97]).step_by(every(4))
}

pub const WIDTHS: [usize; 6] = [1, 2, 3, 8, 17, 64];
pub const HEADS: [(usize, usize); 5] = [(1, 1), (2, 2), (2, 1), (3, 1), (4, 2)];

/// Diagonals, windows and bands about the first keys and the last.
fn reaches(t: usize, s: usize) -> [Reach; 11] {
    let last = Reach::causal(t, s);
    let first = Reach { offset: 0, ..last };
    [
        Reach::ALL,
        first,
        last,
        Reach { offset: -2, ..first },
        Reach { offset: 3, ..first },
        first.with_window(1),
        last.with_window(5),
        Reach { offset: 7, ..first }.with_window(3),
        Reach::banded(t, s, 2, 1),
        Reach { behind: Some(4), ahead: None, offset: 1 },
        Reach { behind: Some(0), ahead: Some(20), offset: -9 },
    ]
}

/// A ragged batch with everything in it.
pub fn mixed(masks: usize, rng: &mut Random) -> Case {
    let lengths = [
        (19, 19, Some(0)),
        (1, 70, None),
        (0, 5, None),
        (33, 50, Some(17)),
        (6, 0, None),
        (9, 4, Some(-5)),
        (45, 150, None),
    ];
    Case::new(shape(6, 2, 17, 24), &lengths, masks, rng)
}

/// A ragged batch of windows and bands, under a cap.
pub fn banded(masks: usize, rng: &mut Random) -> Case {
    let window = |t: usize, s: usize, w: usize| (t, s, Reach::causal(t, s).with_window(w));
    let lengths = [
        window(150, 150, 40),
        (130, 130, Reach::banded(130, 130, 9, 9)),
        window(1, 200, 66),
        (20, 300, Reach { offset: 100, behind: Some(30), ahead: Some(64) }),
        (0, 5, Reach::ALL),
        (12, 90, Reach { offset: 70, behind: Some(3), ahead: None }),
        // The last ones see nothing.
        (30, 20, Reach { offset: 0, behind: Some(2), ahead: Some(0) }),
        window(7, 7, 1),
    ];
    Case::with_reach(shape(4, 2, 10, 20).with_softcap(1.5), &lengths, masks, rng)
}

pub fn all_masks() -> impl Iterator<Item = usize> {
    (0..64).step_by(every(13))
}

/// `check(case, rng, what)` for every small number of queries and keys with every kind of mask; heads, widths, caps and
/// reaches take turns.
pub fn small_shapes(rng: &mut Random, mut check: impl FnMut(Case, &mut Random, &str)) {
    let all = KEYS | VISIBLE | BIAS | RELATIVE;
    let kinds = [0, KEYS, VISIBLE, BIAS, RELATIVE, BIAS | RELATIVE, all];
    let sizes = queries().flat_map(|t| keys().map(move |s| (t, s)));
    let cases = sizes.flat_map(|(t, s)| kinds.map(|masks| (t, s, masks)));
    for (turn, (t, s, masks)) in (1..).zip(cases) {
        let (heads, kv_heads) = HEADS[turn % 5];
        let mut shape = shape(heads, kv_heads, WIDTHS[turn % 6], WIDTHS[turn / 6 % 6]);
        if turn % 3 == 0 {
            shape = shape.with_softcap(0.7);
        }
        let reaches = reaches(t, s);
        let reach = reaches[turn % reaches.len()];
        let flags = rng.below(4) * PER_HEAD;
        let case = Case::with_reach(shape, &[(t, s, reach)], masks | flags, rng);
        let what = format!("t {t}, s {s}, {shape:?}, {reach:?}, masks {masks}+{flags}");
        check(case, rng, &what);
    }
}
