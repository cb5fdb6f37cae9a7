//! Numbers added to attention scores by the distance of query and key: T5's learned buckets and ALiBi's slopes.
//!
//! Both depend on the offset j − i of key j from query i alone, so a head needs one row of 2n − 1 numbers for
//! sequences of n tokens instead of n × n.

use super::room;
use crate::error::{Error, Result};
use headrow_kernels::Mat;

/// Which offsets the buckets of T5 tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BucketRange {
    /// Keys before and after the query, half of the buckets each: encoders.
    Both,
    /// Keys up to the query; those after it count as the query itself: decoders.
    Past,
}

/// A bias for every head and every offset from −(n − 1) to n − 1.
///
/// ```
/// use headrow::position::{RelativeTable, alibi_slopes};
///
/// // ALiBi of two heads, for sequences of up to three tokens: offsets −2 … 2.
/// assert_eq!(alibi_slopes(2), [0.0625, 0.00390625]);
/// let table = RelativeTable::alibi(2, 3)?;
/// assert_eq!(table.table().row(0), [-0.125, -0.0625, 0.0, -0.0625, -0.125]);
/// assert_eq!(table.zero(), 2);
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RelativeTable {
    values: Vec<f32>,
    heads: usize,
    longest: usize,
}

impl RelativeTable {
    /// `bias(head, offset)` for sequences of up to `longest` tokens.
    fn new(heads: usize, longest: usize, bias: impl Fn(usize, isize) -> f32) -> Result<Self> {
        let reach = longest.saturating_sub(1) as isize;
        let mut values = room(heads, longest.saturating_mul(2).max(1))?;
        for head in 0..heads {
            values.extend((-reach..=reach).map(|offset| bias(head, offset)));
        }
        Ok(RelativeTable { values, heads, longest: longest.max(1) })
    }

    /// Heads × (2n − 1): the bias of query i and key j is in column j − i + [`RelativeTable::zero`].
    pub fn table(&self) -> Mat<'_> {
        Mat::new(&self.values, self.heads, 2 * self.longest - 1)
    }

    /// The column of offset 0: n − 1.
    pub fn zero(&self) -> usize {
        self.longest - 1
    }

    /// Replaces the number of every head and column.
    #[cfg(feature = "train")]
    pub(crate) fn refill(&mut self, number: impl Fn(usize, usize) -> f32) {
        let columns = 2 * self.longest - 1;
        for (i, value) in self.values.iter_mut().enumerate() {
            *value = number(i / columns, i % columns);
        }
    }

    /// Bytes that it takes.
    #[cfg(feature = "train")]
    pub(crate) fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<f32>()
    }

    /// T5: the learned number of the offset's bucket. `weights` is buckets × heads, as checkpoints store it.
    /// (Raffel et al., "Exploring the Limits of Transfer Learning", 2020, §2.1.)
    ///
    /// # Errors
    /// When there are too few buckets for `range` or `max_distance` is within the exact ones
    /// ([`check_buckets`]), or there is no memory.
    pub fn from_buckets(
        weights: Mat<'_>,
        range: BucketRange,
        max_distance: usize,
        longest: usize,
    ) -> Result<Self> {
        let (buckets, heads) = (weights.rows(), weights.cols());
        check_buckets(range, buckets, max_distance, "positions")?;
        let number = |offset| weights.row(bucket(range, buckets, max_distance, offset));
        RelativeTable::new(heads, longest, |head, offset| number(offset)[head])
    }

    /// ALiBi: −slope·|j − i|, the slopes those of [`alibi_slopes`]. (Press, Smith and Lewis, "Train Short, Test Long",
    /// 2022.) The paper's is for keys up to the query; after it the bias falls in the same way.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn alibi(heads: usize, longest: usize) -> Result<Self> {
        let mut slopes = room(heads, 1)?;
        slopes.extend((0..heads).map(|head| alibi_slope(heads, head)));
        RelativeTable::new(heads, longest, |head, offset| {
            // The sign of a zero does not matter to a sum with a score.
            -(slopes[head] * offset.unsigned_abs() as f32)
        })
    }
}

/// Buckets for offsets of one sign, and how many of them hold a single distance.
fn halves(range: BucketRange, buckets: usize) -> (usize, usize) {
    let one_side = match range {
        BucketRange::Both => buckets / 2,
        BucketRange::Past => buckets,
    };
    (one_side, one_side / 2)
}

/// Whether `buckets` buckets can tell distances up to `max_distance` apart; `place` is named by the error.
pub fn check_buckets(
    range: BucketRange,
    buckets: usize,
    max_distance: usize,
    place: &str,
) -> Result<()> {
    let (_, exact) = halves(range, buckets);
    if exact == 0 {
        let problem = format_args!("{buckets} buckets leave none for a single distance");
        return Err(Error::config(place, "relative_attention_num_buckets", problem));
    }
    if max_distance <= exact {
        let problem = format_args!("{max_distance} is within the {exact} exact distances");
        return Err(Error::config(place, "relative_attention_max_distance", problem));
    }
    Ok(())
}

/// T5's bucket of an offset j − i: a bucket for each short distance, then buckets that widen by a constant factor up to
/// `max_distance`, and the last one for all beyond.
///
/// On one side with b buckets, e = b/2 of them exact: min(e + ⌊ln(n/e)/ln(max/e)·(b − e)⌋, b − 1) for a distance n ≥ e.
/// The logarithm and what follows are in f32, since checkpoints are trained with what that gives at the borders. With
/// [`BucketRange::Both`] the upper half of the buckets is for keys after the query.
///
/// The arguments are those that [`check_buckets`] lets pass.
///
/// ```
/// use headrow::position::{BucketRange, bucket};
///
/// // 32 buckets of a decoder: one for each of the last 16 tokens, then wider ones.
/// let of = |offset| bucket(BucketRange::Past, 32, 128, offset);
/// assert_eq!([of(0), of(-15), of(-16), of(-17), of(-200)], [0, 15, 16, 16, 31]);
/// // Tokens that come later count as the query itself.
/// assert_eq!(of(3), 0);
/// ```
pub fn bucket(range: BucketRange, buckets: usize, max_distance: usize, offset: isize) -> usize {
    let (one_side, exact) = halves(range, buckets);
    let (first, distance) = match range {
        BucketRange::Both if offset > 0 => (one_side, offset.unsigned_abs()),
        BucketRange::Past if offset > 0 => (0, 0),
        _ => (0, offset.unsigned_abs()),
    };
    if distance < exact {
        return first + distance;
    }
    let ln = |x: f32| libm::log(f64::from(x)) as f32;
    let widest = libm::log(max_distance as f64 / exact as f64) as f32;
    let steps = ln(distance as f32 / exact as f32) / widest * (one_side - exact) as f32;
    first + (exact + steps as usize).min(one_side - 1)
}

/// The slopes of ALiBi's heads: 2^(−8h/n) for h = 1..=n when their number n is a power of two. Otherwise those of the
/// largest power of two below n, followed by every other slope of twice as many. (Press et al., §3 and their
/// reference implementation.)
pub fn alibi_slopes(heads: usize) -> Vec<f32> {
    (0..heads).map(|head| alibi_slope(heads, head)).collect()
}

fn alibi_slope(heads: usize, head: usize) -> f32 {
    let slope = |h: usize, of: usize| libm::exp2(-8.0 * h as f64 / of as f64) as f32;
    let whole = heads.checked_ilog2().map_or(0, |log| 1 << log);
    match head.checked_sub(whole) {
        None => slope(head + 1, whole),
        Some(i) => slope(2 * i + 1, 2 * whole),
    }
}
