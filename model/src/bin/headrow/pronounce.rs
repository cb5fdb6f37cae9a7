//! `headrow pronounce`: words into phonemes.

use crate::decoding::{limit_length, search, text};
use crate::failure::{Complaints, Failure, explain};
use crate::options::PronouncerArgs;
use crate::progress::Progress;
use crate::source::Source;
use clap::ValueEnum;
use headrow::generate::{Generated, GenerationOptions, Strategy};
use headrow::{Session, TextModel};
use serde::Serialize;
use std::io::{BufWriter, StdoutLock, Write, stdout};

/// Live hypotheses where no option says how many.
const BEAMS: usize = 4;
/// Words that are read together.
const BATCH: usize = 16;
/// Words that one thread is through with before others have come to its help.
const ALONE: usize = 4;
/// Phonemes of a word where the folder sets no limit.
const MOST: usize = 64;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: PronouncerArgs,

    /// Search with so many live hypotheses; 1 is greedy search. Without it: 4, or as many as --nbest.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    beam: Option<u16>,

    /// Write so many pronunciations of a word, the likeliest first.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    nbest: u16,

    /// What a record looks like.
    #[arg(long, value_enum, default_value_t = Format::Plain)]
    format: Format,

    /// Words; without any, the lines of standard input.
    #[arg(value_name = "WORD")]
    words: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The phonemes in a line; of several pronunciations a line each of the word, a tab, the score, a tab and the phonemes.
    Plain,
    /// A line {"line":…,"word":…,"pronunciations":[{"phonemes":…,"score":…}]} for each word.
    Json,
}

#[derive(Serialize)]
struct Record<'a> {
    line: u64,
    word: &'a str,
    pronunciations: Vec<Pronunciation<'a>>,
}

#[derive(Serialize)]
struct Pronunciation<'a> {
    phonemes: &'a str,
    score: f64,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let known = Some(args.words.len()).filter(|&words| words > 0);
    let mut source = Source::arguments_or_stdin(args.words);
    let model = args.model.load()?;
    let options = options(model.options(), args.beam.map(usize::from), args.nbest.into())?;
    let mut sizes = model.session_options(BATCH.min(known.unwrap_or(BATCH)), &options);
    if known.is_some_and(|words| words <= ALONE) {
        sizes = sizes.with_threads(1);
    }
    let session = args.model.compute.sized_session(&model, sizes, &options)?;
    source.announce("words");
    let out = BufWriter::new(stdout().lock());
    let mut writer = Writer { format: args.format, several: args.nbest > 1, out };
    let mut pronouncer = Pronouncer { model, session, options };
    let (mut progress, mut complaints) = (Progress::start(), Complaints::default());
    let (mut words, mut first) = (Vec::new(), 0u64);
    loop {
        source.next_each(&mut words)?;
        if words.is_empty() {
            return complaints.end();
        }
        let answers = pronouncer.pronounce(&words, |index| source.name(first + index as u64))?;
        for (index, (word, answer)) in (first..).zip(words.iter().zip(&answers)) {
            if let Err(problem) = answer {
                complaints.tell(problem);
            }
            let word = word.as_deref().unwrap_or_default().trim();
            let generated = answer.as_ref().ok().and_then(Option::as_ref);
            writer.write(index, word, generated).map_err(Failure::output)?;
        }
        writer.out.flush().map_err(Failure::output)?;
        first += words.len() as u64;
        progress.show(source.position());
    }
}

/// The folder's options with a search of this width.
fn options(
    folder: &GenerationOptions,
    beams: Option<usize>,
    n_best: usize,
) -> Result<GenerationOptions, Failure> {
    let size = beams.unwrap_or(BEAMS.max(n_best));
    if size < n_best {
        let message = format!("--nbest {n_best} of a search with --beam {size}");
        return Err(Failure::Message(message));
    }
    let mut options = folder.clone();
    options.strategy = search(&folder.strategy, size);
    if let Strategy::Beam(beam) = &mut options.strategy {
        beam.n_best = n_best;
    }
    limit_length(&mut options, None, MOST);
    Ok(options)
}

/// A model of letters and phonemes, which are tokens with spaces between.
struct Pronouncer {
    model: TextModel,
    session: Session,
    options: GenerationOptions,
}

impl Pronouncer {
    /// Pronounces words; nothing for blank ones, and a message where a word cannot be read or has a letter that the model does
    /// not know. `name` tells what the word of an index is called.
    fn pronounce(
        &mut self,
        words: &[Result<String, String>],
        name: impl Fn(usize) -> String,
    ) -> Result<Vec<Result<Option<Generated>, String>>, Failure> {
        let spelt = words.iter().enumerate().map(|(index, word)| {
            let word = word.as_ref().map_err(String::clone)?;
            self.model.spell(word).map_err(|error| explain(&name(index), error))
        });
        let spelt: Vec<Result<String, String>> = spelt.collect();
        let known = spelt.iter().flatten().filter(|letters| !letters.is_empty());
        let answers = self.model.translate_each(&mut self.session, known, &self.options)?;
        let mut answers = answers.into_iter();
        let pronounced = spelt.into_iter().enumerate().map(|(index, letters)| match letters {
            Ok(letters) if !letters.is_empty() => {
                answers.next().transpose().map_err(|error| explain(&name(index), error))
            }
            other => other.map(|_| None),
        });
        Ok(pronounced.collect())
    }
}

struct Writer {
    format: Format,
    /// Whether there may be several pronunciations.
    several: bool,
    out: BufWriter<StdoutLock<'static>>,
}

impl Writer {
    /// Writes what was found for a word; an empty record, or an empty line, when that is nothing.
    fn write(&mut self, index: u64, word: &str, found: Option<&Generated>) -> std::io::Result<()> {
        let hypotheses = found.map(|found| found.hypotheses.as_slice()).unwrap_or_default();
        match self.format {
            Format::Json => {
                let pronunciations = hypotheses
                    .iter()
                    .map(|found| Pronunciation { phonemes: text(found), score: found.score });
                let pronunciations = pronunciations.collect();
                let record = Record { line: index + 1, word, pronunciations };
                serde_json::to_writer(&mut self.out, &record)?;
                writeln!(self.out)
            }
            Format::Plain if hypotheses.is_empty() => writeln!(self.out),
            Format::Plain => hypotheses.iter().try_for_each(|found| match self.several {
                true => writeln!(self.out, "{word}\t{:.6}\t{}", found.score, text(found)),
                false => writeln!(self.out, "{}", text(found)),
            }),
        }
    }
}
