//! Tokens one by one, as an iterator.

use super::StepModel;
use super::generator::{Generator, Prompt};
use super::hooks::{Detokenizer, Hooks, LogitsProcessor};
use super::options::GenerationOptions;
use super::result::{Finish, Generated, Progress, Token};
use crate::error::{Error, Result};
use crate::memory::copied_text;
use std::ops::ControlFlow;

/// One request as an iterator over its steps, each computed when it is asked for.
///
/// An item is the newest token of the hypothesis that is best so far: for greedy search and sampling the
/// sequence itself, for a beam search the live hypothesis in front, which may be another at each
/// step, and last the best answer. [`TokenStream::finish`] gives the result. A stream that is dropped ends its request and
/// releases its sequences.
#[derive(Debug)]
pub struct TokenStream<'a, M: StepModel, H: Hooks = ()> {
    generator: &'a mut Generator<M::Sequence>,
    model: &'a mut M,
    hooks: Recording<H>,
    request: usize,
    over: bool,
}

impl<'a, M: StepModel, H: Hooks> TokenStream<'a, M, H> {
    /// Begins a request in a generator that has no other.
    ///
    /// # Errors
    /// As [`Generator::add`]; the sequence stays the caller's then. [`Error::Busy`] when the generator has
    /// requests.
    ///
    /// # Panics
    /// When the logits are not as many as the vocabulary.
    #[track_caller]
    pub fn new(
        generator: &'a mut Generator<M::Sequence>,
        model: &'a mut M,
        prompt: Prompt<'_, M::Sequence>,
        options: &GenerationOptions,
        hooks: H,
    ) -> Result<TokenStream<'a, M, H>> {
        if generator.running() > 0 {
            return Err(Error::Busy);
        }
        let mut hooks = Recording { hooks, newest: None };
        let request = generator.add(model, prompt, options, &mut hooks)?;
        Ok(TokenStream { generator, model, hooks, request, over: false })
    }

    /// The result: what there is, when the request is not over; it ends here then.
    ///
    /// # Errors
    /// As [`Generator::take`].
    pub fn finish(mut self) -> Result<Generated> {
        self.over = true;
        self.generator.stop(self.model, self.request, &mut self.hooks);
        self.generator.take(self.request).unwrap_or(Err(Error::Unfinished))
    }
}

impl<M: StepModel, H: Hooks> Iterator for TokenStream<'_, M, H> {
    type Item = Result<Token>;

    fn next(&mut self) -> Option<Result<Token>> {
        if self.over {
            return None;
        }
        // The first token is there from the beginning.
        if self.hooks.newest.is_none()
            && let Err(error) = self.generator.step(self.model, &mut self.hooks)
        {
            self.over = true;
            return Some(Err(error));
        }
        let token = self.hooks.newest.take();
        let goes_on = |token: &Result<Token>| matches!(token, Ok(token) if token.finish.is_none());
        self.over = !token.as_ref().is_some_and(goes_on);
        token.or_else(|| self.generator.take(self.request)?.err().map(Err))
    }
}

impl<M: StepModel, H: Hooks> Drop for TokenStream<'_, M, H> {
    fn drop(&mut self) {
        self.generator.clear(self.model);
    }
}

/// Another's hooks, and the newest token.
#[derive(Debug)]
struct Recording<H> {
    hooks: H,
    newest: Option<Result<Token>>,
}

impl<H: Hooks> Hooks for Recording<H> {
    fn processor(&mut self, request: usize) -> Option<&mut dyn LogitsProcessor> {
        self.hooks.processor(request)
    }

    fn detokenizer(&mut self, request: usize) -> Option<&mut dyn Detokenizer> {
        self.hooks.detokenizer(request)
    }

    fn progress(&mut self, progress: &Progress<'_>) -> ControlFlow<()> {
        let watched = self.hooks.progress(progress);
        let interrupted = watched.is_break().then_some(Finish::Interrupted);
        let refused = || Error::out_of_memory(format_args!("the text of a token"));
        self.newest = progress.tokens.last().map(|&id| {
            let text = copied_text(progress.text).ok_or_else(refused)?;
            let (log_probability, finish) =
                (progress.log_probability, progress.finish.or(interrupted));
            Ok(Token { id, log_probability, text, finish })
        });
        watched
    }
}
