//! The model inside the library, and the example that writes it.

#[allow(dead_code)]
#[path = "../examples/seeded_model.rs"]
mod seeded_model;

use headrow::{Normalization, Pooling, SentenceEncoder, SentenceOptions};
use std::path::{Path, PathBuf};

const FILES: [&str; 6] = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
];

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/seeded-bert")
}

#[test]
fn the_example_writes_the_committed_folder_byte_for_byte() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("seeded-again");
    seeded_model::write(&folder).unwrap();
    for name in FILES {
        let (old, new) = (assets().join(name), folder.join(name));
        assert!(std::fs::read(old).unwrap() == std::fs::read(new).unwrap(), "{name} differs");
    }
}

#[test]
fn the_encoder_inside_the_library_is_that_of_the_folder_bit_for_bit() {
    let texts = ["the cat sat on the mat", "", "Ünïcode 猫 🐈", "a  b\tc"];
    let inside = SentenceEncoder::seeded().unwrap();
    let folder = SentenceEncoder::from_dir(assets()).unwrap();
    assert_eq!(inside.dimension(), 32);
    assert_eq!(inside.max_length(), 128);
    assert_eq!(inside.head(), folder.head());
    let (inside, folder) = (inside.embed(texts).unwrap(), folder.embed(texts).unwrap());
    assert_eq!(inside.len(), texts.len());
    assert_eq!(inside, folder);
    for vector in &inside {
        let norm: f64 = vector.iter().map(|&x| f64::from(x).powi(2)).sum();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
    }
}

#[test]
fn options_stand_above_what_the_folder_says() {
    let plain = SentenceOptions::default().with_normalization(Normalization::None);
    let cls = plain.clone().with_pooling(Pooling::Cls);
    let [mean, cls] = [plain, cls].map(|options| {
        let encoder = SentenceEncoder::from_dir_with(assets(), &options).unwrap();
        encoder.embed(["water and fire"]).unwrap().remove(0)
    });
    assert_ne!(mean, cls);
    // Behind a LayerNorm with γ = 1 and β = 0 a token's state has the norm √d.
    let norm: f64 = cls.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    assert!((norm - 32f64.sqrt()).abs() < 1e-4, "{norm}");
}

#[test]
fn files_in_memory_that_are_missing_or_damaged_are_named() {
    let read = |name: &str| std::fs::read(assets().join(name)).unwrap();
    let all: Vec<(&str, Vec<u8>)> = FILES.map(|name| (name, read(name))).into();
    let refused = |files: &[(&str, Vec<u8>)]| {
        let files: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (*n, &b[..])).collect();
        SentenceEncoder::from_files(&files).unwrap_err().to_string()
    };
    for name in ["config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"] {
        let some: Vec<_> = all.iter().filter(|(other, _)| *other != name).cloned().collect();
        assert!(refused(&some).contains(name), "{}", refused(&some));
        let mut cut = all.clone();
        cut.iter_mut().find(|(other, _)| *other == name).unwrap().1.pop();
        cut.iter_mut().find(|(other, _)| *other == name).unwrap().1.pop();
        let stem = name.rsplit('/').next().unwrap().split('.').next().unwrap();
        let message = refused(&cut);
        let named = message.contains(stem) || message.contains("weights");
        assert!(named, "{name}: {message}");
    }
}
