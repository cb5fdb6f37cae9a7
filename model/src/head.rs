//! What turns hidden states into an answer: poolings, classifiers, the read-out to the vocabulary.

#[cfg(feature = "train")]
mod backward;
#[cfg(feature = "train")]
mod labelling;

#[cfg(feature = "train")]
pub(crate) use {backward::MaskedLmKept, labelling::LabelHead};

use crate::embedding::ReadOut;
use crate::error::{Error, Result};
use crate::linear::{Call, Linear, room, take};
use crate::sublayer::Norm;
use headrow_kernels::rows::math::tanh;
use headrow_kernels::{Activation, Cpu, Mat, MatMut, Need, Segment, Stack};

/// How the hidden states of a sequence become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// The mean over the tokens.
    #[default]
    Mean,
    /// The first token's state.
    Cls,
    /// The largest value of each feature.
    Max,
    /// The last token's state.
    LastToken,
}

/// What happens to a pooled vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Normalization {
    /// Nothing.
    #[default]
    None,
    /// x/max(‖x‖₂, 1e-12): cosines become dot products.
    L2,
}

/// A result computed from the last hidden states.
///
/// ```
/// # #[cfg(feature = "embedded-model")]
/// # {
/// use headrow::{Batch, Head, Normalization, Pooling, SentenceEncoder, SessionOptions};
///
/// let encoder = SentenceEncoder::seeded()?;
/// let mut session = encoder.session(&SessionOptions::default())?;
/// let head = Head::Pooled(Pooling::Mean, Normalization::L2);
/// let (ids, lengths) = ([1, 2, 3, 1, 2], [3, 2]);
/// let (rows, cols) = encoder.model().output_shape(head, ids.len(), lengths.len())?;
/// let mut vectors = vec![0.0; rows * cols];
/// session.predict(&Batch::ragged(&ids, &lengths), head, &mut vectors)?;
/// let norm = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>().sqrt();
/// assert!(vectors.chunks(cols).all(|vector| (norm(vector) - 1.0).abs() < 1e-6));
/// # }
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Head {
    /// One vector per sequence, `sequences × d_model`. Needs no weights.
    Pooled(Pooling, Normalization),
    /// tanh(x_first·W + b), `sequences × d_model`: BERT's pooler.
    Pooler,
    /// Scores of every word at every token, `tokens × vocabulary`: the masked language model.
    MaskedLm,
    /// Scores of the labels, `sequences × labels`.
    SequenceClassifier,
    /// Scores of the labels at every token, `tokens × labels`.
    TokenTagger,
    /// Whether the second segment follows the first, `sequences × 2`: BERT's second pretraining task.
    NextSentence,
}

impl Head {
    /// A name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Head::Pooled(..) => "pooled vectors",
            Head::Pooler => "pooler",
            Head::MaskedLm => "masked-language-model head",
            Head::SequenceClassifier => "sequence classifier",
            Head::TokenTagger => "token tagger",
            Head::NextSentence => "next-sentence head",
        }
    }
}

/// Between the two maps of a sequence classifier.
#[derive(Clone, Copy)]
pub(crate) enum Squash {
    Tanh,
    Relu,
}

impl Squash {
    /// What the map before it can do on the way.
    fn activation(self) -> Activation {
        match self {
            Squash::Tanh => Activation::Identity,
            Squash::Relu => Activation::Relu,
        }
    }

    /// What is left to do.
    fn finish(self, call: Call<'_>, x: MatMut<'_>) {
        if let Squash::Tanh = self {
            tanh(call.cpu, call.par, x);
        }
    }
}

/// What a sequence classifier's last map reads.
pub(crate) enum Before {
    /// What the pooler makes of the first state.
    Pooler,
    /// squash(x_first·W₁ + b₁) with a map of its own.
    Dense(Linear, Squash),
    /// x_first, the first state itself.
    Nothing,
}

/// squash(x_first·W₁ + b₁)·W₂ + b₂, or x_first·W₂ + b₂.
pub(crate) struct Classifier {
    pub(crate) before: Before,
    /// W₂, b₂.
    pub(crate) output: Linear,
}

impl Classifier {
    /// W₁, b₁, when they are its own.
    pub(crate) fn dense(&self) -> Option<&Linear> {
        match &self.before {
            Before::Dense(dense, _) => Some(dense),
            Before::Pooler | Before::Nothing => None,
        }
    }
}

/// LN(σ(x·W + b))·Eᵀ + bias, E being the word embeddings unless the checkpoint has a matrix of its own.
pub(crate) struct MaskedLm {
    pub(crate) transform: Linear,
    pub(crate) activation: Activation,
    pub(crate) norm: Norm,
    pub(crate) read_out: ReadOut,
}

/// The heads that a checkpoint came with.
#[derive(Default)]
pub(crate) struct Heads {
    pub(crate) pooler: Option<Linear>,
    pub(crate) masked_lm: Option<MaskedLm>,
    pub(crate) classifier: Option<Classifier>,
    pub(crate) tagger: Option<Linear>,
    pub(crate) next_sentence: Option<Linear>,
}

/// The last hidden states, and which rows belong to which sequence.
#[derive(Clone, Copy)]
pub(crate) struct Encoded<'a> {
    pub(crate) hidden: Mat<'a>,
    pub(crate) segments: &'a [Segment],
}

impl Heads {
    /// Rows and columns of `head`'s result, or an error when its weights are not there.
    pub(crate) fn shape(
        &self,
        head: Head,
        d_model: usize,
        tokens: usize,
        sequences: usize,
    ) -> Result<(usize, usize)> {
        let pooler = self.pooler.as_ref();
        let shape = match head {
            Head::Pooled(..) => Some((sequences, d_model)),
            Head::Pooler => pooler.map(|pooler| (sequences, pooler.outputs())),
            Head::MaskedLm => self.masked_lm.as_ref().map(|lm| (tokens, lm.read_out.outputs())),
            Head::SequenceClassifier => {
                self.classifier.as_ref().map(|head| (sequences, head.output.outputs()))
            }
            Head::TokenTagger => self.tagger.as_ref().map(|head| (tokens, head.outputs())),
            Head::NextSentence => self.next_sentence.as_ref().map(|_| (sequences, 2)),
        };
        shape.ok_or(Error::NoHead { head: head.name() })
    }

    /// out ← head(hidden), in the shape that [`Heads::shape`] gave.
    pub(crate) fn forward(
        &self,
        head: Head,
        call: Call<'_>,
        encoded: Encoded<'_>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let there = "the shape of the result was asked for, so the weights are there";
        match head {
            Head::Pooled(pooling, normalization) => {
                pool(pooling, normalization, encoded.hidden, encoded.segments, out);
            }
            Head::Pooler => {
                let pooler = self.pooler.as_ref().expect(there);
                first_dense(pooler, Squash::Tanh, call, encoded, out, stack);
            }
            Head::MaskedLm => {
                self.masked_lm.as_ref().expect(there).forward(call, encoded, out, stack)
            }
            Head::SequenceClassifier => {
                let Classifier { before, output } = self.classifier.as_ref().expect(there);
                let dense = match before {
                    Before::Pooler => Some((self.pooler.as_ref().expect(there), Squash::Tanh)),
                    Before::Dense(dense, squash) => Some((dense, *squash)),
                    Before::Nothing => None,
                };
                classify(dense, output, call, encoded, out, stack);
            }
            Head::TokenTagger => {
                let tagger = self.tagger.as_ref().expect(there);
                tagger.forward(call, encoded.hidden, Activation::Identity, None, out, stack);
            }
            Head::NextSentence => {
                let dense = self.pooler.as_ref().expect(there);
                let output = self.next_sentence.as_ref().expect(there);
                classify(Some((dense, Squash::Tanh)), output, call, encoded, out, stack);
            }
        }
    }

    /// Scratch of the heads over up to `tokens` tokens in up to `sequences` sequences.
    pub(crate) fn scratch(
        &self,
        cpu: Cpu,
        threads: usize,
        d_model: usize,
        tokens: usize,
        sequences: usize,
    ) -> Need {
        let of = |linear: &Linear, rows| linear.scratch(cpu, threads, rows);
        let classifier = self.classifier.as_ref();
        let dense = [self.pooler.as_ref(), classifier.and_then(Classifier::dense)];
        let output = [self.next_sentence.as_ref(), classifier.map(|head| &head.output)];
        let first = room(sequences, d_model);
        // The first tokens' states, what the dense map makes of them, and the map at work.
        let linears = dense.into_iter().chain(output).flatten();
        let mut need = linears
            .fold(Need::NONE, |need, linear| need.or(first.times(2).and(of(linear, sequences))));
        if let Some(tagger) = &self.tagger {
            need = need.or(of(tagger, tokens));
        }
        if let Some(lm) = &self.masked_lm {
            need = need.or(lm.scratch(cpu, threads, tokens));
        }
        need
    }

    /// Bytes of the weights, beside the words, which others may share.
    pub(crate) fn bytes(&self) -> usize {
        let Heads { pooler, masked_lm, classifier, tagger, next_sentence } = self;
        let classifier = classifier.as_ref().map(|head| (head.dense(), &head.output));
        let (dense, output) = classifier.unzip();
        let single = [pooler, tagger, next_sentence].map(Option::as_ref);
        let linears = single.into_iter().chain([dense.flatten(), output]).flatten();
        linears.map(Linear::bytes).sum::<usize>() + masked_lm.as_ref().map_or(0, MaskedLm::bytes)
    }
}

impl MaskedLm {
    fn forward(
        &self,
        call: Call<'_>,
        encoded: Encoded<'_>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let hidden = encoded.hidden;
        let (rows, d) = (hidden.rows(), self.transform.outputs());
        let (mut transformed, mut stack) = take(stack, rows, d);
        let (mut normed, mut stack) = take(&mut stack, rows, d);
        let x = transformed.reborrow();
        self.transform.forward(call, hidden, self.activation, None, x, &mut stack);
        self.norm.forward(call, transformed.as_ref(), normed.reborrow());
        self.read_out.forward(call, normed.as_ref(), out, &mut stack);
    }

    fn bytes(&self) -> usize {
        self.transform.bytes() + self.norm.bytes() + self.read_out.bytes()
    }

    fn scratch(&self, cpu: Cpu, threads: usize, tokens: usize) -> Need {
        let two = room(tokens, self.transform.outputs()).times(2);
        let read_out = self.read_out.scratch(cpu, threads, tokens);
        two.and(self.transform.scratch(cpu, threads, tokens).or(read_out))
    }
}

/// out ← squash(x_first·W + b), a row per sequence.
fn first_dense(
    dense: &Linear,
    squash: Squash,
    call: Call<'_>,
    encoded: Encoded<'_>,
    mut out: MatMut<'_>,
    stack: &mut Stack<'_>,
) {
    let (mut first, mut stack) = take(stack, encoded.segments.len(), encoded.hidden.cols());
    first_states(encoded, first.reborrow());
    let (x, activation) = (first.as_ref(), squash.activation());
    dense.forward(call, x, activation, None, out.reborrow(), &mut stack);
    squash.finish(call, out);
}

/// out ← squash(x_first·W₁ + b₁)·W₂ + b₂, a row per sequence; or without the first map.
fn classify(
    dense: Option<(&Linear, Squash)>,
    output: &Linear,
    call: Call<'_>,
    encoded: Encoded<'_>,
    out: MatMut<'_>,
    stack: &mut Stack<'_>,
) {
    let (mut pooled, mut stack) = take(stack, encoded.segments.len(), output.weight.k());
    match dense {
        Some((dense, squash)) => {
            first_dense(dense, squash, call, encoded, pooled.reborrow(), &mut stack);
        }
        None => first_states(encoded, pooled.reborrow()),
    }
    output.forward(call, pooled.as_ref(), Activation::Identity, None, out, &mut stack);
}

/// out ← x_first, a row per sequence.
fn first_states(encoded: Encoded<'_>, out: MatMut<'_>) {
    pool(Pooling::Cls, Normalization::None, encoded.hidden, encoded.segments, out);
}

/// One row per sequence from the rows of its tokens, in their order, so that neighbours do not matter.
fn pool(
    pooling: Pooling,
    normalization: Normalization,
    hidden: Mat<'_>,
    segments: &[Segment],
    mut out: MatMut<'_>,
) {
    for (sequence, segment) in segments.iter().enumerate() {
        let rows = hidden.rows_range(segment.queries.clone());
        let pooled = out.row_mut(sequence);
        let (first, last) = (rows.row(0), rows.row(rows.rows() - 1));
        pooled.copy_from_slice(if pooling == Pooling::LastToken { last } else { first });
        for row in (1..rows.rows()).map(|i| rows.row(i)) {
            let pairs = pooled.iter_mut().zip(row);
            match pooling {
                Pooling::Mean => pairs.for_each(|(sum, x)| *sum += x),
                Pooling::Max => pairs.for_each(|(max, &x)| *max = larger(*max, x)),
                Pooling::Cls | Pooling::LastToken => break,
            }
        }
        if pooling == Pooling::Mean {
            let count = rows.rows() as f32;
            pooled.iter_mut().for_each(|sum| *sum /= count);
        }
        if normalization == Normalization::L2 {
            let squares: f64 = pooled.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let norm = squares.sqrt().max(1e-12);
            pooled.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
        }
    }
}

/// The larger one; NaN when either is.
fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}
