//! `headrow train`: a model from texts.

mod course;
mod folder;
mod recipe;
mod shape;
mod texts;
mod watch;

pub(crate) use course::Dtype;

use crate::failure::{Failure, tell};
use course::Course;
use folder::{CONFIG, Companions, Place, Plan, TOKENIZER, companions};
use headrow::generate::GenerationOptions;
use headrow::train::{
    AdamOptions, BatchOptions, DamagedCheckpoint, Ended, NetworkOptions, Resumed, Run, Schedule,
    SpecialIds, Trainer, TrainerOptions, checkpoints, decoding_options,
};
use headrow::{Config, Tokenizer, default_threads};
use recipe::{Recipe, ScheduleName, Sharing};
use std::path::{Path, PathBuf};
use texts::{Limits, Texts};
use watch::{Stop, Watcher};

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

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let threads = args.threads.map_or_else(default_threads, usize::from);
    let damaged = match args.skip_damaged {
        true => DamagedCheckpoint::Skip,
        false => DamagedCheckpoint::Refuse,
    };
    let (place, plan) = folder::plan(args)?;
    let Plan { recipe, course } = &plan;
    let kind = folder::kind(recipe, &place)?;
    let texts = Texts::read(recipe, kind)?;
    let companions = match place.resumed {
        true => companions(&place.folder)?,
        false => folder::begin(&place.folder, &plan, kind, &texts)?,
    };
    let learnt = Learnt::new(&place, companions)?;
    let limits = Limits::new(recipe, &learnt.config);
    let (train, valid) = texts.datasets(&learnt.reader, &learnt.special, kind, limits)?;
    let trainer = trainer(recipe, &place, &learnt.config, limits, threads)?;
    let batches = BatchOptions::new(limits.batch).with_seed(recipe.seed());
    let options = course.options(recipe.accumulate.unwrap_or(1) as usize);
    let (steps, files) = (options.steps, learnt.companions.clone());
    let mut run = Run::new(&place.folder, trainer, &train, batches, files, options)?;
    if let Some(valid) = &valid {
        run = run.with_validation(valid, limits.batch)?;
        if course.bleu() > 0 {
            let bleu = texts.bleu(learnt.tokenizer, course.bleu(), limits.target, threads)?;
            let bleu = bleu.with_options(learnt.decoding);
            run = run.with_measure(Box::new(move |parameters| bleu.score(parameters)));
        }
    }
    let done = match place.resumed {
        true => {
            let resumed = run.resume(place.checkpoint.as_deref(), damaged)?;
            // Not before: a training that cannot be resumed so is as it was.
            plan.write(&place.folder)?;
            tell_of(&resumed);
            resumed.steps
        }
        false => 0,
    };
    let mut watcher = Watcher::new(Stop::listen()?, done, steps);
    let ended = run.train(&mut |event| watcher.watch(event));
    watcher.finish();
    finish(&place.folder, &run, ended, watcher.failure)
}

/// What the files beside the weights say.
struct Learnt {
    companions: Companions,
    config: Config,
    tokenizer: Vec<u8>,
    reader: Tokenizer,
    special: SpecialIds,
    /// How the model is decoded; the defaults of an encoder alone.
    decoding: GenerationOptions,
}

impl Learnt {
    fn new(place: &Place, companions: Companions) -> Result<Learnt, Failure> {
        let file = |name: &str| {
            let found = companions.iter().find(|(own, _)| own == name).map(|(_, bytes)| bytes);
            let lacking = || Failure::Message(format!("{}: no {name}", place.folder.display()));
            found.ok_or_else(lacking)
        };
        let config = Config::from_json(file(CONFIG)?)?;
        let tokenizer = file(TOKENIZER)?.clone();
        let reader = Tokenizer::from_bytes(&tokenizer)?;
        let decoding = match config.decoder {
            Some(_) => decoding_options(&companions, &config)?,
            None => GenerationOptions::default(),
        };
        let special = SpecialIds::of_model(&config, &decoding, &reader)?;
        Ok(Learnt { companions, config, tokenizer, reader, special, decoding })
    }
}

fn trainer(
    recipe: &Recipe,
    place: &Place,
    config: &Config,
    limits: Limits,
    threads: usize,
) -> Result<Trainer, Failure> {
    let parameters = folder::first_weights(recipe, place, config)?;
    let network = NetworkOptions::default()
        .with_max_tokens(limits.batch)
        .with_max_length(limits.longest())
        .with_threads(threads);
    Ok(Trainer::new(parameters, &network, trainer_options(recipe, config.d_model)?)?)
}

/// Tells which checkpoints make way.
fn tell_of(resumed: &Resumed) {
    for (path, error) in &resumed.damaged {
        let path = path.display();
        tell(&format!(
            "{path} is passed over: {error}; it is {path}.damaged until it is saved anew"
        ));
    }
    for path in &resumed.later {
        let path = path.display();
        tell(&format!("{path} is of a later step; it is {path}.later until it is saved anew"));
    }
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
        .with_smoothing_kind(recipe.smoothing_kind.unwrap_or(Sharing::All).into())
        .with_dropout(recipe.dropout.unwrap_or(0.1))
        .with_seed(recipe.seed()))
}
