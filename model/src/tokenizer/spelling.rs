//! The bytes that a token adds to a text, one token at a time.

use super::{Tokenizer, guarded};
use crate::generate::Detokenizer;
use serde_json::Value;
use tokenizers::Decoder;

/// What the tokens of a vocabulary stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// A letter for every byte, as GPT-2 has it: a token may begin or end inside a character.
    Bytes,
    /// Text, and bytes written as `<0xE2>` for what the vocabulary lacks.
    TextOrBytes,
    /// Text.
    Text,
}

impl Spelling {
    /// That of the decoder in a `tokenizer.json`.
    pub(super) fn of(decoder: &Value) -> Spelling {
        let steps = match decoder["decoders"].as_array() {
            Some(steps) if decoder["type"] == "Sequence" => steps.as_slice(),
            _ => std::slice::from_ref(decoder),
        };
        let has = |kind: &str| steps.iter().any(|step| step["type"] == kind);
        // Fusing joins what is one string already.
        let plain = |step: &Value| step["type"] == "ByteLevel" || step["type"] == "Fuse";
        if has("ByteLevel") && steps.iter().all(plain) {
            Spelling::Bytes
        } else if has("ByteFallback") {
            Spelling::TextOrBytes
        } else {
            Spelling::Text
        }
    }

    /// The bytes that a token stands for whatever is beside it; `None` when that matters.
    fn bytes(self, token: &str) -> Option<Vec<u8>> {
        match self {
            // A token with other letters, an added one, stands for itself.
            Spelling::Bytes => {
                let bytes: Option<Vec<u8>> = token.chars().map(byte_of_letter).collect();
                Some(bytes.unwrap_or_else(|| token.as_bytes().to_vec()))
            }
            Spelling::TextOrBytes => {
                let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
                let byte = u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)?;
                Some(vec![byte])
            }
            Spelling::Text => None,
        }
    }
}

/// The byte that a letter of a byte-level vocabulary stands for. Visible Latin-1 letters are their own bytes; the other
/// bytes are, in their order, the letters from U+0100 on.
fn byte_of_letter(letter: char) -> Option<u8> {
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(letter) {
        code @ 0..=0xff => Some(code as u8).filter(|&byte| visible(byte)),
        code => (0..=u8::MAX).filter(|&byte| !visible(byte)).nth(code as usize - 0x100),
    }
}

/// Turns tokens into text one by one, as a [`Detokenizer`] of a generation does.
///
/// All of them together give the bytes of [`Tokenizer::decode`], where those are whole characters: a token may be part of
/// one. Special tokens give nothing.
#[derive(Clone, Copy, Debug)]
pub struct TokenText<'a> {
    tokenizer: &'a Tokenizer,
    /// The last token before the generated ones that is no special one.
    context: Option<u32>,
}

impl Tokenizer {
    /// The text of tokens one by one, when it goes on after `before`; after nothing, vocabularies that mark the beginnings of
    /// words by a space lose the first one.
    pub fn token_text(&self, before: &[u32]) -> TokenText<'_> {
        let seen = |id: &&u32| self.visible(**id).is_some();
        TokenText { tokenizer: self, context: before.iter().rev().find(seen).copied() }
    }

    /// A token for readers: in its text, as far as that is text, with `·` for a space and escapes for what cannot be seen.
    pub fn label(&self, id: u32) -> String {
        let Some(token) = self.visible(id) else {
            return self.token(id).unwrap_or_else(|| format!("#{id}"));
        };
        let text = match self.spelling.bytes(&token).map(String::from_utf8) {
            None => token,
            Some(Ok(text)) => text,
            Some(Err(error)) => {
                return error.as_bytes().iter().map(|byte| format!("\\x{byte:02x}")).collect();
            }
        };
        let readable = |c: char| match c {
            ' ' | '▁' => "·".to_owned(),
            c if c.is_control() || c.is_whitespace() => c.escape_default().to_string(),
            c => c.to_string(),
        };
        text.chars().map(readable).collect()
    }

    /// The token as the vocabulary writes it, unless it is a special one or none.
    fn visible(&self, id: u32) -> Option<String> {
        self.token(id).filter(|token| !self.inner.get_added_vocabulary().is_special_token(token))
    }

    fn join(&self, tokens: Vec<String>) -> String {
        let Some(decoder) = self.inner.get_decoder() else { return tokens.join(" ") };
        let pieces = guarded(&self.place, || decoder.decode_chain(tokens));
        pieces.map_or_else(|_| String::new(), |pieces| pieces.concat())
    }
}

impl Detokenizer for TokenText<'_> {
    fn append(&mut self, before: &[u32], token: u32, text: &mut Vec<u8>) {
        let TokenText { tokenizer, context } = *self;
        let Some(token) = tokenizer.visible(token) else { return };
        if let Some(bytes) = tokenizer.spelling.bytes(&token) {
            return text.extend(bytes);
        }
        // Of what comes before, only the last token matters: for a space between, or at the beginning.
        let mut before = before.iter().copied().rev().chain(context);
        let Some(last) = before.find_map(|id| tokenizer.visible(id)) else {
            return text.extend(tokenizer.join(vec![token]).into_bytes());
        };
        let alone = tokenizer.join(vec![last.clone()]);
        let both = tokenizer.join(vec![last, token]);
        let same = alone.bytes().zip(both.bytes()).take_while(|(a, b)| a == b).count();
        text.extend(&both.as_bytes()[same..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_byte_has_a_letter() {
        let letters = (0..0x180).filter_map(char::from_u32);
        let mut bytes: Vec<u8> = letters.filter_map(byte_of_letter).collect();
        assert_eq!(byte_of_letter('Ġ'), Some(b' '));
        assert_eq!(byte_of_letter('Ċ'), Some(b'\n'));
        bytes.sort_unstable();
        assert!(bytes.into_iter().eq(0..=u8::MAX));
    }

    #[test]
    fn spellings_are_told_by_the_decoder() {
        let sequence = |kinds: &[&str]| {
            let steps: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
            Spelling::of(&json!({"type": "Sequence", "decoders": steps}))
        };
        assert_eq!(Spelling::of(&json!({"type": "ByteLevel"})), Spelling::Bytes);
        assert_eq!(sequence(&["ByteLevel", "Fuse"]), Spelling::Bytes);
        assert_eq!(sequence(&["Replace", "ByteFallback", "Fuse"]), Spelling::TextOrBytes);
        assert_eq!(sequence(&["ByteLevel", "Strip"]), Spelling::Text);
        assert_eq!(Spelling::of(&Value::Null), Spelling::Text);
        assert_eq!(Spelling::TextOrBytes.bytes("<0xE2>"), Some(vec![0xe2]));
    }
}
