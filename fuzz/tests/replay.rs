//! Replays the committed corpus, and a fixed set of pseudo-random inputs, through every target.

use std::path::Path;

#[test]
fn the_corpus_passes() {
    for &(name, target) in headrow_fuzz::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
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
