//! Byte-pair encoding learnt from counted words (Sennrich et al., 2016).
//!
//! The trainer of the `tokenizers` crate finds the same merges, but promises no order: where two ways of merging come to the same
//! token its queue may hold a pair twice, equal entries come as a randomly seeded hash has them, and pairs are
//! counted by threads of a global pool. Here nothing but counts and ids decides.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

type Pair = (u32, u32);

/// A vocabulary that grows by merging the most frequent pair of neighbours.
pub(super) struct Merges {
    tokens: Vec<String>,
    ids: HashMap<String, u32>,
    /// Ids below are those of special tokens, of which no letters are made.
    special: usize,
    words: Vec<Word>,
    pairs: HashMap<Pair, Occurrences>,
    /// Pairs by their counts; a count that has fallen since is noticed when its turn comes.
    queue: BinaryHeap<(u64, Reverse<Pair>)>,
    merged: Vec<Pair>,
}

struct Word {
    tokens: Vec<u32>,
    count: u64,
}

#[derive(Default)]
struct Occurrences {
    count: u64,
    /// Words that had the pair when they were last looked at.
    words: BTreeSet<usize>,
}

/// Least occurrences of a pair that is merged.
const LEAST: u64 = 2;

impl Merges {
    /// The special tokens, and all letters of the words in the order of their codes.
    pub(super) fn new(special: &[&str], counts: &BTreeMap<String, u64>) -> Merges {
        let letters: BTreeSet<char> = counts.keys().flat_map(|word| word.chars()).collect();
        let letters = letters.into_iter().map(String::from);
        let tokens: Vec<String> =
            special.iter().map(|token| (*token).to_owned()).chain(letters).collect();
        let ids: HashMap<String, u32> = tokens.iter().cloned().zip(0..).collect();
        let words = counts.iter().map(|(word, &count)| {
            let mut letter = [0; 4];
            let tokens = word.chars().map(|c| ids[&*c.encode_utf8(&mut letter)]);
            Word { tokens: tokens.collect(), count }
        });
        let words: Vec<Word> = words.collect();
        let mut pairs: HashMap<Pair, Occurrences> = HashMap::new();
        for (index, word) in words.iter().enumerate() {
            for pair in neighbours(&word.tokens) {
                let occurrences = pairs.entry(pair).or_default();
                occurrences.count += word.count;
                occurrences.words.insert(index);
            }
        }
        let queue = pairs.iter().map(|(&pair, found)| (found.count, Reverse(pair))).collect();
        let special = special.len();
        Merges { tokens, ids, special, words, pairs, queue, merged: Vec::new() }
    }

    /// Merges until there are `size` tokens, or no pair occurs twice.
    pub(super) fn grow(&mut self, size: usize) {
        while self.tokens.len() < size {
            let Some((count, Reverse(pair))) = self.queue.pop() else { break };
            let now = self.pairs.get(&pair).map_or(0, |found| found.count);
            match count == now {
                true if count < LEAST => break,
                true => self.merge(pair),
                false if now > 0 => self.queue.push((now, Reverse(pair))),
                false => (),
            }
        }
    }

    /// The tokens by their ids.
    pub(super) fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// The pairs in the order in which they were merged.
    pub(super) fn merged(&self) -> &[Pair] {
        &self.merged
    }

    fn merge(&mut self, pair: Pair) {
        let Some(token) = self.token(pair) else { return };
        let Some(found) = self.pairs.remove(&pair) else { return };
        self.merged.push(pair);
        let mut grown = BTreeSet::new();
        for index in found.words {
            let Word { tokens, count } = &mut self.words[index];
            for old in neighbours(tokens).filter(|old| *old != pair) {
                if let Some(found) = self.pairs.get_mut(&old) {
                    found.count -= *count;
                }
            }
            replace(tokens, pair, token);
            for new in neighbours(tokens) {
                let found = self.pairs.entry(new).or_default();
                found.count += *count;
                if new.0 == token || new.1 == token {
                    found.words.insert(index);
                    grown.insert(new);
                }
            }
        }
        self.queue.extend(grown.iter().map(|pair| (self.pairs[pair].count, Reverse(*pair))));
    }

    /// The token of a merged pair: a new one, unless other parts gave the same letters before. None where it would be
    /// spelt as a special one.
    fn token(&mut self, (a, b): Pair) -> Option<u32> {
        let spelling = self.tokens[a as usize].clone() + &self.tokens[b as usize];
        let next = self.tokens.len() as u32;
        let id = *self.ids.entry(spelling.clone()).or_insert(next);
        if id == next {
            self.tokens.push(spelling);
        }
        (id as usize >= self.special).then_some(id)
    }
}

fn neighbours(tokens: &[u32]) -> impl Iterator<Item = Pair> {
    tokens.windows(2).map(|two| (two[0], two[1]))
}

/// Puts `token` in the place of each occurrence of the pair, from the left.
fn replace(tokens: &mut Vec<u32>, (a, b): Pair, token: u32) {
    let (mut read, mut written) = (0, 0);
    while read < tokens.len() {
        let here = tokens[read] == a && tokens.get(read + 1) == Some(&b);
        tokens[written] = if here { token } else { tokens[read] };
        read += if here { 2 } else { 1 };
        written += 1;
    }
    tokens.truncate(written);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::random::{below, philox};
    use tokenizers::models::bpe::{BPE, BpeTrainer};
    use tokenizers::{Model, Trainer};

    fn counts(text: &str) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        text.split(' ').for_each(|word| *counts.entry(word.to_owned()).or_default() += 1);
        counts
    }

    fn merged(merges: &Merges) -> Vec<String> {
        let spell =
            |&(a, b): &Pair| format!("{}+{}", merges.tokens[a as usize], merges.tokens[b as usize]);
        merges.merged.iter().map(spell).collect()
    }

    #[test]
    fn the_most_frequent_pair_is_merged_first() {
        let mut merges = Merges::new(&["<s>"], &counts("low low lower lower newest newest newest"));
        assert_eq!(merges.tokens(), ["<s>", "e", "l", "n", "o", "r", "s", "t", "w"]);
        merges.grow(14);
        // w+e occurs five times, l+o four; of what occurs three times the lower ids are first.
        assert_eq!(merged(&merges), ["w+e", "l+o", "e+we", "n+ewe", "s+t"]);
        merges.grow(100);
        assert_eq!(merges.tokens().last().unwrap(), "lower");
        assert!(merges.tokens().len() < 100, "nothing is merged that occurs once");
    }

    #[test]
    fn equal_letters_in_a_row_are_merged_from_the_left() {
        let mut merges = Merges::new(&[], &counts("aaaaa aaaaa"));
        merges.grow(3);
        assert_eq!(
            (merged(&merges), &merges.words[0].tokens[..]),
            (vec!["a+a".to_owned(), "aa+a".to_owned()], &[1, 2][..])
        );
    }

    #[test]
    fn no_part_of_a_word_is_spelt_as_a_special_token() {
        let mut merges = Merges::new(&["<s>"], &counts("<s> <s> <s> a<s> a<s>"));
        merges.grow(100);
        assert_eq!(merges.tokens().iter().filter(|token| token.contains("s>")).count(), 2);
        assert!(merges.merged().iter().all(|&(a, b)| a > 0 && b > 0));
    }

    /// Words of one to four syllables, the first syllables more often.
    fn babble() -> String {
        let draw = |step: u32, n: usize| {
            let [a, b, c, d] = philox([step, 0, 0, 0], [7, 0]);
            below([a, b], n).min(below([c, d], n))
        };
        let syllables = ["ka", "len", "to", "ri", "schu", "na", "be", "os", "ul", "tin", "wa", "e"];
        let word = |word: u32| {
            let length = 1 + draw(5 * word, 4) as u32;
            (1..=length).map(|part| syllables[draw(5 * word + part, 12)]).collect::<String>()
        };
        (0..3000).map(word).collect::<Vec<_>>().join(" ")
    }

    /// The crate's trainer agrees where no two ways of merging come to the same token.
    #[test]
    fn the_vocabulary_is_that_of_another_trainer() {
        let text = babble();
        let mut ours = Merges::new(&[], &counts(&text));
        let mut trainer = BpeTrainer::builder().vocab_size(200).show_progress(false).build();
        let words = |line: &str| Ok(line.split(' ').map(str::to_owned).collect());
        trainer.feed([text.as_str()].into_iter(), words).unwrap();
        let mut theirs = BPE::default();
        trainer.train(&mut theirs).unwrap();
        ours.grow(200);
        assert_eq!(ours.tokens().len(), 200);
        for (id, token) in (0..).zip(ours.tokens()) {
            assert_eq!(theirs.id_to_token(id).as_ref(), Some(token), "token {id}");
        }
    }
}
