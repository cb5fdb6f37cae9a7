//! Requests over one model: each is added with its prompt, they take steps together and drop out one by one.

use super::StepModel;
use super::hooks::Hooks;
use super::line::Work;
use super::options::{GenerationOptions, Span};
use super::request::{Request, State};
use super::result::{Finish, Generated};
use super::stop::StopStrings;
use crate::error::{Error, Result};
use crate::memory::{filled, room};
use headrow_kernels::Cpu;
use std::ops::ControlFlow;

/// What a [`Generator`] has room for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Logits of a prediction.
    pub vocabulary: usize,
    /// Live sequences of all requests together: one each, or the size of the beam.
    pub rows: usize,
    /// Tokens of a sequence, prompt and generated ones.
    pub tokens: usize,
    /// Whose kernels make the probabilities.
    pub cpu: Cpu,
}

impl Limits {
    /// Limits on the best instruction set of this machine.
    pub fn new(vocabulary: usize, rows: usize, tokens: usize) -> Limits {
        Limits { vocabulary, rows, tokens, cpu: Cpu::detect() }
    }

    /// The same limits on this instruction set; it does not show in the results.
    #[must_use]
    pub fn with_cpu(self, cpu: Cpu) -> Limits {
        Limits { cpu, ..self }
    }
}

/// A sequence that a model has been fed, and what it predicts to follow.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Prompt<'a, S> {
    /// The model's handle.
    pub sequence: S,
    /// What was fed; for an encoder–decoder, to the decoder.
    pub tokens: &'a [u32],
    /// The logits after the last of these tokens.
    pub logits: &'a [f32],
}

impl<'a, S> Prompt<'a, S> {
    /// A sequence, its tokens, and the logits after the last of them.
    pub fn new(sequence: S, tokens: &'a [u32], logits: &'a [f32]) -> Prompt<'a, S> {
        Prompt { sequence, tokens, logits }
    }
}

/// Runs requests over a [`StepModel`] whose handles are `S`.
///
/// A request is allocated when it is added; steps allocate nothing, apart from text.
///
/// ```no_run
/// use headrow::generate::{GenerationOptions, Prompt};
/// use headrow::{Chunk, Model, Output, Session, SessionOptions};
/// use std::sync::Arc;
///
/// let model = Arc::new(Model::from_dir("SmolLM2-135M")?);
/// let mut session = Session::new(&model, &SessionOptions::default())?;
/// let mut generator = session.generator()?;
/// let options = GenerationOptions::default().with_max_new_tokens(16usize);
/// let (ids, mut logits) = ([504, 3575, 282], vec![0.0; generator.limits().vocabulary]);
/// let sequence = session.add()?;
/// session.extend(&[Chunk::new(sequence, &ids)], Output::LastLogits, &mut logits)?;
/// let request = generator.add(&mut session, Prompt::new(sequence, &ids, &logits), &options, &mut ())?;
/// // Others may be added between steps.
/// while generator.running() > 0 {
///     generator.step(&mut session, &mut ())?;
/// }
/// let answer = generator.take(request).expect("it is over")?;
/// println!("{:?}", answer.best().content());
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Debug)]
pub struct Generator<S> {
    limits: Limits,
    /// In the order they came; their numbers ascend.
    requests: Vec<Request<S>>,
    /// The number of the next request.
    next: usize,
    work: Work,
    /// `rows × vocabulary`.
    logits: Vec<f32>,
    /// The log-probabilities of a row whose logits are needed too.
    raw: Vec<f32>,
    /// What is fed at a step.
    sequences: Vec<S>,
    tokens: Vec<u32>,
    /// A step has begun that has not ended.
    broken: bool,
}

impl<S: Copy> Generator<S> {
    /// A generator without requests.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the allocator refuses.
    pub fn new(limits: Limits) -> Result<Generator<S>> {
        let Limits { vocabulary, rows, cpu, .. } = limits;
        let refused = || Error::out_of_memory(format_args!("{rows} rows of {vocabulary} logits"));
        let logits = rows.checked_mul(vocabulary).and_then(|all| filled(0.0, all));
        let (logits, raw) =
            (logits.ok_or_else(refused)?, filled(0.0, vocabulary).ok_or_else(refused)?);
        let (sequences, tokens) =
            (room(rows).ok_or_else(refused)?, room(rows).ok_or_else(refused)?);
        let work = Work::try_new(cpu, vocabulary).ok_or_else(refused)?;
        let requests = Vec::new();
        let (next, broken) = (0, false);
        Ok(Generator { limits, requests, next, work, logits, raw, sequences, tokens, broken })
    }

    /// What it has room for.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Requests that are not over.
    pub fn running(&self) -> usize {
        self.requests.iter().filter(|request| request.rows() > 0).count()
    }

    /// Live sequences that its requests may come to have, of [`Limits::rows`].
    pub fn reserved(&self) -> usize {
        self.requests.iter().map(Request::reserved).sum()
    }

    /// Adds a request, chooses its first token from the logits, and returns its number: requests are counted from
    /// 0. From now on the generator owns the sequence and releases it when the request is over.
    ///
    /// What goes wrong in the choice itself is the request's result.
    ///
    /// # Errors
    /// When the options, the prompt's length or the number of live sequences do not fit the generator, when
    /// stop strings have no detokenizer, when memory is refused, or after a panic in the caller's code. The sequence stays
    /// the caller's then.
    ///
    /// # Panics
    /// When the logits are not as many as the vocabulary.
    #[track_caller]
    pub fn add<M: StepModel<Sequence = S>>(
        &mut self,
        model: &mut M,
        prompt: Prompt<'_, S>,
        options: &GenerationOptions,
        hooks: &mut dyn Hooks,
    ) -> Result<usize> {
        let Limits { vocabulary, .. } = self.limits;
        let Prompt { sequence, tokens, logits } = prompt;
        assert_eq!(logits.len(), vocabulary, "logits of a vocabulary of another size");
        self.check_whole()?;
        options.check(vocabulary)?;
        let number = self.next;
        let span = options.span(number, tokens.len(), self.limits.tokens)?;
        self.check_room(options)?;
        if !options.stop_strings.is_empty() && hooks.detokenizer(number).is_none() {
            return Err(Error::generation("stop_strings", "there is no detokenizer to find them"));
        }
        let request = self.start(number, sequence, tokens, options, span, hooks)?;
        self.requests.push(request);
        self.next += 1;
        self.logits[..vocabulary].copy_from_slice(logits);
        self.broken = true;
        self.advance(self.requests.len() - 1, model, hooks, 0);
        self.broken = false;
        Ok(number)
    }

    fn start(
        &mut self,
        number: usize,
        sequence: S,
        prompt: &[u32],
        options: &GenerationOptions,
        span: Span,
        hooks: &mut dyn Hooks,
    ) -> Result<Request<S>> {
        let vocabulary = self.limits.vocabulary;
        let refused = || Error::out_of_memory(format_args!("request {number}"));
        let copy = || Some((options.try_clone()?, StopStrings::try_new(&options.stop_strings)?));
        let (options, stops) = copy().ok_or_else(refused)?;
        // A report is as long for every request that asks for as many. Before a token's bytes stands the end of a text.
        let tops = options.log_probabilities.min(vocabulary);
        let Work { top, bytes, .. } = &mut self.work;
        top.try_reserve(tops).map_err(|_| refused())?;
        bytes.try_reserve(stops.overlap()).map_err(|_| refused())?;
        self.requests.try_reserve(1).map_err(|_| refused())?;
        let mut started = Request::new(number, options, stops, span);
        started.start(&mut self.work, hooks, vocabulary, sequence, prompt)?;
        Ok(started)
    }

    /// Asks the model what follows every live sequence, and takes each request one step further. Returns
    /// how many requests are running still.
    ///
    /// # Errors
    /// What the model says; the requests are as before then, and the step can be tried again. After a panic in the caller's
    /// code [`Error::Unfinished`].
    pub fn step<M: StepModel<Sequence = S>>(
        &mut self,
        model: &mut M,
        hooks: &mut dyn Hooks,
    ) -> Result<usize> {
        self.check_whole()?;
        self.sequences.clear();
        self.tokens.clear();
        for request in self.requests.iter() {
            request.feed(&mut self.sequences, &mut self.tokens);
        }
        if self.sequences.is_empty() {
            return Ok(0);
        }
        let elements = self.sequences.len() * self.limits.vocabulary;
        model.step(&self.sequences, &self.tokens, &mut self.logits[..elements])?;
        self.broken = true;
        let mut first_row = 0;
        for index in 0..self.requests.len() {
            first_row += self.advance(index, model, hooks, first_row);
        }
        self.broken = false;
        Ok(self.running())
    }

    /// Steps until every request is over.
    ///
    /// # Errors
    /// As [`Generator::step`].
    pub fn run<M: StepModel<Sequence = S>>(
        &mut self,
        model: &mut M,
        hooks: &mut dyn Hooks,
    ) -> Result<()> {
        while self.step(model, hooks)? > 0 {}
        Ok(())
    }

    /// The result of a request that is over; the generator forgets it then. `None` when it is running or there
    /// is no such request.
    ///
    /// Its errors: [`Error::InvalidLogit`] for a NaN or +∞, [`Error::NoToken`] when nothing may follow, and what
    /// the model said to a fork.
    pub fn take(&mut self, request: usize) -> Option<Result<Generated>> {
        let at = self.position(request).filter(|&at| self.requests[at].rows() == 0)?;
        match self.requests.remove(at).state {
            State::Over(result) => Some(result),
            _ => None,
        }
    }

    /// Ends a request where it is, as a break of [`Hooks::progress`] does. Nothing happens to one that is over.
    pub fn stop<M: StepModel<Sequence = S>>(
        &mut self,
        model: &mut M,
        request: usize,
        hooks: &mut dyn Hooks,
    ) {
        if let Some(at) = self.position(request) {
            let (mut turn, state) = self.requests[at].turn(&mut self.work, hooks);
            state.end(&mut turn, model, Finish::Interrupted);
        }
    }

    /// Drops all requests, whatever has become of them, and releases their sequences. Numbers begin at 0 again.
    pub fn clear<M: StepModel<Sequence = S>>(&mut self, model: &mut M) {
        for request in self.requests.drain(..) {
            request.state.release(model);
        }
        (self.next, self.broken) = (0, false);
    }

    fn position(&self, number: usize) -> Option<usize> {
        self.requests.iter().position(|request| request.number == number)
    }

    fn check_whole(&self) -> Result<()> {
        if self.broken { Err(Error::Unfinished) } else { Ok(()) }
    }

    fn check_room(&self, options: &GenerationOptions) -> Result<()> {
        let rows = self.reserved().saturating_add(options.rows());
        if rows > self.limits.rows {
            let (what, maximum) = ("live sequences", self.limits.rows);
            return Err(Error::BatchTooLarge { what, actual: rows, maximum });
        }
        Ok(())
    }

    /// Takes a request one step further by its rows of the logits; returns how many these are.
    fn advance<M: StepModel<Sequence = S>>(
        &mut self,
        index: usize,
        model: &mut M,
        hooks: &mut dyn Hooks,
        first_row: usize,
    ) -> usize {
        let request = &mut self.requests[index];
        let (rows, vocabulary) = (request.rows(), self.limits.vocabulary);
        if rows == 0 {
            return 0;
        }
        let logits = &mut self.logits[first_row * vocabulary..][..rows * vocabulary];
        let (mut turn, state) = request.turn(&mut self.work, hooks);
        match state.advance(&mut turn, model, logits, &mut self.raw) {
            Ok(finish) => {
                let watched = match state.progress(turn.request, finish) {
                    Some(progress) => turn.hooks.progress(&progress),
                    None => ControlFlow::Continue(()),
                };
                let interrupted = watched.is_break().then_some(Finish::Interrupted);
                if let Some(finish) = finish.or(interrupted) {
                    state.end(&mut turn, model, finish);
                }
            }
            Err(error) => std::mem::replace(state, State::Over(Err(error))).release(model),
        }
        rows
    }
}
