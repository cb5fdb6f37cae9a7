//! What enters a stack in training, by the kind of input that it reads.

use super::claims::Claims;
use super::objective::Vectors;
use super::pass::{Back, TrainingPass};
use crate::embedding::{EmbeddingKept, Tokens};
use crate::error::Result;
use crate::spectrogram::SpectrogramKept;
use crate::transformer::Entrance;
use headrow_kernels::{Cpu, Mat, MatMut, Need, Stack};

/// What a side reads in a pass.
#[derive(Clone, Copy)]
pub(super) enum Given<'a> {
    Ids(&'a [u32], Option<&'a [u32]>),
    Vectors(Vectors<'a>),
    /// Images or spectrograms, whichever the side reads.
    Features(&'a [f32]),
}

impl<'a> Given<'a> {
    /// Which tokens are seen.
    pub(super) fn keys(self) -> Option<&'a [bool]> {
        match self {
            Given::Vectors(vectors) => vectors.seen,
            Given::Ids(..) | Given::Features(_) => None,
        }
    }

    /// In words, beside what is expected.
    pub(super) fn name(self) -> &'static str {
        match self {
            Given::Ids(..) => "tokens",
            Given::Vectors(_) => "vectors",
            Given::Features(_) => "images or spectrograms",
        }
    }
}

impl<'a> From<Vectors<'a>> for Given<'a> {
    fn from(vectors: Vectors<'a>) -> Given<'a> {
        Given::Vectors(vectors)
    }
}

/// What an entrance keeps.
#[derive(Debug)]
pub(super) enum EntranceKept {
    Nothing,
    Embedding(EmbeddingKept),
    Spectrogram(SpectrogramKept),
}

impl EntranceKept {
    /// For up to `rows` rows.
    pub(super) fn new(
        entrance: &Entrance,
        rows: usize,
        claims: &mut Claims,
    ) -> Result<EntranceKept> {
        Ok(match entrance {
            Entrance::Embedding(embedding) => {
                EntranceKept::Embedding(EmbeddingKept::new(embedding, rows, claims)?)
            }
            Entrance::Spectrogram(entrance) => {
                EntranceKept::Spectrogram(SpectrogramKept::new(entrance, rows, claims)?)
            }
            Entrance::Patches(_) | Entrance::Vectors => EntranceKept::Nothing,
        })
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            EntranceKept::Nothing => 0,
            EntranceKept::Embedding(kept) => kept.bytes(),
            EntranceKept::Spectrogram(kept) => kept.bytes(),
        }
    }
}

impl Entrance {
    /// out ← dropout of what [`Entrance::forward`] gives, from parameters.
    pub(super) fn apply(
        &self,
        pass: &TrainingPass<'_>,
        given: Given<'_>,
        sinusoids: Option<Mat<'_>>,
        kept: &mut EntranceKept,
        mut out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        match (self, given, kept) {
            (Entrance::Embedding(layer), Given::Ids(ids, types), EntranceKept::Embedding(kept)) => {
                let tokens = Tokens { ids, types, places: pass.places, sinusoids };
                layer.apply(pass, tokens, kept, out, stack);
            }
            (
                Entrance::Spectrogram(layer),
                Given::Features(values),
                EntranceKept::Spectrogram(kept),
            ) => layer.apply(pass, values, kept, out, stack),
            (Entrance::Patches(layer), Given::Features(pixels), _) => {
                layer.apply(pass, pixels, out, stack);
            }
            (Entrance::Vectors, Given::Vectors(Vectors { values, .. }), _) => {
                let d_model = out.cols();
                out.copy_from(Mat::new(values, out.rows(), d_model));
            }
            _ => unreachable!("the kind of an input is checked before a pass"),
        }
    }

    /// Adds to the gradients of what made the vectors that entered, from theirs, which is overwritten unless they entered as they
    /// are. Look-ups of `untrained` teach nothing.
    pub(super) fn backward(
        &self,
        pass: &TrainingPass<'_>,
        given: Given<'_>,
        untrained: Option<u32>,
        kept: &EntranceKept,
        back: Back<'_>,
        stack: &mut Stack<'_>,
    ) {
        match (self, given, kept) {
            (Entrance::Embedding(layer), Given::Ids(ids, _), EntranceKept::Embedding(kept)) => {
                layer.backward(pass, ids, untrained, kept, back, stack);
            }
            (
                Entrance::Spectrogram(layer),
                Given::Features(values),
                EntranceKept::Spectrogram(kept),
            ) => layer.backward(pass, values, kept, back, stack),
            (Entrance::Patches(layer), Given::Features(pixels), _) => {
                layer.backward(pass, pixels, back, stack);
            }
            _ => {}
        }
    }

    /// Scratch of both for up to `rows` rows of d_model features.
    pub(super) fn training_scratch(
        &self,
        cpu: Cpu,
        threads: usize,
        rows: usize,
        d_model: usize,
    ) -> Need {
        match self {
            Entrance::Embedding(layer) => layer.training_scratch(cpu, threads, rows, d_model),
            Entrance::Patches(layer) => layer.training_scratch(cpu, threads),
            Entrance::Spectrogram(layer) => layer.training_scratch(cpu, threads),
            Entrance::Vectors => Need::NONE,
        }
    }
}
