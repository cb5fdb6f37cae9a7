//! One request of a generator.

use super::StepModel;
use super::hooks::Hooks;
use super::line::{Turn, Work};
use super::options::{GenerationOptions, Span, Strategy};
use super::result::{Finish, Generated, Progress};
use super::search::Search;
use super::single::Single;
use super::stop::StopStrings;
use crate::error::{Error, Result};

/// What a caller asked for, and how far it has come.
#[derive(Debug)]
pub(super) struct Request<S> {
    pub(super) number: usize,
    options: GenerationOptions,
    stops: StopStrings,
    span: Span,
    pub(super) state: State<S>,
}

/// The search of a request, or its result.
#[derive(Debug)]
pub(super) enum State<S> {
    Single(Single<S>),
    Beam(Search<S>),
    Over(Result<Generated>),
}

impl<S: Copy> Request<S> {
    /// A request that has not begun.
    pub(super) fn new(
        number: usize,
        options: GenerationOptions,
        stops: StopStrings,
        span: Span,
    ) -> Request<S> {
        Request { number, options, stops, span, state: State::Over(Err(Error::Unfinished)) }
    }

    /// Makes the search that its options ask for.
    pub(super) fn start(
        &mut self,
        work: &mut Work,
        hooks: &mut dyn Hooks,
        vocabulary: usize,
        sequence: S,
        prompt: &[u32],
    ) -> Result<()> {
        let (mut turn, state) = self.turn(work, hooks);
        *state = match turn.options.strategy {
            Strategy::Beam(beam) => {
                State::Beam(Search::start(&turn, vocabulary, beam, sequence, prompt)?)
            }
            _ => State::Single(Single::start(&mut turn, vocabulary, sequence, prompt)?),
        };
        Ok(())
    }

    /// Live sequences; none when it is over.
    pub(super) fn rows(&self) -> usize {
        match &self.state {
            State::Single(_) => 1,
            State::Beam(search) => search.sequences.len(),
            State::Over(_) => 0,
        }
    }

    /// Live sequences that it may come to have.
    pub(super) fn reserved(&self) -> usize {
        if self.rows() == 0 { 0 } else { self.options.rows() }
    }

    /// Adds its live sequences, and the token that each is to read.
    pub(super) fn feed(&self, sequences: &mut Vec<S>, tokens: &mut Vec<u32>) {
        match &self.state {
            State::Single(single) => {
                sequences.push(single.sequence);
                tokens.push(single.last());
            }
            State::Beam(search) => {
                for (sequence, token) in search.feed() {
                    sequences.push(sequence);
                    tokens.push(token);
                }
            }
            State::Over(_) => {}
        }
    }

    /// What a step of it needs, and the search that takes it.
    pub(super) fn turn<'a>(
        &'a mut self,
        work: &'a mut Work,
        hooks: &'a mut dyn Hooks,
    ) -> (Turn<'a>, &'a mut State<S>) {
        let Request { number, options, stops, span, state } = self;
        (Turn { request: *number, options, span: *span, stops, work, hooks }, state)
    }
}

impl<S: Copy> State<S> {
    /// Takes a step by its rows of logits; why it ends, if it does. `raw` is room for a row.
    pub(super) fn advance<M: StepModel<Sequence = S>>(
        &mut self,
        turn: &mut Turn<'_>,
        model: &mut M,
        logits: &mut [f32],
        raw: &mut [f32],
    ) -> Result<Option<Finish>> {
        match self {
            State::Single(single) => single.advance(turn, logits, raw),
            State::Beam(search) => search.advance(turn, model, logits),
            State::Over(_) => Ok(None),
        }
    }

    /// How far it has come.
    pub(super) fn progress(&self, request: usize, finish: Option<Finish>) -> Option<Progress<'_>> {
        match self {
            State::Single(single) => Some(single.progress(request, finish)),
            State::Beam(search) => Some(search.progress(request, finish)),
            State::Over(_) => None,
        }
    }

    /// Makes its result of what there is.
    pub(super) fn end<M: StepModel<Sequence = S>>(
        &mut self,
        turn: &mut Turn<'_>,
        model: &mut M,
        finish: Finish,
    ) {
        let generated = match self {
            State::Single(single) => single.generated(finish),
            State::Beam(search) => {
                if finish == Finish::Interrupted {
                    search.interrupt();
                }
                search.generated(turn)
            }
            State::Over(_) => return,
        };
        std::mem::replace(self, State::Over(generated)).release(model);
    }

    /// Gives its sequences back.
    pub(super) fn release<M: StepModel<Sequence = S>>(self, model: &mut M) {
        match self {
            State::Single(single) => model.release(single.sequence),
            State::Beam(search) => search.sequences.into_iter().for_each(|s| model.release(s)),
            State::Over(_) => {}
        }
    }
}
