//! What a model is made of: sizes and options, in the letters of the paper, checked before anything is allocated.
//!
//! A `config.json` is mapped to this by its family's file under `checkpoint/`. A field that changes the result is
//! read strictly: an unknown word, a value out of range or a kind of model we do not compute is an error that
//! names the field. A field that is absent has the value that the family's reference implementation gives it.

mod check;
mod fields;
mod foreign;
mod preset;

use crate::error::{Error, Result};
use crate::position::{Rotary, SinusoidLayout};
pub(crate) use fields::{Fields, printable, read_file, regular_file};
use headrow_kernels::Activation;

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

/// One stack of equal layers and what it reads.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StackConfig {
    /// What enters.
    pub input: Input,
    /// N: layers.
    pub layers: usize,
    /// Layers with weights of their own. Fewer than [`layers`](StackConfig::layers) when neighbours share them, as in ALBERT.
    pub distinct_layers: usize,
    /// h: heads of each attention.
    pub heads: usize,
    /// Heads of keys and values; as many as `heads` unless groups share them.
    pub kv_heads: usize,
    /// d_k: features of a head's queries and keys.
    pub d_k: usize,
    /// d_v: features of a head's values.
    pub d_v: usize,
    /// Factor of the scores.
    pub scale: ScoreScale,
    /// c: scores become c·tanh(score/c) before anything is added to them.
    pub softcap: Option<f32>,
    /// Positions inside self-attention, beside those that the input may add.
    pub relative: RelativePositions,
    /// w: a query sees the w last tokens, itself included, and in an encoder as many after it.
    pub window: Option<usize>,
    /// d_ff: inner features of the feed-forward network.
    pub d_ff: usize,
    /// Between the linear maps of the feed-forward network.
    pub activation: Activation,
    /// The word `config.json` has for it.
    pub activation_word: String,
    /// Whether the activation gates a second inner map.
    pub gating: Gating,
    /// Which maps and norms add a bias.
    pub biases: Biases,
    /// The kind of every norm in the layers.
    pub norm: NormKind,
    /// ε inside the root of every norm.
    pub epsilon: f32,
    /// Where the layers normalise.
    pub placement: NormPlacement,
    /// Whether a last norm follows the layers.
    pub final_norm: bool,
}

/// What a stack reads.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Input {
    /// Ids of tokens (§3.4).
    Tokens(TokenInput),
    /// Images cut into patches, and a first token that stands for the whole (ViT).
    Patches {
        /// Rows and columns of an image.
        image: usize,
        /// Rows and columns of a patch, a divisor of `image`.
        patch: usize,
        /// Numbers of a pixel.
        channels: usize,
    },
    /// Spectrograms through two convolutions, the second of which halves their length (Whisper).
    Spectrogram {
        /// Frequency bands.
        bands: usize,
        /// Frames after the convolutions.
        frames: usize,
    },
    /// Vectors of d_model features as the caller made them.
    Vectors,
}

/// Tables that turn ids into vectors.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TokenInput {
    /// v: tokens in the vocabulary.
    pub vocabulary: usize,
    /// Features of a word's row. Where it is not d_model, a linear map leads there.
    pub width: usize,
    /// What that map is given.
    pub widening: Widening,
    /// Multiplies the words: √d_model in the paper.
    pub scale: f32,
    /// Token types (segments of a sentence pair); 0 when the model has none.
    pub token_types: usize,
    /// What is added for a token's place.
    pub positions: Positions,
    /// Whether a norm follows the sum.
    pub norm: bool,
}

impl TokenInput {
    /// Words of d_model features, as they are: no positions, types or norm.
    pub(crate) fn words(vocabulary: usize, d_model: usize) -> TokenInput {
        TokenInput {
            vocabulary,
            width: d_model,
            widening: Widening::default(),
            scale: 1.0,
            token_types: 0,
            positions: Positions::None,
            norm: false,
        }
    }

    /// Features of what is added to the words.
    pub(crate) fn sum_width(&self, d_model: usize) -> usize {
        match self.widening {
            Widening::Sum => self.width,
            Widening::Words => d_model,
        }
    }
}

/// What is mapped to d_model features where the words are narrower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Widening {
    /// The sum of words, types and positions, behind its norm: all tables are narrow (ALBERT).
    #[default]
    Sum,
    /// The words alone; types and positions are as wide as the model (OPT).
    Words,
}

/// What is added to a token for its place (§3.5).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Positions {
    /// Nothing: places come in through attention, or not at all.
    None,
    /// A row of a learned table.
    Learned {
        /// Rows of the table.
        rows: usize,
        /// The row of a sequence's first token.
        first: usize,
        /// An id that stands outside the count and takes the row before `first`.
        padding: Option<u32>,
    },
    /// Sines and cosines, for any length.
    Sinusoidal {
        /// How they are arranged.
        layout: SinusoidLayout,
        /// The position of a sequence's first token.
        first: usize,
    },
}

/// How places enter attention.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum RelativePositions {
    /// Not at all.
    #[default]
    None,
    /// Queries and keys are rotated by their places.
    Rotary(Rotary),
    /// A learned number per head and bucket of offsets is added to the scores (T5).
    Buckets {
        /// Buckets of the table.
        buckets: usize,
        /// From this offset on, all share the last bucket.
        max_distance: usize,
    },
    /// A slope per head times the offset is added to the scores (ALiBi).
    Alibi,
}

/// Factor of the scores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum ScoreScale {
    /// 1/√d_k, as in the paper.
    #[default]
    Paper,
    /// 1, as in T5, whose weights were drawn for it.
    One,
    /// 1/(√d_k·(ℓ + 1)) in layer ℓ, counted from 0: an option of GPT-2's.
    PaperByLayer,
}

impl ScoreScale {
    /// The factor in layer `layer`, counted from 0.
    pub(crate) fn factor(self, d_k: usize, layer: usize) -> f32 {
        let root = 1.0 / (d_k as f32).sqrt();
        match self {
            ScoreScale::Paper => root,
            ScoreScale::One => 1.0,
            ScoreScale::PaperByLayer => root / (layer + 1) as f32,
        }
    }
}

/// Whether the activation of a feed-forward network gates a second inner map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gating {
    /// σ(xW₁ + b₁)W₂ + b₂.
    #[default]
    None,
    /// (σ(xW) ⊙ xV)W₂: SwiGLU, GEGLU and their kin.
    Gated,
}

/// Which maps and norms of the layers add a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Biases {
    /// The maps to queries, keys and values.
    pub queries_keys_values: bool,
    /// The map to keys, where the other two have one. It shifts all scores of a query alike, so Whisper does
    /// without.
    pub keys: bool,
    /// The map that follows the heads.
    pub attention_output: bool,
    /// The maps of the feed-forward network.
    pub feed_forward: bool,
    /// LayerNorm's β. RMSNorm has none.
    pub norms: bool,
}

impl Biases {
    /// All of them, as in the paper.
    pub const ALL: Biases = Biases::everywhere(true);
    /// None of them.
    pub const NONE: Biases = Biases::everywhere(false);

    const fn everywhere(bias: bool) -> Biases {
        Biases {
            queries_keys_values: bias,
            keys: bias,
            attention_output: bias,
            feed_forward: bias,
            norms: bias,
        }
    }
}

/// Where a layer normalises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormPlacement {
    /// LN(x + f(x)), as in the paper.
    Post,
    /// x + f(LN(x)); the stack then ends with a norm of its own.
    Pre,
    /// x + f(LN₁(x)) + g(LN₂(x)): attention and feed-forward side by side, as in GPT-NeoX.
    Parallel,
}

/// How a norm is defined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormKind {
    /// (x − µ)/√(σ² + ε)·γ + β.
    #[default]
    Layer,
    /// x/√(mean(x²) + ε)·γ.
    Rms,
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

impl StackConfig {
    /// A stack as the paper has it, of h heads of d_model/h features: post-norm, ReLU, LayerNorm, ε = 1e-5.
    ///
    /// `d_model` that `heads` do not divide is found when the config is checked.
    pub fn paper(
        input: Input,
        layers: usize,
        d_model: usize,
        heads: usize,
        d_ff: usize,
    ) -> StackConfig {
        let d_head = d_model.checked_div(heads).unwrap_or(0);
        StackConfig {
            input,
            layers,
            distinct_layers: layers,
            heads,
            kv_heads: heads,
            d_k: d_head,
            d_v: d_head,
            scale: ScoreScale::Paper,
            softcap: None,
            relative: RelativePositions::None,
            window: None,
            d_ff,
            activation: Activation::Relu,
            activation_word: "relu".to_owned(),
            gating: Gating::None,
            biases: Biases::ALL,
            norm: NormKind::Layer,
            epsilon: 1e-5,
            placement: NormPlacement::Post,
            final_norm: false,
        }
    }

    /// v, or 0 when no tokens are read.
    pub fn vocabulary(&self) -> usize {
        self.tokens().map_or(0, |tokens| tokens.vocabulary)
    }

    /// The tables of a stack that reads tokens.
    pub fn tokens(&self) -> Option<&TokenInput> {
        match &self.input {
            Input::Tokens(tokens) => Some(tokens),
            _ => None,
        }
    }

    /// The tables, of a family that reads tokens.
    ///
    /// # Errors
    /// [`Error::WrongInput`] when there are none: a config may be changed after it was read.
    pub(crate) fn token_input(&self) -> Result<&TokenInput> {
        let wrong = || Error::WrongInput { expected: "tokens", actual: self.input.name() };
        self.tokens().ok_or_else(wrong)
    }

    /// The longest sequence: as many tokens as a learned table has places for, as many patches or frames
    /// as an image or a spectrogram has; as many as a rotary scaling stretches to. Where nothing sets a limit,
    /// [`StackConfig::UNLIMITED`].
    pub fn max_length(&self) -> usize {
        self.length_with(Rotary::longest)
    }

    /// The longest sequence that a session is made for unless it is told otherwise: a dynamic rotary scaling changes the
    /// angles of all positions, so only who declares longer texts gets it.
    pub(crate) fn usual_length(&self) -> usize {
        self.length_with(|rotary| rotary.max_position)
    }

    fn length_with(&self, rotary_length: impl Fn(&Rotary) -> usize) -> usize {
        match &self.input {
            Input::Tokens(TokenInput {
                positions: Positions::Learned { rows, first, .. }, ..
            }) => rows.saturating_sub(*first),
            Input::Tokens(_) | Input::Vectors => match &self.relative {
                RelativePositions::Rotary(rotary) => rotary_length(rotary),
                _ => StackConfig::UNLIMITED,
            },
            &Input::Patches { image, patch, .. } => {
                let side = image.checked_div(patch).unwrap_or(0);
                side.saturating_mul(side).saturating_add(1)
            }
            Input::Spectrogram { frames, .. } => *frames,
        }
    }

    /// The longest sequence of a model that sets no limit itself.
    pub const UNLIMITED: usize = 1 << 24;

    /// Multiply-adds of all layers for one token, beside attention, or the largest number when that is beyond it.
    pub(crate) fn multiply_adds(&self, d_model: usize) -> usize {
        let times = |a: usize, b: usize| a.saturating_mul(b);
        let queries = times(self.heads, self.d_k.saturating_add(self.d_v));
        let keys = times(self.kv_heads, self.d_k.saturating_add(self.d_v));
        let inner = times(self.d_ff, if self.gating == Gating::Gated { 3 } else { 2 });
        let wide = queries.saturating_add(keys).saturating_add(inner);
        times(self.layers, times(d_model, wide))
    }
}

impl Input {
    /// In words.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Input::Tokens(_) => "tokens",
            Input::Patches { .. } => "images",
            Input::Spectrogram { .. } => "spectrograms",
            Input::Vectors => "vectors",
        }
    }
}
