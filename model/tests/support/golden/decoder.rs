//! Decoders: states, maps and logits of whole sequences; the same token by token through the cache.

use super::comparison::Comparison;
use super::record::{Ragged, Tokens};
use super::seen::Seen;
use super::{Case, room, told};
use headrow::{Chunk, Output, Sequence, Session, Side, Sublayer};

impl Case<'_> {
    pub(crate) fn compare_decoder(&self, comparison: &mut Comparison) -> Result<(), String> {
        let tokens = Tokens::read(&self.record, "input_ids", "attention_mask")?;
        let Ragged { lengths, padded } = &tokens.ragged;
        let options = room(tokens.ragged.tokens(), lengths.len() + 1, *padded);
        let mut session = self.session(&options)?;
        let mut added = Vec::new();
        for _ in lengths {
            added.push(told("sequence", session.add())?);
        }
        let read = self.read_at_once(&mut session, &added, &tokens)?;
        let hidden = |layer| read.seen.hidden(Side::Decoder, layer);
        self.compare_states(comparison, "hidden_states.", &tokens.ragged, hidden)?;
        let place = (Side::Decoder, Sublayer::SelfAttention);
        self.compare_maps(comparison, &read.seen, place, "attentions.", &tokens.ragged)?;
        self.compare_rows(comparison, "logits", &read.logits, &tokens.ragged)?;
        if let Some(row) = self.incremental_row(&tokens.ragged)? {
            let sequence = told("sequence", session.add())?;
            self.compare_steps(comparison, &mut session, sequence, &tokens, row, &read.logits)?;
        }
        self.compare_generated(comparison, &tokens)
    }

    /// All tokens of all sequences in one pass.
    pub(crate) fn read_at_once(
        &self,
        session: &mut Session,
        sequences: &[Sequence],
        tokens: &Tokens,
    ) -> Result<ReadAtOnce, String> {
        let rows = tokens.each();
        let pairs = sequences.iter().zip(&rows);
        let chunks: Vec<Chunk<'_>> = pairs.map(|(&s, ids)| Chunk::new(s, ids)).collect();
        let mut seen = Seen::new(self.model.config());
        let mut logits = vec![0.0; tokens.ids.len() * self.width("logits")?];
        let all = Output::AllLogits;
        told("logits", session.extend_observed(&chunks, all, &mut logits, &mut seen))?;
        Ok(ReadAtOnce { seen, logits })
    }

    /// Which sequence was recorded token by token: the one whose recorded logits are the same, for
    /// all that rounding leaves of it.
    pub(crate) fn incremental_row(&self, tokens: &Ragged) -> Result<Option<usize>, String> {
        let name = "incremental.logits";
        if !self.record.has(name) {
            return Ok(None);
        }
        let (shape, steps) = self.record.floats(name)?;
        let (_, logits) = self.record.floats("logits")?;
        let &[1, length, width] = &shape[..] else {
            return Err(format!("{name} of shape {shape:?}"));
        };
        let rows = logits.chunks(tokens.padded * width).enumerate();
        let fitting = rows.filter(|&(row, _)| tokens.lengths[row] == length);
        let distance = |row: &[f32]| -> f64 {
            row.iter().zip(&steps).map(|(a, b)| f64::from((a - b).abs())).sum()
        };
        let nearest = fitting.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        let (row, _) = nearest.ok_or_else(|| format!("{name}: no sequence of {length} tokens"))?;
        Ok(Some(row))
    }

    /// Feeds sequence `row` of the batch to a new one, token by token: the record, and the bits of the
    /// batch.
    pub(crate) fn compare_steps(
        &self,
        comparison: &mut Comparison,
        session: &mut Session,
        sequence: Sequence,
        tokens: &Tokens,
        row: usize,
        in_batch: &[f32],
    ) -> Result<(), String> {
        let name = "incremental.logits";
        let (_, expected) = self.record.floats(name)?;
        let width = self.width(name)?;
        let mut steps = vec![0.0; expected.len()];
        for (id, logits) in tokens.row(row).chunks(1).zip(steps.chunks_mut(width)) {
            told(name, session.extend(&[Chunk::new(sequence, id)], Output::LastLogits, logits))?;
        }
        comparison.relative(name, &steps, &expected);
        let rows = tokens.ragged.rows(row);
        let in_batch = &in_batch[rows.start * width..rows.end * width];
        comparison.same_bits("token by token and at once", &steps, in_batch);
        told(name, session.remove(sequence))
    }
}

/// What came of [`Case::read_at_once`].
pub(crate) struct ReadAtOnce {
    pub(crate) seen: Seen,
    /// A row per real token.
    pub(crate) logits: Vec<f32>,
}
