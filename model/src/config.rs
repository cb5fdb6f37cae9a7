//! What a model is made of: sizes and options, in the letters of the paper, checked before anything is allocated.
//!
//! A `config.json` is mapped to this by its family's file under `checkpoint/`. A field that changes the result is
//! read strictly: an unknown word, a value out of range or a kind of model we do not compute is an error that
//! names the field. A field that is absent has the value that the family's reference implementation gives it.

mod fields;
mod preset;

use crate::checkpoint;
use crate::error::{Error, Result};
use crate::position::{BucketRange, Rotary, RotaryScaling, SinusoidLayout, check_buckets};
use crate::sublayer::NormPlacement;
pub(crate) use fields::{Fields, printable, read_file, regular_file};
use headrow_kernels::Activation;
use std::path::Path;

pub use crate::checkpoint::Family;

/// The sizes and options of a Transformer: an encoder, a decoder, or both.
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

/// Largest `config.json` that is read.
const MAX_BYTES: u64 = 16 << 20;

impl Config {
    /// Reads a `config.json`.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Config> {
        let path = path.as_ref();
        let bytes = read_file(path, MAX_BYTES)?;
        Config::parse(&bytes, &path.display().to_string())
    }

    /// Reads the text of a `config.json`.
    pub fn from_json(json: &[u8]) -> Result<Config> {
        Config::parse(json, "config")
    }

    fn parse(json: &[u8], place: &str) -> Result<Config> {
        let config = checkpoint::read_config(&Fields::parse(json, place)?)?;
        config.check(place)?;
        Ok(config)
    }

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

    /// What a decoder cannot have.
    fn check_decoder(&self, place: &str) -> Result<()> {
        let name = |field| checkpoint::field_name(self.family, field);
        let Some(stack) = &self.decoder else { return Ok(()) };
        if stack.distinct_layers != stack.layers {
            let problem = "every layer of a decoder has weights of its own";
            return Err(wrong(place, name("distinct_layers"), problem));
        }
        if stack.placement == NormPlacement::Parallel && self.encoder.is_some() {
            let problem = "side by side leaves no place for attention to the encoder";
            return Err(wrong(place, name("placement"), problem));
        }
        match stack.tokens().map(|tokens| tokens.positions) {
            // The count would depend on where a prompt is cut.
            Some(Positions::Learned { padding: Some(_), .. }) => {
                let problem = "a decoder's positions count every token";
                Err(wrong(place, name("padding"), problem))
            }
            _ => Ok(()),
        }
    }

    /// v: tokens that are read out, or read when nothing is. 0 for a model without tokens.
    pub fn vocabulary(&self) -> usize {
        self.last_stack().map_or(0, StackConfig::vocabulary)
    }

    /// The longest sequence that is read out of, as [`StackConfig::max_length`].
    pub fn max_length(&self) -> usize {
        self.last_stack().map_or(0, StackConfig::max_length)
    }

    /// Ranges of the fields and relations between them, also of a config that was changed after it was
    /// read. Against the weights they are checked when those are opened.
    pub(crate) fn check(&self, place: &str) -> Result<()> {
        let name = |field| checkpoint::field_name(self.family, field);
        check_size(place, name("d_model"), self.d_model)?;
        if self.encoder.is_none() && self.decoder.is_none() {
            return Err(wrong(place, "model_type", "neither an encoder nor a decoder"));
        }
        for (side, stack) in self.stacks() {
            let range = if side == "encoder" { BucketRange::Both } else { BucketRange::Past };
            // Of two stacks the message says which one.
            let both = self.encoder.is_some() && self.decoder.is_some();
            let place = if both { &format!("{place}: {side}") } else { place };
            stack.check(self.family, self.d_model, range, place)?;
        }
        self.check_decoder(place)?;
        if self.shares_words() {
            let sizes = self.stacks().filter_map(|(_, stack)| stack.tokens());
            let mut sizes = sizes.map(|tokens| (tokens.vocabulary, tokens.width));
            let first = sizes.next();
            if sizes.any(|other| Some(other) != first) {
                return Err(wrong(place, name("shared_words"), "the tables differ in size"));
            }
        }
        if !(self.read_out.scale.is_finite() && self.read_out.scale > 0.0) {
            return Err(wrong(place, "read_out.scale", "must be above 0 and finite"));
        }
        Ok(())
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

    /// The longest sequence that a session may ask for: beyond [`StackConfig::max_length`] where the rotary base then
    /// grows.
    pub(crate) fn longest_stretched(&self) -> usize {
        let length = self.max_length();
        match &self.relative {
            &RelativePositions::Rotary(Rotary {
                scaling: RotaryScaling::Dynamic { factor },
                max_position,
                ..
            }) if length == max_position => {
                ((length as f64 * factor) as usize).min(StackConfig::UNLIMITED).max(length)
            }
            _ => length,
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

    fn check(&self, family: Family, d_model: usize, range: BucketRange, place: &str) -> Result<()> {
        let name = |field| checkpoint::field_name(family, field);
        let refused = |field: &'static str, problem: &str| Err(wrong(place, name(field), problem));
        let sizes = [
            ("layers", self.layers),
            ("distinct_layers", self.distinct_layers),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("d_k", self.d_k),
            ("d_v", self.d_v),
            ("d_ff", self.d_ff),
        ];
        // Heads come before their widths, which follow from them where the file does not give them.
        if self.heads > 0 && self.d_k == d_model / self.heads && !d_model.is_multiple_of(self.heads)
        {
            let problem = format!("{} heads do not divide {d_model}", self.heads);
            return refused("heads", &problem);
        }
        for (field, size) in sizes {
            check_size(place, name(field), size)?;
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let problem = format!("{} do not divide {} heads", self.kv_heads, self.heads);
            return refused("kv_heads", &problem);
        }
        if self.distinct_layers > self.layers {
            let problem = format!("{} of {} layers", self.distinct_layers, self.layers);
            return refused("distinct_layers", &problem);
        }
        if self.distinct_layers < self.layers && self.scale == ScoreScale::PaperByLayer {
            return refused("distinct_layers", "shared layers have one factor of their scores");
        }
        if self.softcap.is_some_and(|cap| !(cap.is_finite() && cap > 0.0)) {
            return refused("softcap", "must be above 0 and finite");
        }
        if self.window == Some(0) {
            return refused("window", "must not be 0");
        }
        // Also once it is rounded to f32.
        if !(self.epsilon > 0.0 && self.epsilon.is_finite()) {
            let problem = format!("must be above 0 and finite, found {}", self.epsilon);
            return refused("epsilon", &problem);
        }
        self.check_relative(range, place, &name)?;
        self.input.check(d_model, place, &name)
    }

    fn check_relative(
        &self,
        range: BucketRange,
        place: &str,
        name: &dyn Fn(&'static str) -> &'static str,
    ) -> Result<()> {
        match &self.relative {
            RelativePositions::Rotary(rotary) => rotary.check(self.d_k, place),
            &RelativePositions::Buckets { buckets, max_distance } => {
                check_size(place, name("buckets"), buckets)?;
                check_size(place, name("max_distance"), max_distance)?;
                check_buckets(range, buckets, max_distance, place)
            }
            RelativePositions::None | RelativePositions::Alibi => Ok(()),
        }
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

    fn check(
        &self,
        d_model: usize,
        place: &str,
        name: &dyn Fn(&'static str) -> &'static str,
    ) -> Result<()> {
        let refused = |field, problem: &str| Err(wrong(place, name(field), problem));
        match self {
            Input::Tokens(tokens) => {
                check_size(place, name("vocabulary"), tokens.vocabulary)?;
                check_size(place, name("width"), tokens.width)?;
                if !(tokens.scale.is_finite() && tokens.scale > 0.0) {
                    return refused("scale", "must be above 0 and finite");
                }
                match tokens.positions {
                    Positions::Learned { rows, first, padding } => {
                        check_size(place, name("positions"), rows)?;
                        if rows.saturating_sub(first) == 0 {
                            let problem = format!("{rows} rows leave no position from {first} on");
                            return refused("positions", &problem);
                        }
                        if padding.is_some() && first == 0 {
                            return refused("first_position", "0 leaves no row for padding");
                        }
                        Ok(())
                    }
                    Positions::Sinusoidal { layout, .. } => {
                        layout.check(tokens.sum_width(d_model), place)
                    }
                    Positions::None => Ok(()),
                }
            }
            &Input::Patches { image, patch, channels } => {
                check_size(place, "image_size", image)?;
                check_size(place, "patch_size", patch)?;
                check_size(place, "num_channels", channels)?;
                if !image.is_multiple_of(patch) {
                    return refused("patch_size", &format!("{patch} does not divide {image}"));
                }
                Ok(())
            }
            &Input::Spectrogram { bands, frames } => {
                check_size(place, "num_mel_bins", bands)?;
                check_size(place, "max_source_positions", frames)
            }
            Input::Vectors => check_size(place, name("d_model"), d_model),
        }
    }
}

/// Not 0, and small enough that ids, positions and sums of a few sizes fit their types on every machine.
fn check_size(place: &str, field: &str, size: usize) -> Result<()> {
    match size {
        0 => Err(wrong(place, field, "must not be 0")),
        _ if size > u32::MAX as usize => {
            Err(wrong(place, field, &format!("{size} is beyond any model")))
        }
        _ => Ok(()),
    }
}

fn wrong(place: &str, field: &str, problem: &str) -> Error {
    let (place, field, problem) = (place.to_owned(), field.to_owned(), problem.to_owned());
    Error::Config { place, field, problem }
}
