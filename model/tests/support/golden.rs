//! Compares a folder with what a reference implementation recorded for it.
#![allow(dead_code, reason = "each test target uses a part")]

use headrow::{Batch, Head, Mat, Model, SentenceEncoder, Session, SessionOptions, Side};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest error allowed, relative to the largest recorded value.
const TOLERANCE: f64 = 2e-5;

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

/// Compares one folder, unless its kind of model comes later.
pub(crate) fn run(folder: &Path) -> Outcome {
    let model_type = match json(&folder.join("config.json")) {
        Ok(config) => config["model_type"].as_str().unwrap_or("unnamed").to_owned(),
        Err(why) => return Outcome::Fail(why),
    };
    match model_type.as_str() {
        "bert" | "roberta" | "xlm-roberta" | "camembert" | "distilbert" => {}
        "albert" | "vit" => return Outcome::Skip("later: other encoders".to_owned()),
        "gpt2"
        | "gpt_neox"
        | "opt"
        | "llama"
        | "mistral"
        | "qwen2"
        | "t5"
        | "marian"
        | "bart"
        | "mbart"
        | "m2m_100"
        | "opennmt-transformer"
        | "whisper"
        | "torch.nn.Transformer" => {
            return Outcome::Skip("later: decoders".to_owned());
        }
        other => return Outcome::Skip(format!("model_type {other} is not one this library has")),
    }
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    if !weights.iter().any(|name| folder.join(name).exists()) {
        return Outcome::Skip("the folder has no weights".to_owned());
    }
    let mut comparison = Comparison::default();
    let result = Model::from_dir(folder)
        .map_err(|error| error.to_string())
        .and_then(|model| compare_model(&Arc::new(model), folder, &mut comparison))
        .and_then(|()| compare_sentences(folder, &mut comparison));
    match result {
        Err(why) => Outcome::Fail(why),
        Ok(()) if !comparison.failures.is_empty() => Outcome::Fail(comparison.failures.join("; ")),
        Ok(()) if comparison.compared == 0 => Outcome::Fail("nothing to compare".to_owned()),
        Ok(()) => Outcome::Ok(comparison.note()),
    }
}

/// What was compared so far.
#[derive(Default)]
pub(crate) struct Comparison {
    compared: usize,
    worst: f64,
    worst_name: String,
    pub(crate) failures: Vec<String>,
    /// Recorded, and not computed by this library.
    left: Vec<String>,
}

impl Comparison {
    /// Compares with an error relative to the largest expected value.
    fn relative(&mut self, name: &str, actual: &[f32], expected: &[f32]) {
        let largest = expected.iter().fold(0.0f64, |max, &x| max.max(f64::from(x).abs()));
        self.scaled(name, actual, expected, largest.max(f64::MIN_POSITIVE));
    }

    fn scaled(&mut self, name: &str, actual: &[f32], expected: &[f32], unit: f64) {
        self.compared += 1;
        if actual.len() != expected.len() {
            let why = format!("{name}: {} values, expected {}", actual.len(), expected.len());
            return self.failures.push(why);
        }
        let errors =
            actual.iter().zip(expected).map(|(&a, &e)| (f64::from(a) - f64::from(e)).abs());
        // NaN must count as the largest error, which `max` alone would drop.
        let error = errors.fold(0.0, |max: f64, e| if e <= max { max } else { e }) / unit;
        if error > self.worst || error.is_nan() {
            self.worst = error;
            self.worst_name = name.to_owned();
        }
        if error.is_nan() || error > TOLERANCE {
            self.failures.push(format!("{name}: error {error:.1e}"));
        }
    }

    fn require(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.failures.push(why());
        }
    }

    fn note(&self) -> String {
        let Comparison { compared, worst, worst_name, left, .. } = self;
        let mut note = format!("{compared} tensors, largest error {worst:.1e} in {worst_name}");
        if !left.is_empty() {
            note += &format!("; not compared: {}", left.join(", "));
        }
        note
    }
}

/// The sequences of a recorded batch without their padding.
struct Sequences {
    ids: Vec<u32>,
    token_types: Option<Vec<u32>>,
    lengths: Vec<usize>,
    /// Tokens of a padded row.
    padded: usize,
}

impl Sequences {
    fn read(record: &Record<'_>) -> Result<Sequences, String> {
        let (shape, ids) = record.integers("input_ids")?;
        let &[rows, padded] = &shape[..] else {
            return Err(format!("input_ids of shape {shape:?}"));
        };
        let mask = match record.has("attention_mask") {
            true => record.integers("attention_mask")?.1,
            false => vec![1; rows * padded],
        };
        let types = match record.has("token_type_ids") {
            true => Some(record.integers("token_type_ids")?.1),
            false => None,
        };
        let mut lengths = Vec::new();
        for row in mask.chunks(padded.max(1)) {
            let length = row.iter().take_while(|&&bit| bit != 0).count();
            if row[length..].iter().any(|&bit| bit != 0) {
                return Err("an attention_mask with real tokens behind padding".to_owned());
            }
            lengths.push(length);
        }
        let mut sequences = Sequences { ids: Vec::new(), token_types: None, lengths, padded };
        sequences.ids = sequences.real(&ids, 1);
        sequences.token_types = types.map(|types| sequences.real(&types, 1));
        Ok(sequences)
    }

    /// The rows of real tokens of a `batch × padded × width` tensor.
    fn real<T: Copy>(&self, values: &[T], width: usize) -> Vec<T> {
        let rows = values.chunks(self.padded * width).zip(&self.lengths);
        rows.flat_map(|(row, length)| row[..length * width].iter().copied()).collect()
    }

    fn batch(&self) -> Batch<'_> {
        let batch = Batch::ragged(&self.ids, &self.lengths);
        match &self.token_types {
            Some(types) => batch.with_token_types(types),
            None => batch,
        }
    }

    /// Sequence `index` by itself.
    fn single(&self, index: usize) -> Batch<'_> {
        let start: usize = self.lengths[..index].iter().sum();
        let range = start..start + self.lengths[index];
        let batch = Batch::one(&self.ids[range.clone()]);
        match &self.token_types {
            Some(types) => batch.with_token_types(&types[range]),
            None => batch,
        }
    }
}

/// Hidden states of every layer, heads, and the sequences alone.
pub(crate) fn compare_model(
    model: &Arc<Model>,
    folder: &Path,
    comparison: &mut Comparison,
) -> Result<(), String> {
    let bytes = read(&folder.join("golden.safetensors"))?;
    let record = Record::open(&bytes)?;
    let sequences = Sequences::read(&record)?;
    let mut run = Run::new(model, &sequences)?;
    for name in record.names() {
        let parts: Vec<&str> = name.split('.').collect();
        match parts[..] {
            ["input_ids" | "attention_mask" | "token_type_ids"] => {}
            // The sentences' part.
            ["embedding" | "cosine"] => {}
            ["hidden_states", layer] => {
                let layer: usize = layer.parse().map_err(|_| format!("{name}: no layer"))?;
                let expected = sequences.real(&record.floats(name)?.1, model.config().d_model);
                let actual = run.states.get(layer).cloned().unwrap_or_default();
                comparison.relative(name, &actual, &expected);
            }
            ["last_hidden_state"] => {
                let expected = sequences.real(&record.floats(name)?.1, model.config().d_model);
                comparison.relative(name, run.states.last().unwrap(), &expected);
            }
            [single, "last"] if single.starts_with("single") => {
                let index = single["single".len()..].parse::<usize>().ok();
                let index = index.filter(|&index| index < sequences.lengths.len());
                let index = index.ok_or_else(|| format!("{name}: no such sequence"))?;
                let actual = run.alone(&sequences, index)?;
                comparison.relative(name, &actual, &record.floats(name)?.1);
                let start: usize = sequences.lengths[..index].iter().sum();
                let start = start * model.config().d_model;
                let in_batch = &run.states.last().unwrap()[start..start + actual.len()];
                comparison.require(same_bits(&actual, in_batch), || {
                    format!("{name}: other bits alone than in the batch")
                });
            }
            ["pooler_output"] => run.head(name, Head::Pooler, &record, &sequences, comparison)?,
            ["prediction_logits"] => {
                run.head(name, Head::MaskedLm, &record, &sequences, comparison)?;
            }
            ["seq_relationship_logits"] => {
                run.head(name, Head::NextSentence, &record, &sequences, comparison)?;
            }
            ["logits"] => {
                let per_token = record.floats(name)?.0.len() == 3;
                let head = match per_token {
                    true if model.has(Head::MaskedLm) => Head::MaskedLm,
                    true => Head::TokenTagger,
                    false if model.has(Head::SequenceClassifier) => Head::SequenceClassifier,
                    false => Head::NextSentence,
                };
                run.head(name, head, &record, &sequences, comparison)?;
            }
            _ => comparison.left.push(name.to_owned()),
        }
    }
    Ok(())
}

/// One model over one recorded batch.
struct Run {
    session: Session,
    /// z₀ … z_N of the whole batch.
    states: Vec<Vec<f32>>,
}

impl Run {
    fn new(model: &Arc<Model>, sequences: &Sequences) -> Result<Run, String> {
        let options = SessionOptions::default()
            .with_max_tokens(sequences.ids.len())
            .with_max_sequences(sequences.lengths.len());
        let mut session = Session::new(model, &options).map_err(|error| error.to_string())?;
        let mut states: Vec<Vec<f32>> = Vec::new();
        let mut hidden = vec![0.0; sequences.ids.len() * model.config().d_model];
        session
            .encode_observed(
                &sequences.batch(),
                &mut hidden,
                &mut |_: Side, layer, state: Mat<'_>| {
                    assert_eq!(layer, states.len());
                    states.push((0..state.rows()).flat_map(|i| state.row(i)).copied().collect());
                },
            )
            .map_err(|error| error.to_string())?;
        Ok(Run { session, states })
    }

    /// The last hidden states of one sequence by itself.
    fn alone(&mut self, sequences: &Sequences, index: usize) -> Result<Vec<f32>, String> {
        let d_model = self.session.model().config().d_model;
        let mut hidden = vec![0.0; sequences.lengths[index] * d_model];
        let batch = sequences.single(index);
        self.session.encode(&batch, &mut hidden).map_err(|error| error.to_string())?;
        Ok(hidden)
    }

    fn head(
        &mut self,
        name: &str,
        head: Head,
        record: &Record<'_>,
        sequences: &Sequences,
        comparison: &mut Comparison,
    ) -> Result<(), String> {
        let (shape, expected) = record.floats(name)?;
        let (tokens, count) = (sequences.ids.len(), sequences.lengths.len());
        let shape_of = self.session.model().output_shape(head, tokens, count);
        let (rows, cols) = shape_of.map_err(|error| format!("{name}: {error}"))?;
        let expected = match shape.len() {
            3 => sequences.real(&expected, shape[2]),
            _ => expected,
        };
        let mut actual = vec![0.0; rows * cols];
        let result = self.session.predict(&sequences.batch(), head, &mut actual);
        result.map_err(|error| format!("{name}: {error}"))?;
        comparison.relative(name, &actual, &expected);
        Ok(())
    }
}

/// Recorded sentences with their vectors: from text to vector and all between.
fn compare_sentences(folder: &Path, comparison: &mut Comparison) -> Result<(), String> {
    let golden = json(&folder.join("golden.json"))?;
    let Some(sentences) = golden["sentences"].as_array() else { return Ok(()) };
    let sentences: Vec<&str> = sentences.iter().filter_map(Value::as_str).collect();
    let bytes = read(&folder.join("golden.safetensors"))?;
    let record = Record::open(&bytes)?;
    let encoder = SentenceEncoder::from_dir(folder).map_err(|error| error.to_string())?;
    let vectors = encoder.embed(&sentences).map_err(|error| error.to_string())?;
    if record.has("input_ids") {
        let expected = Sequences::read(&record)?.ids;
        let mut ids = Vec::new();
        for &sentence in &sentences {
            ids.extend(encoder.tokenize(sentence).map_err(|error| error.to_string())?.ids);
        }
        comparison.require(ids == expected, || "input_ids: the tokens differ".to_owned());
    }
    let (_, expected) = record.floats("embedding")?;
    comparison.scaled("embedding", &vectors.concat(), &expected, 1.0);
    for (i, (a, e)) in vectors.iter().zip(expected.chunks(encoder.dimension())).enumerate() {
        let cosine = cosine(a, e);
        comparison.require(cosine >= 0.999_999, || format!("sentence {i}: cosine {cosine}"));
    }
    if record.has("cosine") {
        let pairs = vectors.iter().flat_map(|a| vectors.iter().map(|b| cosine(a, b) as f32));
        let actual: Vec<f32> = pairs.collect();
        comparison.scaled("cosine", &actual, &record.floats("cosine")?.1, 1.0);
    }
    Ok(())
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// The tensors of a `golden.safetensors`.
struct Record<'a>(SafeTensors<'a>);

impl<'a> Record<'a> {
    fn open(bytes: &'a [u8]) -> Result<Record<'a>, String> {
        SafeTensors::deserialize(bytes).map(Record).map_err(|error| format!("golden: {error}"))
    }

    fn names(&self) -> Vec<&str> {
        let mut names = self.0.names();
        names.sort_unstable();
        names
    }

    fn has(&self, name: &str) -> bool {
        self.0.tensor(name).is_ok()
    }

    /// Shape and values; f64 records are rounded.
    fn floats(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), String> {
        let tensor = self.0.tensor(name).map_err(|error| error.to_string())?;
        let data = tensor.data();
        let values = match tensor.dtype() {
            Dtype::F32 => data.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Dtype::F64 => {
                data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b) as f32).collect()
            }
            other => return Err(format!("{name} of type {other}")),
        };
        Ok((tensor.shape().to_vec(), values))
    }

    fn integers(&self, name: &str) -> Result<(Vec<usize>, Vec<u32>), String> {
        let tensor = self.0.tensor(name).map_err(|error| error.to_string())?;
        let data = tensor.data();
        let values = match tensor.dtype() {
            Dtype::I64 => {
                data.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b) as u32).collect()
            }
            Dtype::I32 => {
                data.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b) as u32).collect()
            }
            Dtype::U8 | Dtype::BOOL => data.iter().map(|&b| u32::from(b)).collect(),
            other => return Err(format!("{name} of type {other}")),
        };
        Ok((tensor.shape().to_vec(), values))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn json(path: &Path) -> Result<Value, String> {
    serde_json::from_slice(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))
}
