//! What is allocated: by a warmed call nothing, by a session what it said, by loading little beside the weights.

#[path = "support/counting.rs"]
mod counting;
#[path = "support/tiny.rs"]
mod tiny;

use counting::counted;
use headrow::{Batch, Head, Model, Normalization, Pooling, Session, SessionOptions};
use std::sync::Arc;
use tiny::{D, FAMILIES, Folder, Random, Tiny, V, sequences};

const LENGTHS: [usize; 5] = [5, 1, 17, 32, 2];

#[test]
fn a_warmed_call_on_one_thread_allocates_nothing() {
    for family in FAMILIES {
        let model = Arc::new(Tiny::new(family).model().unwrap());
        let options = SessionOptions::default().with_max_tokens(80).with_threads(1);
        let mut session = Session::new(&model, &options).unwrap();
        let ids = sequences(1, &LENGTHS);
        let (batch, one) = (Batch::ragged(&ids, &LENGTHS), Batch::one(&ids[..9]));
        let mut hidden = vec![0.0; ids.len() * D];
        let mut logits = vec![0.0; ids.len() * V];
        session.warm_up().unwrap();
        let ((), calls, ..) = counted(|| {
            session.encode(&batch, &mut hidden).unwrap();
            session.encode(&one, &mut hidden[..9 * D]).unwrap();
            let pooled = Head::Pooled(Pooling::Mean, Normalization::L2);
            session.predict(&batch, pooled, &mut hidden[..LENGTHS.len() * D]).unwrap();
            session.predict(&batch, Head::MaskedLm, &mut logits).unwrap();
        });
        assert_eq!(calls, 0, "{family}");
    }
}

#[test]
fn a_refused_batch_allocates_nothing() {
    let model = Arc::new(Tiny::new("bert").model().unwrap());
    let options = SessionOptions::default().with_threads(1);
    let mut session = Session::new(&model, &options).unwrap();
    let (refused, calls, ..) =
        counted(|| session.encode(&Batch::one(&[V as u32]), &mut [0.0; D]).is_err());
    assert!(refused);
    assert_eq!(calls, 0);
}

#[test]
fn a_session_allocates_what_was_computed_before() {
    let model = Arc::new(Tiny::new("bert").model().unwrap());
    for (sequences, tokens) in [(1, 1), (1, 8), (4, 100), (32, 2000), (2000, 2000)] {
        let options = SessionOptions::default()
            .with_max_tokens(tokens)
            .with_max_sequences(sequences)
            .with_threads(1);
        let (session, _, kept, peak) = counted(|| Session::new(&model, &options).unwrap());
        let bound = model.memory_bound(&options).unwrap();
        assert!(peak <= bound, "{sequences} sequences, {tokens} tokens: {peak} over {bound}");
        assert!(kept + 1024 >= bound, "{sequences} sequences, {tokens} tokens: {kept} of {bound}");
        drop(session);
    }
}

#[test]
fn a_session_with_a_pool_allocates_what_was_computed_before() {
    let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap());
    let model = Arc::new(Tiny::new("bert").model().unwrap());
    let options = SessionOptions::default().with_max_tokens(100).with_pool(pool).with_threads(4);
    let (session, _, kept, peak) = counted(|| Session::new(&model, &options).unwrap());
    let bound = model.memory_bound(&options).unwrap();
    assert_eq!(session.threads(), 4);
    assert!(peak <= bound && kept + 1024 >= bound, "{kept} kept, {peak} at the peak of {bound}");
}

#[test]
fn loading_a_folder_peaks_near_the_size_of_the_model() {
    // Wide enough that the weights outweigh the buffers.
    let folder = Folder::new("peak");
    let mut tiny = Tiny::new("distilbert").stored_as("F16");
    tiny.config["vocab_size"] = 40_000.into();
    let mut random = Random(3);
    let bytes: Vec<u8> = (0..2 * 40_000 * D).map(|_| random.below(60) as u8).collect();
    for (name, shape, data) in [
        ("distilbert.embeddings.word_embeddings.weight", vec![40_000, D], bytes),
        ("vocab_projector.bias", vec![40_000], vec![0; 80_000]),
    ] {
        let tensor = tiny.tensor(name);
        (tensor.shape, tensor.data) = (shape, data);
    }
    tiny.write(&folder.0);
    drop(tiny);
    let (model, _, _, peak) = counted(|| Model::from_dir(&folder.0).unwrap());
    let most = model.bytes() + (1 << 20);
    assert!(peak < most, "a peak of {peak}, the model has {}", model.bytes());
}

#[test]
fn a_file_of_lies_makes_nothing_grow() {
    let tiny = Tiny::new("bert");
    let config = tiny.config().unwrap();
    let bytes = tiny::file(&tiny.tensors);
    for (field, size) in [("vocab_size", 1u64 << 31), ("num_hidden_layers", 1 << 31)] {
        let config = tiny.clone().set(field, size.into()).config().unwrap();
        let (model, _, _, peak) = counted(|| Model::from_bytes(&config, &bytes));
        assert!(model.is_err());
        assert!(peak < 1 << 20, "{field}: {peak} bytes");
    }
    for header in [1u64 << 20, 1 << 40, 1 << 63, u64::MAX] {
        let mut bytes = bytes.clone();
        bytes[..8].copy_from_slice(&header.to_le_bytes());
        let (model, _, _, peak) = counted(|| Model::from_bytes(&config, &bytes));
        assert!(model.is_err());
        assert!(peak < 1 << 20, "a header of {header}: {peak} bytes");
    }
}
