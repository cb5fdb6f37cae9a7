//! Heads that score labels, in training: classifiers of sequences, and taggers of tokens.

use super::{Before, Encoded, Head, Heads, Squash, first_states};
use crate::linear::{Call, Linear, room, take};
use crate::train::pass::{Back, TrainingPass};
use headrow_kernels::{
    Activation, Cpu, Mat, MatMut, Need, Segment, Stack, Write, activate_backward,
};

/// A head and what it reads.
#[derive(Clone, Copy)]
pub(crate) struct LabelHead<'a> {
    reads: Reads<'a>,
    /// From that to scores.
    output: &'a Linear,
}

#[derive(Clone, Copy)]
enum Reads<'a> {
    /// The states of all tokens.
    States,
    /// x_first of each sequence.
    First,
    /// squash(x_first·W + b).
    Squashed(&'a Linear, Squash),
}

/// What a head has read: x_first, and that squashed, as far as there are such.
#[derive(Clone, Copy)]
struct Read<'s> {
    first: Mat<'s>,
    squashed: Mat<'s>,
}

impl Heads {
    /// A head that scores labels; `None` when it is of another kind or its weights are not there.
    pub(crate) fn labelling(&self, head: Head) -> Option<LabelHead<'_>> {
        let pooler = self.pooler.as_ref();
        let pooled = pooler.map(|pooler| Reads::Squashed(pooler, Squash::Tanh));
        let (reads, output) = match head {
            Head::TokenTagger => (Some(Reads::States), self.tagger.as_ref()),
            Head::NextSentence => (pooled, self.next_sentence.as_ref()),
            Head::SequenceClassifier => {
                let classifier = self.classifier.as_ref()?;
                let reads = match &classifier.before {
                    Before::Pooler => pooled,
                    Before::Dense(dense, squash) => Some(Reads::Squashed(dense, *squash)),
                    Before::Nothing => Some(Reads::First),
                };
                (reads, Some(&classifier.output))
            }
            _ => (None, None),
        };
        reads.zip(output).map(|(reads, output)| LabelHead { reads, output })
    }
}

impl LabelHead<'_> {
    /// How many scores it gives.
    pub(crate) fn labels(self) -> usize {
        self.output.width()
    }

    /// Of how many tokens or sequences it gives scores.
    pub(crate) fn rows(self, tokens: usize, sequences: usize) -> usize {
        match self.reads {
            Reads::States => tokens,
            Reads::First | Reads::Squashed(..) => sequences,
        }
    }

    /// Rows of x_first and of what it is squashed to, for so many scores.
    fn between(self, rows: usize) -> [usize; 2] {
        match self.reads {
            Reads::States => [0, 0],
            Reads::First => [rows, 0],
            Reads::Squashed(..) => [rows, rows],
        }
    }

    /// Shows `judge` the scores, as [`Heads::forward`] has them, but from parameters. With `back`, `judge` leaves their gradient in
    /// their place; d ← that of the states, and to the gradients of the parameters theirs are added.
    pub(crate) fn judged<R>(
        self,
        pass: &TrainingPass<'_>,
        encoded: Encoded<'_>,
        judge: impl FnOnce(MatMut<'_>) -> R,
        back: Option<Back<'_>>,
        stack: &mut Stack<'_>,
    ) -> R {
        let rows = self.rows(encoded.hidden.rows(), encoded.segments.len());
        let [firsts, squashed] = self.between(rows);
        let (mut scores, mut stack) = take(stack, rows, self.labels());
        let (mut first, mut stack) = take(&mut stack, firsts, encoded.hidden.cols());
        let (mut squashed, mut stack) = take(&mut stack, squashed, self.output.origin.inputs);
        if firsts > 0 {
            first_states(encoded, first.reborrow());
        }
        let (call, parameters) = (pass.call, pass.parameters);
        if let Reads::Squashed(dense, squash) = self.reads {
            let (x, activation, out) = (first.as_ref(), squash.activation(), squashed.reborrow());
            dense.apply(call, parameters, x, activation, None, out, &mut stack);
            squash.finish(call, squashed.reborrow());
        }
        let read = Read { first: first.as_ref(), squashed: squashed.as_ref() };
        let (x, identity) = (self.x(encoded.hidden, read), Activation::Identity);
        self.output.apply(call, parameters, x, identity, None, scores.reborrow(), &mut stack);
        let judged = judge(scores.reborrow());
        if let Some(back) = back {
            self.back(pass, encoded, read, scores.as_ref(), back, &mut stack);
        }
        judged
    }

    /// What the last map reads.
    fn x<'s>(self, hidden: Mat<'s>, read: Read<'s>) -> Mat<'s> {
        match self.reads {
            Reads::States => hidden,
            Reads::First => read.first,
            Reads::Squashed(..) => read.squashed,
        }
    }

    /// From the gradient `dy` of the scores to all others.
    fn back(
        self,
        pass: &TrainingPass<'_>,
        encoded: Encoded<'_>,
        read: Read<'_>,
        dy: Mat<'_>,
        back: Back<'_>,
        stack: &mut Stack<'_>,
    ) {
        let Back { d, gradients } = back;
        let (call, x) = (pass.call, self.x(encoded.hidden, read));
        if let Reads::States = self.reads {
            self.output.add_gradients(call, x, dy, gradients, stack);
            return self.output.back(call, pass.parameters, dy, Write::Replace, d, stack);
        }
        let (mut d_x, mut stack) = self.output.backward(pass, x, dy, gradients, stack);
        let Reads::Squashed(dense, squash) = self.reads else {
            return spread(encoded.segments, d_x.as_ref(), d);
        };
        squash.backward(call, read.squashed, d_x.reborrow());
        let (d_first, _) = dense.backward(pass, read.first, d_x.as_ref(), gradients, &mut stack);
        spread(encoded.segments, d_first.as_ref(), d);
    }

    /// Scratch of all of it for up to `rows` tokens of d_model features.
    pub(crate) fn training_scratch(
        self,
        cpu: Cpu,
        threads: usize,
        rows: usize,
        d_model: usize,
    ) -> Need {
        let [firsts, squashed] = self.between(rows);
        let mut products = self.output.training_scratch(cpu, threads, rows);
        if let Reads::Squashed(dense, _) = self.reads {
            products = products.or(dense.training_scratch(cpu, threads, rows));
        }
        // Each of both has a gradient beside it.
        let between = room(firsts, d_model).and(room(squashed, self.output.origin.inputs));
        room(rows, self.labels()).and(between.times(2)).and(products)
    }
}

/// d ← the gradient of the states, of which each sequence's first was read.
fn spread(segments: &[Segment], d_first: Mat<'_>, mut d: MatMut<'_>) {
    d.fill(0.0);
    for (sequence, segment) in segments.iter().enumerate() {
        d.row_mut(segment.queries.start).copy_from_slice(d_first.row(sequence));
    }
}

impl Squash {
    /// d ← d·squash′, by what the squash gave: 1 − y² of tanh, y > 0 of ReLU.
    fn backward(self, call: Call<'_>, y: Mat<'_>, mut d: MatMut<'_>) {
        match self {
            Squash::Relu => activate_backward(call.cpu, call.par, Activation::Relu, y, d),
            // Beside the maps around it this is little: a row per sequence. Near ±1 the product keeps what 1 − y² would lose.
            Squash::Tanh => {
                for i in 0..d.rows() {
                    let pairs = d.row_mut(i).iter_mut().zip(y.row(i));
                    pairs.for_each(|(d, y)| *d *= (1.0 - y) * (1.0 + y));
                }
            }
        }
    }
}
