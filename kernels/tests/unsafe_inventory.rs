//! The inventory of `unsafe` in docs/SECURITY.md is that of the code: every file, with as many uses as it has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Rust files below a folder, in any order.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// How often a line of code says `unsafe`, what follows `//` left out.
fn uses_in(line: &str) -> usize {
    let code = line.split("//").next().unwrap_or_default();
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|&word| word == "unsafe").count()
}

/// The files that say `unsafe` in code, by their paths from the root.
fn counted() -> BTreeMap<String, usize> {
    let root = root();
    let mut files = Vec::new();
    for package in ["kernels", "model", "benches", "fuzz"] {
        for part in ["src", "tests", "examples", "benches", "fuzz_targets"] {
            let folder = root.join(package).join(part);
            if folder.is_dir() {
                sources(&folder, &mut files);
            }
        }
    }
    let named = |file: PathBuf| {
        let uses = read(&file).lines().map(uses_in).sum();
        let path = file.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        (path, uses)
    };
    // This file speaks of the word.
    let own = "kernels/tests/unsafe_inventory.rs";
    files.into_iter().map(named).filter(|(path, uses)| *uses > 0 && path != own).collect()
}

/// The rows `| path | uses | … |` of the page.
fn written() -> BTreeMap<String, usize> {
    let page = read(&root().join("docs/SECURITY.md"));
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let path = cells.next()?.trim_end_matches('`').to_owned();
        path.ends_with(".rs").then_some(())?;
        let uses = cells.next()?.parse().unwrap_or_else(|_| panic!("{path}: no number of uses"));
        let why = cells.next()?;
        assert!(why.len() > 20, "{path}: no invariant");
        Some((path, uses))
    };
    page.lines().filter_map(row).collect()
}

#[test]
fn the_page_lists_every_file_with_its_number_of_uses() {
    let (counted, written) = (counted(), written());
    let mut wrong = Vec::new();
    for path in counted.keys().chain(written.keys()).collect::<BTreeSet<_>>() {
        let (code, page) = (counted.get(path), written.get(path));
        if code != page {
            let [code, page] = [code, page].map(|uses| uses.copied().unwrap_or(0));
            wrong.push(format!("{path}: {code} in the code, {page} in docs/SECURITY.md"));
        }
    }
    assert!(wrong.is_empty(), "look at what changed, then mend the page:\n{}", wrong.join("\n"));
}

#[test]
fn code_without_need_of_it_has_none() {
    for path in ["model/src/lib.rs", "model/src/bin/headrow/main.rs"] {
        assert!(read(&root().join(path)).contains("#![forbid(unsafe_code)]"), "{path}");
    }
    let clean =
        |path: &String| !path.starts_with("model/src/") && !path.starts_with("kernels/src/rows");
    let spoiled: Vec<String> = counted().into_keys().filter(|path| !clean(path)).collect();
    assert!(spoiled.is_empty(), "{spoiled:?}");
}

#[test]
fn words_are_counted_in_code_alone() {
    assert_eq!(uses_in("unsafe impl<T> Sync for X<T> {}"), 1);
    assert_eq!(uses_in("    type F = unsafe fn(f: unsafe fn()); // unsafe"), 2);
    assert_eq!(uses_in("#[allow(unused_unsafe)] unsafe_op(); // unsafe { }"), 0);
}
