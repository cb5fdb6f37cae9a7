use crate::checkpoint::{Checkpoint, damage_bytes};
use crate::memory;
use arbitrary::{Result, Unstructured};
use headrow::{
    Batch, Config, Head, Isa, LoadOptions, Model, Normalization, Pooling, Session, SessionOptions,
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
        Ok(model) if model.config().encoder.is_none() => Ok(()),
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
    let ids: Vec<u32> =
        (0..u.int_in_range(0..=9)?).map(|_| u.int_in_range(0..=11)).collect::<Result<_>>()?;
    let fits = (1..=config.max_length()).contains(&ids.len())
        && ids.iter().all(|&id| (id as usize) < config.vocabulary());
    let options = SessionOptions::default().with_threads(1).with_max_tokens(9);
    let mut sessions = [model, plain].map(|model| Session::new(model, &options).expect("9 tokens"));

    let mut hidden = [(); 2].map(|()| vec![0.0f32; ids.len() * config.d_model]);
    for (session, hidden) in sessions.iter_mut().zip(&mut hidden) {
        let encoded = session.encode(&Batch::one(&ids), hidden);
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
            let predicted = session.predict(&Batch::one(&ids), head, out);
            assert_eq!(predicted.is_ok(), fits, "{predicted:?} for {ids:?} and {config:?}");
        }
        assert!(same(&out[0], &out[1]), "other bits of {head:?}: {out:?}");
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

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}
