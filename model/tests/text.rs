//! Models with their tokenizers: special tokens in texts, and what a session remembers after a call that came to nothing.

#[path = "support/tiny.rs"]
mod tiny;
#[path = "support/tiny_seq2seq.rs"]
mod tiny_seq2seq;

use headrow::generate::{Callbacks, GenerationOptions};
use headrow::{AttentionKind, Error, Score, Session, SessionOptions, TextModel, Tokenizer};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tiny::{POSITIONS, Tiny};

const SPECIAL: [&str; 7] = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "en_XX", "de_DE"];
const END: u32 = 2;
const UNKNOWN: u32 = 3;
const MASK: u32 = 4;
const ENGLISH: u32 = 5;
const GERMAN: u32 = 6;
const A: u32 = 7;
const B: u32 = 8;

/// Letters, with these tokens behind a text. Others than letters are `unknown`, and refused where that is no token.
fn tokenizer(behind: &[&str], unknown: &str) -> Tokenizer {
    let special = SPECIAL.iter().zip(0..).map(|(token, id)| {
        json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    });
    let special: Vec<Value> = special.collect();
    let tokens = SPECIAL.map(str::to_owned).into_iter().chain(('a'..='z').map(String::from));
    let vocabulary: serde_json::Map<String, Value> =
        tokens.zip(0..).map(|(token, id)| (token, json!(id))).collect();
    let added = |token: &&str| json!({"SpecialToken": {"id": token, "type_id": 0}});
    let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    let single: Vec<Value> = [text("A")].into_iter().chain(behind.iter().map(added)).collect();
    let known: serde_json::Map<String, Value> = behind
        .iter()
        .map(|&token| {
            let known = json!({"id": token, "ids": [vocabulary[token]], "tokens": [token]});
            (token.to_owned(), known)
        })
        .collect();
    let json = json!({
        "version": "1.0", "normalizer": null, "decoder": {"type": "Fuse"}, "added_tokens": special,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false},
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": [text("A"), text("B")],
                           "special_tokens": known},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown},
    });
    Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap()
}

fn translator(behind: &[&str], unknown: &str) -> TextModel {
    let model = tiny_seq2seq::seq2seq("mbart").model().unwrap();
    TextModel::new(Arc::new(model), tokenizer(behind, unknown))
}

fn decoder(unknown: &str) -> TextModel {
    TextModel::new(Arc::new(Tiny::new("gpt2").model().unwrap()), tokenizer(&[], unknown))
}

fn session(model: &TextModel) -> Session {
    model.session(&SessionOptions::default().with_max_sequences(2).with_cache_tokens(512)).unwrap()
}

#[test]
fn a_language_takes_the_place_of_the_tokenizers_not_of_the_texts_tokens() {
    let ids = |behind: &[&str], text: &str| {
        let model = translator(behind, "<unk>").with_languages(Some("de_DE"), None).unwrap();
        model.tokenize(text).unwrap().ids
    };
    let behind = ["</s>", "en_XX"];
    assert_eq!(ids(&behind, "ab"), [A, B, END, GERMAN]);
    assert_eq!(ids(&behind, "Üa<mask>b"), [UNKNOWN, A, MASK, B, END, GERMAN]);
    assert_eq!(ids(&behind, "en_XXa"), [ENGLISH, A, END, GERMAN], "written in the text");
    assert_eq!(ids(&["</s>"], "Üa"), [GERMAN, UNKNOWN, A, END], "none to replace");
}

#[test]
fn special_tokens_of_a_target_are_scored() {
    let model =
        translator(&["</s>", "de_DE"], "<unk>").with_languages(None, Some("en_XX")).unwrap();
    let mut session = session(&model);
    let mut score = |target: &str| model.score(&mut session, ("ab", target)).unwrap();
    let scored = score("aÜ<mask>b");
    let tokens: Vec<_> =
        scored.tokens.iter().map(|token| (token.id, token.range.clone())).collect();
    let text = [(A, 0..1), (UNKNOWN, 1..3), (MASK, 3..9), (B, 9..10)];
    let expected = [&[(ENGLISH, 0..0)], &text[..], &[(END, 0..0)]].concat();
    assert_eq!(tokens, expected);
    assert_eq!(scored.counted, 6);
    assert_ne!(scored.log_probability, score("ab").log_probability);
    let perplexity = Score::perplexity_of(scored.log_probability, scored.counted);
    assert_eq!(perplexity.to_bits(), scored.perplexity().to_bits());
    assert!(Score::perplexity_of(0.0, 0).is_nan());
}

#[test]
fn refused_texts_leave_nothing_in_a_session() {
    let long = "a".repeat(POSITIONS + 10);
    let model = decoder("none");
    let mut alone = session(&model);
    let free = alone.free_sequences();
    for text in ["aÜ", "", &long].repeat(4) {
        assert!(model.score(&mut alone, text).is_err());
        assert!(model.attention(&mut alone, text, AttentionKind::Decoder, &[], &[]).is_err());
        let options = GenerationOptions::default();
        assert!(model.generate(&mut alone, text, &options, Callbacks::new()).is_err());
        assert_eq!(alone.free_sequences(), free, "{text}");
    }
    let too_long = model.attention(&mut alone, &long, AttentionKind::Decoder, &[], &[]);
    assert!(matches!(too_long, Err(Error::SequenceTooLong { .. })), "{too_long:?}");
    assert!(model.score(&mut alone, "ab").is_ok());

    let model = translator(&["</s>"], "none");
    let mut beside = session(&model);
    let free = beside.free_sequences();
    for pair in [("aÜ", "a"), ("a", "Ü"), (&*long, "a"), ("a", &*long)].repeat(4) {
        assert!(model.score(&mut beside, pair).is_err());
        for kind in [AttentionKind::Decoder, AttentionKind::Cross] {
            assert!(model.attention(&mut beside, pair, kind, &[], &[]).is_err());
        }
        assert_eq!(beside.free_sequences(), free, "{pair:?}");
    }
    assert!(model.score(&mut beside, ("ab", "a")).is_ok());
    assert_eq!(beside.free_sequences(), free);
}

/// Whichever comes first, the limit of a model or its second tokenizer.
#[test]
fn a_limit_of_a_models_texts_holds_for_both_tokenizers() {
    let other = || tokenizer(&["</s>"], "<unk>");
    let model = || translator(&["</s>"], "<unk>");
    for model in [
        model().with_max_text_bytes(2).with_target_tokenizer(other()),
        model().with_target_tokenizer(other()).with_max_text_bytes(2),
    ] {
        let mut session = session(&model);
        assert!(model.score(&mut session, ("ab", "ab")).is_ok());
        for pair in [("abc", "ab"), ("ab", "abc")] {
            let refused = model.score(&mut session, pair);
            assert!(
                matches!(refused, Err(Error::TextTooLarge { bytes: 3, maximum: 2 })),
                "{pair:?}"
            );
        }
    }
    let own = model().with_target_tokenizer(other().with_max_text_bytes(1));
    let limits = [own.tokenizer(), own.target_tokenizer()].map(Tokenizer::max_text_bytes);
    assert_eq!(limits, [Tokenizer::MAX_TEXT_BYTES, 1]);
}

#[test]
fn a_callback_that_panics_leaves_nothing_in_a_session() {
    let model = decoder("<unk>");
    let mut session = session(&model);
    let free = session.free_sequences();
    let options = GenerationOptions::default().with_max_new_tokens(6usize);
    let calm = model.generate(&mut session, "ab", &options, Callbacks::new()).unwrap();
    for steps in [0, 0, 0, 0, 0, 2] {
        let mut left = steps;
        let watch = Callbacks::new().with_progress(|_| {
            assert!(left > 0, "a panic of the caller's");
            left -= 1;
            ControlFlow::Continue(())
        });
        let call = || model.generate(&mut session, "ab", &options, watch);
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
        assert_eq!(session.free_sequences(), free);
    }
    let again = model.generate(&mut session, "ab", &options, Callbacks::new()).unwrap();
    assert_eq!(again.best().tokens, calm.best().tokens);
}
