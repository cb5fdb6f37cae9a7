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
//! | requests, steps, batches | `generator.rs`, `request.rs`, `stream.rs` |
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
mod request;
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
///
/// ```
/// use headrow::Result;
/// use headrow::generate::{
///     Beam, GenerationOptions, Generator, Limits, Prompt, StepModel, Strategy, TokenStream,
/// };
///
/// /// Counts on: after token t comes t + 1, a little less likely t + 2. A sequence needs no past.
/// struct Counting;
///
/// impl StepModel for Counting {
///     type Sequence = ();
///
///     fn step(&mut self, _: &[()], tokens: &[u32], logits: &mut [f32]) -> Result<()> {
///         logits.chunks_mut(10).zip(tokens).for_each(|(row, &token)| predict(row, token));
///         Ok(())
///     }
///
///     fn fork(&mut self, (): ()) -> Result<()> {
///         Ok(())
///     }
///
///     fn release(&mut self, (): ()) {}
/// }
///
/// fn predict(row: &mut [f32], token: u32) {
///     row.fill(-9.0);
///     row[(token as usize + 1) % 10] = 1.0;
///     row[(token as usize + 2) % 10] = 0.5;
/// }
///
/// // Ten tokens, four live sequences, eight tokens in each.
/// let mut generator = Generator::new(Limits::new(10, 4, 8))?;
/// let mut first = [0.0; 10];
/// predict(&mut first, 3);
/// let prompt = Prompt::new((), &[3], &first);
/// let greedy = GenerationOptions::default().with_max_new_tokens(4usize);
/// let mut model = Counting;
/// let stream = TokenStream::new(&mut generator, &mut model, prompt, &greedy, ())?;
/// let ids = stream.map(|token| Ok(token?.id)).collect::<Result<Vec<u32>>>()?;
/// assert_eq!(ids, [4, 5, 6, 7]);
///
/// // A beam of four finds no likelier sequence, and tells the second too.
/// let search = greedy.with_strategy(Strategy::Beam(Beam::new(4).with_n_best(2)));
/// let request = generator.add(&mut model, prompt, &search, &mut ())?;
/// generator.run(&mut model, &mut ())?;
/// let answers = generator.take(request).expect("it is over")?;
/// assert_eq!((answers.hypotheses.len(), &answers.best().tokens), (2, &ids));
/// # Ok::<(), headrow::Error>(())
/// ```
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
