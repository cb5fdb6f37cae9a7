//! Training by the paper's recipe (§5).
//!
//! | "Attention Is All You Need" | file |
//! |---|---|
//! | §5.1 what a step learns from | `train/examples.rs` |
//! | §5.3 the rate of learning over the steps | `train/schedule.rs` |

mod examples;
mod schedule;

pub use examples::{Examples, Ragged};
pub use schedule::Schedule;
