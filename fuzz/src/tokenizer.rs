use crate::checkpoint::damage_bytes;
use crate::tiny;
use arbitrary::{Result, Unstructured};
use headrow::Tokenizer;
use headrow::generate::Detokenizer;
use serde_json::{Value, json};
use std::sync::OnceLock;

/// A tokenizer of one of three kinds, whole or damaged, over any text: an error of one line, or ids whose text, token by token,
/// is that of all at once, and for bytes the text itself. A whole file, with a text behind its line, may stand in its place.
pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    if let Some(file) = crate::whole_file(u) {
        let (json, text) = crate::split_line(file);
        match Tokenizer::from_bytes(json) {
            Ok(tokenizer) => drop(there_and_back(&tokenizer, text)),
            Err(error) => crate::one_line(&error),
        }
        return Ok(());
    }
    let kind = u.int_in_range(0..=2)?;
    let damages = u.int_in_range(0..=2)?;
    if damages == 0 {
        let bytes = u.bytes(u.len().min(300))?;
        if let Some([text, pieces, decoded]) = there_and_back(&whole()[kind], bytes) {
            // Of a run of bytes that is not text, all at once loses every byte; one by one, only those that are wrong.
            let lost = kind == 2 && decoded.contains(char::REPLACEMENT_CHARACTER);
            assert!(lost || pieces == decoded, "{kind}: {text:?}: {pieces:?}, {decoded:?}");
            if kind == 1 {
                assert_eq!(decoded, text);
            }
        }
        return Ok(());
    }
    let mut json = kinds()[kind].to_string().into_bytes();
    for _ in 0..damages {
        if u.arbitrary()? {
            replace(u, &mut json)?;
        } else {
            damage_bytes(u, &mut json)?;
        }
    }
    match Tokenizer::from_bytes(&json) {
        Ok(tokenizer) => drop(there_and_back(&tokenizer, u.bytes(u.len().min(300))?)),
        Err(error) => crate::one_line(&error),
    }
    Ok(())
}

/// A text into tokens and back; unless it is refused, the text, what the tokens give one by one, and all at once.
fn there_and_back(tokenizer: &Tokenizer, bytes: &[u8]) -> Option<[String; 3]> {
    let text = String::from_utf8_lossy(bytes);
    let ids = tokenizer.encode_plain(&text).map_err(|error| crate::one_line(&error)).ok()?;
    if let Err(error) = tokenizer.encode(&*text, Some(bytes.len() % 9)) {
        crate::one_line(&error);
    }
    let decoded = tokenizer.decode(&ids).ok()?;
    let mut pieces = Vec::new();
    let mut detokenizer = tokenizer.token_text(&[]);
    for (at, &id) in ids.iter().enumerate() {
        detokenizer.append(&ids[..at], id, &mut pieces);
    }
    Some([text.into_owned(), String::from_utf8_lossy(&pieces).into_owned(), decoded])
}

/// One value of the file gets another's place, or a number or a word.
fn replace(u: &mut Unstructured<'_>, json: &mut Vec<u8>) -> Result<()> {
    let Ok(mut value) = serde_json::from_slice::<Value>(json) else { return Ok(()) };
    let mut at = &mut value;
    for _ in 0..u.int_in_range(1..=4)? {
        let inside: Vec<&mut Value> = match at {
            Value::Object(fields) => fields.values_mut().collect(),
            Value::Array(items) => items.iter_mut().collect(),
            _ => break,
        };
        let index = if inside.is_empty() { return Ok(()) } else { u.choose_index(inside.len())? };
        at = inside.into_iter().nth(index).expect("it is within");
    }
    *at = match u.int_in_range(0..=6)? {
        0 => Value::Null,
        1 => json!(-1),
        2 => json!(u64::MAX),
        3 => json!("[UNK]"),
        4 => json!([]),
        5 => json!({}),
        _ => json!(true),
    };
    *json = value.to_string().into_bytes();
    Ok(())
}

fn whole() -> &'static [Tokenizer] {
    static WHOLE: OnceLock<Vec<Tokenizer>> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let read = |json: &Value| Tokenizer::from_bytes(json.to_string().as_bytes());
        kinds().iter().map(|json| read(json).expect("a whole tokenizer")).collect()
    })
}

/// Word pieces; pairs of bytes; probable pieces with bytes for what they lack.
fn kinds() -> &'static [Value; 3] {
    static KINDS: OnceLock<[Value; 3]> = OnceLock::new();
    KINDS.get_or_init(|| [tiny::tokenizer(), pairs(), probable()])
}

fn pairs() -> Value {
    // The letters that stand for bytes, in the order of the bytes.
    let (mut letters, mut others) = (Vec::new(), 0x100);
    for byte in 0..=255u32 {
        let visible = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let letter = if visible { byte } else { others };
        others += u32::from(!visible);
        letters.push(char::from_u32(letter).expect("a letter"));
    }
    let merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("Ã", "¤")];
    let words = letters.iter().map(char::to_string);
    let words = words.chain(merges.iter().map(|(a, b)| format!("{a}{b}")));
    let vocabulary: serde_json::Map<String, Value> =
        words.enumerate().map(|(id, word)| (word, json!(id))).collect();
    let merges: Vec<String> = merges.iter().map(|(a, b)| format!("{a} {b}")).collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                       "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary,
                  "merges": merges},
    })
}

fn probable() -> Value {
    let mut vocabulary = vec![json!(["<unk>", 0.0])];
    vocabulary.extend((0..=255).map(|byte| json!([format!("<0x{byte:02X}>"), -20.0])));
    let words = ["▁", "▁the", "▁a", "a", "e", "t", "ing", "n", "s", "ä"];
    vocabulary.extend(words.iter().zip(1..).map(|(word, rank)| json!([word, -f64::from(rank)])));
    let space = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                       "split": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": space, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "ByteFallback"}, {"type": "Fuse"}, space]},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": true},
    })
}
