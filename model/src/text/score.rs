//! How likely a text is to a model: log-probabilities token by token, and perplexity.

use super::{TextModel, is_added};
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::session::check::check_length;
use crate::session::{Chunk, Output, Sequence, Session};
use crate::tokenizer::{Encoding, Text};
use headrow_kernels::{MatMut, Par, log_softmax};
use std::ops::Range;

/// Logits that are held at a time.
const LOGITS: usize = 1 << 22;

/// A token of a text and how likely it was.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScoredToken {
    /// The token.
    pub id: u32,
    /// As the vocabulary writes it.
    pub token: String,
    /// Its bytes in the text; none for special tokens.
    pub range: Range<usize>,
    /// ln p(x_t | x_<t); `None` for the first token of a decoder, which nothing predicts.
    pub log_probability: Option<f32>,
    /// The token that the model held likeliest in its place, of equals the lowest; `None` where nothing predicts it.
    pub likeliest: Option<u32>,
}

/// How likely a text is.
///
/// A decoder's first token has no probability: the text's own first one, where the tokenizer adds none that begins a text.
/// No end is added. Beside an encoder every token of the target counts, the first one given the decoder's start, and the end
/// is one of them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Score {
    /// The tokens of the text, or of the target.
    pub tokens: Vec<ScoredToken>,
    /// Σ ln p over those that have one.
    pub log_probability: f64,
    /// How many these are.
    pub counted: usize,
}

impl Score {
    /// exp(−Σ ln p / n); NaN when nothing counts.
    pub fn perplexity(&self) -> f64 {
        Score::perplexity_of(self.log_probability, self.counted)
    }

    /// exp(−Σ ln p / n) of a sum over n tokens, as over several texts; NaN for none.
    pub fn perplexity_of(log_probability: f64, counted: usize) -> f64 {
        libm::exp(-log_probability / counted as f64)
    }
}

/// What a model foresaw in the place of a token.
#[derive(Clone, Copy)]
struct Prediction {
    /// Of the token itself.
    log_probability: f32,
    likeliest: u32,
}

/// The likeliest token, of equals the lowest.
fn likeliest(log_probabilities: &[f32]) -> u32 {
    let first = (0, f32::NEG_INFINITY);
    let pairs = (0..).zip(log_probabilities.iter().copied());
    pairs.fold(first, |best, next| if next.1 > best.1 { next } else { best }).0
}

impl TextModel {
    /// How likely the model holds a text. Beside an encoder it is a pair, and the second text is scored given the first.
    ///
    /// ```
    /// # #[cfg(feature = "embedded-model")]
    /// # {
    /// use headrow::{SessionOptions, TextModel};
    ///
    /// let model = TextModel::pronouncer()?;
    /// let mut session = model.session(&SessionOptions::default())?;
    /// let right = model.score(&mut session, ("c a t", "K AE T"))?;
    /// let wrong = model.score(&mut session, ("c a t", "D AO G"))?;
    /// assert!(right.log_probability > wrong.log_probability);
    /// assert_eq!(right.counted, 4, "three phonemes and the end");
    /// # }
    /// # Ok::<(), headrow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Tokenizer`], [`Error::EmptySequence`], [`Error::SequenceTooLong`] and as [`Session::extend`];
    /// [`Error::NoSource`] for a single text beside an encoder; [`Error::InvalidLogit`] when the model gives NaN.
    pub fn score<'a>(&self, session: &mut Session, text: impl Into<Text<'a>>) -> Result<Score> {
        let visit = session.visit();
        let session = &mut *visit.session;
        let (sequence, encoding, given) = match (text.into(), &self.model.config().encoder) {
            (text, None) => {
                let encoding = self.tokenize(text)?;
                (session.add()?, encoding, Vec::new())
            }
            (Text::Single(_), Some(_)) => return Err(Error::NoSource),
            (Text::Pair(source, target), Some(_)) => {
                let ids = self.tokenize(source)?.ids;
                let target = self.target_encoding(target)?;
                let start = self.decoder_start()?;
                (session.add_sources(&Batch::one(&ids))?[0], target, start)
            }
        };
        self.score_in(session, sequence, &given, encoding)
    }

    /// What the decoder reads before the text.
    pub(super) fn decoder_start(&self) -> Result<Vec<u32>> {
        match self.options.decoder_prompt.is_empty() {
            true => Ok(vec![self.model.config().special.decoder_start.ok_or(Error::NoStart)?]),
            false => Ok(self.options.decoder_prompt.clone()),
        }
    }

    /// A target as the decoder writes it: its language, where one is forced, the text with the special tokens that itself has,
    /// one end.
    pub(super) fn target_encoding(&self, text: &str) -> Result<Encoding> {
        let tokenizer = self.target_tokenizer();
        let mut encoding = tokenizer.encode_with_offsets(text, None)?;
        let pairs = encoding.ids.iter().copied().zip(encoding.offsets.iter().cloned());
        let own = pairs.filter(|(id, range)| !is_added(tokenizer, *id, range));
        let ends = |id: &Option<u32>| id.map(|id| (id, 0..0));
        let first = ends(&self.options.forced_first);
        let last = ends(&self.options.stop_ids.first().copied());
        (encoding.ids, encoding.offsets) = first.into_iter().chain(own).chain(last).unzip();
        encoding.full_length = encoding.ids.len();
        encoding.token_types = vec![0; encoding.full_length];
        Ok(encoding)
    }

    fn score_in(
        &self,
        session: &mut Session,
        sequence: Sequence,
        given: &[u32],
        encoding: Encoding,
    ) -> Result<Score> {
        let ids = [given, &encoding.ids].concat();
        let unpredicted = usize::from(given.is_empty()).min(ids.len());
        let mut predicted = vec![None; unpredicted];
        self.predictions(session, sequence, &ids, &mut |position, next| {
            // The decoder's prompt itself is given.
            if position + 1 >= given.len() {
                predicted.push(Some(next));
            }
        })?;
        let counted: Vec<f32> =
            predicted.iter().flatten().map(|next| next.log_probability).collect();
        let tokens = encoding.ids.iter().zip(encoding.offsets).zip(predicted);
        let tokens = tokens.map(|((&id, range), predicted)| {
            let token = self.target_tokenizer().token(id).unwrap_or_default();
            let (log_probability, likeliest) =
                predicted.map(|next| (next.log_probability, next.likeliest)).unzip();
            ScoredToken { id, token, range, log_probability, likeliest }
        });
        Ok(Score {
            tokens: tokens.collect(),
            // Adding 0 turns the −0 of an empty sum into 0.
            log_probability: counted.iter().map(|&x| f64::from(x)).sum::<f64>() + 0.0,
            counted: counted.len(),
        })
    }

    /// Calls `each` with every position but the last, and how the id that follows it was foreseen.
    fn predictions(
        &self,
        session: &mut Session,
        sequence: Sequence,
        ids: &[u32],
        each: &mut dyn FnMut(usize, Prediction),
    ) -> Result<()> {
        check_length(0, ids.len(), session.max_length())?;
        let vocabulary = session.generator()?.limits().vocabulary;
        let rows = (LOGITS / vocabulary.max(1)).clamp(1, session.max_tokens().max(1));
        let mut logits = Vec::new();
        let (read, cpu) = (&ids[..ids.len() - 1], self.model.cpu());
        for (index, chunk) in read.chunks(rows).enumerate() {
            logits.resize(chunk.len() * vocabulary, 0.0);
            let chunks = [Chunk::new(sequence, chunk)];
            session.extend(&chunks, Output::AllLogits, &mut logits)?;
            log_softmax(cpu, Par::SERIAL, MatMut::new(&mut logits, chunk.len(), vocabulary));
            for (row, position) in logits.chunks_exact(vocabulary).zip(index * rows..) {
                let id = ids[position + 1];
                let value = row.get(id as usize).copied();
                let value = value.ok_or(Error::TokenId {
                    sequence: 0,
                    index: position + 1,
                    id,
                    vocabulary,
                })?;
                if value.is_nan() {
                    return Err(Error::InvalidLogit { sequence: 0, step: position, id, value });
                }
                each(position, Prediction { log_probability: value, likeliest: likeliest(row) });
            }
        }
        Ok(())
    }
}
