//! Small tasks that heads learn from nothing: classes of texts, tags of tokens, numbers of texts, classes of images.

use crate::bits;
use crate::tiny::Random;
use headrow::Config;
use headrow::train::{
    AdamOptions, Examples, Goal, Loss, NetworkOptions, Parameters, Schedule, Trainer,
    TrainerOptions,
};
use serde_json::{Value, json};

const V: u32 = 12;
const BATCH: usize = 16;
/// The longest text.
const LONGEST: usize = 8;

/// An encoder of one layer with the head of a class of models.
fn bert(architecture: &str, labels: usize) -> Config {
    let names: serde_json::Map<String, Value> =
        (0..labels).map(|i| (i.to_string(), json!(format!("L{i}")))).collect();
    let json = json!({
        "model_type": "bert", "vocab_size": V, "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 32, "hidden_act": "gelu",
        "max_position_embeddings": LONGEST, "type_vocab_size": 1, "architectures": [architecture],
        "id2label": names,
    });
    Config::from_json(json.to_string().as_bytes()).unwrap()
}

fn trainer(config: &Config, goal: Goal, steps: u64) -> Trainer {
    let options = TrainerOptions::paper(config.d_model)
        .with_goal(goal)
        .with_smoothing(0.0)
        .with_dropout(0.0)
        .with_adam(AdamOptions::default().with_clip(1.0))
        .with_schedule(Schedule::Cosine { rate: 0.01, floor: 0.0, warmup: 30, total: steps });
    let network = NetworkOptions::default().with_max_tokens(BATCH * 10).with_threads(1);
    Trainer::new(Parameters::initialise(config, 1).unwrap(), &network, options).unwrap()
}

/// Learns for so many steps from what `add` adds to a batch; the loss on new examples, and the weights.
fn learn(
    config: &Config,
    goal: Goal,
    steps: u64,
    add: fn(&mut Examples, &mut Random),
) -> (Loss, Vec<u32>) {
    let mut trainer = trainer(config, goal, steps);
    let (mut random, mut examples) = (Random(7), Examples::default());
    let mut draw = |examples: &mut Examples| {
        examples.clear();
        (0..BATCH).for_each(|_| add(examples, &mut random));
    };
    for _ in 0..steps {
        draw(&mut examples);
        trainer.accumulate(&examples).unwrap();
        trainer.step().unwrap();
    }
    let mut loss = Loss::default();
    for _ in 0..10 {
        draw(&mut examples);
        loss += trainer.evaluate(&examples).unwrap();
    }
    (loss, bits(trainer.parameters().values()))
}

/// A text that begins with 0.
fn text(random: &mut Random) -> Vec<u32> {
    let more = 1 + random.below(LONGEST - 1);
    let words = (0..more).map(|_| 1 + random.below(V as usize - 1) as u32);
    std::iter::once(0).chain(words).collect()
}

/// Whether one of the words 1 to 3 is in a text.
fn contains(text: &[u32]) -> bool {
    text.iter().any(|word| (1..4).contains(word))
}

#[test]
fn a_classifier_learns_what_texts_contain() {
    let config = bert("BertForSequenceClassification", 2);
    let add = |examples: &mut Examples, random: &mut Random| {
        let text = text(random);
        examples.labels.push(Some(u32::from(contains(&text))));
        examples.targets.push(text);
    };
    let (loss, weights) = learn(&config, Goal::Classes, 300, add);
    assert!(loss.mean() < 0.1 && loss.accuracy() > 0.97, "{loss:?}");
    assert_eq!(learn(&config, Goal::Classes, 300, add).1, weights);
}

#[test]
fn a_tagger_learns_what_stands_before() {
    let config = bert("BertForTokenClassification", 3);
    let add = |examples: &mut Examples, random: &mut Random| {
        let text = text(random);
        let before = text.iter().map(|word| Some(word % 3));
        // Before the first there is nothing.
        let before = std::iter::once(None).chain(before).take(text.len());
        examples.labels.extend(before.collect::<Vec<_>>());
        examples.targets.push(text);
    };
    let (loss, _) = learn(&config, Goal::Tags, 500, add);
    assert!(loss.mean() < 0.1 && loss.accuracy() > 0.97, "{loss:?}");
}

#[test]
fn a_regression_learns_how_large_a_part_is() {
    let config = bert("BertForSequenceClassification", 1);
    let add = |examples: &mut Examples, random: &mut Random| {
        let text = text(random);
        let large = text.iter().filter(|&&word| word > V / 2).count();
        examples.numbers.push(large as f32 / text.len() as f32);
        examples.targets.push(text);
    };
    let (loss, _) = learn(&config, Goal::Numbers, 300, add);
    // Of the numbers themselves the variance is about 0.06.
    assert!(loss.mean() < 0.003 && loss.correct == 0, "{loss:?}");
}

#[test]
fn a_vision_transformer_learns_where_an_image_is_bright() {
    let json = json!({
        "model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 32, "hidden_act": "gelu", "image_size": 6, "patch_size": 2,
        "num_channels": 1, "architectures": ["ViTForImageClassification"],
        "id2label": {"0": "left", "1": "right"},
    });
    let config = Config::from_json(json.to_string().as_bytes()).unwrap();
    let add = |examples: &mut Examples, random: &mut Random| {
        let right = random.below(2);
        let bright = |column: usize| if column / 3 == right { 0.5 } else { 0.0 };
        examples.features.extend((0..36).map(|i| random.unit() + bright(i % 6)));
        examples.labels.push(Some(right as u32));
    };
    let (loss, _) = learn(&config, Goal::Classes, 300, add);
    assert!(loss.mean() < 0.3 && loss.accuracy() > 0.9, "{loss:?}");
}
