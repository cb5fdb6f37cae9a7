//! Measures of answers: error rates, and BLEU as it is reported (§6.1).
//!
//! Perplexity and the accuracy of single tokens are those of a [`Loss`](crate::train::Loss).

mod bleu;
mod error_rate;
mod words;

pub use bleu::{Bleu, BleuCase, BleuOptions, BleuOrders, BleuScore, BleuSmoothing};
pub use error_rate::{ErrorRate, edit_distance};
pub use words::BleuWords;
