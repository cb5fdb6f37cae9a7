//! Decoding: from a model's predictions to sequences of tokens (§6.1 of the paper: beam search with a length
//! penalty; and greedy search and sampling).
//!
//! The algorithms know a model only as a [`StepModel`]: sequences that grow by one token a step. A [`Generator`] runs any
//! number of requests over one model, each with its own [`GenerationOptions`]; requests come and go
//! between steps. What one request gets depends on its options and its logits alone, never on its
//! neighbours.
//!
//! | part | file |
//! |---|---|
//! | requests, steps, batches | `generator.rs`, `stream.rs` |
//! | greedy search and sampling, one sequence each | `single.rs`, `sampling.rs`, `random.rs` |
//! | beam search and length penalties | `beam.rs`, `search.rs`, `length.rs` |
//! | what may not, or must, come next | `constraint.rs` |
//! | stop strings and text in pieces | `stop.rs` |
//! | the caller's own code: logits, text, progress | `hooks.rs` |
//! | options, also from `generation_config.json` | `options.rs`, `json.rs` |

mod beam;
mod constraint;
mod generator;
mod hooks;
mod json;
mod length;
mod line;
mod options;
pub(crate) mod random;
mod result;
mod sampling;
mod search;
mod select;
mod single;
mod stop;
mod stream;

pub use beam::{Beam, EarlyStopping};
pub use generator::{Generator, Limits, Prompt};
pub use hooks::{Callbacks, Detokenizer, Hooks, LogitsProcessor};
pub use length::LengthPenalty;
pub use options::{GenerationOptions, Strategy};
pub use result::{Finish, Generated, Hypothesis, Progress, Token, TokenScore};
pub use sampling::Sampling;
pub use stop::TextStream;
pub use stream::TokenStream;

use crate::error::Result;

/// What decoding asks of a model: sequences that grow by one token a step.
pub trait StepModel {
    /// A handle to the past of one sequence.
    type Sequence: Copy;

    /// Feeds one token to each sequence; row i of `logits`, `sequences × vocabulary`, becomes the prediction
    /// of what follows in sequence i.
    ///
    /// A row may depend on its own sequence only. After an error the sequences are as before the call.
    ///
    /// # Errors
    /// Whatever keeps the model from it; it ends the generator's step.
    fn step(
        &mut self,
        sequences: &[Self::Sequence],
        tokens: &[u32],
        logits: &mut [f32],
    ) -> Result<()>;

    /// A second sequence with the same past. What they share is best not copied.
    ///
    /// # Errors
    /// When there is no room for one more; it ends the request at hand.
    fn fork(&mut self, sequence: Self::Sequence) -> Result<Self::Sequence>;

    /// Takes back a sequence that is not needed any more.
    fn release(&mut self, sequence: Self::Sequence);
}
