//! `headrow translate`: lines of one language into lines of another.

use crate::decoding::{Answer, DecodingArgs, beams, n_best, text};
use crate::failure::{Complaints, Failure, explain};
use crate::options::LanguageArgs;
use crate::progress::Progress;
use crate::source::Source;
use clap::ValueEnum;
use headrow::generate::{Generated, GenerationOptions};
use headrow::{Session, TextModel};
use std::io::{BufWriter, StdoutLock, Write, stdout};

/// Tokens of a translation where neither the folder nor an option sets a limit.
const MOST: usize = 256;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: LanguageArgs,

    #[command(flatten)]
    decoding: DecodingArgs,

    /// The language of the texts, by the name that the vocabulary has for it.
    #[arg(long, value_name = "NAME")]
    source_lang: Option<String>,

    /// The language to translate into.
    #[arg(long, value_name = "NAME")]
    target_lang: Option<String>,

    /// Most texts that are translated together.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    batch: u16,

    /// Most tokens of a text, and of all that are read together. Without it: as many as the model reads, 512 where
    /// it sets no limit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_source_tokens: Option<u32>,

    /// What a record looks like.
    #[arg(long, value_enum, default_value_t = Format::Plain)]
    format: Format,

    /// Texts; without any, the lines of standard input.
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The translation in a line; of several answers a line each of the text's number, a tab, the score, a tab and
    /// the translation.
    Plain,
    /// A line {"line":…,"rank":…,"source":…,"text":…,"score":…,"finish":…,"ids":…} for each answer.
    Json,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let mut source = Source::arguments_or_stdin(args.texts);
    let model = args.model.load()?;
    let model = model.with_languages(args.source_lang.as_deref(), args.target_lang.as_deref())?;
    let options = args.decoding.options(model.options(), MOST)?;
    let mut sizes = model.session_options(args.batch.into(), &options);
    if let Some(tokens) = args.max_source_tokens {
        let beams = beams(&options);
        if (tokens as usize) < beams {
            return Err(Failure::Message(format!(
                "--max-source-tokens {tokens} is less than the {beams} beams of a search"
            )));
        }
        sizes = sizes.with_max_tokens(tokens as usize);
    }
    let session = args.model.compute.sized_session(&model, sizes, &options)?;
    source.announce("texts");
    let out = BufWriter::new(stdout().lock());
    let complaints = Complaints::default();
    let mut translator =
        Translator { model, session, options, format: args.format, out, complaints };
    let (mut progress, mut texts, mut first) = (Progress::start(), Vec::new(), 0);
    loop {
        source.next_each(&mut texts)?;
        if texts.is_empty() {
            return translator.complaints.end();
        }
        translator.translate(&source, first, &texts)?;
        first += texts.len() as u64;
        progress.show(source.position());
    }
}

struct Translator {
    model: TextModel,
    session: Session,
    options: GenerationOptions,
    format: Format,
    out: BufWriter<StdoutLock<'static>>,
    complaints: Complaints,
}

impl Translator {
    /// Translates texts. A blank one has a blank answer; so has one that is refused, beside the word of why.
    fn translate(
        &mut self,
        source: &Source,
        first: u64,
        texts: &[Result<String, String>],
    ) -> Result<(), Failure> {
        let wanted = texts.iter().flatten().filter(|text| !text.trim().is_empty());
        let answers = self.model.translate_each(&mut self.session, wanted, &self.options)?;
        let mut answers = answers.into_iter();
        for (index, text) in (first..).zip(texts) {
            let written = match text {
                Err(problem) => self.refuse(problem),
                Ok(text) if text.trim().is_empty() => self.write_blank(),
                Ok(text) => match answers.next() {
                    Some(Ok(generated)) => self.write(index, text, &generated),
                    Some(Err(error)) => self.refuse(&explain(&source.name(index), error)),
                    None => Ok(()),
                },
            };
            written.map_err(Failure::output)?;
        }
        self.out.flush().map_err(Failure::output)
    }

    fn refuse(&mut self, problem: &str) -> std::io::Result<()> {
        self.complaints.tell(problem);
        self.write_blank()
    }

    /// Keeps line n of the output that of the input. Records that have numbers need no such thing.
    fn write_blank(&mut self) -> std::io::Result<()> {
        match self.format {
            Format::Plain if n_best(&self.options) == 1 => writeln!(self.out),
            _ => Ok(()),
        }
    }

    fn write(&mut self, index: u64, source: &str, generated: &Generated) -> std::io::Result<()> {
        let Translator { model, options, format, out, .. } = self;
        for (rank, answer) in (1..).zip(&generated.hypotheses) {
            match format {
                Format::Plain if n_best(options) == 1 => {
                    writeln!(out, "{}", on_a_line(text(answer)))?
                }
                Format::Plain => {
                    let (line, text) = (index + 1, on_a_line(text(answer)));
                    writeln!(out, "{line}\t{:.6}\t{text}", answer.score)?;
                }
                Format::Json => {
                    let tokenizer = model.target_tokenizer();
                    let answer = Answer::new(index, source, rank, answer, tokenizer);
                    serde_json::to_writer(&mut *out, &answer)?;
                    writeln!(out)?;
                }
            }
        }
        Ok(())
    }
}

/// Line breaks become spaces, so that line n of the output is that of the input.
fn on_a_line(text: &str) -> String {
    text.replace("\r\n", " ").replace(['\n', '\r'], " ")
}
