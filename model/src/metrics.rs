//! Measures of answers: error rates, and BLEU as it is reported.

mod error_rate;

pub use error_rate::{ErrorRate, edit_distance};
