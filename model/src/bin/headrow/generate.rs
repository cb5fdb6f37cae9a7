//! `headrow generate`: what follows a text.

use crate::decoding::{Answer, DecodingArgs, n_best, text};
use crate::failure::{Failure, explain};
use crate::options::{LanguageArgs, LengthArgs};
use crate::progress::Progress;
use crate::source::Source;
use clap::ValueEnum;
use headrow::generate::{Callbacks, Generated, GenerationOptions, Progress as Step};
use headrow::{Cancel, Error, Session, TextModel};
use std::io::{BufWriter, StdoutLock, Write, stdout};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Tokens of an answer where neither the folder nor an option sets a limit.
const MOST: usize = 128;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: LanguageArgs,

    #[command(flatten)]
    length: LengthArgs,

    #[command(flatten)]
    decoding: DecodingArgs,

    /// Give up on an answer after so many milliseconds; what there is by then is the answer.
    #[arg(long, value_name = "MS")]
    deadline: Option<u32>,

    /// Read one prompt from this file, whole.
    #[arg(long, value_name = "FILE", conflicts_with = "prompts")]
    prompt_file: Option<PathBuf>,

    /// What a record looks like.
    #[arg(long, value_enum, default_value_t = Format::Plain)]
    format: Format,

    /// Prompts; without any, the lines of standard input.
    #[arg(value_name = "PROMPT")]
    prompts: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The text as it comes, and a line end; of several answers a line each of the score, a tab and the text.
    Plain,
    /// A line {"line":…,"rank":…,"source":…,"text":…,"score":…,"finish":…,"ids":…} for each answer.
    Json,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let mut source = match &args.prompt_file {
        Some(path) => Source::whole_file(path)?,
        None => Source::arguments_or_stdin(args.prompts),
    };
    let model = args.model.load()?;
    let options = args.length.over(args.decoding.options(model.options(), MOST)?);
    let session = args.length.session(&args.model.compute, &model, &options)?;
    source.announce("prompts");
    let out = BufWriter::new(stdout().lock());
    let deadline = args.deadline.map(|ms| Duration::from_millis(ms.into()));
    let mut writer = Writer { model, session, options, format: args.format, deadline, out };
    let (mut progress, mut prompts, mut index) = (Progress::start(), Vec::new(), 0);
    loop {
        source.next(&mut prompts)?;
        if prompts.is_empty() {
            return Ok(());
        }
        for prompt in &prompts {
            writer.answer(index, &source.name(index), prompt)?;
            index += 1;
            progress.show(source.position());
        }
    }
}

/// A model at work.
struct Writer {
    model: TextModel,
    session: Session,
    options: GenerationOptions,
    format: Format,
    deadline: Option<Duration>,
    out: BufWriter<StdoutLock<'static>>,
}

impl Writer {
    /// Continues one prompt and writes what comes of it.
    fn answer(&mut self, index: u64, name: &str, prompt: &str) -> Result<(), Failure> {
        let deadline = self.deadline.map(|time| Cancel::with_deadline(Instant::now() + time));
        self.session.set_cancel(deadline);
        let streams = self.format == Format::Plain && n_best(&self.options) == 1;
        let (out, mut written, mut failure) = (&mut self.out, 0, None);
        let watch = |step: &Step<'_>| {
            if streams && !step.text.is_empty() {
                written += step.text.len();
                let shown = out.write_all(step.text.as_bytes()).and_then(|()| out.flush());
                failure = shown.err().map(Failure::output);
            }
            match failure {
                None => ControlFlow::Continue(()),
                Some(_) => ControlFlow::Break(()),
            }
        };
        let callbacks = Callbacks::new().with_progress(watch);
        let generated = self.model.generate(&mut self.session, prompt, &self.options, callbacks);
        if let Some(failure) = failure {
            return Err(failure);
        }
        let generated = generated.map_err(|error| {
            Failure::Message(match error {
                Error::Cancelled => format!("{name}: the deadline came before the first token"),
                error => explain(name, error),
            })
        })?;
        let done = match self.format {
            Format::Json => self.json(index, prompt, &generated),
            Format::Plain if streams => {
                // What was held back until it was certain.
                let rest = text(generated.best()).get(written..).unwrap_or_default();
                writeln!(self.out, "{rest}")
            }
            Format::Plain => generated
                .hypotheses
                .iter()
                .try_for_each(|answer| writeln!(self.out, "{:.6}\t{}", answer.score, text(answer))),
        };
        done.and_then(|()| self.out.flush()).map_err(Failure::output)
    }

    fn json(&mut self, index: u64, prompt: &str, generated: &Generated) -> std::io::Result<()> {
        for (rank, answer) in (1..).zip(&generated.hypotheses) {
            let tokenizer = self.model.target_tokenizer();
            let answer = Answer::new(index, prompt, rank, answer, tokenizer);
            serde_json::to_writer(&mut self.out, &answer)?;
            writeln!(self.out)?;
        }
        Ok(())
    }
}
