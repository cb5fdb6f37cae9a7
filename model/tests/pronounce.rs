//! The model inside the library and the program: letters and phonemes of English words.

#[path = "support/command.rs"]
mod command;
#[path = "support/tiny.rs"]
mod tiny;

use command::{refusal, run, text};
use headrow::generate::{Beam, Generated, GenerationOptions, Strategy};
use headrow::{LoadOptions, TextModel};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tiny::Folder;

const WORDS: [&str; 6] = ["transformer", "cat", "it's", "banana", "lamp", "sister"];
/// What anybody would say of words that are spelt as they sound.
const REGULAR: [(&str, &str); 6] = [
    ("cat", "K AE T"),
    ("pit", "P IH T"),
    ("pin", "P IH N"),
    ("ten", "T EH N"),
    ("lamp", "L AE M P"),
    ("sister", "S IH S T ER"),
];

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/g2p")
}

fn folder() -> String {
    assets().to_str().unwrap().to_owned()
}

/// Answers of the model inside the library, so many words at a time.
fn answers(model: &TextModel, at_a_time: usize, options: &GenerationOptions) -> Vec<Generated> {
    let sizes = model.session_options(at_a_time, options).with_threads(1);
    let mut session = model.session(&sizes).unwrap();
    let spelt: Vec<String> = WORDS.iter().map(|word| model.spell(word).unwrap()).collect();
    let groups = spelt.chunks(at_a_time);
    groups.flat_map(|group| model.translate(&mut session, group, options).unwrap()).collect()
}

fn phonemes(answer: &Generated) -> &str {
    answer.hypotheses[0].text.as_deref().unwrap()
}

#[test]
fn the_model_inside_is_that_of_the_folder_bit_for_bit() {
    let (inside, folder) =
        (TextModel::pronouncer().unwrap(), TextModel::from_dir(assets()).unwrap());
    assert!(matches!(inside.options().strategy, Strategy::Beam(beam) if beam.size == 4));
    let [inside, folder] = [&inside, &folder].map(|model| answers(model, 6, model.options()));
    assert_eq!(inside, folder);
}

#[test]
fn words_get_alone_what_they_get_in_company() {
    let model = TextModel::pronouncer().unwrap();
    let [alone, together] = [1, WORDS.len()].map(|words| answers(&model, words, model.options()));
    assert_eq!(alone, together);
}

#[test]
fn several_pronunciations_differ_and_come_best_first() {
    let model = TextModel::pronouncer().unwrap();
    let options = model.options().clone().with_strategy(Beam::new(4).with_n_best(4));
    for answer in answers(&model, WORDS.len(), &options) {
        assert_eq!(answer.hypotheses.len(), 4);
        assert!(answer.hypotheses.is_sorted_by(|a, b| a.score >= b.score));
        let mut told: Vec<_> = answer.hypotheses.iter().map(|one| &one.tokens).collect();
        told.sort_unstable();
        told.dedup();
        assert_eq!(told.len(), 4);
    }
}

#[test]
fn the_program_says_what_the_library_says_in_every_form() {
    let model = TextModel::pronouncer().unwrap();
    let expected = answers(&model, 1, model.options());
    let lines: String = expected.iter().map(|answer| format!("{}\n", phonemes(answer))).collect();
    assert_eq!(text(&[&["pronounce"][..], &WORDS].concat(), b""), lines);
    let shouted = WORDS.map(|word| word.to_uppercase().replace('\'', "\u{2019}")).join("\r\n");
    assert_eq!(text(&["pronounce", "--threads", "2"], shouted.as_bytes()), lines);
    let records = text(&["pronounce", "--format", "json"], WORDS.join("\n").as_bytes());
    assert_eq!(records.lines().count(), WORDS.len());
    for ((record, word), answer) in records.lines().zip(WORDS).zip(&expected) {
        let record: Value = serde_json::from_str(record).unwrap();
        assert_eq!(record["word"], word);
        assert_eq!(record["pronunciations"][0]["phonemes"], phonemes(answer));
    }
    let line = refusal(&["pronounce", "na\u{ef}ve"], b"");
    assert_eq!(line, "text 1: na\u{ef}ve: the model knows no letter '\u{ef}'");
}

#[test]
fn the_word_of_the_readme_is_pronounced_as_it_says() {
    let told = text(&["pronounce", "transformer"], b"");
    assert_eq!(told, "T R AE N S F AO R M ER\n");
    assert!(include_str!("../../README.md").contains(told.trim_end()));
}

/// `HEADROW_G2P` names a folder with words that the model has not seen, `cmudict_g2p.test.tsv`, and with the
/// pronunciations of all words that have several, `cmudict_variants.json`.
#[test]
fn words_that_it_has_not_seen_are_mostly_right() {
    let Some(data) = std::env::var_os("HEADROW_G2P").map(PathBuf::from) else {
        return eprintln!("HEADROW_G2P is not set: skipped");
    };
    let path = |name: &str| data.join(name).to_str().unwrap().to_owned();
    let (pairs, variants) = (path("cmudict_g2p.test.tsv"), path("cmudict_variants.json"));
    let report = text(
        &["evaluate", "--model", &folder(), "--data", &pairs, "--variants", &variants, "--json"],
        b"",
    );
    let report: Value = serde_json::from_str(&report).unwrap();
    let [phonemes, words] = ["tokens", "texts"].map(|part| report["error_rate"][part].as_f64());
    println!("phoneme error {phonemes:?}, word error {words:?}");
    assert!(phonemes.unwrap() <= 0.08 && words.unwrap() <= 0.33, "{report}");
}

#[test]
fn words_that_are_spelt_as_they_sound_are_pronounced_so() {
    let words = REGULAR.map(|(word, _)| word);
    let expected: String = REGULAR.iter().map(|(_, told)| format!("{told}\n")).collect();
    assert_eq!(text(&[&["pronounce"][..], &words].concat(), b""), expected);
}

#[test]
fn letters_and_phonemes_are_drawn_beside_each_other() {
    let inside = text(&["attention", "Cat"], b"");
    assert!(inside.starts_with("<svg") && inside.contains("Cross-attention"), "{inside}");
    assert_eq!(inside, text(&["attention", "--model", &folder(), "c a t"], b""));
    assert_eq!(
        text(&["attention", "cat", "K AE T"], b""),
        text(&["attention", "--model", &folder(), "c a t", "K AE T"], b"")
    );
    let line = refusal(&["attention", "c4t"], b"");
    assert_eq!(line, "the text: c4t: the model knows no letter '4'");
}

#[test]
fn the_folder_is_a_model_as_any_other() {
    let (model, work) = (folder(), Folder::new("pronounce-folder"));
    let options = ["translate", "--model", &model];
    let told = text(&[&options[..], &["c a t", "l a m p"]].concat(), b"");
    assert_eq!(told, text(&["pronounce", "cat", "lamp"], b""));
    let pairs = work.0.join("pairs.tsv");
    let (cat, lamp) = told.trim_end().split_once('\n').unwrap();
    std::fs::write(&pairs, format!("c a t\t{cat}\nl a m p\t{lamp}\n")).unwrap();
    let pairs = pairs.to_str().unwrap();
    let args = ["evaluate", "--model", &model, "--data", pairs, "--json"];
    let report: Value = serde_json::from_str(&text(&args, b"")).unwrap();
    assert_eq!(report["error_rate"]["texts"], 0.0, "{report}");
    let out = work.0.join("run");
    let out = out.to_str().unwrap();
    let train = ["train", "--init", &model, "--data", pairs, "--out", out, "--steps", "2"];
    let trained = run(&[&train[..], &["--save-every", "2", "--average", "1"]].concat(), b"");
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    assert_eq!(text(&["pronounce", "--model", out, "cat"], b"").lines().count(), 1);
}

#[test]
fn files_in_memory_are_a_folder() {
    let read = |name: &str| std::fs::read(assets().join(name)).unwrap();
    let names = ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"];
    let contents = names.map(read);
    let files: Vec<(&str, &[u8])> =
        names.into_iter().zip(contents.iter().map(Vec::as_slice)).collect();
    let model = TextModel::from_files(&files).unwrap();
    assert_eq!(model.options(), TextModel::from_dir(assets()).unwrap().options());
    // Without its own file, decoding is as the config has it: greedy, to the end of a sequence.
    let model = TextModel::from_files_with(&files[..3], &LoadOptions::default()).unwrap();
    assert!(matches!(model.options().strategy, Strategy::Greedy));
    assert_eq!(model.options().stop_ids, [2]);
    for missing in 0..3 {
        let mut files = files.clone();
        let (name, _) = files.remove(missing);
        let error = TextModel::from_files(&files).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}
