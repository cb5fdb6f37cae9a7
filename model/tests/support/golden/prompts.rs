//! A language model's recorded prompts, continuations and perplexities.

use super::comparison::Comparison;
use super::generation::{compare_score, ids_of_each, options};
use super::record::Ragged;
use super::seen::Seen;
use super::{Case, room, told};
use headrow::{Chunk, Output, Session, Side};
use serde_json::{Map, Value, json};

/// The recorded choice between two tokens counts when their logits are so far apart.
const CLEAR: f64 = 1e-3;

/// Tokens of a text that are read at a time.
const PIECE: usize = 64;

impl Case<'_> {
    pub(crate) fn compare_prompts(&self, comparison: &mut Comparison) -> Result<(), String> {
        let prompts = self.golden["prompts"].as_array().cloned().unwrap_or_default();
        for (index, prompt) in prompts.iter().enumerate() {
            self.compare_prompt(comparison, &format!("p{index}"), prompt)?;
        }
        let names = self.record.names().into_iter();
        let texts = names.filter_map(|name| name.strip_prefix("ppl.")?.strip_suffix(".ids"));
        for text in texts {
            self.compare_perplexity(comparison, text)?;
        }
        Ok(())
    }

    fn compare_prompt(
        &self,
        comparison: &mut Comparison,
        name: &str,
        prompt: &Value,
    ) -> Result<(), String> {
        let (_, ids) = self.record.integers(&format!("{name}.ids"))?;
        let last = format!("{name}.last_logits");
        let mut session = self.session(&room(ids.len(), 1, ids.len()))?;
        let mut logits = vec![0.0; self.width(&last)?];
        let mut seen = Seen::new(self.model.config());
        let chunk = [Chunk::new(told(name, session.add())?, &ids)];
        let output = Output::LastLogits;
        told(name, session.extend_observed(&chunk, output, &mut logits, &mut seen))?;
        comparison.relative(&last, &logits, &self.record.floats(&last)?.1);
        let ragged = Ragged { lengths: vec![ids.len()], padded: ids.len() };
        let states = format!("{name}.hidden_states.");
        let hidden = |layer| seen.hidden(Side::Decoder, layer);
        self.compare_states(comparison, &states, &ragged, hidden)?;
        self.compare_greedy(comparison, name, prompt, &ids)?;
        self.compare_beams(comparison, name, prompt, &ids)
    }

    /// The greedy continuation, up to the first choice that was a close one.
    fn compare_greedy(
        &self,
        comparison: &mut Comparison,
        name: &str,
        prompt: &Value,
        ids: &[u32],
    ) -> Result<(), String> {
        let (_, expected) = self.record.integers(&format!("{name}.greedy"))?;
        let gaps = prompt["gaps"].as_array().into_iter().flatten().filter_map(Value::as_f64);
        let clear = gaps.take_while(|&gap| gap >= CLEAR).count().min(expected.len());
        let generated =
            self.continue_prompt(name, ids, [("max_new_tokens", json!(expected.len()))])?;
        let actual = &generated[0].0;
        comparison.count_generated();
        comparison.require(actual.get(..clear) == Some(&expected[..clear]), || {
            format!("{name}.greedy: {actual:?}, expected {expected:?}")
        });
        match clear == expected.len() {
            // Where no choice is close the whole continuation is the same, its end too.
            true => comparison.require(actual.len() == clear, || {
                format!("{name}.greedy: {} tokens, expected {clear}", actual.len())
            }),
            false => comparison.remarks.push(format!("{name}.greedy: {clear} clear choices")),
        }
        Ok(())
    }

    fn compare_beams(
        &self,
        comparison: &mut Comparison,
        name: &str,
        prompt: &Value,
        ids: &[u32],
    ) -> Result<(), String> {
        let size = |key: &String| key.strip_prefix("beam")?.parse::<usize>().ok();
        let searches = prompt.as_object().into_iter().flatten();
        for (size, (key, rows)) in searches.filter_map(|entry| Some((size(entry.0)?, entry))) {
            let what = format!("{name}.{key}");
            let sequences = ids_of_each(rows);
            // Prompt and continuation; one at least was not ended before the limit.
            let longest = sequences.iter().map(Vec::len).max().unwrap_or_default();
            let expected: Vec<&[u32]> =
                sequences.iter().filter_map(|row| row.strip_prefix(ids)).collect();
            let settings = [
                ("max_new_tokens", json!(longest.saturating_sub(ids.len()))),
                ("num_beams", json!(size)),
                ("num_return_sequences", json!(sequences.len())),
            ];
            let generated = self.continue_prompt(&what, ids, settings)?;
            let same =
                generated.iter().map(|(tokens, _)| tokens.as_slice()).eq(expected.iter().copied());
            comparison.require(same, || format!("{what}: {generated:?}, expected {expected:?}"));
            let scores = prompt[format!("{key}_scores")].as_array().into_iter().flatten();
            for ((_, score), expected) in generated.iter().zip(scores) {
                comparison.count_generated();
                compare_score(comparison, &what, *score, expected, 0.0);
            }
        }
        Ok(())
    }

    /// Tokens and scores of the answers to one prompt.
    fn continue_prompt<const N: usize>(
        &self,
        name: &str,
        ids: &[u32],
        settings: [(&str, Value); N],
    ) -> Result<Vec<(Vec<u32>, f64)>, String> {
        let mut fields: Map<String, Value> = self.generation_config()?;
        fields.insert("eos_token_id".to_owned(), json!(self.model.config().special.end));
        fields.extend(settings.map(|(field, value)| (field.to_owned(), value)));
        let options = told(name, options(&fields))?;
        let generated = self.generate(&[ids], &options).map_err(|e| format!("{name}: {e}"))?;
        let hypotheses = generated.into_iter().flat_map(|request| request.hypotheses);
        Ok(hypotheses.map(|hypothesis| (hypothesis.tokens, hypothesis.score)).collect())
    }

    /// −ln p of each token of a text after those before it, and their mean.
    fn compare_perplexity(&self, comparison: &mut Comparison, text: &str) -> Result<(), String> {
        let name = format!("ppl.{text}.nll");
        let (_, ids) = self.record.integers(&format!("ppl.{text}.ids"))?;
        let (_, expected) = self.record.floats(&name)?;
        let mut session = self.session(&room(PIECE, 1, ids.len()))?;
        let actual = surprises(&mut session, &ids, self.model.config().vocabulary())
            .map_err(|error| format!("{name}: {error}"))?;
        let single: Vec<f32> = actual.iter().map(|&x| x as f32).collect();
        comparison.relative(&name, &single, &expected);
        if let Some(expected) = self.golden[format!("ppl_{text}")].as_f64() {
            let mean = actual.iter().sum::<f64>() / actual.len() as f64;
            let perplexity = mean.exp();
            comparison.require((perplexity / expected - 1.0).abs() < 1e-5, || {
                format!("perplexity of {text}: {perplexity}, expected {expected}")
            });
        }
        Ok(())
    }
}

/// −ln p(x_t | x_<t) for t = 1, 2, …, in f64 from the logits.
fn surprises(session: &mut Session, ids: &[u32], vocabulary: usize) -> headrow::Result<Vec<f64>> {
    let sequence = session.add()?;
    let mut logits = vec![0.0; PIECE * vocabulary];
    let mut surprises = Vec::with_capacity(ids.len());
    for (piece, next) in ids.chunks(PIECE).zip(ids[1..].chunks(PIECE)) {
        let logits = &mut logits[..piece.len() * vocabulary];
        session.extend(&[Chunk::new(sequence, piece)], Output::AllLogits, logits)?;
        for (row, &next) in logits.chunks(vocabulary).zip(next) {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|&x| f64::from(x - largest).exp()).sum();
            surprises.push(sum.ln() - f64::from(row[next as usize] - largest));
        }
    }
    Ok(surprises)
}
