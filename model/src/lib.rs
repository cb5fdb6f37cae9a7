//! Transformers on CPUs: encoders, decoders and both together from Hugging Face folders, on kernels whose results
//! have the same bits on every instruction set, with any number of threads, alone or in a batch.
//!
#![cfg_attr(feature = "tokenizers", doc = "```no_run")]
#![cfg_attr(not(feature = "tokenizers"), doc = "```ignore")]
//! use headrow::SentenceEncoder;
//!
//! fn main() -> headrow::Result<()> {
//!     let encoder = SentenceEncoder::from_dir("all-MiniLM-L6-v2")?;
//!     let texts = ["A man is eating food.", "Somebody is having a meal."];
//!     let vectors = encoder.embed(texts)?;
//!     let cosine: f32 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
//!     println!("{} and {} are {cosine:.3} alike", texts[0], texts[1]);
//!     Ok(())
//! }
//! ```
//!
//! # The paper, section by section
//!
//! | "Attention Is All You Need" | file |
//! |---|---|
//! | §3, figure 1: the whole, in three families | `transformer.rs` |
//! | §3.1 stacks, residual sums, normalisation | `encoder.rs`, `decoder.rs`, `sublayer.rs` |
//! | §3.2 multi-head attention, in its three uses | `attention.rs` |
//! | §3.3 position-wise feed-forward networks | `feed_forward.rs` |
//! | §3.4 embeddings and read-out | `embedding.rs` |
//! | §3.5 positions | `position.rs` |
//! | §6.1 beam search and its kin | `generate.rs` |
//! | §4, table 1: what layers cost; table 3: how large models are | `accounting.rs` |
//! | §5 training: schedule, optimiser, regularisation, averaging | `train.rs` |
//! | §6 BLEU, and other measures of answers | `metrics.rs` |
//! | not in the paper: the Transformer of the theorems | `theory.rs` |
//! | not in the paper: images or spectrograms instead of words | `patches.rs`, `spectrogram.rs` |
//! | not in the paper: texts instead of tokens | `text.rs`, `sentence.rs`, `tokenizer.rs` |
//!
//! What comes from outside is read in `config.rs`, `weights.rs`, `checkpoint.rs`, `tokenizer.rs` and checked
//! there: damaged or hostile files end in an [`enum@Error`] that names the place, never in a panic.
#![forbid(unsafe_code)]

/// The examples of the README and of pages beside the project are compiled and run with the tests.
#[cfg(all(doctest, feature = "embedded-model"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/EMBEDDING.md")]
    struct Embedding;
    #[cfg(feature = "train")]
    #[doc = include_str!("../../docs/TRAINING.md")]
    struct Training;
}

pub mod accounting;
#[cfg(feature = "embedded-model")]
mod assets;
mod attention;
mod batch;
#[cfg(feature = "train")]
pub mod chart;
mod checkpoint;
mod config;
mod decoder;
mod embedding;
mod encoder;
mod error;
mod feed_forward;
pub mod generate;
mod head;
mod linear;
mod memory;
#[cfg(feature = "train")]
pub mod metrics;
mod model;
mod observer;
mod origin;
mod patches;
pub mod position;
#[cfg(feature = "embedded-model")]
mod pronouncer;
#[cfg(feature = "embedded-model")]
mod seeded;
#[cfg(feature = "tokenizers")]
mod sentence;
mod session;
mod spectrogram;
mod sublayer;
#[cfg(feature = "tokenizers")]
mod text;
#[cfg(feature = "train")]
pub mod theory;
#[cfg(feature = "tokenizers")]
mod tokenizer;
#[cfg(feature = "train")]
pub mod train;
mod transformer;
mod weights;

pub use batch::Batch;
pub use config::{
    Biases, Config, Family, Gating, Input, NormKind, NormPlacement, Positions, ReadOutConfig,
    RelativePositions, ScoreScale, SpecialTokens, StackConfig, TokenInput, Widening,
};
pub use error::{Error, Problems, Result};
pub use head::{Head, Normalization, Pooling};
pub use headrow_kernels::par::default_threads;
pub use headrow_kernels::{Activation, Cancel, Cpu, Isa, Mat, RopeLayout};
pub use model::{LoadOptions, Model};
pub use observer::{Observer, Place, Side, Sublayer};
pub use position::{Rotary, RotaryScaling, SinusoidLayout};
#[cfg(feature = "tokenizers")]
pub use sentence::{SentenceEncoder, SentenceOptions, TooLong};
pub use session::{Chunk, Output, Sequence, Session, SessionOptions};
#[cfg(feature = "tokenizers")]
pub use text::{AttentionKind, AttentionMap, AttentionMaps, Score, ScoredToken, TextModel};
#[cfg(feature = "tokenizers")]
pub use tokenizer::{Encoding, Text, TokenText, Tokenizer};
