//! Runs the command `headrow` as its users do.
#![allow(dead_code, reason = "each test target uses a part")]

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) fn headrow(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headrow"));
    command.args(args);
    command
}

/// Begins a run whose input and output are pipes.
pub(crate) fn spawn(args: &[&str]) -> Child {
    let mut command = headrow(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Runs to the end with `input` on standard input.
pub(crate) fn run(args: &[&str], input: &[u8]) -> Output {
    let mut child = spawn(args);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // A command that ends early does not read all of it.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// Standard output of a run that must succeed and say nothing else.
pub(crate) fn stdout(args: &[&str], input: &[u8]) -> Vec<u8> {
    let output = run(args, input);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*stderr), (Some(0), ""), "{args:?}");
    output.stdout
}

pub(crate) fn text(args: &[&str], input: &[u8]) -> String {
    String::from_utf8(stdout(args, input)).unwrap()
}

/// The one line of a run that must fail as a damaged file makes it fail.
pub(crate) fn refusal(args: &[&str], input: &[u8]) -> String {
    let started = Instant::now();
    let output = run(args, input);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    assert!(started.elapsed() < Duration::from_secs(20), "{args:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.matches('\n').count(), 1, "{stderr}");
    let line = stderr.strip_suffix('\n').unwrap();
    line.strip_prefix("headrow: ").unwrap_or_else(|| panic!("{line}")).to_owned()
}
