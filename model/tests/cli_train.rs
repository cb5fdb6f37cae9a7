//! The commands that train and average, as their users run them.

#[path = "support/command.rs"]
mod command;
#[path = "support/tiny.rs"]
mod tiny;

use command::{headrow, refusal, run, text};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tiny::{Folder, Random};

/// Pairs of letters and the same letters backwards.
fn pairs(folder: &Folder, name: &str, count: usize, seed: u64) -> String {
    let mut random = Random(seed);
    let lines = (0..count).map(|_| {
        let letters: Vec<&str> =
            (0..2 + random.below(3)).map(|_| ["a", "b", "c", "d"][random.below(4)]).collect();
        let back: Vec<&str> = letters.iter().rev().copied().collect();
        format!("{}\t{}\n", letters.join(" "), back.join(" "))
    });
    let path = folder.0.join(name);
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A model that is trained in moments.
const TINY: &str = "--tokenizer words --layers 1 --d-model 8 --heads 2 --d-ff 16 --batch-tokens 60 --schedule constant \
                    --rate 0.01 --warmup 4 --threads 1 --seed 3";

fn args<'a>(parts: &[&'a str]) -> Vec<&'a str> {
    parts.iter().flat_map(|part| part.split(' ')).filter(|part| !part.is_empty()).collect()
}

fn weights(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("model.safetensors")).unwrap()
}

fn path(folder: &Folder, name: &str) -> (PathBuf, String) {
    let path = folder.0.join(name);
    (path.clone(), path.to_str().unwrap().to_owned())
}

#[test]
fn a_training_gives_a_model_that_translates() {
    let folder = Folder::new("cli-train");
    let (data, valid) = (pairs(&folder, "data", 80, 1), pairs(&folder, "valid", 9, 2));
    let (out, name) = path(&folder, "out");
    let data = format!("train --data {data} --valid {valid} --out {name}");
    let course =
        "--steps 12 --log-every 4 --save-every 4 --valid-every 6 --bleu 5 --average 2 --keep 2";
    let lines = text(&args(&[&data, TINY, course]), b"");
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert!(lines[0].starts_with("step 4  epoch "), "{lines:?}");
    assert!(lines[1].starts_with("step 6  validation  loss "), "{lines:?}");
    assert!(lines[4].contains("BLEU"), "{lines:?}");
    for file in ["config.json", "tokenizer.json", "generation_config.json", "run.json", "loss.svg"]
    {
        assert!(out.join(file).exists(), "{file}");
    }
    let log = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 5);
    let answer = text(&["translate", "--model", &name, "a b c"], b"");
    assert_eq!(answer.lines().count(), 1);
    let checkpoint = format!("{name}/checkpoints/step-12");
    text(&["translate", "--model", &checkpoint, "a b c"], b"");

    // The mean that the training made, made again; and of another precision.
    let (mean, mean_name) = path(&folder, "mean");
    text(&["average", "--out", &mean_name, "--run", &name, "--last", "2"], b"");
    assert!(weights(&mean) == weights(&out));
    let first = format!("{name}/checkpoints/step-8");
    text(&["average", "--out", &mean_name, &first, &checkpoint], b"");
    assert!(weights(&mean) == weights(&out));
    text(&["average", "--out", &mean_name, "--dtype", "bf16", &first, &checkpoint], b"");
    let info = text(&["info", "--model", &mean_name], b"");
    assert!(info.contains("BF16"), "{info}");
    let few = refusal(&["average", "--out", &mean_name, "--run", &name, "--last", "9"], b"");
    assert!(few.ends_with("2 checkpoints, not 9"), "{few}");

    // Begun again in the same folder; resumed with other options, and at its end.
    let again = refusal(&args(&[&data, TINY, course]), b"");
    assert!(again.contains("has a training, which --resume goes on with, already"), "{again}");
    let resume = format!("train --resume {name}");
    let other = refusal(&args(&[&resume, "--dropout 0.5"]), b"");
    assert_eq!(other, "--dropout: the training began with 0.1, not 0.5");
    let before = weights(&out);
    text(&args(&[&resume, "--seed 3"]), b"");
    assert!(weights(&out) == before);
    // And longer: as one that was longer from the first.
    text(&args(&[&resume, "--steps 16"]), b"");
    let (long, long_name) = path(&folder, "long");
    let (data, course) = (data.replace(&name, &long_name), course.replace("12", "16"));
    text(&args(&[&data, TINY, &course]), b"");
    assert!(weights(&out) == weights(&long));
}

#[test]
fn a_training_that_is_killed_and_resumed_gives_the_same_weights() {
    let folder = Folder::new("cli-killed");
    let data = pairs(&folder, "data", 300, 1);
    let course = "--steps 400 --log-every 7 --save-every 20 --average 3 --dropout 0.2";
    let begin = |name: &str| format!("train --data {data} --out {name} {TINY} {course}");
    let (whole, name) = path(&folder, "whole");
    let started = Instant::now();
    text(&args(&[&begin(&name)]), b"");
    let length = started.elapsed();

    let (killed, name) = path(&folder, "killed");
    let (begin, resume) = (begin(&name), format!("train --resume {name}"));
    let mut random = Random(12);
    for _ in 0..10 {
        let command = if killed.join("run.json").exists() { &resume } else { &begin };
        let mut child =
            headrow(&args(&[command])).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // About a sixth of a training at a time, so that some of the ten find it ended.
        std::thread::sleep(length.mul_f64(random.below(1000) as f64 / 3000.0));
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    text(&args(&[&resume]), b"");
    assert!(weights(&killed) == weights(&whole));
    let last = |folder: &Path| weights(&folder.join("checkpoints/step-400"));
    assert!(last(&killed) == last(&whole));
    let count = |folder: &Path| {
        std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap().lines().count()
    };
    assert_eq!(count(&killed), count(&whole));
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_training_with_a_checkpoint() {
    let folder = Folder::new("cli-interrupt");
    let data = pairs(&folder, "data", 200, 1);
    let (out, name) = path(&folder, "out");
    let command =
        format!("train --data {data} --out {name} {TINY} --save-every 100000 --steps 100000");
    let child =
        headrow(&args(&[&command])).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !out.join("metrics.jsonl").exists()
        || std::fs::read(out.join("metrics.jsonl")).unwrap().is_empty()
    {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let id = child.id().to_string();
    let killed = std::process::Command::new("kill").args(["-INT", &id]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("headrow: stopped after step "), "{stderr}");
    assert!(
        stderr.trim_end().ends_with(&format!("headrow train --resume {name} goes on")),
        "{stderr}"
    );
    let step = stderr.split(' ').nth(4).unwrap().trim_end_matches(';');
    assert!(
        out.join(format!("checkpoints/step-{step}/optimizer.safetensors")).exists(),
        "{stderr}"
    );
    let next = step.parse::<u64>().unwrap() + 2;
    text(&args(&[&format!("train --resume {name} --steps {next}")]), b"");
    assert!(out.join("model.safetensors").exists());
}

/// Trains a tiny model with further options, and returns its folder.
fn trained(folder: &Folder, name: &str, options: &str) -> PathBuf {
    let (out, path) = path(folder, name);
    let course = format!("train --out {path} --steps 2 {options}");
    let (words, tiny) = (args(&[&course]), args(&[TINY]));
    // What is said comes before what is usual.
    let usual = tiny.chunks(2).filter(|pair| !words.contains(&pair[0])).flatten().copied();
    let mut all: Vec<&str> = words.clone();
    if !options.contains("--init") {
        all.extend(usual);
    }
    text(&all, b"");
    out
}

fn read(path: PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn options_of_the_shape_reach_the_model() {
    let folder = Folder::new("cli-shape");
    let data = format!("--data {}", pairs(&folder, "data", 40, 1));
    let cases = [
        ("--norm pre", "/decoder/placement", json!("pre")),
        ("--norm-kind rms", "/encoder/norm", json!("rms")),
        ("--activation gelu", "/encoder/activation", json!("gelu")),
        ("--activation gelu-tanh", "/encoder/activation", json!("gelu_new")),
        ("--activation silu --gated", "/decoder/gating", json!("gated")),
        ("--positions learned --max-length 40", "/encoder/input/positions/rows", json!(40)),
        ("--positions rotary", "/encoder/relative/kind", json!("rotary")),
        ("--positions buckets", "/decoder/relative/kind", json!("buckets")),
        ("--positions alibi", "/decoder/relative/kind", json!("alibi")),
        ("--tie target", "/shared_words", json!(false)),
        ("--tie none", "/read_out/tied", json!(false)),
        ("--heads 4 --kv-heads 2", "/decoder/kv_heads", json!(2)),
        ("--layers 2", "/encoder/layers", json!(2)),
        ("--decoder-layers 2", "/decoder/layers", json!(2)),
        ("--decoder-layers 2", "/encoder/layers", json!(1)),
        ("--d-model 12 --d-ff 20", "/decoder/d_ff", json!(20)),
    ];
    for (index, (options, field, expected)) in cases.into_iter().enumerate() {
        let out = trained(&folder, &format!("out-{index}"), &format!("{data} {options}"));
        let config = read(out.join("config.json"));
        assert_eq!(config.pointer(field), Some(&expected), "{options}: {config}");
        text(&["translate", "--model", out.to_str().unwrap(), "a b"], b"");
    }
    // The paper's base model has its shape without further options; two steps of it would take too long here.
    let base = format!("{data} --preset base --layers 1 --d-model 8 --heads 2 --d-ff 16");
    let out = trained(&folder, "base", &base);
    let run = read(out.join("run.json"));
    assert_eq!(run.pointer("/course/average"), Some(&json!(5)));
    assert_eq!(run.pointer("/recipe/dropout"), Some(&json!(0.1)));
}

#[test]
fn options_of_the_recipe_change_the_weights_and_threads_do_not() {
    let folder = Folder::new("cli-recipe");
    let data = format!("--data {}", pairs(&folder, "data", 60, 1));
    let plain = weights(&trained(&folder, "plain", &data));
    let threads = format!("{data} --threads 3");
    assert!(weights(&trained(&folder, "threads", &threads)) == plain);
    let mut seen = vec![plain];
    for (index, options) in [
        "--dropout 0",
        "--dropout 0.5",
        "--smoothing 0",
        "--smoothing-kind others",
        "--clip 0.01",
        "--weight-decay 0.5",
        "--seed 4",
        "--rate 0.02",
        "--rate-factor 3",
        "--warmup 1",
        "--accumulate 2",
        "--batch-tokens 30",
        "--schedule cosine --warmup 0",
        "--schedule cosine --warmup 0 --cosine-steps 9",
    ]
    .iter()
    .enumerate()
    {
        let out = trained(&folder, &format!("out-{index}"), &format!("{data} {options}"));
        let other = weights(&out);
        assert!(!seen.contains(&other), "{options}");
        seen.push(other);
    }
    let out = trained(&folder, "bf16", &format!("{data} --dtype bf16"));
    assert!(weights(&out).len() < seen[0].len());
    let paper = refusal(&args(&["train --out", &path(&folder, "p").1, &data, "--rate 1"]), b"");
    assert!(paper.contains("--rate-factor"), "{paper}");
    let cosine =
        format!("train --out {} {data} --schedule cosine --epochs 1", path(&folder, "c").1);
    let cosine = refusal(&args(&[&cosine]), b"");
    assert!(cosine.contains("--cosine-steps"), "{cosine}");
}

#[test]
fn texts_are_learnt_by_decoders_and_encoders() {
    let folder = Folder::new("cli-texts");
    let file = folder.0.join("text");
    std::fs::write(&file, "the quick brown fox jumps over the lazy dog\n".repeat(20)).unwrap();
    let data = format!("--data {0} --valid {0} --max-length 12", file.display());
    let words = "--tokenizer bpe:60";
    let causal = trained(&folder, "causal", &format!("{data} {words} --objective causal"));
    assert_eq!(read(causal.join("config.json"))["encoder"], Value::Null);
    let causal = causal.to_str().unwrap().to_owned();
    text(&["generate", "--model", &causal, "--max-new-tokens", "3", "the quick"], b"");
    let lines = format!("{data} {words} --objective causal --layout lines");
    trained(&folder, "lines", &lines);
    let masked = trained(&folder, "masked", &format!("{data} {words} --objective masked"));
    let info = text(&["info", "--model", masked.to_str().unwrap()], b"");
    assert!(info.contains("BERT") || info.contains("bert"), "{info}");
    let other = format!("train --out {} {data} --objective masked --gated", path(&folder, "x").1);
    assert!(refusal(&args(&[&other]), b"").contains("--gated"));
    // A model that is trained further, also from a checkpoint and of another family.
    for (index, from) in [
        causal.clone(),
        format!("{causal}/checkpoints/step-2"),
        masked.to_str().unwrap().to_owned(),
    ]
    .iter()
    .enumerate()
    {
        let further = format!("{data} --init {from} --batch-tokens 60 --threads 1");
        let out = trained(&folder, &format!("further-{index}"), &further);
        let tokenizer = |folder: &Path| std::fs::read(folder.join("tokenizer.json")).unwrap();
        assert!(tokenizer(&out) == tokenizer(Path::new(from)));
        assert!(weights(&out) != weights(Path::new(from)));
    }
    let learned = format!("{data} {words} --objective masked --positions learned");
    assert!(weights(&trained(&folder, "learned", &learned)) == weights(&masked));
    let (z, name) = path(&folder, "z");
    let sines = format!("train --out {name} {data} --objective masked --positions sinusoidal");
    assert!(refusal(&args(&[&sines]), b"").contains("--positions"));
    assert!(!z.exists());
    let both = format!("train --out {} {data} --init {causal} --layers 2", path(&folder, "y").1);
    assert_eq!(run(&args(&[&both]), b"").status.code(), Some(2));
}

#[test]
fn a_training_goes_on_without_the_model_that_it_began_with() {
    let folder = Folder::new("cli-init");
    let data = pairs(&folder, "data", 40, 1);
    let from = trained(&folder, "from", &format!("--data {data}"));
    let init = from.to_str().unwrap();
    let course = "--batch-tokens 60 --threads 1 --save-every 2 --smoothing-kind others --steps";
    let begin = |name: &str| format!("train --data {data} --init {init} --out {name} {course}");
    let [(whole, whole_name), (out, name)] = ["whole", "out"].map(|name| path(&folder, name));
    text(&args(&[&begin(&whole_name), "6"]), b"");
    text(&args(&[&begin(&name), "4"]), b"");
    std::fs::rename(&from, folder.0.join("elsewhere")).unwrap();
    text(&args(&[&format!("train --resume {name} --steps 6")]), b"");
    assert!(weights(&out) == weights(&whole));
    // Also when the last checkpoint is of no use.
    let last = out.join("checkpoints/step-6/model.safetensors");
    std::fs::write(&last, "").unwrap();
    let refused = refusal(&["train", "--resume", &name], b"");
    assert!(refused.contains("step-6/model.safetensors"), "{refused}");
    let output = run(&["train", "--resume", &name, "--skip-damaged"], b"");
    assert!(output.status.success());
    assert!(weights(&out) == weights(&whole));
}

#[test]
fn what_goes_with_a_model_goes_with_its_training() {
    let folder = Folder::new("cli-companions");
    let file = folder.0.join("text");
    std::fs::write(&file, "the quick brown fox jumps over the lazy dog\n".repeat(20)).unwrap();
    let data = format!("--data {} --max-length 12", file.display());
    let from = trained(&folder, "from", &format!("{data} --objective masked"));
    std::fs::create_dir(from.join("1_Pooling")).unwrap();
    let module = |name: &str, path: &str| json!({"name": name, "path": path, "type": format!("sentence_transformers.models.{name}")});
    let recipe = [
        ("modules.json", json!([module("Transformer", ""), module("Pooling", "1_Pooling")])),
        ("1_Pooling/config.json", json!({"pooling_mode_max_tokens": true})),
        ("sentence_bert_config.json", json!({"max_seq_length": 7})),
        ("preprocessor_config.json", json!({})),
        ("LICENSE", json!("As you like.")),
    ];
    for (name, says) in &recipe {
        std::fs::write(from.join(name), says.to_string()).unwrap();
    }
    std::fs::write(from.join("README.md"), "Scores of other weights.").unwrap();

    let init = format!("{data} --init {} --batch-tokens 60 --threads 1", from.display());
    let out = trained(&folder, "out", &init);
    let checkpoint = out.join("checkpoints/step-2");
    let mean = folder.0.join("mean");
    let all = |checks: &[&Path]| {
        for place in checks {
            for (name, says) in &recipe {
                assert_eq!(read(place.join(name)), *says, "{name} in {}", place.display());
            }
            let place = place.to_str().unwrap();
            text(&["embed", "--model", place, "the quick brown fox"], b"");
        }
    };
    all(&[&out, &checkpoint]);
    assert!(!out.join("README.md").exists());
    // The model that is written has them from its checkpoints; a training that goes on, from its folder.
    std::fs::remove_dir_all(out.join("1_Pooling")).unwrap();
    std::fs::write(out.join("README.md"), "Mine.").unwrap();
    let resume = format!("train --resume {}", out.display());
    text(&args(&[&resume]), b"");
    text(&args(&[&resume, "--steps 3"]), b"");
    let last = out.join("checkpoints/step-3");
    let average = ["average", "--out", mean.to_str().unwrap(), last.to_str().unwrap()];
    text(&average, b"");
    all(&[&out, &last, &mean]);
    assert_eq!(std::fs::read_to_string(out.join("README.md")).unwrap(), "Mine.");
    assert!(!last.join("README.md").exists() && !mean.join("README.md").exists());

    // A mean is of the same training: its README goes along.
    std::fs::write(last.join("README.md"), "Of this training.").unwrap();
    text(&average, b"");
    assert_eq!(std::fs::read_to_string(mean.join("README.md")).unwrap(), "Of this training.");

    // What is no regular file is refused by name, before anything is written.
    std::fs::remove_file(from.join("LICENSE")).unwrap();
    std::fs::create_dir(from.join("LICENSE")).unwrap();
    let (other, name) = path(&folder, "other");
    let refused = refusal(&args(&["train --out", &name, &init]), b"");
    assert!(refused.ends_with("LICENSE: not a regular file"), "{refused}");
    assert!(!other.exists());
    std::fs::remove_file(out.join("run.json")).unwrap();
    std::fs::create_dir(out.join("run.json")).unwrap();
    let refused = refusal(&args(&[&resume]), b"");
    assert!(refused.ends_with("run.json: not a regular file"), "{refused}");
}

#[test]
fn a_training_goes_on_from_anywhere() {
    let folder = Folder::new("cli-elsewhere");
    pairs(&folder, "data", 40, 1);
    let from = trained(&folder, "from", &format!("--data {}", folder.0.join("data").display()));
    std::fs::copy(from.join("tokenizer.json"), folder.0.join("words.json")).unwrap();
    let at = |place: &Path, command: &str| {
        let output = headrow(&args(&[command])).current_dir(place).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{command}: {told}");
    };
    let tiny = TINY.replace("--tokenizer words", "--tokenizer words.json");
    at(&folder.0, &format!("train --data data --out out {tiny} --steps 2"));
    at(&folder.0, "train --resume out --steps 3 --tokenizer words.json --data data");
    at(&from, "train --resume ../out --steps 4");
    std::fs::remove_file(folder.0.join("words.json")).unwrap();
    at(&from, "train --resume ../out --steps 5");
    assert!(folder.0.join("out/checkpoints/step-5").exists());
}

#[test]
fn sizes_beyond_the_machine_are_refused() {
    let folder = Folder::new("cli-sizes");
    let data = pairs(&folder, "data", 40, 1);
    let (_, name) = path(&folder, "out");
    for sizes in [
        "--batch-tokens 4000000000",
        "--batch-tokens 4000000000 --max-length 4000000000 --positions buckets",
        "--batch-tokens 4000000000 --max-length 4000000000 --d-model 4",
        "--d-model 4000000000 --heads 1",
        "--d-model 4000000000 --heads 1 --d-ff 4294967295 --layers 60",
        "--d-ff 4294967295 --batch-tokens 4294967295",
        "--objective masked --max-length 4000000000 --d-model 4000 --heads 1",
    ] {
        let usual = args(&[TINY]);
        let said = args(&[sizes]);
        let usual = usual.chunks(2).filter(|pair| !said.contains(&pair[0])).flatten();
        let begin = args(&["train --steps 2 --data", &data, "--out", &name]);
        let all: Vec<&str> = begin.iter().chain(&said).chain(usual).copied().collect();
        let line = refusal(&all, b"");
        assert!(line.contains("no memory for"), "{sizes}: {line}");
        std::fs::remove_dir_all(folder.0.join("out")).unwrap();
    }
}

/// A folder of `model_type` whose words are those of `vocabulary`, with a config that names special tokens.
fn seq2seq_folder(folder: &Folder, name: &str, fields: Value) -> PathBuf {
    let out = folder.0.join(name);
    std::fs::create_dir_all(&out).unwrap();
    std::fs::write(out.join("config.json"), fields.to_string()).unwrap();
    let config = headrow::Config::from_file(out.join("config.json")).unwrap();
    let parameters = headrow::train::Parameters::initialise(&config, 1).unwrap();
    let bytes = parameters.to_safetensors(headrow::train::Precision::F32);
    std::fs::write(out.join("model.safetensors"), bytes).unwrap();
    out
}

#[test]
fn other_families_learn_what_they_generate() {
    let folder = Folder::new("cli-families");
    let data = pairs(&folder, "data", 60, 1);
    let words = ["<pad>", "</s>", "<unk>", "<s>", "a", "b", "c", "d"];
    let vocabulary: serde_json::Map<String, Value> =
        words.iter().zip(0..).map(|(word, id)| (word.to_string(), json!(id))).collect();
    let added: Vec<Value> = words[..4]
        .iter()
        .zip(0..)
        .map(|(word, id)| {
            json!({"id": id, "content": word, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let end = json!({"SpecialToken": {"id": "</s>", "type_id": 0}});
    let text_part = json!({"Sequence": {"id": "A", "type_id": 0}});
    let tokenizer = json!({
        "version": "1.0", "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {"type": "TemplateProcessing", "single": [text_part, end],
            "pair": [text_part, end], "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    });
    let bart = json!({
        "model_type": "bart", "vocab_size": 8, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        "max_position_embeddings": 20, "activation_function": "gelu", "bos_token_id": 3, "eos_token_id": 1,
        "pad_token_id": 0, "decoder_start_token_id": 1, "forced_bos_token_id": 3, "max_length": 12,
    });
    let marian = json!({
        "model_type": "marian", "vocab_size": 8, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        "max_position_embeddings": 20, "activation_function": "swish", "scale_embedding": true, "eos_token_id": 1,
        "pad_token_id": 0, "decoder_start_token_id": 0, "max_length": 12,
    });
    let t5 = json!({
        "model_type": "t5", "vocab_size": 8, "d_model": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 32,
        "feed_forward_proj": "relu", "eos_token_id": 1, "pad_token_id": 0, "max_length": 12,
    });
    for (name, config) in [("bart", bart), ("marian", marian), ("t5", t5)] {
        let from = seq2seq_folder(&folder, name, config);
        std::fs::write(from.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let (out, out_name) = path(&folder, &format!("{name}-out"));
        let course = "--valid-every 120 --batch-tokens 200 --schedule constant --rate 0.02 --warmup 10 --dropout 0 --smoothing 0 --threads 1";
        let init = from.to_str().unwrap();
        let command = format!(
            "train --data {data} --valid {data} --init {init} --out {out_name} {course} --steps 120"
        );
        text(&args(&[&command]), b"");
        // What it learned is what it is asked for: the likeliness of the targets as decoding sees them is that of training.
        let log = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
        let last = log.lines().find(|line| line.contains("validation")).unwrap();
        let last: Value = serde_json::from_str(last).unwrap();
        let report = text(
            &args(&[&format!(
                "evaluate --model {out_name} --data {data} --metrics perplexity --json"
            )]),
            b"",
        );
        let report: Value = serde_json::from_str(&report).unwrap();
        let [learned, asked] =
            [&last["perplexity"], &report["perplexity"]].map(|x| x.as_f64().unwrap());
        assert!(learned < 3.0 && (learned / asked - 1.0).abs() < 1e-3, "{name}: {learned} {asked}");
    }
}

#[test]
fn data_is_read_as_it_is_said() {
    let folder = Folder::new("cli-data");
    let (good, bad) = (pairs(&folder, "good", 30, 1), folder.0.join("bad"));
    std::fs::write(&bad, "XY B\tB XY\nno tab\n").unwrap();
    let bad = bad.to_str().unwrap();
    let (_, out) = path(&folder, "out");
    let course = format!("train --out {out} --steps 1 {TINY} --data {good} {bad}");
    let output = run(&args(&[&course]), b"");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let expected = format!("headrow: 1 left out: {bad}: line 2: ");
    assert!(stderr.starts_with(&expected), "{stderr}");
    let tokenizer = |name: &str| {
        String::from_utf8(std::fs::read(folder.0.join(name).join("tokenizer.json")).unwrap())
            .unwrap()
    };
    assert!(tokenizer("out").contains("\"XY\""));
    let strict = course.replace(&out, &path(&folder, "strict").1) + " --strict";
    assert!(refusal(&args(&[&strict]), b"").contains("line 2: "));
    let both = course.replace(&out, &path(&folder, "lower").1) + " --lowercase both";
    run(&args(&[&both]), b"");
    assert!(!tokenizer("lower").contains("\"XY\""));
    let file = format!("{out}/tokenizer.json");
    let given = course.replace(&out, &path(&folder, "given").1).replace("words", &file);
    run(&args(&[&given]), b"");
    assert_eq!(tokenizer("given"), tokenizer("out"));
    for (options, problem) in [("", "--data"), ("--data none.tsv", "none.tsv")] {
        let command = format!("train --out {} {options}", path(&folder, "none").1);
        let refused = refusal(&args(&[&command]), b"");
        assert!(refused.contains(problem), "{refused}");
    }
    let nothing = refusal(&["train", "--resume", &path(&folder, "nothing").1], b"");
    assert!(nothing.contains("run.json"), "{nothing}");
    // A model that is there already is not written over.
    let model = folder.0.join("model");
    std::fs::create_dir_all(&model).unwrap();
    std::fs::write(model.join("model.safetensors"), "precious").unwrap();
    let over = course.replace(&out, model.to_str().unwrap());
    assert!(refusal(&args(&[&over]), b"").contains("has a model already"));
    assert_eq!(std::fs::read(model.join("model.safetensors")).unwrap(), b"precious");
}

#[test]
fn a_damaged_checkpoint_is_told_and_passed_over_when_that_is_wanted() {
    let folder = Folder::new("cli-damaged");
    let data = pairs(&folder, "data", 60, 1);
    let (out, name) = path(&folder, "out");
    text(
        &args(&[&format!("train --data {data} --out {name} {TINY} --steps 8 --save-every 4")]),
        b"",
    );
    let whole = weights(&out);
    let last = out.join("checkpoints/step-8/model.safetensors");
    std::fs::write(&last, &std::fs::read(&last).unwrap()[..100]).unwrap();
    let resume = ["train", "--resume", &name];
    let refused = refusal(&resume, b"");
    assert!(refused.contains("step-8") && refused.contains("damaged"), "{refused}");
    let told = |args: &[&str]| {
        let output = run(args, b"");
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let line = told(&[&resume[..], &["--skip-damaged"]].concat());
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.contains("step-8 is passed over") && line.contains("step-8.damaged"), "{line}");
    assert!(weights(&out) == whole);
    // A checkpoint that is named.
    let line = told(&["train", "--resume", &format!("{name}/checkpoints/step-4")]);
    assert!(line.contains("step-8 is of a later step") && line.contains("step-8.later"), "{line}");
    assert!(weights(&out) == whole);
    // A mean that fails leaves nothing.
    std::fs::write(&last, &std::fs::read(&last).unwrap()[..100]).unwrap();
    let (mean, mean_name) = path(&folder, "mean");
    let refused = refusal(&["average", "--out", &mean_name, "--run", &name, "--last", "2"], b"");
    assert!(refused.contains("step-8/model.safetensors: damaged"), "{refused}");
    assert!(!mean.exists());
}

#[test]
fn patience_epochs_and_minutes_end_a_training() {
    let folder = Folder::new("cli-ends");
    let data = pairs(&folder, "data", 40, 1);
    let train = |name: &str, options: &str| {
        let name = path(&folder, name).1;
        let command = format!(
            "train --data {data} --valid {data} --out {name} {TINY} --log-every 1 --valid-every 1"
        );
        text(&args(&[&command, options]), b"")
    };
    let patient = train("patience", "--patience 2 --rate-factor 0 --steps 99");
    assert_eq!(patient.matches("validation").count(), 3, "{patient}");
    for option in ["--patience", "--bleu"] {
        let name = path(&folder, "unmeasured").1;
        let command = format!("train --data {data} --out {name} {TINY} {option} 2");
        assert_eq!(refusal(&args(&[&command]), b""), format!("{option}: needs --valid"));
    }
    let epochs = train("epochs", "--epochs 2");
    assert!(epochs.lines().last().unwrap().contains("validation"), "{epochs}");
    assert!(epochs.contains("epoch 2  ") && !epochs.contains("epoch 3  "), "{epochs}");
    assert!(train("minutes", "--minutes 0.001").lines().count() < 2000);
}

#[test]
fn what_cannot_be_done_leaves_things_as_they_are() {
    let folder = Folder::new("cli-refused");
    let (data, (out, name)) = (pairs(&folder, "data", 40, 1), path(&folder, "out"));
    let begin = format!("train --data {data} --out {name} --steps 3");
    text(&args(&[&begin, TINY]), b"");
    // Options that are no limits do not reach the plan of the training.
    let plan = std::fs::read(out.join("run.json")).unwrap();
    for minutes in ["nan", "inf", "-1", "0"] {
        let resume = format!("train --resume {name} --minutes={minutes}");
        let output = run(&args(&[&resume]), b"");
        assert_eq!(output.status.code(), Some(2), "{minutes}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("minutes"), "{minutes}");
        assert_eq!(std::fs::read(out.join("run.json")).unwrap(), plan);
    }
    // Nor do those of a resumption that fails.
    let kept = folder.0.join("kept");
    std::fs::rename(&data, &kept).unwrap();
    refusal(&args(&[&format!("train --resume {name} --steps 9")]), b"");
    assert_eq!(std::fs::read(out.join("run.json")).unwrap(), plan);
    std::fs::rename(&kept, &data).unwrap();
    // A model in shards is a model.
    let (shards, name) = path(&folder, "shards");
    std::fs::create_dir(&shards).unwrap();
    std::fs::write(shards.join("model.safetensors.index.json"), "{}").unwrap();
    let line = refusal(&args(&[&format!("train --data {data} --out {name}"), TINY]), b"");
    assert!(line.contains("has a model already"), "{line}");
    assert_eq!(std::fs::read_dir(&shards).unwrap().count(), 1);
}

#[test]
fn validation_needs_something_to_predict_and_answers_what_it_can() {
    let folder = Folder::new("cli-validation");
    let data = pairs(&folder, "data", 40, 1);
    let (_, name) = path(&folder, "masked");
    let valid = folder.0.join("valid");
    std::fs::write(&valid, "a\n").unwrap();
    let masked = format!("train --data {data} --valid {} --out {name}", valid.display());
    let line = refusal(&args(&[&masked, TINY, "--objective masked --steps 2"]), b"");
    assert!(line.contains("no token of it is predicted"), "{line}");
    // A pair that is longer than the model reads is answered with nothing.
    let letters = ["a"; 30].join(" ");
    std::fs::write(&valid, format!("a b\tb a\n{letters}\t{letters}\n")).unwrap();
    let (_, name) = path(&folder, "learned");
    let learned = format!("train --data {data} --valid {} --out {name}", valid.display());
    let course = "--positions learned --max-length 10 --bleu 2 --steps 2";
    let output = run(&args(&[&learned, TINY, course]), b"");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && told.contains("line 2: a source of 31 tokens"), "{told}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("BLEU"));
}
