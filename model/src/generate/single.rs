//! One sequence: greedy search and sampling.

use super::line::{Line, Turn};
use super::options::Strategy;
use super::result::{Finish, Generated, Progress};
use super::stop::TextStream;
use crate::error::{Error, Result};

/// A sequence that grows by the token that is chosen at each step.
#[derive(Debug)]
pub(crate) struct Single<S> {
    pub(crate) sequence: S,
    line: Line,
    stream: TextStream,
    /// All certain text, and where that of the newest step begins; nothing without a detokenizer.
    text: Option<String>,
    newest: usize,
}

impl<S: Copy> Single<S> {
    pub(crate) fn start(
        turn: &mut Turn<'_>,
        vocabulary: usize,
        sequence: S,
        prompt: &[u32],
    ) -> Result<Single<S>> {
        let tops = turn.options.log_probabilities.min(vocabulary);
        let line = Line::try_new(prompt, turn.span.max_new, tops, 0);
        let line = line.ok_or_else(|| Error::out_of_memory(format_args!("a sequence's tokens")))?;
        let text = turn.hooks.detokenizer(turn.request).map(|_| String::new());
        let stream = turn.stream()?;
        Ok(Single { sequence, line, stream, text, newest: 0 })
    }

    /// The token to feed next.
    pub(crate) fn last(&self) -> u32 {
        self.line.tokens[self.line.tokens.len() - 1]
    }

    /// Chooses the token that follows, from the model's logits; `raw` is room for as many.
    pub(crate) fn advance(
        &mut self,
        turn: &mut Turn<'_>,
        row: &mut [f32],
        raw: &mut [f32],
    ) -> Result<Option<Finish>> {
        let step = self.line.log_probabilities.len();
        raw.copy_from_slice(row);
        turn.predict(step, raw)?;
        turn.constrain(&self.line.tokens, row)?;
        let (cpu, draw) = (turn.work.cpu, &mut turn.work.draw);
        let token = match &turn.options.strategy {
            Strategy::Sample(sampling) => draw.token(cpu, sampling, step, row),
            _ => draw.likeliest(row),
        };
        let token = token.ok_or_else(|| turn.no_token(step))?;
        self.line.push(token, raw[token as usize], &turn.work.top);
        let finish = turn.finish(token, step + 1);
        self.append_text(turn, finish)
    }

    /// Adds the newest token's text; a stop string ends the sequence, unless a stop id does.
    fn append_text(
        &mut self,
        turn: &mut Turn<'_>,
        finish: Option<Finish>,
    ) -> Result<Option<Finish>> {
        let (Some(text), Some((&token, before))) =
            (&mut self.text, self.line.generated().split_last())
        else {
            return Ok(finish);
        };
        self.newest = text.len();
        if finish != Some(Finish::StopToken) {
            turn.detokenize(&[], before, token);
            turn.append(&mut self.stream, text)?;
        }
        let finish = if self.stream.stopped() { Some(Finish::StopText) } else { finish };
        if finish.is_some() {
            self.stream.finish(text);
        }
        Ok(finish)
    }

    pub(crate) fn progress(&self, request: usize, finish: Option<Finish>) -> Progress<'_> {
        Progress {
            request,
            tokens: self.line.generated(),
            log_probability: self.line.log_probabilities.last().copied().unwrap_or(0.0),
            score: self.line.sum,
            top: self.line.newest_top(),
            text: self.text.as_ref().map_or("", |text| &text[self.newest..]),
            finish,
        }
    }

    pub(crate) fn generated(&mut self, finish: Finish) -> Result<Generated> {
        let mut text = self.text.take();
        if let Some(text) = &mut text {
            self.stream.finish(text);
        }
        Generated::collect([self.line.hypothesis(self.line.sum, finish, text)].into_iter())
    }
}
