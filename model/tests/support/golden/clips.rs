//! Speech to text: from a recorded spectrogram to ids.

use super::comparison::Comparison;
use super::generation::{ids_of, options};
use super::record::Ragged;
use super::seen::Seen;
use super::{Case, room, told};
use headrow::{Batch, Chunk, Output, Sequence, Session, Side};

impl Case<'_> {
    pub(crate) fn compare_clips(&self, comparison: &mut Comparison) -> Result<(), String> {
        let record = &self.record;
        let (_, mel) = record.floats("mel")?;
        let (_, ids) = record.integers("dec.ids")?;
        let batch = Batch::spectrograms(&mel, 1);
        let config = self.model.config();
        let frames = config.encoder.as_ref().map_or(0, headrow::StackConfig::max_length);
        let length = config.max_length().min(ids.len() + 64);
        let mut session = self.session(&room(frames, 4, length))?;

        let ragged = Ragged { lengths: vec![frames], padded: frames };
        let encoded = self.encode(&mut session, &batch, &ragged)?;
        let input = "enc.in_after_conv_and_pos";
        self.compare_beginning(comparison, input, encoded.state(Side::Encoder, 0)?)?;
        for (layer, name) in record.numbered("enc.h") {
            self.compare_beginning(comparison, &name, encoded.hidden(Side::Encoder, layer)?)?;
        }
        self.compare_beginning(comparison, "enc.out", encoded.output(Side::Encoder)?)?;

        let sequence = told("mel", session.add_sources(&batch))?[0];
        self.compare_reading(comparison, &mut session, sequence, &ids)?;
        self.compare_transcript(comparison, &mut session, &batch, &ids)
    }

    /// A recorded tensor against as many of the first rows.
    fn compare_beginning(
        &self,
        comparison: &mut Comparison,
        name: &str,
        actual: &[f32],
    ) -> Result<(), String> {
        let (_, expected) = self.record.floats(name)?;
        comparison.relative(name, &actual[..expected.len().min(actual.len())], &expected);
        Ok(())
    }

    /// The decoder's states and logits over the recorded ids, at once and id by id.
    fn compare_reading(
        &self,
        comparison: &mut Comparison,
        session: &mut Session,
        sequence: Sequence,
        ids: &[u32],
    ) -> Result<(), String> {
        let name = "dec.logits";
        let (_, expected) = self.record.floats(name)?;
        let width = self.width(name)?;
        let ids = &ids[..expected.len() / width];
        let mut seen = Seen::new(self.model.config());
        let mut logits = vec![0.0; expected.len()];
        let chunk = [Chunk::new(sequence, ids)];
        let output = Output::AllLogits;
        told(name, session.extend_observed(&chunk, output, &mut logits, &mut seen))?;
        for (layer, name) in self.record.numbered("dec.h") {
            self.compare_beginning(comparison, &name, seen.hidden(Side::Decoder, layer)?)?;
        }
        comparison.relative(name, &logits, &expected);
        told(name, session.truncate(sequence, 0))?;
        let mut steps = vec![0.0; expected.len()];
        for (id, step) in ids.chunks(1).zip(steps.chunks_mut(width)) {
            told(name, session.extend(&[Chunk::new(sequence, id)], Output::LastLogits, step))?;
        }
        comparison.same_bits("id by id and at once", &steps, &logits);
        told(name, session.remove(sequence))
    }

    /// The ids that the folder's `generation_config.json` leads to.
    fn compare_transcript(
        &self,
        comparison: &mut Comparison,
        session: &mut Session,
        batch: &Batch<'_>,
        ids: &[u32],
    ) -> Result<(), String> {
        let clips = self.golden["clips"].as_array().into_iter().flatten();
        let clip = clips.map(|clip| ids_of(&clip["ids"])).find(|clip| clip == ids);
        comparison.require(clip.is_some(), || "dec.ids: of no recorded clip".to_owned());
        let options = told("generation_config", options(&self.generation_config()?))?;
        let generated = told("clip", session.generate_from(batch, &options, &mut ()))?;
        let begun = &options.decoder_prompt;
        let best = generated[0].best();
        comparison.count_generated();
        comparison.require([begun, best.tokens.as_slice()].concat() == ids, || {
            format!("clip: {begun:?} {:?}, expected {ids:?}", best.tokens)
        });
        Ok(())
    }
}
