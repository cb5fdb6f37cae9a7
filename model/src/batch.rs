//! What an encoder reads in one call: sequences of tokens, images, spectrograms or vectors.

/// One or several sequences, one behind the other.
///
/// ```
/// use headrow::Batch;
///
/// // A sequence of two tokens and one of three; nothing is padded.
/// let (ids, lengths) = ([101, 102, 101, 7592, 102], [2, 3]);
/// let batch = Batch::ragged(&ids, &lengths).with_token_types(&[0; 5]);
/// assert_eq!((batch.sequences(), batch.ids().len()), (2, 5));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    content: Content<'a>,
    /// `None`: all ids are one sequence.
    lengths: Option<&'a [usize]>,
    token_types: Option<&'a [u32]>,
}

/// What a batch holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    Series(Series<'a>),
    Images { pixels: &'a [f32], count: usize },
    Spectrograms { values: &'a [f32], count: usize },
}

/// Tokens one behind the other, as either stack may read them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Series<'a> {
    Ids(&'a [u32]),
    /// Vectors of d_model features that stand for tokens.
    Vectors(&'a [f32]),
}

impl Content<'_> {
    /// In words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Content::Series(series) => series.name(),
            Content::Images { .. } => "images",
            Content::Spectrograms { .. } => "spectrograms",
        }
    }
}

impl Series<'_> {
    /// In words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Series::Ids(_) => "tokens",
            Series::Vectors(_) => "vectors",
        }
    }

    /// How many tokens there are.
    pub(crate) fn rows(self, d_model: usize) -> usize {
        match self {
            Series::Ids(ids) => ids.len(),
            Series::Vectors(values) => values.len() / d_model,
        }
    }
}

impl<'a> Batch<'a> {
    /// One sequence.
    pub fn one(ids: &'a [u32]) -> Batch<'a> {
        Batch { content: Content::Series(Series::Ids(ids)), lengths: None, token_types: None }
    }

    /// Several sequences: the first `lengths[0]` ids, the next `lengths[1]`, and so on.
    pub fn ragged(ids: &'a [u32], lengths: &'a [usize]) -> Batch<'a> {
        Batch { lengths: Some(lengths), ..Batch::one(ids) }
    }

    /// Sequences of vectors of d_model features, for stacks without embeddings.
    pub fn vectors(values: &'a [f32], lengths: &'a [usize]) -> Batch<'a> {
        let content = Content::Series(Series::Vectors(values));
        Batch { content, lengths: Some(lengths), token_types: None }
    }

    /// `count` images, each channels × rows × columns.
    pub fn images(pixels: &'a [f32], count: usize) -> Batch<'a> {
        Batch { content: Content::Images { pixels, count }, lengths: None, token_types: None }
    }

    /// `count` log-mel spectrograms, each bands × frames.
    pub fn spectrograms(values: &'a [f32], count: usize) -> Batch<'a> {
        Batch { content: Content::Spectrograms { values, count }, lengths: None, token_types: None }
    }

    /// The same batch with a token type for every id: 1 for the second text of a pair, else 0.
    /// Without them all types are 0.
    #[must_use]
    pub fn with_token_types(self, token_types: &'a [u32]) -> Batch<'a> {
        Batch { token_types: Some(token_types), ..self }
    }

    pub(crate) fn content(&self) -> Content<'a> {
        self.content
    }

    /// The ids of all sequences; none when it is not ids that are read.
    pub fn ids(&self) -> &'a [u32] {
        match self.content {
            Content::Series(Series::Ids(ids)) => ids,
            _ => &[],
        }
    }

    /// The token types, when they were given.
    pub fn token_types(&self) -> Option<&'a [u32]> {
        self.token_types
    }

    /// How many sequences there are.
    pub fn sequences(&self) -> usize {
        match (self.content, self.lengths) {
            (Content::Images { count, .. } | Content::Spectrograms { count, .. }, _) => count,
            (_, Some(lengths)) => lengths.len(),
            (_, None) => 1,
        }
    }

    /// The length of each sequence in a model whose images or spectrograms take `each` places.
    pub(crate) fn lengths(&self, each: usize) -> impl Iterator<Item = usize> + use<'a> {
        let (single, fixed) = match (self.content, self.lengths) {
            (Content::Images { count, .. } | Content::Spectrograms { count, .. }, _) => {
                (None, count)
            }
            (Content::Series(Series::Ids(ids)), None) => (Some(ids.len()), 0),
            _ => (None, 0),
        };
        let fixed = std::iter::repeat_n(each, fixed);
        single.into_iter().chain(fixed).chain(self.lengths.unwrap_or_default().iter().copied())
    }
}
