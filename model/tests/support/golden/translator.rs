//! Encoder–decoders: both stacks, and what stands between them.

use super::comparison::Comparison;
use super::record::Tokens;
use super::{Case, room, told};
use headrow::{Batch, Side, Sublayer};

impl Case<'_> {
    pub(crate) fn compare_translator(&self, comparison: &mut Comparison) -> Result<(), String> {
        let record = &self.record;
        let sources = Tokens::read(record, "input_ids", "attention_mask")?;
        let targets = Tokens::read(record, "decoder_input_ids", "decoder_attention_mask")?;
        let most = sources.ids.len().max(targets.ids.len());
        let options = room(most, sources.ragged.lengths.len() + 1, targets.ragged.padded);
        let mut session = self.session(&options)?;

        let batch = Batch::ragged(&sources.ids, &sources.ragged.lengths);
        let encoded = self.encode(&mut session, &batch, &sources.ragged)?;
        let output = encoded.output(Side::Encoder)?;
        let (ragged, side) = (&sources.ragged, Side::Encoder);
        let hidden = |layer| encoded.hidden(side, layer);
        self.compare_states(comparison, "encoder_hidden_states.", ragged, hidden)?;
        let place = (side, Sublayer::SelfAttention);
        self.compare_maps(comparison, &encoded, place, "encoder_attentions.", ragged)?;
        self.compare_rows(comparison, "encoder_last_hidden_state", output, ragged)?;

        let added = told("sources", session.add_sources(&batch))?;
        let read = self.read_at_once(&mut session, &added, &targets)?;
        let (ragged, side) = (&targets.ragged, Side::Decoder);
        let hidden = |layer| read.seen.hidden(side, layer);
        self.compare_states(comparison, "decoder_hidden_states.", ragged, hidden)?;
        let place = (side, Sublayer::SelfAttention);
        self.compare_maps(comparison, &read.seen, place, "decoder_attentions.", ragged)?;
        let place = (side, Sublayer::CrossAttention);
        self.compare_maps(comparison, &read.seen, place, "cross_attentions.", ragged)?;
        self.compare_rows(comparison, "logits", &read.logits, ragged)?;

        if let Some(row) = self.incremental_row(ragged)? {
            let source = Batch::one(sources.row(row));
            if record.has("incremental.encoder") {
                let rows = sources.ragged.rows(row);
                let width = self.model.config().d_model;
                let mut alone = vec![0.0; rows.len() * width];
                told("incremental.encoder", session.encode(&source, &mut alone))?;
                let (_, expected) = record.floats("incremental.encoder")?;
                comparison.relative("incremental.encoder", &alone, &expected);
                let in_batch = &output[rows.start * width..rows.end * width];
                comparison.same_bits("encoded alone and in the batch", &alone, in_batch);
            }
            let sequence = told("sources", session.add_sources(&source))?[0];
            self.compare_steps(comparison, &mut session, sequence, &targets, row, &read.logits)?;
        }
        self.compare_generated(comparison, &sources)
    }
}
