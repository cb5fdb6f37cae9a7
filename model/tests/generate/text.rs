//! Text in pieces, and strings that end it.

use crate::toy::{Random, Toy};
use headrow::generate::{Beam, Callbacks, Finish, GenerationOptions, Strategy, TextStream};
use std::ops::ControlFlow;

/// What is before the stop string that is complete first, by looking at every prefix of the whole.
fn cut<'a>(text: &'a [u8], stops: &[String]) -> (&'a [u8], bool) {
    for end in 1..=text.len() {
        let ending = stops.iter().filter(|stop| text[..end].ends_with(stop.as_bytes()));
        if let Some(longest) = ending.map(String::len).max() {
            return (&text[..end - longest], true);
        }
    }
    (text, false)
}

#[test]
fn any_pieces_give_the_text_before_the_first_stop_string() {
    let mut random = Random(8);
    let letters = ["a", "b", "ab", "ä", "→", "🦀", "\u{0}"];
    let word = |random: &mut Random, most: usize| -> String {
        (0..1 + random.below(most)).map(|_| random.pick(&letters)).collect()
    };
    let mut found = 0;
    for _ in 0..4000 {
        let stops: Vec<String> = (0..random.below(4)).map(|_| word(&mut random, 4)).collect();
        let mut bytes = word(&mut random, 12).into_bytes();
        if random.below(4) == 0 {
            // No UTF-8: it must come out as the standard library would say it.
            let at = random.below(bytes.len());
            bytes[at] = random.pick(&[0x80, 0xff, 0xe2, 0xf0]);
        }
        let (mut stream, mut text, mut shown) = (TextStream::new(&stops), String::new(), 0);
        let (expected, stopped) = cut(&bytes, &stops);
        let whole = String::from_utf8_lossy(expected).into_owned();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let piece = rest.split_off(..1 + random.below(rest.len().min(5))).unwrap();
            stream.push(piece, &mut text);
            assert!(whole.starts_with(&text), "{text:?} was shown of {whole:?}");
            assert!(text.len() >= shown);
            shown = text.len();
        }
        stream.finish(&mut text);
        assert_eq!((text, stream.stopped()), (whole, stopped), "{bytes:?} {stops:?}");
        found += usize::from(stopped);
    }
    assert!(found > 500, "{found}");
}

#[test]
fn text_is_shown_as_soon_as_it_is_certain() {
    let mut stream = TextStream::new(&["\n\n".to_owned(), "User:".to_owned()]);
    let mut shown = |bytes: &[u8]| {
        let mut text = String::new();
        stream.push(bytes, &mut text);
        text
    };
    assert_eq!(shown(b"Hello Us"), "Hello ");
    assert_eq!(shown(b"a\n"), "Usa");
    assert_eq!(shown("…".as_bytes().split_at(1).0), "\n");
    assert_eq!(shown("…".as_bytes().split_at(1).1), "…");
    assert_eq!(shown(b"Use"), "");
    assert_eq!(shown(b"r: more"), "");
    assert_eq!(shown(b"nothing more"), "");
}

#[test]
fn without_stop_strings_nothing_is_held_back_but_halves_of_characters() {
    let (mut stream, mut text) = (TextStream::default(), String::new());
    stream.push(&[b'x', 0xf0, 0x9f], &mut text);
    assert_eq!(text, "x");
    stream.push(&[0xa6, 0x80], &mut text);
    assert_eq!(text, "x🦀");
    stream.push(&[0xe2, 0x86], &mut text);
    stream.finish(&mut text);
    assert_eq!(text, "x🦀\u{fffd}");
    let (mut empty, mut text) = (TextStream::new(&[String::new()]), String::new());
    empty.push(b"y", &mut text);
    assert_eq!((text.as_str(), empty.stopped()), ("y", false), "an empty string is never found");
}

/// What the toy's tokens say; the first is the stop id, and the crab comes in halves.
const PIECES: [&[u8]; 8] = [b"", b"a", b"b", b"ab", b" ", b"\xf0\x9f", b"\xa6\x80", b"ba"];

fn detokenizer() -> impl FnMut(&[u32], u32, &mut Vec<u8>) {
    |_: &[u32], token: u32, text: &mut Vec<u8>| text.extend_from_slice(PIECES[token as usize])
}

fn options(strategy: Strategy, stops: &[&str]) -> GenerationOptions {
    let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
    GenerationOptions::default()
        .with_strategy(strategy)
        .with_stop_ids([0])
        .with_stop_strings(stops)
        .with_max_new_tokens(20usize)
}

#[test]
fn a_stop_string_ends_a_sequence_and_is_cut_from_its_text() {
    let stops = ["aba", " b", "🦀a"];
    let mut ends = [0; 3];
    for seed in 0..120 {
        let mut toy = Toy::new(8, seed, &[]);
        let mut shown = String::new();
        let mut hooks =
            Callbacks::new().with_detokenizer(detokenizer()).with_progress(|progress| {
                shown += progress.text;
                ControlFlow::Continue(())
            });
        let found = toy.generate(&[4], &options(Strategy::Greedy, &stops), &mut hooks).unwrap();
        drop(hooks);
        let best = found.best();
        let bytes: Vec<u8> =
            best.tokens.iter().flat_map(|&token| PIECES[token as usize]).copied().collect();
        let (expected, stopped) = cut(&bytes, &stops.map(str::to_owned));
        let text = String::from_utf8_lossy(expected);
        assert_eq!(best.text.as_deref(), Some(&*text));
        assert_eq!(shown, text);
        assert_eq!(stopped, best.finish == Finish::StopText, "{best:?}");
        match best.finish {
            Finish::StopText => ends[0] += 1,
            Finish::StopToken => ends[1] += 1,
            Finish::Length => ends[2] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(ends.iter().all(|&count| count > 5), "{ends:?}");
}

#[test]
fn a_beams_hypotheses_end_with_stop_strings_too() {
    let stops = ["aba", " b", "🦀a"];
    let mut stopped = 0;
    for seed in 0..60 {
        let mut toy = Toy::new(8, seed, &[]);
        let beam = Beam::new(4).with_n_best(4);
        let mut hooks = Callbacks::new().with_detokenizer(detokenizer());
        let found = toy.generate(&[4], &options(beam.into(), &stops), &mut hooks).unwrap();
        for hypothesis in &found.hypotheses {
            let pieces = hypothesis.tokens.iter().map(|&token| PIECES[token as usize]);
            let bytes: Vec<u8> = pieces.flatten().copied().collect();
            let (expected, found) = cut(&bytes, &stops.map(str::to_owned));
            assert_eq!(hypothesis.text.as_deref(), Some(&*String::from_utf8_lossy(expected)));
            assert_eq!(found, hypothesis.finish == Finish::StopText, "{hypothesis:?}");
            stopped += usize::from(found);
            // It was found at once: without the last token it is not there.
            let before =
                &bytes[..bytes.len() - PIECES[*hypothesis.tokens.last().unwrap() as usize].len()];
            assert!(!cut(before, &stops.map(str::to_owned)).1);
        }
    }
    assert!(stopped > 60, "{stopped}");
}
