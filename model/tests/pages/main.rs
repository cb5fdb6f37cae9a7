//! What the README and the pages of `docs/` say can be done: their commands run, and what they name is there.
//!
//! A command that no rule below knows fails, so that a page which gets a new one is looked at here.

mod cargo;
#[path = "../support/command.rs"]
mod command;
mod names;
mod options;
mod python;
mod reader;
mod run;

use std::path::{Path, PathBuf};

/// A page, and where it lies in the project.
struct Page {
    path: PathBuf,
    text: String,
}

/// The top of the project; in the packaged crate that is the crate.
fn top() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let project = own.join("..");
    if project.join("docs").is_dir() { project } else { own.to_owned() }
}

/// The README, and the pages of `docs/` where there are such.
fn pages() -> Vec<Page> {
    let docs = std::fs::read_dir(top().join("docs")).into_iter().flatten();
    let docs = docs.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|e| e == "md")).collect();
    paths.sort();
    paths.insert(0, top().join("README.md"));
    let page = |path: PathBuf| Page { text: std::fs::read_to_string(&path).unwrap(), path };
    paths.into_iter().map(page).collect()
}
