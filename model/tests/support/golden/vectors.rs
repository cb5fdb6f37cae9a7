//! `torch.nn.Transformer`: two stacks that read vectors.

use super::comparison::Comparison;
use super::record::Ragged;
use super::seen::Seen;
use super::{Case, room, told};
use headrow::{Batch, Chunk, Output, Side};

impl Case<'_> {
    pub(crate) fn compare_vectors(&self, comparison: &mut Comparison) -> Result<(), String> {
        let (sources, source) = self.vectors("src")?;
        let (targets, target) = self.vectors("tgt")?;
        self.check_causal(targets.padded)?;
        let most = sources.tokens().max(targets.tokens());
        let options = room(most, sources.lengths.len() + 1, targets.padded);
        let mut session = self.session(&options)?;

        let batch = Batch::vectors(&source, &sources.lengths);
        let encoded = self.encode(&mut session, &batch, &sources)?;
        let after = |layer| encoded.state(Side::Encoder, layer + 1);
        self.compare_states(comparison, "encoder.layer", &sources, after)?;
        let output = encoded.output(Side::Encoder)?;
        self.compare_rows(comparison, "encoder_out", output, &sources)?;

        let added = told("sources", session.add_sources(&batch))?;
        let width = self.model.config().d_model;
        let chunk = |(index, &sequence)| {
            let rows = targets.rows(index);
            Chunk::vectors(sequence, &target[rows.start * width..rows.end * width])
        };
        let chunks: Vec<Chunk<'_>> = added.iter().enumerate().map(chunk).collect();
        let mut out = vec![0.0; targets.tokens() * width];
        let mut seen = Seen::new(self.model.config());
        told("out", session.extend_observed(&chunks, Output::AllHidden, &mut out, &mut seen))?;
        comparison.same_bits("observed and written", &out, seen.output(Side::Decoder)?);
        self.compare_rows(comparison, "out", &out, &targets)?;

        if self.record.has("out_nomask") {
            self.record.floats("out_nomask")?;
            let why = "out_nomask (a decoder whose vectors see later ones)";
            comparison.left.push(why.to_owned());
        }

        // Vector by vector through the cache, the last sequence.
        let last = added.len() - 1;
        let rows = targets.rows(last);
        told("out", session.truncate(added[last], 0))?;
        let mut steps = vec![0.0; rows.len() * width];
        let vectors = target[rows.start * width..rows.end * width].chunks(width);
        for (vector, step) in vectors.zip(steps.chunks_mut(width)) {
            let chunk = [Chunk::vectors(added[last], vector)];
            told("out", session.extend(&chunk, Output::LastHidden, step))?;
        }
        let at_once = &out[rows.start * width..rows.end * width];
        comparison.same_bits("vector by vector and at once", &steps, at_once);
        Ok(())
    }

    /// `src` or `tgt` without the vectors that its mask, 1 = hidden, leaves out.
    fn vectors(&self, name: &str) -> Result<(Ragged, Vec<f32>), String> {
        let (shape, values) = self.record.floats(name)?;
        let &[_, padded, width] = &shape[..] else {
            return Err(format!("{name} of shape {shape:?}"));
        };
        let (_, mask) = self.record.integers(&format!("{name}_key_padding_mask"))?;
        let ragged = Ragged::of_mask(&mask, padded, 0)?;
        let real = ragged.real(&values, width);
        Ok((ragged, real))
    }

    /// That the recorded decoder saw no later vector: the mask of this library.
    fn check_causal(&self, length: usize) -> Result<(), String> {
        let (_, mask) = self.record.integers("tgt_mask")?;
        let causal = (0..length).flat_map(|i| (0..length).map(move |j| u32::from(j > i)));
        match causal.eq(mask) {
            true => Ok(()),
            false => Err("tgt_mask is not causal".to_owned()),
        }
    }
}
