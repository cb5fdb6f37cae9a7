//! `headrow score`: how likely texts are to a model.

use crate::failure::{Failure, explain};
use crate::options::{LanguageArgs, LengthArgs};
use crate::progress::Progress;
use crate::source::Source;
use clap::ValueEnum;
use headrow::generate::GenerationOptions;
use headrow::{Score, Session, Text, TextModel};
use serde::Serialize;
use serde_json::json;
use std::io::{BufWriter, StdoutLock, Write, stdout};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: LanguageArgs,

    #[command(flatten)]
    length: LengthArgs,

    /// Read one text from this file, whole.
    #[arg(long, value_name = "FILE", conflicts_with = "texts")]
    file: Option<PathBuf>,

    /// One record for all texts together.
    #[arg(long)]
    total: bool,

    /// What a record looks like.
    #[arg(long, value_enum, default_value_t = Format::Plain)]
    format: Format,

    /// Texts; without any, the lines of standard input. For encoder–decoders each is a source, a tab and a target.
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A line of the log-probability, how many tokens count, the perplexity and the text, with tabs between.
    Plain,
    /// A line {"text":…,"log_probability":…,"counted":…,"perplexity":…,"tokens":…}.
    Json,
}

#[derive(Serialize)]
struct Record<'a> {
    text: &'a str,
    log_probability: f64,
    counted: usize,
    perplexity: f64,
    tokens: Vec<Token<'a>>,
}

#[derive(Serialize)]
struct Token<'a> {
    id: u32,
    token: &'a str,
    start: usize,
    end: usize,
    log_probability: Option<f32>,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let mut source = match &args.file {
        Some(path) => Source::whole_file(path)?,
        None => Source::arguments_or_stdin(args.texts),
    };
    let model = args.model.load()?;
    let options = args.length.over(GenerationOptions::default());
    let mut session = args.length.session(&args.model.compute, &model, &options)?;
    source.announce("texts");
    let mut writer = Writer { format: args.format, out: BufWriter::new(stdout().lock()) };
    let (mut progress, mut texts, mut index) = (Progress::start(), Vec::new(), 0);
    let mut total = Total::default();
    loop {
        source.next(&mut texts)?;
        if texts.is_empty() {
            break;
        }
        for text in &texts {
            let score = score(&model, &mut session, &source.name(index), text)?;
            index += 1;
            match args.total {
                true => total.add(&score),
                false => writer.write(text, &score).map_err(Failure::output)?,
            }
            progress.show(source.position());
        }
        writer.out.flush().map_err(Failure::output)?;
    }
    match args.total {
        true => writer.total(&total).map_err(Failure::output),
        false => Ok(()),
    }
}

fn score(
    model: &TextModel,
    session: &mut Session,
    name: &str,
    text: &str,
) -> Result<Score, Failure> {
    let text = match model.model().config().encoder {
        None => Text::Single(text),
        Some(_) => {
            text.split_once('\t').map(|(source, target)| Text::Pair(source, target)).ok_or_else(
                || Failure::Message(format!("{name}: no tab between a source and a target")),
            )?
        }
    };
    model.score(session, text).map_err(|error| Failure::Message(explain(name, error)))
}

/// Sums over texts.
#[derive(Default)]
struct Total {
    texts: u64,
    log_probability: f64,
    counted: usize,
}

impl Total {
    fn add(&mut self, score: &Score) {
        self.texts += 1;
        self.log_probability += score.log_probability;
        self.counted += score.counted;
    }

    fn perplexity(&self) -> f64 {
        Score::perplexity_of(self.log_probability, self.counted)
    }
}

struct Writer {
    format: Format,
    out: BufWriter<StdoutLock<'static>>,
}

impl Writer {
    fn write(&mut self, text: &str, score: &Score) -> std::io::Result<()> {
        let (log_probability, counted) = (score.log_probability, score.counted);
        let perplexity = score.perplexity();
        match self.format {
            Format::Plain => {
                writeln!(self.out, "{log_probability:.6}\t{counted}\t{perplexity:.6}\t{text}")
            }
            Format::Json => {
                let tokens = score.tokens.iter().map(|token| Token {
                    id: token.id,
                    token: &token.token,
                    start: token.range.start,
                    end: token.range.end,
                    log_probability: token.log_probability,
                });
                let tokens = tokens.collect();
                let record = Record { text, log_probability, counted, perplexity, tokens };
                serde_json::to_writer(&mut self.out, &record)?;
                writeln!(self.out)
            }
        }
    }

    fn total(&mut self, total: &Total) -> std::io::Result<()> {
        let &Total { texts, log_probability, counted } = total;
        let perplexity = total.perplexity();
        match self.format {
            Format::Plain => {
                writeln!(self.out, "{log_probability:.6}\t{counted}\t{perplexity:.6}")?
            }
            Format::Json => {
                let record = json!({
                    "texts": texts, "log_probability": log_probability, "counted": counted,
                    "perplexity": perplexity,
                });
                writeln!(self.out, "{record}")?;
            }
        }
        self.out.flush()
    }
}
