//! The words that BLEU counts: sacreBLEU's tokenisations of plain text.

use regex::Regex;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// What the words of a text are. Each line of text is cut into words at white space after punctuation was set apart in one of
/// these ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BleuWords {
    /// `13a`: that of the conferences on machine translation (mteval-v13a), for European languages: ASCII punctuation is apart,
    /// but for `'`, and but for periods, commas and hyphens within numbers or words.
    #[default]
    V13a,
    /// `none`: what stands between white space.
    Split,
    /// `char`: each character.
    Characters,
    /// `intl`: all Unicode punctuation that no digit is beside, and all symbols (mteval-v14's international way).
    International,
}

const ALL: [BleuWords; 4] =
    [BleuWords::V13a, BleuWords::Split, BleuWords::Characters, BleuWords::International];

/// Replacements of `13a`, one after the other.
const V13A: [(&str, &str); 4] = [
    (r"([{-~\[-` -&(-+:-@/])", " $1 "),
    // A period or a comma, unless a digit precedes, and unless one follows; a hyphen behind a digit.
    (r"([^0-9])([.,])", "$1 $2 "),
    (r"([.,])([^0-9])", " $1 $2"),
    (r"([0-9])(-)", "$1 $2 "),
];

/// Replacements of `intl`.
const INTERNATIONAL: [(&str, &str); 3] =
    [(r"(\P{N})(\p{P})", "$1 $2 "), (r"(\p{P})(\P{N})", " $1 $2"), (r"(\p{S})", " $1 ")];

impl BleuWords {
    /// sacreBLEU's name for it.
    pub fn name(self) -> &'static str {
        match self {
            BleuWords::V13a => "13a",
            BleuWords::Split => "none",
            BleuWords::Characters => "char",
            BleuWords::International => "intl",
        }
    }
}

impl fmt::Display for BleuWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BleuWords {
    type Err = String;

    fn from_str(name: &str) -> Result<BleuWords, String> {
        let found = ALL.into_iter().find(|words| words.name() == name);
        found.ok_or_else(|| "expected 13a, none, char or intl".to_owned())
    }
}

/// Cuts texts into words.
#[derive(Clone, Debug)]
pub(super) struct Splitter {
    words: BleuWords,
    replacements: Vec<(Regex, &'static str)>,
}

impl Splitter {
    pub(super) fn new(words: BleuWords) -> Splitter {
        let table: &[(&str, &'static str)] = match words {
            BleuWords::V13a => &V13A,
            BleuWords::International => &INTERNATIONAL,
            BleuWords::Split | BleuWords::Characters => &[],
        };
        let compiled = table.iter().map(|&(pattern, replacement)| {
            (Regex::new(pattern).expect("the patterns are constants"), replacement)
        });
        Splitter { words, replacements: compiled.collect() }
    }

    /// Calls `each` with the words of a text in their order.
    pub(super) fn split(&self, text: &str, mut each: impl FnMut(&str)) {
        let text = text.trim_end_matches(is_space);
        if self.words == BleuWords::Characters {
            let mut letter = [0; 4];
            let visible = text.chars().filter(|c| !is_space(*c));
            return visible.for_each(|c| each(c.encode_utf8(&mut letter)));
        }
        let mut line = match self.words {
            BleuWords::V13a => Cow::Owned(format!(" {} ", plain(text))),
            _ => Cow::Borrowed(text),
        };
        for (pattern, replacement) in &self.replacements {
            if let Cow::Owned(replaced) = pattern.replace_all(&line, *replacement) {
                line = Cow::Owned(replaced);
            }
        }
        line.split(is_space).filter(|word| !word.is_empty()).for_each(each);
    }
}

/// `13a` undoes what markup did: skipped segments, hyphenation at line ends, entities.
fn plain(text: &str) -> String {
    let joined = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    let entities = [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")];
    entities.iter().fold(joined, |text, (entity, letter)| match text.contains('&') {
        true => text.replace(entity, letter),
        false => text,
    })
}

/// White space as Python has it: Unicode's, and the four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: BleuWords, text: &str) -> String {
        let mut all = Vec::new();
        Splitter::new(words).split(text, |word| all.push(word.to_owned()));
        all.join(" ")
    }

    #[test]
    fn punctuation_is_set_apart_as_13a_does() {
        for (text, expected) in [
            ("", ""),
            ("Ein Hund.", "Ein Hund ."),
            ("1,000.5 km; 3-4, x-y (don't!)", "1,000.5 km ; 3 - 4 , x-y ( don't ! )"),
            ("&quot;a &amp;lt; b&quot;", "\" a < b \""),
            ("well-\nknown\nwords", "wellknown words"),
            ("wait...", "wait . . ."),
            ("„so“ 5€", "„so“ 5€"),
        ] {
            assert_eq!(words(BleuWords::V13a, text), expected, "{text}");
        }
    }

    #[test]
    fn the_other_ways() {
        assert_eq!(words(BleuWords::Split, " a  b.\u{1c}c\u{a0}d\n"), "a b. c d");
        assert_eq!(words(BleuWords::Characters, "aé b "), "a é b");
        assert_eq!(words(BleuWords::International, "„so“, 5€ 1.5 x-y"), "„ so “ , 5 € 1.5 x - y");
    }

    #[test]
    fn names_are_read_back() {
        for words in ALL {
            assert_eq!(words.name().parse(), Ok(words));
        }
        assert!("14a".parse::<BleuWords>().is_err());
    }
}
