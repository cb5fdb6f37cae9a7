//! `headrow train`: a model from texts.

mod course;
mod recipe;
mod shape;
mod watch;

pub(crate) use course::Dtype;

use crate::failure::{Failure, one_line};
use course::Course;
use headrow::train::{
    AdamOptions, BadLines, BatchOptions, Corpus, DamagedCheckpoint, DataOptions, Dataset,
    DatasetOptions, Ended, Framing, GreedyBleu, Layout, Lowercase, NetworkOptions, Parameters, Run,
    Schedule, SpecialIds, Task, Trainer, TrainerOptions, VocabularyOptions, checkpoints,
    vocabulary,
};
use headrow::{Config, Tokenizer, default_threads};
use recipe::{Lower, Objective, Recipe, ScheduleName, TextLayout};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use watch::{Stop, Watcher};

/// Options of a training, in its folder.
const RUN: &str = "run.json";
const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "config.json";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the training and of the model that comes out of it.
    #[arg(long, value_name = "DIR", required_unless_present = "resume")]
    out: Option<PathBuf>,

    /// Go on with the training in a folder, or at one of its checkpoints.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    resume: Option<PathBuf>,

    /// When the last checkpoint is damaged, go on from the one before.
    #[arg(long, requires = "resume")]
    skip_damaged: bool,

    /// Threads to compute with. Without it: as many as this process may use, at most one per core. They change no bit of
    /// the result.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,

    #[command(flatten)]
    recipe: Recipe,

    #[command(flatten)]
    course: Course,
}

/// What `run.json` says.
#[derive(Serialize, Deserialize)]
struct Plan {
    recipe: Recipe,
    course: Course,
}

impl Plan {
    /// Whether what is to be done meanwhile can be done.
    fn check(&self) -> Result<(), Failure> {
        match (&self.recipe.valid, self.course.needs_validation()) {
            (None, Some(option)) => Err(Failure::Message(format!("{option}: needs --valid"))),
            _ => Ok(()),
        }
    }

    /// Writes it into the folder of the training. With it the folder can be resumed.
    fn write(&self, folder: &Path) -> Result<(), Failure> {
        let path = folder.join(RUN);
        write(&path, &serde_json::to_vec_pretty(self).map_err(|error| named(&path, &error))?)
    }
}

/// Where a training stands.
struct Place {
    folder: PathBuf,
    /// The checkpoint to go on from, when one is named.
    checkpoint: Option<PathBuf>,
    resumed: bool,
}

/// What a model folder has beside weights.
type Companions = Vec<(String, Vec<u8>)>;

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let threads = args.threads.map_or_else(default_threads, usize::from);
    let damaged = match args.skip_damaged {
        true => DamagedCheckpoint::Skip,
        false => DamagedCheckpoint::Refuse,
    };
    let (place, plan) = plan(args)?;
    let Plan { recipe, course } = &plan;
    let kind = kind(recipe)?;
    let texts = Texts::read(recipe, kind)?;
    let companions = match place.resumed {
        true => companions(&place.folder)?,
        false => begin(&place.folder, &plan, kind, &texts)?,
    };
    let file = |name| companions.iter().find(|(own, _)| own == name).map(|(_, bytes)| bytes);
    let lacking = |name| Failure::Message(format!("{}: no {name}", place.folder.display()));
    let config = Config::from_json(file(CONFIG).ok_or_else(|| lacking(CONFIG))?)?;
    let tokenizer = file(TOKENIZER).ok_or_else(|| lacking(TOKENIZER))?.clone();

    let limits = Limits::new(recipe, &config);
    let (train, valid) = texts.datasets(&Tokenizer::from_bytes(&tokenizer)?, kind, limits)?;
    let parameters = match &recipe.init {
        Some(folder) => Parameters::from_dir(folder)?,
        None => Parameters::initialise(&config, seed(recipe))?,
    };
    let network = NetworkOptions::default()
        .with_max_tokens(limits.batch)
        .with_max_length(limits.longest())
        .with_threads(threads);
    let options = trainer_options(recipe, config.d_model)?;
    let trainer = Trainer::new(parameters, &network, options)?;
    let batches = BatchOptions::new(limits.batch).with_seed(seed(recipe));
    let run = course.options(recipe.accumulate.unwrap_or(1) as usize);
    let steps = run.steps;
    let mut run = Run::new(&place.folder, trainer, &train, batches, companions, run)?;
    if let Some(valid) = &valid {
        run = run.with_validation(valid, limits.batch)?;
        if course.bleu() > 0 {
            let bleu = texts.bleu(tokenizer, course.bleu(), limits.target, threads)?;
            run = run.with_measure(Box::new(move |parameters| bleu.score(parameters)));
        }
    }
    let done = match place.resumed {
        true => {
            let done = run.resume(place.checkpoint.as_deref(), damaged)?;
            // Not before: a training that cannot be resumed so is as it was.
            plan.write(&place.folder)?;
            done
        }
        false => 0,
    };
    let mut watcher = Watcher::new(Stop::listen()?, done, steps);
    let ended = run.train(&mut |event| watcher.watch(event));
    watcher.finish();
    finish(&place.folder, &run, ended, watcher.failure)
}

/// Tells how it ended.
fn finish(
    folder: &Path,
    run: &Run<'_>,
    ended: headrow::Result<Ended>,
    failure: Option<Failure>,
) -> Result<(), Failure> {
    let again = |what: String| {
        let folder = folder.display();
        Failure::Message(format!("{what}; headrow train --resume {folder} goes on"))
    };
    match ended {
        Err(error @ headrow::Error::NotFinite { .. }) => {
            let last = checkpoints(folder.join("checkpoints"))?;
            Err(Failure::Message(match last.last() {
                Some((_, path)) => format!("{error}; the last checkpoint is {}", path.display()),
                None => format!("{error}; there is no checkpoint yet"),
            }))
        }
        Err(error) => Err(error.into()),
        Ok(Ended::Asked) => Err(failure
            .unwrap_or_else(|| again(format!("stopped after step {}", run.trainer().steps())))),
        Ok(_) => failure.map_or(Ok(()), Err),
    }
}

/// Where the training is, and by which options.
fn plan(args: Args) -> Result<(Place, Plan), Failure> {
    let given = args.recipe.absolute()?;
    if let Some(folder) = args.out {
        if given.data.is_empty() {
            return Err(Failure::Message("--data: no files to learn from".to_owned()));
        }
        check_free(&folder)?;
        let course = args.course.filled_in(&given.shape());
        let plan = Plan { recipe: given.filled_in(course.steps), course };
        plan.check()?;
        return Ok((Place { folder, checkpoint: None, resumed: false }, plan));
    }
    let place = resumed(args.resume.unwrap_or_default())?;
    let path = place.folder.join(RUN);
    let bytes = fs::read(&path).map_err(|error| named(&path, &error))?;
    let begun: Plan = serde_json::from_slice(&bytes).map_err(|error| named(&path, &error))?;
    if let Some(problem) = given.contradiction(&begun.recipe) {
        return Err(Failure::Message(problem));
    }
    let course = args.course.over(begun.course);
    let plan = Plan { recipe: begun.recipe, course };
    plan.check()?;
    Ok((place, plan))
}

/// Refuses a folder that has a training or a model already.
fn check_free(folder: &Path) -> Result<(), Failure> {
    let taken = |what: &str| Failure::Message(format!("{}: has {what} already", folder.display()));
    if !checkpoints(folder.join("checkpoints"))?.is_empty() {
        return Err(taken("a training, which --resume goes on with,"));
    }
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    match weights.iter().any(|name| folder.join(name).exists()) {
        true => Err(taken("a model")),
        false => Ok(()),
    }
}

/// The training of a folder, or of one of its checkpoints.
fn resumed(given: PathBuf) -> Result<Place, Failure> {
    if !given.join("training.json").exists() {
        return Ok(Place { folder: given, checkpoint: None, resumed: true });
    }
    let given = given.canonicalize().map_err(|error| named(&given, &error))?;
    // A checkpoint is two folders below its training's.
    let folder = given.ancestors().nth(2).unwrap_or(&given).to_owned();
    Ok(Place { folder, checkpoint: Some(given), resumed: true })
}

/// Begins a training's folder: its options, and the files of its model beside the weights.
fn begin(
    folder: &Path,
    plan: &Plan,
    kind: Objective,
    texts: &Texts,
) -> Result<Companions, Failure> {
    let recipe = &plan.recipe;
    fs::create_dir_all(folder).map_err(|error| named(folder, &error))?;
    let files = match &recipe.init {
        Some(model) => companions(model)?,
        None => new_files(recipe, kind, texts)?,
    };
    for (name, bytes) in &files {
        write(&folder.join(name), bytes)?;
    }
    // Last: what is there without it was never a training.
    plan.write(folder)?;
    Ok(files)
}

/// The files of a model that begins with drawn weights.
fn new_files(recipe: &Recipe, kind: Objective, texts: &Texts) -> Result<Companions, Failure> {
    let tokenizer = texts.tokenizer(recipe.tokenizer.as_deref().unwrap_or_default(), kind)?;
    let made = Tokenizer::from_bytes(&tokenizer)?;
    let special = SpecialIds::of(&made)?;
    let config = shape::config(recipe, &made, &special)?;
    let mut files =
        vec![(CONFIG.to_owned(), config.into_bytes()), (TOKENIZER.to_owned(), tokenizer)];
    let generation = shape::generation(recipe, &made, &special);
    files.extend(generation.map(|text| ("generation_config.json".to_owned(), text.into_bytes())));
    Ok(files)
}

/// The files of a model's folder that go along with its weights.
fn companions(folder: &Path) -> Result<Companions, Failure> {
    let mut files = Vec::new();
    for name in [CONFIG, TOKENIZER, "generation_config.json", "tokenizer_config.json"] {
        let path = folder.join(name);
        if path.exists() {
            files.push((name.to_owned(), fs::read(&path).map_err(|error| named(&path, &error))?));
        }
    }
    Ok(files)
}

/// Puts a file in its place as a whole.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    Ok(headrow::train::replace_file(path, bytes)?)
}

fn named(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Message(format!("{}: {error}", path.display()))
}

fn seed(recipe: &Recipe) -> u64 {
    recipe.seed.unwrap_or(1)
}

/// What is predicted: as the recipe says, or what a model's folder is made for.
fn kind(recipe: &Recipe) -> Result<Objective, Failure> {
    match &recipe.init {
        None => Ok(recipe.objective.unwrap_or(Objective::Seq2seq)),
        Some(folder) => {
            let config = Config::from_file(folder.join(CONFIG))?;
            Ok(match (&config.encoder, &config.decoder) {
                (Some(_), Some(_)) => Objective::Seq2seq,
                (None, _) => Objective::Causal,
                (Some(_), None) => Objective::Masked,
            })
        }
    }
}

/// Most tokens of texts and batches.
#[derive(Clone, Copy)]
struct Limits {
    source: usize,
    target: usize,
    batch: usize,
}

impl Limits {
    fn new(recipe: &Recipe, config: &Config) -> Limits {
        let batch = recipe.batch_tokens.unwrap_or(1) as usize;
        let longest = (recipe.max_length.unwrap_or(1) as usize).min(batch);
        let limit = |stack: Option<&headrow::StackConfig>| {
            stack.map_or(longest, |stack| stack.max_length().min(longest))
        };
        Limits { source: limit(config.encoder.as_ref()), target: limit(config.last_stack()), batch }
    }

    fn longest(&self) -> usize {
        self.source.max(self.target)
    }
}

/// What is learnt from, and what is measured on.
struct Texts {
    train: Corpus,
    valid: Option<Corpus>,
}

impl Texts {
    fn read(recipe: &Recipe, kind: Objective) -> Result<Texts, Failure> {
        let layout = match (kind, recipe.layout) {
            (Objective::Seq2seq, _) => Layout::Pairs,
            (Objective::Causal, None) | (_, Some(TextLayout::Text)) => Layout::Text,
            (Objective::Masked, None) | (_, Some(TextLayout::Lines)) => Layout::Lines,
        };
        let lowercase = match recipe.lowercase {
            Some(Lower::Sources) => Lowercase::Sources,
            Some(Lower::Both) => Lowercase::Both,
            Some(Lower::Nothing) | None => Lowercase::Neither,
        };
        let bad_lines = match recipe.strict {
            Some(true) => BadLines::Refuse,
            _ => BadLines::Skip,
        };
        let options = DataOptions::default()
            .with_layout(layout)
            .with_lowercase(lowercase)
            .with_bad_lines(bad_lines);
        let read = |files: &[PathBuf]| -> Result<Corpus, Failure> {
            let corpus = Corpus::read(files, &options)?;
            warn(corpus.skipped());
            Ok(corpus)
        };
        let valid = recipe.valid.as_ref().map(|file| read(std::slice::from_ref(file)));
        Ok(Texts { train: read(&recipe.data)?, valid: valid.transpose()? })
    }

    /// The text of a `tokenizer.json`: made from what is learnt from, or a file.
    fn tokenizer(&self, how: &str, kind: Objective) -> Result<Vec<u8>, Failure> {
        let framing = match kind {
            Objective::Seq2seq => Framing::End,
            Objective::Causal => Framing::Begin,
            Objective::Masked => Framing::Both,
        };
        let options = match how.split_once(':') {
            None if how == "words" => VocabularyOptions::words(),
            Some(("bpe", size)) => VocabularyOptions::pairs(size.parse().map_err(|_| {
                Failure::Message(format!("--tokenizer {how}: expected a number behind bpe:"))
            })?),
            _ => return fs::read(how).map_err(|error| named(Path::new(how), &error)),
        };
        Ok(vocabulary(self.train.texts(), &options.with_framing(framing))?)
    }

    fn datasets(
        &self,
        tokenizer: &Tokenizer,
        kind: Objective,
        limits: Limits,
    ) -> Result<(Dataset, Option<Dataset>), Failure> {
        let task = match kind {
            Objective::Seq2seq => Task::Translation,
            Objective::Causal => Task::Continuation,
            Objective::Masked => Task::Masking,
        };
        let options =
            DatasetOptions::new(task).with_max_source(limits.source).with_max_target(limits.target);
        let make = |corpus: &Corpus| -> Result<Dataset, Failure> {
            let dataset = Dataset::new(corpus, tokenizer, &options)?;
            warn(dataset.skipped());
            Ok(dataset)
        };
        Ok((make(&self.train)?, self.valid.as_ref().map(make).transpose()?))
    }

    /// A measure of the answers to the first `lines` pairs for validation.
    fn bleu(
        &self,
        tokenizer: Vec<u8>,
        lines: usize,
        longest: usize,
        threads: usize,
    ) -> Result<GreedyBleu, Failure> {
        let records = self.valid.iter().flat_map(|corpus| corpus.records());
        let pairs: Option<Vec<(String, String)>> = records
            .take(lines)
            .map(|record| Some((record.source.clone(), record.target.clone()?)))
            .collect();
        let pairs = pairs.ok_or_else(|| {
            Failure::Message("--bleu: needs pairs of a source and a target".to_owned())
        })?;
        Ok(GreedyBleu::new(tokenizer, pairs, longest, threads))
    }
}

/// Tells what is left out.
fn warn(skipped: &headrow::Problems) {
    if skipped.count() > 0 {
        let line = format!("headrow: {} left out: {skipped}", skipped.count());
        // Standard error may be closed; there is nobody to tell then.
        let _ = writeln!(std::io::stderr(), "{}", one_line(&line));
    }
}

fn trainer_options(recipe: &Recipe, d_model: usize) -> Result<TrainerOptions, Failure> {
    let (factor, warmup) = (recipe.rate_factor.unwrap_or(1.0), recipe.warmup.unwrap_or(4000));
    let peak = 1.0 / ((d_model as f64).sqrt() * (warmup.max(1) as f64).sqrt());
    let rate = recipe.rate.unwrap_or(peak) * factor;
    let schedule = match recipe.schedule.unwrap_or(ScheduleName::Paper) {
        ScheduleName::Paper if recipe.rate.is_some() => {
            let problem = "--rate: the paper's schedule has --rate-factor";
            return Err(Failure::Message(problem.to_owned()));
        }
        ScheduleName::Paper => Schedule::Paper { factor, d_model, warmup },
        ScheduleName::Constant => Schedule::Constant { rate, warmup },
        ScheduleName::Cosine => {
            let total = recipe.cosine_steps.ok_or_else(|| {
                Failure::Message("--schedule cosine: needs --steps or --cosine-steps".to_owned())
            })?;
            Schedule::Cosine { rate, floor: 0.0, warmup, total }
        }
    };
    let adam = AdamOptions::default()
        .with_clip(recipe.clip)
        .with_weight_decay(recipe.weight_decay.unwrap_or(0.0));
    Ok(TrainerOptions::paper(d_model)
        .with_schedule(schedule)
        .with_adam(adam)
        .with_smoothing(recipe.smoothing.unwrap_or(0.1))
        .with_dropout(recipe.dropout.unwrap_or(0.1))
        .with_seed(seed(recipe)))
}
