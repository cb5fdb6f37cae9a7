//! `config.json`: read and checked by the rules of its family, and written for this library's own.

use super::READINGS;
use crate::config::{Config, Family, Fields, read_file};
use crate::error::{Error, Result};
use std::path::Path;

/// Largest `config.json` that is read.
const MAX_BYTES: u64 = 16 << 20;

impl Config {
    /// Reads a `config.json`.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Config> {
        let path = path.as_ref();
        let bytes = read_file(path, MAX_BYTES)?;
        Config::parse(&bytes, &path.display().to_string())
    }

    /// Reads the text of a `config.json`.
    pub fn from_json(json: &[u8]) -> Result<Config> {
        Config::parse(json, "config")
    }

    fn parse(json: &[u8], place: &str) -> Result<Config> {
        let config = read_config(&Fields::parse(json, place)?)?;
        config.check(place)?;
        Ok(config)
    }

    /// Ranges of the fields and relations between them, in the words of the family.
    pub(crate) fn check(&self, place: &str) -> Result<()> {
        self.check_fields(place, self.family.reading().field)
    }

    /// The text of a `config.json` that reads as this config again.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for another family than this library's own, whose files others write, and for values that could not be
    /// read again; [`Error::WrongInput`](crate::Error::WrongInput) for inputs that the family does not have.
    pub fn to_json(&self) -> Result<String> {
        if self.family != Family::Paper {
            let problem = format!("a config of the family {} is not written", self.family);
            return Err(Error::config("config", "family", &problem));
        }
        self.check("config")?;
        super::paper::to_json(self)
    }

    /// Name and shape of every tensor that a checkpoint of this config has, in the order in which they are read. Heads
    /// that a checkpoint may have or not are left out.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) when a field is out of its range or there are more layers than any model has.
    pub fn tensors(&self) -> Result<Vec<(String, Vec<usize>)>> {
        self.check_countable()?;
        super::list(self)
    }

    /// [`Config::check`], and that there are no more layers than any model has.
    pub(crate) fn check_countable(&self) -> Result<()> {
        const MOST_LAYERS: usize = 1 << 16;
        self.check("config")?;
        for (_, stack) in self.stacks() {
            if stack.layers > MOST_LAYERS {
                let problem = format!("{} is beyond any model", stack.layers);
                return Err(Error::config("config", "layers", &problem));
            }
        }
        Ok(())
    }
}

/// What a `config.json` says, in our letters.
fn read_config(fields: &Fields<'_>) -> Result<Config> {
    let word = fields.word("model_type", None)?;
    let Some(reading) = READINGS.iter().find(|reading| reading.words.contains(&word.as_str()))
    else {
        let known: Vec<&str> = READINGS.iter().flat_map(|reading| reading.words).copied().collect();
        let hint = format!(" (expected one of {})", known.join(", "));
        return Err(fields.unsupported("model_type", &word, &hint));
    };
    fields.refuse_foreign()?;
    let mut config = (reading.config)(fields, reading.family)?;
    config.architectures = fields.words("architectures")?;
    config.labels = fields.labels()?;
    Ok(config)
}
