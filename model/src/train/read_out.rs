//! From the last states to losses and back, some rows at a time: tokens × vocabulary are never there at once.

use super::claims::Claims;
use super::labelled::Labelled;
use super::loss::{Loss, add_up};
use super::options::Limits;
use super::pass::{Back, TrainingPass, grown};
use crate::embedding::{PackedWords, ReadOut};
use crate::error::Result;
use crate::head::{MaskedLm, MaskedLmKept};
use crate::linear::room;
use crate::transformer::Transformer;
use headrow_kernels::{
    Activation, CrossEntropy, Mat, MatMut, Need, Stack, TokenLoss, Write, cross_entropy,
    cross_entropy_backward,
};
use std::ops::Range;

/// Scores that are there at once, unless a single block of rows has more.
const SCORES: usize = 1 << 20;
/// Fewest rows of a block.
const FEWEST: usize = 64;

/// What stands between the last states and the scores.
#[derive(Clone, Copy)]
enum Before<'a> {
    Masked(&'a MaskedLm),
    ReadOut(&'a ReadOut),
}

/// The scores of words of a model.
#[derive(Clone, Copy)]
pub(super) struct Answer<'a> {
    before: Before<'a>,
    d_model: usize,
}

/// What is to be predicted from which states, and how that is judged.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) answer: Answer<'a>,
    pub(super) how: &'a CrossEntropy<'a>,
    pub(super) states: Mat<'a>,
    /// A word for each state; without one it counts nowhere.
    pub(super) labels: &'a [Option<u32>],
}

/// Buffers for it.
#[derive(Debug, Default)]
pub(super) struct AnswerKept {
    masked: Option<MaskedLmKept>,
    /// What the words' matrix reads, where that is not the last states.
    read: Vec<f32>,
    d_read: Vec<f32>,
    words: Option<PackedWords>,
    scores: Vec<f32>,
    losses: Vec<TokenLoss>,
    /// Of a masked language model.
    labelled: Labelled,
}

impl<'a> Answer<'a> {
    /// That of a decoder, or of a masked language model.
    pub(super) fn of(transformer: &'a Transformer, d_model: usize) -> Option<Answer<'a>> {
        let masked = transformer.heads.masked_lm.as_ref().map(Before::Masked);
        let before = transformer.read_out.as_ref().map(Before::ReadOut).or(masked)?;
        Some(Answer { before, d_model })
    }

    fn read_out(self) -> &'a ReadOut {
        match self.before {
            Before::Masked(head) => &head.read_out,
            Before::ReadOut(read_out) => read_out,
        }
    }

    /// Features that the words' matrix reads.
    fn width(self) -> usize {
        match self.before {
            Before::Masked(head) => head.transform.width(),
            Before::ReadOut(read_out) => read_out.reads(self.d_model),
        }
    }

    /// v.
    pub(super) fn vocabulary(self) -> usize {
        self.read_out().words.place().len() / self.width().max(1)
    }

    /// Whether something stands between the states and the words' matrix.
    fn transforms(self) -> bool {
        match self.before {
            Before::Masked(_) => true,
            Before::ReadOut(read_out) => read_out.projection.is_some(),
        }
    }

    /// Rows whose scores are there at once.
    fn block(self, rows: usize) -> usize {
        (SCORES / self.vocabulary().max(1)).max(FEWEST).min(rows)
    }

    /// Scratch of all of it.
    pub(super) fn scratch(self, limits: &Limits) -> Need {
        let &Limits { rows, threads, cpu, .. } = limits;
        let score = self.read_out().score_scratch(cpu, threads, self.block(rows), self.width());
        let (first, wide) = match self.before {
            Before::Masked(head) => (head.transform_scratch(cpu, threads, rows), Need::NONE),
            Before::ReadOut(read_out) => match &read_out.projection {
                Some(map) => (map.training_scratch(cpu, threads, rows), room(rows, self.d_model)),
                None => (Need::NONE, Need::NONE),
            },
        };
        score.or(first.and(wide))
    }

    /// What the words' matrix reads: the states, or what is made of them.
    fn transform<'s>(
        self,
        pass: &TrainingPass<'_>,
        states: Mat<'s>,
        masked: &mut Option<MaskedLmKept>,
        read: &'s mut [f32],
        stack: &mut Stack<'_>,
    ) -> Mat<'s> {
        if !self.transforms() {
            return states;
        }
        let (rows, width) = (states.rows(), self.width());
        let mut out = MatMut::new(&mut read[..rows * width], rows, width);
        match (self.before, masked) {
            (Before::Masked(head), Some(kept)) => {
                head.transform(pass, states, kept, out.reborrow(), stack);
            }
            (Before::ReadOut(ReadOut { projection: Some(map), .. }), _) => {
                let identity = Activation::Identity;
                map.apply(
                    pass.call,
                    pass.parameters,
                    states,
                    identity,
                    None,
                    out.reborrow(),
                    stack,
                );
            }
            _ => {}
        }
        Mat::new(&read[..rows * width], rows, width)
    }

    /// d ← the gradient of the states, from `d_read`, that of what the words' matrix reads.
    #[expect(clippy::too_many_arguments, reason = "what was read and kept, and the gradients")]
    fn transform_backward(
        self,
        pass: &TrainingPass<'_>,
        states: Mat<'_>,
        masked: &Option<MaskedLmKept>,
        d_read: Mat<'_>,
        d: MatMut<'_>,
        gradients: &mut [f32],
        stack: &mut Stack<'_>,
    ) {
        match (self.before, masked) {
            (Before::Masked(head), Some(kept)) => {
                head.transform_backward(pass, states, kept, d_read, d, gradients, stack);
            }
            (Before::ReadOut(ReadOut { projection: Some(map), .. }), _) => {
                map.add_gradients(pass.call, states, d_read, gradients, stack);
                map.back(pass.call, pass.parameters, d_read, Write::Replace, d, stack);
            }
            _ => {}
        }
    }
}

impl AnswerKept {
    /// For up to as many rows as the network takes.
    pub(super) fn new(
        answer: Option<Answer<'_>>,
        limits: &Limits,
        claims: &mut Claims,
    ) -> Result<AnswerKept> {
        let Some(answer) = answer else { return Ok(AnswerKept::default()) };
        let (rows, block) = (limits.rows, answer.block(limits.rows));
        let width = if answer.transforms() { answer.width() } else { 0 };
        let (masked, labelled) = match answer.before {
            Before::Masked(head) => {
                let kept = MaskedLmKept::new(head, rows, claims)?;
                (Some(kept), Labelled::new(rows, answer.d_model, claims)?)
            }
            Before::ReadOut(_) => (None, Labelled::default()),
        };
        let (words, features) = (answer.vocabulary(), answer.width());
        // Packed for both ways.
        let packed = words.saturating_mul(features).saturating_mul(2 * size_of::<f32>());
        let words = match claims.counts(packed) {
            true => None,
            false => Some(PackedWords::new(limits.cpu, answer.read_out(), features)),
        };
        Ok(AnswerKept {
            masked,
            read: claims.zeros(rows, width)?,
            d_read: claims.zeros(rows, width)?,
            words,
            scores: claims.zeros(block, answer.vocabulary())?,
            losses: claims.zeros(block, 1)?,
            labelled,
        })
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let masked = self.masked.as_ref().map_or(0, MaskedLmKept::bytes);
        let read = grown(&self.read) + grown(&self.d_read);
        let words = self.words.as_ref().map_or(0, PackedWords::bytes);
        masked + read + words + grown(&self.scores) + grown(&self.losses) + self.labelled.bytes()
    }

    /// Scores of all rows.
    pub(super) fn scores(
        &mut self,
        pass: &TrainingPass<'_>,
        answer: Answer<'_>,
        states: Mat<'_>,
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let AnswerKept { masked, read, words, .. } = self;
        let x = answer.transform(pass, states, masked, read, stack);
        let (call, parameters, words) = (pass.call, pass.parameters, packed(words));
        words.refill(call, answer.read_out(), parameters);
        answer.read_out().score(call, parameters, words, x, out, stack);
    }

    /// The losses of the labels.
    pub(super) fn evaluate(
        &mut self,
        pass: &TrainingPass<'_>,
        question: Question<'_>,
        stack: &mut Stack<'_>,
    ) -> Loss {
        let Some(mut labelled) = self.labelled(question) else {
            return self.evaluate_rows(pass, question, stack);
        };
        let (states, labels, _) = labelled.parts(question.answer.d_model);
        let loss = self.evaluate_rows(pass, Question { states, labels, ..question }, stack);
        self.labelled = labelled;
        loss
    }

    /// The rows that have labels, where the others are not to be scored.
    fn labelled(&mut self, question: Question<'_>) -> Option<Labelled> {
        let Before::Masked(_) = question.answer.before else { return None };
        let mut labelled = std::mem::take(&mut self.labelled);
        labelled.gather(question.states, question.labels);
        Some(labelled)
    }

    fn evaluate_rows(
        &mut self,
        pass: &TrainingPass<'_>,
        question: Question<'_>,
        stack: &mut Stack<'_>,
    ) -> Loss {
        let Question { answer, how, states, labels } = question;
        let AnswerKept { masked, read, words, scores, losses, .. } = self;
        let x = answer.transform(pass, states, masked, read, stack);
        let (call, v, parameters) = (pass.call, answer.vocabulary(), pass.parameters);
        let (read_out, words) = (answer.read_out(), packed(words));
        words.refill(call, read_out, parameters);
        let mut loss = Loss::default();
        for rows in blocks(states.rows(), answer.block(losses.len())) {
            let (labels, count) = (&labels[rows.clone()], rows.len());
            let losses = &mut losses[..count];
            let mut scores = MatMut::new(&mut scores[..count * v], count, v);
            let x = x.rows_range(rows);
            read_out.score(call, parameters, words, x, scores.reborrow(), stack);
            cross_entropy(call.cpu, call.par, how, scores.as_ref(), labels, losses);
            add_up(&mut loss, labels, losses);
        }
        loss
    }

    /// The same, and d ← the gradient of the states; those of the parameters are added to.
    pub(super) fn learn(
        &mut self,
        pass: &TrainingPass<'_>,
        question: Question<'_>,
        back: Back<'_>,
        stack: &mut Stack<'_>,
    ) -> Loss {
        let Some(mut labelled) = self.labelled(question) else {
            return self.learn_rows(pass, question, back, stack);
        };
        let (states, labels, d) = labelled.parts(question.answer.d_model);
        let question = Question { states, labels, ..question };
        let loss = self.learn_rows(pass, question, Back { d, gradients: back.gradients }, stack);
        labelled.scatter(back.d);
        self.labelled = labelled;
        loss
    }

    fn learn_rows(
        &mut self,
        pass: &TrainingPass<'_>,
        question: Question<'_>,
        back: Back<'_>,
        stack: &mut Stack<'_>,
    ) -> Loss {
        let Question { answer, how, states, labels } = question;
        let Back { mut d, gradients } = back;
        let AnswerKept { masked, read, d_read, words, scores, losses, .. } = self;
        let x = answer.transform(pass, states, masked, read, stack);
        let (call, v, width, all) = (pass.call, answer.vocabulary(), answer.width(), states.rows());
        let mut d_x = match answer.transforms() {
            true => MatMut::new(&mut d_read[..all * width], all, width),
            false => d.reborrow(),
        };
        let (read_out, parameters, words) = (answer.read_out(), pass.parameters, packed(words));
        words.refill_both(call, read_out, parameters);
        let mut loss = Loss::default();
        for rows in blocks(all, answer.block(losses.len())) {
            let (labels, count) = (&labels[rows.clone()], rows.len());
            let losses = &mut losses[..count];
            let mut scores = MatMut::new(&mut scores[..count * v], count, v);
            let (x, d_x) = (x.rows_range(rows.clone()), d_x.reborrow().rows_range(rows));
            read_out.score(call, parameters, words, x, scores.reborrow(), stack);
            cross_entropy_backward(call.cpu, call.par, how, 1.0, scores.reborrow(), labels, losses);
            add_up(&mut loss, labels, losses);
            read_out.score_backward(call, words, x, scores, d_x, gradients, stack);
        }
        if answer.transforms() {
            let d_read = Mat::new(&d_read[..all * width], all, width);
            answer.transform_backward(pass, states, masked, d_read, d, gradients, stack);
        }
        loss
    }
}

/// The words of an answer that there is.
fn packed(words: &mut Option<PackedWords>) -> &mut PackedWords {
    words.as_mut().expect("made with the answer")
}

/// Rows in equal blocks of at most so many, from the first on.
fn blocks(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let block = rows.div_ceil(rows.div_ceil(most.max(1)).max(1)).max(1);
    (0..rows).step_by(block).map(move |first| first..rows.min(first + block))
}
