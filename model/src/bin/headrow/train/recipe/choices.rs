//! What the options of a recipe choose among, as words on the command line and in `run.json`.

use clap::ValueEnum;
use headrow::train::SmoothingKind;
use serde::{Deserialize, Serialize};
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum Lower {
    Nothing,
    /// Sources, or texts that stand alone.
    Sources,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum Objective {
    /// A target, given its source: an encoder–decoder.
    Seq2seq,
    /// Each token of a text, given those before: a decoder.
    Causal,
    /// Hidden tokens of a text, given the others: an encoder, in the form of BERT.
    Masked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum TextLayout {
    Lines,
    Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum Placement {
    /// LN(x + f(x)), as in the paper.
    Post,
    /// x + f(LN(x)), with a norm behind the last layer.
    Pre,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum Norm {
    Layer,
    Rms,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum ActivationName {
    Relu,
    /// x·Φ(x).
    Gelu,
    /// Its form with tanh.
    GeluTanh,
    Silu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum Places {
    /// Sines and cosines are added to the words, as in the paper.
    Sinusoidal,
    /// A learned table is.
    Learned,
    /// Queries and keys are rotated.
    Rotary,
    /// Learned biases by offset, as in T5.
    Buckets,
    /// Biases by distance (ALiBi).
    Alibi,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum Tie {
    All,
    Target,
    None,
}

/// Among which tokens label smoothing shares out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum Sharing {
    /// All, the label included: each gets ε/v.
    All,
    /// All but the label: each gets ε/(v − 1).
    Others,
}

impl From<Sharing> for SmoothingKind {
    fn from(sharing: Sharing) -> SmoothingKind {
        match sharing {
            Sharing::All => SmoothingKind::All,
            Sharing::Others => SmoothingKind::Others,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum ScheduleName {
    /// d_model^-0.5 · min(step^-0.5, step · warmup^-1.5).
    Paper,
    /// A linear rise, then half a cosine wave down to 0.
    Cosine,
    /// A linear rise, then always the same.
    Constant,
}

/// What `--tokenizer` says.
pub(in super::super) enum TokenizerName<'a> {
    Words,
    /// Of so many tokens.
    Pairs(&'a str),
    File(&'a Path),
}

impl TokenizerName<'_> {
    pub(in super::super) fn of(how: &str) -> TokenizerName<'_> {
        match how.split_once(':') {
            None if how == "words" => TokenizerName::Words,
            Some(("bpe", size)) => TokenizerName::Pairs(size),
            _ => TokenizerName::File(Path::new(how)),
        }
    }
}
