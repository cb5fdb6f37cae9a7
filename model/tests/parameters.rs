//! Parameters before training, from files and to files.

#[path = "support/general.rs"]
mod general;
#[path = "support/tiny.rs"]
mod tiny;

use general::{General, random_config};
use headrow::train::{Parameters, Precision};
use headrow::{Config, Model, StackConfig, TokenInput};
use serde_json::json;
use tiny::Random;

fn words(v: usize, d: usize) -> headrow::Input {
    headrow::Input::Tokens(TokenInput::paper(v, d))
}

/// Mean and variance.
fn moments(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let squares = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
    (mean, squares / n)
}

#[test]
fn norms_are_ones_biases_zeros_weights_uniform_and_tables_normal() {
    let d = 64;
    let mut config = Config::general(d);
    let mut stack = StackConfig::paper(words(500, d), 2, d, 4, 96);
    stack.kv_heads = 2;
    config.decoder = Some(stack);
    config.read_out.tied = false;
    config.read_out.bias = true;
    let parameters = Parameters::initialise(&config, 7).unwrap();
    for (name, shape, values) in parameters.tensors() {
        match *shape {
            [_] if name.ends_with("bias") => assert!(values.iter().all(|&x| x == 0.0), "{name}"),
            [_] => assert!(values.iter().all(|&x| x == 1.0), "{name}"),
            [rows, columns] if name.ends_with(".words.weight") || name == "words.weight" => {
                let (mean, variance) = moments(values);
                assert!(mean.abs() < 5e-3, "{name}: {mean}");
                assert!((variance * columns as f64 - 1.0).abs() < 0.05, "{name} {rows}");
            }
            [outputs, inputs] => {
                let bound = (6.0 / (inputs + outputs) as f64).sqrt();
                let largest = values.iter().fold(0.0f64, |max, &x| max.max(f64::from(x).abs()));
                assert!(largest <= bound && largest > 0.98 * bound, "{name}: {largest} {bound}");
                let (_, variance) = moments(values);
                assert!((variance / (bound * bound / 3.0) - 1.0).abs() < 0.1, "{name}");
            }
            _ => panic!("{name}"),
        }
    }
}

/// GPT-2 has queries, keys and values side by side in one tensor of inputs × outputs; each is a map of its own.
#[test]
fn maps_in_one_tensor_are_drawn_one_by_one() {
    let json = json!({"model_type": "gpt2", "vocab_size": 50, "n_embd": 48, "n_layer": 1, "n_head": 4,
        "n_positions": 16});
    let config = Config::from_json(json.to_string().as_bytes()).unwrap();
    let parameters = Parameters::initialise(&config, 3).unwrap();
    let fused = parameters.get("h.0.attn.c_attn.weight").unwrap();
    assert_eq!(fused.len(), 48 * 144);
    let bound = (6.0f64 / 96.0).sqrt();
    for map in 0..3 {
        let columns = fused.chunks(144).flat_map(|row| &row[map * 48..(map + 1) * 48]);
        let largest = columns.fold(0.0f64, |max, &x| max.max(f64::from(x).abs()));
        assert!(largest <= bound && largest > 0.97 * bound, "{largest} {bound}");
    }
}

#[test]
fn the_seed_decides_and_other_tensors_do_not_matter() {
    let mut config = Config::general(8);
    config.decoder = Some(StackConfig::paper(words(20, 8), 1, 8, 2, 16));
    let draw = |config: &Config, seed| Parameters::initialise(config, seed).unwrap();
    let (a, b, other) = (draw(&config, 1), draw(&config, 1), draw(&config, 2));
    assert_eq!(a, b);
    assert_ne!(a.values(), other.values());
    // The same numbers on every machine: written down once.
    let first = a.get("decoder.layers.0.feed_forward.inner.weight").unwrap()[..2].to_vec();
    assert_eq!(first.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), FIRST);
    let stack = config.decoder.as_mut().unwrap();
    (stack.layers, stack.distinct_layers) = (3, 3);
    let name = "decoder.layers.0.attention.value.weight";
    assert_eq!(draw(&config, 1).get(name), a.get(name));
}

const FIRST: [u32; 2] = [0xBE25_9674, 0xBE18_8410];

#[test]
fn files_come_back_as_they_were_and_make_models() {
    for seed in 0..12 {
        let config = random_config(&mut Random(seed));
        let general = General::new(&config, seed);
        let bytes = tiny::file(&general.tensors);
        let parameters = Parameters::from_bytes(&config, &bytes).unwrap();
        for (name, shape, values) in parameters.tensors() {
            let tensor = general.tensors.iter().find(|tensor| tensor.name == name).unwrap();
            let expected: Vec<f32> =
                tensor.data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            assert_eq!((shape, values), (&tensor.shape[..], &expected[..]), "{name}");
        }
        assert_eq!(parameters.tensors().count(), general.tensors.len());
        let file = parameters.to_safetensors(Precision::F32);
        assert_eq!(Parameters::from_bytes(&config, &file).unwrap(), parameters);
        Model::from_bytes(&config, &file).unwrap();
        for precision in [Precision::Bf16, Precision::F16] {
            let rounded = Parameters::from_bytes(&config, &parameters.to_safetensors(precision));
            let rounded = rounded.unwrap();
            let pairs = rounded.values().iter().zip(parameters.values());
            assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() <= b.abs() / 256.0 + 1e-7));
            assert_ne!(rounded.values(), parameters.values());
        }
    }
}

#[test]
fn prefixes_of_a_family_are_kept_and_not_needed() {
    let json = json!({"model_type": "gpt2", "vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2,
        "n_positions": 6});
    let config = Config::from_json(json.to_string().as_bytes()).unwrap();
    let mut general = General::new(&config, 1);
    general.tensors.iter_mut().for_each(|tensor| tensor.name.insert_str(0, "transformer."));
    let parameters = Parameters::from_bytes(&config, &tiny::file(&general.tensors)).unwrap();
    assert!(parameters.tensors().all(|(name, ..)| name.starts_with("transformer.")));
    assert_eq!(parameters.place("wte.weight"), parameters.place("transformer.wte.weight"));
    assert!(parameters.place("wte").is_none());
}

#[test]
fn what_does_not_fit_is_an_error() {
    let mut config = Config::general(8);
    assert!(Parameters::initialise(&config, 1).is_err());
    config.decoder = Some(StackConfig::paper(words(20, 8), 1, 8, 2, 16));
    let bytes = Parameters::initialise(&config, 1).unwrap().to_safetensors(Precision::F32);
    config.decoder.as_mut().unwrap().d_ff = 17;
    let error = Parameters::from_bytes(&config, &bytes).unwrap_err().to_string();
    assert!(error.contains("feed_forward.inner.weight has shape [16, 8]"), "{error}");
    assert!(Parameters::from_bytes(&config, &bytes[..9]).is_err());
}
