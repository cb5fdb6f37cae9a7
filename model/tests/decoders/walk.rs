//! A random walk through the life of sequences, beside plain recomputation.

use crate::random_models::{LONGEST, V, begin};
use crate::{Random, decoders, fresh_from, options, session, to_bits, tokens};
use headrow::{Cancel, Chunk, Error, Output, Sequence, Session};
use std::time::Instant;

/// Tokens that all sequences of the walk share: few enough that they run out.
const ROOM: usize = 6 * 64;

/// A sequence, and what it should have read.
#[derive(Clone)]
struct Living {
    sequence: Sequence,
    source: Vec<u32>,
    tokens: Vec<u32>,
}

/// A session beside one that recomputes.
struct Walk {
    session: Session,
    /// Recomputes.
    plain: Session,
    live: Vec<Living>,
    stale: Vec<Sequence>,
    random: Random,
    seen: Seen,
}

/// How often something happened, so that a walk that meets nothing fails.
#[derive(Default)]
struct Seen {
    compared: usize,
    mixed: usize,
    full: usize,
    too_many: usize,
    cancelled: usize,
    copied: usize,
}

impl Walk {
    fn pick(&mut self) -> usize {
        self.random.below(self.live.len())
    }

    fn step(&mut self) {
        match self.random.below(20) {
            _ if self.live.is_empty() => self.add(),
            0..3 => self.add(),
            3..6 => self.fork(),
            6 | 7 => self.remove(),
            8 | 9 => self.truncate(),
            10 => self.use_stale(),
            11 | 12 => self.extend(true),
            _ => self.extend(false),
        }
        for Living { sequence, tokens, .. } in &self.live {
            assert_eq!(self.session.length(*sequence).unwrap(), tokens.len());
        }
        assert_eq!(self.session.free_sequences(), 8 - self.live.len());
    }

    fn keep(&mut self, added: Result<Sequence, Error>, source: Vec<u32>, tokens: Vec<u32>) {
        match added {
            Ok(sequence) => self.live.push(Living { sequence, source, tokens }),
            Err(Error::CacheFull { tokens, free }) => {
                assert!(tokens > free);
                self.seen.full += 1;
            }
            Err(Error::TooManySequences { maximum: 8 }) => {
                assert_eq!(self.live.len(), 8);
                self.seen.too_many += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn add(&mut self) {
        let length = 1 + self.random.below(4);
        let source = tokens(&mut self.random, length);
        let added = begin(&mut self.session, &source);
        self.keep(added, source, Vec::new());
    }

    fn fork(&mut self) {
        let at = self.pick();
        let Living { sequence, source, tokens } = self.live[at].clone();
        let fork = self.session.fork(sequence);
        self.seen.copied += usize::from(fork.is_ok() && !tokens.len().is_multiple_of(64));
        self.keep(fork, source, tokens);
    }

    fn remove(&mut self) {
        let at = self.pick();
        let sequence = self.live.swap_remove(at).sequence;
        self.session.remove(sequence).unwrap();
        self.stale.push(sequence);
    }

    fn truncate(&mut self) {
        let at = self.pick();
        let Living { sequence, tokens, .. } = &mut self.live[at];
        let length = self.random.below(tokens.len() + 2);
        match self.session.truncate(*sequence, length) {
            Ok(()) => tokens.truncate(length),
            Err(Error::Truncate { length, actual }) => {
                assert_eq!((length, actual), (tokens.len() + 1, tokens.len()));
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn use_stale(&mut self) {
        let Some(&stale) = self.stale.last() else { return };
        let Walk { session, .. } = self;
        assert!(matches!(session.length(stale), Err(Error::NoSequence)));
        assert!(matches!(session.truncate(stale, 0), Err(Error::NoSequence)));
        assert!(matches!(session.fork(stale), Err(Error::NoSequence)));
        assert!(matches!(session.remove(stale), Err(Error::NoSequence)));
        let chunks = [Chunk::new(stale, &[1]), Chunk::new(self.live[0].sequence, &[1])];
        let refused = session.extend(&chunks, Output::None, &mut []);
        assert!(matches!(refused, Err(Error::NoSequence)));
    }

    /// Extends some sequences, by a token or by many.
    fn extend(&mut self, cancelled: bool) {
        let Walk { session, plain, live, random, seen, .. } = self;
        let count = 1 + random.below(live.len().min(4));
        let mut news: Vec<(usize, Vec<u32>)> = Vec::new();
        for _ in 0..count {
            let at = random.below(live.len());
            let room = LONGEST - live[at].tokens.len();
            let length = [1, 1 + random.below(70)][random.below(2)].min(room);
            if length > 0 && news.iter().all(|(other, _)| *other != at) {
                news.push((at, tokens(random, length)));
            }
        }
        let chunks: Vec<_> =
            news.iter().map(|(at, new)| Chunk::new(live[*at].sequence, new)).collect();
        let mut logits = vec![f32::NAN; news.len() * V];
        session.set_cancel(cancelled.then(|| Cancel::with_deadline(Instant::now())));
        let result = session.extend(&chunks, Output::LastLogits, &mut logits);
        session.set_cancel(None);
        match result {
            Ok(()) => assert!(!cancelled || news.is_empty()),
            Err(Error::Cancelled) => {
                assert!(cancelled);
                seen.cancelled += 1;
                return;
            }
            Err(Error::CacheFull { tokens, free }) => {
                assert!(tokens > free);
                seen.full += 1;
                return;
            }
            Err(error) => panic!("{error}"),
        }
        seen.mixed += usize::from(news.len() > 1 && news.iter().any(|(_, new)| new.len() > 1));
        for ((at, new), row) in news.iter().zip(logits.chunks(V)) {
            let Living { source, tokens, .. } = &mut live[*at];
            tokens.extend(new);
            let expected = fresh_from(plain, source, tokens, Output::LastLogits);
            assert!(to_bits(row) == expected, "after {} tokens", tokens.len());
            seen.compared += 1;
        }
    }
}

#[test]
fn sequences_that_come_go_fork_and_shrink_have_the_bits_of_plain_recomputation() {
    for (seed, seeded) in decoders().enumerate() {
        let (model, mut random) = (seeded.model(), Random(seed as u64));
        let options = options().with_max_sequences(4).with_max_tokens(4 + random.below(60));
        let options = options.with_cache_tokens(ROOM);
        let mut walk = Walk {
            session: Session::new(&model, &options).unwrap(),
            plain: session(&model),
            live: Vec::new(),
            stale: Vec::new(),
            random,
            seen: Seen::default(),
        };
        for _ in 0..300 {
            walk.step();
        }
        let Walk { mut session, live, seen, .. } = walk;
        for Living { sequence, .. } in live {
            session.remove(sequence).unwrap();
        }
        assert_eq!(session.free_tokens(), ROOM, "{}: pages are lost", seeded.label);
        for (what, times) in [
            ("compared", seen.compared),
            ("mixed", seen.mixed),
            ("full", seen.full),
            ("too many", seen.too_many),
            ("cancelled", seen.cancelled),
            ("copied", seen.copied),
        ] {
            assert!(times > 0, "{}: never {what}", seeded.label);
        }
    }
}
