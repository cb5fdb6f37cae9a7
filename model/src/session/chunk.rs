//! What a pass of the decoder reads, and what it writes.

use super::Sequence;
use crate::batch::Series;

/// Tokens that follow those of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    pub(super) sequence: Sequence,
    pub(super) content: Series<'a>,
    pub(super) sight: Sight,
}

/// What the tokens of a chunk see of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// What comes before each.
    Before,
    /// All of it.
    All,
}

impl<'a> Chunk<'a> {
    /// Ids of tokens.
    pub fn new(sequence: Sequence, ids: &'a [u32]) -> Chunk<'a> {
        Chunk { sequence, content: Series::Ids(ids), sight: Sight::Before }
    }

    /// Vectors of d_model features, for a stack without embeddings.
    pub fn vectors(sequence: Sequence, values: &'a [f32]) -> Chunk<'a> {
        Chunk { sequence, content: Series::Vectors(values), sight: Sight::Before }
    }

    /// The same tokens, each of which sees the whole chunk, not only what comes before it: the prefix of a prefix language
    /// model, or a decoder that is run without its mask. They are read in one pass.
    #[must_use]
    pub fn whole(self) -> Chunk<'a> {
        Chunk { sight: Sight::All, ..self }
    }

    /// How many tokens it has.
    pub(super) fn rows(&self, d_model: usize) -> usize {
        self.content.rows(d_model)
    }
}

/// What [`Session::extend`](super::Session::extend) writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Output {
    /// Nothing: the tokens are only remembered.
    None,
    /// The state of each chunk's last token, `chunks × d_model`.
    LastHidden,
    /// The states of all tokens, `tokens × d_model`.
    AllHidden,
    /// Scores of the word that follows each chunk, `chunks × vocabulary`.
    LastLogits,
    /// Scores of the word that follows each token, `tokens × vocabulary`: all factors of p(x) = Π p(x_t | x_<t).
    AllLogits,
}

impl Output {
    /// Whether every token has its row.
    pub(super) fn all(self) -> bool {
        matches!(self, Output::AllHidden | Output::AllLogits)
    }
}
