//! What many times of the same call come to: the middle and the tail.

/// Percentiles of calls, in the unit of the times.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Tail {
    /// How many times there are.
    pub calls: usize,
    /// The shortest.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// 90 % are no longer; `None` of fewer than 10 calls.
    pub p90: Option<f64>,
    /// 99 % are no longer; `None` of fewer than 100 calls.
    pub p99: Option<f64>,
    /// 99.9 % are no longer; `None` of fewer than 1000 calls.
    pub p999: Option<f64>,
    /// The longest.
    pub max: f64,
}

impl Tail {
    /// The median, and nearest-rank percentiles: of n times in order, number ⌈q·n⌉. O(n log n).
    ///
    /// # Panics
    /// Without a time.
    pub fn new(mut times: Vec<f64>) -> Tail {
        assert!(!times.is_empty(), "no call was timed");
        times.sort_by(f64::total_cmp);
        let calls = times.len();
        // In tenths of a percent, so that no rounding moves a rank.
        let rank =
            |q: usize, enough| (calls >= enough).then(|| times[(q * calls).div_ceil(1000) - 1]);
        let (p90, p99, p999) = (rank(900, 10), rank(990, 100), rank(999, 1000));
        Tail { calls, min: times[0], p50: median(&times), p90, p99, p999, max: times[calls - 1] }
    }

    /// The tail of nanoseconds, in milliseconds.
    pub fn of_nanoseconds(ns: &[u64]) -> Tail {
        Tail::new(ns.iter().map(|&ns| ns as f64 / 1e6).collect())
    }
}

/// The middle of times in order, of an even number the mean of the two there.
pub(crate) fn median(ordered: &[f64]) -> f64 {
    let half = ordered.len() / 2;
    if ordered.len() % 2 == 1 { ordered[half] } else { (ordered[half - 1] + ordered[half]) / 2.0 }
}

/// A column of a percentile that there may be none of.
pub fn column(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"))
}

/// The heading of [`Tail`]'s columns.
pub const HEADING: &str = "      p50       p90       p99     p99.9       max       min   calls";

impl std::fmt::Display for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [p50, max, min] = [self.p50, self.max, self.min].map(Some);
        for value in [p50, self.p90, self.p99, self.p999, max, min] {
            write!(f, "{:>9} ", column(value))?;
        }
        write!(f, "{:>7}", self.calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_nearest() {
        let tail = Tail::new((1..=1000).rev().map(f64::from).collect());
        assert_eq!([tail.min, tail.p50, tail.max], [1.0, 500.5, 1000.0]);
        assert_eq!([tail.p90, tail.p99, tail.p999], [900.0, 990.0, 999.0].map(Some));
    }

    #[test]
    fn few_calls_have_a_middle_and_no_tail() {
        let tail = Tail::of_nanoseconds(&[3_000_000, 1_000_000]);
        assert_eq!((tail.p50, tail.max), (2.0, 3.0));
        assert_eq!(Tail::new(vec![7.0]).p50, 7.0);
        let known = |calls| {
            let tail = Tail::new(vec![1.0; calls]);
            [tail.p90, tail.p99, tail.p999].map(|value| value.is_some())
        };
        assert_eq!(known(9), [false; 3]);
        assert_eq!(known(99), [true, false, false]);
        assert_eq!(known(999), [true, true, false]);
    }
}
