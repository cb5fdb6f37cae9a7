//! The promise of the library: the result of a sequence has the same bits alone and in any batch, with any
//! number of threads, on every instruction set.

#[path = "support/tiny.rs"]
mod tiny;

use headrow::{
    Batch, Cpu, Head, LoadOptions, Mat, Model, Normalization, Pooling, Session, SessionOptions,
    Side,
};
use std::sync::Arc;
use tiny::{D, FAMILIES, Random, Tiny, file, sequences};

const LENGTHS: [usize; 9] = [5, 1, 17, 32, 2, 9, 1, 30, 4];

fn model(family: &str) -> Arc<Model> {
    Arc::new(Tiny::new(family).model().unwrap())
}

fn session(model: &Arc<Model>, threads: usize) -> Session {
    let options = SessionOptions::default().with_max_tokens(200).with_threads(threads);
    Session::new(model, &options).unwrap()
}

fn encode(session: &mut Session, ids: &[u32], lengths: &[usize]) -> Vec<u32> {
    let mut hidden = vec![f32::NAN; ids.len() * D];
    session.encode(&Batch::ragged(ids, lengths), &mut hidden).unwrap();
    assert!(hidden.iter().all(|x| x.is_finite()));
    hidden.into_iter().map(f32::to_bits).collect()
}

fn predict(session: &mut Session, ids: &[u32], lengths: &[usize], head: Head) -> Vec<u32> {
    let shape = session.model().output_shape(head, ids.len(), lengths.len()).unwrap();
    let mut out = vec![f32::NAN; shape.0 * shape.1];
    session.predict(&Batch::ragged(ids, lengths), head, &mut out).unwrap();
    assert!(out.iter().all(|x| x.is_finite()));
    out.into_iter().map(f32::to_bits).collect()
}

fn heads(model: &Model) -> Vec<Head> {
    let poolings = [Pooling::Mean, Pooling::Cls, Pooling::Max, Pooling::LastToken];
    let pooled = poolings.into_iter().flat_map(|pooling| {
        [Normalization::None, Normalization::L2].map(|norm| Head::Pooled(pooling, norm))
    });
    let others = [Head::Pooler, Head::MaskedLm, Head::NextSentence];
    pooled.chain(others).filter(|&head| model.has(head)).collect()
}

#[test]
fn a_sequence_has_the_same_bits_alone_and_in_any_batch() {
    for family in FAMILIES {
        let mut session = session(&model(family), 1);
        let ids = sequences(1, &LENGTHS);
        let all = encode(&mut session, &ids, &LENGTHS);
        let mut start = 0;
        for (index, &length) in LENGTHS.iter().enumerate() {
            let alone = encode(&mut session, &ids[start..start + length], &[length]);
            assert_eq!(alone, all[start * D..(start + length) * D], "{family}, sequence {index}");
            start += length;
        }
    }
}

#[test]
fn heads_give_a_sequence_the_same_bits_alone_and_in_a_batch() {
    for family in FAMILIES {
        let model = model(family);
        let mut session = session(&model, 1);
        let ids = sequences(2, &LENGTHS);
        for head in heads(&model) {
            let all = predict(&mut session, &ids, &LENGTHS, head);
            let (mut start, mut at) = (0, 0);
            for length in LENGTHS {
                let alone = predict(&mut session, &ids[start..start + length], &[length], head);
                assert_eq!(alone, all[at..at + alone.len()], "{family}, {head:?}");
                start += length;
                at += alone.len();
            }
            assert_eq!(at, all.len());
        }
    }
}

#[test]
fn every_number_of_threads_gives_the_same_bits() {
    for family in FAMILIES {
        let model = model(family);
        let ids = sequences(3, &LENGTHS);
        let mut one = session(&model, 1);
        let expected = encode(&mut one, &ids, &LENGTHS);
        for threads in 2..=4 {
            let mut session = session(&model, threads);
            for _ in 0..20 {
                assert_eq!(encode(&mut session, &ids, &LENGTHS), expected, "{threads} threads");
            }
            for head in heads(&model) {
                let expected = predict(&mut one, &ids, &LENGTHS, head);
                assert_eq!(predict(&mut session, &ids, &LENGTHS, head), expected, "{head:?}");
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for family in FAMILIES {
        let tiny = Tiny::new(family);
        let (config, bytes) = (tiny.config().unwrap(), file(&tiny.tensors));
        let ids = sequences(4, &LENGTHS);
        let results: Vec<_> = Cpu::all()
            .map(|cpu| {
                let options = LoadOptions::default().with_isa(cpu.isa());
                let model = Model::from_bytes_with(&config, &bytes, &options).unwrap();
                assert_eq!(model.cpu().isa(), cpu.isa());
                let model = Arc::new(model);
                let mut session = session(&model, 1);
                let mut bits = vec![encode(&mut session, &ids, &LENGTHS)];
                for head in heads(&model) {
                    bits.push(predict(&mut session, &ids, &LENGTHS, head));
                }
                (cpu.isa(), bits)
            })
            .collect();
        for (isa, bits) in &results {
            assert!(*bits == results[0].1, "{family}: {isa} and {}", results[0].0);
        }
    }
}

#[test]
fn a_probe_changes_no_bit_and_sees_every_layer() {
    let model = model("bert");
    let mut session = session(&model, 2);
    let ids = sequences(5, &LENGTHS);
    let expected = encode(&mut session, &ids, &LENGTHS);
    let (mut hidden, mut seen, mut last) = (vec![0.0; ids.len() * D], Vec::new(), Vec::new());
    session
        .encode_observed(
            &Batch::ragged(&ids, &LENGTHS),
            &mut hidden,
            &mut |_: Side, layer, state: Mat<'_>| {
                assert_eq!((state.rows(), state.cols()), (ids.len(), D));
                seen.push(layer);
                last = (0..state.rows()).flat_map(|i| state.row(i)).copied().collect();
            },
        )
        .unwrap();
    assert_eq!(seen, [0, 1, 2]);
    assert_eq!(last, hidden);
    assert_eq!(hidden.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), expected);
}

#[test]
fn what_an_earlier_batch_left_in_the_scratch_memory_does_not_matter() {
    let model = model("roberta");
    let mut used = session(&model, 1);
    let mut random = Random(6);
    for round in 0..40 {
        let lengths: Vec<usize> = (0..1 + random.below(6)).map(|_| 1 + random.below(32)).collect();
        let ids = sequences(100 + round, &lengths);
        let fresh = encode(&mut session(&model, 1), &ids, &lengths);
        assert_eq!(encode(&mut used, &ids, &lengths), fresh, "round {round}: {lengths:?}");
    }
}

#[test]
fn token_types_count_and_absent_ones_are_zeros() {
    let model = model("bert");
    let mut session = session(&model, 1);
    let ids = sequences(7, &[8]);
    let encode = |session: &mut Session, types: Option<&[u32]>| {
        let mut hidden = vec![0.0; ids.len() * D];
        let batch = Batch::one(&ids);
        let batch = types.map_or(batch, |types| batch.with_token_types(types));
        session.encode(&batch, &mut hidden).unwrap();
        hidden
    };
    let absent = encode(&mut session, None);
    assert_eq!(encode(&mut session, Some(&[0; 8])), absent);
    assert_ne!(encode(&mut session, Some(&[0, 0, 0, 0, 1, 1, 1, 1])), absent);
}
