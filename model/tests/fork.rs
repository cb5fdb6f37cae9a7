//! A child process after `fork` has a copy of every session and of its pool, but none of the threads.
#![cfg(unix)]

#[path = "../../kernels/tests/support/child.rs"]
mod child;
#[path = "support/general.rs"]
mod general;
#[path = "support/random_models.rs"]
mod random_models;
#[path = "support/tiny.rs"]
mod tiny;

use child::holds_in_a_child;
use headrow::generate::GenerationOptions;
use headrow::{Chunk, Output, Result, Sequence, Session, SessionOptions};
use random_models::{LONGEST, Seeded, V, begin};
use std::time::{Duration, Instant};

const PAST: [u32; 40] = [7; 40];
const NEXT: [u32; 60] = [5; 60];

/// A decoder and a translator whose passes are worth helpers.
fn models() -> [Seeded; 2] {
    let decoder = serde_json::json!({
        "model_type": "gpt2", "vocab_size": V, "n_embd": 96, "n_layer": 2, "n_head": 4,
        "n_inner": 384, "n_positions": LONGEST,
    });
    [Seeded::from_json(&decoder, 1), Seeded::seq2seq(1)]
}

fn session(seeded: &Seeded, threads: usize) -> Session {
    let options = SessionOptions::default().with_max_sequences(4).with_max_length(LONGEST);
    Session::new(&seeded.model(), &options.with_threads(threads)).unwrap()
}

/// What follows each of the next tokens of a sequence, which then has its past alone again.
fn read(session: &mut Session, sequence: Sequence) -> Result<Vec<u32>> {
    let mut logits = vec![f32::NAN; NEXT.len() * V];
    session.extend(&[Chunk::new(sequence, &NEXT)], Output::AllLogits, &mut logits)?;
    session.truncate(sequence, PAST.len())?;
    Ok(logits.into_iter().map(f32::to_bits).collect())
}

/// What is generated behind a prompt; nothing by a model that reads sources.
fn generated(session: &mut Session) -> Result<Vec<u32>> {
    if session.model().config().encoder.is_some() {
        return Ok(Vec::new());
    }
    let options = GenerationOptions::default().with_max_new_tokens(9usize);
    let answers = session.generate(&[&[3, 4]], &options, &mut ())?;
    Ok(answers.into_iter().flat_map(|answer| answer.hypotheses).flat_map(|h| h.tokens).collect())
}

#[test]
fn a_session_of_the_parents_computes_in_the_child() {
    for seeded in models() {
        for threads in [1, 3] {
            let mut parents = session(&seeded, threads);
            let sequence = begin(&mut parents, &[3; 9]).unwrap();
            parents.extend(&[Chunk::new(sequence, &PAST)], Output::None, &mut []).unwrap();
            let expected = read(&mut parents, sequence).unwrap();
            let answer = generated(&mut parents).unwrap();
            // The child drops its own copy.
            let mut session = Some(parents);
            for round in 0..20 {
                // Helpers are at work, spinning, or falling asleep.
                assert_eq!(read(session.as_mut().unwrap(), sequence).unwrap(), expected);
                let pause = Instant::now();
                while pause.elapsed() < Duration::from_micros(round * 15) {
                    std::hint::spin_loop();
                }
                let held = holds_in_a_child(|| {
                    let own = session.as_mut().unwrap();
                    let same = (0..3).all(|_| read(own, sequence).is_ok_and(|x| x == expected))
                        && generated(own).is_ok_and(|x| x == answer)
                        && own.remove(sequence).is_ok();
                    drop(session.take());
                    same
                });
                assert!(held, "{}, {threads} threads, round {round}", seeded.label);
            }
        }
    }
}

#[test]
fn a_child_has_models_and_sessions_of_its_own() {
    for seeded in models() {
        let compute = |threads| {
            let mut session = session(&seeded, threads);
            let sequence = begin(&mut session, &[3; 9])?;
            session.extend(&[Chunk::new(sequence, &PAST)], Output::None, &mut [])?;
            Ok::<_, headrow::Error>((read(&mut session, sequence)?, generated(&mut session)?))
        };
        // With helpers in the parent too, so that there is a pool which the child must not use.
        let expected = compute(3).unwrap();
        let held = holds_in_a_child(|| {
            [1, 3].map(compute).into_iter().all(|x| x.is_ok_and(|x| x == expected))
        });
        assert!(held, "{}", seeded.label);
    }
}
