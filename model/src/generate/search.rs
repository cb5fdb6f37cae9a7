//! Beam search (§6.1 of the paper).
//!
//! A step extends each of the live hypotheses by every token and takes the best candidates by Σ ln p. Those of the best
//! `size` candidates that end are stored with their score; the best that do not end live on. So that `size` of these
//! are found whatever ends, `size` more candidates are taken for each way to end (Σ of one stop id: twice as many).

use super::beam::{Beam, EarlyStopping};
use super::line::{Line, Turn};
use super::result::{Finish, Generated, Progress};
use super::select::top_k;
use super::{StepModel, TokenScore};
use crate::error::{Error, Result};
use crate::memory::room;
use std::cmp::Ordering;

/// An extension of a live hypothesis by a token.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Σ ln p.
    sum: f64,
    parent: usize,
    token: u32,
    log_probability: f32,
}

impl Candidate {
    /// The larger sum first, then the better parent, then the lower token.
    fn by_rank(&self, other: &Candidate) -> Ordering {
        let by_sum = other.sum.partial_cmp(&self.sum).unwrap_or(Ordering::Equal);
        by_sum.then(self.parent.cmp(&other.parent)).then(self.token.cmp(&other.token))
    }
}

/// A hypothesis that has ended.
#[derive(Debug)]
struct Ended {
    line: Line,
    score: f64,
    finish: Finish,
}

/// A beam search of one request.
#[derive(Debug)]
pub(crate) struct Search<S> {
    beam: Beam,
    /// Candidates of a step.
    width: usize,
    /// The live hypotheses, best first, and the model's sequences behind them.
    live: Vec<Line>,
    pub(crate) sequences: Vec<S>,
    /// The next live hypotheses, best first, and which of the live ones each extends.
    next: Vec<Line>,
    parents: Vec<usize>,
    /// The best ended hypotheses, best first.
    ended: Vec<Ended>,
    /// Whether one of them was the best candidate of its step.
    best_ended: bool,
    candidates: Vec<Candidate>,
    /// The reports of the live hypotheses' rows, one after another.
    tops: Vec<TokenScore>,
    /// What is not needed at the moment, for their memory.
    spare: Vec<Line>,
    heirs: Vec<Option<S>>,
}

impl<S: Copy> Search<S> {
    pub(crate) fn start(
        turn: &Turn<'_>,
        vocabulary: usize,
        beam: Beam,
        sequence: S,
        prompt: &[u32],
    ) -> Result<Search<S>> {
        let refused = || Error::out_of_memory(format_args!("a beam of {} sequences", beam.size));
        let tops = turn.options.log_probabilities.min(vocabulary);
        let ways = 1 + turn.options.stop_ids.len().max(1);
        let width = beam.size.saturating_mul(ways);
        let line = || Line::try_new(prompt, turn.span.max_new, tops, turn.stops.overlap());
        // Live and next ones, those stored, and one that is about to be.
        let lines = 2 * beam.size + beam.stored() + 1;
        let mut spare = room(lines).ok_or_else(refused)?;
        for _ in 1..lines {
            spare.push(line().ok_or_else(refused)?);
        }
        let rows = width.min(vocabulary).saturating_mul(beam.size);
        Ok(Search {
            beam,
            width,
            live: beginning(beam.size, line().ok_or_else(refused)?).ok_or_else(refused)?,
            sequences: beginning(beam.size, sequence).ok_or_else(refused)?,
            next: room(beam.size).ok_or_else(refused)?,
            parents: room(beam.size).ok_or_else(refused)?,
            ended: room(beam.stored() + 1).ok_or_else(refused)?,
            best_ended: false,
            candidates: room(rows).ok_or_else(refused)?,
            tops: room(tops.saturating_mul(beam.size)).ok_or_else(refused)?,
            spare,
            heirs: room(beam.size).ok_or_else(refused)?,
        })
    }

    /// The sequences and the tokens to feed to them.
    pub(crate) fn feed(&self) -> impl Iterator<Item = (S, u32)> {
        let last = |line: &Line| line.tokens[line.tokens.len() - 1];
        self.sequences.iter().copied().zip(self.live.iter().map(last))
    }

    /// One step, from the model's logits: a row for each live hypothesis.
    pub(crate) fn advance<M: StepModel<Sequence = S>>(
        &mut self,
        turn: &mut Turn<'_>,
        model: &mut M,
        rows: &mut [f32],
    ) -> Result<Option<Finish>> {
        let step = self.live[0].log_probabilities.len();
        self.find_candidates(turn, step, rows)?;
        self.extend(turn, step);
        self.drop_hopeless(turn, step + 1);
        if self.has_ended(step + 1) {
            let best = self.ended.first().ok_or_else(|| turn.no_token(step))?;
            return Ok(Some(best.finish));
        }
        self.inherit(model)?;
        self.spare.append(&mut self.live);
        std::mem::swap(&mut self.live, &mut self.next);
        Ok(None)
    }

    /// The best extensions of all live hypotheses, best first.
    fn find_candidates(
        &mut self,
        turn: &mut Turn<'_>,
        step: usize,
        rows: &mut [f32],
    ) -> Result<()> {
        self.candidates.clear();
        self.tops.clear();
        let vocabulary = rows.len() / self.live.len();
        for (parent, row) in rows.chunks_mut(vocabulary).enumerate() {
            let line = &self.live[parent];
            turn.predict(step, row)?;
            self.tops.extend_from_slice(&turn.work.top);
            turn.constrain(&line.tokens, row)?;
            let kept = &mut turn.work.draw.kept;
            top_k(row, self.width, kept);
            self.candidates.extend(kept.iter().map(|scored| Candidate {
                sum: line.sum + f64::from(scored.value),
                parent,
                token: scored.id,
                log_probability: scored.value,
            }));
        }
        self.candidates.sort_unstable_by(Candidate::by_rank);
        self.candidates.truncate(self.width);
        Ok(())
    }

    /// Sorts the candidates into those that end and those that live on.
    fn extend(&mut self, turn: &mut Turn<'_>, step: usize) {
        self.parents.clear();
        for rank in 0..self.candidates.len() {
            let candidate = self.candidates[rank];
            // What ends beyond the best `size` is not good enough; it only leaves its place.
            let (may_end, may_live) = (rank < self.beam.size, self.next.len() < self.beam.size);
            if !may_end && !may_live {
                break;
            }
            match self.finish(turn, candidate, step + 1) {
                Some(finish) if may_end => {
                    self.best_ended |= rank == 0;
                    let score = self.beam.length_penalty.score(candidate.sum, step + 1);
                    if self.is_wanted(score) {
                        let line = self.child(turn, candidate);
                        self.store(Ended { line, score, finish });
                    }
                }
                None if may_live => {
                    let line = self.child(turn, candidate);
                    self.next.push(line);
                    self.parents.push(candidate.parent);
                }
                _ => {}
            }
        }
    }

    /// Why a candidate ends; leaves the end of its parent's text and its own in `work.bytes`.
    fn finish(&self, turn: &mut Turn<'_>, candidate: Candidate, length: usize) -> Option<Finish> {
        let finish = turn.finish(candidate.token, length);
        if turn.stops.is_empty() || finish == Some(Finish::StopToken) {
            return finish;
        }
        let parent = &self.live[candidate.parent];
        turn.detokenize(&parent.tail, parent.generated(), candidate.token);
        match turn.stops.find(&turn.work.bytes, parent.tail.len()) {
            Some(_) => Some(Finish::StopText),
            None => finish,
        }
    }

    /// The hypothesis that a candidate is; its text is in `work.bytes`.
    fn child(&mut self, turn: &Turn<'_>, candidate: Candidate) -> Line {
        let Candidate { parent, token, log_probability, .. } = candidate;
        let mut line = self.spare.pop().unwrap_or_default();
        line.copy(&self.live[parent]);
        let tops = self.tops.len() / self.live.len();
        line.push(token, log_probability, &self.tops[parent * tops..][..tops]);
        let overlap = turn.stops.overlap();
        if overlap > 0 {
            let text = &turn.work.bytes;
            line.tail.clear();
            line.tail.extend_from_slice(&text[text.len().saturating_sub(overlap)..]);
        }
        line
    }

    fn is_wanted(&self, score: f64) -> bool {
        self.worst_wanted().is_none_or(|worst| score > worst)
    }

    /// Puts an ended hypothesis in its place; of equal ones the older is the better.
    fn store(&mut self, ended: Ended) {
        let at = self.ended.partition_point(|other| other.score >= ended.score);
        self.ended.insert(at, ended);
        if self.ended.len() > self.beam.stored() {
            self.spare.extend(self.ended.pop().map(|worst| worst.line));
        }
    }

    /// Without the next live hypotheses, of `length` tokens, that cannot be among the answers however they go on. What they
    /// kept out of the beam had a smaller Σ ln p still, so the answers are the same.
    fn drop_hopeless(&mut self, turn: &Turn<'_>, length: usize) {
        let Beam { early_stopping, length_penalty, .. } = self.beam;
        if early_stopping != EarlyStopping::ByBound {
            return;
        }
        let Some(worst) = self.worst_wanted() else { return };
        let bound = |sum| length_penalty.bound(sum, length + 1, turn.span.max_new);
        let hopeful = self.next.partition_point(|line| bound(line.sum) > worst);
        self.spare.extend(self.next.drain(hopeful..));
        self.parents.truncate(hopeful);
    }

    /// The score that another hypothesis has to beat, once as many as are stored have ended.
    fn worst_wanted(&self) -> Option<f64> {
        let full = self.ended.len() == self.beam.stored();
        self.ended.last().filter(|_| full).map(|worst| worst.score)
    }

    /// Whether the search is over, with next live hypotheses of `length` tokens.
    fn has_ended(&self, length: usize) -> bool {
        let Beam { early_stopping, length_penalty, .. } = self.beam;
        let Some(best) = self.next.first() else { return true };
        let Some(worst) = self.worst_wanted() else { return false };
        match early_stopping {
            // Who is left may win.
            EarlyStopping::ByBound | EarlyStopping::Never => false,
            EarlyStopping::FirstComplete => true,
            EarlyStopping::BestComplete => self.best_ended,
            EarlyStopping::Heuristic => length_penalty.score(best.sum, length) <= worst,
        }
    }

    /// Gives each next hypothesis a sequence: the first of a parent's children has the parent's, the others have forks.
    /// Sequences without heirs go first, so that there is room for the forks.
    fn inherit<M: StepModel<Sequence = S>>(&mut self, model: &mut M) -> Result<()> {
        self.heirs.clear();
        self.heirs.extend(self.sequences.drain(..).map(Some));
        for parent in 0..self.heirs.len() {
            if !self.parents.contains(&parent) {
                self.heirs[parent].take().into_iter().for_each(|sequence| model.release(sequence));
            }
        }
        let mut outcome = Ok(());
        for (child, &parent) in self.parents.iter().enumerate() {
            let forked = match self.heirs[parent].take() {
                Some(sequence) => Ok(sequence),
                None => {
                    let elder = self.parents[..child].iter().position(|&other| other == parent);
                    model.fork(self.sequences[elder.unwrap_or(0)])
                }
            };
            match forked {
                Ok(sequence) => self.sequences.push(sequence),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // After an error: what no child has taken is still to be released.
        self.sequences.extend(self.heirs.drain(..).flatten());
        outcome
    }

    /// Ends all that is live where it is.
    pub(crate) fn interrupt(&mut self) {
        while !self.live.is_empty() {
            let line = self.live.remove(0);
            let score = self.beam.length_penalty.score(line.sum, line.log_probabilities.len());
            if self.is_wanted(score) {
                self.store(Ended { line, score, finish: Finish::Interrupted });
            }
        }
    }

    pub(crate) fn progress(&self, request: usize, finish: Option<Finish>) -> Progress<'_> {
        let ended = self.ended.first().filter(|_| finish.is_some());
        let line = ended.map_or_else(|| &self.live[0], |ended| &ended.line);
        let length = line.log_probabilities.len();
        Progress {
            request,
            tokens: line.generated(),
            log_probability: line.log_probabilities.last().copied().unwrap_or(0.0),
            score: self.beam.length_penalty.score(line.sum, length),
            top: line.newest_top(),
            text: "",
            finish,
        }
    }

    pub(crate) fn generated(&self, turn: &mut Turn<'_>) -> Result<Generated> {
        let best = self.ended.iter().take(self.beam.n_best);
        let hypothesis = |ended: &Ended| {
            let text = turn.text(ended.line.generated())?;
            ended.line.hypothesis(ended.score, ended.finish, text)
        };
        Generated::collect(best.map(hypothesis))
    }
}

/// A list with room for so many, that begins with what there is; `None` when the allocator refuses.
fn beginning<T>(capacity: usize, first: T) -> Option<Vec<T>> {
    let mut list = room(capacity)?;
    list.push(first);
    Some(list)
}
