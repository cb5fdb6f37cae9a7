//! Runs the commands of each page one after another in a folder of its own, as somebody who reads it would.
//!
//! What a reader downloads or has lying about is replaced by something small; numbers of steps are made small too.

use crate::command::headrow;
use crate::{Page, cargo, options, pages, python, reader};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Models that are downloaded, and what stands in for them.
const MODELS: [(&str, StandIn); 3] = [
    ("sentence-transformers/all-MiniLM-L6-v2", StandIn::Asset("seeded-bert")),
    ("HuggingFaceTB/SmolLM2-135M", StandIn::Trained),
    ("google-t5/t5-small", StandIn::Asset("g2p")),
];

enum StandIn {
    /// A folder of the crate.
    Asset(&'static str),
    /// A decoder that learns for a moment.
    Trained,
}

/// Words of commands that are replaced by others: trainings of so many steps, long measurements.
const REPLACED: [(&str, &str); 5] = [
    ("--measure", "--measure --longest 64"),
    ("20000", "4 --save-every 2"),
    ("40000", "6"),
    ("9000", "2"),
    ("run/checkpoints/step-12000", "run/checkpoints/step-2"),
];

/// A folder that goes when its page is done.
struct Desk(PathBuf);

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Desk {
    fn new(name: &str) -> Desk {
        let path = std::env::temp_dir().join(format!("headrow-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        // Pictures of the pages lie there.
        std::fs::create_dir_all(path.join("docs/figures")).unwrap();
        std::fs::write(path.join("texts.txt"), "a man\nonce upon a time\n").unwrap();
        Desk(path)
    }

    /// `headrow` with these arguments and redirections. Must succeed.
    fn run(&self, words: &[String]) {
        let mut words: Vec<&str> = words.iter().flat_map(|word| replaced(word)).collect();
        let (input, output) = (redirection(&mut words, "<"), redirection(&mut words, ">"));
        assert!(!is_long(&words), "{words:?} takes long: its number of steps is to be replaced");
        self.prepare(&words);
        let open = |file: Option<&str>| file.map(|file| File::open(self.0.join(file)).unwrap());
        let mut command = headrow(&words);
        let input = open(input).map_or(Stdio::null(), Stdio::from);
        let result = command.current_dir(&self.0).stdin(input).output().unwrap();
        let stderr = String::from_utf8_lossy(&result.stderr);
        assert!(result.status.success(), "{words:?}: {stderr}");
        match output {
            Some(file) => std::fs::write(self.0.join(file), result.stdout).unwrap(),
            None => {
                let silent = ["--output", "--out", "--resume"];
                let silent = words.iter().any(|word| silent.contains(word));
                assert!(silent || !result.stdout.is_empty(), "{words:?} says nothing");
            }
        }
    }

    /// Data where a command reads some, and no folder where a training begins.
    fn prepare(&self, words: &[&str]) {
        for word in words.iter().filter(|word| word.ends_with(".tsv")) {
            let lines =
                (0..20).map(|i| format!("{} b\tB {}\n", ["a", "c"][i % 2], ["A", "C"][i % 2]));
            std::fs::write(self.0.join(word), lines.collect::<String>()).unwrap();
        }
        if words[0] == "train"
            && let Some(at) = words.iter().position(|&word| word == "--out")
        {
            let _ = std::fs::remove_dir_all(self.0.join(words[at + 1]));
        }
    }

    /// What a download would have made: `hf download MODEL --local-dir FOLDER`, perhaps with a choice of files.
    fn download(&self, words: &[String]) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ["download", model, "--local-dir", folder, ref rest @ ..] = words[..] else {
            panic!("no rule for hf {words:?}");
        };
        assert!(matches!(rest, [] | ["--include", ..]), "no rule for {rest:?}");
        let known = MODELS.iter().find(|(name, _)| *name == model);
        match &known.unwrap_or_else(|| panic!("nothing stands in for {model}")).1 {
            StandIn::Asset(name) => {
                let asset = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets").join(name);
                copy(&asset, &self.0.join(folder));
            }
            StandIn::Trained => {
                let shape = "--tokenizer bpe:300 --layers 1 --d-model 8 --heads 2 --d-ff 16";
                let course = "--objective causal --layout lines --steps 1 --threads 1";
                let line = format!("train --data texts.txt --out {folder} {shape} {course}");
                self.run(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
            }
        }
    }
}

fn replaced(word: &str) -> Vec<&str> {
    let known = REPLACED.iter().find(|(from, _)| *from == word);
    known.map_or(vec![word], |(_, to)| to.split(' ').collect())
}

/// Whether a training of more than a few steps is among the words.
fn is_long(words: &[&str]) -> bool {
    let steps = words.windows(2).filter(|pair| pair[0] == "--steps");
    steps.map(|pair| pair[1].parse::<u64>()).any(|steps| steps.is_ok_and(|steps| steps > 10))
}

/// Takes `sign FILE` out of the words.
fn redirection<'a>(words: &mut Vec<&'a str>, sign: &str) -> Option<&'a str> {
    let at = words.iter().position(|&word| word == sign)?;
    words.drain(at..at + 2).nth(1)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        match from.is_dir() {
            true => copy(&from, &to),
            false => drop(std::fs::copy(from, to).unwrap()),
        }
    }
}

/// Whether a command is the form of one: with options left out, or names instead of files.
fn is_form(words: &[String]) -> bool {
    let is_blank = |word: &str| ["DIR", "FILE"].contains(&word) || word.ends_with("...");
    words.iter().any(|word| word.starts_with('[') || word.contains('|') || is_blank(word))
}

fn run_page(page: &Page) -> usize {
    let name = page.path.file_stem().unwrap().to_str().unwrap();
    let desk = Desk::new(name);
    let commands = reader::commands(&page.text);
    for command in &commands {
        println!("{name}: {}", command.words.join(" "));
        let (program, rest) = command.words.split_first().unwrap();
        let ours = match program.as_str() {
            "headrow" => rest,
            "cargo" => match rest.split(|word| word == "--").collect::<Vec<_>>()[..] {
                [[run, release], ours] if run == "run" && release == "--release" => ours,
                _ => {
                    cargo::check(rest);
                    continue;
                }
            },
            "hf" => {
                desk.download(rest);
                continue;
            }
            "python3" => {
                python::check(rest);
                continue;
            }
            _ => panic!("no rule for {command:?}"),
        };
        match command.whole && !is_form(ours) {
            true => desk.run(ours),
            false => options::check(ours),
        }
    }
    commands.len()
}

#[test]
fn every_command_of_the_pages_runs() {
    let counts: Vec<usize> = pages().iter().map(run_page).collect();
    // A reader that finds nothing would let everything pass.
    assert!(counts[0] >= 12, "{counts:?}");
}
