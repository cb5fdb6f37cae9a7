//! Whole runs: stopped and resumed, ended by one limit or another, damaged, and what comes out of them.

#[path = "support/tiny.rs"]
mod tiny;

use headrow::train::{
    BatchOptions, Corpus, DamagedCheckpoint, DataOptions, Dataset, DatasetOptions, Ended, Event,
    LogLine, MetricsLog, NetworkOptions, Parameters, Precision, Run, RunOptions, Schedule, Task,
    Trainer, TrainerOptions, VocabularyOptions, average, checkpoints, vocabulary,
};
use headrow::{Config, Error, Input, StackConfig, TextModel, TokenInput, Tokenizer};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use tiny::{Folder, Random};

/// Words of a few letters, to be said backwards.
struct Reversal {
    folder: Folder,
    companions: Vec<(String, Vec<u8>)>,
    config: Config,
    train: Dataset,
    valid: Dataset,
}

const BATCH: usize = 40;

impl Reversal {
    fn new(name: &str) -> Reversal {
        let folder = Folder::new(name);
        let mut random = Random(4);
        let mut file = |name: &str, count: usize| {
            let path = folder.0.join(name);
            let lines = (0..count).map(|_| {
                let letters: Vec<&str> = (0..2 + random.below(4))
                    .map(|_| ["a", "b", "c", "d", "e"][random.below(5)])
                    .collect();
                let back: Vec<&str> = letters.iter().rev().copied().collect();
                format!("{}\t{}\n", letters.join(" "), back.join(" "))
            });
            std::fs::write(&path, lines.collect::<String>()).unwrap();
            Corpus::read(&[path], &DataOptions::default()).unwrap()
        };
        let (train, valid) = (file("train.tsv", 60), file("valid.tsv", 12));
        let tokenizer = vocabulary(train.texts(), &VocabularyOptions::words()).unwrap();
        let reader = Tokenizer::from_bytes(&tokenizer).unwrap();
        let options = DatasetOptions::new(Task::Translation);
        let dataset = |corpus: &Corpus| Dataset::new(corpus, &reader, &options).unwrap();
        let mut config = Config::general(8);
        let input = Input::Tokens(TokenInput::paper(reader.vocabulary(), 8));
        config.encoder = Some(StackConfig::paper(input.clone(), 1, 8, 2, 16));
        config.decoder = Some(StackConfig::paper(input, 1, 8, 2, 16));
        config.special.decoder_start = reader.id("<s>");
        config.special.end = vec![reader.id("</s>").unwrap()];
        let companions = vec![
            ("config.json".to_owned(), config.to_json().unwrap().into_bytes()),
            ("tokenizer.json".to_owned(), tokenizer),
        ];
        let (train, valid) = (dataset(&train), dataset(&valid));
        Reversal { folder, companions, config, train, valid }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    fn trainer(&self, change: impl FnOnce(&mut TrainerOptions)) -> Trainer {
        let mut options = TrainerOptions::paper(8)
            .with_schedule(Schedule::Constant { rate: 0.01, warmup: 4 })
            .with_seed(9);
        change(&mut options);
        let parameters = Parameters::initialise(&self.config, 1).unwrap();
        let network = NetworkOptions::default().with_max_tokens(BATCH).with_threads(1);
        Trainer::new(parameters, &network, options).unwrap()
    }

    fn run_of(&self, folder: &Path, trainer: Trainer, options: RunOptions) -> Run<'_> {
        let batches = BatchOptions::new(BATCH).with_seed(2);
        Run::new(folder, trainer, &self.train, batches, self.companions.clone(), options)
            .unwrap()
            .with_validation(&self.valid, BATCH)
            .unwrap()
    }

    fn run(&self, folder: &Path, options: RunOptions) -> Run<'_> {
        self.run_of(folder, self.trainer(|_| ()), options)
    }
}

fn options() -> RunOptions {
    RunOptions::default()
        .with_accumulate(2)
        .with_log_every(3)
        .with_validate_every(4)
        .with_save_every(4)
        .with_keep(3)
        .with_average(2)
}

fn to_the_end(run: &mut Run<'_>) -> Ended {
    run.train(&mut |_| ControlFlow::Continue(())).unwrap()
}

fn resumed(run: &mut Run<'_>) -> u64 {
    run.resume(None, DamagedCheckpoint::Refuse).unwrap().steps
}

fn model(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("model.safetensors")).unwrap()
}

/// The log without what the clock says.
fn log(folder: &Path) -> Vec<LogLine> {
    let mut lines = MetricsLog::read(folder.join("metrics.jsonl")).unwrap();
    for line in &mut lines {
        match line {
            LogLine::Train(line) => (line.seconds, line.tokens_per_second) = (0.0, 0.0),
            LogLine::Validation(line) => line.seconds = 0.0,
            _ => unreachable!(),
        }
    }
    lines
}

fn steps(folder: &Path) -> Vec<u64> {
    checkpoints(folder.join("checkpoints")).unwrap().into_iter().map(|(step, _)| step).collect()
}

#[test]
fn a_run_that_is_stopped_and_resumed_ends_as_one_that_is_not() {
    let task = Reversal::new("run-resume");
    let options = options().with_steps(21);
    let whole = task.path("whole");
    assert_eq!(to_the_end(&mut task.run(&whole, options.clone())), Ended::Steps);
    assert_eq!(steps(&whole), [12, 16, 20, 21]);
    for stops in [&[1][..], &[4], &[7, 8, 19], &[2, 13, 20]] {
        let folder = task.path(&format!("stopped-{}", stops.len()));
        let _ = std::fs::remove_dir_all(&folder);
        for (part, &stop) in stops.iter().enumerate() {
            let mut run = task.run(&folder, options.clone());
            if part > 0 {
                assert_eq!(resumed(&mut run), stops[part - 1]);
            }
            let ended = run.train(&mut |event| match event {
                Event::Step(report) if report.step == stop => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            });
            assert_eq!(ended.unwrap(), Ended::Asked);
            assert_eq!(steps(&folder).last(), Some(&stop));
            assert!(!folder.join("model.safetensors").exists());
        }
        // The options of the trainer are those that it began with, whatever it is made with later.
        let trainer = task.trainer(|options| options.dropout = 0.7);
        let mut run = task.run_of(&folder, trainer, options.clone());
        run.resume(None, DamagedCheckpoint::Refuse).unwrap();
        assert_eq!(run.trainer().options().dropout, 0.1);
        assert_eq!(to_the_end(&mut run), Ended::Steps);
        assert!(model(&folder) == model(&whole), "{stops:?}");
        assert_eq!(log(&folder), log(&whole), "{stops:?}");
        let last = |folder: &Path| model(&folder.join("checkpoints/step-21"));
        assert!(last(&folder) == last(&whole));
        assert_eq!(steps(&folder), [12, 16, 20, 21]);
    }
}

#[test]
fn a_run_that_was_killed_goes_on_from_its_last_checkpoint() {
    let task = Reversal::new("run-killed");
    let options = options().with_steps(14);
    let (whole, killed) = (task.path("whole"), task.path("killed"));
    to_the_end(&mut task.run(&whole, options.clone()));
    // Killed before the first checkpoint, and between two: what was written after it does not count.
    for stop in [3, 10] {
        let mut run = task.run(&killed, options.clone());
        assert_eq!(resumed(&mut run), 0);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run.train(&mut |event| match event {
                Event::Step(report) if report.step == stop => panic!("killed"),
                _ => ControlFlow::Continue(()),
            })
        }));
        assert!(ended.is_err());
    }
    assert_eq!(steps(&killed), [4, 8]);
    // And in the middle of writing.
    std::fs::create_dir_all(killed.join("checkpoints/.partial-step-12")).unwrap();
    let mut file = std::fs::read(killed.join("metrics.jsonl")).unwrap();
    file.extend(b"{\"kind\":\"tr");
    std::fs::write(killed.join("metrics.jsonl"), file).unwrap();
    let mut run = task.run(&killed, options);
    assert_eq!(resumed(&mut run), 8);
    to_the_end(&mut run);
    assert!(model(&killed) == model(&whole));
    assert_eq!(log(&killed), log(&whole));
    let count = std::fs::read_dir(killed.join("checkpoints")).unwrap().count();
    assert_eq!(count, steps(&killed).len());
}

#[test]
fn the_model_is_the_mean_of_the_last_checkpoints_and_answers() {
    let task = Reversal::new("run-model");
    let folder = task.path("run");
    let options = options().with_steps(12).with_precision(Precision::Bf16);
    to_the_end(&mut task.run(&folder, options));
    let mean = task.path("mean");
    let checkpoint = |step: u64| folder.join(format!("checkpoints/step-{step}"));
    average(&[checkpoint(8), checkpoint(12)], &mean, Precision::Bf16).unwrap();
    assert!(model(&folder) == model(&mean));
    for folder in [&folder, &mean, &checkpoint(12)] {
        let model = TextModel::from_dir(folder).unwrap();
        let options = model.options().clone().with_max_new_tokens(8usize);
        let mut session = model.session(&model.session_options(1, &options)).unwrap();
        assert_eq!(model.translate(&mut session, ["a b c"], &options).unwrap().len(), 1);
    }
    let svg = std::fs::read_to_string(folder.join("loss.svg")).unwrap();
    assert!(svg.contains("validation") && svg.ends_with("</svg>\n"), "{svg}");
    // A run that has ended is not begun again, and ends at once when it is resumed.
    let again = task.run(&folder, self::options().with_steps(12));
    let mut again = again;
    let error = again.train(&mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("has checkpoints already"), "{error}");
    let before = model(&folder);
    let mut run = task.run(&folder, self::options().with_steps(12).with_precision(Precision::Bf16));
    assert_eq!(resumed(&mut run), 12);
    assert_eq!(to_the_end(&mut run), Ended::Steps);
    assert!(model(&folder) == before);
}

#[test]
fn epochs_time_and_patience_end_a_run() {
    let task = Reversal::new("run-ends");
    let count = task.train.len();
    assert!(count > 50);
    let mut run = task.run(&task.path("epochs"), options().with_epochs(2));
    let mut predicted = 0;
    let ended = run.train(&mut |event| {
        if let Event::Step(report) = event {
            predicted += report.loss.tokens;
        }
        ControlFlow::Continue(())
    });
    assert_eq!(ended.unwrap(), Ended::Epochs);
    let batches = headrow::train::Batches::new(&task.train, BatchOptions::new(BATCH)).unwrap();
    let mut examples = headrow::train::Examples::default();
    let epoch = batches.epoch(0);
    let once: usize = (0..epoch.len())
        .map(|batch| {
            epoch.fill(batch, &mut examples);
            examples.predicted()
        })
        .sum();
    assert_eq!(predicted, 2 * once);

    let mut run = task.run(&task.path("time"), options().with_seconds(0.0));
    assert_eq!(to_the_end(&mut run), Ended::Time);
    assert_eq!(run.trainer().steps(), 0);

    // A rate of 0 never improves on the first validation.
    let still = task.trainer(|options| {
        options.schedule = Schedule::Constant { rate: 0.0, warmup: 0 };
    });
    let folder = task.path("patience");
    let patient = options().with_patience(3).with_steps(1000).with_keep(1).with_average(1);
    let mut run = task.run_of(&folder, still, patient);
    assert_eq!(to_the_end(&mut run), Ended::Patience);
    assert_eq!(run.trainer().steps(), 16);
    // The best one is kept.
    assert_eq!(steps(&folder), [4, 16]);
    let best = Parameters::from_dir(folder.join("checkpoints/step-4")).unwrap();
    assert!(Parameters::from_dir(&folder).unwrap().values() == best.values());
}

#[test]
fn damage_is_told_and_passed_over_when_that_is_wanted() {
    let task = Reversal::new("run-damaged");
    let folder = task.path("run");
    let options = options().with_steps(12);
    to_the_end(&mut task.run(&folder, options.clone()));
    let whole = model(&folder);
    let path = folder.join("checkpoints/step-12/optimizer.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    let mut run = task.run(&folder, options.clone());
    let error = run.resume(None, DamagedCheckpoint::Refuse).unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error}");
    assert!(error.to_string().contains("step-12"), "{error}");
    let resumed = run.resume(None, DamagedCheckpoint::Skip).unwrap();
    assert_eq!((resumed.steps, resumed.later), (8, vec![]));
    let [(path, error)] = &resumed.damaged[..] else { panic!("{:?}", resumed.damaged) };
    assert_eq!(path, &folder.join("checkpoints/step-12"));
    assert!(error.to_string().contains("optimizer.safetensors"), "{error}");
    // Nothing is lost before the step is saved anew.
    assert_eq!(steps(&folder), [4, 8, 12]);
    run.train(&mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!(steps(&folder), [4, 8, 9]);
    assert!(folder.join("checkpoints/step-12.damaged/model.safetensors").exists());
    let mut run = task.run(&folder, options);
    assert_eq!(self::resumed(&mut run), 9);
    to_the_end(&mut run);
    assert!(model(&folder) == whole);
    assert!(!folder.join("checkpoints/step-12.damaged").exists());
}

#[cfg(unix)]
#[test]
fn what_cannot_be_reached_is_not_damaged() {
    let task = Reversal::new("run-unreachable");
    let folder = task.path("run");
    to_the_end(&mut task.run(&folder, options().with_steps(8)));
    // A link to itself: what it is instead of the file is not known.
    let path = folder.join("checkpoints/step-8/model.safetensors");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&path, &path).unwrap();
    let mut run = task.run(&folder, options().with_steps(8));
    let error = run.resume(None, DamagedCheckpoint::Skip).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    // Nor is what belongs to another model.
    std::fs::remove_file(&path).unwrap();
    let mut config = task.config.clone();
    config.decoder.as_mut().unwrap().d_ff = 24;
    let parameters = Parameters::initialise(&config, 1).unwrap();
    let network = NetworkOptions::default().with_max_tokens(BATCH).with_threads(1);
    let trainer = Trainer::new(parameters, &network, TrainerOptions::paper(8)).unwrap();
    let other = task.path("other");
    to_the_end(&mut task.run_of(&other, trainer, options().with_steps(8)));
    std::fs::remove_dir_all(folder.join("checkpoints/step-8")).unwrap();
    std::fs::rename(other.join("checkpoints/step-8"), folder.join("checkpoints/step-8")).unwrap();
    let error = run.resume(None, DamagedCheckpoint::Skip).unwrap_err();
    assert!(matches!(error, Error::Weights { .. }), "{error}");
    assert_eq!(steps(&folder), [4, 8]);
}

#[test]
fn later_checkpoints_stay_until_the_run_comes_to_them() {
    let task = Reversal::new("run-rewound");
    let folder = task.path("run");
    let options = options().with_steps(12);
    to_the_end(&mut task.run(&folder, options.clone()));
    let whole = model(&folder);
    let named = folder.join("checkpoints/step-4");
    let mut run = task.run(&folder, options.clone());
    let resumed = run.resume(Some(&named), DamagedCheckpoint::Refuse).unwrap();
    let path = |step: &str| folder.join("checkpoints").join(step);
    assert_eq!((resumed.steps, resumed.later), (4, vec![path("step-12"), path("step-8")]));
    assert_eq!(steps(&folder), [4, 8, 12]);
    let ended = run.train(&mut |event| match event {
        Event::Step(report) if report.step == 8 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert_eq!(ended.unwrap(), Ended::Asked);
    assert_eq!(steps(&folder), [4, 8]);
    assert!(!path("step-8.later").exists() && path("step-12.later/optimizer.safetensors").exists());
    let mut run = task.run(&folder, options);
    assert_eq!(self::resumed(&mut run), 8);
    to_the_end(&mut run);
    assert!(model(&folder) == whole && !path("step-12.later").exists());
}

#[test]
fn a_longer_run_is_the_same_however_it_came_to_be_long() {
    let task = Reversal::new("run-longer");
    let batches = headrow::train::Batches::new(&task.train, BatchOptions::new(BATCH).with_seed(2));
    // Steps that do not divide a pass.
    let of_a_pass = batches.unwrap().epoch(0).len();
    let accumulate = (2..).find(|count| !of_a_pass.is_multiple_of(*count)).unwrap();
    let options = options().with_accumulate(accumulate).with_log_every(1).with_validate_every(2);
    let patient = options.clone().with_patience(50);
    for (name, options) in [("plain", options), ("patient", patient)] {
        let [whole, longer] = ["whole", "longer"].map(|part| task.path(&format!("{name}-{part}")));
        to_the_end(&mut task.run(&whole, options.clone().with_epochs(5)));
        to_the_end(&mut task.run(&longer, options.clone().with_epochs(1)));
        for epochs in [3, 5] {
            let mut run = task.run(&longer, options.clone().with_epochs(epochs));
            assert!(resumed(&mut run) > 0);
            assert_eq!(to_the_end(&mut run), Ended::Epochs);
        }
        assert!(model(&longer) == model(&whole), "{name}");
        let (last, all) = (steps(&whole), steps(&longer));
        assert_eq!(last, all, "{name}");
        for step in last {
            let of = |folder: &Path| model(&folder.join(format!("checkpoints/step-{step}")));
            assert!(of(&whole) == of(&longer), "{name} {step}");
        }
        // But for validations at what was the end for a while.
        let mut lines = log(&longer);
        let expected = log(&whole);
        lines.retain(|line| expected.contains(line));
        assert_eq!(lines, expected, "{name}");
    }
}

/// All that is in a folder, by name, with the time when it was written.
fn content(folder: &Path) -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(content(&path)),
            false => {
                let written = path.metadata().unwrap().modified().unwrap();
                all.push((path.clone(), std::fs::read(&path).unwrap(), written));
            }
        }
    }
    all.sort();
    all
}

#[test]
fn a_run_that_has_ended_is_left_as_it_is() {
    let task = Reversal::new("run-ended");
    // The end at a whole interval of everything, of some things and of nothing.
    for count in [12, 8, 9, 7] {
        let folder = task.path(&format!("run-{count}"));
        let options = options().with_steps(count);
        to_the_end(&mut task.run(&folder, options.clone()));
        let before = content(&folder);
        let mut run = task.run(&folder, options);
        assert_eq!(resumed(&mut run), count);
        assert_eq!(to_the_end(&mut run), Ended::Steps);
        assert_eq!(content(&folder), before, "{count}");
    }
}

#[test]
fn patience_that_comes_late_finds_a_model() {
    let task = Reversal::new("run-late-patience");
    // Ever worse from the first validation on.
    let worse = || {
        task.trainer(|options| {
            options.schedule = Schedule::Constant { rate: 0.5, warmup: 0 };
        })
    };
    let folder = task.path("run");
    let short = options().with_keep(1).with_average(1).with_validate_every(1);
    to_the_end(&mut task.run_of(&folder, worse(), short.clone().with_steps(16)));
    let losses: Vec<(u64, f64)> = log(&folder)
        .into_iter()
        .filter_map(|line| match line {
            LogLine::Validation(line) => Some((line.step, line.loss)),
            _ => None,
        })
        .collect();
    let best = losses.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
    assert!(best < 16 && steps(&folder) == [16], "{losses:?}");
    let mut run = task.run_of(&folder, worse(), short.with_patience(1));
    assert_eq!(resumed(&mut run), 16);
    assert_eq!(to_the_end(&mut run), Ended::Patience);
    // The best of those that there are.
    let left = Parameters::from_dir(folder.join("checkpoints/step-16")).unwrap();
    assert!(Parameters::from_dir(&folder).unwrap().values() == left.values());
}

#[test]
fn a_damaged_checkpoint_gives_no_mean() {
    let task = Reversal::new("run-mean");
    let folder = task.path("run");
    to_the_end(&mut task.run(&folder, options().with_steps(8)));
    let before = model(&folder);
    let path = folder.join("checkpoints/step-4/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let checkpoint = |step: u64| folder.join(format!("checkpoints/step-{step}"));
    let out = task.path("mean");
    let error = average(&[checkpoint(4), checkpoint(8)], &out, Precision::F32).unwrap_err();
    assert!(error.to_string().contains("step-4/model.safetensors: damaged"), "{error}");
    assert!(!out.exists());
    // A run that has the mean yet to make.
    let mut run = task.run(&folder, options().with_steps(8));
    assert_eq!(resumed(&mut run), 8);
    let error = run.train(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error}");
    assert!(model(&folder) == before);
}

#[test]
fn other_data_or_batches_are_refused() {
    let task = Reversal::new("run-other");
    let folder = task.path("run");
    to_the_end(&mut task.run(&folder, options().with_steps(4)));
    let batches = BatchOptions::new(BATCH).with_seed(2);
    let refused = |data, batches, options| {
        let companions = task.companions.clone();
        let mut run =
            Run::new(&folder, task.trainer(|_| ()), data, batches, companions, options).unwrap();
        let error = run.resume(None, DamagedCheckpoint::Skip).unwrap_err();
        assert!(matches!(error, Error::TrainingOption { field: "data", .. }), "{error}");
    };
    refused(&task.valid, batches, options());
    refused(&task.train, batches.with_seed(3), options());
    refused(&task.train, batches, options().with_accumulate(3));
}

#[test]
fn what_is_not_finite_ends_a_run_and_keeps_the_last_checkpoint() {
    let task = Reversal::new("run-nan");
    let folder = task.path("run");
    let wild = task.trainer(|options| {
        // Weights are finite after the first step, and nothing that comes of them in the second.
        options.schedule = Schedule::Constant { rate: 1e30, warmup: 0 };
    });
    let mut run = task.run_of(&folder, wild, options().with_steps(50).with_save_every(1));
    let error = run.train(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, Error::NotFinite { step: 2, .. }), "{error}");
    let kept = checkpoints(folder.join("checkpoints")).unwrap();
    assert_eq!(kept.iter().map(|&(step, _)| step).collect::<Vec<_>>(), [1]);
    for (_, path) in kept {
        assert!(Parameters::from_dir(path).unwrap().values().iter().all(|x| x.is_finite()));
    }
    assert!(!folder.join("model.safetensors").exists());
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let task = Reversal::new("run-options");
    for bad in [
        options().with_accumulate(0),
        options().with_log_every(0),
        options().with_validate_every(0),
        options().with_save_every(0),
        options().with_keep(0),
        options().with_average(0),
        options().with_patience(0),
        options().with_seconds(f64::NAN),
    ] {
        let batches = BatchOptions::new(BATCH);
        let run =
            Run::new(task.path("run"), task.trainer(|_| ()), &task.train, batches, vec![], bad);
        assert!(matches!(run.map(drop), Err(Error::TrainingOption { .. })));
    }
}
