//! What enters a stack beside tokens: images by patches (ViT), spectrograms by two convolutions (Whisper).

use crate::family::{Family, VIT, WHISPER, renamed};
use crate::reference::{Given, Reference, Rows, activate};
use crate::tiny::Random;
use crate::{LONGEST, V, assert_same_bits_everywhere, bits, compare, cross_entropy, options};
use headrow::train::{Examples, Goal, Network, Objective, Precision, Smoothing};
use headrow::{Activation, Batch, Chunk, Head, Model, Output, Session, SessionOptions};
use serde_json::json;
use std::sync::Arc;

const TAPS: usize = 3;

/// A drawn model, and what its images or spectrograms are like.
struct Case {
    model: Family,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Scores labels.
    Vit {
        image: usize,
        patch: usize,
        channels: usize,
        labels: usize,
    },
    Whisper {
        bands: usize,
        frames: usize,
    },
}

fn vit(random: &mut Random) -> Case {
    let heads = 1 + random.below(3);
    let d = heads * (2 + random.below(6));
    let (patch, side) = (1 + random.below(4), 1 + random.below(3));
    let (channels, labels) = (1 + random.below(3), 2 + random.below(4));
    let image = patch * side;
    let json = json!({
        "model_type": "vit", "hidden_size": d, "num_hidden_layers": 1 + random.below(2),
        "num_attention_heads": heads, "intermediate_size": 3 + random.below(20),
        "hidden_act": "gelu", "image_size": image, "patch_size": patch, "num_channels": channels,
        "layer_norm_eps": 1e-5, "qkv_bias": random.below(2) == 0,
    });
    let more = [
        ("embeddings.cls_token", vec![1, 1, d]),
        ("embeddings.position_embeddings", vec![1, side * side + 1, d]),
        ("embeddings.patch_embeddings.projection.weight", vec![d, channels, patch, patch]),
        ("embeddings.patch_embeddings.projection.bias", vec![d]),
        ("classifier.weight", vec![labels, d]),
        ("classifier.bias", vec![labels]),
    ];
    let model = Family::new(&json, &more, &|name| renamed(name, VIT), random);
    Case { model, kind: Kind::Vit { image, patch, channels, labels } }
}

fn whisper(random: &mut Random) -> Case {
    let heads = 1 + random.below(3);
    let d = heads * (2 + random.below(6));
    let (bands, frames) = (1 + random.below(6), 1 + random.below(9));
    let json = json!({
        "model_type": "whisper", "d_model": d, "vocab_size": V, "num_mel_bins": bands,
        "max_source_positions": frames, "max_target_positions": LONGEST,
        "encoder_layers": 1 + random.below(2), "decoder_layers": 1 + random.below(2),
        "encoder_attention_heads": heads, "decoder_attention_heads": heads,
        "encoder_ffn_dim": 3 + random.below(20), "decoder_ffn_dim": 3 + random.below(20),
    });
    let more = [
        ("model.encoder.conv1.weight", vec![d, bands, TAPS]),
        ("model.encoder.conv1.bias", vec![d]),
        ("model.encoder.conv2.weight", vec![d, d, TAPS]),
        ("model.encoder.conv2.bias", vec![d]),
        (POSITIONS, vec![frames, d]),
    ];
    let model = Family::new(&json, &more, &|name| renamed(name, WHISPER), random);
    Case { model, kind: Kind::Whisper { bands, frames } }
}

/// Which training leaves as they are.
const POSITIONS: &str = "model.encoder.embed_positions.weight";

/// Models of both kinds.
fn case(seed: u64) -> Case {
    let mut random = Random(seed);
    if seed.is_multiple_of(2) { vit(&mut random) } else { whisper(&mut random) }
}

impl Case {
    /// Numbers of an image or a spectrogram.
    fn each(&self) -> usize {
        match self.kind {
            Kind::Vit { image, channels, .. } => channels * image * image,
            Kind::Whisper { bands, frames } => bands * 2 * frames,
        }
    }

    fn objective(&self, smoothing: f32) -> Objective {
        let goal = match self.kind {
            Kind::Vit { .. } => Goal::Classes,
            Kind::Whisper { .. } => Goal::Words,
        };
        Objective::default().with_goal(goal).with_smoothing(Smoothing::All(smoothing))
    }

    fn examples(&self, random: &mut Random, count: usize) -> Examples {
        let mut examples = Examples::default();
        examples.features.extend((0..count * self.each()).map(|_| random.unit()));
        for _ in 0..count {
            let (rows, known) = match self.kind {
                Kind::Vit { labels, .. } => (1, labels),
                Kind::Whisper { .. } => {
                    let target: Vec<u32> =
                        (0..1 + random.below(7)).map(|_| random.below(V) as u32).collect();
                    examples.targets.push(target.iter().copied());
                    (target.len(), V)
                }
            };
            for _ in 0..rows {
                let label = random.below(known + 1);
                examples.labels.push((label < known).then_some(label as u32));
            }
        }
        examples
    }

    /// Scores of example `index`, by their definition.
    fn scores(&self, reference: &Reference, examples: &Examples, index: usize) -> Rows {
        let features = &examples.features[index * self.each()..][..self.each()];
        let features: Vec<f64> = features.iter().map(|&x| x.into()).collect();
        match self.kind {
            Kind::Vit { image, patch, channels, .. } => {
                let entered = patches(reference, &features, [image, patch, channels]);
                let states = reference.encode(Given::Rows(&entered));
                reference.linear("classifier", &states[..1].to_vec())
            }
            Kind::Whisper { bands, .. } => {
                let x: Rows = features.chunks(features.len() / bands).map(Vec::from).collect();
                let inner = convolution(reference, "model.encoder.conv1", &x, 1);
                let outer = convolution(reference, "model.encoder.conv2", &inner, 2);
                let (positions, d) = (reference.tensor(POSITIONS), outer.len());
                let entered: Rows = (0..outer[0].len())
                    .map(|t| (0..d).map(|o| outer[o][t] + positions[t * d + o]).collect())
                    .collect();
                let encoded = reference.encode(Given::Rows(&entered));
                let target = Given::Ids(examples.targets.get(index));
                reference.scores(&reference.decode(target, Some(&encoded)))
            }
        }
    }

    fn loss(&self, reference: &Reference, examples: &Examples, smoothing: f64) -> f64 {
        let count = examples.features.len() / self.each();
        let scores = (0..count).flat_map(|index| self.scores(reference, examples, index));
        let scored = scores.zip(&examples.labels);
        scored
            .filter_map(|(scores, label)| Some(cross_entropy(&scores, (*label)?, smoothing)))
            .sum()
    }

    /// Scores of each example alone by a session.
    fn inferred(&self, examples: &Examples) -> Vec<f32> {
        let file = self.model.parameters.to_safetensors(Precision::F32);
        let model = Arc::new(Model::from_bytes(&self.model.config, &file).unwrap());
        let options = SessionOptions::default().with_max_tokens(LONGEST).with_threads(1);
        let mut session = Session::new(&model, &options).unwrap();
        let mut all = Vec::new();
        for (index, features) in examples.features.chunks(self.each()).enumerate() {
            match self.kind {
                Kind::Vit { labels, .. } => {
                    let mut scores = vec![0.0; labels];
                    let batch = Batch::images(features, 1);
                    session.predict(&batch, Head::SequenceClassifier, &mut scores).unwrap();
                    all.extend(scores);
                }
                Kind::Whisper { .. } => {
                    let batch = Batch::spectrograms(features, 1);
                    let sequence = session.add_sources(&batch).unwrap()[0];
                    let target = examples.targets.get(index);
                    let mut scores = vec![0.0; target.len() * V];
                    let chunk = [Chunk::new(sequence, target)];
                    session.extend(&chunk, Output::AllLogits, &mut scores).unwrap();
                    session.remove(sequence).unwrap();
                    all.extend(scores);
                }
            }
        }
        all
    }
}

/// \[x_first; conv(image)\] + positions.
fn patches(reference: &Reference, pixels: &[f64], [image, patch, channels]: [usize; 3]) -> Rows {
    let name = |part: &str| format!("embeddings.{part}");
    let first = reference.tensor(&name("cls_token"));
    let positions = reference.tensor(&name("position_embeddings"));
    let weight = reference.tensor(&name("patch_embeddings.projection.weight"));
    let bias = reference.tensor(&name("patch_embeddings.projection.bias"));
    let (d, side) = (first.len(), image / patch);
    let convolved = |place: usize, o: usize| {
        let mut sum = bias[o];
        for c in 0..channels {
            for (y, x) in (0..patch * patch).map(|i| (i / patch, i % patch)) {
                let (row, column) = (place / side * patch + y, place % side * patch + x);
                let pixel = pixels[(c * image + row) * image + column];
                sum += pixel * weight[((o * channels + c) * patch + y) * patch + x];
            }
        }
        sum
    };
    let row = |place: usize| {
        let at = |o: usize| match place.checked_sub(1) {
            None => first[o],
            Some(place) => convolved(place, o),
        };
        (0..d).map(|o| at(o) + positions[place * d + o]).collect()
    };
    (0..=side * side).map(row).collect()
}

/// GELU of the convolution over time of channels × frames, at every `stride`-th frame, with zeros around.
fn convolution(reference: &Reference, name: &str, x: &Rows, stride: usize) -> Rows {
    let weight = reference.tensor(&format!("{name}.weight"));
    let bias = reference.tensor(&format!("{name}.bias"));
    let (channels, frames) = (x.len(), x[0].len());
    let at = |o: usize, t: usize| {
        let mut sum = bias[o];
        for (c, x) in x.iter().enumerate() {
            for tap in 0..TAPS {
                let frame = (t * stride + tap).checked_sub(1).filter(|&frame| frame < frames);
                let x = frame.map_or(0.0, |frame| x[frame]);
                sum += weight[(o * channels + c) * TAPS + tap] * x;
            }
        }
        activate(Activation::GeluErf, sum)
    };
    (0..bias.len()).map(|o| (0..frames / stride).map(|t| at(o, t)).collect()).collect()
}

#[test]
fn gradients_of_entrances_are_the_differences_of_their_definition_in_f64() {
    for seed in 0..40 {
        let case = case(seed);
        let mut random = Random(seed + 1000);
        let count = 1 + random.below(3);
        let examples = case.examples(&mut random, count);
        if examples.predicted() == 0 {
            continue;
        }
        let label = format!("seed {seed}: {:?}", case.model.config);
        let parameters = &case.model.parameters;
        let mut network = Network::for_parameters(parameters, &options()).unwrap();
        let mut gradients = vec![0.0; parameters.values().len()];
        let smoothing = if seed % 4 < 2 { 0.1 } else { 0.0 };
        let objective = case.objective(smoothing);
        let found = network
            .accumulate(parameters, &examples, &objective, None, &mut gradients)
            .unwrap_or_else(|error| panic!("{label}: {error}"));
        let smoothing = f64::from(smoothing);
        let mut reference = case.model.reference(LONGEST);
        let expected = case.loss(&reference, &examples, smoothing);
        assert!((found.smoothed / expected - 1.0).abs() < 1e-5, "{label}: {found:?} {expected}");
        let of = |reference: &Reference| case.loss(reference, &examples, smoothing);
        let name = |name: &str| (name != POSITIONS).then(|| case.model.name(name));
        compare(&label, parameters, &gradients, &mut reference, &mut random, &name, &of);
    }
}

#[test]
fn scores_behind_entrances_have_the_bits_of_inference() {
    for seed in 0..24 {
        let case = case(seed);
        let examples = case.examples(&mut Random(seed), 3);
        let mut network = Network::for_parameters(&case.model.parameters, &options()).unwrap();
        let expected = case.inferred(&examples);
        let mut scores = vec![0.0; expected.len()];
        let goal = case.objective(0.0).goal;
        network.scores(&case.model.parameters, &examples, goal, &mut scores).unwrap();
        assert_eq!(bits(&scores), bits(&expected), "seed {seed}");
    }
}

#[test]
fn gradients_of_entrances_have_the_same_bits_on_any_number_of_threads_and_every_instruction_set() {
    for seed in 0..12 {
        let case = case(seed);
        let examples = case.examples(&mut Random(seed), 4);
        let (label, objective) = (format!("entrances, seed {seed}"), case.objective(0.1));
        assert_same_bits_everywhere(&label, &case.model.parameters, &examples, &objective);
    }
}
