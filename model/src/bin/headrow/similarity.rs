//! `headrow similarity`: texts by their cosine with a query.

use crate::embedder::{Embedder, Sink};
use crate::failure::Failure;
use crate::options::{ModelArgs, TextArgs};
use crate::source::Source;
use clap::ValueEnum;
use serde::Serialize;
use std::io::{BufWriter, Write, stdout};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    text: TextArgs,

    /// Read the candidates from this file, one per line.
    #[arg(long, value_name = "FILE", conflicts_with = "texts")]
    candidates: Option<PathBuf>,

    /// Show only the likest N.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top: Option<u32>,

    /// What a record looks like.
    #[arg(long, value_enum, default_value_t = Format::Plain)]
    format: Format,

    /// What the candidates are compared with.
    query: String,

    /// Candidates; without any, and without --candidates, the lines of standard input.
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A line of the cosine, a tab and the text.
    Plain,
    /// A line {"score":…,"line":…,"text":…}, where the line counts candidates from 1.
    Json,
}

/// A candidate and its cosine.
#[derive(Serialize)]
struct Ranked {
    score: f64,
    line: u64,
    text: String,
}

/// The best candidates so far, at most `top` after every tidying.
struct Ranking {
    query: Vec<f32>,
    top: usize,
    ranked: Vec<Ranked>,
}

impl Ranking {
    /// The likest first, of equals the first, and no more than wanted.
    fn tidy(&mut self) {
        self.ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.line.cmp(&b.line)));
        self.ranked.truncate(self.top);
    }
}

impl Sink for Ranking {
    fn take(&mut self, index: u64, text: &str, vector: &[f32]) -> Result<(), Failure> {
        let score = cosine(&self.query, vector);
        self.ranked.push(Ranked { score, line: index + 1, text: text.to_owned() });
        // Seldom enough to cost little, often enough that memory follows `top`, not the input.
        if self.ranked.len() >= self.top.saturating_mul(2).max(1024) {
            self.tidy();
        }
        Ok(())
    }
}

/// a·b/(‖a‖·‖b‖) in f64; 0 when either vector is 0.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    // Adding 0 turns −0 into 0.
    if norms > 0.0 { dot(a, b) / norms + 0.0 } else { 0.0 }
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let mut source = match &args.candidates {
        Some(path) => Source::file(path)?,
        None => Source::arguments_or_stdin(args.texts),
    };
    let mut embedder = Embedder::new(&args.model, &args.text)?;
    let query = embedder.one("the query", &args.query)?;
    let top = args.top.map_or(usize::MAX, |top| top as usize);
    let mut ranking = Ranking { query, top, ranked: Vec::new() };
    embedder.run(&mut source, &mut ranking)?;
    ranking.tidy();

    let mut out = BufWriter::new(stdout().lock());
    for ranked in &ranking.ranked {
        write(&mut out, args.format, ranked).map_err(Failure::output)?;
    }
    out.flush().map_err(Failure::output)
}

fn write(out: &mut impl Write, format: Format, ranked: &Ranked) -> Result<(), std::io::Error> {
    match format {
        Format::Plain => writeln!(out, "{:.6}\t{}", ranked.score, ranked.text),
        Format::Json => {
            serde_json::to_writer(&mut *out, ranked)?;
            writeln!(out)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_of_known_vectors() {
        assert_eq!(cosine(&[3.0, 0.0], &[0.0, 2.0]), 0.0);
        assert_eq!(cosine(&[3.0, 4.0], &[6.0, 8.0]), 1.0);
        assert_eq!(cosine(&[1.0, 1.0], &[-2.0, -2.0]), -1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 0.0]), 0.0);
        assert!((cosine(&[1.0, 0.0], &[1.0, 1.0]) - 0.5f64.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn the_top_is_the_same_as_the_head_of_the_whole_ranking() {
        let vector = |i: u64| [1.0, (i * 7919 % 997 / 3) as f32];
        let ranked = |top| {
            let mut ranking = Ranking { query: vec![0.3, 1.0], top, ranked: Vec::new() };
            (0..5000).for_each(|i| ranking.take(i, "", &vector(i)).unwrap());
            ranking.tidy();
            ranking.ranked.iter().map(|ranked| ranked.line).collect::<Vec<u64>>()
        };
        let whole = ranked(usize::MAX);
        assert_eq!(whole.len(), 5000);
        for top in [1, 2, 700] {
            assert_eq!(ranked(top), whole[..top]);
        }
    }
}
