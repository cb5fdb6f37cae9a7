//! What a model is made of: sizes and options, in the letters of the paper, checked before anything is allocated.
//!
//! A `config.json` is mapped to this by its family's file under `checkpoint/`. A field that changes the result is
//! read strictly: an unknown word, a value out of range or a kind of model we do not compute is an error that
//! names the field. A field that is absent has the value that the family's reference implementation gives it.

mod check;
mod fields;
mod foreign;
mod input;
mod preset;
mod stack;

use crate::error::{Error, Result};
use crate::observer::Side;
#[cfg(feature = "tokenizers")]
pub(crate) use fields::read_optional_file;
pub(crate) use fields::{Fields, printable, read_file, regular_file};
pub use input::{Input, Positions, TokenInput, Widening};
pub use stack::{
    Biases, Gating, NormKind, NormPlacement, RelativePositions, ScoreScale, StackConfig,
};

/// Families of checkpoints: each has its own names for the same layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// BERT, and MiniLM and others distilled into its form.
    Bert,
    /// RoBERTa, XLM-RoBERTa, CamemBERT: positions start behind the padding id.
    Roberta,
    /// DistilBERT: no token types, no pooler.
    DistilBert,
    /// ALBERT: layers share their weights, narrow embeddings.
    Albert,
    /// Vision Transformer.
    Vit,
    /// GPT-2.
    Gpt2,
    /// GPT-NeoX and Pythia: attention and feed-forward side by side.
    GptNeoX,
    /// OPT.
    Opt,
    /// Llama 2 and 3, and the many in its form.
    Llama,
    /// Mistral: Llama with a sliding window.
    Mistral,
    /// Qwen 2: Llama with biases of queries, keys and values.
    Qwen2,
    /// T5 1.0 and 1.1.
    T5,
    /// Marian's translators.
    Marian,
    /// BART.
    Bart,
    /// mBART: pre-norm.
    MBart,
    /// M2M-100 and NLLB.
    M2M100,
    /// Whisper: speech to text, from spectrograms.
    Whisper,
    /// OpenNMT's Transformer.
    OpenNmt,
    /// A state dict of `torch.nn.Transformer`: two stacks without embeddings.
    Torch,
    /// The paper's Transformer with all options of this library, and its own plain names.
    Paper,
}

/// The sizes and options of a Transformer: an encoder, a decoder, or both.
///
/// ```
/// use headrow::{Config, Input, StackConfig, TokenInput};
///
/// // The paper's base model, and a small one of the same kind.
/// assert_eq!(Config::base(37_000, 37_000).d_model, 512);
/// let mut config = Config::general(64);
/// let input = Input::Tokens(TokenInput::paper(1000, 64));
/// config.encoder = Some(StackConfig::paper(input.clone(), 2, 64, 4, 256));
/// config.decoder = Some(StackConfig::paper(input, 2, 64, 4, 256));
/// assert_eq!(config.decoder.as_ref().map(|stack| stack.d_k), Some(16));
/// println!("{}", config.to_json()?);
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Whose names the checkpoint uses.
    pub family: Family,
    /// d_model: features of a token.
    pub d_model: usize,
    /// The stack that reads its whole input at once.
    pub encoder: Option<StackConfig>,
    /// The stack that reads from left to right, and, beside an encoder, attends to its output.
    pub decoder: Option<StackConfig>,
    /// Whether an encoder and a decoder that both read tokens have one table of words.
    pub shared_words: bool,
    /// How the last states become scores of words.
    pub read_out: ReadOutConfig,
    /// Tokens with a meaning of their own.
    pub special: SpecialTokens,
    /// Class names as the checkpoint was trained for (`BertForMaskedLM` …), possibly none.
    pub architectures: Vec<String>,
    /// The labels of a classifier or tagger by index, when they are named.
    pub labels: Vec<String>,
}

/// How the last states become scores of words.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ReadOutConfig {
    /// Whether the matrix is that of the words.
    pub tied: bool,
    /// Multiplies the states before the product: 1/√d_model where T5 ties.
    pub scale: f32,
    /// Whether a number per word is added to the scores.
    pub bias: bool,
}

impl Default for ReadOutConfig {
    fn default() -> Self {
        ReadOutConfig { tied: true, scale: 1.0, bias: false }
    }
}

/// Tokens with a meaning of their own, as far as `config.json` names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecialTokens {
    /// Begins a text.
    pub begin: Option<u32>,
    /// Any of these ends it.
    pub end: Vec<u32>,
    /// Fills up batches elsewhere; never computed here.
    pub padding: Option<u32>,
    /// What a decoder beside an encoder reads first.
    pub decoder_start: Option<u32>,
}

impl Config {
    /// A config without stacks, to be filled in.
    pub(crate) fn empty(family: Family, d_model: usize) -> Config {
        Config {
            family,
            d_model,
            encoder: None,
            decoder: None,
            shared_words: true,
            read_out: ReadOutConfig::default(),
            special: SpecialTokens::default(),
            architectures: Vec::new(),
            labels: Vec::new(),
        }
    }

    /// The stacks there are, the encoder first, with their names.
    pub fn stacks(&self) -> impl Iterator<Item = (&'static str, &StackConfig)> {
        let encoder = self.encoder.as_ref().map(|stack| ("encoder", stack));
        encoder.into_iter().chain(self.decoder.as_ref().map(|stack| ("decoder", stack)))
    }

    /// The stack of this side, where there is one.
    pub(crate) fn stack(&self, side: Side) -> Option<&StackConfig> {
        match side {
            Side::Encoder => self.encoder.as_ref(),
            Side::Decoder => self.decoder.as_ref(),
        }
    }

    /// The stack whose last states are read out: the decoder where there is one.
    pub fn last_stack(&self) -> Option<&StackConfig> {
        self.decoder.as_ref().or(self.encoder.as_ref())
    }

    /// The encoder, of a family that has one.
    ///
    /// # Errors
    /// [`Error::NoStack`] when there is none: a config may be changed after it was read.
    pub(crate) fn encoder(&self) -> Result<&StackConfig> {
        self.encoder.as_ref().ok_or(Error::NoStack { stack: "encoder" })
    }

    /// The decoder, as [`Config::encoder`].
    pub(crate) fn decoder(&self) -> Result<&StackConfig> {
        self.decoder.as_ref().ok_or(Error::NoStack { stack: "decoder" })
    }

    /// Whether there are two stacks that read tokens, from one table of words.
    pub(crate) fn shares_words(&self) -> bool {
        self.shared_words
            && self.stacks().filter(|(_, stack)| stack.tokens().is_some()).count() == 2
    }

    /// v: tokens that are read out, or read when nothing is. 0 for a model without tokens.
    pub fn vocabulary(&self) -> usize {
        self.last_stack().map_or(0, StackConfig::vocabulary)
    }

    /// The longest sequence that is read out of, as [`StackConfig::max_length`].
    pub fn max_length(&self) -> usize {
        self.last_stack().map_or(0, StackConfig::max_length)
    }
}
