//! Recorded searches: the same ids and scores from the same settings.

use super::comparison::Comparison;
use super::record::{Tokens, json};
use super::{Case, room, told};
use headrow::generate::{Generated, GenerationOptions, Strategy};
use headrow::{Batch, Session};
use serde_json::{Map, Value, json};

/// Largest error of a score.
const SCORE: f64 = 1e-4;

/// One entry of `generation` in `golden.json`.
struct Search<'a> {
    name: String,
    entry: &'a Value,
    options: GenerationOptions,
    /// Which sequences it begins with.
    rows: Vec<usize>,
    sequences: Vec<Vec<u32>>,
}

impl Case<'_> {
    /// Every recorded setting: prompt k is sequence k alone, the one behind the last the whole batch.
    pub(crate) fn compare_generated(
        &self,
        comparison: &mut Comparison,
        prompts: &Tokens,
    ) -> Result<(), String> {
        let Some(entries) = self.golden["generation"].as_array() else { return Ok(()) };
        let mut left_padded = Vec::new();
        if self.record.has("gen_batch.input_ids") {
            left_padded = self.left_padded()?;
        }
        for entry in entries {
            let search = self.search(entry, prompts.ragged.lengths.len())?;
            let whole = search.rows.len() > 1 && !left_padded.is_empty();
            let (prompts, width) = match whole {
                true => (left_padded.iter().map(Vec::as_slice).collect(), self.batch_width()?),
                false => {
                    let rows: Vec<&[u32]> =
                        search.rows.iter().map(|&row| prompts.row(row)).collect();
                    let width = rows.iter().map(|row| row.len()).max().unwrap_or_default();
                    (rows, width)
                }
            };
            self.compare_search(comparison, &search, &prompts, width)?;
        }
        Ok(())
    }

    /// The prompts of the batch that was recorded with padding in front.
    fn left_padded(&self) -> Result<Vec<Vec<u32>>, String> {
        let (_, ids) = self.record.integers("gen_batch.input_ids")?;
        let (_, mask) = self.record.integers("gen_batch.attention_mask")?;
        let width = self.batch_width()?;
        let rows = ids.chunks(width).zip(mask.chunks(width));
        let real = |(ids, mask): (&[u32], &[u32])| {
            ids.iter().zip(mask).filter(|&(_, &bit)| bit != 0).map(|(&id, _)| id).collect()
        };
        Ok(rows.map(real).collect())
    }

    fn batch_width(&self) -> Result<usize, String> {
        let (shape, _) = self.record.integers("gen_batch.input_ids")?;
        Ok(shape.last().copied().unwrap_or_default().max(1))
    }

    fn search<'a>(&self, entry: &'a Value, count: usize) -> Result<Search<'a>, String> {
        let (prompt, tag) = (&entry["prompt"], entry["tag"].as_str().unwrap_or_default());
        let name = format!("{tag} of prompt {prompt}");
        let rows = match prompt.as_u64() {
            Some(row) if (row as usize) < count => vec![row as usize],
            Some(row) if row as usize == count => (0..count).collect(),
            _ => return Err(format!("{name}: no such prompt")),
        };
        let sequences: Vec<Vec<u32>> = ids_of_each(&entry["sequences"]);
        if sequences.is_empty() || !sequences.len().is_multiple_of(rows.len()) {
            return Err(format!("{name}: {} sequences", sequences.len()));
        }
        let mut settings = self.generation_config()?;
        settings.extend(entry["params"].as_object().cloned().unwrap_or_default());
        settings.insert("max_new_tokens".to_owned(), entry["max_new_tokens"].clone());
        settings.insert("eos_token_id".to_owned(), entry["eos"].clone());
        settings.insert("num_return_sequences".to_owned(), json!(sequences.len() / rows.len()));
        let options = told(&name, options(&settings))?;
        Ok(Search { name, entry, options, rows, sequences })
    }

    /// The fields of the folder's `generation_config.json`, if there is one.
    pub(crate) fn generation_config(&self) -> Result<Map<String, Value>, String> {
        let path = self.folder.join("generation_config.json");
        match path.exists() {
            true => json(&path).map(|value| value.as_object().cloned().unwrap_or_default()),
            false => Ok(Map::new()),
        }
    }

    fn compare_search(
        &self,
        comparison: &mut Comparison,
        search: &Search<'_>,
        prompts: &[&[u32]],
        width: usize,
    ) -> Result<(), String> {
        let Search { name, entry, options, sequences, .. } = search;
        let generated = self.generate(prompts, options).map_err(|e| format!("{name}: {e}"))?;
        let begun = match self.model.config().encoder {
            // Recorded with what they began with.
            None => width,
            Some(_) => options.decoder_prompt.len().max(1),
        };
        let hypotheses: Vec<_> = generated.iter().flat_map(|request| &request.hypotheses).collect();
        let expected: Vec<&[u32]> = sequences
            .iter()
            .map(|row| until_stop(row.get(begun..).unwrap_or_default(), &options.stop_ids))
            .collect();
        let same_ids = hypotheses.iter().map(|h| h.tokens.as_slice()).eq(expected.iter().copied());
        hypotheses.iter().for_each(|_| comparison.count_generated());
        if !same_ids && entry["f32_same_ids"] == json!(false) {
            comparison.remarks.push(format!("{name}: other ids, as in the reference's f32"));
            return Ok(());
        }
        comparison.require(same_ids, || {
            let actual: Vec<_> = hypotheses.iter().map(|h| &h.tokens).collect();
            format!("{name}: {actual:?}, expected {expected:?}")
        });
        if let (true, Some(scores)) = (same_ids, entry["sequences_scores"].as_array()) {
            for (hypothesis, score) in hypotheses.iter().zip(scores) {
                compare_score(comparison, name, hypothesis.score, score, 0.0);
            }
        }
        Ok(())
    }

    /// Continues prompts, or decodes sources, in a session made for them.
    pub(crate) fn generate(
        &self,
        prompts: &[&[u32]],
        options: &GenerationOptions,
    ) -> Result<Vec<Generated>, String> {
        let beams = match &options.strategy {
            Strategy::Beam(beam) => beam.size,
            _ => 1,
        };
        let (ids, lengths) = (prompts.concat(), prompts.iter().map(|ids| ids.len()));
        let lengths: Vec<usize> = lengths.collect();
        let longest = lengths.iter().max().copied().unwrap_or_default();
        let new = options.max_new_tokens.unwrap_or(0);
        // Sources wait beside the sequences that are searched; a beam is forked before its old rows go.
        let sequences = prompts.len() + 2 * beams;
        let length = longest + new + 1;
        let mut session: Session =
            self.session(&room(ids.len().max(sequences), sequences, length))?;
        let generated = match self.model.config().encoder {
            None => session.generate(prompts, options, &mut ()),
            Some(_) => session.generate_from(&Batch::ragged(&ids, &lengths), options, &mut ()),
        };
        generated.map_err(|error| error.to_string())
    }
}

/// Options from fields of a `generation_config.json`.
pub(crate) fn options(settings: &Map<String, Value>) -> headrow::Result<GenerationOptions> {
    let bytes = Value::Object(settings.clone()).to_string().into_bytes();
    GenerationOptions::from_json("golden.json", &bytes)
}

/// A score that may be off by `missed`, what the record itself is off by, and no more than [`SCORE`].
pub(crate) fn compare_score(
    comparison: &mut Comparison,
    name: &str,
    actual: f64,
    expected: &Value,
    missed: f64,
) {
    let error = (actual - expected.as_f64().unwrap_or(f64::NAN)).abs();
    let near = error <= SCORE + missed;
    comparison.require(near, || format!("{name}: score {actual}, expected {expected}"));
}

/// A list of lists of ids.
pub(crate) fn ids_of_each(value: &Value) -> Vec<Vec<u32>> {
    value.as_array().into_iter().flatten().map(ids_of).collect()
}

pub(crate) fn ids_of(value: &Value) -> Vec<u32> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|id| id as u32).collect()
}

/// A recorded sequence without the padding behind its stop id.
fn until_stop<'a>(ids: &'a [u32], stops: &[u32]) -> &'a [u32] {
    let stop = ids.iter().position(|id| stops.contains(id));
    stop.map_or(ids, |stop| &ids[..=stop])
}
