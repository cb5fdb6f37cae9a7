//! Commands of Cargo in the pages: packages, targets, features and files that they name must exist.

use crate::top;
use std::path::PathBuf;

const PACKAGES: [(&str, &str); 3] =
    [("headrow", "model"), ("headrow-kernels", "kernels"), ("headrow-benches", "benches")];

/// Where targets of a kind lie in a package.
fn targets(option: &str) -> Option<&'static str> {
    match option {
        "--example" => Some("examples"),
        "--bin" => Some("src/bin"),
        "--test" => Some("tests"),
        "--bench" => Some("benches"),
        _ => None,
    }
}

/// Refuses a command that cannot work, or that no rule knows.
pub(crate) fn check(words: &[String]) {
    let mut words = words.iter().map(String::as_str);
    let command = words.next().expect("a command of Cargo");
    // A program of its own, which checks the lock file.
    if command == "audit" && words.len() == 0 {
        return;
    }
    assert!(["run", "test", "bench", "doc", "build"].contains(&command), "no rule for {command}");
    // Without a package: the members that are there by default.
    let mut folders: Vec<PathBuf> = vec![top().join("model"), top().join("kernels")];
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} of what?"));
        match word {
            "--" => return,
            // The words of the program begin.
            _ if command == "run" && !word.starts_with('-') => return,
            "--release"
            | "--workspace"
            | "--no-default-features"
            | "--no-deps"
            | "--no-run"
            | "--open" => {}
            "-p" => {
                let name = value();
                let package = PACKAGES.iter().find(|(package, _)| *package == name);
                let (_, folder) = package.unwrap_or_else(|| panic!("there is no package {name}"));
                folders = vec![top().join(folder)];
            }
            "--features" => {
                let feature = format!("{} = [", value());
                let has = |folder: &PathBuf| {
                    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
                    manifest.lines().any(|line| line.starts_with(&feature))
                };
                assert!(folders.iter().any(has), "there is no feature {feature}");
            }
            "--manifest-path" => {
                let manifest = value();
                assert!(top().join(manifest).exists(), "there is no {manifest}");
            }
            _ => match targets(word) {
                Some(kind) => {
                    let name = value();
                    let has = |folder: &PathBuf| {
                        let target = folder.join(kind).join(name);
                        target.with_extension("rs").exists() || target.join("main.rs").exists()
                    };
                    assert!(folders.iter().any(has), "there is no target {name} in {kind}");
                }
                None => panic!("no rule for {word} of cargo {command}"),
            },
        }
    }
}
