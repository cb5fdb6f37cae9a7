//! Vocabularies made from texts, written as `tokenizer.json`.

use super::merges::Merges;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Padding. No id of it is ever computed with.
pub(super) const PADDING: &str = "<pad>";
/// Begins a text.
pub(super) const BEGIN: &str = "<s>";
/// Ends a text.
pub(super) const END: &str = "</s>";
/// What the vocabulary lacks.
pub(super) const UNKNOWN: &str = "<unk>";
/// A token that is to be guessed.
pub(super) const MASK: &str = "<mask>";

/// What the tokens are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VocabularyKind {
    /// What stands between white space: words, or letters and phonemes set apart.
    Words,
    /// Parts of words by byte-pair encoding (Sennrich et al., 2016); a space belongs to the word behind it.
    Pairs,
}

/// The special tokens around a text that is read alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Framing {
    /// x … `</s>`: the source of an encoder–decoder. A target is the same; what generates it begins with `<s>`.
    #[default]
    End,
    /// `<s>` x …: a decoder's prompt.
    Begin,
    /// `<s>` x … `</s>`: an encoder. Its vocabulary also has `<mask>`.
    Both,
}

/// How a vocabulary is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VocabularyOptions {
    /// What the tokens are.
    pub kind: VocabularyKind,
    /// Most tokens, special ones included.
    pub size: usize,
    /// The special tokens around a text.
    pub framing: Framing,
}

impl VocabularyOptions {
    /// All words that there are, with [`Framing::End`].
    pub fn words() -> VocabularyOptions {
        let (kind, framing) = (VocabularyKind::Words, Framing::End);
        VocabularyOptions { kind, size: usize::MAX, framing }
    }

    /// Parts of words, at most `size` tokens, with [`Framing::End`].
    pub fn pairs(size: usize) -> VocabularyOptions {
        VocabularyOptions { kind: VocabularyKind::Pairs, size, framing: Framing::End }
    }

    /// The same with at most so many tokens.
    #[must_use]
    pub fn with_size(self, size: usize) -> VocabularyOptions {
        VocabularyOptions { size, ..self }
    }

    /// The same with these special tokens around a text.
    #[must_use]
    pub fn with_framing(self, framing: Framing) -> VocabularyOptions {
        VocabularyOptions { framing, ..self }
    }
}

/// Makes the vocabulary of texts, and of all of them together: of sources and of targets. The result is a `tokenizer.json`,
/// which [`Tokenizer::from_bytes`] reads.
///
/// The special tokens have the first ids: `<pad>` 0, `<s>` 1, `</s>` 2, `<unk>` 3, and with [`Framing::Both`] `<mask>` 4.
///
/// Words come in the order of their counts, and of two as frequent the one whose spelling is less. Byte-pair encoding begins
/// with all letters that occur in the order of their codes; then the most frequent pair of neighbours is merged again and
/// again, of two as frequent the one with the lower ids, as long as one occurs twice. Nothing else decides, no hash and no
/// thread: the same texts in any order give the same bytes.
///
/// What an encoding by parts of words loses: letters that did not occur, and one space at the beginning of a text.
///
/// # Errors
/// [`Error::TrainingOption`] when there is no text, or more letters than tokens.
///
/// ```
/// use headrow::Tokenizer;
/// use headrow::train::{VocabularyOptions, vocabulary};
///
/// let file = vocabulary(["k ae t", "ae t"], &VocabularyOptions::words())?;
/// let tokenizer = Tokenizer::from_bytes(&file)?;
/// // Behind four special tokens the most frequent come first; `</s>` ends a text.
/// assert_eq!(tokenizer.encode("k ae", None)?.ids, [6, 4, 2]);
/// # Ok::<(), headrow::Error>(())
/// ```
pub fn vocabulary<'a>(
    texts: impl IntoIterator<Item = &'a str>,
    options: &VocabularyOptions,
) -> Result<Vec<u8>> {
    let special = special_tokens(options.framing);
    let file = match options.kind {
        VocabularyKind::Words => words(texts, &special, options),
        VocabularyKind::Pairs => pairs(texts, &special, options),
    }?;
    Ok(file.to_string().into_bytes())
}

fn special_tokens(framing: Framing) -> Vec<&'static str> {
    let mut tokens = vec![PADDING, BEGIN, END, UNKNOWN];
    tokens.extend((framing == Framing::Both).then_some(MASK));
    tokens
}

fn words<'a>(
    texts: impl IntoIterator<Item = &'a str>,
    special: &[&str],
    options: &VocabularyOptions,
) -> Result<Value> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for word in texts.into_iter().flat_map(str::split_whitespace) {
        *counts.entry(word).or_default() += 1;
    }
    counts.retain(|word, _| !special.contains(word));
    check_room(special.len() + usize::from(!counts.is_empty()), special, options)?;
    let mut words: Vec<(&str, u64)> = counts.into_iter().collect();
    words.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    words.truncate(options.size - special.len());
    let tokens = special.iter().copied().chain(words.into_iter().map(|(word, _)| word));
    let model = json!({
        "type": "WordLevel", "vocab": numbered(tokens), "unk_token": UNKNOWN,
    });
    let split = json!({"type": "WhitespaceSplit"});
    Ok(file(special, options.framing, model, split, Value::Null))
}

fn pairs<'a>(
    texts: impl IntoIterator<Item = &'a str>,
    special: &[&str],
    options: &VocabularyOptions,
) -> Result<Value> {
    let model = |vocabulary: Value, merges: Value| {
        json!({
            "type": "BPE", "vocab": vocabulary, "merges": merges, "unk_token": UNKNOWN, "fuse_unk": true,
            "dropout": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "byte_fallback": false, "ignore_merges": false,
        })
    };
    let (split, decoder) = spaces(options.framing);
    let write = |model| file(special, options.framing, model, split.clone(), decoder.clone());
    // The same rules that cut texts for the finished vocabulary cut them here.
    let empty = write(model(numbered(special.iter().copied()), json!([])));
    let cutter = Tokenizer::from_bytes(empty.to_string().as_bytes())?;
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for text in texts {
        cutter.pieces(text, |piece| match counts.get_mut(piece) {
            Some(count) => *count += 1,
            None => drop(counts.insert(piece.to_owned(), 1)),
        })?;
    }
    let mut merges = Merges::new(special, &counts);
    check_room(merges.tokens().len(), special, options)?;
    merges.grow(options.size);
    let tokens = merges.tokens();
    let pairs =
        merges.merged().iter().map(|&(a, b)| json!([tokens[a as usize], tokens[b as usize]]));
    let pairs: Vec<Value> = pairs.collect();
    Ok(write(model(numbered(tokens.iter().map(String::as_str)), pairs.into())))
}

/// Refuses a vocabulary of nothing, and one that is too small for what it begins with.
fn check_room(least: usize, special: &[&str], options: &VocabularyOptions) -> Result<()> {
    if least == special.len() {
        return Err(Error::training_option("vocabulary", "there are no texts to make it from"));
    }
    match options.size < least {
        true => {
            let problem =
                format!("a size of {}, the special tokens and letters are {least}", options.size);
            Err(Error::training_option("vocabulary", problem))
        }
        false => Ok(()),
    }
}

/// How texts are cut at spaces, and how tokens become texts again.
///
/// A source or a target begins with a space, so that a word is the same token at the beginning and later on. Where texts
/// are pieces of a longer one they are taken as they are, and a line end is a token.
fn spaces(framing: Framing) -> (Value, Value) {
    let scheme = if framing == Framing::End { "always" } else { "never" };
    let spaces =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let line_end = json!({"type": "Split", "pattern": {"String": "\n"}, "behavior": "Isolated", "invert": false});
    let split = match framing {
        Framing::End => spaces.clone(),
        _ => json!({"type": "Sequence", "pretokenizers": [line_end, spaces.clone()]}),
    };
    (split, spaces)
}

fn numbered<'a>(tokens: impl Iterator<Item = &'a str>) -> Value {
    let numbered = tokens.enumerate().map(|(id, token)| (token.to_owned(), json!(id)));
    Value::Object(numbered.collect::<Map<String, Value>>())
}

fn file(special: &[&str], framing: Framing, model: Value, split: Value, decoder: Value) -> Value {
    let added: Vec<Value> = special
        .iter()
        .enumerate()
        .map(|(id, token)| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": added,
        "pre_tokenizer": split, "post_processor": template(special, framing), "decoder": decoder, "model": model,
    })
}

/// Puts the special tokens around a text; around each text of a pair.
fn template(special: &[&str], framing: Framing) -> Value {
    let (before, behind) = match framing {
        Framing::End => (None, Some(END)),
        Framing::Begin => (Some(BEGIN), None),
        Framing::Both => (Some(BEGIN), Some(END)),
    };
    let token = |name: &str, kind: u32| json!({"SpecialToken": {"id": name, "type_id": kind}});
    let framed = |name: &str, kind: u32| {
        let text = json!({"Sequence": {"id": name, "type_id": kind}});
        let before = before.map(|name| token(name, kind));
        let behind = behind.map(|name| token(name, kind));
        before.into_iter().chain([text]).chain(behind).collect::<Vec<_>>()
    };
    let used = before.into_iter().chain(behind).map(|name| {
        let id = special.iter().position(|token| *token == name);
        (name.to_owned(), json!({"id": name, "ids": [id], "tokens": [name]}))
    });
    let (used, pair) = (used.collect::<Map<_, _>>(), [framed("A", 0), framed("B", 1)].concat());
    json!({
        "type": "TemplateProcessing", "single": framed("A", 0), "pair": pair, "special_tokens": used,
    })
}
