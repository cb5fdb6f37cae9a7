//! `HEADROW_TOKENIZERS=DIR cargo test -p headrow --test tokenizers -- --nocapture` compares the files that
//! DIR's `golden.json` names with the ids and texts recorded there, the
//! texts also token by token, and prints a line per file.

use headrow::Tokenizer;
use headrow::generate::{Detokenizer, TextStream};
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn recorded_ids_and_texts() {
    let Some(dir) = std::env::var_os("HEADROW_TOKENIZERS") else {
        println!("\nHEADROW_TOKENIZERS is not set: no recorded tokenizers to compare with");
        return;
    };
    let dir = Path::new(&dir);
    let golden = std::fs::read(dir.join("golden.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    println!();
    for (name, cases) in golden.as_object().unwrap() {
        if !name.ends_with(".json") {
            skipped += 1;
            println!("{name} skip (only tokenizer.json is read)");
            continue;
        }
        let tokenizer = Tokenizer::from_file(dir.join(name)).unwrap();
        let wrong = cases.as_array().unwrap().iter().find(|case| !agrees(&tokenizer, case));
        match wrong {
            None => {
                passed += 1;
                println!("{name} ok");
            }
            Some(case) => {
                failed += 1;
                println!("{name} FAIL ({})", case["text"]);
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    assert_eq!(failed, 0);
}

fn agrees(tokenizer: &Tokenizer, case: &Value) -> bool {
    let numbers = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let (text, ids) = (case["text"].as_str().unwrap(), numbers(&case["ids"]));
    let encoding = tokenizer.encode(text, None).unwrap();
    encoding.ids == ids
        && tokenizer.decode(&ids).unwrap() == case["decoded"].as_str().unwrap()
        && bit_by_bit(tokenizer, &ids) == case["decoded"].as_str().unwrap()
        && offsets_are_in_order(tokenizer, text, &ids)
}

/// The text of ids that come one by one.
fn bit_by_bit(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let (mut detokenizer, mut stream) = (tokenizer.token_text(&[]), TextStream::new(&[]));
    let (mut bytes, mut text) = (Vec::new(), String::new());
    for (index, &id) in ids.iter().enumerate() {
        bytes.clear();
        detokenizer.append(&ids[..index], id, &mut bytes);
        stream.push(&bytes, &mut text);
    }
    stream.finish(&mut text);
    text
}

/// Offsets are those of characters, ascend, and leave out nothing but white space and what a normaliser removes.
fn offsets_are_in_order(tokenizer: &Tokenizer, text: &str, ids: &[u32]) -> bool {
    let encoding = tokenizer.encode_with_offsets(text, None).unwrap();
    let own: Vec<_> =
        ids.iter().zip(&encoding.offsets).filter(|(id, _)| !tokenizer.is_special(**id)).collect();
    encoding.ids == ids
        && encoding.offsets.len() == ids.len()
        && own.iter().all(|(_, range)| text.get((*range).clone()).is_some())
        && own.is_sorted_by(|a, b| a.1.start <= b.1.start && a.1.end <= b.1.end)
}

#[test]
fn text_goes_on_where_the_prompt_ends() {
    let piece = |id: usize, text: &str| json!([text, -(id as f64)]);
    let pieces = ["<unk>", "<s>", "▁the", "▁cat", "s", "<0xE2>", "<0x82>", "<0xAC>"];
    let vocabulary: Vec<Value> =
        pieces.iter().enumerate().map(|(id, text)| piece(id, text)).collect();
    let special = json!([{"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}]);
    let steps = json!([
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]);
    let file = json!({
        "version": "1.0", "added_tokens": special, "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": true},
    });
    let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap();
    let text = |before: &[u32], ids: &[u32]| {
        let mut detokenizer = tokenizer.token_text(before);
        let mut bytes = Vec::new();
        ids.iter().enumerate().for_each(|(i, &id)| detokenizer.append(&ids[..i], id, &mut bytes));
        String::from_utf8(bytes).unwrap()
    };
    assert_eq!(tokenizer.encode("the cats", None).unwrap().ids, [2, 3, 4]);
    for ids in [&[2, 3, 4][..], &[1, 2, 4, 1, 3], &[2, 5, 6, 7, 3], &[5, 6, 7, 3]] {
        assert_eq!(text(&[], ids), tokenizer.decode(ids).unwrap(), "{ids:?}");
    }
    assert_eq!(text(&[], &[3, 4]), "cats");
    assert_eq!(text(&[1], &[3, 4]), "cats", "nothing but a special token before");
    assert_eq!(text(&[1, 2], &[3, 4]), " cats");
    // The bytes of one character come one by one.
    let mut part = Vec::new();
    tokenizer.token_text(&[2]).append(&[5], 6, &mut part);
    assert_eq!(part, [0x82]);
}
