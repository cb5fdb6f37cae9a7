//! Every operation has an example in its documentation, which runs as a test of its own.

use std::fs;
use std::path::{Path, PathBuf};

/// Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the sources lie beside the tests") {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// The names of the public functions that stand by themselves, each with its documentation.
fn documented(source: &str) -> Vec<(String, String)> {
    let (mut all, mut documentation) = (Vec::new(), String::new());
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("///") {
            documentation.push_str(text);
            documentation.push('\n');
        } else if let Some(function) = line.strip_prefix("pub fn ") {
            let name = function.split(['(', '<']).next().unwrap_or_default();
            all.push((name.to_owned(), std::mem::take(&mut documentation)));
        } else if !line.starts_with("#[") {
            documentation.clear();
        }
    }
    all
}

#[test]
fn every_operation_has_an_example_and_its_scratch_is_in_one() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    // Definitions are read, not called.
    files.retain(|file| !file.components().any(|part| part.as_os_str() == "reference"));
    let sources: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let functions: Vec<_> = sources.iter().flat_map(|source| documented(source)).collect();
    assert!(functions.len() > 40, "{} public functions found", functions.len());
    let shown = |name: &str| {
        let call = format!("{name}(");
        let mut lines = sources.iter().flat_map(|source| source.lines());
        lines.any(|line| line.starts_with("/// ") && line.contains(&call))
    };
    let has_example = |name: &str, documentation: &str| {
        documentation.contains("```") || name.ends_with("_scratch") && shown(name)
    };
    let missing: Vec<_> =
        functions.iter().filter(|(name, text)| !has_example(name, text)).map(|f| &f.0).collect();
    assert!(missing.is_empty(), "without an example: {missing:?}");
}
