//! What is looked at in a `tokenizer.json` before its own reader sees it.

use super::spelling::Spelling;
use crate::config::printable;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::normalizers::Precompiled;

/// The parts of a `tokenizer.json` that the tokenizer's own reader takes on trust: damage there would panic
/// in it, now or with the first text.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
}

/// Checks these parts, and says how tokens become bytes.
pub(super) fn check_parts(json: &[u8]) -> Result<Spelling, String> {
    let parts: Parts =
        serde_json::from_slice(json).map_err(|error| printable(&error.to_string()))?;
    if !maps_are_whole(&parts.normalizer) {
        return Err("the normalizer's precompiled map is damaged".to_owned());
    }
    match undefined_token(&parts.post_processor) {
        Some(token) => {
            let token = printable(&token);
            Err(format!("the post-processor uses {token}, which it does not define"))
        }
        None => Ok(Spelling::of(&parts.decoder)),
    }
}

fn maps_are_whole(normalizer: &Value) -> bool {
    let parts = normalizer["normalizers"].as_array().into_iter().flatten();
    let map = (normalizer["type"] == "Precompiled").then_some(normalizer);
    parts.into_iter().all(maps_are_whole)
        && map.is_none_or(|map| {
            map_has_its_length(map) && serde_json::from_str::<Precompiled>(&map.to_string()).is_ok()
        })
}

/// Whether a precompiled map is as long as it says. Its first four bytes, in base64, are the length of its
/// trie, and its reader reserves twice as much.
fn map_has_its_length(map: &Value) -> bool {
    let text = map["precompiled_charsmap"].as_str().unwrap_or_default().as_bytes();
    let mut bits = 0u64;
    for &letter in text.iter().take(6) {
        let digit = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return false,
        };
        bits = bits << 6 | u64::from(digit);
    }
    // 36 bits, of which the first 32 are a little-endian number.
    let trie = ((bits >> 4) as u32).swap_bytes();
    text.len() >= 6 && trie as usize <= text.len() / 4 * 3
}

/// A token that a template names and its table of special tokens lacks.
fn undefined_token(processor: &Value) -> Option<String> {
    let parts = processor["processors"].as_array().into_iter().flatten();
    let templates = ["single", "pair"].map(|name| processor[name].as_array());
    let mut names = templates.into_iter().flatten().flatten().filter_map(|piece| match piece {
        // `[CLS]:0`, short for the same.
        Value::String(short) if !short.starts_with('$') => short.split(':').next(),
        piece => piece["SpecialToken"]["id"].as_str(),
    });
    let unknown = |name: &&str| processor["special_tokens"].get(*name).is_none();
    names.find(unknown).map(str::to_owned).or_else(|| parts.into_iter().find_map(undefined_token))
}
