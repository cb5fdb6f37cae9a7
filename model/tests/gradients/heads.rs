//! Losses of labels and numbers: BERT and its kin with classifiers, taggers and the next-sentence head.

use crate::family::{ALBERT, BERT, DISTILBERT, Family, renamed};
use crate::reference::{Given, Reference, Rows};
use crate::tiny::Random;
use crate::{LONGEST, V, assert_same_bits_everywhere, bits, compare, cross_entropy, options};
use headrow::train::{Examples, Goal, Network, Objective, Precision, Smoothing};
use headrow::{Batch, Head, Model, Session, SessionOptions};
use serde_json::{Value, json};
use std::sync::Arc;

/// A drawn model with a head for a goal.
struct Case {
    kind: &'static str,
    goal: Goal,
    labels: usize,
    model: Family,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut random = Random(seed);
        let kind = ["bert", "roberta", "distilbert", "albert"][seed as usize % 4];
        let goals = [Goal::Classes, Goal::Tags, Goal::Numbers, Goal::NextSentence];
        // Only the first and the last know whether texts follow each other.
        let pooled = matches!(kind, "bert" | "albert");
        let goal = goals[random.below(if pooled { 4 } else { 3 })];
        let labels = match goal {
            Goal::NextSentence => 2,
            _ => 1 + random.below(6),
        };
        let json = config(kind, goal, &mut random);
        let d = json["hidden_size"].as_u64().or(json["dim"].as_u64()).unwrap() as usize;
        let mut more = Vec::new();
        let mut map = |name: &'static str, outputs: usize, inputs: usize| {
            more.push((format!("{name}.weight"), vec![outputs, inputs]));
            more.push((format!("{name}.bias"), vec![outputs]));
        };
        if kind == "albert" {
            map("encoder.projection", d, json["embedding_size"].as_u64().unwrap() as usize);
        }
        if let Some((dense, _)) = dense(kind, goal) {
            map(dense, d, d);
        }
        map(output(kind, goal), labels, d);
        // The map of the projection is among the stacks' tensors already.
        more.retain(|(name, _)| name != "encoder.projection.weight");
        let more: Vec<_> = more.iter().map(|(name, shape)| (&name[..], shape.clone())).collect();
        let parts = match kind {
            "distilbert" => DISTILBERT,
            "albert" => ALBERT,
            _ => BERT,
        };
        let model = Family::new(&json, &more, &|name| renamed(name, parts), &mut random);
        Case { kind, goal, labels, model }
    }

    fn objective(&self, smoothing: f32) -> Objective {
        Objective::default().with_goal(self.goal).with_smoothing(Smoothing::All(smoothing))
    }

    /// Some texts with what is to be predicted; a few labels count nowhere.
    fn examples(&self, random: &mut Random, count: usize) -> Examples {
        let mut examples = Examples::default();
        for _ in 0..count {
            let length = 1 + random.below(9);
            // 0 and 1 are padding in some families.
            let ids: Vec<u32> = (0..length).map(|_| 2 + random.below(V - 2) as u32).collect();
            let scored = if self.goal == Goal::Tags { length } else { 1 };
            for _ in 0..scored {
                let label = random.below(self.labels + 1) as u32;
                match self.goal {
                    Goal::Numbers => {
                        (0..self.labels).for_each(|_| examples.numbers.push(random.unit()))
                    }
                    _ => examples.labels.push((label < self.labels as u32).then_some(label)),
                }
            }
            examples.targets.push(ids);
        }
        examples
    }

    /// The scores by their definition.
    fn scores(&self, reference: &Reference, ids: &[u32]) -> Rows {
        let states = reference.encode(Given::Ids(ids));
        let output = output(self.kind, self.goal);
        let Some((dense, squash)) = dense(self.kind, self.goal) else {
            return reference.linear(output, &states);
        };
        let mut first = reference.linear(dense, &states[..1].to_vec());
        first[0].iter_mut().for_each(|x| *x = squash(*x));
        reference.linear(output, &first)
    }

    /// The loss by its definition.
    fn loss(&self, reference: &Reference, examples: &Examples, smoothing: f64) -> f64 {
        let mut sum = 0.0;
        let mut labels = examples.labels.iter();
        let mut numbers = examples.numbers.iter();
        for ids in examples.targets.iter() {
            for scores in self.scores(reference, ids) {
                if self.goal == Goal::Numbers {
                    let squares =
                        scores.iter().zip(&mut numbers).map(|(y, &t)| (y - f64::from(t)).powi(2));
                    sum += squares.sum::<f64>() / scores.len() as f64;
                } else if let Some(&Some(label)) = labels.next() {
                    sum += cross_entropy(&scores, label, smoothing);
                }
            }
        }
        sum
    }

    /// The scores of each text alone by a session.
    fn inferred(&self, examples: &Examples) -> Vec<f32> {
        let file = self.model.parameters.to_safetensors(Precision::F32);
        let model = Arc::new(Model::from_bytes(&self.model.config, &file).unwrap());
        let options = SessionOptions::default().with_max_tokens(LONGEST).with_threads(1);
        let mut session = Session::new(&model, &options).unwrap();
        let head = match self.goal {
            Goal::Tags => Head::TokenTagger,
            Goal::NextSentence => Head::NextSentence,
            _ => Head::SequenceClassifier,
        };
        let mut all = Vec::new();
        for ids in examples.targets.iter() {
            let (rows, columns) = model.output_shape(head, ids.len(), 1).unwrap();
            let mut scores = vec![0.0; rows * columns];
            session.predict(&Batch::one(ids), head, &mut scores).unwrap();
            all.extend(scores);
        }
        all
    }
}

/// A map, by its name, and what is done behind it.
type Dense = (&'static str, fn(f64) -> f64);

/// What the first state goes through. Not with tags.
fn dense(kind: &str, goal: Goal) -> Option<Dense> {
    match (kind, goal) {
        (_, Goal::Tags) => None,
        ("roberta", _) => Some(("classifier.dense", f64::tanh)),
        ("distilbert", _) => Some(("pre_classifier", |x| x.max(0.0))),
        ("albert", _) => Some(("pooler", f64::tanh)),
        _ => Some(("pooler.dense", f64::tanh)),
    }
}

/// The map to the scores.
fn output(kind: &str, goal: Goal) -> &'static str {
    match (kind, goal) {
        ("albert", Goal::NextSentence) => "sop_classifier.classifier",
        (_, Goal::NextSentence) => "cls.seq_relationship",
        ("roberta", Goal::Classes | Goal::Numbers) => "classifier.out_proj",
        _ => "classifier",
    }
}

/// A config of odd sizes.
fn config(kind: &str, goal: Goal, random: &mut Random) -> Value {
    let heads = 1 + random.below(3);
    let d = heads * (2 + random.below(6));
    let (layers, d_ff) = (1 + random.below(2), 3 + random.below(20));
    let positions = LONGEST + 2;
    let architecture = if goal == Goal::Tags { "XForTokenClassification" } else { "X" };
    if kind == "distilbert" {
        return json!({
            "model_type": kind, "vocab_size": V, "dim": d, "n_layers": layers, "n_heads": heads,
            "hidden_dim": d_ff, "max_position_embeddings": positions, "activation": "gelu",
            "architectures": [architecture],
        });
    }
    let mut config = json!({
        "model_type": kind, "vocab_size": V, "hidden_size": d, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": d_ff, "hidden_act": "gelu",
        "max_position_embeddings": positions, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
        "architectures": [architecture],
    });
    if kind == "albert" {
        config["embedding_size"] = json!(d + 1 + random.below(3));
        config["num_hidden_layers"] = json!(2 * layers);
        config["num_hidden_groups"] = json!(layers);
    }
    config
}

#[test]
fn gradients_of_heads_are_the_differences_of_their_definition_in_f64() {
    let mut goals = Vec::new();
    for seed in 0..48 {
        let case = Case::new(seed);
        let mut random = Random(seed + 1000);
        let count = 1 + random.below(4);
        let examples = case.examples(&mut random, count);
        let Case { kind, goal, model, .. } = &case;
        let label = format!("seed {seed}: {kind} {goal:?}");
        if examples.predicted() == 0 && examples.numbers.is_empty() {
            continue;
        }
        goals.push((*kind, *goal));
        let parameters = &model.parameters;
        let mut network = Network::for_parameters(parameters, &options()).unwrap();
        let mut gradients = vec![0.0; parameters.values().len()];
        let smoothing = if seed % 2 == 0 { 0.1 } else { 0.0 };
        let objective = case.objective(smoothing);
        let found = network
            .accumulate(parameters, &examples, &objective, None, &mut gradients)
            .unwrap_or_else(|error| panic!("{label}: {error}"));
        let smoothing = f64::from(smoothing);
        let mut reference = model.reference(LONGEST);
        let expected = case.loss(&reference, &examples, smoothing);
        let error = (found.smoothed - expected).abs() / expected.abs().max(1e-2);
        assert!(error < 1e-5, "{label}: {found:?} {expected}");
        let evaluated = network.evaluate(parameters, &examples, &objective).unwrap();
        assert_eq!(evaluated, found, "{label}");
        let of = |reference: &Reference| case.loss(reference, &examples, smoothing);
        let name = |name: &str| Some(model.name(name));
        // With one label there is nothing to learn from classes.
        if gradients.iter().any(|&g| g != 0.0) {
            compare(&label, parameters, &gradients, &mut reference, &mut random, &name, &of);
        }
    }
    for kind in ["bert", "roberta", "distilbert", "albert"] {
        for goal in [Goal::Classes, Goal::Tags, Goal::Numbers] {
            assert!(goals.contains(&(kind, goal)), "{kind} {goal:?}");
        }
    }
    for kind in ["bert", "albert"] {
        assert!(goals.contains(&(kind, Goal::NextSentence)), "{kind}");
    }
}

#[test]
fn scores_of_heads_have_the_bits_of_inference() {
    for seed in 0..24 {
        let case = Case::new(seed);
        let examples = case.examples(&mut Random(seed), 4);
        let mut network = Network::for_parameters(&case.model.parameters, &options()).unwrap();
        let expected = case.inferred(&examples);
        let mut scores = vec![0.0; expected.len()];
        network.scores(&case.model.parameters, &examples, case.goal, &mut scores).unwrap();
        assert_eq!(bits(&scores), bits(&expected), "seed {seed}");
    }
}

#[test]
fn gradients_of_heads_have_the_same_bits_on_any_number_of_threads_and_every_instruction_set() {
    for seed in 0..12 {
        let case = Case::new(seed);
        let examples = case.examples(&mut Random(seed), 4);
        let (label, objective) = (format!("heads, seed {seed}"), case.objective(0.1));
        assert_same_bits_everywhere(&label, &case.model.parameters, &examples, &objective);
    }
}
