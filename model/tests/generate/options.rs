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

#[test]
fn every_field_of_a_config_arrives() {
    let options = read(json!({
        "max_new_tokens": 9, "min_new_tokens": 2, "max_length": 30, "min_length": 3,
        "eos_token_id": 7, "stop_strings": "stop", "repetition_penalty": 1.5,
        "no_repeat_ngram_size": 3, "forced_bos_token_id": 4, "forced_eos_token_id": 7,
        "suppress_tokens": [1, 2], "begin_suppress_tokens": [5], "bad_words_ids": [[6, 1], [3]],
        "decoder_start_token_id": 8, "forced_decoder_ids": [[1, 11], [2, 12]],
        "num_beams": 5, "num_return_sequences": 2, "length_penalty": 0.5,
        "early_stopping": true, "temperature": 0.5, "pad_token_id": 0, "typical_p": 1.0,
        "use_cache": true, "transformers_version": "5.24.0", "return_timestamps": false,
        "guidance_scale": null, "num_assistant_tokens": 20,
    }));
    let beam = Beam::new(5)
        .with_n_best(2)
        .with_length_penalty(LengthPenalty::Average { alpha: 0.5 })
        .with_early_stopping(EarlyStopping::FirstComplete);
    let expected = GenerationOptions::default()
        .with_strategy(beam)
        .with_max_new_tokens(9usize)
        .with_min_new_tokens(2usize)
        .with_max_length(30usize)
        .with_min_length(3usize)
        .with_stop_ids([7])
        .with_stop_strings(["stop".to_owned()])
        .with_repetition_penalty(1.5)
        .with_no_repeat_ngram(3usize)
        .with_forced_first(4u32)
        .with_forced_last(7u32)
        .with_suppressed([1, 2])
        .with_suppressed_first([5])
        .with_bad_words([vec![6, 1], vec![3]])
        .with_decoder_prompt([8, 11, 12]);
    assert_eq!(options.unwrap(), expected);
}

#[test]
fn the_strategy_follows_from_beams_and_sampling() {
    let strategy = |value| read(value).unwrap().strategy;
    assert_eq!(strategy(json!({"top_k": 3, "length_penalty": 2.0})), Strategy::Greedy);
    let sampling = Sampling::default().with_top_k(50);
    assert_eq!(strategy(json!({"do_sample": true})), Strategy::Sample(sampling));
    let all =
        json!({"do_sample": true, "temperature": 0.5, "top_k": 0, "top_p": 0.25, "min_p": 0.5});
    let sampling = Sampling::default().with_temperature(0.5).with_top_p(0.25).with_min_p(0.5);
    assert_eq!(strategy(all), Strategy::Sample(sampling));
    for (early_stopping, kind) in [
        (json!(false), EarlyStopping::Heuristic),
        (json!(null), EarlyStopping::Heuristic),
        (json!("never"), EarlyStopping::ByBound),
    ] {
        let beam = Beam::new(3)
            .with_length_penalty(LengthPenalty::Average { alpha: 1.0 })
            .with_early_stopping(kind);
        let config = json!({"num_beams": 3, "early_stopping": early_stopping});
        assert_eq!(strategy(config), Strategy::Beam(beam));
    }
}

#[test]
fn what_would_change_the_result_unseen_is_an_error() {
    for config in [
        json!({"penalty_alpha": 0.6}),
        json!({"typical_p": 0.9}),
        json!({"encoder_no_repeat_ngram_size": 2}),
        json!({"guidance_scale": 1.5}),
        json!({"num_beams": 4, "do_sample": true}),
        json!({"num_return_sequences": 2}),
        json!({"renormalize_logits": true}),
        json!({"sequence_bias": [[[1], 2.0]]}),
        json!({"forced_decoder_ids": [[1, 5]]}),
        json!({"a_field_of_tomorrow": 1}),
    ] {
        let field = config.as_object().unwrap().keys().next_back().unwrap().clone();
        match read(config) {
            Err(Error::Unsupported { place, field: named, .. }) => {
                assert_eq!(place, "generation_config.json");
                assert!(named == field || named == "do_sample", "{named} for {field}");
            }
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn fields_of_a_wrong_type_are_named() {
    for (field, value) in [
        ("max_length", json!(-1)),
        ("min_new_tokens", json!(1.5)),
        ("eos_token_id", json!([1, "2"])),
        ("eos_token_id", json!(4_294_967_296u64)),
        ("forced_bos_token_id", json!([1])),
        ("bad_words_ids", json!([1])),
        ("stop_strings", json!([1])),
        ("early_stopping", json!("always")),
        ("do_sample", json!(1)),
        ("temperature", json!("hot")),
        ("forced_decoder_ids", json!([[1, null], [2, 50_359]])),
        ("forced_decoder_ids", json!([[2, 50_359]])),
    ] {
        match read(json!({ field: value })) {
            Err(Error::Config { field: named, .. }) => assert_eq!(named, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    for damaged in ["", "[]", "{\"top_k\":", "null"] {
        let refused = GenerationOptions::from_json("x", damaged.as_bytes());
        assert!(matches!(refused, Err(Error::File { .. })), "{damaged}");
    }
}
