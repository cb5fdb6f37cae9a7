//! A translator of letters: recorded n-best lists at several beams and length penalties.

use super::comparison::Comparison;
use super::generation::{compare_score, ids_of};
use super::record::{Ragged, read};
use super::{Case, room, told};
use headrow::generate::{Beam, EarlyStopping, GenerationOptions, Hypothesis, LengthPenalty};
use headrow::{Batch, Chunk, Output, Side};
use serde_json::Value;

/// Most letters of an answer.
const LONGEST: usize = 64;

impl Case<'_> {
    pub(crate) fn compare_spellings(&self, comparison: &mut Comparison) -> Result<(), String> {
        let bytes = read(&self.folder.join("target_vocabulary.txt"))?;
        let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
        let letters: Vec<&str> = text.lines().collect();
        let cases = self.golden["cases"].as_array().cloned().unwrap_or_default();
        for (index, case) in cases.iter().enumerate() {
            let source = ids_of(&case["src_ids"]);
            let name = index.to_string();
            self.compare_source(comparison, &name, &source)?;
            let searches = case.as_object().into_iter().flatten();
            for (key, expected) in searches.filter(|(key, _)| key.starts_with("beam")) {
                let what = format!("{name}.{key}");
                let (size, alpha) = search(key).ok_or_else(|| format!("{what}: no search"))?;
                let answers = self.answers(&what, (size, alpha), &source)?;
                let missed = (case["err_vs_ct2"].as_f64().unwrap_or(0.0), alpha);
                compare_answers(comparison, &what, &answers, expected, missed, &letters);
                if size == 1 {
                    self.compare_answer(comparison, &name, &source, &answers[0])?;
                    let score = &case["torch_f64_score"];
                    compare_mean(comparison, &name, &answers[0], score);
                }
            }
        }
        Ok(())
    }

    fn compare_source(
        &self,
        comparison: &mut Comparison,
        name: &str,
        source: &[u32],
    ) -> Result<(), String> {
        let states = format!("{name}.enc.");
        let ragged = Ragged { lengths: vec![source.len()], padded: source.len() };
        let mut session = self.session(&room(source.len(), 1, 1))?;
        let encoded = self.encode(&mut session, &Batch::one(source), &ragged)?;
        let state = |layer| encoded.state(Side::Encoder, layer);
        self.compare_states(comparison, &states, &ragged, state)?;
        let output = format!("{states}out");
        if self.record.has(&output) {
            let (_, expected) = self.record.floats(&output)?;
            comparison.relative(&output, encoded.output(Side::Encoder)?, &expected);
        }
        Ok(())
    }

    /// The n best of a search with this beam and exponent.
    fn answers(
        &self,
        what: &str,
        (size, alpha): (usize, f64),
        source: &[u32],
    ) -> Result<Vec<Hypothesis>, String> {
        // When CTranslate2 stops depends on whether lengths are compared.
        let stopping = match alpha == 0.0 {
            true => EarlyStopping::BestComplete,
            false => EarlyStopping::FirstComplete,
        };
        let beam = Beam::new(size)
            .with_length_penalty(LengthPenalty::Average { alpha })
            .with_early_stopping(stopping)
            .with_n_best(size);
        let options = GenerationOptions::default()
            .with_strategy(beam)
            .with_max_new_tokens(LONGEST)
            .with_stop_ids(self.model.config().special.end.clone());
        let generated = self.generate(&[source], &options).map_err(|e| format!("{what}: {e}"))?;
        Ok(generated.into_iter().flat_map(|request| request.hypotheses).collect())
    }

    /// The decoder's logits over the answer of the narrowest beam.
    fn compare_answer(
        &self,
        comparison: &mut Comparison,
        name: &str,
        source: &[u32],
        answer: &Hypothesis,
    ) -> Result<(), String> {
        let logits = format!("{name}.logits");
        let start = self.model.config().special.decoder_start.ok_or("no start token")?;
        let tokens = &answer.tokens;
        let ids = [&[start], &tokens[..tokens.len().saturating_sub(1)]].concat();
        let mut session = self.session(&room(source.len().max(ids.len()), 1, ids.len()))?;
        let sequence = told(name, session.add_sources(&Batch::one(source)))?[0];
        let mut actual = vec![0.0; ids.len() * self.width(&logits)?];
        let chunk = [Chunk::new(sequence, &ids)];
        told(&logits, session.extend(&chunk, Output::AllLogits, &mut actual))?;
        comparison.relative(&logits, &actual, &self.record.floats(&logits)?.1);
        Ok(())
    }
}

/// Beam and exponent of a search by its name, `beam4_lp0.6`.
fn search(key: &str) -> Option<(usize, f64)> {
    let (size, alpha) = key.strip_prefix("beam")?.split_once("_lp")?;
    Some((size.parse().ok()?, alpha.parse().ok()?))
}

/// Recorded pairs of a text and its score. The recording engine computes in f32; it `missed` the mean
/// ln p of a token by so much, and the score by that times L/L^α.
fn compare_answers(
    comparison: &mut Comparison,
    what: &str,
    answers: &[Hypothesis],
    expected: &Value,
    (missed, alpha): (f64, f64),
    letters: &[&str],
) {
    let spell = |answer: &Hypothesis| -> String {
        answer.content().iter().filter_map(|&id| letters.get(id as usize)).copied().collect()
    };
    let texts: Vec<String> = answers.iter().map(spell).collect();
    let recorded = || expected.as_array().into_iter().flatten();
    let same =
        texts.iter().map(|text| Some(text.as_str())).eq(recorded().map(|pair| pair[0].as_str()));
    comparison.require(same, || format!("{what}: {texts:?}, expected {expected}"));
    for (answer, pair) in answers.iter().zip(recorded()) {
        comparison.count_generated();
        let missed = missed * (answer.tokens.len() as f64).powf(1.0 - alpha);
        compare_score(comparison, what, answer.score, &pair[1], missed);
    }
}

/// The mean ln p of an answer's tokens, which was recorded from a forward pass in f64 too.
fn compare_mean(comparison: &mut Comparison, name: &str, answer: &Hypothesis, expected: &Value) {
    let Some(expected) = expected.as_f64() else { return };
    let sum: f64 = answer.log_probabilities.iter().map(|&ln_p| f64::from(ln_p)).sum();
    let mean = (sum / answer.tokens.len() as f64) as f32;
    comparison.scaled(&format!("{name}.torch_f64_score"), &[mean], &[expected as f32], 1.0);
}
