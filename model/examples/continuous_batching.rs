//! Sequences that join and leave a running batch, by hand: one call reads a new prompt and continues the others.
//!
//! ```text
//! cargo run --release --example continuous_batching -- FOLDER
//! ```

mod tiny;

use headrow::{Chunk, Output, Result, Sequence, Session, SessionOptions};

fn main() -> Result<()> {
    let model = tiny::model(tiny::decoder)?;
    let mut session = model.session(&SessionOptions::default().with_max_sequences(4))?;
    let prompt = model.tokenize("the first request ")?.ids;
    let mut running = vec![Running::new(&mut session, prompt)?];
    step(&mut session, &mut running)?;

    // A second request joins while the first one runs: its prompt and the first one's token share a pass.
    let prompt = model.tokenize("another, which came later ")?.ids;
    running.push(Running::new(&mut session, prompt)?);
    (0..6).try_for_each(|_| step(&mut session, &mut running))?;

    // A copy shares the past of the first one, and goes on from an earlier place with another token.
    let first = &running[0];
    let length = session.length(first.sequence)?;
    let fork = session.fork(first.sequence)?;
    session.truncate(fork, length - 3)?;
    let mut tokens = first.tokens[..length - 3].to_vec();
    tokens.push(5);
    running.push(Running { sequence: fork, tokens, read: length - 3 });
    (0..6).try_for_each(|_| step(&mut session, &mut running))?;

    for Running { sequence, tokens, .. } in running {
        println!("{:?}", model.tokenizer().decode(&tokens)?);
        session.remove(sequence)?;
    }
    Ok(())
}

/// A request and what has become of it.
struct Running {
    sequence: Sequence,
    /// The prompt and what follows it.
    tokens: Vec<u32>,
    /// How many of them the session has read.
    read: usize,
}

impl Running {
    fn new(session: &mut Session, prompt: Vec<u32>) -> Result<Running> {
        Ok(Running { sequence: session.add()?, tokens: prompt, read: 0 })
    }
}

/// Reads what is new of every request in one pass, and appends the likeliest token to each.
fn step(session: &mut Session, running: &mut [Running]) -> Result<()> {
    let vocabulary = session.model().config().vocabulary();
    let mut logits = vec![0.0; running.len() * vocabulary];
    let chunks: Vec<Chunk<'_>> =
        running.iter().map(|one| Chunk::new(one.sequence, &one.tokens[one.read..])).collect();
    session.extend(&chunks, Output::LastLogits, &mut logits)?;
    for (one, logits) in running.iter_mut().zip(logits.chunks_exact(vocabulary)) {
        one.read = one.tokens.len();
        let best = (0..vocabulary).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
        one.tokens.push(best.expect("a vocabulary is never empty") as u32);
    }
    Ok(())
}
