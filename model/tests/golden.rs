//! Recorded outputs of reference implementations, folder by folder.
//!
//! `HEADROW_GOLDEN=DIR cargo test --release -p headrow --test golden -- --nocapture` goes through every
//! folder in DIR that has a `golden.json`: a Hugging Face folder beside whose config and weights lie the
//! inputs and outputs of one run (`golden.safetensors`). It prints a line per folder and ends with
//! `N passed, N failed, N skipped`. `fixtures.rs` does the same to the small folders kept with the tests.

#[path = "support/golden.rs"]
mod support;

use std::path::Path;

#[test]
fn golden() {
    let Some(dir) = std::env::var_os("HEADROW_GOLDEN") else {
        println!("\nHEADROW_GOLDEN is not set: no recorded folders to compare with");
        return;
    };
    assert_eq!(support::run_all(Path::new(&dir)), 0, "folders that failed");
}
