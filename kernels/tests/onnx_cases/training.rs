//! Losses, optimisers, dropout.

use super::conformance::array::Array;
use super::conformance::loss::{Loss, Reduction};
use super::conformance::tensors::Value;
use super::conformance::{Lane, Output, Stop, training};
use super::{Inputs, Node};
use headrow_kernels::{self as kernels, Adagrad, Adam, Dropout, Look, Momentum};

/// The operands: input, target, weights; an ignored label may also be none of the classes.
fn loss(node: &Node, inputs: &Inputs) -> Result<Loss, Stop> {
    node.attrs.only(&["reduction", "ignore_index"])?;
    let labels = inputs.get(1).ok_or(Stop::fail("a loss without target"))?.ints()?;
    let ignored = node.attrs.number("ignore_index")?.map(|label| label as i64);
    let mut loss = Loss::of_labels(&inputs.floats(0)?, &labels, ignored)?;
    loss.weights = inputs.optional(2)?;
    loss.reduction = Reduction::named(node.attrs.text("reduction"))?;
    Ok(loss)
}

/// The loss, and the logarithms of the probabilities.
pub(crate) fn cross_entropy(
    node: &Node,
    inputs: &Inputs,
    lane: Lane<'_>,
) -> Result<Vec<Output>, Stop> {
    let logs = lane.along(&inputs.floats(0)?, 1, kernels::log_softmax);
    Ok(vec![lane.cross_entropy(&loss(node, inputs)?).into(), logs.into()])
}

pub(crate) fn nll(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Array<f32>, Stop> {
    lane.nll(&loss(node, inputs)?)
}

/// What all optimisers are given: the rate, the number of steps before this one, and `kinds` lists of tensors, each as
/// long as there are parameters.
struct Step {
    rate: f64,
    before: u64,
    lists: Vec<Vec<Array<f32>>>,
}

impl Step {
    fn read(inputs: &Inputs, kinds: usize) -> Result<Step, Stop> {
        let rate = f64::from(inputs.floats(0)?.data()[0]);
        let before = inputs.get(1).ok_or(Stop::fail("an optimiser without T"))?.ints()?.data()[0];
        let before = u64::try_from(before).map_err(|_| Stop::fail("steps below 0"))?;
        let count = (inputs.values.len() - 2) / kinds;
        let list = |kind| (0..count).map(|i| inputs.floats(2 + kind * count + i)).collect();
        Ok(Step { rate, before, lists: (0..kinds).map(list).collect::<Result<_, _>>()? })
    }

    /// `run` for each parameter with its gradient and what is kept of it; new parameters first, then what is kept.
    fn each(
        self,
        mut run: impl FnMut(&Array<f32>, &mut Array<f32>, &mut [Array<f32>]) -> Result<(), Stop>,
    ) -> Result<Vec<Output>, Stop> {
        let [parameters, gradients, kept @ ..] = &self.lists[..] else { unreachable!() };
        let mut results = vec![Vec::new(); kept.len() + 1];
        for (i, (parameter, gradient)) in parameters.iter().zip(gradients).enumerate() {
            let mut parameter = parameter.clone();
            let mut own: Vec<Array<f32>> = kept.iter().map(|list| list[i].clone()).collect();
            run(gradient, &mut parameter, &mut own)?;
            for (to, value) in results.iter_mut().zip([parameter].into_iter().chain(own)) {
                to.push(value);
            }
        }
        Ok(results.into_iter().flatten().map(Output::from).collect())
    }
}

/// The page adds ε to the root before the bias of the second moment is corrected, ours after: with c = √(1 − βᵗ)
/// the two agree where ours is ε/c. In step T = 0 nothing is corrected, as after very many steps. A norm's
/// coefficient is added to the gradient beforehand, one `post` is taken off the new parameters.
pub(crate) fn adam(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
    let known = ["alpha", "beta", "epsilon", "norm_coefficient", "norm_coefficient_post"];
    node.attrs.only(&known)?;
    let value =
        |name: &str, default: f64| Ok::<_, Stop>(node.attrs.number(name)?.unwrap_or(default));
    let step = Step::read(inputs, 4)?;
    let mut how = Adam::default();
    (how.beta1, how.beta2) = (value("alpha", 0.9)?, value("beta", 0.999)?);
    let at = if step.before == 0 { u64::MAX } else { step.before };
    how.epsilon = value("epsilon", 1e-6)? / (1.0 - how.beta2.powf(at as f64)).sqrt();
    let (before, after) = (value("norm_coefficient", 0.0)?, value("norm_coefficient_post", 0.0)?);
    let rate = step.rate as f32;
    step.each(|gradient, parameter, kept| {
        let gradient = lane.combined(&[(gradient, 1.0), (parameter, before)]);
        let [first, second] = kept else { unreachable!() };
        let (first, second) = (first.data_mut(), second.data_mut());
        let (g, p) = (gradient.data(), parameter.data_mut());
        kernels::adam(lane.cpu, lane.par, &how, at, rate, 1.0, g, first, second, p);
        *parameter = lane.scaled(parameter, 1.0 - after);
        Ok(())
    })
}

pub(crate) fn momentum(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
    node.attrs.only(&["alpha", "beta", "mode", "norm_coefficient"])?;
    let value = |name: &str| {
        node.attrs.number(name)?.ok_or_else(|| Stop::fail(format!("Momentum without {name}")))
    };
    let step = Step::read(inputs, 3)?;
    let mut how = Momentum::default();
    (how.momentum, how.gain) = (value("alpha")?, value("beta")?);
    how.weight_decay = value("norm_coefficient")?;
    how.look = match node.attrs.text("mode") {
        Some("standard") => Look::Back,
        Some("nesterov") => Look::Ahead,
        other => return Err(Stop::fail(format!("momentum of mode {other:?}"))),
    };
    let (at, rate) = (step.before + 1, step.rate as f32);
    step.each(|gradient, parameter, kept| {
        let (g, v, p) = (gradient.data(), kept[0].data_mut(), parameter.data_mut());
        kernels::momentum(lane.cpu, lane.par, &how, at, rate, 1.0, g, v, p);
        Ok(())
    })
}

/// The rate falls as 1/(1 + T·decay).
pub(crate) fn adagrad(node: &Node, inputs: &Inputs, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
    node.attrs.only(&["decay_factor", "epsilon", "norm_coefficient"])?;
    let value =
        |name: &str, default: f64| Ok::<_, Stop>(node.attrs.number(name)?.unwrap_or(default));
    let step = Step::read(inputs, 3)?;
    let mut how = Adagrad::default();
    how.epsilon = value("epsilon", 1e-6)?;
    how.weight_decay = value("norm_coefficient", 0.0)?;
    let decay = 1.0 + step.before as f64 * value("decay_factor", 0.0)?;
    let rate = (step.rate / decay) as f32;
    step.each(|gradient, parameter, kept| {
        let (g, h, p) = (gradient.data(), kept[0].data_mut(), parameter.data_mut());
        kernels::adagrad(lane.cpu, lane.par, &how, rate, 1.0, g, h, p);
        Ok(())
    })
}

/// Outside of training dropout is the identity and nothing is computed. In training only a rate of 0 says what the
/// result is; another's depends on the generator. The mask is 1 where an element is kept.
pub(crate) fn dropout(inputs: &Inputs, lane: Lane<'_>) -> Result<Vec<Output>, Stop> {
    let at_work = matches!(inputs.get(2), Some(Value::Bool(on)) if on.data() == [true]);
    if !at_work {
        return Err(Stop::skip("not claimed: dropout outside of training computes nothing"));
    }
    let rate = inputs.optional(1)?.map_or(0.5, |rate| rate.data()[0]);
    if rate != 0.0 {
        return training();
    }
    let how = Dropout::new(rate, 0, 0);
    let dropped = |x: &Array<f32>| lane.each(x, |cpu, par, x| kernels::dropout(cpu, par, &how, x));
    let x = inputs.floats(0)?;
    let mask = dropped(&Array::full(x.shape(), 1.0));
    Ok(vec![dropped(&x).into(), mask.into()])
}
