//! The commands that pronounce words and measure models, as their users run them.

#[path = "support/command.rs"]
mod command;
#[path = "support/tiny.rs"]
mod tiny;

use command::{refusal, run, text};
use headrow::generate::{Beam, GenerationOptions};
use headrow::metrics::{Bleu, BleuOptions, ErrorRate};
use headrow::train::{Framing, Parameters, Precision, VocabularyOptions, vocabulary};
use headrow::{Config, Input, StackConfig, TextModel, TokenInput};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tiny::Folder;

const PHONEMES: &str = "AA B D EH IY K S T";
const WORDS: [&str; 7] = ["bad", "cat's", "dad", "kit", "stack", "t", "database"];

/// A seeded model of letters and phonemes.
fn pronouncer(name: &str) -> Folder {
    let letters = "a b c d e i k s t '";
    folder(name, [letters, PHONEMES].into_iter(), Framing::End, |config, stack| {
        config.encoder = Some(stack.clone());
        config.decoder = Some(stack);
    })
}

fn folder<'a>(
    name: &str,
    texts: impl Iterator<Item = &'a str>,
    framing: Framing,
    stacks: impl Fn(&mut Config, StackConfig),
) -> Folder {
    let folder = Folder::new(name);
    let tokens = vocabulary(texts, &VocabularyOptions::words().with_framing(framing)).unwrap();
    let size = headrow::Tokenizer::from_bytes(&tokens).unwrap().vocabulary();
    let mut config = Config::general(16);
    let input = Input::Tokens(TokenInput::paper(size, 16));
    stacks(&mut config, StackConfig::paper(input, 2, 16, 2, 32));
    config.special.begin = Some(1);
    config.special.decoder_start = Some(1);
    config.special.end = vec![2];
    let weights = Parameters::initialise(&config, 12).unwrap().to_safetensors(Precision::F32);
    write(&folder, "config.json", config.to_json().unwrap().as_bytes());
    write(&folder, "model.safetensors", &weights);
    write(&folder, "tokenizer.json", &tokens);
    folder
}

fn write(folder: &Folder, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.0.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn spelt(word: &str) -> String {
    word.chars().map(String::from).collect::<Vec<_>>().join(" ")
}

/// What the library makes of words: scores and phonemes.
fn library(folder: &Folder, beams: usize, n_best: usize) -> Vec<Vec<(f64, String)>> {
    let model = TextModel::from_dir(&folder.0).unwrap();
    let beam = Beam::new(beams).with_n_best(n_best);
    let options: GenerationOptions =
        model.options().clone().with_strategy(beam).with_max_new_tokens(64usize);
    let mut session = model.session(&model.session_options(8, &options)).unwrap();
    let answers = model.translate(&mut session, WORDS.map(spelt), &options).unwrap();
    let told = answers.iter().map(|answer| {
        let all = answer.hypotheses.iter().map(|one| (one.score, one.text.clone().unwrap()));
        all.collect()
    });
    told.collect()
}

#[test]
fn words_are_pronounced_in_any_case_one_a_line() {
    let folder = pronouncer("pronounce");
    let args = ["pronounce", "--model", path(&folder.0)];
    let expected = library(&folder, 4, 1);
    let lines: String = expected.iter().map(|best| best[0].1.clone() + "\n").collect();
    assert!(lines.lines().collect::<std::collections::BTreeSet<_>>().len() > 1, "{lines}");
    assert_eq!(text(&[&args[..], &WORDS].concat(), b"not read\n"), lines);
    let awkward = WORDS.map(|word| format!(" {} ", word.to_uppercase().replace('\'', "\u{2019}")));
    assert_eq!(text(&args, (awkward.join("\r\n") + "\n").as_bytes()), lines);
    let threads = [&args[..], &["--threads", "2", "--isa", "scalar"], &WORDS].concat();
    assert_eq!(text(&threads, b""), lines);
    let greedy = text(&[&args[..], &["--beam", "1"], &WORDS].concat(), b"");
    assert_eq!(greedy.lines().count(), WORDS.len());
}

#[test]
fn the_best_pronunciations_come_with_their_scores() {
    let folder = pronouncer("pronounce-nbest");
    let args = ["pronounce", "--model", path(&folder.0), "--nbest", "5"];
    let expected = library(&folder, 5, 5);
    let lines: String = WORDS
        .iter()
        .zip(&expected)
        .flat_map(|(word, all)| {
            all.iter().map(move |(score, told)| format!("{word}\t{score:.6}\t{told}\n"))
        })
        .collect();
    assert_eq!(text(&[&args[..], &WORDS].concat(), b""), lines);
    let input = WORDS.join("\n");
    let records = text(&[&args[..], &["--format", "json"]].concat(), input.as_bytes());
    assert_eq!(records.lines().count(), WORDS.len());
    for (index, (record, all)) in records.lines().zip(&expected).enumerate() {
        let record: Value = serde_json::from_str(record).unwrap();
        assert_eq!((&record["line"], &record["word"]), (&json!(index + 1), &json!(WORDS[index])));
        for (told, (score, phonemes)) in
            record["pronunciations"].as_array().unwrap().iter().zip(all)
        {
            assert_eq!(told["phonemes"], *phonemes);
            assert!((told["score"].as_f64().unwrap() - score).abs() < 1e-12);
        }
    }
    let line = refusal(&[&args[..], &["--beam", "2", "bad"]].concat(), b"");
    assert!(line.contains("--beam 2"), "{line}");
}

/// Standard output and error of a run with status 2.
fn troubled(args: &[&str], input: &[u8]) -> (String, String) {
    let output = run(args, input);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_word_with_an_unknown_letter_is_told_and_the_others_are_pronounced() {
    let folder = pronouncer("pronounce-bad");
    let args = ["pronounce", "--model", path(&folder.0)];
    let good = text(&[&args[..], &["bad", "dad"]].concat(), b"");
    let (bad, dad) = good.split_at(good.find('\n').unwrap() + 1);
    let line = refusal(&[&args[..], &["b\u{e9}bt"]].concat(), b"");
    assert_eq!(line, "text 1: b\u{e9}bt: the model knows no letter '\u{e9}'");
    let (out, err) = troubled(&args, b"bad\n\nk4te\n\xff\ndad\na b\n");
    assert_eq!(out, format!("{bad}\n\n\n{dad}\n"));
    let told = [
        "headrow: standard input: line 3: k4te: the model knows no letter '4'",
        "headrow: standard input: line 4: not UTF-8 from byte 1 on",
        "headrow: standard input: line 6: a b: the model knows no letter ' '",
    ];
    assert_eq!(err.lines().collect::<Vec<_>>(), told);
    assert_eq!(text(&args, b"bad\n\n  \ndad\n"), format!("{bad}\n\n{dad}"));
    let (out, _) = troubled(&[&args[..], &["--format", "json"]].concat(), b"k4te\n");
    assert_eq!(out, "{\"line\":1,\"word\":\"k4te\",\"pronunciations\":[]}\n");
}

#[test]
fn blank_and_bad_lines_have_blank_translations() {
    let folder = pronouncer("translate-blank");
    let args = ["translate", "--model", path(&folder.0), "--max-new-tokens", "8"];
    let good = text(&[&args[..], &["b a d", "t"]].concat(), b"");
    let (first, second) = good.split_at(good.find('\n').unwrap() + 1);
    assert!(first.len() > 1 && second.len() > 1);
    assert_eq!(text(&args, b"b a d\n\n \nt\n"), format!("{first}\n\n{second}"));
    let (out, err) = troubled(&args, b"b a d\n\xc3(\nt\n");
    assert_eq!(out, format!("{first}\n{second}"));
    assert_eq!(err, "headrow: standard input: line 2: not UTF-8 from byte 1 on\n");
    let long = "a ".repeat(600);
    let (out, err) = troubled(&args, format!("b a d\n{long}\nt\n").as_bytes());
    assert_eq!(out, format!("{first}\n{second}"));
    assert!(err.starts_with("headrow: standard input: line 2: 601 tokens, the limit is "), "{err}");
    let records = text(&[&args[..], &["--format", "json"]].concat(), b"\nt\n");
    assert_eq!(records.lines().count(), 1);
    assert!(records.starts_with("{\"line\":2,"), "{records}");
}

#[test]
fn a_translator_is_measured_as_the_library_measures() {
    let folder = pronouncer("evaluate");
    let answers = library(&folder, 3, 1);
    // The first is right, the second a variant, the others wrong.
    let target = |index: usize| match index {
        0 => answers[0][0].1.clone(),
        _ => "K AA T".to_owned(),
    };
    let pairs: Vec<(String, String)> =
        WORDS.iter().enumerate().map(|(index, word)| (spelt(word), target(index))).collect();
    let lines: Vec<String> =
        pairs.iter().map(|(source, target)| format!("{source}\t{target}\n")).collect();
    let data = write(&folder, "pairs.tsv", (lines.concat() + "no tab\n").as_bytes());
    let variants = json!({"cat's": ["D D", answers[1][0].1]});
    let variants = write(&folder, "variants.json", variants.to_string().as_bytes());
    let base =
        ["evaluate", "--model", path(&folder.0), "--data", path(&data), "--max-new-tokens", "64"];
    let args = [&base[..], &["--beam", "3", "--variants", path(&variants), "--json"]].concat();

    let output = run(&args, b"");
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(err.contains("pairs.tsv: line 8: no tab"), "{err}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["texts"], &told["bad_lines"]), (&json!(7), &json!(1)));

    let mut bleu = Bleu::new(BleuOptions::default());
    let mut errors = ErrorRate::default();
    for (index, (answer, (_, target))) in answers.iter().zip(&pairs).enumerate() {
        let answer = &answer[0].1;
        bleu.add(answer, &[target]);
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let accepted = if index == 1 { words(answer) } else { words(target) };
        errors.add(&words(answer), &[accepted]);
    }
    assert_eq!(told["bleu"]["score"], bleu.score().score);
    assert_eq!(told["bleu"]["signature"], bleu.signature());
    assert_eq!(told["error_rate"]["tokens"], errors.of_tokens());
    assert_eq!(told["error_rate"]["texts"], 5.0 / 7.0);

    let score: Vec<String> =
        pairs.iter().map(|(source, target)| format!("{source}\t{target}")).collect();
    let score: Vec<&str> = score.iter().map(String::as_str).collect();
    let total = text(
        &[&["score", "--model", path(&folder.0), "--total", "--format", "json"], &score[..]]
            .concat(),
        b"",
    );
    let total: Value = serde_json::from_str(&total).unwrap();
    let difference = told["perplexity"].as_f64().unwrap() - total["perplexity"].as_f64().unwrap();
    assert!(difference.abs() < 1e-9, "{told} {total}");
    assert_eq!((&told["tokens"], &told["counts_end"]), (&total["counted"], &json!(true)));
    assert!((0.0..=1.0).contains(&told["accuracy"].as_f64().unwrap()));

    let plain = String::from_utf8(run(&args[..args.len() - 1], b"").stdout).unwrap();
    assert!(plain.contains(&format!("{} {}", bleu.score(), bleu.signature())), "{plain}");
    assert!(plain.contains("error rate of texts: 71.43 % (5 of 7)"), "{plain}");
    assert!(plain.contains("the end of each target included"), "{plain}");

    let few =
        [&base[..], &["--limit", "2", "--metrics", "error-rate", "--beam", "3", "--json"]].concat();
    let told: Value = serde_json::from_slice(&run(&few, b"").stdout).unwrap();
    assert_eq!((&told["texts"], &told["error_rate"]["wrong"]), (&json!(2), &json!(1)));
    assert_eq!(told.get("bleu").or(told.get("perplexity")), None);
    let line = refusal(&[&base[..], &["--strict"]].concat(), b"");
    assert!(line.contains("pairs.tsv: line 8"), "{line}");
}

#[test]
fn the_accuracy_counts_tokens_that_the_model_holds_likeliest() {
    let folder = pronouncer("evaluate-accuracy");
    // What greedy search says is likeliest at each place.
    let greedy = text(&["pronounce", "--model", path(&folder.0), "--beam", "1", "bad", "t"], b"");
    let answers: Vec<&str> = greedy.lines().collect();
    let records = text(
        &[
            "translate",
            "--model",
            path(&folder.0),
            "--beams",
            "1",
            "--max-new-tokens",
            "64",
            "--format",
            "json",
            "b a d",
            "t",
        ],
        b"",
    );
    let ended = records.lines().filter(|record| record.contains("stop_token")).count();
    let data = format!("b a d\t{}\nt\t{}\n", answers[0], answers[1]);
    let data = write(&folder, "greedy.tsv", data.as_bytes());
    let args = [
        "evaluate",
        "--model",
        path(&folder.0),
        "--data",
        path(&data),
        "--metrics",
        "accuracy,perplexity",
        "--json",
    ];
    let told: Value = serde_json::from_str(&text(&args, b"")).unwrap();
    let tokens = told["tokens"].as_f64().unwrap();
    let right = tokens - (2 - ended) as f64;
    assert!((told["accuracy"].as_f64().unwrap() - right / tokens).abs() < 1e-12, "{told}");
}

#[test]
fn a_decoder_alone_is_measured_on_texts() {
    let texts = ["one two three", "two three one two"];
    let folder = folder("evaluate-decoder", texts.into_iter(), Framing::Begin, |config, stack| {
        config.decoder = Some(stack);
    });
    let data = write(&folder, "lines.txt", (texts.join("\n\n") + "\n").as_bytes());
    let base = ["evaluate", "--model", path(&folder.0), "--data", path(&data)];
    let told: Value = serde_json::from_str(&text(&[&base[..], &["--json"]].concat(), b"")).unwrap();
    assert_eq!((&told["tokens"], &told["counts_end"]), (&json!(7), &json!(false)));
    assert!(told["perplexity"].as_f64().unwrap() > 1.0);
    let line = refusal(&[&base[..], &["--metrics", "bleu"]].concat(), b"");
    assert!(line.contains("decoder alone"), "{line}");
    let missing = refusal(&["evaluate", "--model", path(&folder.0), "--data", "none.tsv"], b"");
    assert!(missing.contains("none.tsv"), "{missing}");
}
