//! Where the examples of a batch stand, and everything about them that a caller may have got wrong, found before anything is
//! computed.

use super::{Buffers, Inputs, Model, Network};
use crate::error::{Error, Problems, Result};
use crate::train::labels;
use crate::train::{Examples, Goal, Parameters, Vectors};
use headrow_kernels::Segment;

impl Network {
    /// Rows and columns of the scores of the examples that were laid out.
    pub(super) fn scored(&self, goal: Goal) -> Result<(usize, usize)> {
        let (model, target) = (self.model()?, &self.buffers.target);
        let Some(head) = goal.head() else {
            let answer = model.answer.ok_or(Error::NoHead { head: "read-out" })?;
            return Ok((target.len(), answer.vocabulary()));
        };
        let head = labels::labelling(model.heads, head)?;
        Ok((head.rows(target.len(), target.segments().len()), head.labels()))
    }

    pub(super) fn lay_out_examples<'e>(
        &mut self,
        parameters: &Parameters,
        examples: &'e Examples,
    ) -> Result<Inputs<'e>> {
        let Examples { sources, targets, features, types, .. } = examples;
        let mut source = None;
        let mut unread = features.len();
        if let Some(side) = &mut self.buffers.source {
            source = Some(side.lay_out_examples(sources, &[], features)?);
            unread *= usize::from(!side.reads_features());
        }
        let side = &mut self.buffers.target;
        let target = side.lay_out_examples(targets, types, features)?;
        unread *= usize::from(!side.reads_features());
        if unread > 0 {
            let what = "numbers of images or spectrograms";
            return Err(Error::Lengths { what, expected: 0, actual: unread });
        }
        let inputs = Inputs { source, target };
        self.check(parameters, inputs)?;
        Ok(inputs)
    }

    pub(super) fn lay_out_vectors<'v>(
        &mut self,
        parameters: &Parameters,
        sources: Option<Vectors<'v>>,
        targets: Vectors<'v>,
    ) -> Result<Inputs<'v>> {
        let mut source = None;
        if let Some(side) = &mut self.buffers.source {
            let sources = sources.unwrap_or_default();
            side.lay_out(sources.lengths.iter().copied())?;
            source = Some(sources.into());
        }
        self.buffers.target.lay_out(targets.lengths.iter().copied())?;
        let inputs = Inputs { source, target: targets.into() };
        self.check(parameters, inputs)?;
        Ok(inputs)
    }

    /// What was laid out against what is given and what it is computed from; pairs the sequences of both sides.
    fn check(&mut self, parameters: &Parameters, inputs: Inputs<'_>) -> Result<()> {
        self.check_parameters(parameters)?;
        let d_model = self.config.d_model;
        let model = Model::of(&self.plan.transformer, d_model)?;
        let Buffers { source, target, crossing, .. } = &mut self.buffers;
        target.check(model.target, inputs.target, d_model)?;
        crossing.clear();
        if let (Some(side), Some(parts), Some(given)) = (source, model.source, inputs.source) {
            side.check(parts, given, d_model)?;
            let (sources, targets) = (side.segments(), target.segments());
            if sources.len() != targets.len() {
                let (expected, actual) = (targets.len(), sources.len());
                return Err(Error::Lengths { what: "sources", expected, actual });
            }
            let pairs = targets.iter().zip(sources);
            crossing.extend(pairs.map(|(target, source)| {
                Segment::full(target.queries.clone(), source.queries.clone())
            }));
        }
        Ok(())
    }

    fn check_parameters(&self, parameters: &Parameters) -> Result<()> {
        let (own, given) = (&self.plan.tensors, parameters.planned());
        let mut problems = Problems::default();
        for (own, given) in own.iter().zip(given) {
            if (&own.name, &own.shape) != (&given.name, &given.shape) {
                problems.add(|| {
                    let (name, shape) = (&given.name, &given.shape);
                    format!("{name} {shape:?}, expected {} {:?}", own.name, own.shape)
                });
            }
        }
        if own.len() != given.len() {
            problems.add(|| format!("{} tensors, expected {}", given.len(), own.len()));
        }
        match problems.count() {
            0 => Ok(()),
            _ => Err(Error::Weights { place: "parameters".to_owned(), problems }),
        }
    }

    /// That there is a head for the goal, and that labels or numbers are as many as it scores, and such as it knows.
    pub(super) fn check_labels(&self, goal: Goal, examples: &Examples) -> Result<()> {
        let (rows, known) = self.scored(goal)?;
        let (what, expected, actual) = match goal {
            Goal::Numbers => ("numbers", rows * known, examples.numbers.len()),
            _ => ("labels", rows, examples.labels.len()),
        };
        if expected != actual {
            return Err(Error::Lengths { what, expected, actual });
        }
        let beyond = |label: &Option<u32>| label.is_some_and(|label| label as usize >= known);
        let labels = if goal == Goal::Numbers { &[] } else { &examples.labels[..] };
        let Some(at) = labels.iter().position(beyond) else { return Ok(()) };
        let label = labels[at].unwrap_or_default();
        let segments = self.buffers.target.segments();
        let sequence = match goal {
            Goal::Words | Goal::Tags => segments.partition_point(|s| s.queries.end <= at),
            _ => at,
        };
        if goal != Goal::Words {
            return Err(Error::Label { sequence, label, labels: known });
        }
        let index = at - segments[sequence].queries.start;
        Err(Error::TokenId { sequence, index, id: label, vocabulary: known })
    }
}
