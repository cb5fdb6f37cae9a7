//! What many times of the same call come to: the middle and the tail.

/// Percentiles of calls, in the unit of the times.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Tail {
    /// How many times there are.
    pub calls: usize,
    /// The shortest.
    pub min: f64,
    /// Half are no longer.
    pub p50: f64,
    /// 90 % are no longer.
    pub p90: f64,
    /// 99 % are no longer; with fewer than 100 calls the longest.
    pub p99: f64,
    /// 99.9 % are no longer; with fewer than 1000 calls the longest.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Tail {
    /// Nearest-rank percentiles: of n times in order, number ⌈q·n⌉. O(n log n).
    ///
    /// # Panics
    /// Without a time.
    pub fn new(mut times: Vec<f64>) -> Tail {
        assert!(!times.is_empty(), "no call was timed");
        times.sort_by(f64::total_cmp);
        let calls = times.len();
        // In tenths of a percent, so that no rounding moves a rank.
        let rank = |q: usize| times[(q * calls).div_ceil(1000).max(1) - 1];
        let (min, max) = (times[0], times[calls - 1]);
        Tail { calls, min, p50: rank(500), p90: rank(900), p99: rank(990), p999: rank(999), max }
    }

    /// The tail of nanoseconds, in milliseconds.
    pub fn of_nanoseconds(ns: &[u64]) -> Tail {
        Tail::new(ns.iter().map(|&ns| ns as f64 / 1e6).collect())
    }
}

/// The heading of [`Tail`]'s columns.
pub const HEADING: &str = "      p50       p90       p99     p99.9       max       min   calls";

impl std::fmt::Display for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for value in [self.p50, self.p90, self.p99, self.p999, self.max, self.min] {
            write!(f, "{value:>9.3} ")?;
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
        let got = [tail.min, tail.p50, tail.p90, tail.p99, tail.p999, tail.max];
        assert_eq!(got, [1.0, 500.0, 900.0, 990.0, 999.0, 1000.0]);
    }

    #[test]
    fn few_calls_have_their_longest_for_a_tail() {
        let tail = Tail::of_nanoseconds(&[3_000_000, 1_000_000, 2_000_000]);
        assert_eq!((tail.p50, tail.p90, tail.p99, tail.p999), (2.0, 3.0, 3.0, 3.0));
        assert_eq!(Tail::new(vec![7.0]).p50, 7.0);
    }
}
