//! Losses of both suites: classes along a dimension, one loss at each place of the others.

use super::array::Array;
use super::ops::{matrix, matrix_mut};
use super::{Lane, Stop};
use headrow_kernels::{
    Activation, CrossEntropy, Smoothing, TokenLoss, add_column_sums, cross_entropy,
    cross_entropy_backward, log_softmax, log_softmax_backward, nll, nll_backward,
};

/// How the losses of all places become the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reduction {
    None,
    Sum,
    Mean,
}

impl Reduction {
    pub(crate) fn named(name: Option<&str>) -> Result<Reduction, Stop> {
        match name {
            None | Some("mean") => Ok(Reduction::Mean),
            Some("sum") => Ok(Reduction::Sum),
            Some("none") => Ok(Reduction::None),
            Some(other) => Err(Stop::fail(format!("reduction {other}"))),
        }
    }
}

/// What a place should be.
pub(crate) enum Target {
    /// A class, or none: the place is ignored.
    Labels(Vec<Option<u32>>),
    /// A weight for each class: places × classes.
    Shares(Array<f32>),
}

/// The operands of a loss.
pub(crate) struct Loss {
    /// Logits or logarithms of probabilities: places × classes.
    pub(crate) rows: Array<f32>,
    /// The shape of the places.
    places: Vec<usize>,
    pub(crate) target: Target,
    pub(crate) weights: Option<Array<f32>>,
    pub(crate) smoothing: f32,
    pub(crate) reduction: Reduction,
}

/// Classes stand in dimension 1, or alone.
fn class_axis(x: &Array<f32>) -> usize {
    usize::from(x.rank() > 1)
}

/// Places × classes.
fn rows_of(x: &Array<f32>) -> Array<f32> {
    let (axis, last) = (class_axis(x), x.rank() - 1);
    let classes = x.shape()[axis];
    x.moved(axis, last).reshape(&[x.len() / classes.max(1), classes])
}

impl Loss {
    /// `x` is batch × classes × …, or classes alone. An integer target outside of the classes, or `ignored`,
    /// stands for no label.
    pub(crate) fn of_labels(
        x: &Array<f32>,
        labels: &Array<i64>,
        ignored: Option<i64>,
    ) -> Result<Loss, Stop> {
        let rows = rows_of(x);
        let classes = rows.shape()[1];
        let label = |&label: &i64| match u32::try_from(label) {
            _ if ignored == Some(label) => Ok(None),
            Ok(label) if (label as usize) < classes => Ok(Some(label)),
            _ => Err(Stop::fail(format!("label {label} of {classes} classes"))),
        };
        let labels_of_rows = labels.data().iter().map(label).collect::<Result<Vec<_>, _>>()?;
        if labels_of_rows.len() != rows.shape()[0] {
            return Err(Stop::fail(format!("{:?} labels for {:?}", labels.shape(), x.shape())));
        }
        let places = labels.shape().to_vec();
        Ok(Loss::new(rows, places, Target::Labels(labels_of_rows)))
    }

    pub(crate) fn of_shares(x: &Array<f32>, shares: &Array<f32>) -> Result<Loss, Stop> {
        if x.shape() != shares.shape() {
            return Err(Stop::fail(format!("{:?} shares for {:?}", shares.shape(), x.shape())));
        }
        let mut places = x.shape().to_vec();
        places.remove(class_axis(x));
        Ok(Loss::new(rows_of(x), places, Target::Shares(rows_of(shares))))
    }

    fn new(rows: Array<f32>, places: Vec<usize>, target: Target) -> Loss {
        let (weights, smoothing, reduction) = (None, 0.0, Reduction::Mean);
        Loss { rows, places, target, weights, smoothing, reduction }
    }

    /// places × classes back in the form of the operand.
    fn in_place(&self, rows: Array<f32>) -> Array<f32> {
        let classes = self.rows.shape()[1];
        let shape = [&self.places[..], &[classes]].concat();
        let last = shape.len() - 1;
        let rows = rows.reshape(&shape);
        let axis = class_axis(&rows);
        rows.moved(last, axis)
    }

    fn weights(&self) -> Option<&[f32]> {
        self.weights.as_ref().map(Array::data)
    }

    /// What a mean divides by: the weights of the labels, or the number of places.
    fn count(&self) -> f64 {
        let weight = |label: u32| self.weights().map_or(1.0, |w| f64::from(w[label as usize]));
        match &self.target {
            Target::Labels(labels) => labels.iter().flatten().map(|&label| weight(label)).sum(),
            Target::Shares(_) => self.rows.shape()[0] as f64,
        }
    }

    fn reduced(&self, losses: &[f64]) -> Array<f32> {
        let sum = || losses.iter().sum::<f64>();
        match self.reduction {
            Reduction::None => {
                Array::new(&self.places, losses.iter().map(|&loss| loss as f32).collect())
            }
            Reduction::Sum => Array::scalar(sum() as f32),
            Reduction::Mean => Array::scalar((sum() / self.count()) as f32),
        }
    }

    /// What each place's loss counts in the result, times the gradient of the result.
    fn scales(&self, dy: &Array<f32>) -> Vec<f32> {
        let rows = self.rows.shape()[0];
        match self.reduction {
            Reduction::None => dy.data().to_vec(),
            Reduction::Sum => vec![dy.data()[0]; rows],
            Reduction::Mean => vec![(f64::from(dy.data()[0]) / self.count()) as f32; rows],
        }
    }
}

/// Gradients to the logits and, where it is no label, to the target.
pub(crate) type LossGradients = (Array<f32>, Option<Array<f32>>);

impl Lane<'_> {
    pub(crate) fn cross_entropy(&self, loss: &Loss) -> Array<f32> {
        let (how, rows) = (how(loss), loss.rows.shape()[0]);
        match &loss.target {
            Target::Labels(labels) => {
                let mut losses = vec![TokenLoss::default(); rows];
                let logits = matrix(&loss.rows);
                cross_entropy(self.cpu, self.par, &how, logits, labels, &mut losses);
                let smoothed: Vec<f64> = losses.iter().map(|loss| loss.smoothed).collect();
                loss.reduced(&smoothed)
            }
            Target::Shares(_) => {
                // −Σ w·q·ln p over the classes of a place: a column sum of the transposed product.
                let logs = self.each(&loss.rows, log_softmax);
                let terms = self.product(&logs, &self.weighed_shares(loss)).transposed();
                let mut sums = vec![0.0; rows];
                add_column_sums(self.cpu, self.par, matrix(&terms), &mut sums);
                let losses: Vec<f64> = sums.iter().map(|&sum| -f64::from(sum)).collect();
                loss.reduced(&losses)
            }
        }
    }

    pub(crate) fn cross_entropy_backward(&self, loss: &Loss, dy: &Array<f32>) -> LossGradients {
        let (how, rows, scales) = (how(loss), loss.rows.shape()[0], loss.scales(dy));
        match &loss.target {
            Target::Labels(labels) => {
                let mut d = loss.rows.clone();
                for (i, &scale) in scales.iter().enumerate() {
                    let (row, label) = (matrix_mut(&mut d).rows_range(i..i + 1), &labels[i..=i]);
                    let mut own = [TokenLoss::default()];
                    cross_entropy_backward(self.cpu, self.par, &how, scale, row, label, &mut own);
                }
                (loss.in_place(d), None)
            }
            Target::Shares(shares) => {
                let scales = Array::new(&[rows, 1], scales).broadcast(shares.shape());
                let scales = self.scaled(&scales, -1.0);
                let logs = self.each(&loss.rows, log_softmax);
                let mut d = self.product(&scales, &self.weighed_shares(loss));
                log_softmax_backward(self.cpu, self.par, matrix(&logs), matrix_mut(&mut d));
                let d_shares = self.product(&scales, &self.weighed(loss, &logs));
                let d_shares = self.scaled(&d_shares, 1.0 - f64::from(loss.smoothing));
                (loss.in_place(d), Some(loss.in_place(d_shares)))
            }
        }
    }

    pub(crate) fn nll(&self, loss: &Loss) -> Result<Array<f32>, Stop> {
        let Target::Labels(labels) = &loss.target else {
            return Err(Stop::fail("nll of shares"));
        };
        let mut losses = vec![f32::NAN; labels.len()];
        nll(loss.weights(), matrix(&loss.rows), labels, &mut losses);
        let losses: Vec<f64> = losses.iter().map(|&loss| f64::from(loss)).collect();
        Ok(loss.reduced(&losses))
    }

    pub(crate) fn nll_backward(&self, loss: &Loss, dy: &Array<f32>) -> Result<Array<f32>, Stop> {
        let Target::Labels(labels) = &loss.target else {
            return Err(Stop::fail("nll of shares"));
        };
        let mut d = Array::full(loss.rows.shape(), f32::NAN);
        nll_backward(loss.weights(), labels, &loss.scales(dy), matrix_mut(&mut d));
        Ok(loss.in_place(d))
    }

    /// x·y, element by element.
    pub(crate) fn product(&self, x: &Array<f32>, y: &Array<f32>) -> Array<f32> {
        self.gated(Activation::Identity, x, y).expect("arrays of one shape")
    }

    fn weighed(&self, loss: &Loss, x: &Array<f32>) -> Array<f32> {
        loss.weights.as_ref().map_or_else(|| x.clone(), |w| self.product(x, w))
    }

    /// w·q, smoothed.
    fn weighed_shares(&self, loss: &Loss) -> Array<f32> {
        let Target::Shares(shares) = &loss.target else { unreachable!() };
        let epsilon = f64::from(loss.smoothing);
        let even = Array::full(shares.shape(), 1.0 / shares.shape()[1] as f32);
        let smoothed = self.combined(&[(shares, 1.0 - epsilon), (&even, epsilon)]);
        self.weighed(loss, &smoothed)
    }
}

fn how(loss: &Loss) -> CrossEntropy<'_> {
    let how = CrossEntropy::default().with_smoothing(Smoothing::All(loss.smoothing));
    loss.weights().map_or(how, |weights| how.with_weights(weights))
}
