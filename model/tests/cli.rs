//! The command `headrow` as its users run it.

#[path = "support/command.rs"]
mod command;
#[path = "support/tiny.rs"]
mod tiny;

use command::{headrow, refusal, run, spawn, stdout, text};
use headrow::SentenceEncoder;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tiny::Tiny;

/// Records of `embed --format json`.
fn records(args: &[&str], input: &[u8]) -> Vec<(String, Vec<f32>)> {
    let args = [&["embed", "--format", "json"], args].concat();
    let record = |line: &str| {
        let record: Value = serde_json::from_str(line).unwrap();
        let embedding = serde_json::from_value(record["embedding"].clone()).unwrap();
        assert_eq!(record.as_object().unwrap().len(), 2);
        (record["text"].as_str().unwrap().to_owned(), embedding)
    };
    text(&args, input).lines().map(record).collect()
}

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/seeded-bert")
}

/// What the seeded folder holds.
const FILES: [&str; 6] = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
];

/// A fresh copy of the seeded folder for a test to damage.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli").join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("1_Pooling")).unwrap();
        for file in FILES {
            std::fs::write(folder.join(file), std::fs::read(assets().join(file)).unwrap()).unwrap();
        }
        Folder(folder)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.0.join(file)).unwrap()
    }

    fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(file), bytes).unwrap();
    }

    /// Changes one field of a JSON file; `null` takes it out.
    fn set(&self, file: &str, field: &str, value: Value) {
        let mut json: Value = serde_json::from_slice(&self.read(file)).unwrap();
        json[field] = value;
        self.write(file, json.to_string());
    }

    fn refusal(&self) -> String {
        refusal(&["embed", "--model", self.path(), "a text"], b"")
    }
}

#[test]
fn texts_come_back_in_order_one_record_each_whatever_they_are() {
    let lines =
        ["the cat sat", "", "  spaces  ", "猫 🐈 Ünïcode é", "a\tb\u{0}c \"quoted\" \\", ""];
    let input = lines.join("\n") + "\n";
    let encoder = SentenceEncoder::seeded().unwrap();
    let expected: Vec<(String, Vec<f32>)> =
        lines.map(str::to_owned).into_iter().zip(encoder.embed(lines).unwrap()).collect();
    assert_eq!(records(&[], input.as_bytes()), expected);
    // Without the last line's end, with Windows' line ends, and from arguments.
    let open = lines[..5].join("\n");
    assert_eq!(records(&[], open.as_bytes()), expected[..5]);
    assert_eq!(records(&[], input.replace('\n', "\r\n").as_bytes()), expected);
    assert_eq!(records(&[lines[0], lines[1], lines[3]], b"not read\n")[2], expected[3]);
    assert_eq!(records(&[], b""), []);
}

#[test]
fn the_three_formats_say_the_same_numbers() {
    let input = b"one text\nand another\n\n";
    let expected: Vec<f32> = records(&[], input).into_iter().flat_map(|(_, v)| v).collect();
    assert_eq!(expected.len(), 3 * 32);
    let plain = text(&["embed"], input);
    assert_eq!(plain, text(&["embed", "--format", "plain"], input));
    assert_eq!(plain.lines().count(), 3);
    let numbers: Vec<f32> = plain.split_whitespace().map(|x| x.parse().unwrap()).collect();
    assert_eq!(numbers, expected);
    let raw = stdout(&["embed", "--format", "f32"], input);
    assert_eq!(raw.len(), 4 * expected.len());
    let numbers: Vec<f32> = raw.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    assert_eq!(numbers, expected);
}

#[test]
fn neither_threads_nor_instruction_set_nor_the_folder_change_a_byte() {
    let mut input = String::new();
    for i in 0..200 {
        let words = ["water", "the cat", "42", "machine translation", "?"];
        (0..=i % 23).for_each(|j| input += &format!("{} ", words[(i * 7 + j) % 5]));
        input.push('\n');
    }
    let expected = stdout(&["embed", "--format", "f32"], input.as_bytes());
    assert_eq!(expected.len(), 200 * 32 * 4);
    let folder = assets();
    let others: [&[&str]; 4] = [
        &["--threads", "1"],
        &["--threads", "3"],
        &["--isa", "scalar"],
        &["--model", folder.to_str().unwrap()],
    ];
    for other in others {
        let args = [&["embed", "--format", "f32"], other].concat();
        assert!(stdout(&args, input.as_bytes()) == expected, "{other:?}");
    }
}

#[test]
fn five_thousand_words_in_one_line_are_cut_or_refused_as_asked() {
    let long = "word ".repeat(5000);
    let cut = records(&[], format!("short\n{long}\n").as_bytes());
    assert_eq!(cut.len(), 2);
    assert_eq!(cut[1].0, long);
    let head = "word ".repeat(126);
    assert_eq!(records(&[&head], b"")[0].1, cut[1].1, "128 tokens, two of them special");

    let input = format!("first\nsecond\n{long}\nfourth\n");
    let args = ["embed", "--too-long", "error"];
    let output = run(&args, input.as_bytes());
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 2);
    let line = refusal(&args, input.as_bytes());
    assert_eq!(line, "standard input: line 3: 5002 tokens, the limit is 128");
}

#[test]
fn a_line_that_is_no_utf8_is_named_after_the_records_before_it() {
    let output = run(&["embed"], b"fine\nfine too\nbroken \xff\xfe\nnever read\n");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(output.stdout.iter().filter(|&&b| b == b'\n').count(), 2);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, "headrow: standard input: line 3: not UTF-8 from byte 8 on\n");
}

#[test]
fn a_line_is_answered_before_the_next_one_is_written() {
    let mut child =
        headrow(&["embed"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for word in ["one", "two", "three"] {
        writeln!(stdin, "{word}").unwrap();
        let mut answer = String::new();
        stdout.read_line(&mut answer).unwrap();
        assert_eq!(answer.split(' ').count(), 32);
    }
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let commands: [&[&str]; 3] =
        [&["embed"], &["embed", "--format", "f32"], &["similarity", "a query"]];
    for args in commands {
        let mut child = spawn(args);
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let writer = std::thread::spawn(move || {
            // More records than any pipe holds.
            drop(stdin.write_all(&b"some line of words\n".repeat(5_000)));
        });
        if args[0] == "embed" {
            stdout.read_exact(&mut [0; 10]).unwrap();
        }
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn candidates_are_ranked_by_cosine_from_wherever_they_come() {
    let texts = ["the train is late", "the cat sat on the mat", "", "a cat sat on a rug"];
    let query = "the cat sat on a mat";
    let encoder = SentenceEncoder::seeded().unwrap();
    let wanted = encoder.embed([query]).unwrap().remove(0);
    let cosine = |v: &[f32]| {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
        };
        dot(&wanted, v) / (dot(&wanted, &wanted) * dot(v, v)).sqrt()
    };
    let scores: Vec<f64> = encoder.embed(texts).unwrap().iter().map(|v| cosine(v)).collect();
    let mut order: Vec<usize> = (0..4).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    assert_eq!(order[0], 1, "same words");

    let expected: String =
        order.iter().map(|&i| format!("{:.6}\t{}\n", scores[i], texts[i])).collect();
    let input = texts.join("\n");
    assert_eq!(text(&["similarity", query], input.as_bytes()), expected);
    let arguments = [&["similarity", query][..], &texts[..]].concat();
    assert_eq!(text(&arguments, b"not read\n"), expected);
    let folder = Folder::new("candidates");
    folder.write("candidates.txt", &input);
    let file = folder.0.join("candidates.txt");
    let args = ["similarity", "--candidates", file.to_str().unwrap(), query];
    assert_eq!(text(&args, b"not read\n"), expected);
    let top: String = expected.split_inclusive('\n').take(2).collect();
    assert_eq!(text(&["similarity", "--top", "2", query], input.as_bytes()), top);
    assert_eq!(text(&["similarity", query], b""), "");

    let json = text(&["similarity", "--format", "json", query], input.as_bytes());
    for (record, &i) in json.lines().zip(&order) {
        let record: Value = serde_json::from_str(record).unwrap();
        assert_eq!((&record["line"], &record["text"]), (&json!(i + 1), &json!(texts[i])));
        assert!((record["score"].as_f64().unwrap() - scores[i]).abs() < 1e-12);
    }
    assert_eq!(json.lines().count(), 4);
    // Of equals the first comes first.
    let json = text(&["similarity", "--format", "json", "x"], b"y\nx\nz\nx\nX\n");
    let lines: Vec<u64> = json
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["line"].as_u64().unwrap())
        .collect();
    assert_eq!(lines[..3], [2, 4, 5]);
}

#[test]
fn info_counts_what_the_file_holds() {
    let folder = assets();
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let of = |prefix: &str| -> u64 {
        let named = file.iter().filter(|(name, _)| name.starts_with(prefix));
        named.map(|(_, tensor)| tensor.shape().iter().product::<usize>() as u64).sum()
    };
    let model = folder.to_str().unwrap();
    for args in [&["info", "--json", "--model", model][..], &["info", "--json"]] {
        let info: Value = serde_json::from_str(&text(args, b"")).unwrap();
        let parameters = &info["model"]["parameters"];
        assert_eq!(parameters["total"].as_u64().unwrap(), of(""));
        let parts = parameters["parts"].as_object().unwrap();
        assert_eq!(parts.values().map(|n| n.as_u64().unwrap()).sum::<u64>(), of(""));
        assert_eq!(parts["embeddings"].as_u64().unwrap(), of("embeddings."));
        assert_eq!(info["model"]["encoder"]["layers"], 2);
        assert_eq!(info["model"]["decoder"], Value::Null);
        assert_eq!(info["model"]["dtype"]["file"], json!(["F32"]));
        assert!(info["model"]["memory"]["weights"].as_u64().unwrap() >= 4 * of(""));
        assert!(info["model"]["memory"]["session"].as_u64().unwrap() > 0);
        assert_eq!(info["sentences"]["max_length"], 128);
    }
    let args = ["info", "--json", "--isa", "scalar", "--threads", "5"];
    let info: Value = serde_json::from_str(&text(&args, b"")).unwrap();
    assert_eq!((&info["cpu"]["isa"], &info["cpu"]["threads"]), (&json!("scalar"), &json!(5)));
    let plain = text(&["info", "--isa", "scalar"], b"");
    for word in ["BERT", &of("").to_string(), "F32", "scalar", "threads", "untrained"] {
        assert!(plain.contains(word), "{word} in {plain}");
    }
}

#[test]
fn info_tells_about_a_folder_without_a_tokenizer() {
    let folder = Folder::new("bare");
    for file in ["tokenizer.json", "modules.json", "sentence_bert_config.json"] {
        std::fs::remove_file(folder.0.join(file)).unwrap();
    }
    let info = text(&["info", "--json", "--model", folder.path()], b"");
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["sentences"], Value::Null);
    assert_eq!(info["model"]["d_model"], 32);
    assert!(folder.refusal().contains("tokenizer.json"));
}

#[test]
fn a_decoder_is_told_about_and_embeds_nothing() {
    // With the tokenizer of the seeded model.
    let folder = Folder::new("decoder");
    std::fs::remove_file(folder.0.join("modules.json")).unwrap();
    Tiny::new("gpt2").write(&folder.0);
    let info = text(&["info", "--json", "--model", folder.path()], b"");
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["sentences"], Value::Null);
    assert_eq!(info["model"]["family"], "GPT-2");
    assert_eq!(info["model"]["encoder"], Value::Null);
    assert_eq!(info["model"]["decoder"]["layers"], 2);
    let plain = text(&["info", "--model", folder.path()], b"");
    assert!(plain.contains("decoder") && plain.contains("GPT-2"), "{plain}");
    for command in ["embed", "similarity"] {
        let line = refusal(&[command, "--model", folder.path(), "a text", "another"], b"");
        for word in [folder.path(), "config.json", "model_type", "GPT-2"] {
            assert!(line.contains(word), "{word} in {line}");
        }
    }
}

#[test]
fn files_that_are_not_there_are_named_in_one_line() {
    let line = refusal(&["embed", "--model", "no/such/folder", "a"], b"");
    assert!(line.contains("no/such/folder"), "{line}");
    for command in ["embed", "similarity"] {
        for file in ["config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"]
        {
            let folder = Folder::new(&format!("without-{command}-{}", file.replace('/', "-")));
            std::fs::remove_file(folder.0.join(file)).unwrap();
            let line = refusal(&[command, "--model", folder.path(), "a"], b"b\n");
            assert!(line.contains(file), "{line}");
        }
    }
    let line = refusal(&["similarity", "--candidates", "no-such-file", "a"], b"");
    assert!(line.contains("no-such-file"), "{line}");
    let file = assets().join("config.json");
    let line = refusal(&["embed", "--model", file.to_str().unwrap(), "a"], b"");
    assert!(line.contains("config.json"), "{line}");
}

#[test]
fn damaged_files_are_named_in_one_line() {
    for file in FILES {
        let folder = Folder::new(&format!("damaged-{}", file.replace('/', "-")));
        let whole = folder.read(file);
        let mut damaged: Vec<Vec<u8>> =
            [0, 1, 7, 8, 9, whole.len() / 2].map(|len| whole[..len].to_vec()).into();
        damaged.push(b"[[[[[[[[[[".repeat(10_000));
        damaged.push(b"{\"line\n\": \"\x1b[2J".to_vec());
        damaged.push(vec![0xff; 4096]);
        damaged.push(vec![0; whole.len()]);
        for bytes in damaged {
            folder.write(file, &bytes);
            let line = folder.refusal();
            assert!(line.contains(file), "{line}");
            assert!(line.chars().all(|c| !c.is_control()), "{line:?}");
        }
        std::fs::remove_file(folder.0.join(file)).unwrap();
        std::fs::create_dir(folder.0.join(file)).unwrap();
        assert!(folder.refusal().contains(file));
    }
}

#[test]
fn a_config_that_does_not_fit_the_weights_is_refused_whatever_it_claims() {
    let folder = Folder::new("config");
    for field in [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
        "type_vocab_size",
    ] {
        let whole = folder.read("config.json");
        let old: Value = serde_json::from_slice(&whole).unwrap();
        let old = old[field].as_u64().unwrap();
        let values = [
            json!(old + 1),
            json!(old * 1000),
            json!(1u64 << 40),
            json!(u64::MAX),
            json!(-1),
            json!(1.5),
            json!("2"),
            json!([2]),
        ];
        for value in values {
            folder.set("config.json", field, value.clone());
            let line = folder.refusal();
            assert!(line.contains(folder.path()), "{field} = {value}: {line}");
            assert!(line.len() < 8000, "{line}");
        }
        folder.write("config.json", whole);
    }
    for (field, value) in [
        ("model_type", json!("mamba")),
        ("hidden_act", json!("nothing known")),
        ("layer_norm_eps", json!(0)),
        ("position_embedding_type", json!("relative_key")),
        ("is_decoder", json!(true)),
    ] {
        let whole = folder.read("config.json");
        folder.set("config.json", field, value);
        let line = folder.refusal();
        assert!(line.contains(field), "{line}");
        folder.write("config.json", whole);
    }
}

#[test]
fn a_tokenizer_of_another_vocabulary_and_weights_that_are_no_numbers_are_told_per_text() {
    let folder = Folder::new("vocabulary");
    let tokenizer = String::from_utf8(folder.read("tokenizer.json")).unwrap();
    let cat = tokenizer.lines().find(|line| line.trim_start().starts_with("\"cat\":")).unwrap();
    folder.write("tokenizer.json", tokenizer.replace(cat, "      \"cat\": 70000,"));
    let args = ["embed", "--model", folder.path()];
    let output = run(&args, b"the dog\nthe cat\nthe bird\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1);
    let line = refusal(&args, b"the dog\nthe cat\nthe bird\n");
    assert!(line.contains("line 2") && line.contains("70000"), "{line}");

    let folder = Folder::new("nan");
    let mut weights = folder.read("model.safetensors");
    let end = weights.len();
    weights[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    folder.write("model.safetensors", weights);
    for format in ["plain", "json", "f32"] {
        let args = ["embed", "--model", folder.path(), "--format", format];
        let line = refusal(&args, b"the dog\n");
        assert!(line.contains("line 1") && line.contains("not finite"), "{line}");
    }
}

#[test]
fn a_text_that_the_tokenizer_refuses_is_named_after_the_records_before_it() {
    let folder = Folder::new("unknown");
    let mut tokenizer: Value = serde_json::from_slice(&folder.read("tokenizer.json")).unwrap();
    tokenizer["model"]["vocab"].as_object_mut().unwrap().remove("[UNK]");
    tokenizer["added_tokens"].as_array_mut().unwrap().retain(|t| t["content"] != "[UNK]");
    tokenizer["model"]["vocab"]["dog"] = json!(70000);
    folder.write("tokenizer.json", tokenizer.to_string());
    let args = ["embed", "--model", folder.path()];
    for (input, line, why) in [
        ("the cat\nλ\nthe bird\n", "line 2: ", "[UNK]"),
        // Two that are refused, for different reasons: the first counts.
        ("the cat\nthe dog\nλ\n", "line 2: ", "70000"),
        ("the cat\nthe bird\nλ\nthe dog\n", "line 3: ", "[UNK]"),
    ] {
        let output = run(&args, input.as_bytes());
        let records = String::from_utf8(output.stdout).unwrap();
        let refused = refusal(&args, input.as_bytes());
        assert!(refused.starts_with(&format!("standard input: {line}")), "{refused}");
        assert!(refused.contains(why), "{refused}");
        let count = records.lines().count();
        assert_eq!(line, format!("line {}: ", count + 1));
        let before: String = input.split_inclusive('\n').take(count).collect();
        assert_eq!(records, text(&args, before.as_bytes()));
    }
}

#[test]
fn tokenizers_that_their_reader_takes_on_trust_end_in_one_line_too() {
    let folder = Folder::new("tokenizer");
    let whole = folder.read("tokenizer.json");
    let long = "word ".repeat(5000);
    let thrice = Value::from(vec![json!({"Sequence": {"id": "A", "type_id": 0}}); 3]);
    let template = |single: Value| json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}});
    for (field, value) in [
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
        // A trie of 4 GB, in four bytes.
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="})),
        ("post_processor", template(thrice)),
        ("post_processor", template(json!([{"SpecialToken": {"id": "[CLS]", "type_id": 0}}]))),
    ] {
        folder.set("tokenizer.json", field, value.clone());
        let line = refusal(&["embed", "--model", folder.path(), &long], b"");
        assert!(!line.contains("internal error"), "{field} = {value}: {line}");
        folder.write("tokenizer.json", &whole);
    }
    // What a folder records about truncation and padding changes nothing.
    let texts = ["short", &long];
    let args = [&["--model", folder.path()], &texts[..]].concat();
    let expected = records(&args, b"");
    folder.set(
        "tokenizer.json",
        "truncation",
        json!({"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}),
    );
    folder.set(
        "tokenizer.json",
        "padding",
        json!({
            "strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]",
        }),
    );
    assert_eq!(records(&args, b""), expected);
}

#[test]
fn a_cap_on_memory_is_kept_or_refused() {
    let line = refusal(&["embed", "--max-memory", "1K", "a"], b"");
    assert!(line.contains("1024"), "{line}");
    assert_eq!(records(&["--max-memory", "64M"], b"a\n"), records(&[], b"a\n"));
}

#[test]
fn pooling_and_normalisation_can_be_chosen() {
    let norm = |args: &[&str]| -> f64 {
        records(args, b"a text\n")[0].1.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
    };
    assert!((norm(&[]) - 1.0).abs() < 1e-6);
    assert!((norm(&["--normalize"]) - 1.0).abs() < 1e-6);
    assert!((norm(&["--no-normalize", "--pooling", "cls"]) - 32f64.sqrt()).abs() < 1e-4);
    let vectors: Vec<_> = ["mean", "cls", "max", "last"]
        .map(|pooling| records(&["--pooling", pooling], b"a text\n").remove(0).1)
        .into();
    assert!((0..4).all(|i| (0..i).all(|j| vectors[i] != vectors[j])));
}

#[test]
fn a_wrong_command_line_is_refused_and_help_is_not() {
    let wrong: [&[&str]; 9] = [
        &[],
        &["nothing"],
        &["embed", "--format", "xml"],
        &["embed", "--threads", "0"],
        &["embed", "--isa", "avx3"],
        &["embed", "--normalize", "--no-normalize"],
        &["similarity"],
        &["similarity", "--top", "0", "a"],
        &["similarity", "--candidates", "x", "a", "b"],
    ];
    for args in wrong {
        let output = run(args, b"");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
    for args in [&["--help"][..], &["embed", "--help"], &["--version"]] {
        assert!(!stdout(args, b"").is_empty());
    }
    assert!(text(&["--help"], b"").contains("untrained"));
}

/// The crate's page is the project's: a package holds only what lies in its folder, so there are two.
#[test]
fn the_readme_of_the_crate_is_that_of_the_project() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    // In the packaged crate there is one only.
    if let Ok(project) = std::fs::read(project) {
        assert!(std::fs::read(own).unwrap() == project, "copy README.md to model/README.md");
    }
}

#[test]
fn a_line_with_more_bytes_than_are_tokenised_is_named() {
    let input = format!("a\n{}\n", "b ".repeat(1 << 19 | 1));
    let line = refusal(&["embed"], input.as_bytes());
    assert_eq!(line, "standard input: line 2: 1048577 bytes, the limit is 1048576");
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn pipes_devices_and_links_in_place_of_files_are_refused_at_once() {
        for file in FILES {
            let folder = Folder::new(&format!("special-{}", file.replace('/', "-")));
            let path = folder.0.join(file);
            let replace = |with: &dyn Fn()| {
                std::fs::remove_file(&path).unwrap();
                with();
                let line = folder.refusal();
                assert!(line.contains(file), "{line}");
            };
            replace(&|| {
                assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            });
            replace(&|| symlink("/dev/zero", &path).unwrap());
            replace(&|| symlink(&path, &path).unwrap());
            replace(&|| symlink("nowhere", &path).unwrap());
        }
    }

    #[test]
    fn what_cannot_be_read_or_written_is_told_in_one_line() {
        let folder = std::fs::File::open(assets()).unwrap();
        let output = headrow(&["embed"]).stdin(folder).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("headrow: standard input: "), "{stderr}");
        assert_eq!(stderr.lines().count(), 1);
        if Path::new("/dev/full").exists() {
            let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
            let output = headrow(&["embed", "a"]).stdout(full).output().unwrap();
            assert_eq!(output.status.code(), Some(2));
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert!(stderr.starts_with("headrow: standard output: "), "{stderr}");
        }
    }

    #[test]
    fn a_file_without_line_ends_takes_bounded_memory() {
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let output = headrow(&["embed"]).stdin(zeros).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr, "headrow: standard input: line 1: longer than 4 MiB\n");
    }
}
