use crate::checkpoint::{Checkpoint, damage_bytes};
use crate::memory;
use arbitrary::{Result, Unstructured};
use headrow::{
    Batch, Chunk, Config, Head, Input, Isa, LoadOptions, Model, Normalization, Output, Pooling,
    Sequence, Session, SessionOptions,
};
use std::sync::Arc;

/// A small whole checkpoint, damaged in ways that `u` chooses. Loading it ends in an error of one line or in a
/// model that runs; in both cases in memory proportional to the file. A whole config in a line, and a file behind it, may stand in
/// its place.
pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    if let Some(whole) = crate::whole_file(u) {
        let (config, file) = crate::split_line(whole);
        return load(u, config, file);
    }
    let mut checkpoint = Checkpoint::draw(u)?;
    for _ in 0..u.int_in_range(0..=3)? {
        checkpoint.damage(u)?;
    }
    let (mut file, mut config) = (checkpoint.file(), checkpoint.config());
    for _ in 0..u.int_in_range(0..=2)? {
        let in_config = u.ratio(1, 4)?;
        damage_bytes(u, if in_config { &mut config } else { &mut file })?;
    }
    load(u, &config, &file)
}

fn load(u: &mut Unstructured<'_>, config: &[u8], file: &[u8]) -> Result<()> {
    let allowed = (2 << 20) + 64 * (file.len() + config.len());
    let load = |isa: Option<Isa>| {
        memory::within(allowed, || {
            let config = Config::from_json(config)?;
            let options = LoadOptions::default().with_isa(isa);
            Ok(Arc::new(Model::from_bytes_with(&config, file, &options)?))
        })
    };
    let loaded: headrow::Result<Arc<Model>> = load(None);
    match loaded {
        Ok(model) => run(u, &model, &load(Some(Isa::Scalar)).expect("it was loaded before")),
        Err(error) => {
            crate::one_line(&error);
            Ok(())
        }
    }
}

/// The same model on two instruction sets, over ids that may be wrong, in sessions of sensible and of absurd
/// sizes.
fn run(u: &mut Unstructured<'_>, model: &Arc<Model>, plain: &Arc<Model>) -> Result<()> {
    let config = model.config();
    let ids: Vec<u32> = match u.is_empty() {
        // Behind a whole file nothing is left to choose them.
        true => vec![1, 0, 4],
        false => {
            (0..u.int_in_range(0..=9)?).map(|_| u.int_in_range(0..=11)).collect::<Result<_>>()?
        }
    };
    let fits = (1..=config.max_length()).contains(&ids.len())
        && ids.iter().all(|&id| (id as usize) < config.vocabulary());
    let options = SessionOptions::default().with_threads(1).with_max_tokens(9);
    let options = options.with_max_length(config.max_length().min(9));
    let mut sessions = [model, plain].map(|model| Session::new(model, &options).expect("9 tokens"));
    match (&config.encoder, &config.decoder) {
        (Some(_), Some(_)) => translate(&mut sessions, &ids, config),
        (None, _) => decode(&mut sessions, &ids, config, fits),
        (Some(_), None) => encode(&mut sessions, &ids, model, fits),
    }

    // Absurd sizes are refused, by the cap or as beyond any memory, before anything is allocated.
    let (tokens, sequences, threads) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    memory::within(2 << 20, || {
        let options = options.with_max_tokens(tokens).with_max_sequences(sequences);
        let options = options.with_threads(threads);
        let _ = model.memory_bound(&options);
        let _ = Session::new(model, &options.with_memory_cap(1 << 20));
    });
    Ok(())
}

/// The logits behind every token of a decoder, in one pass and token by token.
fn decode(sessions: &mut [Session; 2], ids: &[u32], config: &Config, fits: bool) {
    let v = config.vocabulary();
    let mut logits = [(); 2].map(|()| vec![0.0f32; ids.len() * v]);
    for (session, logits) in sessions.iter_mut().zip(&mut logits) {
        let sequence = session.add().expect("room for a sequence");
        let extended = session.extend(&[Chunk::new(sequence, ids)], Output::AllLogits, logits);
        assert_eq!(extended.is_ok(), fits, "{extended:?} for {ids:?} and {config:?}");
    }
    assert!(same(&logits[0], &logits[1]), "other bits on another instruction set: {logits:?}");
    if fits {
        let sequence = sessions[0].add().expect("room for another");
        for (id, row) in ids.chunks(1).zip(logits[1].chunks_mut(v)) {
            sessions[0]
                .extend(&[Chunk::new(sequence, id)], Output::AllLogits, row)
                .expect("a token that was read before");
        }
        assert!(same(&logits[0], &logits[1]), "other bits token by token: {logits:?}");
    }
}

/// The logits behind every token of a decoder that attends to the same ids, or to a spectrogram, in one pass and token by
/// token. What either session refuses, both do.
fn translate(sessions: &mut [Session; 2], ids: &[u32], config: &Config) {
    let input = config.encoder.as_ref().map(|stack| &stack.input);
    let values = match input {
        Some(Input::Spectrogram { bands, frames }) => vec![0.5; bands * 2 * frames],
        _ => Vec::new(),
    };
    let source = match input {
        Some(Input::Spectrogram { .. }) => Batch::spectrograms(&values, 1),
        _ => Batch::one(ids),
    };
    let v = config.vocabulary();
    let mut logits = [(); 2].map(|()| vec![0.0f32; ids.len() * v]);
    let read = |session: &mut Session, to: &mut [f32]| -> headrow::Result<Sequence> {
        let sequence = session.add_sources(&source)?[0];
        session.extend(&[Chunk::new(sequence, ids)], Output::AllLogits, to)?;
        Ok(sequence)
    };
    let [first, second] = &mut *sessions;
    let read = [read(first, &mut logits[0]), read(second, &mut logits[1])];
    let [Ok(sequence), Ok(_)] = read else {
        read.iter().for_each(|read| crate::one_line(read.as_ref().expect_err("both are refused")));
        return;
    };
    assert!(same(&logits[0], &logits[1]), "other bits on another instruction set: {logits:?}");
    first.truncate(sequence, 0).expect("it is alive");
    for (id, row) in ids.chunks(1).zip(logits[1].chunks_mut(v)) {
        first
            .extend(&[Chunk::new(sequence, id)], Output::AllLogits, row)
            .expect("a token that was read before");
    }
    assert!(same(&logits[0], &logits[1]), "other bits token by token: {logits:?}");
}

/// The states and the heads of an encoder.
fn encode(sessions: &mut [Session; 2], ids: &[u32], model: &Model, fits: bool) {
    let config = model.config();
    let mut hidden = [(); 2].map(|()| vec![0.0f32; ids.len() * config.d_model]);
    for (session, hidden) in sessions.iter_mut().zip(&mut hidden) {
        let encoded = session.encode(&Batch::one(ids), hidden);
        assert_eq!(encoded.is_ok(), fits, "{encoded:?} for {ids:?} and {config:?}");
    }
    assert!(same(&hidden[0], &hidden[1]), "other bits on another instruction set: {hidden:?}");

    for head in [
        Head::Pooled(Pooling::Mean, Normalization::L2),
        Head::Pooler,
        Head::MaskedLm,
        Head::SequenceClassifier,
        Head::TokenTagger,
        Head::NextSentence,
    ] {
        let Ok((rows, cols)) = model.output_shape(head, ids.len(), 1) else { continue };
        let mut out = [(); 2].map(|()| vec![0.0f32; rows * cols]);
        for (session, out) in sessions.iter_mut().zip(&mut out) {
            let predicted = session.predict(&Batch::one(ids), head, out);
            assert_eq!(predicted.is_ok(), fits, "{predicted:?} for {ids:?} and {config:?}");
        }
        assert!(same(&out[0], &out[1]), "other bits of {head:?}: {out:?}");
    }
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}
