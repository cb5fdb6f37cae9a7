//! Milliseconds in which the model inside the library pronounces words.
//!
//!     pronounce-ms [--words FILE] [--threads 1] [--rounds 3] [--batch 16]
//!
//! The file has a word a line; of a line with tabs the first field counts, without its spaces. First the time to
//! load the model; then that of single words, from the letters to the phonemes as text, at the median and at the 99th
//! percentile; then that of a word in batches. Beam search as the model's options have it; of all rounds, each word's
//! and the batches' best.

use clap::Parser;
use headrow::{Result, Session, TextModel};
use std::path::PathBuf;
use std::time::Instant;

/// What is pronounced without a file.
const WORDS: &str = "transformer attention encoder decoder phoneme letter dictionary pronounce cat it's \
    Mississippi knowledge through thorough architecture seventeen";

#[derive(clap::Parser)]
struct Options {
    /// Words, one a line.
    #[arg(long)]
    words: Option<PathBuf>,
    /// Threads to compute with.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Times that each word is pronounced.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Words of a batch.
    #[arg(long, default_value_t = 16)]
    batch: usize,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let words = words(&options);
    let start = Instant::now();
    let model = TextModel::pronouncer()?;
    let loaded = start.elapsed().as_secs_f64();
    println!("{}, {} thread(s)", model.model().cpu(), options.threads);
    println!("load {:.2} ms", 1e3 * loaded);

    let mut session = session(&model, 1, options.threads)?;
    let mut single = vec![f64::INFINITY; words.len()];
    for _ in 0..options.rounds {
        for (word, best) in words.iter().zip(&mut single) {
            *best = best.min(seconds(&model, &mut session, std::slice::from_ref(word))?);
        }
    }
    drop(session);
    let mut batched = f64::INFINITY;
    let mut session = self::session(&model, options.batch, options.threads)?;
    for _ in 0..options.rounds {
        batched = batched.min(seconds(&model, &mut session, &words)?);
    }
    single.sort_by(f64::total_cmp);
    let at = |part: f64| 1e3 * single[((single.len() - 1) as f64 * part) as usize];
    println!("{} words alone: p50 {:.3} ms, p99 {:.3} ms", words.len(), at(0.5), at(0.99));
    println!(
        "in batches of {}: {:.3} ms a word",
        options.batch,
        1e3 * batched / words.len() as f64
    );
    Ok(())
}

/// A session for so many words at a time.
fn session(model: &TextModel, words: usize, threads: usize) -> Result<Session> {
    model.session(&model.session_options(words, model.options()).with_threads(threads))
}

/// The time to pronounce words.
fn seconds(model: &TextModel, session: &mut Session, words: &[String]) -> Result<f64> {
    let start = Instant::now();
    let spelt = words.iter().map(|word| model.spell(word)).collect::<Result<Vec<_>>>()?;
    let answers = model.translate(session, &spelt, model.options())?;
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(answers.len(), words.len());
    Ok(seconds)
}

/// The words of the file, or those of this one.
fn words(options: &Options) -> Vec<String> {
    let Some(path) = &options.words else {
        return WORDS.split_whitespace().map(str::to_owned).collect();
    };
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let word = |line: &str| line.split('\t').next().unwrap_or_default().replace(' ', "");
    let words: Vec<String> = text.lines().map(word).filter(|word| !word.is_empty()).collect();
    assert!(!words.is_empty(), "{}: no words", path.display());
    words
}
