//! The command `headrow`: sentence vectors and rankings from text, and what a model folder holds.
//!
//! Results go to standard output, one record per line. Whatever is wrong with a file, a model or the input
//! becomes one line on standard error and exit status 2. A reader that goes away ends the command quietly.
#![forbid(unsafe_code)]

mod embed;
mod embedder;
mod failure;
mod info;
mod options;
mod progress;
mod similarity;
mod source;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::process::ExitCode;
use std::sync::Mutex;

/// Sentence vectors from Transformer encoders, on the CPU.
///
/// Models are folders in Hugging Face layout (config.json, model.safetensors, tokenizer.json), read with
/// --model DIR. Without it a small model inside the program is used, to try things out: its weights are
/// seeded and untrained, so that its vectors mean little.
#[derive(Parser)]
#[command(name = "headrow", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write a vector for every text.
    ///
    /// One record for each text, in order. Texts are the arguments, or the lines of standard input when
    /// there are none; an empty line is the empty text. A record is written as soon as its line has arrived.
    Embed(embed::Args),
    /// Rank texts by their cosine with a query.
    ///
    /// The likest comes first; of equals, the one that came first. Candidates are the further arguments, the
    /// lines of a file, or those of standard input.
    Similarity(similarity::Args),
    /// Show what a model consists of, and what this machine computes it with.
    ///
    /// The architecture, the parameters of each part and in total, the type of the numbers, the memory, the
    /// instruction set and the threads. In JSON all sizes are bytes.
    Info(info::Args),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let done = in_one_line(|| match command {
        Command::Embed(args) => embed::run(args),
        Command::Similarity(args) => similarity::run(args),
        Command::Info(args) => info::run(&args),
    });
    match done {
        Ok(()) | Err(Failure::ReaderGone) => ExitCode::SUCCESS,
        Err(Failure::Message(message)) => {
            // Standard error may be closed; there is nobody to tell then.
            let _ = writeln!(std::io::stderr(), "headrow: {}", failure::one_line(&message));
            ExitCode::from(2)
        }
    }
}

/// Runs a command, and turns a panic into a message.
///
/// Damaged tokenizer files can make their reader panic. The library catches that and returns an error, but
/// the runtime would have printed its own lines by then. So it prints nothing here, and a panic that nobody
/// catches, which is a bug, is told in one line like everything else.
fn in_one_line(command: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    static LAST: Mutex<String> = Mutex::new(String::new());
    set_hook(Box::new(|panic| {
        if let Ok(mut last) = LAST.lock() {
            *last = panic.to_string();
        }
    }));
    catch_unwind(AssertUnwindSafe(command)).unwrap_or_else(|_| {
        let last = LAST.lock().map(|last| last.replace('\n', " ")).unwrap_or_default();
        Err(Failure::Message(format!("internal error, please report it: {last}")))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        use clap::CommandFactory;
        super::Cli::command().debug_assert();
    }
}
