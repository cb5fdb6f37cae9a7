//! Models of an encoder and a decoder: what their folders may say, and sessions that decode from sources.

#[path = "support/tiny.rs"]
mod tiny;
#[path = "support/tiny_seq2seq.rs"]
mod tiny_seq2seq;

use headrow::{Chunk, Error, Model, Output, Sequence, Session, SessionOptions};
use serde_json::{Value, json};
use std::sync::Arc;
use tiny::{D, Random, Tiny, V};
use tiny_seq2seq::{DECODER, ENCODER, KINDS, LENGTH, Sources, TARGET_V, seq2seq, target};

const PAGE: usize = headrow_kernels::attention::PAGE;

fn session(model: &Arc<Model>) -> Session {
    Session::new(model, &SessionOptions::default().with_threads(1)).unwrap()
}

fn model(tiny: &Tiny) -> Arc<Model> {
    Arc::new(tiny.model().unwrap())
}

/// Scores after every token of `ids`, which `sequence` reads.
fn scores(session: &mut Session, sequence: Sequence, ids: &[u32]) -> Vec<f32> {
    let mut out = vec![0.0; ids.len() * session.model().config().vocabulary()];
    session.extend(&[Chunk::new(sequence, ids)], Output::AllLogits, &mut out).unwrap();
    out
}

/// Scores of a target after one source, in a session of its own.
fn alone(tiny: &Tiny, sources: &Sources, index: usize, ids: &[u32]) -> Vec<f32> {
    let mut session = session(&model(tiny));
    let sequence = session.add_sources(&sources.single(index)).unwrap()[0];
    scores(&mut session, sequence, ids)
}

fn kind_of(tiny: &Tiny) -> String {
    tiny.config["model_type"].as_str().unwrap().to_owned()
}

/// Scores that every part of a checkpoint has a share in.
fn fingerprint(tiny: &Tiny) -> Vec<f32> {
    let sources = Sources::new(&kind_of(tiny), 3, &[7]);
    alone(tiny, &sources, 0, &target(4, 9))
}

fn differ(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).any(|(a, b)| a.to_bits() != b.to_bits())
}

#[test]
fn every_tensor_and_both_stacks_sizes_count() {
    for kind in KINDS {
        let tiny = seq2seq(kind);
        let config = tiny.config().unwrap();
        let [encoder, decoder] = [config.encoder, config.decoder].map(Option::unwrap);
        assert_eq!([encoder.layers, decoder.layers], [ENCODER[0], DECODER[0]], "{kind}");
        if kind != "opennmt-transformer" {
            assert_eq!([encoder.heads, decoder.heads], [ENCODER[1], DECODER[1]], "{kind}");
            assert_eq!([encoder.d_ff, decoder.d_ff], [ENCODER[2], DECODER[2]], "{kind}");
        }
        let expected = fingerprint(&tiny);
        assert!(expected.iter().all(|x| x.is_finite()), "{kind}");
        for i in 0..tiny.tensors.len() {
            let mut changed = tiny.clone();
            let Tiny { tensors, .. } = &mut changed;
            let name = tensors[i].name.clone();
            // A shift of all keys shifts all scores of a query alike: only rounding can show it.
            if name.ends_with("k_proj.bias") {
                continue;
            }
            let data = tensors[i].data.chunks_mut(4);
            data.for_each(|bytes| {
                let x = f32::from_le_bytes((&*bytes).try_into().unwrap());
                bytes.copy_from_slice(&(x * 1.5 + 0.25).to_le_bytes());
            });
            assert!(differ(&expected, &fingerprint(&changed)), "{kind}: {name} has no effect");
            assert!(changed.tensors.len() == tiny.tensors.len());
            changed.tensors.remove(i);
            let name = name.strip_prefix("model.").unwrap_or(&name).to_owned();
            match name.as_str() {
                "final_logits_bias" => assert!(changed.model().is_ok()),
                _ => {
                    let error = changed.model().unwrap_err().to_string();
                    assert!(error.contains(&format!("{name} is missing")), "{kind}: {error}");
                }
            }
        }
    }
}

#[test]
fn decoding_has_the_same_bits_in_any_chunks_and_with_any_threads() {
    for kind in KINDS {
        let tiny = seq2seq(kind);
        let model = model(&tiny);
        let sources = Sources::new(kind, 5, &[19]);
        let ids = target(6, 23);
        let expected = alone(&tiny, &sources, 0, &ids);
        for (threads, sizes) in [(1, vec![1; 23]), (2, vec![5, 1, 16, 1]), (3, vec![23])] {
            let options = SessionOptions::default().with_threads(threads);
            let mut session = Session::new(&model, &options).unwrap();
            let sequence = session.add_sources(&sources.single(0)).unwrap()[0];
            let mut actual = Vec::new();
            let mut rest = &ids[..];
            for &size in &sizes {
                let (chunk, behind) = rest.split_at(size);
                actual.extend(scores(&mut session, sequence, chunk));
                rest = behind;
            }
            assert!(!differ(&expected, &actual), "{kind}: {threads} threads, {sizes:?}");
        }
    }
}

#[test]
fn a_pass_smaller_than_the_target_has_the_same_bits() {
    let tiny = seq2seq("m2m_100");
    let sources = Sources::new("m2m_100", 5, &[6]);
    let ids = target(6, 30);
    let options = SessionOptions::default().with_threads(1).with_max_tokens(7);
    let mut session = Session::new(&model(&tiny), &options).unwrap();
    let sequence = session.add_sources(&sources.batch()).unwrap()[0];
    assert!(!differ(&alone(&tiny, &sources, 0, &ids), &scores(&mut session, sequence, &ids)));
}

#[test]
fn a_source_has_the_same_bits_alone_and_in_a_batch() {
    let lengths = [4, 17, 1, 9];
    for kind in KINDS {
        let tiny = seq2seq(kind);
        let model = model(&tiny);
        let sources = Sources::new(kind, 7, &lengths);
        let mut session = session(&model);
        let added = session.add_sources(&sources.batch()).unwrap();
        let targets: Vec<Vec<u32>> = (0..4).map(|i| target(i, 3 + 5 * i as usize)).collect();
        let chunks = added.iter().zip(&targets).map(|(&sequence, ids)| Chunk::new(sequence, ids));
        let chunks: Vec<Chunk<'_>> = chunks.collect();
        let v = model.config().vocabulary();
        let mut out = vec![0.0; v * targets.iter().map(Vec::len).sum::<usize>()];
        session.extend(&chunks, Output::AllLogits, &mut out).unwrap();
        let mut rest = &out[..];
        for (i, ids) in targets.iter().enumerate() {
            let (here, behind) = rest.split_at(v * ids.len());
            rest = behind;
            assert!(!differ(&alone(&tiny, &sources, i, ids), here), "{kind}: source {i}");
        }
        // Encoded without a decoder, the sources have the same states alone, too.
        let rows = session.rows_of(&sources.batch()).unwrap();
        let mut hidden = vec![0.0; rows * D];
        session.encode(&sources.batch(), &mut hidden).unwrap();
        let mut rest = &hidden[..];
        for i in 0..lengths.len() {
            let mut single = vec![0.0; session.rows_of(&sources.single(i)).unwrap() * D];
            session.encode(&sources.single(i), &mut single).unwrap();
            let (here, behind) = rest.split_at(single.len());
            rest = behind;
            assert!(!differ(&single, here), "{kind}: states of source {i}");
        }
    }
}

#[test]
fn a_token_sees_its_source_and_its_past_and_nothing_later() {
    for kind in KINDS {
        let tiny = seq2seq(kind);
        let v = tiny.config().unwrap().vocabulary();
        let [one, other] = [1, 2].map(|seed| Sources::new(kind, seed, &[8]));
        let ids = target(8, 6);
        let expected = alone(&tiny, &one, 0, &ids);
        let from_other = alone(&tiny, &other, 0, &ids);
        for t in 0..ids.len() {
            let row = t * v..(t + 1) * v;
            assert!(differ(&expected[row.clone()], &from_other[row.clone()]), "{kind}: token {t}");
            let mut changed = ids.clone();
            changed[t] = if ids[t] == 3 { 4 } else { 3 };
            let changed = alone(&tiny, &one, 0, &changed);
            assert!(!differ(&expected[..t * v], &changed[..t * v]), "{kind}: before token {t}");
            assert!(differ(&expected[row.clone()], &changed[row]), "{kind}: token {t}");
        }
    }
}

#[test]
fn forks_keep_the_source_when_the_first_is_removed() {
    for kind in KINDS {
        let tiny = seq2seq(kind);
        let sources = Sources::new(kind, 9, &[11]);
        let mut session = session(&model(&tiny));
        let first = session.add_sources(&sources.batch()).unwrap()[0];
        let (past, left, right) = (target(1, 5), target(2, 4), target(3, 7));
        scores(&mut session, first, &past);
        let fork = session.fork(first).unwrap();
        let left_scores = scores(&mut session, first, &left);
        session.remove(first).unwrap();
        assert!(matches!(session.length(first), Err(Error::NoSequence)));
        // Other sources may take the slot of the first, not the pages that the fork still has.
        session.add_sources(&Sources::new(kind, 10, &[11]).batch()).unwrap();
        let right_scores = scores(&mut session, fork, &right);
        let v = session.model().config().vocabulary();
        for (behind, actual) in [(left, left_scores), (right, right_scores)] {
            let expected = alone(&tiny, &sources, 0, &[past.clone(), behind].concat());
            assert!(!differ(&expected[past.len() * v..], &actual), "{kind}");
        }
    }
}

#[test]
fn a_truncated_target_keeps_its_source() {
    let tiny = seq2seq("bart");
    let sources = Sources::new("bart", 9, &[11]);
    let mut session = session(&model(&tiny));
    let sequence = session.add_sources(&sources.batch()).unwrap()[0];
    let ids = target(1, 8);
    scores(&mut session, sequence, &target(2, 20));
    session.truncate(sequence, 0).unwrap();
    let actual = scores(&mut session, sequence, &ids);
    assert!(!differ(&alone(&tiny, &sources, 0, &ids), &actual));
}

#[test]
fn sources_are_added_all_or_none_and_their_pages_come_back() {
    let model = model(&seq2seq("marian"));
    let options = SessionOptions::default().with_threads(1).with_max_sequences(4);
    let mut session = Session::new(&model, &options.with_source_tokens(3 * PAGE)).unwrap();
    let four = Sources::new("marian", 1, &[PAGE, 3, PAGE + 1, 2]);
    let error = session.add_sources(&four.batch()).unwrap_err();
    assert!(matches!(error, Error::CacheFull { .. }), "{error}");
    // Nothing was kept of those that had room.
    let three = Sources::new("marian", 1, &[PAGE, 1, 5]);
    for round in 0..20 {
        let added = session.add_sources(&three.batch()).unwrap();
        let error = session.add_sources(&three.single(1)).unwrap_err();
        assert!(matches!(error, Error::CacheFull { .. }), "round {round}: {error}");
        // Forks take no pages of their own, and keep those of the first until all are gone.
        let forks: Vec<Sequence> = (0..5).map(|_| session.fork(added[0]).unwrap()).collect();
        let error = session.fork(forks[0]).unwrap_err();
        assert!(matches!(error, Error::TooManySequences { maximum: 8 }), "{error}");
        for sequence in added.into_iter().chain(forks) {
            session.remove(sequence).unwrap();
        }
    }
    let five = Sources::new("marian", 1, &[1; 5]);
    assert!(matches!(session.add_sources(&five.batch()), Err(Error::BatchTooLarge { .. })));
}

#[test]
fn sequences_without_a_source_and_inputs_of_another_kind_are_refused() {
    for kind in KINDS {
        let mut session = session(&model(&seq2seq(kind)));
        assert!(matches!(session.add(), Err(Error::NoSource)), "{kind}");
        let other = if kind == "whisper" { "bart" } else { "whisper" };
        let error = session.add_sources(&Sources::new(other, 1, &[5]).batch()).unwrap_err();
        assert!(matches!(error, Error::WrongInput { .. }), "{kind}: {error}");
        let sequence = session.add_sources(&Sources::new(kind, 1, &[5]).batch()).unwrap()[0];
        let chunk = [Chunk::new(sequence, &[3, V as u32])];
        let error = session.extend(&chunk, Output::None, &mut []).unwrap_err();
        assert!(matches!(error, Error::TokenId { index: 1, .. }), "{kind}: {error}");
        session.warm_up().unwrap();
    }
    let mut whisper = session(&model(&seq2seq("whisper")));
    let short = headrow::Batch::spectrograms(&[0.0; 7], 1);
    assert!(matches!(whisper.add_sources(&short), Err(Error::Lengths { .. })));
}

#[test]
fn the_longest_target_fills_the_learned_table() {
    for kind in ["bart", "mbart", "whisper"] {
        let mut session = session(&model(&seq2seq(kind)));
        let sources = Sources::new(kind, 1, &[5]);
        let sequence = session.add_sources(&sources.batch()).unwrap()[0];
        scores(&mut session, sequence, &target(1, LENGTH));
        let error = session.extend(&[Chunk::new(sequence, &[3])], Output::None, &mut []);
        assert!(matches!(error, Err(Error::SequenceTooLong { maximum: LENGTH, .. })), "{kind}");
    }
}

#[test]
fn half_precision_is_widened_exactly() {
    for kind in KINDS {
        let tiny = seq2seq(kind);
        let expected = fingerprint(&tiny);
        assert!(!differ(&expected, &fingerprint(&tiny.stored_as("F16"))), "{kind}");
    }
}

#[test]
fn the_bias_of_the_scores_is_added_last() {
    let with = seq2seq("bart");
    let mut without = with.clone();
    let bias = without.remove("final_logits_bias").data;
    let bias = bias.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    let sums = fingerprint(&without).into_iter().zip(bias.cycle()).map(|(x, b)| x + b);
    assert!(!differ(&sums.collect::<Vec<f32>>(), &fingerprint(&with)));
}

#[test]
fn shared_words_are_found_under_any_of_their_names() {
    for kind in ["bart", "mbart", "marian", "m2m_100"] {
        let tiny = seq2seq(kind);
        let expected = fingerprint(&tiny);
        let names = [
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
            "lm_head.weight",
        ];
        for name in names {
            let rename = |old: &str| match old {
                "model.shared.weight" => name.to_owned(),
                other => other.to_owned(),
            };
            assert!(!differ(&expected, &fingerprint(&tiny.clone().renamed(rename))), "{kind}");
        }
        // Saved several times, and without the prefix, as older versions did.
        let mut copies = tiny.clone();
        for name in names {
            let mut copy = copies.tensor("model.shared.weight").clone();
            copy.name = name.to_owned();
            copies.tensors.push(copy);
        }
        let bare = copies.renamed(|name| name.strip_prefix("model.").unwrap_or(name).to_owned());
        assert!(!differ(&expected, &fingerprint(&bare)), "{kind}");
    }
}

#[test]
fn untied_tables_are_read_each_by_itself() {
    let random = &mut Random(21);
    let mut bart = seq2seq("bart").set("tie_word_embeddings", json!(false));
    bart.floats("lm_head.weight", &[V, D], random);
    let from_shared = fingerprint(&bart);
    assert!(differ(&from_shared, &fingerprint(&seq2seq("bart"))));
    for side in ["encoder", "decoder"] {
        let mut own = bart.clone();
        own.floats(&format!("model.{side}.embed_tokens.weight"), &[V, D], random);
        assert!(differ(&from_shared, &fingerprint(&own)), "{side}");
    }

    // Two vocabularies; the read-out is tied to the target's words.
    let mut marian = seq2seq("marian")
        .set("share_encoder_decoder_embeddings", json!(false))
        .set("decoder_vocab_size", json!(TARGET_V));
    marian.remove("model.shared.weight");
    marian.floats("model.encoder.embed_tokens.weight", &[V, D], random);
    marian.floats("model.decoder.embed_tokens.weight", &[TARGET_V, D], random);
    marian.remove("final_logits_bias");
    marian.floats("final_logits_bias", &[1, TARGET_V], random);
    let tied = fingerprint(&marian);
    assert_eq!(tied.len(), 9 * TARGET_V);
    let mut untied = marian.set("tie_word_embeddings", json!(false));
    untied.floats("lm_head.weight", &[TARGET_V, D], random);
    assert!(differ(&tied, &fingerprint(&untied)));
}

#[test]
fn what_old_files_have_besides_is_passed_over() {
    let random = &mut Random(22);
    let mut marian = seq2seq("marian");
    let expected = fingerprint(&marian);
    marian.floats("model.encoder.embed_positions.weight", &[LENGTH, D], random);
    marian.floats("model.decoder.embed_positions.weight", &[LENGTH, D], random);
    assert!(!differ(&expected, &fingerprint(&marian)));
    let mut m2m = seq2seq("m2m_100");
    m2m.floats("model.encoder.version", &[1], random);
    m2m.floats("model.encoder.embed_positions.weights", &[LENGTH + 2, D], random);
    m2m.model().unwrap();
    let mut whisper = seq2seq("whisper");
    whisper.floats("proj_out.weight", &[V, D], random);
    whisper.model().unwrap();
}

#[test]
fn fields_that_change_the_result_are_refused_by_name() {
    let all = ["bart", "mbart", "marian", "m2m_100", "whisper"];
    let cases: Vec<(&[&str], &str, Value, &str)> = vec![
        (&all, "is_encoder_decoder", json!(false), "is_encoder_decoder: false is not supported"),
        (&all, "is_decoder", json!(true), "is_decoder: true is not supported"),
        (&all, "activation_function", json!("tanh"), "activation_function: tanh"),
        (&all, "encoder_layers", json!(0), "encoder_layers or decoder_layers: must not be 0"),
        (&all, "decoder_attention_heads", json!(5), "decoder_attention_heads: 5 heads do not"),
        (&all, "decoder_ffn_dim", json!(0), "decoder_ffn_dim: must not be 0"),
        (&all, "scale_embedding", json!(3), "scale_embedding: expected true or false, found 3"),
        (&["bart", "marian"], "normalize_before", json!(true), "normalize_before: true"),
        (&["mbart", "m2m_100"], "normalize_before", json!(false), "normalize_before: false"),
        (&["bart", "mbart"], "normalize_embedding", json!(false), "normalize_embedding: false"),
        (&["marian", "m2m_100"], "normalize_embedding", json!(true), "normalize_embedding: true"),
        (&["bart", "marian"], "add_final_layer_norm", json!(true), "add_final_layer_norm: true"),
        (&["marian"], "static_position_embeddings", json!(false), "static_position_embeddings"),
        (&["bart"], "max_position_embeddings", json!(0), "max_position_embeddings: 2 rows leave"),
        (
            &["marian"],
            "decoder_vocab_size",
            json!(9),
            "share_encoder_decoder_embeddings: the tables",
        ),
        (&["m2m_100"], "pad_token_id", json!(V), "pad_token_id: is not below vocab_size"),
        (&["whisper"], "num_mel_bins", json!(0), "num_mel_bins: must not be 0"),
        (&["whisper"], "max_source_positions", json!(0), "max_source_positions: must not be 0"),
        (&["opennmt-transformer"], "norm", json!("post"), "norm: post is not supported"),
        (&["opennmt-transformer"], "positions", json!("learned"), "positions: learned"),
        (&["opennmt-transformer"], "tied", json!(true), "tied: true is not supported"),
        (&["opennmt-transformer"], "lm_head_bias", json!(false), "lm_head_bias: false"),
        (&["opennmt-transformer"], "attention_heads", json!(7), "attention_heads: 7 heads"),
        (&["opennmt-transformer"], "tgt_vocab", json!(0), "tgt_vocab: must not be 0"),
    ];
    for (kinds, field, value, expected) in cases {
        for kind in kinds {
            let error = seq2seq(kind).set(field, value.clone()).config().unwrap_err().to_string();
            assert!(error.contains(expected), "{kind}: {error}, expected {expected}");
        }
    }
}

#[test]
fn tensors_that_do_not_fit_are_reported_together() {
    let mut tiny = seq2seq("whisper");
    tiny.tensor("model.encoder.conv1.weight").shape = vec![D, 3, 5];
    tiny.remove("model.decoder.layers.1.encoder_attn.v_proj.bias");
    let random = &mut Random(23);
    tiny.floats("model.encoder.layers.0.self_attn.k_proj.bias", &[D], random);
    let error = tiny.model().unwrap_err().to_string();
    for expected in [
        "encoder.conv1.weight has shape [24, 3, 5], expected [24, 5, 3]",
        "decoder.layers.1.encoder_attn.v_proj.bias is missing",
        "encoder.layers.0.self_attn.k_proj.bias is unexpected",
    ] {
        assert!(error.contains(expected), "{error}, expected {expected}");
    }
    let mut tiny = seq2seq("m2m_100");
    tiny.floats("final_logits_bias", &[1, V], random);
    assert!(tiny.model().unwrap_err().to_string().contains("final_logits_bias is unexpected"));
}
