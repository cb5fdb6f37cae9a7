//! §3, figure 1: the whole. An encoder, a decoder, or an encoder whose output a decoder attends to.

use crate::config::{Config, wrong};
use crate::decoder::Decoder;
use crate::embedding::{Embedding, ReadOut, Tokens};
use crate::encoder::Encoder;
use crate::error::Result;
use crate::head::Heads;
use crate::linear::Call;
use crate::patches::Patches;
use crate::size::{Size, Sizes};
use crate::spectrogram::Spectrogram;
use headrow_kernels::{Cpu, Mat, MatMut, Need, Stack};

/// The three families of Transformers, which differ in the stacks they have.
pub(crate) struct Transformer {
    /// What the encoder reads, and the encoder.
    pub(crate) encoder: Option<(Entrance, Encoder)>,
    /// What the decoder reads, and the decoder.
    pub(crate) decoder: Option<(Entrance, Decoder)>,
    /// Scores of words from the decoder's states.
    pub(crate) read_out: Option<ReadOut>,
    /// What else is computed from an encoder's states.
    pub(crate) heads: Heads,
}

/// What turns an input into the vectors that enter a stack.
pub(crate) enum Entrance {
    /// Tokens.
    Embedding(Embedding),
    /// Images.
    Patches(Patches),
    /// Spectrograms.
    Spectrogram(Spectrogram),
    /// Vectors as they are.
    Vectors,
}

/// An input, one row for each place of each sequence.
#[derive(Clone, Copy)]
pub(crate) enum Entering<'a> {
    Tokens(Tokens<'a>),
    Vectors(Mat<'a>),
    Images { pixels: &'a [f32] },
    Spectrograms { values: &'a [f32], count: usize },
}

impl Entrance {
    /// out ← the vectors of an input of the kind that it reads.
    pub(crate) fn forward(
        &self,
        call: Call<'_>,
        entering: Entering<'_>,
        sinusoids: Option<Mat<'_>>,
        mut out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        match (self, entering) {
            (Entrance::Embedding(embedding), Entering::Tokens(tokens)) => {
                embedding.forward(call, tokens, sinusoids, out, stack);
            }
            (Entrance::Spectrogram(entrance), Entering::Spectrograms { values, count }) => {
                entrance.forward(call, values, count, out, stack);
            }
            (Entrance::Patches(patches), Entering::Images { pixels }) => {
                patches.forward(call, pixels, out, stack);
            }
            (Entrance::Vectors, Entering::Vectors(vectors)) => out.copy_from(vectors),
            _ => unreachable!("the kind of an input is checked before a pass"),
        }
    }

    /// Scratch for up to `rows` rows of d_model features.
    pub(crate) fn scratch(&self, cpu: Cpu, threads: usize, rows: usize, d_model: usize) -> Need {
        match self {
            Entrance::Embedding(embedding) => embedding.scratch(cpu, threads, rows, d_model),
            Entrance::Patches(patches) => patches.scratch(cpu, threads),
            Entrance::Spectrogram(entrance) => entrance.scratch(cpu, threads),
            Entrance::Vectors => Need::NONE,
        }
    }

    fn list(&self, sizes: &mut Sizes) {
        match self {
            Entrance::Embedding(embedding) => {
                sizes.shared("embeddings", &embedding.words, embedding.words.size());
                sizes.add("embeddings", embedding.size());
            }
            Entrance::Patches(patches) => sizes.add("embeddings", patches.size()),
            Entrance::Spectrogram(entrance) => sizes.add("convolutions", entrance.size()),
            Entrance::Vectors => {}
        }
    }
}

impl Transformer {
    /// What only shows when a family has built its parts, of a config that was changed after it was read: a stack that the
    /// family does not have, or tables of another width where it has no map from them to d_model.
    pub(crate) fn check(&self, config: &Config) -> Result<()> {
        let stacks = [
            ("encoder", self.encoder.is_some(), config.encoder.is_some()),
            ("decoder", self.decoder.is_some(), config.decoder.is_some()),
        ];
        for (field, built, wanted) in stacks {
            if built != wanted {
                let problem = format!("{} folders have none", config.family);
                return Err(wrong("config", field, &problem));
            }
        }
        let entrances = [
            self.encoder.as_ref().map(|(entrance, _)| entrance),
            self.decoder.as_ref().map(|(entrance, _)| entrance),
        ];
        for entrance in entrances.into_iter().flatten() {
            if let Entrance::Embedding(Embedding { width, projection: None, .. }) = entrance
                && *width != config.d_model
            {
                let problem = format!("{width} features, d_model is {}", config.d_model);
                return Err(wrong("config", "width", &problem));
            }
        }
        Ok(())
    }

    /// An encoder alone.
    pub(crate) fn encoder_only(entrance: Entrance, encoder: Encoder, heads: Heads) -> Transformer {
        Transformer { encoder: Some((entrance, encoder)), decoder: None, read_out: None, heads }
    }

    /// A decoder alone, which reads tokens.
    pub(crate) fn decoder_only(
        embedding: Embedding,
        decoder: Decoder,
        read_out: ReadOut,
    ) -> Transformer {
        Transformer {
            encoder: None,
            decoder: Some((Entrance::Embedding(embedding), decoder)),
            read_out: Some(read_out),
            heads: Heads::default(),
        }
    }

    /// How large each part is, in the order of the forward pass. Words that several parts share count
    /// once, with the first.
    pub(crate) fn sizes(&self) -> Vec<(&'static str, Size)> {
        let mut sizes = Sizes::default();
        if let Some((entrance, encoder)) = &self.encoder {
            entrance.list(&mut sizes);
            encoder.list(&mut sizes);
        }
        if let Some((entrance, decoder)) = &self.decoder {
            entrance.list(&mut sizes);
            decoder.list(&mut sizes);
        }
        if let Some(read_out) = &self.read_out {
            sizes.shared("read-out", &read_out.words, read_out.words.size());
            sizes.add("read-out", read_out.size());
        }
        self.heads.list(&mut sizes);
        sizes.parts
    }
}
