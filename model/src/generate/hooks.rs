//! The caller's own code in a decoding loop.

use super::result::Progress;
use std::fmt;
use std::ops::ControlFlow;

/// Changes the logits of the next token. Closures `FnMut(&[u32], &mut [f32])` are processors.
pub trait LogitsProcessor {
    /// Changes `logits`, one per token of the vocabulary, of what follows `tokens`, prompt included.
    ///
    /// It comes after the constraints of the options. −∞ rules a token out; NaN and +∞ end the request with an
    /// error, as do logits that rule out everything. In beam search the values are log-probabilities, and
    /// what they become counts in the score; one above 0 makes the score's upper bound wrong, by which
    /// [`EarlyStopping::ByBound`](super::EarlyStopping::ByBound) stops.
    fn process(&mut self, tokens: &[u32], logits: &mut [f32]);
}

impl<F: FnMut(&[u32], &mut [f32])> LogitsProcessor for F {
    fn process(&mut self, tokens: &[u32], logits: &mut [f32]) {
        self(tokens, logits);
    }
}

/// Turns tokens into text, one by one. Closures `FnMut(&[u32], u32, &mut Vec<u8>)` are detokenizers.
pub trait Detokenizer {
    /// Appends to `text` the UTF-8 bytes that `token` adds after the generated tokens `before`: perhaps part of a
    /// character, perhaps nothing. The same arguments give the same bytes.
    fn append(&mut self, before: &[u32], token: u32, text: &mut Vec<u8>);
}

impl<F: FnMut(&[u32], u32, &mut Vec<u8>)> Detokenizer for F {
    fn append(&mut self, before: &[u32], token: u32, text: &mut Vec<u8>) {
        self(before, token, text);
    }
}

/// The caller's code that a generator runs, for each of its requests by number. `()` is none.
///
/// After a panic in one of these the generator refuses further steps until it is
/// [cleared](super::Generator::clear).
pub trait Hooks {
    /// What changes the logits of a request.
    fn processor(&mut self, request: usize) -> Option<&mut dyn LogitsProcessor> {
        let _ = request;
        None
    }

    /// What makes text of the tokens of a request.
    fn detokenizer(&mut self, request: usize) -> Option<&mut dyn Detokenizer> {
        let _ = request;
        None
    }

    /// Sees every step of a request; a break ends it, with what there is as its result.
    fn progress(&mut self, progress: &Progress<'_>) -> ControlFlow<()> {
        let _ = progress;
        ControlFlow::Continue(())
    }
}

impl Hooks for () {}

type Watch<'a> = Box<dyn FnMut(&Progress<'_>) -> ControlFlow<()> + 'a>;

/// [`Hooks`] from closures that serve every request.
///
/// ```
/// use headrow::generate::{Callbacks, LogitsProcessor};
/// use std::ops::ControlFlow;
///
/// // No even token, and no more than ten.
/// let even = |_: &[u32], logits: &mut [f32]| {
///     logits.iter_mut().step_by(2).for_each(|x| *x = f32::NEG_INFINITY);
/// };
/// let mut row = [1.0; 3];
/// let mut processor = even;
/// processor.process(&[], &mut row);
/// assert_eq!(row, [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY]);
/// let callbacks = Callbacks::new().with_processor(even).with_progress(|progress| {
///     if progress.tokens.len() < 10 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
/// });
/// # drop(callbacks);
/// ```
#[derive(Default)]
pub struct Callbacks<'a> {
    processor: Option<Box<dyn LogitsProcessor + 'a>>,
    detokenizer: Option<Box<dyn Detokenizer + 'a>>,
    progress: Option<Watch<'a>>,
}

impl<'a> Callbacks<'a> {
    /// None yet.
    pub fn new() -> Callbacks<'a> {
        Callbacks::default()
    }

    /// The same with a processor of logits.
    #[must_use]
    pub fn with_processor(mut self, processor: impl LogitsProcessor + 'a) -> Callbacks<'a> {
        self.processor = Some(Box::new(processor));
        self
    }

    /// The same with a detokenizer.
    #[must_use]
    pub fn with_detokenizer(mut self, detokenizer: impl Detokenizer + 'a) -> Callbacks<'a> {
        self.detokenizer = Some(Box::new(detokenizer));
        self
    }

    /// The same with a view of every step; a break ends the request.
    #[must_use]
    pub fn with_progress(
        mut self,
        progress: impl FnMut(&Progress<'_>) -> ControlFlow<()> + 'a,
    ) -> Callbacks<'a> {
        self.progress = Some(Box::new(progress));
        self
    }
}

impl Hooks for Callbacks<'_> {
    fn processor(&mut self, _: usize) -> Option<&mut dyn LogitsProcessor> {
        Some(self.processor.as_mut()?.as_mut())
    }

    fn detokenizer(&mut self, _: usize) -> Option<&mut dyn Detokenizer> {
        Some(self.detokenizer.as_mut()?.as_mut())
    }

    fn progress(&mut self, progress: &Progress<'_>) -> ControlFlow<()> {
        self.progress.as_mut().map_or(ControlFlow::Continue(()), |watch| watch(progress))
    }
}

impl fmt::Debug for Callbacks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks")
            .field("processor", &self.processor.is_some())
            .field("detokenizer", &self.detokenizer.is_some())
            .field("progress", &self.progress.is_some())
            .finish()
    }
}
