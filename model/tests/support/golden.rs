//! Compares a folder with what a reference implementation recorded for it.
//!
//! What a record has tells what it is of: `pixel_values` of a model of images, `decoder_input_ids` of an
//! encoder–decoder, and so on. Whatever is in it and was not asked for is listed.
#![allow(dead_code, reason = "each test target uses a part")]

#[path = "golden/clips.rs"]
mod clips;
#[path = "golden/comparison.rs"]
mod comparison;
#[path = "golden/decoder.rs"]
mod decoder;
#[path = "golden/encoder.rs"]
mod encoder;
#[path = "golden/generation.rs"]
mod generation;
#[path = "golden/prompts.rs"]
mod prompts;
#[path = "golden/record.rs"]
mod record;
#[path = "golden/seen.rs"]
mod seen;
#[path = "golden/spellings.rs"]
mod spellings;
#[cfg(feature = "train")]
#[path = "golden/training.rs"]
mod training;
#[path = "golden/translator.rs"]
mod translator;
#[path = "golden/vectors.rs"]
mod vectors;

pub(crate) use comparison::Comparison;
use headrow::{Config, Error, Model, Session, SessionOptions};
use record::{Record, json, read};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What became of a folder.
pub(crate) enum Outcome {
    Ok(String),
    Fail(String),
    Skip(String),
}

/// Prints a line per folder of `dir` and a count; gives the number of failures. Panics when there is nothing
/// to compare with: a wrong path must not look like success.
pub(crate) fn run_all(dir: &Path) -> usize {
    let entries =
        std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("golden.json").is_file());
    folders.sort();
    assert!(!folders.is_empty(), "{}: no folder with a golden.json, 0 cases run", dir.display());
    println!();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        match run(&folder) {
            Outcome::Ok(note) => {
                passed += 1;
                println!("{name} ok ({note})");
            }
            Outcome::Fail(why) => {
                failed += 1;
                println!("{name} FAIL ({why})");
            }
            Outcome::Skip(why) => {
                skipped += 1;
                println!("{name} skip ({why})");
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    failed
}

/// Compares one folder, unless this library has no such models.
pub(crate) fn run(folder: &Path) -> Outcome {
    match Config::from_file(folder.join("config.json")) {
        Ok(_) => {}
        Err(Error::Unsupported { field, value, .. }) if field == "model_type" => {
            return Outcome::Skip(format!("model_type {value} is not one this library has"));
        }
        Err(error) => return Outcome::Fail(error.to_string()),
    }
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    if !weights.iter().any(|name| folder.join(name).exists()) {
        return Outcome::Skip("the folder has no weights".to_owned());
    }
    let mut comparison = Comparison::default();
    let result = Model::from_dir(folder)
        .map_err(|error| error.to_string())
        .and_then(|model| compare_model(&Arc::new(model), folder, &mut comparison));
    match result {
        Err(why) => Outcome::Fail(why),
        Ok(()) if !comparison.failures.is_empty() => Outcome::Fail(comparison.failures.join("; ")),
        Ok(()) if comparison.is_empty() => Outcome::Fail("nothing to compare".to_owned()),
        Ok(()) => Outcome::Ok(comparison.note()),
    }
}

/// A model beside what was recorded of it.
pub(crate) struct Case<'a> {
    folder: &'a Path,
    model: &'a Arc<Model>,
    record: Record<'a>,
    /// `golden.json`.
    golden: Value,
}

/// Compares all that the folder's record has and the library computes.
pub(crate) fn compare_model(
    model: &Arc<Model>,
    folder: &Path,
    comparison: &mut Comparison,
) -> Result<(), String> {
    let bytes = read(&folder.join("golden.safetensors"))?;
    let record = Record::open(&bytes)?;
    let golden = json(&folder.join("golden.json"))?;
    let case = Case { folder, model, record, golden };
    let config = model.config();
    match &case.record {
        record if record.has("mel") => case.compare_clips(comparison)?,
        record if record.has("src") => case.compare_vectors(comparison)?,
        record if record.has("pixel_values") => case.compare_images(comparison)?,
        record if record.has("decoder_input_ids") => case.compare_translator(comparison)?,
        record if record.has("p0.ids") => case.compare_prompts(comparison)?,
        _ if case.golden["cases"].is_array() => case.compare_spellings(comparison)?,
        _ if config.encoder.is_none() => case.compare_decoder(comparison)?,
        _ => case.compare_encoder(comparison)?,
    }
    #[cfg(feature = "train")]
    case.compare_training(comparison)?;
    comparison.left.extend(case.record.unused());
    Ok(())
}

impl Case<'_> {
    fn session(&self, options: &SessionOptions) -> Result<Session, String> {
        Session::new(self.model, options).map_err(|error| error.to_string())
    }

    /// The outermost size of a recorded tensor.
    fn width(&self, name: &str) -> Result<usize, String> {
        let (shape, _) = self.record.floats(name)?;
        shape.last().copied().ok_or_else(|| format!("{name} is a number"))
    }
}

/// Options with room for `sequences` of up to `length` tokens each, in passes of up to `tokens`.
fn room(tokens: usize, sequences: usize, length: usize) -> SessionOptions {
    // A page more for each, whatever the pages' size.
    let cache = sequences * (length + 64);
    SessionOptions::default()
        .with_max_tokens(tokens)
        .with_max_sequences(sequences)
        .with_max_length(length)
        .with_cache_tokens(cache)
        .with_source_tokens(sequences * (tokens + 64))
}

/// What the library said about `name`.
fn told<T>(name: &str, result: headrow::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{name}: {error}"))
}
