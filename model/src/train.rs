//! Training by the paper's recipe (§5).
//!
//! | "Attention Is All You Need" | file |
//! |---|---|
//! | §5.1 what a step learns from | `train/examples.rs` |

mod examples;

pub use examples::{Examples, Ragged};
