//! `headrow evaluate`: how good a model is on texts whose answers are known.

use crate::decoding::{limit_length, search, text};
use crate::failure::{Complaints, Failure, explain};
use crate::options::{LanguageArgs, LengthArgs};
use crate::progress::Progress;
use crate::source::Position;
use clap::ValueEnum;
use headrow::generate::{GenerationOptions, Strategy};
use headrow::metrics::{Bleu, BleuOptions, BleuScore, BleuWords, ErrorRate};
use headrow::train::{BadLines, Corpus, DataOptions, Layout, Loss, Lowercase, Record};
use headrow::{Session, Text, TextModel};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

/// Texts that are translated together.
const BATCH: usize = 16;
/// Tokens of a translation where neither the folder nor an option sets a limit.
const MOST: usize = 256;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: LanguageArgs,

    #[command(flatten)]
    length: LengthArgs,

    /// Files with a source, a tab and a target in each line; for a decoder alone, with a text in each line.
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    data: Vec<PathBuf>,

    /// What is measured. Without it: all that the model can be measured by.
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',')]
    metrics: Vec<Metric>,

    /// Search with so many live hypotheses; 1 is greedy search. Without it: as the model's folder says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    beam: Option<u16>,

    /// Most tokens of a translation.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_new_tokens: Option<u32>,

    /// A JSON object of lists: beside a source, or the same without its spaces, further answers that are right.
    #[arg(long, value_name = "FILE")]
    variants: Option<PathBuf>,

    /// Only the first N texts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,

    /// Put texts into lower case, as for training.
    #[arg(long, value_name = "WHICH", value_enum)]
    lowercase: Option<LowercaseName>,

    /// What BLEU's words are: 13a, none, char or intl.
    #[arg(long, value_name = "NAME", default_value_t = BleuWords::default())]
    tokenize: BleuWords,

    /// Stop at a line that cannot be read, instead of leaving it out.
    #[arg(long)]
    strict: bool,

    /// One JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Metric {
    /// Translations against targets, as sacreBLEU counts.
    Bleu,
    /// exp of the mean −ln p of a token of the targets, their ends included.
    Perplexity,
    /// The part of these tokens that the model held likeliest.
    Accuracy,
    /// Edits from translations to targets over what stands between spaces, and the part of translations that are wrong.
    ErrorRate,
}

impl Metric {
    /// Whether it is about translations.
    fn translates(self) -> bool {
        matches!(self, Metric::Bleu | Metric::ErrorRate)
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum LowercaseName {
    /// Sources alone.
    Sources,
    /// Sources and targets.
    Both,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let model = args.model.load()?;
    let pairs = model.model().config().encoder.is_some();
    let metrics = args.metrics(pairs)?;
    let corpus = Corpus::read(&args.data, &args.data_options(pairs))?;
    let variants = args.variants.as_deref().map(variants).transpose()?.unwrap_or_default();
    let options = args.generation_options(model.options());
    let sizes = model.session_options(BATCH, &options);
    let session = args.model.compute.sized_session(&model, sizes, &options)?;
    // Targets may be longer than what is generated.
    let whole = args.length.over(GenerationOptions::default());
    let scoring = args.length.session(&args.model.compute, &model, &whole)?;
    let records = corpus.records();
    let limit = args.limit.map_or(records.len(), |limit| records.len().min(limit as usize));
    let bleu = Bleu::new(BleuOptions::default().with_words(args.tokenize));
    let mut evaluation = Evaluation {
        model,
        session,
        scoring,
        options,
        corpus: &corpus,
        metrics,
        variants,
        bleu,
        errors: ErrorRate::default(),
        loss: Loss::default(),
        refused: Complaints::default(),
    };
    corpus.skipped().first().iter().for_each(|problem| crate::failure::tell(problem));
    let mut progress = Progress::start();
    for (batch, records) in records[..limit].chunks(BATCH).enumerate() {
        evaluation.add(records)?;
        let done = (batch * BATCH + records.len()) as u64;
        progress.show(Position { texts: done, part: Some((done, limit as u64)) });
    }
    drop(progress);
    let report = match args.json {
        true => format!("{}\n", evaluation.json(limit)),
        false => evaluation.plain(limit),
    };
    stdout().write_all(report.as_bytes()).map_err(Failure::output)
}

impl Args {
    /// What is measured: of a decoder alone no translations.
    fn metrics(&self, pairs: bool) -> Result<Vec<Metric>, Failure> {
        match self.metrics.iter().find(|metric| metric.translates() && !pairs) {
            Some(_) => Err(Failure::Message(
                "a decoder alone translates nothing: measure its perplexity or accuracy".to_owned(),
            )),
            None if !self.metrics.is_empty() => Ok(self.metrics.clone()),
            None => {
                let all = Metric::value_variants().iter().copied();
                Ok(all.filter(|metric| pairs || !metric.translates()).collect())
            }
        }
    }

    fn data_options(&self, pairs: bool) -> DataOptions {
        let lowercase = match self.lowercase {
            None => Lowercase::Neither,
            Some(LowercaseName::Sources) => Lowercase::Sources,
            Some(LowercaseName::Both) => Lowercase::Both,
        };
        DataOptions::default()
            .with_layout(if pairs { Layout::Pairs } else { Layout::Lines })
            .with_lowercase(lowercase)
            .with_bad_lines(if self.strict { BadLines::Refuse } else { BadLines::Skip })
    }

    fn generation_options(&self, folder: &GenerationOptions) -> GenerationOptions {
        let mut options = folder.clone();
        options.strategy = match (self.beam, &folder.strategy) {
            (Some(size), folder) => search(folder, size.into()),
            (None, Strategy::Beam(beam)) => Strategy::Beam(*beam),
            (None, _) => Strategy::Greedy,
        };
        if let Strategy::Beam(beam) = &mut options.strategy {
            beam.n_best = 1;
        }
        limit_length(&mut options, self.max_new_tokens, MOST);
        options
    }
}

/// Reads further answers that are right.
fn variants(path: &Path) -> Result<HashMap<String, Vec<String>>, Failure> {
    let place = path.display();
    let bytes =
        std::fs::read(path).map_err(|error| Failure::Message(format!("{place}: {error}")))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Failure::Message(format!("{place}: no object of lists of texts: {error}")))
}

/// What was measured so far.
struct Evaluation<'a> {
    model: TextModel,
    session: Session,
    scoring: Session,
    options: GenerationOptions,
    corpus: &'a Corpus,
    metrics: Vec<Metric>,
    variants: HashMap<String, Vec<String>>,
    bleu: Bleu,
    errors: ErrorRate,
    loss: Loss,
    refused: Complaints,
}

impl Evaluation<'_> {
    fn add(&mut self, records: &[Record]) -> Result<(), Failure> {
        if self.metrics.iter().any(|metric| metric.translates()) {
            self.translate(records)?;
        }
        if self.metrics.iter().any(|metric| !metric.translates()) {
            records.iter().for_each(|record| self.score(record));
        }
        Ok(())
    }

    /// Counts translations. One that the model refuses is empty.
    fn translate(&mut self, records: &[Record]) -> Result<(), Failure> {
        let sources = records.iter().map(|record| &record.source);
        let answers = self.model.translate_each(&mut self.session, sources, &self.options)?;
        for (record, answer) in records.iter().zip(answers) {
            let answer = match answer {
                Ok(generated) => text(generated.best()).to_owned(),
                Err(error) => {
                    self.refused.tell(&explain(&self.corpus.place(record.origin), error));
                    String::new()
                }
            };
            let target = record.target.as_deref().unwrap_or_default();
            self.bleu.add(&answer, &[target]);
            let further = self.variants.get(&record.source);
            let further = further.or_else(|| self.variants.get(&record.source.replace(' ', "")));
            let accepted = further.into_iter().flatten().map(String::as_str).chain([target]);
            let accepted: Vec<Vec<&str>> =
                accepted.map(|text| text.split_whitespace().collect()).collect();
            self.errors.add(&answer.split_whitespace().collect::<Vec<_>>(), &accepted);
        }
        Ok(())
    }

    /// Counts the tokens of a target, or of a text that stands alone. One that the model refuses is told and not counted.
    fn score(&mut self, record: &Record) {
        let text = match &record.target {
            Some(target) => Text::Pair(&record.source, target),
            None => Text::Single(&record.source),
        };
        let score = match self.model.score(&mut self.scoring, text) {
            Ok(score) => score,
            Err(error) => {
                return self.refused.tell(&explain(&self.corpus.place(record.origin), error));
            }
        };
        self.loss.nll -= score.log_probability;
        self.loss.smoothed -= score.log_probability;
        self.loss.tokens += score.counted;
        let correct = score.tokens.iter().filter(|token| token.likeliest == Some(token.id));
        self.loss.correct += correct.count();
    }

    fn plain(&self, texts: usize) -> String {
        let skipped = self.corpus.skipped().count();
        let mut lines = vec![format!("texts: {texts}, bad lines left out: {skipped}")];
        let ErrorRate { edits, tokens, wrong, answers, .. } = self.errors;
        for metric in &self.metrics {
            lines.push(match metric {
                Metric::Bleu => format!("{} {}", self.bleu.score(), self.bleu.signature()),
                Metric::Perplexity => format!(
                    "perplexity: {:.4} over {} tokens, {}",
                    self.loss.perplexity(),
                    self.loss.tokens,
                    self.ends()
                ),
                Metric::Accuracy => {
                    let percent = 100.0 * self.loss.accuracy();
                    let Loss { correct, tokens, .. } = self.loss;
                    format!("token accuracy: {percent:.2} % ({correct} of {tokens})")
                }
                Metric::ErrorRate => format!(
                    "error rate of tokens: {:.2} % ({edits} edits, {tokens} tokens)\nerror rate of texts: {:.2} % ({wrong} of {answers})",
                    100.0 * self.errors.of_tokens(),
                    100.0 * self.errors.of_answers()
                ),
            });
        }
        lines.join("\n") + "\n"
    }

    /// Whether the end of a text counts as a token.
    fn ends(&self) -> &'static str {
        match self.model.model().config().encoder {
            Some(_) => "the end of each target included",
            None => "ends not counted",
        }
    }

    fn json(&self, texts: usize) -> Value {
        let mut report = Map::new();
        let mut put = |name: &str, value: Value| drop(report.insert(name.to_owned(), value));
        put("texts", json!(texts));
        put("bad_lines", json!(self.corpus.skipped().count()));
        put("refused", json!(self.refused.count()));
        let ErrorRate { edits, tokens, wrong, answers, .. } = self.errors;
        for metric in &self.metrics {
            match metric {
                Metric::Bleu => put("bleu", bleu_json(&self.bleu.score(), &self.bleu.signature())),
                Metric::Perplexity => {
                    put("perplexity", json!(self.loss.perplexity()));
                    put("tokens", json!(self.loss.tokens));
                    put("counts_end", json!(self.model.model().config().encoder.is_some()));
                }
                Metric::Accuracy => put("accuracy", json!(self.loss.accuracy())),
                Metric::ErrorRate => put(
                    "error_rate",
                    json!({
                        "tokens": self.errors.of_tokens(), "texts": self.errors.of_answers(), "edits": edits,
                        "accepted_tokens": tokens, "wrong": wrong, "answers": answers,
                    }),
                ),
            }
        }
        Value::Object(report)
    }
}

fn bleu_json(score: &BleuScore, signature: &str) -> Value {
    json!({
        "score": score.score, "precisions": score.precisions, "brevity_penalty": score.brevity_penalty,
        "answer_length": score.answer_length, "reference_length": score.reference_length,
        "signature": signature,
    })
}
