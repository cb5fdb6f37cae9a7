//! The small recorded folders kept with the tests: every family against its reference implementation.

#[path = "support/golden.rs"]
mod support;

use headrow::Model;
use std::path::Path;
use std::sync::Arc;
use support::{Comparison, Outcome, compare_model, run, run_all};

#[test]
fn the_folders_kept_with_the_tests_agree_with_their_records() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for name in ["bert", "roberta", "distilbert"] {
        match run(&fixtures.join(name)) {
            Outcome::Ok(_) => {}
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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bert");
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
