//! `torch.nn.Transformer`: two stacks that read vectors.

use super::comparison::Comparison;
use super::record::Ragged;
use super::seen::Seen;
use super::{Case, room, told};
use headrow::{Batch, Chunk, Output, Sequence, Session, Side};

/// Sequences of vectors, one behind the other.
pub(super) struct Vectors {
    pub(super) values: Vec<f32>,
    width: usize,
    pub(super) ragged: Ragged,
}

impl Vectors {
    fn row(&self, index: usize) -> &[f32] {
        let rows = self.ragged.rows(index);
        &self.values[rows.start * self.width..rows.end * self.width]
    }

    fn batch(&self) -> Batch<'_> {
        Batch::vectors(&self.values, &self.ragged.lengths)
    }
}

impl Case<'_> {
    pub(crate) fn compare_vectors(&self, comparison: &mut Comparison) -> Result<(), String> {
        let (sources, targets) = (self.masked("src")?, self.masked("tgt")?);
        self.check_causal(targets.ragged.padded)?;
        let mut session = self.session_for(&sources, &targets)?;
        let ragged = &sources.ragged;
        let encoded = self.encode(&mut session, &sources.batch(), ragged)?;
        let after = |layer| encoded.state(Side::Encoder, layer + 1);
        self.compare_states(comparison, "encoder.layer", ragged, after)?;
        let output = encoded.output(Side::Encoder)?;
        self.compare_rows(comparison, "encoder_out", output, ragged)?;

        let added = told("src", session.add_sources(&sources.batch()))?;
        let (out, seen) = self.decode(&mut session, &added, &targets, |chunk| chunk)?;
        comparison.same_bits("observed and written", &out, seen.output(Side::Decoder)?);
        self.compare_rows(comparison, "out", &out, &targets.ragged)?;

        // Vector by vector through the cache, the last sequence.
        let (width, last) = (targets.width, added.len() - 1);
        told("out", session.truncate(added[last], 0))?;
        let mut steps = vec![0.0; targets.row(last).len()];
        for (vector, step) in targets.row(last).chunks(width).zip(steps.chunks_mut(width)) {
            let chunk = [Chunk::vectors(added[last], vector)];
            told("out", session.extend(&chunk, Output::LastHidden, step))?;
        }
        let at_once = &out[out.len() - steps.len()..];
        comparison.same_bits("vector by vector and at once", &steps, at_once);
        match self.record.has("out_nomask") {
            true => self.compare_unmasked(comparison),
            false => Ok(()),
        }
    }

    /// The same without any mask: padding is as good as other vectors, and each sees what comes behind it.
    fn compare_unmasked(&self, comparison: &mut Comparison) -> Result<(), String> {
        let (sources, targets) = (self.all("src")?, self.all("tgt")?);
        let mut session = self.session_for(&sources, &targets)?;
        let added = told("src", session.add_sources(&sources.batch()))?;
        let (out, _) = self.decode(&mut session, &added, &targets, Chunk::whole)?;
        self.compare_rows(comparison, "out_nomask", &out, &targets.ragged)
    }

    fn session_for(&self, sources: &Vectors, targets: &Vectors) -> Result<Session, String> {
        let most = sources.ragged.tokens().max(targets.ragged.tokens());
        self.session(&room(most, sources.ragged.lengths.len(), targets.ragged.padded))
    }

    /// The decoder's output over all targets.
    fn decode<'t>(
        &self,
        session: &mut Session,
        added: &[Sequence],
        targets: &'t Vectors,
        sight: impl Fn(Chunk<'t>) -> Chunk<'t>,
    ) -> Result<(Vec<f32>, Seen), String> {
        let chunk = |(index, &sequence)| sight(Chunk::vectors(sequence, targets.row(index)));
        let chunks: Vec<Chunk<'_>> = added.iter().enumerate().map(chunk).collect();
        let mut out = vec![0.0; targets.values.len()];
        let mut seen = Seen::new(self.model.config());
        told("out", session.extend_observed(&chunks, Output::AllHidden, &mut out, &mut seen))?;
        Ok((out, seen))
    }

    /// `src` or `tgt`, every vector of it.
    pub(super) fn all(&self, name: &str) -> Result<Vectors, String> {
        let (shape, values) = self.record.floats(name)?;
        let &[count, padded, width] = &shape[..] else {
            return Err(format!("{name} of shape {shape:?}"));
        };
        Ok(Vectors { values, width, ragged: Ragged { lengths: vec![padded; count], padded } })
    }

    /// `src` or `tgt` without the vectors that its mask, 1 = hidden, leaves out.
    fn masked(&self, name: &str) -> Result<Vectors, String> {
        let Vectors { values, width, ragged } = self.all(name)?;
        let (_, mask) = self.record.integers(&format!("{name}_key_padding_mask"))?;
        let ragged = Ragged::of_mask(&mask, ragged.padded, 0)?;
        Ok(Vectors { values: ragged.real(&values, width), width, ragged })
    }

    /// That the recorded decoder saw no later vector under its mask.
    fn check_causal(&self, length: usize) -> Result<(), String> {
        let (_, mask) = self.record.integers("tgt_mask")?;
        let causal = (0..length).flat_map(|i| (0..length).map(move |j| u32::from(j > i)));
        match causal.eq(mask) {
            true => Ok(()),
            false => Err("tgt_mask is not causal".to_owned()),
        }
    }
}
