//! BLEU (Papineni et al., 2002) over a corpus or a sentence, to the letter of sacreBLEU 2.6.

use super::words::{BleuWords, Splitter};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// The longest n-grams that are compared.
const ORDER: usize = 4;

/// What a precision without a match counts as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BleuSmoothing {
    /// `exp`: half a match at the first such order, a quarter at the next, and so on.
    #[default]
    Exponential,
    /// `floor`: a tenth of a match.
    Floor,
    /// `add-k`: one match and one n-gram more at every order but the first.
    AddOne,
    /// `none`: nothing, so that the score is 0.
    None,
}

const SMOOTHINGS: [BleuSmoothing; 4] =
    [BleuSmoothing::Exponential, BleuSmoothing::Floor, BleuSmoothing::AddOne, BleuSmoothing::None];

impl BleuSmoothing {
    /// sacreBLEU's name for it.
    pub fn name(self) -> &'static str {
        match self {
            BleuSmoothing::Exponential => "exp",
            BleuSmoothing::Floor => "floor",
            BleuSmoothing::AddOne => "add-k",
            BleuSmoothing::None => "none",
        }
    }

    /// The name with its number, as signatures have it.
    fn signature(self) -> &'static str {
        match self {
            BleuSmoothing::Floor => "floor[0.10]",
            BleuSmoothing::AddOne => "add-k[1.00]",
            other => other.name(),
        }
    }
}

impl fmt::Display for BleuSmoothing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BleuSmoothing {
    type Err = String;

    fn from_str(name: &str) -> Result<BleuSmoothing, String> {
        let found = SMOOTHINGS.into_iter().find(|smoothing| smoothing.name() == name);
        found.ok_or_else(|| "expected exp, floor, add-k or none".to_owned())
    }
}

/// Which letters are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BleuCase {
    /// `mixed`: only those that are written alike.
    #[default]
    Mixed,
    /// `lc`: upper and lower case too.
    Lower,
}

impl BleuCase {
    /// As signatures have it.
    fn signature(self) -> &'static str {
        match self {
            BleuCase::Mixed => "mixed",
            BleuCase::Lower => "lc",
        }
    }
}

/// Which orders of n-grams the score is a mean of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BleuOrders {
    /// All four.
    #[default]
    All,
    /// Those for which the answer is long enough, as for sentences.
    Effective,
}

impl BleuOrders {
    /// As signatures have it.
    fn signature(self) -> &'static str {
        match self {
            BleuOrders::All => "no",
            BleuOrders::Effective => "yes",
        }
    }
}

/// How BLEU is counted. The defaults are those of sacreBLEU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BleuOptions {
    /// What the words are.
    pub words: BleuWords,
    /// What orders without a match count as.
    pub smoothing: BleuSmoothing,
    /// Which letters are the same.
    pub case: BleuCase,
    /// Which orders the score is a mean of.
    pub orders: BleuOrders,
}

impl BleuOptions {
    /// The same with these words.
    #[must_use]
    pub fn with_words(self, words: BleuWords) -> BleuOptions {
        BleuOptions { words, ..self }
    }

    /// The same with this smoothing.
    #[must_use]
    pub fn with_smoothing(self, smoothing: BleuSmoothing) -> BleuOptions {
        BleuOptions { smoothing, ..self }
    }

    /// The same with these letters held for the same.
    #[must_use]
    pub fn with_case(self, case: BleuCase) -> BleuOptions {
        BleuOptions { case, ..self }
    }

    /// The same with a score over these orders.
    #[must_use]
    pub fn with_orders(self, orders: BleuOrders) -> BleuOptions {
        BleuOptions { orders, ..self }
    }
}

/// Counts matches over a corpus, a segment at a time.
///
/// ```
/// use headrow::metrics::{Bleu, BleuOptions};
///
/// let mut bleu = Bleu::new(BleuOptions::default());
/// bleu.add("The dog bit the man.", &["The dog bit the man."]);
/// bleu.add("It was not unexpected.", &["It was not surprising.", "No one was surprised."]);
/// println!("{} {}", bleu.score(), bleu.signature());
/// ```
#[derive(Clone, Debug)]
pub struct Bleu {
    options: BleuOptions,
    splitter: Splitter,
    statistics: Statistics,
    /// Fewest and most references of a segment.
    references: Option<(usize, usize)>,
}

/// Matches and lengths; those of segments add up.
#[derive(Clone, Copy, Debug, Default)]
struct Statistics {
    correct: [usize; ORDER],
    total: [usize; ORDER],
    answer_length: usize,
    reference_length: usize,
}

/// BLEU and what it is made of.
///
/// BLEU = bp · exp(¼ Σ ln pₙ), bp = min(1, exp(1 − r/c)).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BleuScore {
    /// From 0 to 100.
    pub score: f64,
    /// pₙ for n = 1 … 4, smoothed, in percent.
    pub precisions: [f64; ORDER],
    /// bp, the penalty of answers that are shorter than the references.
    pub brevity_penalty: f64,
    /// c: words of the answers.
    pub answer_length: usize,
    /// r: words of the references, of several the one whose length is nearest, of equally near ones the shorter.
    pub reference_length: usize,
    /// n-grams that are in a reference, each as often as there.
    pub correct: [usize; ORDER],
    /// n-grams of the answers.
    pub total: [usize; ORDER],
}

impl Bleu {
    /// Nothing counted so far.
    pub fn new(options: BleuOptions) -> Bleu {
        let splitter = Splitter::new(options.words);
        Bleu { options, splitter, statistics: Statistics::default(), references: None }
    }

    /// Counts an answer beside its references.
    ///
    /// # Panics
    /// When there are no references.
    #[track_caller]
    pub fn add<R: AsRef<str>>(&mut self, answer: &str, references: &[R]) {
        self.statistics.add(&self.segment(answer, references));
        let count = references.len();
        let (fewest, most) = self.references.unwrap_or((count, count));
        self.references = Some((fewest.min(count), most.max(count)));
    }

    /// BLEU over all that was counted.
    pub fn score(&self) -> BleuScore {
        self.statistics.score(&self.options)
    }

    /// BLEU of one answer, which is not counted.
    ///
    /// # Panics
    /// When there are no references.
    #[track_caller]
    pub fn sentence<R: AsRef<str>>(&self, answer: &str, references: &[R]) -> BleuScore {
        self.segment(answer, references).score(&self.options)
    }

    /// What sacreBLEU writes beside a score of these options, so that others can be compared with it. Its version is the one
    /// whose definition this is.
    pub fn signature(&self) -> String {
        let BleuOptions { words, smoothing, case, orders } = self.options;
        let references = match self.references {
            Some((fewest, most)) if fewest < most => "var".to_owned(),
            Some((count, _)) => count.to_string(),
            None => "1".to_owned(),
        };
        let (case, effective) = (case.signature(), orders.signature());
        let smoothing = smoothing.signature();
        format!(
            "nrefs:{references}|case:{case}|eff:{effective}|tok:{words}|smooth:{smoothing}|version:2.6.0"
        )
    }

    #[track_caller]
    fn segment<R: AsRef<str>>(&self, answer: &str, references: &[R]) -> Statistics {
        assert!(!references.is_empty(), "an answer is compared with references");
        let mut numbers = HashMap::new();
        let answer = self.numbered(answer, &mut numbers);
        let references = references.iter().map(|text| self.numbered(text.as_ref(), &mut numbers));
        Statistics::of_segment(&answer, &references.collect::<Vec<_>>())
    }

    /// The words of a text, each as its number within the segment.
    fn numbered(&self, text: &str, numbers: &mut HashMap<String, u32>) -> Vec<u32> {
        let mut words = Vec::new();
        let text = match self.options.case {
            BleuCase::Lower => Cow::Owned(text.to_lowercase()),
            BleuCase::Mixed => Cow::Borrowed(text),
        };
        self.splitter.split(&text, |word| {
            let next = numbers.len() as u32;
            words.push(match numbers.get(word) {
                Some(&number) => number,
                None => *numbers.entry(word.to_owned()).or_insert(next),
            });
        });
        words
    }
}

impl Statistics {
    fn of_segment(answer: &[u32], references: &[Vec<u32>]) -> Statistics {
        let mut wanted = HashMap::new();
        for reference in references {
            for (gram, count) in grams(reference) {
                let most: &mut usize = wanted.entry(gram).or_default();
                *most = count.max(*most);
            }
        }
        let mut correct = [0; ORDER];
        for (gram, count) in grams(answer) {
            correct[gram.len() - 1] += count.min(wanted.get(gram).copied().unwrap_or(0));
        }
        let nearest = |length: &usize| (length.abs_diff(answer.len()), *length);
        Statistics {
            correct,
            total: std::array::from_fn(|n| answer.len().saturating_sub(n)),
            answer_length: answer.len(),
            reference_length: references.iter().map(Vec::len).min_by_key(nearest).unwrap_or(0),
        }
    }

    fn add(&mut self, other: &Statistics) {
        for n in 0..ORDER {
            self.correct[n] += other.correct[n];
            self.total[n] += other.total[n];
        }
        self.answer_length += other.answer_length;
        self.reference_length += other.reference_length;
    }

    fn score(&self, options: &BleuOptions) -> BleuScore {
        let &Statistics { correct, total, answer_length, reference_length } = self;
        let brevity_penalty = match (answer_length, reference_length) {
            (c, r) if c >= r => 1.0,
            (0, _) => 0.0,
            (c, r) => libm::exp(1.0 - r as f64 / c as f64),
        };
        let (precisions, orders) = self.precisions(options);
        // A score without any match is 0, however the orders are smoothed.
        let logarithms = precisions[..orders].iter().map(|&p| libm::log(p)).sum::<f64>();
        let score = match orders {
            0 => 0.0,
            orders => brevity_penalty * libm::exp(logarithms / orders as f64),
        };
        BleuScore {
            score,
            precisions,
            brevity_penalty,
            answer_length,
            reference_length,
            correct,
            total,
        }
    }

    /// The precisions in percent, and how many of them the score is the mean of.
    fn precisions(&self, options: &BleuOptions) -> ([f64; ORDER], usize) {
        let mut precisions = [0.0; ORDER];
        if self.correct.iter().all(|&count| count == 0) {
            return (precisions, 0);
        }
        let (mut orders, mut unmatched) = (ORDER, 1.0);
        for (n, precision) in precisions.iter_mut().enumerate() {
            let more = usize::from(options.smoothing == BleuSmoothing::AddOne && n > 0);
            let (correct, total) = (self.correct[n] + more, (self.total[n] + more) as f64);
            if total == 0.0 {
                break;
            }
            if options.orders == BleuOrders::Effective {
                orders = n + 1;
            }
            *precision = match (correct, options.smoothing) {
                (0, BleuSmoothing::Exponential) => {
                    unmatched *= 2.0;
                    100.0 / (unmatched * total)
                }
                (0, BleuSmoothing::Floor) => 100.0 * 0.1 / total,
                (correct, _) => 100.0 * correct as f64 / total,
            };
        }
        (precisions, orders)
    }
}

/// How often each n-gram occurs, n = 1 … 4.
fn grams(words: &[u32]) -> HashMap<&[u32], usize> {
    let mut counts = HashMap::new();
    for gram in (1..=ORDER).flat_map(|n| words.windows(n)) {
        *counts.entry(gram).or_default() += 1;
    }
    counts
}

impl fmt::Display for BleuScore {
    /// As sacreBLEU writes it: `BLEU = 33.13 100.0/46.2/27.0/17.5 (BP = 0.863 ratio = 0.871 hyp_len = 2089 ref_len = 2398)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p1, p2, p3, p4] = self.precisions;
        let (c, r) = (self.answer_length, self.reference_length);
        let ratio = if r == 0 { 0.0 } else { c as f64 / r as f64 };
        write!(
            f,
            "BLEU = {:.2} {p1:.1}/{p2:.1}/{p3:.1}/{p4:.1} (BP = {:.3} ratio = {ratio:.3} hyp_len = {c} ref_len = {r})",
            self.score, self.brevity_penalty
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_references_and_signatures() {
        let options = BleuOptions::default();
        let mut bleu = Bleu::new(options);
        assert_eq!(bleu.signature(), "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0");
        // A word counts as often as in the reference that has it most often; of two lengths as near the shorter counts.
        bleu.add("the the cat", &["the cat", "the the on mat"]);
        let score = bleu.score();
        assert_eq!((score.correct, score.total), ([3, 2, 0, 0], [3, 2, 1, 0]));
        assert_eq!((score.answer_length, score.reference_length), (3, 2));
        bleu.add("a", &["a"]);
        assert_eq!(bleu.score().correct, [4, 2, 0, 0]);
        let options = options.with_case(BleuCase::Lower).with_orders(BleuOrders::Effective);
        let mut bleu = Bleu::new(options.with_smoothing(BleuSmoothing::Floor));
        bleu.add("A B", &["a b", "b"]);
        let signature = "nrefs:2|case:lc|eff:yes|tok:13a|smooth:floor[0.10]|version:2.6.0";
        assert_eq!((bleu.signature().as_str(), bleu.score().correct[0]), (signature, 2));
    }

    #[test]
    fn a_score_is_written_as_is_usual() {
        let mut bleu = Bleu::new(BleuOptions::default());
        assert_eq!(bleu.score().score, 0.0);
        bleu.add("a b c d e", &["a b c d e f"]);
        let line = "BLEU = 81.87 100.0/100.0/100.0/100.0 (BP = 0.819 ratio = 0.833 hyp_len = 5 ref_len = 6)";
        assert_eq!(bleu.score().to_string(), line);
    }

    #[test]
    fn names_are_read_back() {
        for smoothing in SMOOTHINGS {
            assert_eq!(smoothing.name().parse(), Ok(smoothing));
        }
        assert!("exponential".parse::<BleuSmoothing>().is_err());
    }
}
