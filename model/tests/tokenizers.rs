//! `HEADROW_TOKENIZERS=DIR cargo test -p headrow --test tokenizers -- --nocapture` compares the files that
//! DIR's `golden.json` names with the ids and texts recorded there, and prints a line per file.

use headrow::Tokenizer;
use serde_json::Value;
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
    let ids = numbers(&case["ids"]);
    let encoding = tokenizer.encode(case["text"].as_str().unwrap(), None).unwrap();
    encoding.ids == ids && tokenizer.decode(&ids).unwrap() == case["decoded"].as_str().unwrap()
}
