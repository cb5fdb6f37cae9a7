//! BLEU against scores that sacreBLEU recorded.
//!
//! `HEADROW_BLEU_CASES=FILE cargo test --release -p headrow --test metrics -- --nocapture` also compares all cases of a larger
//! file of the same form.

use headrow::metrics::{Bleu, BleuOptions, BleuOrders, BleuScore, BleuSmoothing, BleuWords};
use serde_json::Value;

fn close(actual: f64, expected: &Value) -> bool {
    (actual - expected.as_f64().unwrap()).abs() <= 1e-9
}

fn corpus(options: BleuOptions, answers: &[&str], references: &[&str]) -> Bleu {
    let mut bleu = Bleu::new(options);
    answers.iter().zip(references).for_each(|(answer, reference)| bleu.add(answer, &[reference]));
    bleu
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn agrees(score: &BleuScore, recorded: &Value) -> bool {
    let precisions = recorded["precisions"].as_array().unwrap();
    close(score.score, &recorded["score"])
        && score.precisions.iter().zip(precisions).all(|(p, recorded)| close(*p, recorded))
        && close(score.brevity_penalty, &recorded["bp"])
        && recorded["sys_len"] == score.answer_length
        && recorded["ref_len"] == score.reference_length
}

/// Compares a file's sets of answers in all ways; passed and failed.
fn compare(file: &Value) -> (usize, usize) {
    let references = texts(&file["refs"]);
    let (mut passed, mut failed) = (0, 0);
    let mut count = |name: String, agrees: bool| {
        *(if agrees { &mut passed } else { &mut failed }) += 1;
        println!("{name} {}", if agrees { "ok" } else { "FAIL" });
    };
    for case in file["cases"].as_array().unwrap() {
        let (name, answers) = (case["name"].as_str().unwrap(), texts(&case["hyp"]));
        for (way, recorded) in case.as_object().unwrap() {
            let Some((words, smoothing)) =
                way.strip_prefix("bleu.").and_then(|way| way.split_once('.'))
            else {
                continue;
            };
            let words: BleuWords = words.parse().unwrap();
            let smoothing: BleuSmoothing = smoothing.parse().unwrap();
            let options = BleuOptions::default().with_words(words).with_smoothing(smoothing);
            let score = corpus(options, &answers, &references).score();
            count(format!("{name} {way}"), agrees(&score, recorded));
        }
        let bleu = Bleu::new(BleuOptions::default().with_orders(BleuOrders::Effective));
        let sentences = case["bleu_sent_exp"].as_array().unwrap();
        assert!(sentences.len() <= answers.len());
        let all = sentences.iter().zip(answers.iter().zip(&references));
        let wrong = all
            .filter(|(recorded, (answer, reference))| {
                !close(bleu.sentence(answer, &[reference]).score, recorded)
            })
            .count();
        count(format!("{name} sentences"), wrong == 0);
    }
    (passed, failed)
}

fn check(name: &str, json: &[u8]) {
    let (passed, failed) = compare(&serde_json::from_slice(json).unwrap());
    println!("{name}: {passed} passed, {failed} failed, 0 skipped");
    assert!(failed == 0 && passed > 0);
}

#[test]
fn recorded_scores_are_met() {
    check("fixture", include_bytes!("fixtures/bleu.json"));
    match std::env::var_os("HEADROW_BLEU_CASES") {
        Some(path) => check(&path.to_string_lossy(), &std::fs::read(&path).unwrap()),
        None => println!("HEADROW_BLEU_CASES is not set: the larger file is left out"),
    }
}
