//! §3, figure 1: the whole. An encoder, a decoder, or an encoder whose output a decoder attends to.

use crate::config::Config;
use crate::decoder::Decoder;
use crate::embedding::{Embedding, ReadOut, Tokens, Words};
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::head::Heads;
use crate::linear::Call;
use crate::patches::Patches;
use crate::spectrogram::Spectrogram;
use headrow_kernels::{Cpu, Mat, MatMut, Need, Stack};
use std::sync::Arc;

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
        mut out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        match (self, entering) {
            (Entrance::Embedding(embedding), Entering::Tokens(tokens)) => {
                embedding.forward(call, tokens, out, stack);
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

    /// Bytes of the weights, beside the words, which others may share.
    fn bytes(&self) -> usize {
        match self {
            Entrance::Embedding(embedding) => embedding.bytes(),
            Entrance::Patches(patches) => patches.bytes(),
            Entrance::Spectrogram(entrance) => entrance.bytes(),
            Entrance::Vectors => 0,
        }
    }

    fn embedding(&self) -> Option<&Embedding> {
        match self {
            Entrance::Embedding(embedding) => Some(embedding),
            Entrance::Patches(_) | Entrance::Spectrogram(_) | Entrance::Vectors => None,
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
                return Err(Error::config("config", field, problem));
            }
        }
        for &Embedding { width, ref projection, .. } in self.embeddings() {
            if projection.is_none() && width != config.d_model {
                let problem = format!("{width} features, d_model is {}", config.d_model);
                return Err(Error::config("config", "width", problem));
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

    /// The tables of the stacks that read tokens.
    fn embeddings(&self) -> impl Iterator<Item = &Embedding> {
        let encoder = self.encoder.as_ref().map(|(entrance, _)| entrance);
        let decoder = self.decoder.as_ref().map(|(entrance, _)| entrance);
        encoder.into_iter().chain(decoder).filter_map(Entrance::embedding)
    }

    /// Bytes of the weights. Words that several parts have count once.
    pub(crate) fn bytes(&self) -> usize {
        let encoder = self.encoder.as_ref();
        let decoder = self.decoder.as_ref();
        encoder.map_or(0, |(entrance, encoder)| entrance.bytes() + encoder.bytes())
            + decoder.map_or(0, |(entrance, decoder)| entrance.bytes() + decoder.bytes())
            + self.read_out.as_ref().map_or(0, ReadOut::bytes)
            + self.heads.bytes()
            + self.words().iter().map(|words| words.bytes()).sum::<usize>()
    }

    /// Every table of words, once each.
    fn words(&self) -> Vec<&Arc<Words>> {
        let read_outs =
            self.read_out.iter().chain(self.heads.masked_lm.iter().map(|lm| &lm.read_out));
        let read_outs = read_outs.map(|read_out| &read_out.words);
        let mut tables: Vec<&Arc<Words>> = Vec::new();
        for words in self.embeddings().map(|embedding| &embedding.words).chain(read_outs) {
            if !tables.iter().any(|table| Arc::ptr_eq(table, words)) {
                tables.push(words);
            }
        }
        tables
    }
}
