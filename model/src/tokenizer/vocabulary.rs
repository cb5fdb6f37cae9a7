//! Vocabularies that are a list of tokens, one a line, as OpenNMT and CTranslate2 have them.

use super::{MAX_BYTES, Tokenizer};
use crate::config::{printable, read_file};
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::Path;

impl Tokenizer {
    /// Reads a list of tokens, one a line; the first has id 0. Tokens in angle brackets, as `<s>` or `<unk>`, are special ones.
    ///
    /// Where all others are single characters, a text's tokens are its characters; otherwise they are what stands between
    /// white space. What is not in the list becomes `<unk>`, and is refused where there is none.
    ///
    /// # Errors
    /// When the file cannot be read, is no UTF-8, or names a token twice.
    pub fn from_vocabulary(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        let (bytes, place) = (read_file(path, MAX_BYTES)?, path.display().to_string());
        let text = std::str::from_utf8(&bytes)
            .map_err(|error| Error::file(&place, format_args!("not UTF-8: {error}")))?;
        let json = description(text).map_err(|problem| Error::file(&place, problem))?;
        Tokenizer::parse(json.to_string().as_bytes(), place)
    }
}

/// The same as a `tokenizer.json`.
fn description(text: &str) -> Result<Value, String> {
    let mut vocabulary = Map::new();
    let mut special = Vec::new();
    let mut letters = true;
    for (id, token) in text.lines().enumerate() {
        if vocabulary.insert(token.to_owned(), json!(id)).is_some() {
            return Err(format!("line {}: {} is there twice", id + 1, printable(token)));
        }
        if token.len() > 2 && token.starts_with('<') && token.ends_with('>') {
            special.push(json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }));
        } else {
            letters &= token.chars().count() == 1;
        }
    }
    if vocabulary.is_empty() {
        return Err("no tokens".to_owned());
    }
    let (pre_tokenizer, decoder) = match letters {
        true => {
            let letter = json!({"Regex": r"(?s)."});
            let split = json!({"type": "Split", "pattern": letter, "behavior": "Isolated", "invert": false});
            (split, json!({"type": "Fuse"}))
        }
        false => (json!({"type": "WhitespaceSplit"}), Value::Null),
    };
    Ok(json!({
        "version": "1.0", "added_tokens": special, "pre_tokenizer": pre_tokenizer, "decoder": decoder,
        "normalizer": null, "post_processor": null, "truncation": null, "padding": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(tokens: &str) -> Tokenizer {
        Tokenizer::from_bytes(description(tokens).unwrap().to_string().as_bytes()).unwrap()
    }

    #[test]
    fn characters_or_words_as_the_list_has_them() {
        let letters = tokenizer("<blank>\n<s>\n</s>\na\nب\n \n");
        let ids = letters.encode("ب a", None).unwrap().ids;
        assert_eq!(ids, [4, 5, 3]);
        assert_eq!(letters.decode(&[1, 4, 5, 3, 2]).unwrap(), "ب a");
        assert!(letters.encode("ax", None).is_err(), "no token for x");

        let words = tokenizer("<unk>\n<s>\n</s>\n▁the\n▁cat\ns\n");
        let encoding = words.encode_with_offsets("▁the  dog s", None).unwrap();
        assert_eq!(encoding.ids, [3, 0, 5]);
        assert_eq!(encoding.offsets, [0..6, 8..11, 12..13]);
        assert_eq!(words.decode(&[3, 4, 5]).unwrap(), "▁the ▁cat s");
    }

    #[test]
    fn a_list_that_is_none_is_refused() {
        assert_eq!(description("a\nb\na\n").unwrap_err(), "line 3: a is there twice");
        assert!(description("").is_err());
    }
}
