//! How many edits an answer is away from what is accepted.

/// The fewest insertions, deletions and substitutions that make `b` of `a` (Levenshtein).
///
/// O(|a|·|b|) steps, O(|b|) memory.
///
/// ```
/// use headrow::metrics::edit_distance;
///
/// let letters = |word: &str| word.chars().collect::<Vec<char>>();
/// assert_eq!(edit_distance(&letters("kitten"), &letters("sitting")), 3);
/// ```
pub fn edit_distance<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    // Row i holds the distances of a's first i to each beginning of b.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Error rates over answers, each beside all that is accepted in its place.
///
/// With tokens of phonemes: the phoneme error rate and the word error rate of letters to phonemes. Of several accepted
/// sequences the nearest counts, of equally near ones the longest.
///
/// ```
/// use headrow::metrics::ErrorRate;
///
/// let mut rate = ErrorRate::default();
/// rate.add(&["K", "AE", "T"], &[["K", "AE", "T"]]);
/// rate.add(&["D", "AO", "G"], &[["D", "AA", "G"], ["T", "AA", "G"]]);
/// assert_eq!((rate.of_tokens(), rate.of_answers()), (1.0 / 6.0, 0.5));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorRate {
    /// Edits to the nearest accepted sequence, over all answers.
    pub edits: usize,
    /// Tokens of those sequences.
    pub tokens: usize,
    /// Answers that equal none of what is accepted.
    pub wrong: usize,
    /// Answers.
    pub answers: usize,
}

impl ErrorRate {
    /// Counts an answer.
    ///
    /// # Panics
    /// When nothing is accepted in its place.
    #[track_caller]
    pub fn add<T: PartialEq, A: AsRef<[T]>>(&mut self, answer: &[T], accepted: &[A]) {
        let distances = accepted.iter().map(|other| {
            let other = other.as_ref();
            (edit_distance(answer, other), other.len())
        });
        let nearest = distances.min_by_key(|&(edits, tokens)| (edits, usize::MAX - tokens));
        let (edits, tokens) = nearest.expect("an answer is compared with something");
        self.edits += edits;
        self.tokens += tokens;
        self.wrong += usize::from(edits > 0);
        self.answers += 1;
    }

    /// Edits for each token of what is accepted; NaN without any.
    pub fn of_tokens(&self) -> f64 {
        self.edits as f64 / self.tokens as f64
    }

    /// The part of the answers that are wrong; NaN without any.
    pub fn of_answers(&self) -> f64 {
        self.wrong as f64 / self.answers as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distance(a: &str, b: &str) -> usize {
        let letters = |text: &str| text.chars().collect::<Vec<_>>();
        edit_distance(&letters(a), &letters(b))
    }

    #[test]
    fn known_distances() {
        for (a, b, edits) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("saturday", "sunday", 3),
            ("ab", "ba", 2),
            ("abcdef", "bcdefg", 2),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (edits, edits), "{a} {b}");
        }
    }

    /// The definition, in exponential time.
    fn by_definition(a: &[u8], b: &[u8]) -> usize {
        match (a, b) {
            (rest, []) | ([], rest) => rest.len(),
            ([x, a @ ..], [y, b @ ..]) if x == y => by_definition(a, b),
            ([_, a_rest @ ..], [_, b_rest @ ..]) => {
                let ways = [(a_rest, b_rest), (a_rest, b), (a, b_rest)];
                1 + ways.map(|(a, b)| by_definition(a, b)).into_iter().min().unwrap_or(0)
            }
        }
    }

    #[test]
    fn all_short_sequences_are_as_far_apart_as_defined() {
        let all: Vec<Vec<u8>> = (0..5u32)
            .flat_map(|n| {
                (0..3u32.pow(n)).map(move |x| (0..n).map(|i| (x / 3u32.pow(i) % 3) as u8).collect())
            })
            .collect();
        for a in &all {
            for b in &all {
                assert_eq!(edit_distance(a, b), by_definition(a, b), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn the_nearest_accepted_sequence_counts() {
        let mut rate = ErrorRate::default();
        rate.add(&["AH"], &[vec!["EY"], vec!["AH"]]);
        assert_eq!((rate.of_tokens(), rate.of_answers()), (0.0, 0.0));
        rate.add(&["K", "AE"], &[vec!["K"], vec!["K", "AE", "T"], vec!["D"]]);
        assert_eq!(rate, ErrorRate { edits: 1, tokens: 4, wrong: 1, answers: 2 });
        assert_eq!((rate.of_tokens(), rate.of_answers()), (0.25, 0.5));
        assert!(ErrorRate::default().of_answers().is_nan());
    }
}
