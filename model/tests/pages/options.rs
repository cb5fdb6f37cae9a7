//! The options in the table of `docs/COMMANDS.md` and in forms of commands, beside what the help says.

use crate::command::headrow;
use crate::{reader, top};
use std::collections::{BTreeMap, BTreeSet};

/// Options by commands, those within another with its name before theirs: `plot cost`.
type Options = BTreeMap<String, BTreeSet<String>>;

fn help(command: &[&str]) -> String {
    let output = headrow(&[command, &["--help"]].concat()).output().unwrap();
    assert!(output.status.success(), "there is no command {command:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Commands that a help lists.
fn commands(help: &str) -> Vec<&str> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    list.map_while(|line| line.split_whitespace().next()).filter(|&name| name != "help").collect()
}

/// Options that a help lists, but for those that every command has.
fn options(help: &str) -> BTreeSet<String> {
    let words = help.lines().filter_map(|line| line.split_whitespace().next());
    let options = words.filter(|word| word.starts_with("--") && word.len() > 2);
    options.filter(|word| !["--help", "--version"].contains(word)).map(str::to_owned).collect()
}

/// Adds the options of a command, or of those within it.
fn add_from_help(command: &[&str], all: &mut Options) {
    let help = help(command);
    let inner = commands(&help);
    if inner.is_empty() {
        all.insert(command.join(" "), options(&help));
    }
    for name in inner {
        add_from_help(&[command, &[name]].concat(), all);
    }
}

/// The table's rows, `| options | commands or "all" or "all but" commands | meaning |`, for these commands.
fn from_table<'c>(all: impl Iterator<Item = &'c String> + Clone) -> Options {
    let page = std::fs::read_to_string(top().join("docs/COMMANDS.md")).unwrap();
    let mut table: Options = all.clone().map(|name| (name.clone(), BTreeSet::new())).collect();
    for row in page.lines().filter(|line| line.starts_with("| `--")) {
        // A bar within code is written behind a backslash.
        let row = row.replace("\\|", "/");
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (but, names) = match cells[2].strip_prefix("all") {
            None => (false, cells[2]),
            Some(rest) => (true, rest.strip_prefix(" but ").unwrap_or_default()),
        };
        let is = |command: &str, name: &str| {
            command.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let named =
            |command: &str| names.split(", ").any(|name| !name.is_empty() && is(command, name));
        let words = reader::code_spans(cells[1]).into_iter().flat_map(str::split_whitespace);
        for option in words.filter(|word| word.starts_with("--")) {
            for (_, options) in table.iter_mut().filter(|(command, _)| named(command) != but) {
                options.insert(option.to_owned());
            }
        }
    }
    table
}

/// Refuses the form of a command, `plot cost|positions --out FILE`, with an option that the help does not know.
pub(crate) fn check(words: &[String]) {
    let command = words[0].as_str();
    let inner = help(&[command]);
    let paths: Vec<Vec<&str>> = match commands(&inner).is_empty() {
        true => vec![vec![command]],
        false => words[1].split('|').map(|name| vec![command, name]).collect(),
    };
    for path in paths {
        let known = options(&help(&path));
        for option in words.iter().filter(|word| word.starts_with("--")) {
            let option = option.trim_end_matches(']');
            assert!(known.contains(option), "{path:?} has no {option}");
        }
    }
}

#[test]
fn the_table_of_options_is_that_of_the_help() {
    if !top().join("docs").is_dir() {
        return;
    }
    let mut all = Options::new();
    add_from_help(&[], &mut all);
    for (command, listed) in from_table(all.keys()) {
        let apart: Vec<_> = all[&command].symmetric_difference(&listed).collect();
        assert!(apart.is_empty(), "{command}: {apart:?} are in the help or the table alone");
    }
}
