//! Replays the committed corpus, and a fixed set of pseudo-random inputs, through every target.

use headrow::{Config, Model, Tokenizer};
use std::path::{Path, PathBuf};

/// Where the inputs of a target are.
fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

#[test]
fn the_corpus_passes() {
    for &(name, target) in headrow_fuzz::TARGETS {
        let folder = corpus(name);
        let mut inputs = 0;
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        {
            target(&std::fs::read(entry.unwrap().path()).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "no corpus for {name}");
    }
}

/// `HEADROW_WRITE_SEEDS=1` puts them there.
#[test]
fn whole_files_are_in_the_corpus_and_are_whole() {
    let write = std::env::var_os("HEADROW_WRITE_SEEDS").is_some();
    for (target, name, bytes) in headrow_fuzz::seeds() {
        let path = corpus(target).join(&name);
        if write {
            std::fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).ok().as_ref(), Some(&bytes), "{}", path.display());
        let line = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
        let (json, rest) = bytes.split_at(line);
        let config = || Config::from_json(json).unwrap_or_else(|e| panic!("{name}: {e}"));
        match target {
            "config" => drop(config()),
            "tokenizer" => drop(Tokenizer::from_bytes(json).unwrap()),
            _ => drop(Model::from_bytes(&config(), &rest[1..]).unwrap()),
        }
        assert!(bytes.len() <= 4096, "{name}: {} bytes, more than fuzzers read", bytes.len());
    }
}

#[test]
fn pseudo_random_inputs_pass() {
    let mut state = 1u64;
    let mut next = || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for (_, target) in headrow_fuzz::TARGETS {
        for _ in 0..200 {
            let len = next() as usize % 2048;
            let data: Vec<u8> = (0..len).map(|_| (next() >> 24) as u8).collect();
            target(&data);
        }
    }
}
