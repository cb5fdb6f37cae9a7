//! Encoders: states, maps, heads, sequences alone; sentences; images.

use super::comparison::Comparison;
use super::record::{Ragged, Tokens};
use super::seen::Seen;
use super::{Case, room, told};
use headrow::{Batch, Head, SentenceEncoder, Session, SessionOptions, Side, Sublayer};
use serde_json::Value;

impl Case<'_> {
    pub(crate) fn compare_encoder(&self, comparison: &mut Comparison) -> Result<(), String> {
        let record = &self.record;
        let tokens = Tokens::read(record, "input_ids", "attention_mask")?;
        let ragged = &tokens.ragged;
        let types = match record.has("token_type_ids") {
            true => Some(ragged.real(&record.integers("token_type_ids")?.1, 1)),
            false => None,
        };
        let mut batch = Batch::ragged(&tokens.ids, &ragged.lengths);
        if let Some(types) = &types {
            batch = batch.with_token_types(types);
        }
        let options = room(ragged.tokens(), ragged.lengths.len(), ragged.padded);
        let mut session = self.session(&options)?;
        let seen = self.compare_encoding(comparison, &mut session, &batch, ragged)?;
        let hidden = |layer| seen.hidden(Side::Encoder, layer);
        self.compare_states(comparison, "hidden_states.", ragged, hidden)?;
        if record.has("last_hidden_state") {
            let output = seen.output(Side::Encoder)?;
            self.compare_rows(comparison, "last_hidden_state", output, ragged)?;
        }
        for index in 0..ragged.lengths.len() {
            let name = format!("single{index}.last");
            if !record.has(&name) {
                continue;
            }
            let rows = ragged.rows(index);
            let mut batch = Batch::one(&tokens.ids[rows.clone()]);
            if let Some(types) = &types {
                batch = batch.with_token_types(&types[rows.clone()]);
            }
            let width = self.model.config().d_model;
            let mut alone = vec![0.0; rows.len() * width];
            told(&name, session.encode(&batch, &mut alone))?;
            comparison.relative(&name, &alone, &record.floats(&name)?.1);
            let in_batch = &seen.output(Side::Encoder)?[rows.start * width..rows.end * width];
            comparison.same_bits(&format!("{name}, alone and in the batch"), &alone, in_batch);
        }
        self.compare_heads(comparison, &mut session, &batch, ragged)?;
        self.compare_sentences(comparison, &tokens)
    }

    /// Patches of images, whose states all have the same length.
    pub(crate) fn compare_images(&self, comparison: &mut Comparison) -> Result<(), String> {
        let (shape, pixels) = self.record.floats("pixel_values")?;
        let count = shape.first().copied().unwrap_or_default();
        let batch = Batch::images(&pixels, count);
        let longest = self.model.config().max_length();
        let options =
            SessionOptions::default().with_max_tokens(count * longest).with_max_sequences(count);
        let mut session = self.session(&options)?;
        let padded = told("pixel_values", session.rows_of(&batch))? / count.max(1);
        let ragged = Ragged { lengths: vec![padded; count], padded };
        let seen = self.compare_encoding(comparison, &mut session, &batch, &ragged)?;
        // Here the last recorded state is the one before the last norm.
        let state = |layer| seen.state(Side::Encoder, layer);
        self.compare_states(comparison, "hidden_states.", &ragged, state)?;
        self.compare_heads(comparison, &mut session, &batch, &ragged)
    }

    /// One pass with its maps.
    fn compare_encoding(
        &self,
        comparison: &mut Comparison,
        session: &mut Session,
        batch: &Batch<'_>,
        ragged: &Ragged,
    ) -> Result<Seen, String> {
        let seen = self.encode(session, batch, ragged)?;
        let place = (Side::Encoder, Sublayer::SelfAttention);
        self.compare_maps(comparison, &seen, place, "attentions.", ragged)?;
        Ok(seen)
    }

    /// What is to be seen of one pass of the encoder.
    pub(crate) fn encode(
        &self,
        session: &mut Session,
        batch: &Batch<'_>,
        ragged: &Ragged,
    ) -> Result<Seen, String> {
        let mut seen = Seen::new(self.model.config());
        let mut hidden = vec![0.0; ragged.tokens() * self.model.config().d_model];
        told("encoder", session.encode_observed(batch, &mut hidden, &mut seen))?;
        Ok(seen)
    }

    fn compare_heads(
        &self,
        comparison: &mut Comparison,
        session: &mut Session,
        batch: &Batch<'_>,
        ragged: &Ragged,
    ) -> Result<(), String> {
        let per_token = self.record.has("logits") && self.record.floats("logits")?.0.len() == 3;
        let heads = [
            ("pooler_output", Head::Pooler),
            ("prediction_logits", Head::MaskedLm),
            ("seq_relationship_logits", Head::NextSentence),
            (
                "logits",
                match per_token {
                    true if self.model.has(Head::MaskedLm) => Head::MaskedLm,
                    true => Head::TokenTagger,
                    false if self.model.has(Head::SequenceClassifier) => Head::SequenceClassifier,
                    false => Head::NextSentence,
                },
            ),
        ];
        for (name, head) in heads.into_iter().filter(|(name, _)| self.record.has(name)) {
            let (shape, expected) = self.record.floats(name)?;
            let shape_of = self.model.output_shape(head, ragged.tokens(), ragged.lengths.len());
            let (rows, cols) = told(name, shape_of)?;
            let mut actual = vec![0.0; rows * cols];
            told(name, session.predict(batch, head, &mut actual))?;
            match shape.len() {
                3 => self.compare_rows(comparison, name, &actual, ragged)?,
                _ => comparison.relative(name, &actual, &expected),
            }
        }
        Ok(())
    }

    /// Recorded sentences with their vectors: from text to vector and all between.
    fn compare_sentences(
        &self,
        comparison: &mut Comparison,
        tokens: &Tokens,
    ) -> Result<(), String> {
        let Some(sentences) = self.golden["sentences"].as_array() else { return Ok(()) };
        let sentences: Vec<&str> = sentences.iter().filter_map(Value::as_str).collect();
        let encoder = told("sentences", SentenceEncoder::from_dir(self.folder))?;
        let vectors = told("sentences", encoder.embed(&sentences))?;
        let mut ids = Vec::new();
        for &sentence in &sentences {
            ids.extend(told("sentences", encoder.tokenize(sentence))?.ids);
        }
        comparison.require(ids == tokens.ids, || "input_ids: the tokens differ".to_owned());
        let (_, expected) = self.record.floats("embedding")?;
        comparison.scaled("embedding", &vectors.concat(), &expected, 1.0);
        for (i, (a, e)) in vectors.iter().zip(expected.chunks(encoder.dimension())).enumerate() {
            let cosine = cosine(a, e);
            comparison.require(cosine >= 0.999_999, || format!("sentence {i}: cosine {cosine}"));
        }
        if self.record.has("cosine") {
            let pairs = vectors.iter().flat_map(|a| vectors.iter().map(|b| cosine(a, b) as f32));
            let actual: Vec<f32> = pairs.collect();
            comparison.scaled("cosine", &actual, &self.record.floats("cosine")?.1, 1.0);
        }
        Ok(())
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
