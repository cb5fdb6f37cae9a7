//! `headrow info`: what a model consists of and costs, and what this machine computes it with.

mod account;

use crate::embedder::{load, session_options};
use crate::failure::Failure;
use crate::options::ModelArgs;
use crate::sizes::{ConfigArgs, Sizes};
use crate::table::bytes;
use account::{Account, SizeArgs};
use headrow::accounting::Counts;
use headrow::{
    Config, Cpu, Head, Isa, LoadOptions, Model, Normalization, Pooling, SentenceEncoder,
    SentenceOptions, StackConfig, TokenInput, default_threads,
};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::Write as _;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    config: ConfigArgs,

    #[command(flatten)]
    sizes: SizeArgs,

    /// Write one JSON object.
    #[arg(long)]
    json: bool,
}

/// What there is to tell about: a sentence encoder, or a model in a folder without a tokenizer.
enum Subject {
    Sentences(Box<SentenceEncoder>),
    Bare(Box<Model>),
    #[cfg(not(feature = "embedded-model"))]
    Nothing,
}

impl Subject {
    fn load(args: &ModelArgs) -> Result<Subject, Failure> {
        #[cfg(not(feature = "embedded-model"))]
        if args.model.is_none() {
            return Ok(Subject::Nothing);
        }
        if let Some(folder) = &args.model {
            let there = |name| folder.join(name).symlink_metadata().is_ok();
            let path = folder.join("config.json");
            // Decoders give no vectors of texts, whatever tokenizer lies beside them.
            let decoder = !there("modules.json") && Config::from_file(path)?.decoder.is_some();
            if decoder || !there("tokenizer.json") && !there("modules.json") {
                let options = LoadOptions::default().with_isa(args.compute.isa);
                return Ok(Subject::Bare(Box::new(Model::from_dir_with(folder, &options)?)));
            }
        }
        let options = SentenceOptions::default().with_isa(args.compute.isa);
        Ok(Subject::Sentences(Box::new(load(args, &options)?)))
    }

    fn model(&self) -> Option<&Model> {
        match self {
            Subject::Sentences(encoder) => Some(encoder.model()),
            Subject::Bare(model) => Some(model),
            #[cfg(not(feature = "embedded-model"))]
            Subject::Nothing => None,
        }
    }

    fn sentences(&self) -> Option<&SentenceEncoder> {
        match self {
            Subject::Sentences(encoder) => Some(encoder),
            _ => None,
        }
    }
}

/// Everything that is shown, in either form.
struct Report<'a> {
    name: String,
    subject: &'a Subject,
    cpu: Cpu,
    threads: usize,
    /// Bytes of the session that `embed` makes, and for how many tokens.
    session: Option<(usize, usize)>,
    /// What the model costs.
    account: Option<Account<'a>>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let text = match args.config.load()? {
        Some(sizes) => without_weights(args, &sizes)?,
        None => with_weights(args)?,
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
}

/// The report on a config alone.
fn without_weights(args: &Args, sizes: &Sizes) -> Result<String, Failure> {
    let Sizes { name, config, published } = sizes;
    let counts = Counts::of(config)?;
    let account = Account::new(config, &counts, *published, &args.sizes)?;
    if args.json {
        let mut fields = account.json();
        fields.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
        fields.insert("config".to_owned(), config_json(name, config).into());
        return Ok(format!("{}\n", Value::from(fields)));
    }
    let mut rows = config_rows("config", name, config);
    let parameters = match account.published() {
        Some(published) => format!("{}; {published}", counts.total()),
        None => counts.total().to_string(),
    };
    rows.push(("parameters".to_owned(), parameters));
    rows.extend(parts_rows(&counts.parts(), counts.total()));
    Ok(lines(&rows) + &account.plain())
}

/// The report on a model, or on the processor where there is none.
fn with_weights(args: &Args) -> Result<String, Failure> {
    let subject = Subject::load(&args.model)?;
    let cpu = match (subject.model(), args.model.compute.isa) {
        (Some(model), _) => model.cpu(),
        (None, Some(isa)) => Cpu::with_isa(isa).ok_or(headrow::Error::Isa(isa))?,
        (None, None) => Cpu::detect(),
    };
    let threads = args.model.compute.threads.map_or_else(default_threads, usize::from);
    let session = match subject.sentences() {
        Some(encoder) => {
            let options = session_options(encoder, &args.model, None);
            let tokens = options.max_tokens.unwrap_or_default();
            Some((encoder.model().memory_bound(&options.with_threads(threads))?, tokens))
        }
        None => None,
    };
    let name = match &args.model.model {
        Some(folder) => folder.display().to_string(),
        None => "the one inside the program: seeded, untrained".to_owned(),
    };
    let account = subject
        .model()
        .map(|model| Account::new(model.config(), model.counts(), None, &args.sizes));
    let account = account.transpose()?;
    let report = Report { name, subject: &subject, cpu, threads, session, account };
    if args.json {
        return Ok(format!("{}\n", report.json()));
    }
    let mut text = report.plain();
    // Tables only for whoever asks about sizes.
    if let Some(account) = report.account.filter(|_| args.sizes.n.is_some() || args.sizes.shapes) {
        text += &account.plain();
    }
    Ok(text)
}

impl Report<'_> {
    fn json(&self) -> Value {
        let caches = self.cpu.caches();
        let available: Vec<&str> =
            Isa::ALL.iter().copied().filter(|isa| isa.is_available()).map(Isa::name).collect();
        let mut report = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "model": self.subject.model().map(|model| self.model_json(model)),
            "sentences": self.subject.sentences().map(sentences_json),
            "cpu": {
                "name": self.cpu.to_string().split(": ").next(),
                "isa": self.cpu.isa().name(),
                "available": available,
                "threads": self.threads,
                "caches": {"l1d": caches.l1d, "l2": caches.l2, "l3": caches.l3},
            },
        });
        for (name, value) in self.account.iter().flat_map(Account::json) {
            report[name] = value;
        }
        report
    }

    fn model_json(&self, model: &Model) -> Value {
        let config = model.config();
        let parts: Map<String, Value> = model
            .parameters()
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect();
        let mut fields = config_json(&self.name, config);
        let more = [
            ("parameters", json!({"total": model.counts().total(), "parts": parts})),
            ("dtype", json!({"file": model.stored_types(), "memory": "F32"})),
            (
                "memory",
                json!({"weights": model.bytes(), "session": self.session.map(|(bytes, _)| bytes)}),
            ),
        ];
        fields.extend(more.map(|(name, value)| (name.to_owned(), value)));
        fields.into()
    }

    fn plain(&self) -> String {
        let mut rows = Vec::new();
        if let Some(model) = self.subject.model() {
            rows.extend(self.model_rows(model));
        }
        rows.push(("cpu".to_owned(), self.cpu.to_string()));
        rows.push(("threads".to_owned(), self.threads.to_string()));
        lines(&rows)
    }

    fn model_rows(&self, model: &Model) -> Vec<(String, String)> {
        let config = model.config();
        let total = model.counts().total();
        let mut rows = config_rows("model", &self.name, config);
        if let Some(encoder) = self.subject.sentences() {
            rows.push(("sentences".to_owned(), sentences(encoder)));
        }
        rows.push(("parameters".to_owned(), total.to_string()));
        rows.extend(parts_rows(&model.parameters(), total));
        let stored = model.stored_types().join(", ");
        rows.push(("dtype".to_owned(), format!("{stored} in the file, F32 in memory")));
        let mut memory = format!("{} of weights", bytes(model.bytes()));
        if let Some((session, tokens)) = self.session {
            let session = bytes(session);
            let _ = write!(memory, ", {session} to embed {tokens} tokens at a time");
        }
        rows.push(("memory".to_owned(), memory));
        rows
    }
}

/// What a config says, by the words of the report.
fn config_json(name: &str, config: &Config) -> Map<String, Value> {
    let fields = [
        ("name", json!(name)),
        ("family", json!(config.family.to_string())),
        ("architectures", json!(config.architectures)),
        ("d_model", json!(config.d_model)),
        ("encoder", config.encoder.as_ref().map(stack_json).into()),
        ("decoder", config.decoder.as_ref().map(stack_json).into()),
        ("vocabulary", json!(config.vocabulary())),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The rows that tell what a config says; `word` is what it is the config of.
fn config_rows(word: &str, name: &str, config: &Config) -> Vec<(String, String)> {
    let mut rows =
        vec![(word.to_owned(), name.to_owned()), ("architecture".to_owned(), architecture(config))];
    rows.extend(config.stacks().map(|(name, stack)| (name.to_owned(), stack_text(stack))));
    rows
}

/// Rows of the parts and their shares.
fn parts_rows(parts: &[(&'static str, usize)], total: usize) -> Vec<(String, String)> {
    let row = |&(part, count): &(&str, usize)| {
        let share = 100.0 * count as f64 / total as f64;
        (format!("  {part}"), format!("{count} ({share:.1} %)"))
    };
    parts.iter().map(row).collect()
}

/// A line for each row, names in a column.
fn lines(rows: &[(String, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:width$}  {}", crate::failure::one_line(value));
    }
    text
}

fn architecture(config: &Config) -> String {
    let mut text = config.family.to_string();
    if !config.architectures.is_empty() {
        let _ = write!(text, " ({})", config.architectures.join(", "));
    }
    let _ = write!(text, ": d_model {}", config.d_model);
    text
}

/// The sizes of a stack, and what it reads.
fn stack_text(stack: &StackConfig) -> String {
    let StackConfig { layers, heads, kv_heads, d_ff, activation_word, .. } = stack;
    let shared = if heads == kv_heads { String::new() } else { format!(" over {kv_heads}") };
    let mut text =
        format!("{layers} layers, {heads} heads{shared}, d_ff {d_ff}, {activation_word}");
    if let Some(TokenInput { vocabulary, token_types, .. }) = stack.tokens() {
        let _ = write!(text, "; {vocabulary} tokens");
        if *token_types > 0 {
            let _ = write!(text, ", {token_types} token types");
        }
    }
    match stack.max_length() {
        StackConfig::UNLIMITED => text.push_str(", any length"),
        length => {
            let _ = write!(text, ", {length} positions");
        }
    }
    text
}

fn stack_json(stack: &StackConfig) -> Value {
    json!({
        "layers": stack.layers,
        "heads": stack.heads,
        "kv_heads": stack.kv_heads,
        "d_ff": stack.d_ff,
        "activation": stack.activation_word,
        "vocabulary": stack.tokens().map(|tokens| tokens.vocabulary),
        "token_types": stack.tokens().map(|tokens| tokens.token_types),
        "max_length": Some(stack.max_length()).filter(|&length| length < StackConfig::UNLIMITED),
    })
}

fn pooling(encoder: &SentenceEncoder) -> (&'static str, bool) {
    let Head::Pooled(pooling, normalization) = encoder.head() else { return ("none", false) };
    let name = match pooling {
        Pooling::Mean => "mean",
        Pooling::Cls => "cls",
        Pooling::Max => "max",
        Pooling::LastToken => "last",
        _ => "other",
    };
    (name, normalization == Normalization::L2)
}

fn sentences(encoder: &SentenceEncoder) -> String {
    let (pooling, normalized) = pooling(encoder);
    let length = if normalized { " of length 1" } else { "" };
    let (dimension, max_length) = (encoder.dimension(), encoder.max_length());
    format!("vectors of {dimension} numbers{length}, {pooling} pooling, up to {max_length} tokens")
}

fn sentences_json(encoder: &SentenceEncoder) -> Value {
    let (pooling, normalized) = pooling(encoder);
    json!({
        "dimension": encoder.dimension(),
        "pooling": pooling,
        "normalized": normalized,
        "max_length": encoder.max_length(),
        "tokenizer_vocabulary": encoder.tokenizer().vocabulary(),
    })
}
