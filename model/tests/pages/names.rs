//! Files and functions that the pages name, which must exist.

use crate::{pages, reader, top};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// All files below a folder but what is built.
fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with("target") => {}
            true => files(&path, into),
            false => into.push(path),
        }
    }
}

fn project() -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for part in ["kernels", "model", "benches", "fuzz", "docs"] {
        files(&top().join(part), &mut paths);
    }
    paths
}

/// Whether `text` is a name with so many parts that nothing but a function, a field or a constant is called so.
fn is_long_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.chars().all(plain) && text.matches('_').count() >= 3
}

fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

#[test]
fn every_link_leads_to_a_file() {
    // The packaged crate has neither pages nor what they show.
    if !top().join("docs").is_dir() {
        return;
    }
    for page in pages() {
        for link in reader::links(&page.text) {
            let target = page.path.parent().unwrap().join(link);
            assert!(target.exists(), "{}: {link}", page.path.display());
        }
    }
}

#[test]
fn files_and_functions_that_are_named_exist() {
    let files = project();
    let sources = files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let sources: Vec<String> = sources.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let known: HashSet<&str> = sources.iter().flat_map(|source| identifiers(source)).collect();
    for page in pages().iter().filter(|_| !files.is_empty()) {
        for span in reader::prose(&page.text).flat_map(reader::code_spans) {
            let exists = match span {
                file if file.ends_with(".rs") && !file.contains(['{', '*', ' ', '<']) => {
                    files.iter().any(|path| path.ends_with(file))
                }
                path if path.contains("::") && !path.contains(['<', '(', ' ', '{', '!']) => {
                    identifiers(path)
                        .filter(|name| !name.is_empty())
                        .all(|name| known.contains(name))
                }
                name if is_long_name(name) => known.contains(name),
                _ => true,
            };
            assert!(exists, "{}: {span}", page.path.display());
        }
    }
}
