//! The small recorded folders kept with the tests: every family against its reference implementation.

#[path = "support/golden.rs"]
mod support;
#[path = "support/tiny.rs"]
mod tiny;

use headrow::Model;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::{Comparison, Outcome, compare_model, run, run_all};
use tiny::Folder;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

#[test]
fn the_folders_kept_with_the_tests_agree_with_their_records() {
    for name in ["bert", "roberta", "distilbert", "gpt2", "marian"] {
        match run(&fixture(name)) {
            // Nothing of these records is left out.
            Outcome::Ok(note) => assert!(!note.contains("not compared"), "{name}: {note}"),
            Outcome::Fail(why) | Outcome::Skip(why) => panic!("{name}: {why}"),
        }
    }
}

#[test]
#[should_panic(expected = "no folder with a golden.json, 0 cases run")]
fn a_folder_without_records_is_no_success() {
    // A folder with files and folders, none of them a record.
    run_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
}

#[test]
fn a_folder_whose_weights_differ_from_the_record_fails() {
    let folder = fixture("bert");
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let mut changed = bytes.clone();
    // The sign of the very last number, one of the next-sentence head's.
    *changed.last_mut().unwrap() ^= 0x80;
    let config = headrow::Config::from_file(folder.join("config.json")).unwrap();
    let check = |weights: &[u8]| {
        let mut comparison = Comparison::default();
        compare_model(
            &Arc::new(Model::from_bytes(&config, weights).unwrap()),
            &folder,
            &mut comparison,
        )
        .map(|()| comparison.failures.len())
    };
    assert_eq!(check(&bytes), Ok(0));
    assert_eq!(check(&changed), Ok(1));
}

#[test]
fn a_decoder_whose_record_was_changed_fails() {
    for name in ["gpt2", "marian"] {
        let folder = copy_of(name);
        let path = folder.0.join("golden.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (changed, tensor) in tensors.iter() {
            // The sign of the first number, the lowest bit of the first id: the last one where padding is in front.
            let last = if changed == "gen_batch.input_ids" { tensor.data().len() - 8 } else { 0 };
            let at = tensor.data()[last..].as_ptr() as usize - bytes.as_ptr() as usize;
            let mut bytes = bytes.clone();
            match tensor.dtype() {
                safetensors::Dtype::F32 => bytes[at + 3] ^= 0x80,
                _ => bytes[at] ^= 1,
            }
            std::fs::write(&path, bytes).unwrap();
            assert!(matches!(run(&folder.0), Outcome::Fail(_)), "{name}: {changed}");
        }
    }
}

#[test]
fn a_search_whose_record_was_changed_fails() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 3] = [
        ("an id", |entry| {
            let sequence = entry["sequences"][0].as_array_mut().unwrap();
            // The last that is neither the end nor padding, which are these in the two models.
            let id = |id: &Value| id.as_u64().unwrap();
            let at =
                sequence.iter().rposition(|other| ![0, 115, 119].contains(&id(other))).unwrap();
            sequence[at] = json!(id(&sequence[at]) ^ 1);
        }),
        ("a score", |entry| {
            let score = entry["sequences_scores"][0].as_f64().unwrap();
            entry["sequences_scores"][0] = json!(score + 3e-4);
        }),
        ("a sequence more", |entry| {
            let sequences = entry["sequences"].as_array_mut().unwrap();
            sequences.push(sequences[0].clone());
        }),
    ];
    for name in ["gpt2", "marian"] {
        let folder = copy_of(name);
        let path = folder.0.join("golden.json");
        let golden: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for (index, entry) in golden["generation"].as_array().unwrap().iter().enumerate() {
            for (what, change) in changes {
                if what == "a score" && entry["sequences_scores"].is_null() {
                    continue;
                }
                let mut changed = golden.clone();
                change(&mut changed["generation"][index]);
                std::fs::write(&path, changed.to_string()).unwrap();
                let tag = &entry["tag"];
                assert!(matches!(run(&folder.0), Outcome::Fail(_)), "{name}: {what} of {tag}");
            }
        }
    }
}

/// A folder that may be changed.
fn copy_of(name: &str) -> Folder {
    let copy = Folder::new(&format!("changed-{name}-{:?}", std::thread::current().id()));
    for entry in std::fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.0.join(path.file_name().unwrap())).unwrap();
    }
    copy
}
