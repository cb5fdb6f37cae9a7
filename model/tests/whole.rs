//! Chunks whose tokens see one another.

#[path = "support/tiny.rs"]
mod tiny;

use headrow::{Chunk, Error, Output, Session, SessionOptions};
use serde_json::json;
use std::sync::Arc;
use tiny::{D, Tiny, sequences};

fn session(tiny: &Tiny) -> Session {
    let options = SessionOptions::default().with_max_tokens(8).with_max_sequences(3);
    Session::new(&Arc::new(tiny.model().unwrap()), &options).unwrap()
}

fn read(session: &mut Session, ids: &[u32], whole: bool) -> Vec<f32> {
    let sequence = session.add().unwrap();
    let chunk = Chunk::new(sequence, ids);
    let chunk = if whole { chunk.whole() } else { chunk };
    let mut out = vec![0.0; ids.len() * D];
    session.extend(&[chunk], Output::AllHidden, &mut out).unwrap();
    session.remove(sequence).unwrap();
    out
}

#[test]
fn every_token_of_a_whole_chunk_depends_on_every_other() {
    let mut session = session(&Tiny::new("gpt2"));
    let ids = sequences(3, &[5]);
    let whole = read(&mut session, &ids, true);
    assert_eq!(read(&mut session, &ids[..1], true), read(&mut session, &ids[..1], false));
    for changed in 0..ids.len() {
        let mut other = ids.clone();
        other[changed] ^= 1;
        let (seen, causal) = (read(&mut session, &other, true), read(&mut session, &other, false));
        let before = read(&mut session, &ids, false);
        for token in 0..ids.len() {
            let row = token * D..(token + 1) * D;
            assert_ne!(seen[row.clone()], whole[row.clone()], "{token} sees {changed}");
            let same = causal[row.clone()] == before[row];
            assert_eq!(same, token < changed, "{token} sees {changed} when it comes before");
        }
    }
}

#[test]
fn what_follows_a_whole_chunk_sees_what_is_remembered_of_it() {
    let mut session = session(&Tiny::new("gpt2"));
    let ids = sequences(4, &[6]);
    let mut outputs = Vec::new();
    for cuts in [vec![4, 6], vec![4, 5, 6]] {
        let sequence = session.add().unwrap();
        let (mut start, mut last) = (0, vec![0.0; D]);
        for end in cuts {
            let chunk = Chunk::new(sequence, &ids[start..end]);
            let chunk = if start == 0 { chunk.whole() } else { chunk };
            session.extend(&[chunk], Output::LastHidden, &mut last).unwrap();
            start = end;
        }
        outputs.push(last);
    }
    assert_eq!(outputs[0], outputs[1]);
}

#[test]
fn whole_chunks_are_refused_where_they_cannot_be_read() {
    let mut small = session(&Tiny::new("gpt2"));
    let ids = sequences(5, &[9]);
    let sequence = small.add().unwrap();
    let result = small.extend(&[Chunk::new(sequence, &ids).whole()], Output::None, &mut []);
    assert!(
        matches!(result, Err(Error::BatchTooLarge { actual: 9, maximum: 8, .. })),
        "{result:?}"
    );
    assert_eq!(small.length(sequence).unwrap(), 0);

    let mut windowed = session(&Tiny::new("mistral").set("sliding_window", json!(2)));
    let sequence = windowed.add().unwrap();
    let result = windowed.extend(&[Chunk::new(sequence, &ids[..3]).whole()], Output::None, &mut []);
    assert!(matches!(result, Err(Error::WholeChunk)), "{result:?}");
}
