//! From text to vectors: tokenizers, limits, poolings, and the files of sentence-transformers.

#[path = "support/tiny.rs"]
mod tiny;

use headrow::{
    Batch, Error, Head, Normalization, Pooling, SentenceEncoder, SentenceOptions, SessionOptions,
    Text, Tokenizer, TooLong,
};
use serde_json::{Value, json};
use std::path::Path;
use tiny::{D, Folder, POSITIONS, Tiny, tokenizer};

/// A folder in the layout of sentence-transformers.
fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    Tiny::new("bert").write(&folder.0);
    put(&folder.0, "tokenizer.json", &tokenizer());
    put(&folder.0, "modules.json", &modules(&["Transformer", "Pooling", "Normalize"]));
    put(
        &folder.0,
        "sentence_bert_config.json",
        &json!({"max_seq_length": 16, "do_lower_case": false}),
    );
    std::fs::create_dir(folder.0.join("1_Pooling")).unwrap();
    put(&folder.0, "1_Pooling/config.json", &pooling("mean_tokens"));
    folder
}

fn put(folder: &Path, name: &str, value: &Value) {
    std::fs::write(folder.join(name), value.to_string()).unwrap();
}

fn modules(kinds: &[&str]) -> Value {
    let module = |(index, kind): (usize, &&str)| {
        let path = if index == 0 { String::new() } else { format!("{index}_{kind}") };
        json!({"idx": index, "name": index.to_string(), "path": path,
               "type": format!("sentence_transformers.models.{kind}")})
    };
    kinds.iter().enumerate().map(module).collect()
}

fn pooling(mode: &str) -> Value {
    let modes = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"];
    let mut config = json!({"word_embedding_dimension": D});
    for name in modes {
        config[format!("pooling_mode_{name}")] = json!(name == mode);
    }
    config
}

fn load_error(folder: &Folder) -> String {
    let error = SentenceEncoder::from_dir(&folder.0).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn truncation_and_padding_of_the_file_are_ignored() {
    let tokenizer = Tokenizer::from_bytes(tokenizer().to_string().as_bytes()).unwrap();
    let encoding = tokenizer.encode("A man is eating a food.", None).unwrap();
    assert_eq!(encoding.ids, [2, 5, 6, 7, 8, 9, 5, 10, 11, 3]);
    assert_eq!(encoding.token_types, [0; 10]);
    assert_eq!(tokenizer.decode(&encoding.ids).unwrap(), "a man is eating a food.");
    assert_eq!(tokenizer.vocabulary(), tiny::V);
}

#[test]
fn a_cut_keeps_the_special_tokens_and_takes_from_the_longer_text() {
    let tokenizer = Tokenizer::from_bytes(tokenizer().to_string().as_bytes()).unwrap();
    let cut = tokenizer.encode("a man is eating food", Some(5)).unwrap();
    assert_eq!((cut.ids, cut.full_length), (vec![2, 5, 6, 7, 3], 8));
    let pair = ("a man is eating food", "bread .");
    let cut = tokenizer.encode(pair, Some(8)).unwrap();
    assert_eq!(cut.ids, [2, 5, 6, 7, 3, 12, 11, 3]);
    assert_eq!(cut.token_types, [0, 0, 0, 0, 0, 1, 1, 1]);
    assert_eq!(cut.full_length, 11);
    let exact = tokenizer.encode(pair, Some(11)).unwrap();
    assert_eq!(exact.ids.len(), 11);
    assert_eq!(tokenizer.encode("a man", Some(2)).unwrap().ids, [2, 3]);
    for limit in [0, 1] {
        let error = tokenizer.encode("a man", Some(limit)).unwrap_err().to_string();
        assert!(error.contains("no room for 2 special ones"), "{error}");
    }
}

#[test]
fn an_empty_text_is_its_special_tokens() {
    let folder = folder("empty");
    let encoder = SentenceEncoder::from_dir(&folder.0).unwrap();
    for text in ["", " ", "\t\u{1f}\u{3000}"] {
        assert_eq!(encoder.tokenize(text).unwrap().ids, [2, 3]);
    }
    assert_eq!(encoder.tokenize(("", "")).unwrap().ids, [2, 3, 3]);
    let vectors = encoder.embed(["", "a man", ""]).unwrap();
    assert_eq!(vectors[0], vectors[2]);
    assert!(vectors.concat().iter().all(|x| x.is_finite()));
}

#[test]
fn vectors_are_the_pooled_states_of_the_tokens() {
    let folder = folder("pooled");
    let encoder = SentenceEncoder::from_dir(&folder.0).unwrap();
    assert_eq!(encoder.head(), Head::Pooled(Pooling::Mean, Normalization::L2));
    assert_eq!((encoder.dimension(), encoder.max_length()), (D, 16));
    let texts = [Text::Single("a man is eating"), Text::Pair("a man", "bread"), Text::Single("x")];
    let vectors = encoder.embed(texts).unwrap();
    let mut session = encoder.session(&SessionOptions::default()).unwrap();
    for (text, vector) in texts.into_iter().zip(&vectors) {
        let encoding = encoder.tokenize(text).unwrap();
        let batch = Batch::one(&encoding.ids).with_token_types(&encoding.token_types);
        let mut hidden = vec![0.0; encoding.ids.len() * D];
        session.encode(&batch, &mut hidden).unwrap();
        let mean = |j: usize| hidden.iter().skip(j).step_by(D).map(|&x| f64::from(x)).sum::<f64>();
        let sums: Vec<f64> = (0..D).map(mean).collect();
        let norm = sums.iter().map(|x| x * x).sum::<f64>().sqrt();
        for (x, sum) in vector.iter().zip(sums) {
            assert!((f64::from(*x) - sum / norm).abs() < 1e-6, "{text:?}");
        }
    }
}

#[test]
fn every_pooling_is_what_its_name_says() {
    let folder = folder("poolings");
    let texts = ["a man is eating food"];
    let raw = |mode: &str| {
        put(&folder.0, "modules.json", &modules(&["Transformer", "Pooling"]));
        put(&folder.0, "1_Pooling/config.json", &pooling(mode));
        SentenceEncoder::from_dir(&folder.0).unwrap()
    };
    let encoder = raw("cls_token");
    let ids = encoder.tokenize(texts[0]).unwrap().ids;
    let mut hidden = vec![0.0; ids.len() * D];
    let mut session = encoder.session(&SessionOptions::default()).unwrap();
    session.encode(&Batch::one(&ids), &mut hidden).unwrap();
    assert_eq!(encoder.embed(texts).unwrap()[0], hidden[..D]);
    let max: Vec<f32> = (0..D)
        .map(|j| hidden.iter().skip(j).step_by(D).copied().fold(f32::MIN, f32::max))
        .collect();
    assert_eq!(raw("max_tokens").embed(texts).unwrap()[0], max);
    for (word, expected) in [("cls", &hidden[..D]), ("lasttoken", &hidden[hidden.len() - D..])] {
        put(&folder.0, "1_Pooling/config.json", &json!({"pooling_mode": word}));
        let encoder = SentenceEncoder::from_dir(&folder.0).unwrap();
        assert_eq!(encoder.embed(texts).unwrap()[0], expected);
    }
}

#[test]
fn grouping_changes_no_bit_and_keeps_the_order() {
    let folder = folder("groups");
    let encoder = SentenceEncoder::from_dir(&folder.0).unwrap();
    let texts: Vec<String> = (0..100).map(|i| "a man is eating food . ".repeat(i % 7)).collect();
    let expected = encoder.embed(&texts).unwrap().concat();
    for (tokens, sequences) in [(16, 1), (16, 16), (40, 3), (1000, 1000)] {
        let options =
            SessionOptions::default().with_max_tokens(tokens).with_max_sequences(sequences);
        let mut session = encoder.session(&options).unwrap();
        let mut out = vec![0.0; texts.len() * D];
        encoder.embed_into(&mut session, &texts, &mut out).unwrap();
        assert_eq!(out, expected, "{tokens} tokens, {sequences} sequences");
        let error = encoder.embed_into(&mut session, &texts, &mut out[1..]).unwrap_err();
        assert!(matches!(error, Error::Buffer { .. }), "{error}");
    }
}

#[test]
fn long_texts_are_cut_or_refused() {
    let folder = folder("long");
    let text = "a man is eating food . ".repeat(5000);
    let encoder = SentenceEncoder::from_dir(&folder.0).unwrap();
    let encoding = encoder.tokenize(&text).unwrap();
    assert_eq!((encoding.ids.len(), encoding.full_length), (16, 35_002));
    assert_eq!((encoding.ids[0], encoding.ids[15]), (2, 3));
    encoder.embed([&text]).unwrap();
    let options = SentenceOptions::default().with_too_long(TooLong::Error);
    let strict = SentenceEncoder::from_dir_with(&folder.0, &options).unwrap();
    let error = strict.embed(["a man", &text]).unwrap_err().to_string();
    assert_eq!(error, "text 1 has 35002 tokens, the limit is 16");
    let exact = "a ".repeat(14);
    assert_eq!(strict.embed([&exact]).unwrap(), encoder.embed([&exact]).unwrap());
}

#[test]
fn the_limit_is_the_files_or_the_models() {
    let folder = folder("limit");
    for (config, expected) in [
        (json!({"max_seq_length": 12}), 12),
        (json!({"max_seq_length": 5000}), POSITIONS),
        (json!({"max_seq_length": null}), POSITIONS),
        (json!({}), POSITIONS),
    ] {
        put(&folder.0, "sentence_bert_config.json", &config);
        assert_eq!(SentenceEncoder::from_dir(&folder.0).unwrap().max_length(), expected);
    }
    std::fs::remove_file(folder.0.join("sentence_bert_config.json")).unwrap();
    assert_eq!(SentenceEncoder::from_dir(&folder.0).unwrap().max_length(), POSITIONS);
    Tiny::new("roberta").write(&folder.0);
    assert_eq!(SentenceEncoder::from_dir(&folder.0).unwrap().max_length(), POSITIONS - 2);
    put(&folder.0, "sentence_roberta_config.json", &json!({"max_seq_length": 9}));
    let encoder = SentenceEncoder::from_dir(&folder.0).unwrap();
    assert_eq!(encoder.max_length(), 9);
    // One token type only: a pair still embeds.
    encoder.embed([("a man", "bread")]).unwrap();
}

#[test]
fn texts_are_lowered_when_the_file_says_so() {
    let folder = folder("lower");
    let mut cased = tokenizer();
    cased["normalizer"]["lowercase"] = json!(false);
    put(&folder.0, "tokenizer.json", &cased);
    let ids = || SentenceEncoder::from_dir(&folder.0).unwrap().tokenize("A MAN").unwrap().ids;
    assert_eq!(ids(), [2, 1, 1, 3]);
    put(&folder.0, "sentence_bert_config.json", &json!({"do_lower_case": true}));
    assert_eq!(ids(), [2, 5, 6, 3]);
}

#[test]
fn a_bare_folder_pools_by_the_mean() {
    let folder = folder("bare");
    std::fs::remove_file(folder.0.join("modules.json")).unwrap();
    let encoder = SentenceEncoder::from_dir(&folder.0).unwrap();
    assert_eq!(encoder.head(), Head::Pooled(Pooling::Mean, Normalization::None));
}

#[test]
fn the_encoder_may_lie_in_a_folder_of_its_own() {
    let outer = folder("outer");
    let expected = SentenceEncoder::from_dir(&outer.0).unwrap().embed(["a man"]).unwrap();
    let inner = outer.0.join("0_Transformer");
    std::fs::create_dir(&inner).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json"]
    {
        std::fs::rename(outer.0.join(name), inner.join(name)).unwrap();
    }
    let mut list = modules(&["Transformer", "Pooling", "Normalize"]);
    list[0]["path"] = json!("0_Transformer");
    put(&outer.0, "modules.json", &list);
    assert_eq!(SentenceEncoder::from_dir(&outer.0).unwrap().embed(["a man"]).unwrap(), expected);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let folder = folder("refused");
    let refused_modules: [(&[&str], &str); 5] = [
        (&["Transformer", "Pooling", "Dense"], "models.Dense"),
        (&["Transformer", "Dense"], "models.Dense"),
        (&["Pooling"], "models.Pooling"),
        (&["Transformer", "Pooling", "Normalize", "Normalize"], "module 3"),
        (&[], "no modules"),
    ];
    for (kinds, named) in refused_modules {
        put(&folder.0, "modules.json", &modules(kinds));
        let error = load_error(&folder);
        assert!(error.contains("modules.json") && error.contains(named), "{error}");
    }
    for (list, named) in [
        (json!({}), "not a list"),
        (json!([{"idx": 0}]), "no type"),
        (json!([{"type": "Transformer", "path": "../elsewhere"}]), "outside"),
        (json!([{"type": "Transformer", "path": "/etc"}]), "outside"),
    ] {
        put(&folder.0, "modules.json", &list);
        assert!(load_error(&folder).contains(named));
    }
    put(&folder.0, "modules.json", &modules(&["Transformer", "Pooling"]));
    let mut both = pooling("mean_tokens");
    both["pooling_mode_cls_token"] = json!(true);
    let mut narrow = pooling("cls_token");
    narrow["word_embedding_dimension"] = json!(D + 1);
    for (config, named) in [
        (pooling("mean_sqrt_len_tokens"), "mean_sqrt_len_tokens"),
        (pooling("none of them"), "none"),
        (both, "cls_token and mean_tokens"),
        (narrow, "word_embedding_dimension"),
        (json!({"pooling_mode_mean_tokens": "yes"}), "pooling_mode_mean_tokens"),
        (json!([1]), "object"),
    ] {
        put(&folder.0, "1_Pooling/config.json", &config);
        let error = load_error(&folder);
        assert!(error.contains("1_Pooling") && error.contains(named), "{error}");
    }
    put(&folder.0, "1_Pooling/config.json", &pooling("cls_token"));
    for limits in [json!({"max_seq_length": 0}), json!({"max_seq_length": "long"}), json!(7)] {
        put(&folder.0, "sentence_bert_config.json", &limits);
        assert!(load_error(&folder).contains("sentence_bert_config.json"));
    }
}

#[test]
fn a_damaged_tokenizer_is_refused() {
    let folder = folder("damaged");
    let whole = tokenizer().to_string().into_bytes();
    for end in (0..whole.len()).step_by(97) {
        std::fs::write(folder.0.join("tokenizer.json"), &whole[..end]).unwrap();
        assert!(load_error(&folder).contains("tokenizer.json"));
    }
    let mut undefined = tokenizer();
    undefined["post_processor"]["pair"][2]["SpecialToken"]["id"] = json!("[END]");
    put(&folder.0, "tokenizer.json", &undefined);
    assert!(load_error(&folder).contains("the post-processor uses [END]"));
    let mut random = tiny::Random(5);
    for _ in 0..2000 {
        let mut damaged = whole.clone();
        damaged[random.below(whole.len())] ^= 1 << random.below(8);
        if let Ok(tokenizer) = Tokenizer::from_bytes(&damaged) {
            let _ = tokenizer.encode(("a man is eating", "food"), Some(6));
        }
    }
    std::fs::remove_file(folder.0.join("tokenizer.json")).unwrap();
    assert!(load_error(&folder).contains("tokenizer.json"));
}

#[test]
fn of_texts_that_are_refused_the_first_is_named_whatever_refuses_it() {
    let folder = folder("refused");
    // A tokenizer without a token for unknown words.
    let mut strict = tokenizer();
    strict["model"]["vocab"].as_object_mut().unwrap().remove("[UNK]");
    strict["model"]["vocab"]["zebra"] = json!(tiny::V);
    strict["added_tokens"].as_array_mut().unwrap().retain(|token| token["content"] != "[UNK]");
    put(&folder.0, "tokenizer.json", &strict);
    let encoder = SentenceEncoder::from_dir(&folder.0).unwrap();
    let mut session = encoder.session(&SessionOptions::default().with_max_tokens(5)).unwrap();
    let mut refused = |texts: &[&str]| {
        let mut out = vec![0.0; texts.len() * D];
        encoder.embed_into(&mut session, texts, &mut out).unwrap_err()
    };
    let error = refused(&["a", "a man", "λ", "zebra"]);
    assert!(
        matches!(&error, Error::Text { text: 2, source } if matches!(**source, Error::Tokenizer { .. }))
    );
    assert!(error.to_string().starts_with("text 2: "), "{error}");
    let long = "a man a man";
    assert_eq!(
        refused(&["a", long, "λ"]).to_string(),
        "text 1: the batch has 6 tokens, the session was made for 5"
    );
    // The third text is refused before the second is run, and yet the second is the first.
    for last in ["λ", long] {
        let error = refused(&["a", "zebra", last]);
        assert!(matches!(error, Error::TokenId { sequence: 1, .. }), "{error}");
    }
}

#[test]
fn ids_beyond_the_vocabulary_of_the_model_name_the_text() {
    let folder = folder("beyond");
    let mut larger = tokenizer();
    larger["model"]["vocab"]["zebra"] = json!(tiny::V);
    put(&folder.0, "tokenizer.json", &larger);
    let encoder = SentenceEncoder::from_dir(&folder.0).unwrap();
    let options = SessionOptions::default().with_max_sequences(1);
    let mut session = encoder.session(&options).unwrap();
    let mut out = [0.0; 3 * D];
    let error = encoder.embed_into(&mut session, ["a", "man", "zebra"], &mut out).unwrap_err();
    assert_eq!(error.to_string(), "sequence 2, token 1: id 50 is not below the vocabulary's 50");
}
