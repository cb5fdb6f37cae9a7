//! How many threads there are by default, on this very machine.
#![cfg(target_os = "linux")]

mod support;

use headrow_kernels::par::default_threads;
use std::process::Command;
use support::emulated;

const CHILD: &str = "HEADROW_PRINT_THREADS";

/// Prints what the process that the other test starts is to tell.
#[test]
fn a_child_prints_its_threads() {
    if std::env::var_os(CHILD).is_some() {
        println!("threads: {}", default_threads());
    }
}

#[test]
fn the_affinity_mask_is_kept_to() {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let first = allowed.trim().split([',', '-']).next().unwrap();
    let threads = |launcher: &[&str]| {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(launcher[0]);
        command.args(&launcher[1..]).arg(program);
        command.args(["--exact", "a_child_prints_its_threads", "--nocapture"]);
        let output = command.env(CHILD, "1").output().ok()?;
        let text = String::from_utf8(output.stdout).unwrap();
        let told = text.lines().find_map(|line| line.split_once("threads: "));
        Some(told.unwrap_or_else(|| panic!("{text}")).1.trim().parse::<usize>().unwrap())
    };
    if emulated() {
        return;
    }
    assert_eq!(threads(&["env"]), Some(default_threads()));
    match threads(&["taskset", "-c", first]) {
        Some(threads) => assert_eq!(threads, 1),
        None => eprintln!("no taskset here: skipped"),
    }
}
