//! The commands that train and average, as their users run them.

#[path = "support/command.rs"]
mod command;
#[path = "support/tiny.rs"]
mod tiny;

use command::{headrow, refusal, text};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tiny::{Folder, Random};

/// Pairs of letters and the same letters backwards.
fn pairs(folder: &Folder, name: &str, count: usize, seed: u64) -> String {
    let mut random = Random(seed);
    let lines = (0..count).map(|_| {
        let letters: Vec<&str> =
            (0..2 + random.below(3)).map(|_| ["a", "b", "c", "d"][random.below(4)]).collect();
        let back: Vec<&str> = letters.iter().rev().copied().collect();
        format!("{}\t{}\n", letters.join(" "), back.join(" "))
    });
    let path = folder.0.join(name);
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A model that is trained in moments.
const TINY: &str = "--tokenizer words --layers 1 --d-model 8 --heads 2 --d-ff 16 --batch-tokens 60 --schedule constant \
                    --rate 0.01 --warmup 4 --threads 1 --seed 3";

fn args<'a>(parts: &[&'a str]) -> Vec<&'a str> {
    parts.iter().flat_map(|part| part.split(' ')).filter(|part| !part.is_empty()).collect()
}

fn weights(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("model.safetensors")).unwrap()
}

fn path(folder: &Folder, name: &str) -> (PathBuf, String) {
    let path = folder.0.join(name);
    (path.clone(), path.to_str().unwrap().to_owned())
}

#[test]
fn a_training_gives_a_model_that_translates() {
    let folder = Folder::new("cli-train");
    let (data, valid) = (pairs(&folder, "data", 80, 1), pairs(&folder, "valid", 9, 2));
    let (out, name) = path(&folder, "out");
    let data = format!("train --data {data} --valid {valid} --out {name}");
    let course =
        "--steps 12 --log-every 4 --save-every 4 --valid-every 6 --bleu 5 --average 2 --keep 2";
    let lines = text(&args(&[&data, TINY, course]), b"");
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert!(lines[0].starts_with("step 4  epoch "), "{lines:?}");
    assert!(lines[1].starts_with("step 6  validation  loss "), "{lines:?}");
    assert!(lines[4].contains("BLEU"), "{lines:?}");
    for file in ["config.json", "tokenizer.json", "generation_config.json", "run.json", "loss.svg"]
    {
        assert!(out.join(file).exists(), "{file}");
    }
    let log = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 5);
    let answer = text(&["translate", "--model", &name, "a b c"], b"");
    assert_eq!(answer.lines().count(), 1);
    let checkpoint = format!("{name}/checkpoints/step-12");
    text(&["translate", "--model", &checkpoint, "a b c"], b"");

    // The mean that the training made, made again; and of another precision.
    let (mean, mean_name) = path(&folder, "mean");
    text(&["average", "--out", &mean_name, "--run", &name, "--last", "2"], b"");
    assert!(weights(&mean) == weights(&out));
    let first = format!("{name}/checkpoints/step-8");
    text(&["average", "--out", &mean_name, &first, &checkpoint], b"");
    assert!(weights(&mean) == weights(&out));
    text(&["average", "--out", &mean_name, "--dtype", "bf16", &first, &checkpoint], b"");
    let info = text(&["info", "--model", &mean_name], b"");
    assert!(info.contains("BF16"), "{info}");
    let few = refusal(&["average", "--out", &mean_name, "--run", &name, "--last", "9"], b"");
    assert!(few.ends_with("2 checkpoints, not 9"), "{few}");

    // Begun again in the same folder; resumed with other options, and at its end.
    let again = refusal(&args(&[&data, TINY, course]), b"");
    assert!(again.contains("has a training, which --resume goes on with, already"), "{again}");
    let resume = format!("train --resume {name}");
    let other = refusal(&args(&[&resume, "--dropout 0.5"]), b"");
    assert_eq!(other, "--dropout: the training began with 0.1, not 0.5");
    let before = weights(&out);
    text(&args(&[&resume, "--seed 3"]), b"");
    assert!(weights(&out) == before);
    // And longer: as one that was longer from the first.
    text(&args(&[&resume, "--steps 16"]), b"");
    let (long, long_name) = path(&folder, "long");
    let (data, course) = (data.replace(&name, &long_name), course.replace("12", "16"));
    text(&args(&[&data, TINY, &course]), b"");
    assert!(weights(&out) == weights(&long));
}

#[test]
fn a_training_that_is_killed_and_resumed_gives_the_same_weights() {
    let folder = Folder::new("cli-killed");
    let data = pairs(&folder, "data", 300, 1);
    let course = "--steps 400 --log-every 7 --save-every 20 --average 3 --dropout 0.2";
    let begin = |name: &str| format!("train --data {data} --out {name} {TINY} {course}");
    let (whole, name) = path(&folder, "whole");
    let started = Instant::now();
    text(&args(&[&begin(&name)]), b"");
    let length = started.elapsed();

    let (killed, name) = path(&folder, "killed");
    let (begin, resume) = (begin(&name), format!("train --resume {name}"));
    let mut random = Random(12);
    for _ in 0..10 {
        let command = if killed.join("run.json").exists() { &resume } else { &begin };
        let mut child =
            headrow(&args(&[command])).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // About a sixth of a training at a time, so that some of the ten find it ended.
        std::thread::sleep(length.mul_f64(random.below(1000) as f64 / 3000.0));
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    text(&args(&[&resume]), b"");
    assert!(weights(&killed) == weights(&whole));
    let last = |folder: &Path| weights(&folder.join("checkpoints/step-400"));
    assert!(last(&killed) == last(&whole));
    let count = |folder: &Path| {
        std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap().lines().count()
    };
    assert_eq!(count(&killed), count(&whole));
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_training_with_a_checkpoint() {
    let folder = Folder::new("cli-interrupt");
    let data = pairs(&folder, "data", 200, 1);
    let (out, name) = path(&folder, "out");
    let command =
        format!("train --data {data} --out {name} {TINY} --save-every 100000 --steps 100000");
    let child =
        headrow(&args(&[&command])).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !out.join("metrics.jsonl").exists()
        || std::fs::read(out.join("metrics.jsonl")).unwrap().is_empty()
    {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let id = child.id().to_string();
    let killed = std::process::Command::new("kill").args(["-INT", &id]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("headrow: stopped after step "), "{stderr}");
    assert!(
        stderr.trim_end().ends_with(&format!("headrow train --resume {name} goes on")),
        "{stderr}"
    );
    let step = stderr.split(' ').nth(4).unwrap().trim_end_matches(';');
    assert!(
        out.join(format!("checkpoints/step-{step}/optimizer.safetensors")).exists(),
        "{stderr}"
    );
    let next = step.parse::<u64>().unwrap() + 2;
    text(&args(&[&format!("train --resume {name} --steps {next}")]), b"");
    assert!(out.join("model.safetensors").exists());
}
