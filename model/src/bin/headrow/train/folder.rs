//! The folder of a training: what it begins with, and what is there when it goes on.

use super::Args;
use super::course::Course;
use super::recipe::{Objective, Recipe};
use super::shape;
use super::texts::Texts;
use crate::failure::Failure;
use headrow::train::{self, Parameters, SpecialIds, checkpoints};
use headrow::{Config, Tokenizer};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Options of a training, in its folder.
const RUN: &str = "run.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const CONFIG: &str = "config.json";

/// What `run.json` says.
#[derive(Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) recipe: Recipe,
    pub(super) course: Course,
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
    pub(super) fn write(&self, folder: &Path) -> Result<(), Failure> {
        let path = folder.join(RUN);
        write(&path, &serde_json::to_vec_pretty(self).map_err(|error| named(&path, &error))?)
    }
}

/// Where a training stands.
pub(super) struct Place {
    pub(super) folder: PathBuf,
    /// The checkpoint to go on from, when one is named.
    pub(super) checkpoint: Option<PathBuf>,
    pub(super) resumed: bool,
}

/// What a model folder has beside weights.
pub(super) type Companions = Vec<(String, Vec<u8>)>;

/// Where the training is, and by which options.
pub(super) fn plan(args: Args) -> Result<(Place, Plan), Failure> {
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
    let bytes = train::read_file(&path)?;
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
pub(super) fn begin(
    folder: &Path,
    plan: &Plan,
    kind: Objective,
    texts: &Texts,
) -> Result<Companions, Failure> {
    let recipe = &plan.recipe;
    let files = match &recipe.init {
        Some(model) => companions(model)?,
        None => new_files(recipe, kind, texts)?,
    };
    for (name, bytes) in &files {
        let path = folder.join(name);
        let inner = path.parent().unwrap_or(folder);
        fs::create_dir_all(inner).map_err(|error| named(inner, &error))?;
        write(&path, bytes)?;
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

/// The files of a model's folder that a training takes along: all but the README. It tells of weights that change here, their
/// scores for one, and a README in the folder of a training is kept as its user has it.
pub(super) fn companions(folder: &Path) -> Result<Companions, Failure> {
    let mut files = train::companions(folder)?;
    files.retain(|(name, _)| name != "README.md");
    Ok(files)
}

/// Puts a file in its place as a whole.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    Ok(train::replace_file(path, bytes)?)
}

fn named(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Message(format!("{}: {error}", path.display()))
}

/// What is predicted: as the recipe says, or what the model that the training began with is made for.
pub(super) fn kind(recipe: &Recipe, place: &Place) -> Result<Objective, Failure> {
    let Some(model) = &recipe.init else {
        return Ok(recipe.objective.unwrap_or(Objective::Seq2seq));
    };
    let folder = if place.resumed { &place.folder } else { model };
    let config = Config::from_file(folder.join(CONFIG))?;
    Ok(match (&config.encoder, &config.decoder) {
        (Some(_), Some(_)) => Objective::Seq2seq,
        (None, _) => Objective::Causal,
        (Some(_), None) => Objective::Masked,
    })
}

/// The weights that a training begins with. When it goes on, those of a checkpoint have their form; the model that it began
/// with is not needed then.
pub(super) fn first_weights(
    recipe: &Recipe,
    place: &Place,
    config: &Config,
) -> Result<Parameters, Failure> {
    let Some(model) = &recipe.init else {
        return Ok(Parameters::initialise(config, recipe.seed())?);
    };
    let mut refused = None;
    if place.resumed {
        let all = checkpoints(place.folder.join("checkpoints"))?;
        let last = all.into_iter().rev().map(|(_, path)| path);
        for path in place.checkpoint.iter().cloned().chain(last) {
            match Parameters::from_dir(path) {
                Ok(parameters) => return Ok(parameters),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
    }
    match refused {
        Some(error) => Err(error.into()),
        None => Ok(Parameters::from_dir(model)?),
    }
}
