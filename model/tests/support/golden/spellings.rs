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
                let answers = self.answers(&what, key, &source)?;
                compare_answers(comparison, &what, &answers, expected, &letters);
                if key.starts_with("beam1_") {
                    self.compare_answer(comparison, &name, &source, &answers[0].tokens)?;
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

    /// The n best of a search named by its beam and exponent, `beam4_lp0.6`.
    fn answers(&self, what: &str, key: &str, source: &[u32]) -> Result<Vec<Hypothesis>, String> {
        let parts = key.strip_prefix("beam").and_then(|key| key.split_once("_lp"));
        let numbers =
            parts.and_then(|(size, alpha)| Some((size.parse().ok()?, alpha.parse().ok()?)));
        let (size, alpha): (usize, f64) = numbers.ok_or_else(|| format!("{what}: no search"))?;
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
        tokens: &[u32],
    ) -> Result<(), String> {
        let logits = format!("{name}.logits");
        let start = self.model.config().special.decoder_start.ok_or("no start token")?;
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

/// Recorded pairs of a text and its score.
fn compare_answers(
    comparison: &mut Comparison,
    what: &str,
    answers: &[Hypothesis],
    expected: &Value,
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
        compare_score(comparison, what, answer.score, &pair[1]);
    }
}
