//! A hypothesis while it grows, and what the searches share in a step.

use super::constraint::{Seen, constrain};
use super::hooks::Hooks;
use super::options::{GenerationOptions, Span};
use super::result::{Finish, Hypothesis, TokenScore};
use super::sampling::Draw;
use super::select::{Scored, flaw, top_k};
use super::stop::{StopStrings, TextStream};
use crate::error::{Error, Result};
use crate::memory::{copied, copied_lists, room};
use headrow_kernels::{Cpu, MatMut, Par, log_softmax};

/// A hypothesis while it grows. It never outgrows what it was made with.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// The prompt and the generated tokens.
    pub(crate) tokens: Vec<u32>,
    pub(crate) log_probabilities: Vec<f32>,
    /// Σ ln p of the generated tokens.
    pub(crate) sum: f64,
    /// The reported likeliest tokens: as many for each step, filled up with −∞.
    top: Vec<TokenScore>,
    /// The end of the text, as much as may belong to a stop string.
    pub(crate) tail: Vec<u8>,
}

impl Line {
    /// A line of the prompt alone, with room for all that may follow; `None` when the allocator refuses.
    pub(crate) fn try_new(
        prompt: &[u32],
        max_new: usize,
        tops: usize,
        overlap: usize,
    ) -> Option<Line> {
        let mut line = Line::default();
        line.tokens.try_reserve_exact(prompt.len() + max_new).ok()?;
        line.log_probabilities.try_reserve_exact(max_new).ok()?;
        line.top.try_reserve_exact(max_new.checked_mul(tops)?).ok()?;
        line.tail.try_reserve_exact(overlap).ok()?;
        line.tokens.extend_from_slice(prompt);
        Some(line)
    }

    /// Becomes the same as another line.
    pub(crate) fn copy(&mut self, other: &Line) {
        self.tokens.clone_from(&other.tokens);
        self.log_probabilities.clone_from(&other.log_probabilities);
        self.sum = other.sum;
        self.top.clone_from(&other.top);
        self.tail.clone_from(&other.tail);
    }

    pub(crate) fn push(&mut self, token: u32, log_probability: f32, top: &[TokenScore]) {
        self.tokens.push(token);
        self.log_probabilities.push(log_probability);
        self.sum += f64::from(log_probability);
        self.top.extend_from_slice(top);
    }

    pub(crate) fn generated(&self) -> &[u32] {
        &self.tokens[self.tokens.len() - self.log_probabilities.len()..]
    }

    /// The report of the newest token.
    pub(crate) fn newest_top(&self) -> &[TokenScore] {
        let steps = self.log_probabilities.len().max(1);
        real(&self.top[self.top.len() - self.top.len() / steps..])
    }

    pub(crate) fn hypothesis(
        &self,
        score: f64,
        finish: Finish,
        text: Option<String>,
    ) -> Result<Hypothesis> {
        let steps = self.log_probabilities.len().max(1);
        let top = match self.top.len() / steps {
            0 => Some(Vec::new()),
            tops => copied_lists(self.top.chunks(tops).map(real)),
        };
        let (tokens, log_probabilities) =
            (copied(self.generated()), copied(&self.log_probabilities));
        match (tokens, log_probabilities, top) {
            (Some(tokens), Some(log_probabilities), Some(top)) => {
                Ok(Hypothesis { tokens, score, log_probabilities, top, text, finish })
            }
            _ => Err(Error::out_of_memory(format_args!("an answer of {steps} tokens"))),
        }
    }
}

/// A report without what only fills it up.
fn real(top: &[TokenScore]) -> &[TokenScore] {
    let end = top.iter().position(|score| score.log_probability == f32::NEG_INFINITY);
    &top[..end.unwrap_or(top.len())]
}

/// Buffers that all requests use in turn.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) cpu: Cpu,
    pub(crate) draw: Draw,
    /// The report of a row.
    pub(crate) top: Vec<TokenScore>,
    /// The bytes that a token adds.
    pub(crate) bytes: Vec<u8>,
    seen: Seen,
}

impl Work {
    /// For a vocabulary; `None` when the allocator refuses.
    pub(crate) fn try_new(cpu: Cpu, vocabulary: usize) -> Option<Work> {
        let (draw, seen) = (Draw::try_new(vocabulary)?, Seen::try_new(vocabulary)?);
        Some(Work { cpu, draw, top: Vec::new(), bytes: room(256)?, seen })
    }
}

fn no_text() -> Error {
    Error::out_of_memory(format_args!("the text of a sequence"))
}

/// Refuses what nothing can be made of.
fn check(request: usize, step: usize, row: &[f32]) -> Result<()> {
    match flaw(row) {
        Some(Scored { id, value }) => {
            Err(Error::InvalidLogit { sequence: request, step, id, value })
        }
        None => Ok(()),
    }
}

/// One step of one request: its options, the buffers, the caller's code.
pub(crate) struct Turn<'a> {
    pub(crate) request: usize,
    pub(crate) options: &'a GenerationOptions,
    pub(crate) span: Span,
    pub(crate) stops: &'a StopStrings,
    pub(crate) work: &'a mut Work,
    pub(crate) hooks: &'a mut dyn Hooks,
}

impl Turn<'_> {
    pub(crate) fn no_token(&self, step: usize) -> Error {
        Error::NoToken { sequence: self.request, step }
    }

    /// Makes log-probabilities of the model's logits, in place, and the report of them in `work.top`.
    pub(crate) fn predict(&mut self, step: usize, row: &mut [f32]) -> Result<()> {
        check(self.request, step, row)?;
        let n = row.len();
        log_softmax(self.work.cpu, Par::SERIAL, MatMut::new(row, 1, n));
        // Without NaN and +∞ only −∞ alone gives NaN.
        if row.first().is_none_or(|x| x.is_nan()) {
            return Err(self.no_token(step));
        }
        let Work { draw, top, .. } = &mut *self.work;
        let tops = self.options.log_probabilities.min(n);
        top.clear();
        if tops > 0 {
            top_k(row, tops, &mut draw.kept);
            let score = |s: &Scored| TokenScore { token: s.id, log_probability: s.value };
            top.extend(draw.kept.iter().map(score));
            top.resize(tops, TokenScore { token: 0, log_probability: f32::NEG_INFINITY });
        }
        Ok(())
    }

    /// Applies the constraints and the caller's processor to what follows `tokens`.
    pub(crate) fn constrain(&mut self, tokens: &[u32], row: &mut [f32]) -> Result<()> {
        constrain(self.options, self.span, tokens, row, &mut self.work.seen);
        if let Some(processor) = self.hooks.processor(self.request) {
            processor.process(tokens, row);
        }
        check(self.request, tokens.len() - self.span.prompt, row)
    }

    /// Writes `head`, and the bytes that `token` adds after the generated tokens `before`, to `work.bytes`.
    pub(crate) fn detokenize(&mut self, head: &[u8], before: &[u32], token: u32) {
        self.work.bytes.clear();
        self.work.bytes.extend_from_slice(head);
        if let Some(detokenizer) = self.hooks.detokenizer(self.request) {
            detokenizer.append(before, token, &mut self.work.bytes);
        }
    }

    /// Why a sequence with `length` generated tokens, the last being `token`, ends; its text apart.
    pub(crate) fn finish(&self, token: u32, length: usize) -> Option<Finish> {
        if self.options.stop_ids.contains(&token) {
            Some(Finish::StopToken)
        } else if length >= self.span.max_new {
            Some(Finish::Length)
        } else {
            None
        }
    }

    /// The text of generated tokens up to a stop string or stop id; nothing without a detokenizer.
    pub(crate) fn text(&mut self, generated: &[u32]) -> Result<Option<String>> {
        if self.hooks.detokenizer(self.request).is_none() {
            return Ok(None);
        }
        let mut stream = self.stream()?;
        let mut text = String::new();
        for (i, &token) in generated.iter().enumerate() {
            if !self.options.stop_ids.contains(&token) {
                self.detokenize(&[], &generated[..i], token);
                self.append(&mut stream, &mut text)?;
            }
        }
        stream.finish(&mut text);
        Ok(Some(text))
    }

    /// A text without bytes yet, up to a stop string.
    pub(crate) fn stream(&self) -> Result<TextStream> {
        TextStream::try_new(self.stops).ok_or_else(no_text)
    }

    /// Adds the bytes in `work.bytes`.
    pub(crate) fn append(&self, stream: &mut TextStream, text: &mut String) -> Result<()> {
        stream.try_push(&self.work.bytes, text).ok_or_else(no_text)
    }
}
