//! What happened in a training, line by line.

use super::files::replace_file;
use crate::error::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// A line of `metrics.jsonl`. Losses are means per predicted token, in nats. What is not finite, as a mean over no tokens, is
/// `null` there and NaN here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LogLine {
    /// The steps since the last such line, or since the beginning.
    Train(TrainLine),
    /// What the weights after a step do on validation data.
    Validation(ValidationLine),
}

/// Means over some steps, the last of which is named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TrainLine {
    /// The last of the steps, counted from 1.
    pub step: u64,
    /// Passes over the data that are complete.
    pub epoch: u64,
    /// The loss that is trained on: with label smoothing.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// Without smoothing: −ln p of the label.
    #[serde(deserialize_with = "number")]
    pub nll: f64,
    /// The part of the labels that had the highest score.
    #[serde(deserialize_with = "number")]
    pub accuracy: f64,
    /// Predicted tokens of all steps so far.
    pub tokens: u64,
    /// The rate of learning at the step.
    pub rate: f64,
    /// The norm of the mean gradient of the step, before clipping.
    #[serde(deserialize_with = "number")]
    pub norm: f64,
    /// Predicted tokens in a second of training.
    #[serde(deserialize_with = "number")]
    pub tokens_per_second: f64,
    /// Seconds of training so far.
    pub seconds: f64,
}

/// Measures on validation data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ValidationLine {
    /// The step whose weights are measured.
    pub step: u64,
    /// As that of training, with label smoothing.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// Without smoothing.
    #[serde(deserialize_with = "number")]
    pub nll: f64,
    /// exp of `nll`; the end of a sequence counts as a token.
    #[serde(deserialize_with = "number")]
    pub perplexity: f64,
    /// The part of the labels that had the highest score.
    #[serde(deserialize_with = "number")]
    pub accuracy: f64,
    /// Corpus BLEU of greedy answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bleu: Option<f64>,
    /// Seconds of training so far.
    pub seconds: f64,
}

impl LogLine {
    /// The step that the line is about.
    pub fn step(&self) -> u64 {
        match self {
            LogLine::Train(record) => record.step,
            LogLine::Validation(record) => record.step,
        }
    }
}

/// A file of [`LogLine`]s that grows.
#[derive(Debug)]
pub struct MetricsLog {
    file: File,
    path: PathBuf,
}

impl MetricsLog {
    /// Opens a log and cuts it back to what precedes and includes step `step`, at which training goes on: 0 for an empty
    /// log. A line that was cut off when the process was stopped goes too.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::File`] when there is something else than records, which is left alone.
    pub fn open(path: impl AsRef<Path>, step: u64) -> Result<MetricsLog> {
        let path = path.as_ref();
        let mut kept = String::new();
        for record in MetricsLog::read(path)?.iter().filter(|record| record.step() <= step) {
            kept += &line(record);
        }
        replace_file(path, kept.as_bytes())?;
        let file = OpenOptions::new().append(true).open(path).map_err(Error::io(path))?;
        Ok(MetricsLog { file, path: path.to_owned() })
    }

    /// Adds a record; it is with the system when this returns.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn add(&mut self, record: &LogLine) -> Result<()> {
        self.file.write_all(line(record).as_bytes()).map_err(Error::io(&self.path))
    }

    /// The whole records of a log; none where there is no file.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::File`] for a line that is none, with its number.
    pub fn read(path: impl AsRef<Path>) -> Result<Vec<LogLine>> {
        let path = path.as_ref();
        if path.symlink_metadata().is_err() {
            return Ok(Vec::new());
        }
        crate::config::regular_file(path)?;
        let mut reader = BufReader::new(File::open(path).map_err(Error::io(path))?);
        let (mut records, mut line) = (Vec::new(), Vec::new());
        loop {
            line.clear();
            reader.read_until(b'\n', &mut line).map_err(Error::io(path))?;
            let Some(whole) = line.strip_suffix(b"\n") else { return Ok(records) };
            let record = serde_json::from_slice(whole).map_err(|error| {
                let problem = format!("line {}: no record: {error}", records.len() + 1);
                Error::file(path.display(), problem)
            })?;
            records.push(record);
        }
    }
}

fn number<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(f64::NAN))
}

fn line(record: &LogLine) -> String {
    // Numbers and words, which always have a form in JSON.
    let json = serde_json::to_string(record).unwrap_or_default();
    json + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn train(step: u64, loss: f64) -> LogLine {
        LogLine::Train(TrainLine { step, loss, ..TrainLine::default() })
    }

    fn validation(step: u64) -> LogLine {
        let bleu = (step > 10).then_some(27.3);
        LogLine::Validation(ValidationLine { step, bleu, ..ValidationLine::default() })
    }

    #[test]
    fn a_log_is_cut_back_to_the_step_that_goes_on() {
        let path = std::env::temp_dir().join(format!("headrow-log-{}.jsonl", std::process::id()));
        let _ = fs::remove_file(&path);
        let all = [
            train(5, 0.1 + 0.2),
            train(10, 1.0 / 3.0),
            validation(10),
            train(15, 2.0),
            validation(15),
        ];
        let mut log = MetricsLog::open(&path, 0).unwrap();
        all.iter().for_each(|record| log.add(record).unwrap());
        assert_eq!(MetricsLog::read(&path).unwrap(), all);
        // Stopped in the middle of a line.
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"kind\":\"train\",\"st");
        fs::write(&path, &text).unwrap();
        assert_eq!(MetricsLog::read(&path).unwrap(), all);
        let mut log = MetricsLog::open(&path, 10).unwrap();
        assert_eq!(MetricsLog::read(&path).unwrap(), all[..3]);
        log.add(&all[3]).unwrap();
        assert_eq!(MetricsLog::read(&path).unwrap(), all[..4]);
        assert!(text.starts_with(&fs::read_to_string(&path).unwrap()));
        drop(MetricsLog::open(&path, 0).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_not_finite_is_null() {
        let text = line(&train(3, f64::INFINITY));
        assert!(text.contains("\"loss\":null"), "{text}");
        let LogLine::Train(read) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        assert!(read.loss.is_nan() && read.step == 3);
        assert_eq!(line(&LogLine::Train(read)), text);
        assert!(serde_json::from_str::<LogLine>(&text.replace("null", "\"much\"")).is_err());
    }

    #[test]
    fn what_is_no_log_is_left_alone() {
        let path = std::env::temp_dir().join(format!("headrow-no-log-{}", std::process::id()));
        let text = format!("{}shopping list\n", line(&train(1, 1.0)));
        fs::write(&path, &text).unwrap();
        let error = MetricsLog::open(&path, 9).unwrap_err().to_string();
        assert!(error.contains("line 2: no record"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        fs::remove_file(path).unwrap();
    }
}
