//! The table of options in `docs/COMMANDS.md` beside what the commands' help says.

use crate::command::headrow;
use crate::{reader, top};
use std::collections::{BTreeMap, BTreeSet};

type Options = BTreeMap<String, BTreeSet<String>>;

fn help(args: &[&str]) -> String {
    String::from_utf8(headrow(args).output().unwrap().stdout).unwrap()
}

/// Options of every command that its help lists.
fn from_help() -> Options {
    let all = help(&["--help"]);
    let commands = all.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.map_while(|line| line.split_whitespace().next());
    let options = |command: &str| {
        let help = help(&[command, "--help"]);
        let words = help.lines().filter_map(|line| line.split_whitespace().next());
        let options = words.filter(|word| word.starts_with("--") && word.len() > 2);
        options.map(str::to_owned).collect()
    };
    commands.map(|command| (command.to_owned(), options(command))).collect()
}

/// Options of every command that the table lists, where `all but …` is said in names of commands.
fn from_table(commands: &[&str]) -> Options {
    let page = std::fs::read_to_string(top().join("docs/COMMANDS.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `--"));
    let mut options: Options =
        commands.iter().map(|&name| (name.to_owned(), BTreeSet::new())).collect();
    for row in rows {
        // A bar within code is written behind a backslash.
        let row = row.replace("\\|", "/");
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let named = |text: &str| -> Vec<String> { text.split(", ").map(str::to_owned).collect() };
        let of = match cells[2].strip_prefix("all") {
            None => named(cells[2]),
            Some(rest) => {
                let but = rest.strip_prefix(" but ").map_or(Vec::new(), named);
                let others = commands.iter().filter(|name| but.iter().all(|not| not != *name));
                others.map(|&name| name.to_owned()).collect()
            }
        };
        let words = reader::code_spans(&row).into_iter().flat_map(str::split_whitespace);
        let first_cell = words.take_while(|word| cells[1].contains(word));
        for option in first_cell.filter(|word| word.starts_with("--")) {
            for command in &of {
                let options = options.get_mut(command);
                options
                    .unwrap_or_else(|| panic!("there is no {command}"))
                    .insert(option.to_owned());
            }
        }
    }
    options
}

#[test]
fn the_table_of_options_is_that_of_the_help() {
    if !top().join("docs").is_dir() {
        return;
    }
    let help = from_help();
    let table = from_table(
        &help.keys().map(String::as_str).filter(|&name| name != "help").collect::<Vec<_>>(),
    );
    for (command, listed) in &table {
        let missing: Vec<_> = help[command].symmetric_difference(listed).collect();
        let missing: Vec<_> = missing.into_iter().filter(|option| *option != "--help").collect();
        assert!(missing.is_empty(), "{command}: {missing:?} are in the help or the table alone");
    }
}
