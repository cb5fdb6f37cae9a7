//! Losses, gradients and steps of Adam beside those of a recorded training.

use super::comparison::Comparison;
use super::record::{Ragged, Record, Tokens, json, read};
use super::{Case, told};
use headrow::train::{
    Examples, Network, NetworkOptions, Objective, Parameters, Ragged as Sequences, Smoothing,
    Vectors,
};
use headrow_kernels::{Adam, Cpu, Par, adam};
use serde_json::Value;

/// Largest error of a gradient, relative to the largest of its tensor.
const GRADIENTS: f64 = 1e-4;
/// Largest error of a parameter after some steps, where the recording implementation missed f64 by less.
const STEPS: f64 = 2e-5;

/// A training that goes on.
struct Run {
    parameters: Parameters,
    network: Network,
    gradients: Vec<f32>,
}

impl Case<'_> {
    /// What was recorded of training, if anything was.
    pub(crate) fn compare_training(&self, comparison: &mut Comparison) -> Result<(), String> {
        if self.record.has("sumloss") {
            self.compare_sum_of_states(comparison)?;
        }
        let path = self.folder.join("train_golden.safetensors");
        if !path.exists() {
            return Ok(());
        }
        let bytes = read(&path)?;
        let record = Record::open(&bytes)?;
        let told = json(&self.folder.join("train_golden.json"))?;
        self.compare_steps_of_adam(comparison, &record, &told)?;
        comparison.left.extend(record.unused());
        Ok(())
    }

    fn run(&self, tokens: usize) -> Result<Run, String> {
        let parameters = told("parameters", Parameters::from_dir(self.folder))?;
        let options = NetworkOptions::default().with_max_tokens(tokens).with_threads(2);
        let network = told("network", Network::for_parameters(&parameters, &options))?;
        let gradients = vec![0.0; parameters.values().len()];
        Ok(Run { parameters, network, gradients })
    }

    fn compare_steps_of_adam(
        &self,
        comparison: &mut Comparison,
        record: &Record<'_>,
        told_of: &Value,
    ) -> Result<(), String> {
        let (examples, places) = self.examples(record)?;
        let longest = examples.sources.ids().len().max(examples.targets.ids().len());
        let mut run = self.run(longest)?;
        let (shape, recorded) = record.floats("logits")?;
        let width = shape.last().copied().unwrap_or_default();
        let mut logits = vec![0.0; places.tokens() * width];
        told("logits", run.network.logits(&run.parameters, &examples, &mut logits))?;
        comparison.relative("training logits", &logits, &places.real(&recorded, width));

        let number = |name: &str| told_of[name].as_f64().ok_or(format!("{name} is no number"));
        let numbers = |name: &str| -> Vec<f64> {
            told_of[name].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let objective =
            Objective::default().with_smoothing(Smoothing::All(number("label_smoothing")? as f32));
        let how = adam_of(&told_of["adam"])?;
        let unstable = names(&told_of["unstable"]);
        let (losses, rates) = (numbers("loss_f64"), numbers("lr"));
        let size = run.gradients.len();
        let (mut first, mut second) = (vec![0.0; size], vec![0.0; size]);
        for (step, (expected, rate)) in (1..).zip(losses.into_iter().zip(rates)) {
            let Run { parameters, network, gradients } = &mut run;
            gradients.fill(0.0);
            let loss = network.accumulate(parameters, &examples, &objective, None, gradients);
            let loss = told("gradients", loss)?;
            let name = format!("loss of step {step}");
            comparison.relative(&name, &[loss.mean() as f32], &[expected as f32]);
            if step == 1 {
                let (_, expected) = record.floats("loss")?;
                comparison.relative("loss", &[loss.mean() as f32], &expected);
            }
            let factor = 1.0 / loss.tokens as f32;
            if step == 1 {
                gradients.iter_mut().for_each(|g| *g *= factor);
                compare_gradients(comparison, record, parameters, gradients, "grad.", told_of)?;
                gradients.iter_mut().for_each(|g| *g /= factor);
            }
            let (cpu, to) = (Cpu::detect(), parameters.values_mut());
            let rate = rate as f32;
            adam(
                cpu,
                Par::SERIAL,
                &how,
                step,
                rate,
                factor,
                gradients,
                &mut first,
                &mut second,
                to,
            );
            let prefix = format!("step{step}.");
            for name in record.names().into_iter().filter_map(|name| name.strip_prefix(&prefix)) {
                let (_, expected) = record.floats(&format!("{prefix}{name}"))?;
                if unstable.iter().any(|unstable| unstable == name) {
                    continue;
                }
                let actual = parameters.get(name).ok_or(format!("no parameter {name}"))?;
                let whole = format!("{prefix}{name}");
                // Adam divides gradients by their size, those too that are hardly more than their rounding.
                let missed = told_of["ref_err"][&whole].as_f64().unwrap_or(0.0);
                let unit = largest_of(&expected);
                comparison.within(&whole, actual, &expected, unit, STEPS.max(4.0 * missed));
            }
        }
        Ok(())
    }

    /// The recorded batch without its padding, and how long its targets are.
    fn examples(&self, record: &Record<'_>) -> Result<(Examples, Ragged), String> {
        let two = self.record.has("decoder_input_ids");
        let (name, mask) = match two {
            true => ("decoder_input_ids", "decoder_attention_mask"),
            false => ("input_ids", "attention_mask"),
        };
        let sequences = |tokens: &Tokens| -> Sequences {
            tokens.each().into_iter().map(|ids| ids.iter().copied()).collect()
        };
        let targets = Tokens::read(&self.record, name, mask)?;
        let ragged = targets.ragged.clone();
        let mut examples = Examples { targets: sequences(&targets), ..Examples::default() };
        if two {
            let sources = Tokens::read(&self.record, "input_ids", "attention_mask")?;
            examples.sources = sequences(&sources);
        }
        let labels = ragged.real(&record.integers("labels")?.1, 1).into_iter();
        // Negative ones count nowhere.
        examples.labels = labels.map(|label| (label as i32 >= 0).then_some(label)).collect();
        if self.record.has("token_type_ids") {
            examples.types = ragged.real(&self.record.integers("token_type_ids")?.1, 1);
        }
        Ok((examples, ragged))
    }

    /// The gradients of Σ out·w with w from −1 to 1 in equal steps, over all vectors, also those that no other sees.
    fn compare_sum_of_states(&self, comparison: &mut Comparison) -> Result<(), String> {
        let (sources, targets) = (self.all("src")?, self.all("tgt")?);
        let mut run = self.run(sources.ragged.tokens().max(targets.ragged.tokens()))?;
        let seen = |name: &str| -> Result<Vec<bool>, String> {
            let (_, mask) = self.record.integers(&format!("{name}_key_padding_mask"))?;
            Ok(mask.into_iter().map(|hidden| hidden == 0).collect())
        };
        let (seen_sources, seen_targets) = (seen("src")?, seen("tgt")?);
        let read = Vectors::new(&sources.values, &sources.ragged.lengths).with_seen(&seen_sources);
        let written =
            Vectors::new(&targets.values, &targets.ragged.lengths).with_seen(&seen_targets);
        let mut out = vec![0.0; targets.values.len()];
        let Run { parameters, network, gradients } = &mut run;
        told("states", network.states(parameters, Some(read), written, &mut out))?;
        comparison.relative("states in training", &out, &self.record.floats("out")?.1);
        let last = (out.len() - 1) as f64;
        let weights: Vec<f32> =
            (0..out.len()).map(|i| (2.0 * i as f64 / last - 1.0) as f32).collect();
        let sum: f64 = out.iter().zip(&weights).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
        // Of a sum of numbers of either sign, which may cancel.
        let sizes = out.iter().zip(&weights).map(|(x, w)| f64::from((x * w).abs()));
        let unit = sizes.sum::<f64>() / (out.len() as f64).sqrt();
        comparison.scaled("sumloss", &[sum as f32], &self.record.floats("sumloss")?.1, unit);
        let result =
            network.accumulate_states(parameters, Some(read), written, None, &weights, gradients);
        told("gradients", result)?;
        let inputs = [("src", network.source_gradient()), ("tgt", network.target_gradient())];
        for (name, actual) in inputs {
            let name = format!("grad_in.{name}");
            comparison.relative(&name, actual, &self.record.floats(&name)?.1);
        }
        let (record, golden) = (&self.record, &self.golden);
        compare_gradients(comparison, record, parameters, gradients, "grad.", golden)
    }
}

/// Compares the gradient of every tensor that has a recorded one; that of the others must be 0.
fn compare_gradients(
    comparison: &mut Comparison,
    record: &Record<'_>,
    parameters: &Parameters,
    gradients: &[f32],
    prefix: &str,
    told_of: &Value,
) -> Result<(), String> {
    let largest = largest_of(gradients);
    // Truly 0, so that what was recorded is rounding.
    let zero = names(&told_of["tiny_grad"]);
    let mut left: Vec<bool> = vec![true; gradients.len()];
    for name in record.names().into_iter().filter_map(|name| name.strip_prefix(prefix)) {
        let place = parameters.place(name).ok_or(format!("no parameter {name}"))?;
        left[place.clone()].fill(false);
        let (whole, actual) = (format!("{prefix}{name}"), &gradients[place]);
        let (_, expected) = record.floats(&whole)?;
        let unit = match zero.iter().any(|zero| zero == name) {
            true => largest,
            false => largest_of(&expected),
        };
        comparison.within(&whole, actual, &expected, unit, GRADIENTS);
    }
    let other = left.iter().zip(gradients).any(|(&left, &g)| left && g != 0.0);
    comparison.require(!other, || "gradients of what has none".to_owned());
    Ok(())
}

fn largest_of(values: &[f32]) -> f64 {
    values.iter().fold(f64::MIN_POSITIVE, |max, &x| max.max(f64::from(x).abs()))
}

fn names(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn adam_of(value: &Value) -> Result<Adam, String> {
    let number = |name: &str| value[name].as_f64().ok_or(format!("adam.{name} is no number"));
    let mut adam = Adam::default();
    (adam.beta1, adam.beta2) = (number("beta1")?, number("beta2")?);
    (adam.epsilon, adam.weight_decay) = (number("eps")?, number("weight_decay")?);
    Ok(adam)
}
