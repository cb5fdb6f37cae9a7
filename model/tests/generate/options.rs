//! Searches that were recorded, and options from JSON.

use crate::toy::Toy;
use headrow::Error;
use headrow::generate::{
    Beam, EarlyStopping, GenerationOptions, LengthPenalty, Sampling, Strategy,
};
use serde_json::{Value, json};

fn read(value: Value) -> headrow::Result<GenerationOptions> {
    GenerationOptions::from_json("generation_config.json", value.to_string().as_bytes())
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// `fixtures/generation.json` holds what transformers 5.24 gave for the toy model with a vocabulary of 16: every kind of
/// early stopping under length penalties of both signs, beams of 2 to 4, and the constraints, greedy and in a beam.
#[test]
fn searches_give_what_transformers_gave() {
    let recorded = include_str!("../fixtures/generation.json");
    let recorded: Vec<Value> = serde_json::from_str(recorded).unwrap();
    assert_eq!(recorded.len(), 154);
    for case in recorded {
        let stops = ids(&case["stops"]);
        let mut toy = Toy::new(16, case["seed"].as_u64().unwrap(), &stops);
        let options = read(case["params"].clone()).unwrap();
        let found = toy.generate(&ids(&case["prompt"]), &options, &mut ()).unwrap();
        let sequences: Vec<_> = found.hypotheses.iter().map(|h| &h.tokens).collect();
        let expected = case["sequences"].as_array().unwrap();
        assert_eq!(sequences.len(), expected.len(), "{case}");
        for (tokens, expected) in sequences.into_iter().zip(expected) {
            assert_eq!(*tokens, ids(expected), "{case}");
        }
        for (hypothesis, score) in
            found.hypotheses.iter().zip(case["scores"].as_array().into_iter().flatten())
        {
            let score = score.as_f64().unwrap();
            assert!((hypothesis.score - score).abs() < 1e-5, "{} in {case}", hypothesis.score);
        }
    }
}
