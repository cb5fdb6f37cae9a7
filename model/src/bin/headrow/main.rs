//! The command `headrow`: texts continued, translated and scored, models trained, sentence vectors and rankings, pictures of attention, and
//! what a model folder holds.
//!
//! Results go to standard output, one record per line. Whatever is wrong with a file, a model or the input
//! becomes one line on standard error and exit status 2. A reader that goes away ends the command quietly.
#![forbid(unsafe_code)]

mod attention;
mod average;
mod decoding;
mod embed;
mod embedder;
mod evaluate;
mod failure;
mod generate;
mod info;
mod options;
mod plot;
mod progress;
mod pronounce;
mod score;
mod similarity;
mod sizes;
mod source;
mod table;
mod train;
mod translate;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::process::ExitCode;
use std::sync::Mutex;

/// Transformers on the CPU: text, translations, scores and sentence vectors.
///
/// Models are folders in Hugging Face layout (config.json, model.safetensors, tokenizer.json), read with
/// --model DIR. Without it pronounce and attention use a model of English letters and phonemes that lies inside the
/// program; embed, similarity and info a small one to try things out: its weights are seeded and untrained, so that its
/// vectors mean little.
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
    /// Continue texts with a decoder.
    ///
    /// Prompts are the arguments, the lines of standard input, or a file. The text is written as it comes. What
    /// no option says is as the folder's generation_config.json has it; without that, greedy search for at most
    /// 128 tokens.
    Generate(generate::Args),
    /// Translate texts with an encoder–decoder.
    ///
    /// A line for each text, in order. What no option says is as the folder's generation_config.json or config.json
    /// has it; without that, greedy search for at most 256 tokens.
    Translate(translate::Args),
    /// Tell how likely texts are to a decoder, or targets to an encoder–decoder.
    ///
    /// The log-probability is the sum of ln p over the tokens that count, the perplexity exp of minus their mean. A
    /// decoder's first token does not count, for nothing predicts it, and no end is added; beside an encoder all
    /// tokens of the target count, and its end is one of them.
    Score(score::Args),
    /// Measure an encoder–decoder on pairs of texts, or a decoder on texts.
    ///
    /// Sources are translated and compared with the targets: BLEU as sacreBLEU counts it, error rates over what stands
    /// between spaces. Perplexity and accuracy are those of the targets' tokens, the end of each included.
    Evaluate(evaluate::Args),
    /// Say how words are pronounced.
    ///
    /// A line of phonemes for each word, in order. The model is an encoder–decoder whose tokens stand between spaces:
    /// letters in, phonemes out. Without --model it is that of English words inside the program.
    Pronounce(pronounce::Args),
    /// Draw attention maps as SVG, with the tokens on both axes.
    ///
    /// Rows are the tokens that attend, columns those they attend to; the darker the heavier. A grid shows layers and
    /// heads. Without --model: how the letters of a word and its phonemes belong together.
    Attention(attention::Args),
    /// Train a model on texts.
    ///
    /// The folder holds the training (run.json, metrics.jsonl, checkpoints/) and, once it has ended, the model in Hugging
    /// Face layout. The same options and data give the same weights at any number of threads, also when the training was
    /// interrupted: an interrupt ends it after the current step with a checkpoint, and --resume goes on.
    Train(train::Args),
    /// Average models or checkpoints of a training.
    ///
    /// Each number is the mean in double precision, rounded once. Config and tokenizer are those of the last model.
    Average(average::Args),
    /// Show what a model consists of, and what this machine computes it with.
    ///
    /// The architecture, the parameters of each part and in total, the type of the numbers, the memory, the
    /// instruction set and the threads; operations and memory for n tokens beside the closed forms. With --config no
    /// weights are needed. In JSON all sizes are bytes.
    Info(info::Args),
    /// Draw what attention costs, what bounds a layer, or the sinusoids, as SVG.
    Plot(plot::Args),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let done = in_one_line(|| match command {
        Command::Embed(args) => embed::run(args),
        Command::Similarity(args) => similarity::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Translate(args) => translate::run(args),
        Command::Score(args) => score::run(args),
        Command::Evaluate(args) => evaluate::run(&args),
        Command::Pronounce(args) => pronounce::run(args),
        Command::Attention(args) => attention::run(&args),
        Command::Train(args) => train::run(args),
        Command::Average(args) => average::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Plot(args) => plot::run(&args),
    });
    match done {
        Ok(()) | Err(Failure::ReaderGone) => ExitCode::SUCCESS,
        Err(Failure::Told) => ExitCode::from(2),
        Err(Failure::Message(message)) => {
            failure::tell(&message);
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
