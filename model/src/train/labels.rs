//! Losses of labels and numbers that a head gives of tokens, sequences or images.

use super::loss::{Loss, add_up};
use super::objective::{Goal, Objective};
use super::options::Limits;
use crate::error::{Error, Result};
use crate::head::{Head, Heads, LabelHead};
use crate::linear::Call;
use headrow_kernels::{
    CrossEntropy, MatMut, Need, TokenLoss, cross_entropy, cross_entropy_backward,
};

/// All heads that score labels.
const HEADS: [Head; 3] = [Head::SequenceClassifier, Head::TokenTagger, Head::NextSentence];

impl Goal {
    /// The head that scores labels; `None` for scores of words.
    pub(super) fn head(self) -> Option<Head> {
        match self {
            Goal::Words => None,
            Goal::Classes | Goal::Numbers => Some(Head::SequenceClassifier),
            Goal::Tags => Some(Head::TokenTagger),
            Goal::NextSentence => Some(Head::NextSentence),
        }
    }
}

/// A head of the model.
pub(super) fn labelling(heads: &Heads, head: Head) -> Result<LabelHead<'_>> {
    heads.labelling(head).ok_or(Error::NoHead { head: head.name() })
}

/// Whether there are such heads.
pub(super) fn any(heads: &Heads) -> bool {
    HEADS.into_iter().any(|head| heads.labelling(head).is_some())
}

/// Scratch of all heads that there are; `None` when there are none.
pub(super) fn scratch(heads: &Heads, limits: &Limits, d_model: usize) -> Option<Need> {
    let &Limits { rows, threads, cpu, .. } = limits;
    let there = HEADS.into_iter().filter_map(|head| heads.labelling(head));
    there.map(|head| head.training_scratch(cpu, threads, rows, d_model)).reduce(Need::or)
}

/// What scores are compared with.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) objective: &'a Objective,
    pub(super) labels: &'a [Option<u32>],
    pub(super) numbers: &'a [f32],
}

impl Wanted<'_> {
    /// The loss of scores, a row for each label or the numbers of one. With `learning` they become their gradient.
    pub(super) fn judge(
        self,
        call: Call<'_>,
        mut scores: MatMut<'_>,
        losses: &mut [TokenLoss],
        learning: bool,
    ) -> Loss {
        if self.objective.goal == Goal::Numbers {
            return squares(scores, self.numbers);
        }
        let (cpu, par, labels) = (call.cpu, call.par, self.labels);
        let losses = &mut losses[..labels.len()];
        let how = CrossEntropy::default().with_smoothing(self.objective.smoothing);
        match learning {
            true => cross_entropy_backward(cpu, par, &how, 1.0, scores.reborrow(), labels, losses),
            false => cross_entropy(cpu, par, &how, scores.as_ref(), labels, losses),
        }
        let mut loss = Loss::default();
        add_up(&mut loss, labels, losses);
        loss
    }
}

/// Σ (y − t)²/n over rows of n scores, which become the gradient 2·(y − t)/n.
fn squares(mut scores: MatMut<'_>, numbers: &[f32]) -> Loss {
    let n = scores.cols();
    let mut sum = 0.0;
    for (i, numbers) in numbers.chunks_exact(n).enumerate() {
        for (y, t) in scores.row_mut(i).iter_mut().zip(numbers) {
            let off = *y - t;
            sum += f64::from(off) * f64::from(off) / n as f64;
            *y = 2.0 * off / n as f32;
        }
    }
    Loss { smoothed: sum, nll: sum, tokens: scores.rows(), correct: 0 }
}
