//! Commands of Python in the pages: scripts, their options and modules must exist.

use crate::top;

/// Refuses a command that cannot work, or that no rule knows.
pub(crate) fn check(words: &[String]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        // The page says in which folder: that of the benchmarks.
        ["-m", "unittest", module] => {
            let file = top().join("benches").join(module.replace('.', "/")).with_extension("py");
            assert!(file.exists(), "there is no {file:?}");
        }
        [script, ref rest @ ..] if script.ends_with(".py") => {
            let text = std::fs::read_to_string(top().join(script));
            let text = text.unwrap_or_else(|error| panic!("{script}: {error}"));
            for option in rest.iter().filter(|word| word.starts_with("--")) {
                assert!(text.contains(&format!("\"{option}\"")), "{script} takes no {option}");
            }
        }
        _ => panic!("no rule for python3 {words:?}"),
    }
}
