use crate::tiny::{DECODERS, Tiny, V, file};
use crate::tiny_seq2seq::seq2seq;
use arbitrary::{Result, Unstructured};
use headrow::{Batch, Cancel, Chunk, Error, Model, Output, Sequence, Session, SessionOptions};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Most tokens of a sequence, and of a source.
const LONGEST: usize = 30;

/// Families that read a source of words of the same vocabulary.
const TRANSLATORS: [&str; 4] = ["bart", "mbart", "marian", "m2m_100"];

/// A sequence, and what it should have read.
#[derive(Clone)]
struct Living {
    sequence: Sequence,
    source: Vec<u32>,
    tokens: Vec<u32>,
}

/// A tiny model of each family of decoders, and of those with an encoder beside it.
fn models() -> &'static [Arc<Model>] {
    static MODELS: OnceLock<Vec<Arc<Model>>> = OnceLock::new();
    MODELS.get_or_init(|| {
        let model = |tiny: Tiny| {
            let config = tiny.config().expect("a sound config");
            Arc::new(Model::from_bytes(&config, &file(&tiny.tensors)).expect("a sound file"))
        };
        DECODERS.map(Tiny::new).into_iter().chain(TRANSLATORS.map(seq2seq)).map(model).collect()
    })
}

/// The life of sequences in a session of one to three threads: what each predicts has the bits of reading it
/// anew, whatever was added, forked, cut, removed, refused or given up beside it.
pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    let model = u.choose(models())?;
    let source_pages = u.int_in_range(1..=6)?;
    let options = SessionOptions::default()
        .with_source_tokens(64 * source_pages)
        .with_max_sequences(u.int_in_range(1..=4)?)
        .with_max_tokens(u.int_in_range(1..=40)?)
        .with_max_length(LONGEST)
        .with_cache_tokens(64 * u.int_in_range(1..=6)?)
        .with_threads(u.int_in_range(1..=3)?);
    let mut session = Session::new(model, &options).expect("a small session");
    let room = (session.free_sequences(), session.free_tokens());
    let mut live: Vec<Living> = Vec::new();
    let mut stale: Vec<Sequence> = Vec::new();
    for _ in 0..u.int_in_range(1..=12)? {
        step(u, model, &mut session, &mut live, &mut stale)?;
        for Living { sequence, tokens, .. } in &live {
            assert_eq!(session.length(*sequence).expect("it is alive"), tokens.len());
        }
        assert_eq!(session.free_sequences() + live.len(), room.0);
    }
    for Living { sequence, .. } in live {
        session.remove(sequence).expect("it is alive");
    }
    if reads_sources(model) {
        // Each takes a page, and all pages are free again.
        let all = (0..source_pages.min(room.0)).map(|_| begin(&mut session, &[3]));
        for sequence in all.collect::<Vec<_>>() {
            session.remove(sequence.expect("room for a source")).expect("it is alive");
        }
    }
    assert_eq!((session.free_sequences(), session.free_tokens()), room, "something is lost");
    Ok(())
}

fn reads_sources(model: &Model) -> bool {
    model.config().encoder.is_some()
}

/// A new sequence, which attends to the source in a model that reads one.
fn begin(session: &mut Session, source: &[u32]) -> headrow::Result<Sequence> {
    match reads_sources(session.model()) {
        true => Ok(session.add_sources(&Batch::one(source))?[0]),
        false => session.add(),
    }
}

/// Tokens, here and there one that the vocabulary lacks.
fn ids(u: &mut Unstructured<'_>, count: usize) -> Result<Vec<u32>> {
    let beyond = u32::from(u.ratio(1, 50)?);
    (0..count).map(|_| u.int_in_range(0..=V as u32 - 1 + beyond)).collect()
}

fn step(
    u: &mut Unstructured<'_>,
    model: &Arc<Model>,
    session: &mut Session,
    live: &mut Vec<Living>,
    stale: &mut Vec<Sequence>,
) -> Result<()> {
    let what = u.int_in_range(0..=9)?;
    if what < 2 || live.is_empty() {
        return add(u, model, session, live);
    }
    let at = u.choose_index(live.len())?;
    match what {
        2 => {
            let parent = live[at].clone();
            match session.fork(parent.sequence) {
                Ok(sequence) => live.push(Living { sequence, ..parent }),
                Err(Error::TooManySequences { maximum }) => assert_eq!(live.len(), maximum),
                Err(error) => panic!("{error}"),
            }
        }
        3 => {
            let gone = live.swap_remove(at).sequence;
            session.remove(gone).expect("it is alive");
            stale.push(gone);
        }
        4 => {
            let Living { sequence, tokens, .. } = &mut live[at];
            let length = u.int_in_range(0..=tokens.len() + 1)?;
            match session.truncate(*sequence, length) {
                Ok(()) => tokens.truncate(length),
                Err(error) => assert!(length > tokens.len(), "{error}"),
            }
        }
        5 => {
            for &gone in stale.iter() {
                assert!(matches!(session.remove(gone), Err(Error::NoSequence)));
                assert!(matches!(session.fork(gone), Err(Error::NoSequence)));
            }
        }
        _ => extend(u, model, session, live)?,
    }
    Ok(())
}

/// Adds a sequence, perhaps with a source that cannot be read or is given up.
fn add(
    u: &mut Unstructured<'_>,
    model: &Arc<Model>,
    session: &mut Session,
    live: &mut Vec<Living>,
) -> Result<()> {
    let mut source = Vec::new();
    let mut late = false;
    if reads_sources(model) {
        let count = u.int_in_range(0..=LONGEST)?;
        source = ids(u, count)?;
        late = u.ratio(1, 10)?;
    }
    session.set_cancel(late.then(|| Cancel::with_deadline(Instant::now())));
    let added = begin(session, &source);
    session.set_cancel(None);
    let wrong = reads_sources(model)
        && (source.is_empty()
            || source.len() > session.max_tokens()
            || source.iter().any(|&id| id as usize >= V));
    match added {
        Ok(sequence) => {
            assert!(!late && !wrong);
            live.push(Living { sequence, source, tokens: Vec::new() });
        }
        Err(Error::TooManySequences { maximum }) => assert_eq!(live.len(), maximum),
        Err(Error::CacheFull { tokens, free }) => {
            assert!(reads_sources(model) && tokens > free);
        }
        Err(Error::Cancelled) => assert!(late),
        Err(error) => assert!(wrong, "{error}"),
    }
    Ok(())
}

/// Extends some sequences, with ids that may be out of range and a deadline that may have passed.
fn extend(
    u: &mut Unstructured<'_>,
    model: &Arc<Model>,
    session: &mut Session,
    live: &mut [Living],
) -> Result<()> {
    let mut news: Vec<(usize, Vec<u32>)> = Vec::new();
    for _ in 0..u.int_in_range(1..=3)? {
        let at = u.choose_index(live.len())?;
        let count = if u.arbitrary()? { 1 } else { u.int_in_range(0..=LONGEST)? };
        news.push((at, ids(u, count)?));
    }
    let chunks: Vec<Chunk<'_>> =
        news.iter().map(|(at, ids)| Chunk::new(live[*at].sequence, ids)).collect();
    let late = u.ratio(1, 10)?;
    session.set_cancel(late.then(|| Cancel::with_deadline(Instant::now())));
    let mut logits = vec![f32::NAN; news.len() * V];
    let extended = session.extend(&chunks, Output::LastLogits, &mut logits);
    session.set_cancel(None);
    let twice = (1..news.len()).any(|i| news[..i].iter().any(|(at, _)| *at == news[i].0));
    let wrong = news.iter().any(|(at, ids)| {
        ids.is_empty()
            || live[*at].tokens.len() + ids.len() > LONGEST
            || ids.iter().any(|&id| id as usize >= V)
    });
    match extended {
        Ok(()) => {
            assert!(!late && !twice && !wrong);
            for ((at, ids), row) in news.iter().zip(logits.chunks(V)) {
                let Living { source, tokens, .. } = &mut live[*at];
                tokens.extend(ids);
                assert_eq!(bits(row), anew(model, source, tokens), "{source:?}, {tokens:?}");
            }
        }
        Err(Error::Cancelled) => assert!(late),
        Err(Error::CacheFull { tokens, free }) => assert!(tokens > free),
        Err(error) => assert!(twice || wrong || news.len() > session.max_sequences(), "{error}"),
    }
    Ok(())
}

/// What follows `tokens`, behind a source where there is one, when they are read at once in a session of their own.
fn anew(model: &Arc<Model>, source: &[u32], tokens: &[u32]) -> Vec<u32> {
    let options = SessionOptions::default()
        .with_max_sequences(1)
        .with_max_tokens(LONGEST)
        .with_max_length(LONGEST)
        .with_threads(1);
    let mut session = Session::new(model, &options).expect("a small session");
    let sequence = begin(&mut session, source).expect("room for one");
    let mut logits = vec![f32::NAN; V];
    let chunk = Chunk::new(sequence, tokens);
    session.extend(&[chunk], Output::LastLogits, &mut logits).expect("as before");
    bits(&logits)
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}
