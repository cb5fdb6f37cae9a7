//! The commands that generate, translate, score and draw, as their users run them.
//!
//! `HEADROW_TEXT_MODELS=DIR cargo test --release -p headrow --test cli_generate -- --nocapture` also runs them over the folders
//! in DIR whose `golden.json` records texts: prompts with what greedy search makes of them, or sources with the answers of
//! beam searches.

#[path = "support/command.rs"]
mod command;
#[path = "support/tiny.rs"]
mod tiny;
#[path = "support/tiny_seq2seq.rs"]
mod tiny_seq2seq;

use command::{headrow, refusal, run, spawn, text};
use headrow::generate::{Beam, Callbacks, GenerationOptions};
use headrow::{Chunk, Output, Session, SessionOptions, TextModel};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;
use tiny::{Folder, Tiny, V};

/// Byte-level tokens: an end, a space, a line end, letters, and the two bytes of `ü`.
fn bytes_tokenizer() -> Value {
    let fixed = ["<end>", "Ġ", "Ċ", "Ã", "¼", ".", ",", "Ġthe"].map(str::to_owned);
    let letters = ('a'..='z').chain('A'..='Z').map(String::from);
    let tokens = fixed.into_iter().chain(letters).take(V).zip(0..);
    let vocabulary: serde_json::Map<String, Value> =
        tokens.map(|(token, id)| (token, json!(id))).collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    json!({
        "version": "1.0", "normalizer": null, "post_processor": null, "pre_tokenizer": bytes, "decoder": bytes,
        "added_tokens": [{"id": 0, "content": "<end>", "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": false, "special": true}],
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    })
}

fn decoder(name: &str) -> Folder {
    let folder = Folder::new(name);
    let tiny = Tiny::new("gpt2").set("bos_token_id", json!(0)).set("eos_token_id", json!(0));
    tiny.write(&folder.0);
    std::fs::write(folder.0.join("tokenizer.json"), bytes_tokenizer().to_string()).unwrap();
    folder
}

/// An encoder–decoder with a list of letters for each side.
fn translator(name: &str) -> Folder {
    let folder = Folder::new(name);
    write_translator(&folder, |_| ());
    folder
}

/// The same with a change.
fn write_translator(folder: &Folder, change: impl Fn(&mut Tiny)) {
    let mut tiny = tiny_seq2seq::seq2seq("opennmt-transformer");
    change(&mut tiny);
    tiny.write(&folder.0);
    for (file, count) in
        [("source_vocabulary.txt", V), ("target_vocabulary.txt", tiny_seq2seq::TARGET_V)]
    {
        let special = ["<blank>", "<s>", "</s>"].map(str::to_owned).into_iter();
        let letters =
            " abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"()-+*/".chars().map(String::from);
        let tokens: Vec<String> = special.chain(letters).take(count).collect();
        std::fs::write(folder.0.join(file), tokens.join("\n")).unwrap();
    }
}

fn path(folder: &Folder) -> &str {
    folder.0.to_str().unwrap()
}

fn records(args: &[&str], input: &[u8]) -> Vec<Value> {
    text(args, input).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_is_streamed_is_what_the_library_generates() {
    let folder = decoder("cli-generate");
    let model = TextModel::from_dir(&folder.0).unwrap();
    let mut session = model.session(&SessionOptions::default()).unwrap();
    let prompts = ["once upon", "the", ""];
    let args =
        ["generate", "--model", path(&folder), "--max-new-tokens", "12", "--no-repeat-ngram", "2"];
    let expected: Vec<_> = prompts
        .map(|prompt| {
            let options =
                model.options().clone().with_max_new_tokens(12usize).with_no_repeat_ngram(2usize);
            model.generate(&mut session, prompt, &options, Callbacks::new()).unwrap()
        })
        .into();
    let plain: String =
        expected.iter().map(|answer| answer.best().text.clone().unwrap() + "\n").collect();
    assert_eq!(text(&[&args[..], &prompts[..]].concat(), b"not read\n"), plain);
    assert_eq!(text(&args, (prompts.join("\n") + "\n").as_bytes()), plain);
    let json = records(&[&args[..], &["--format", "json"], &prompts[..]].concat(), b"");
    for (index, (record, answer)) in json.iter().zip(&expected).enumerate() {
        let best = answer.best();
        assert_eq!(record["ids"], json!(best.tokens));
        assert_eq!(record["text"], json!(best.text));
        assert_eq!(record["source"], prompts[index]);
        assert_eq!((&record["line"], &record["rank"]), (&json!(index + 1), &json!(1)));
        assert!((record["score"].as_f64().unwrap() - best.score).abs() < 1e-9);
        assert_eq!(record.get("tokens"), None);
    }
    assert_eq!(json.len(), 3);
    let file = folder.0.join("prompt.txt");
    std::fs::write(&file, prompts[0]).unwrap();
    let whole = text(&[&args[..], &["--prompt-file", file.to_str().unwrap()]].concat(), b"");
    assert_eq!(whole, expected[0].best().text.clone().unwrap() + "\n");
}

#[test]
fn options_reach_the_search() {
    let folder = decoder("cli-options");
    let model = TextModel::from_dir(&folder.0).unwrap();
    let mut session = model.session(&SessionOptions::default().with_cache_tokens(4096)).unwrap();
    let run = |more: &[&str]| {
        let args =
            ["generate", "--model", path(&folder), "--format", "json", "--max-new-tokens", "10"];
        records(&[&args, more, &["a prompt"]].concat(), b"")
    };
    let mut library = |options: GenerationOptions| {
        model.generate(&mut session, "a prompt", &options, Callbacks::new()).unwrap()
    };
    let base = model.options().clone().with_max_new_tokens(10usize);

    let beams = library(base.clone().with_strategy(Beam::new(3).with_n_best(3)));
    let told = run(&["--beams", "3", "--n-best", "3", "--length-penalty", "gnmt:0.6"]);
    assert_eq!(told.len(), 3);
    for (record, answer) in told.iter().zip(&beams.hypotheses) {
        assert_eq!(record["ids"], json!(answer.tokens));
        assert!((record["score"].as_f64().unwrap() - answer.score).abs() < 1e-9);
    }
    let greedy = run(&[]);
    let ids = |records: &[Value]| -> Vec<u32> {
        serde_json::from_value(records[0]["ids"].clone()).unwrap()
    };
    assert_eq!(ids(&run(&["--beams", "1"])), ids(&greedy));
    assert_eq!(ids(&run(&["--temperature", "0"])), ids(&greedy));
    let seeded = |seed: &str| ids(&run(&["--seed", seed, "--temperature", "3"]));
    assert_eq!(seeded("1"), seeded("1"));
    assert!(["2", "3", "4"].iter().any(|seed| seeded(seed) != seeded("1")));

    let first = ids(&greedy)[0];
    let suppressed = ids(&run(&["--suppress", &first.to_string()]));
    assert!(!suppressed.contains(&first));
    let stopped = run(&["--stop-id", &first.to_string()]);
    assert_eq!((ids(&stopped), &stopped[0]["finish"]), (vec![first], &json!("stop_token")));
    assert_eq!(stopped[0]["text"], "");
    let whole = greedy[0]["text"].as_str().unwrap();
    let stop: String = whole.chars().skip(2).take(2).collect();
    let cut = run(&["--stop", &stop]);
    assert_eq!(cut[0]["text"].as_str().unwrap(), &whole[..whole.find(&stop).unwrap()]);
    assert_eq!(cut[0]["finish"], "stop_text");

    let scored = run(&["--log-probabilities", "2"]);
    let tokens = scored[0]["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), ids(&greedy).len());
    for (token, id) in tokens.iter().zip(ids(&greedy)) {
        assert_eq!((&token["id"], &token["top"][0]["id"]), (&json!(id), &json!(id)));
        assert_eq!(token["top"].as_array().unwrap().len(), 2);
        assert!(token["log_probability"].as_f64().unwrap() <= 0.0);
    }
}

#[test]
fn options_of_the_folder_are_followed_and_overridden() {
    let folder = decoder("cli-folder-options");
    let config =
        json!({"num_beams": 2, "num_return_sequences": 2, "max_length": 14, "eos_token_id": 0});
    std::fs::write(folder.0.join("generation_config.json"), config.to_string()).unwrap();
    let args = ["generate", "--model", path(&folder), "--format", "json"];
    let answers = records(&[&args[..], &["abc"]].concat(), b"");
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|answer| answer["ids"].as_array().unwrap().len() <= 11));
    let one = records(
        &[&args[..], &["--n-best", "1", "--max-new-tokens", "20", "--suppress", "0", "abc"]]
            .concat(),
        b"",
    );
    assert_eq!((one.len(), one[0]["ids"].as_array().unwrap().len()), (1, 20));
    std::fs::write(folder.0.join("generation_config.json"), r#"{"some_new_field": 1}"#).unwrap();
    let line = refusal(&[&args[..], &["abc"]].concat(), b"");
    assert!(line.contains("generation_config.json") && line.contains("some_new_field"), "{line}");
}

#[test]
fn a_prompt_that_is_too_long_is_named_after_the_records_before_it() {
    let folder = decoder("cli-long");
    let args = ["generate", "--model", path(&folder), "--max-new-tokens", "3"];
    let input = format!("one\n{}\nthree\n", "x".repeat(40));
    let output = run(&args, input.as_bytes());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), text(&args, b"one\n"));
    let line = refusal(&args, input.as_bytes());
    assert_eq!(line, "standard input: line 2: 40 tokens, the limit is 34");
    let line = refusal(&["generate", "--model", path(&folder), "--n-best", "2", "a"], b"");
    assert!(line.contains("--beams"), "{line}");
    let late = refusal(&[&args[..], &["--deadline", "0", "a"]].concat(), b"");
    assert_eq!(late, "text 1: the deadline came before the first token");
}

#[test]
fn longer_texts_are_read_when_they_are_asked_for() {
    let folder = Folder::new("cli-longer");
    Tiny::new("llama").set("max_position_embeddings", json!(5000)).write(&folder.0);
    std::fs::write(folder.0.join("tokenizer.json"), bytes_tokenizer().to_string()).unwrap();
    let prompt = "x".repeat(4500);
    let generate = ["generate", "--model", path(&folder), "--max-new-tokens", "3"];
    let line = refusal(&[&generate[..], &[&prompt]].concat(), b"");
    assert_eq!(line, "text 1: 4500 tokens, the limit is 4096");
    let args = [&generate[..], &["--max-length", "4502", "--format", "json", &prompt]].concat();
    let answer = &records(&args, b"")[0];
    let most = answer["ids"].as_array().unwrap().len();
    assert_eq!((most, &answer["finish"]), (2, &json!("length")));
    let score = ["score", "--model", path(&folder), "--format", "json", &prompt];
    assert!(refusal(&score, b"").contains("the limit is 4096"));
    let scored = records(&[&score[..], &["--max-length", "5000"]].concat(), b"");
    assert_eq!(scored[0]["counted"], 4499);
    let file = folder.0.join("texts");
    std::fs::write(&file, "x").unwrap();
    let data = ["--data", file.to_str().unwrap()];
    for (command, given) in
        [("generate", &["x"][..]), ("score", &["x"]), ("evaluate", &data), ("attention", &["x"])]
    {
        let args = [command, "--model", path(&folder), "--max-length", "5001"];
        let line = refusal(&[&args[..], given].concat(), b"");
        assert_eq!(line, "--max-length 5001: the model reads at most 5000 tokens");
    }
    let line = refusal(&["score", "--model", path(&folder), "--max-length", "5", "xxxxxx"], b"");
    assert_eq!(line, "text 1: 6 tokens, the limit is 5");
}

#[test]
fn a_folder_that_generates_long_texts_makes_no_session_larger() {
    let folder = Folder::new("cli-folder-length");
    Tiny::new("llama").set("max_position_embeddings", json!(1 << 24)).write(&folder.0);
    std::fs::write(folder.0.join("tokenizer.json"), bytes_tokenizer().to_string()).unwrap();
    let says = json!({"max_length": 1 << 24}).to_string();
    std::fs::write(folder.0.join("generation_config.json"), says).unwrap();
    let generate = ["generate", "--model", path(&folder), "--max-new-tokens", "3"];
    let line = refusal(&[&generate[..], &[&"x".repeat(4500)]].concat(), b"");
    assert_eq!(line, "text 1: 4500 tokens, the limit is 4096");
}

#[test]
fn both_sides_of_a_translation_have_the_length_that_is_asked_for() {
    let folder = translator("cli-longer-sides");
    let score = ["score", "--model", path(&folder), "--max-length"];
    let line = refusal(&[&score[..], &["5", "xxxxxxxxx\tx"]].concat(), b"");
    assert!(line.contains("the limit is 5"), "{line}");
    let line = refusal(&[&score[..], &["5", "x\txxxxxxxxx"]].concat(), b"");
    assert!(line.contains("tokens, the limit is "), "{line}");
    let scored =
        records(&[&score[..], &["20", "--format", "json", "xxxxxxxx\txxxxxxxx"]].concat(), b"");
    assert!(scored[0]["counted"].as_u64().unwrap() >= 8);
    text(&["attention", "--model", path(&folder), "--max-length", "20", "xxxxxxxx"], b"");
}

#[test]
fn an_encoder_draws_texts_of_the_length_that_is_asked_for() {
    let folder = Folder::new("cli-longer-encoder");
    Tiny::new("bert").write(&folder.0);
    std::fs::write(folder.0.join("tokenizer.json"), bytes_tokenizer().to_string()).unwrap();
    let attention = ["attention", "--model", path(&folder), "--max-length"];
    text(&[&attention[..], &["34", "xxxxxxxx"]].concat(), b"");
    let line = refusal(&[&attention[..], &["5", "xxxxxxxx"]].concat(), b"");
    assert!(line.contains("the limit is 5"), "{line}");
    let line = refusal(&[&attention[..], &["35", "xxxxxxxx"]].concat(), b"");
    assert_eq!(line, "--max-length 35: the model reads at most 34 tokens");
}

#[test]
fn a_reader_that_goes_away_ends_generation_quietly() {
    let folder = decoder("cli-pipe");
    let mut child = spawn(&["generate", "--model", path(&folder)]);
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let writer = std::thread::spawn(move || drop(stdin.write_all(&b"abc\n".repeat(20_000))));
    stdout.read_exact(&mut [0; 3]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn a_prompt_is_answered_before_the_next_one_is_written() {
    for (command, folder) in
        [("generate", decoder("cli-turns")), ("translate", translator("cli-turns-too"))]
    {
        let mut child = headrow(&[
            command,
            "--model",
            path(&folder),
            "--max-new-tokens",
            "4",
            "--suppress",
            "2",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        for word in ["abc", "def"] {
            writeln!(stdin, "{word}").unwrap();
            let mut answer = String::new();
            stdout.read_line(&mut answer).unwrap();
            assert!(answer.ends_with('\n'), "{command}: {answer:?}");
        }
        drop(stdin);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn scores_are_the_logarithms_of_what_one_pass_predicts() {
    let folder = decoder("cli-score");
    let model = TextModel::from_dir(&folder.0).unwrap();
    let args = ["score", "--model", path(&folder), "--format", "json"];
    let texts = ["the cat", "für x"];
    let scores = records(&[&args[..], &texts[..]].concat(), b"");
    let mut sum = 0.0;
    for (record, text) in scores.iter().zip(texts) {
        let ids = model.tokenize(text).unwrap().ids;
        let mut session = Session::new(model.model(), &SessionOptions::default()).unwrap();
        let sequence = session.add().unwrap();
        let mut logits = vec![0.0; ids.len() * V];
        session.extend(&[Chunk::new(sequence, &ids)], Output::AllLogits, &mut logits).unwrap();
        let expected = logits.chunks(V).zip(&ids[1..]).map(|(row, &id)| {
            let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            f64::from(row[id as usize]) - total.ln()
        });
        let expected: Vec<f64> = expected.collect();
        let tokens = record["tokens"].as_array().unwrap();
        assert_eq!(tokens[0]["log_probability"], Value::Null);
        for (token, expected) in tokens[1..].iter().zip(&expected) {
            assert!((token["log_probability"].as_f64().unwrap() - expected).abs() < 1e-5);
        }
        // The two bytes of a character both lie where it lies.
        let range = |token: &Value| {
            let [start, end] =
                ["start", "end"].map(|field| token[field].as_u64().unwrap() as usize);
            assert!(text.get(start..end).is_some_and(|part| !part.is_empty()), "{token}");
            (start, end)
        };
        assert!(tokens.iter().map(range).collect::<Vec<_>>().is_sorted());
        let total: f64 = expected.iter().sum();
        sum += total;
        assert!((record["log_probability"].as_f64().unwrap() - total).abs() < 1e-4);
        assert_eq!(record["counted"], json!(expected.len()));
        let perplexity = (-total / expected.len() as f64).exp();
        assert!((record["perplexity"].as_f64().unwrap() / perplexity - 1.0).abs() < 1e-4);
    }
    let total = records(&[&args[..], &["--total"]].concat(), texts.join("\n").as_bytes());
    assert_eq!((total.len(), &total[0]["texts"]), (1, &json!(2)));
    assert!((total[0]["log_probability"].as_f64().unwrap() - sum).abs() < 1e-4);
    // A single token is predicted by nothing.
    let one = text(&["score", "--model", path(&folder), "a"], b"");
    assert_eq!(one, "0.000000\t0\tNaN\ta\n");
}

#[test]
fn lines_are_translated_in_order_each_as_if_it_were_alone() {
    let folder = translator("cli-translate");
    let lines = ["abc", "a longer line", "x", "again", "zyx wvu", "1"];
    let base = ["translate", "--model", path(&folder), "--max-new-tokens", "9"];
    let input = lines.join("\n");
    for more in [&[][..], &["--beams", "3"], &["--beams", "4", "--length-penalty", "average:1"]] {
        let args = [&base[..], more].concat();
        let together = text(&args, input.as_bytes());
        assert_eq!(together.lines().count(), lines.len());
        for (line, translation) in lines.iter().zip(together.lines()) {
            assert_eq!(text(&[&args[..], &[*line]].concat(), b""), format!("{translation}\n"));
        }
        let single = text(&[&args[..], &["--batch", "1"]].concat(), input.as_bytes());
        assert_eq!(single, together);
    }
    let best = [&base[..], &["--beams", "4", "--n-best", "3"]].concat();
    let json = records(&[&best[..], &["--format", "json"]].concat(), input.as_bytes());
    assert_eq!(json.len(), 3 * lines.len());
    for (three, line) in json.chunks(3).zip(1..) {
        assert!(three.iter().zip(1..).all(|(r, rank)| r["line"] == line && r["rank"] == rank));
        assert!(three.is_sorted_by(|a, b| a["score"].as_f64() >= b["score"].as_f64()));
    }
    let plain = text(&best, input.as_bytes());
    for (line, record) in plain.lines().zip(&json) {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!(
            (fields[0], fields[2]),
            (&*record["line"].to_string(), record["text"].as_str().unwrap())
        );
    }
    let args = [&base[..], &["--batch", "2"]].concat();
    let refused = refusal(&args, "abc\nx\nHÜ\nabc\n".as_bytes());
    assert!(refused.starts_with("standard input: line 3: "), "{refused}");
    let output = run(&args, "abc\nx\nHÜ\nabc\n".as_bytes());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), text(&base, b"abc\nx\n\nabc\n"));
    let line = refusal(&[&base[..], &["--target-lang", "de", "abc"]].concat(), b"");
    assert!(line.contains("target_vocabulary.txt") && line.contains("de"), "{line}");
    // A target's score is that of the search that found it.
    let args = ["translate", "--model", path(&folder), "--format", "json", "--beams", "4"];
    let found = records(
        &[&args[..], &["--length-penalty", "none", "--n-best", "4"]].concat(),
        input.as_bytes(),
    );
    let ended: Vec<&Value> = found.iter().filter(|one| one["finish"] == "stop_token").collect();
    assert!(!ended.is_empty());
    for one in ended {
        let pair = [&one["source"], &one["text"]].map(|text| text.as_str().unwrap()).join("\t");
        let score = records(&["score", "--model", path(&folder), "--format", "json", &pair], b"");
        let [a, b] = [&one["score"], &score[0]["log_probability"]].map(|x| x.as_f64().unwrap());
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
    let line = refusal(&["score", "--model", path(&folder), "no tab"], b"");
    assert!(line.contains("tab"), "{line}");
}

#[test]
fn a_text_on_which_the_model_fails_is_named_and_the_others_are_translated() {
    let folder = Folder::new("cli-not-finite");
    write_translator(&folder, |tiny| {
        // `q` is behind three special tokens, a space and 16 letters.
        let row = 20 * 4 * tiny::D;
        let nan = f32::NAN.to_le_bytes().repeat(tiny::D);
        let embedding = tiny.tensor("model.encoder.embed_tokens.weight");
        embedding.data[row..][..nan.len()].copy_from_slice(&nan);
    });
    let args = ["translate", "--model", path(&folder), "--max-new-tokens", "5"];
    for batch in ["1", "2", "16"] {
        let args = [&args[..], &["--batch", batch]].concat();
        let output = run(&args, b"abc\nx\nab\nq\nabc\n");
        let written = String::from_utf8(output.stdout).unwrap();
        assert_eq!(written, text(&args, b"abc\nx\nab\n\nabc\n"), "batches of {batch}");
        let line = refusal(&args, b"abc\nx\nab\nq\nabc\n");
        assert!(line.starts_with("standard input: line 4: "), "{line}");
        assert!(line.contains("not finite"), "{line}");
    }
    let all: Vec<String> = (0..tiny_seq2seq::TARGET_V).map(|id| id.to_string()).collect();
    let line = refusal(&[&args[..], &["--suppress", &all.join(","), "a"]].concat(), b"");
    assert_eq!(line, "text 1: every token is ruled out");
}

#[test]
fn sessions_fit_the_beams() {
    let folder = decoder("cli-beams");
    let (beams, n) = (tiny::POSITIONS + 6, "40");
    let args = ["generate", "--model", path(&folder), "--max-new-tokens", "3", "--format", "json"];
    let found = records(&[&args[..], &["--beams", n, "--n-best", n, "ab"]].concat(), b"");
    assert_eq!((found.len(), beams.to_string().as_str()), (beams, n));
    let folder = translator("cli-beams-too");
    let args = ["translate", "--model", path(&folder), "--beams", "4", "--max-source-tokens"];
    assert_eq!(text(&[&args[..], &["4", "abcd"]].concat(), b"").lines().count(), 1);
    let line = refusal(&[&args[..], &["3", "abc"]].concat(), b"");
    assert_eq!(line, "--max-source-tokens 3 is less than the 4 beams of a search");
}

#[test]
fn pictures_show_the_maps_with_their_tokens() {
    let decoder = decoder("cli-attention");
    let args = ["attention", "--model", path(&decoder), "a <b"];
    let svg = text(&args, b"");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    for part in ["layer 1, head 0", "layer 1, head 2", "Decoder self-attention"] {
        assert_eq!(svg.matches(part).count(), 1, "{part}");
    }
    // Every text between tags is escaped: what is left of it has no bracket.
    assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    let grid = text(
        &["attention", "--model", path(&decoder), "--layer", "0,1", "--head", "1", "abc"],
        b"",
    );
    assert_eq!(grid.matches("head 1</text>").count(), 2);
    let file = decoder.0.join("map.svg");
    let written = text(&[&args[..], &["--output", file.to_str().unwrap()]].concat(), b"");
    assert_eq!((written.as_str(), std::fs::read_to_string(&file).unwrap()), ("", svg));
    let line = refusal(&["attention", "--model", path(&decoder), "--layer", "2", "abc"], b"");
    assert!(line.contains("layer 2"), "{line}");
    let line = refusal(&["attention", "--model", path(&decoder), "--kind", "cross", "abc"], b"");
    assert!(line.contains("encoder"), "{line}");
    let line = refusal(&["attention", "--model", path(&decoder), &"x".repeat(3000)], b"");
    assert!(line.starts_with("3000 tokens in 3 maps: ") && line.contains("8192"), "{line}");

    let translator = translator("cli-cross");
    for (kind, title) in [("cross", "Cross"), ("self", "Decoder"), ("encoder", "Encoder")] {
        let args = ["attention", "--model", path(&translator), "--kind", kind];
        for texts in [&["abcd"][..], &["abcd", "xy"]] {
            assert!(text(&[&args[..], texts].concat(), b"").contains(title));
        }
    }
    // What the model reads, however short its own translations are to be.
    std::fs::write(translator.0.join("generation_config.json"), r#"{"max_length": 4}"#).unwrap();
    let long = text(&["attention", "--model", path(&translator), "ab", &"c".repeat(30)], b"");
    assert_eq!(long.matches("head 1</text>").count(), 1);
    std::fs::remove_file(translator.0.join("generation_config.json")).unwrap();
    let model = TextModel::from_dir(&translator.0).unwrap();
    let mut session = model.session(&SessionOptions::default()).unwrap();
    let kind = headrow::AttentionKind::Cross;
    let maps = model.attention(&mut session, ("abcd", "xy"), kind, &[1], &[]).unwrap();
    assert_eq!((maps.keys.len(), maps.queries.len()), (4, 4), "a start, two letters, an end");
    assert_eq!(maps.maps.len(), 3);
    for map in &maps.maps {
        assert!(map.weights.chunks(4).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-5));
    }
}

#[test]
fn folders_that_cannot_be_used_are_told_in_one_line() {
    let folder = decoder("cli-missing");
    let generate = |folder: &str| refusal(&["generate", "--model", folder, "a"], b"");
    assert!(generate("no/such/folder").contains("no/such/folder"));
    std::fs::remove_file(folder.0.join("tokenizer.json")).unwrap();
    std::fs::write(folder.0.join("vocab.json"), "{}").unwrap();
    let line = generate(path(&folder));
    assert!(line.contains("tokenizer.json") && line.contains("vocab.json"), "{line}");
    let translator = translator("cli-wrong-kind");
    assert!(generate(path(&translator)).contains("source"));
    let decoder = self::decoder("cli-no-encoder");
    let line = refusal(&["translate", "--model", path(&decoder), "a"], b"");
    assert!(line.contains("encoder"), "{line}");
    for command in ["generate", "translate", "score"] {
        let output = run(&[command, "a"], b"");
        assert_eq!(output.status.code(), Some(2), "{command} without --model");
    }
    let info = text(&["info", "--json", "--model", path(&decoder)], b"");
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(
        (&info["model"]["decoder"]["layers"], &info["model"]["encoder"]),
        (&json!(2), &Value::Null)
    );
}

#[test]
fn recorded_texts() {
    let Some(dir) = std::env::var_os("HEADROW_TEXT_MODELS") else {
        println!("\nHEADROW_TEXT_MODELS is not set: no recorded texts to compare with");
        return;
    };
    let mut count = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let folder = entry.unwrap().path();
        let Ok(golden) = std::fs::read(folder.join("golden.json")) else { continue };
        if !folder.join("model.safetensors").exists() {
            println!("\n{}: skip (no weights)", folder.display());
            continue;
        }
        let golden: Value = serde_json::from_slice(&golden).unwrap();
        if golden["prompts"][0]["greedy"].is_string() {
            count += recorded_prompts(&folder, &golden);
        } else if golden["cases"][0]["beam4_lp1"].is_array() {
            count += recorded_sources(&folder, &golden);
        }
    }
    println!("\n{count} recorded texts");
    assert!(count > 0);
}

/// Greedy text, special tokens left out.
fn recorded_prompts(folder: &Path, golden: &Value) -> usize {
    let model = TextModel::from_dir(folder).unwrap();
    let prompts = golden["prompts"].as_array().unwrap();
    for prompt in prompts {
        let (source, greedy) =
            (prompt["text"].as_str().unwrap(), prompt["greedy"].as_str().unwrap());
        let ids = model.tokenizer().encode(greedy, None).unwrap().ids;
        let expected = model.tokenizer().decode(&ids).unwrap();
        let most = prompt["gaps"].as_array().unwrap().len().to_string();
        let args =
            ["generate", "--model", folder.to_str().unwrap(), "--max-new-tokens", &most, source];
        assert_eq!(text(&args, b""), expected + "\n");
    }
    prompts.len()
}

/// The answers of beam searches with their scores, Σ ln p / L^α.
fn recorded_sources(folder: &Path, golden: &Value) -> usize {
    let cases = golden["cases"].as_array().unwrap();
    let source = |case: &Value| -> String {
        case["src"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect()
    };
    let input: Vec<String> = cases.iter().map(source).collect();
    let settings = [
        ("beam1_lp1", "1", "1"),
        ("beam2_lp1", "2", "1"),
        ("beam4_lp1", "4", "1"),
        ("beam4_lp0.6", "4", "0.6"),
    ];
    for (name, beams, alpha) in settings {
        let penalty = format!("average:{alpha}");
        let mut args = vec![
            "translate",
            "--model",
            folder.to_str().unwrap(),
            "--format",
            "json",
            "--beams",
            beams,
        ];
        if beams != "1" {
            args.extend([
                "--n-best",
                beams,
                "--length-penalty",
                &penalty,
                "--early-stopping",
                "first-complete",
            ]);
        }
        let answers = records(&args, input.join("\n").as_bytes());
        let mut answers = answers.iter();
        for recorded in cases.iter().flat_map(|case| case[name].as_array().unwrap()) {
            let answer = answers.next().unwrap();
            assert_eq!(answer["text"], recorded[0], "{name}: {answer}");
            // A beam of one is greedy search, whose score is the sum.
            let length = answer["ids"].as_array().unwrap().len() as f64;
            let scale = if beams == "1" { length } else { 1.0 };
            let score = answer["score"].as_f64().unwrap() / scale;
            // Recorded in f32 throughout: of the mean per token, 1e-4 are owed.
            let owed = 1e-4 * length.powf(1.0 - alpha.parse::<f64>().unwrap());
            let error = (score - recorded[1].as_f64().unwrap()).abs();
            assert!(error <= owed, "{name}: {answer}, off by {error}");
        }
        assert!(answers.next().is_none());
    }
    cases.len() * settings.len()
}
