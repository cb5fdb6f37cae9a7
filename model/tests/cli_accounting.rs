//! `headrow info --config …` and `headrow plot`: numbers as `accounting` has them, pictures that show what they should.

#[path = "support/command.rs"]
mod command;
#[path = "support/picture.rs"]
mod picture;

use command::{refusal, text};
use headrow::position::{SinusoidLayout, sinusoids};
use picture::{lines, texts};
use roxmltree::{Document, Node};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn info(args: &[&str]) -> Value {
    let args = [&["info", "--json"], args].concat();
    serde_json::from_str(&text(&args, b"")).unwrap()
}

/// The numbers at this place.
fn at<'v>(value: &'v Value, pointer: &str) -> &'v Value {
    value.pointer(pointer).unwrap_or_else(|| panic!("{pointer} in {value}"))
}

/// A file name of its own in the folder of temporary files.
struct Picture(PathBuf);

impl Picture {
    fn new(name: &str) -> Picture {
        let name = format!("headrow-{}-{name}.svg", std::process::id());
        Picture(std::env::temp_dir().join(name))
    }

    /// Runs `headrow plot` and gives standard output and the picture.
    fn plot(&self, args: &[&str]) -> (String, String) {
        let out = ["--out", self.0.to_str().unwrap()];
        let printed = text(&[&["plot"], args, &out].concat(), b"");
        (printed, std::fs::read_to_string(&self.0).unwrap())
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn info_counts_the_papers_models_without_weights() {
    let base = info(&["--config", "base", "--vocab", "37000"]);
    assert_eq!(at(&base, "/parameters/total"), 63_082_496);
    assert_eq!(at(&base, "/parameters/encoder/layer"), 12 * 512 * 512 + 13 * 512);
    assert_eq!(at(&base, "/parameters/published/vocabularies"), &json!([39_769, 41_721]));
    assert_eq!(at(&base, "/crossover"), &json!({"encoder": 3072, "decoder": 2731}));
    let tensors = at(&base, "/parameters/tensors").as_array().unwrap();
    let sum: u64 = tensors.iter().map(|tensor| tensor["numbers"].as_u64().unwrap()).sum();
    assert_eq!(sum, 63_082_496);
    assert!(
        tensors.iter().any(|tensor| tensor["name"] == "words.weight" && tensor["shared"] == true)
    );
    let big = info(&["--config", "big", "--vocab", "37000", "--n", "25"]);
    assert_eq!(at(&big, "/parameters/total"), 214_245_376);
    assert_eq!(at(&big, "/training/published"), 2.3e19);
    // 4n²d in each of six layers.
    assert_eq!(at(&big, "/operations/encoder/attention"), 6.0 * 4.0 * 625.0 * 1024.0);
    assert_eq!(at(&big, "/tokens"), &json!({"source": 25, "target": 25}));
    let recurrent = at(&big, "/layer_types").as_array().unwrap().iter();
    let recurrent = recurrent.clone().find(|kind| kind["name"] == "recurrent").unwrap();
    assert_eq!((&recurrent["sequential"], &recurrent["path"]), (&json!(25), &json!(25)));
    let plain = text(&["info", "--config", "base", "--vocab", "37000", "--shapes"], b"");
    for word in ["63082496", "39769 to 41721", "16d²", "3072 = 6.00 d", "8 × 512 × 512", "3.30e18"]
    {
        assert!(plain.contains(word), "{word} in {plain}");
    }
}

#[test]
fn info_reads_a_config_file_alone_and_with_another_vocabulary() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/g2p");
    let (folder, file) = (folder.to_str().unwrap(), folder.join("config.json"));
    let model = info(&["--model", folder]);
    let config = info(&["--config", file.to_str().unwrap()]);
    assert_eq!(at(&config, "/parameters"), at(&model, "/parameters"));
    assert_eq!(at(&model, "/parameters/total"), at(&model, "/model/parameters/total"));
    assert_eq!(at(&config, "/operations"), at(&model, "/operations"));
    let vocabulary = at(&config, "/config/vocabulary").as_u64().unwrap();
    let more = (vocabulary + 10).to_string();
    let larger = info(&["--config", file.to_str().unwrap(), "--vocab", &more]);
    let [total, other] =
        [&larger, &config].map(|info| at(info, "/parameters/total").as_u64().unwrap());
    let d = at(&config, "/config/d_model").as_u64().unwrap();
    let tables = at(&config, "/parameters/tensors").as_array().unwrap().iter();
    let tables = tables.filter(|tensor| tensor["shape"] == json!([vocabulary, d])).count() as u64;
    assert!(tables > 0 && total == other + 10 * d * tables, "{total} {other} {tables}");
}

#[test]
fn sizes_that_do_not_go_together_are_refused() {
    let seeded = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/seeded-bert/config.json");
    let line = refusal(&["info", "--config", seeded.to_str().unwrap(), "--n", "100000"], b"");
    assert!(line.contains("100000") && line.contains("at most"), "{line}");
    let line = refusal(&["info", "--config", "no such file"], b"");
    assert!(line.contains("no such file"), "{line}");
    let out = std::env::temp_dir();
    let out = out.to_str().unwrap();
    let line = refusal(&["plot", "positions", "--d-model", "7", "--out", out], b"");
    assert!(line.contains("odd"), "{line}");
    let line = refusal(&["plot", "cost", "--out", out], b"");
    assert!(line.contains(out), "{line}");
}

/// The centre of the only mark.
fn mark(picture: &Document<'_>) -> (f64, f64) {
    let marks: Vec<Node<'_, '_>> =
        picture.descendants().filter(|node| node.has_tag_name("circle")).collect();
    assert_eq!(marks.len(), 1);
    let number = |name| marks[0].attribute(name).unwrap().parse().unwrap();
    (number("cx"), number("cy"))
}

/// The height of a line at x.
fn height(line: &[(f64, f64)], x: f64) -> f64 {
    let pair = line.windows(2).find(|pair| (pair[0].0..=pair[1].0).contains(&x)).unwrap();
    let share = (x - pair[0].0) / (pair[1].0 - pair[0].0).max(1.0);
    pair[0].1 + share * (pair[1].1 - pair[0].1)
}

const BLUE: &str = "#2060A8";
const RED: &str = "#C04E15";
const GREY: &str = "#B0B0B0";

#[test]
fn the_picture_of_costs_has_two_lines_that_cross_at_the_mark() {
    let picture = Picture::new("cost");
    let (printed, svg) = picture.plot(&["cost", "--config", "base"]);
    assert_eq!(printed, "");
    let picture = Document::parse(&svg).unwrap();
    let (attention, rest) = (lines(&picture, BLUE), lines(&picture, RED));
    // The line and its sample in the legend.
    assert_eq!([attention.len(), rest.len(), lines(&picture, GREY).len()], [2, 2, 2]);
    let (attention, rest) = (&attention[0], &rest[0]);
    assert!(attention.len() >= 8 && attention.len() == rest.len());
    let (x, y) = mark(&picture);
    for line in [attention, rest] {
        assert!((height(line, x) - y).abs() <= 1.5, "{y} {line:?}");
    }
    assert!(texts(&picture).contains(&"n = 3072 = 6.00 d"), "{:?}", texts(&picture));
    // Higher is less: attention is the cheaper one to the left, the dearer one to the right, and twice as steep.
    let last = attention.len() - 1;
    assert!(attention[0].1 > rest[0].1 && attention[last].1 < rest[last].1);
    let rise = |line: &[(f64, f64)]| line[0].1 - line[last].1;
    assert!((rise(attention) / rise(rest) - 2.0).abs() < 0.02);
}

#[test]
fn measured_costs_are_drawn_and_told() {
    let picture = Picture::new("measured");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/g2p");
    let model = ["--model", folder.to_str().unwrap()];
    let args = [&["cost", "--measure", "--longest", "256", "--threads", "1"][..], &model].concat();
    let (printed, svg) = picture.plot(&args);
    let rows: Vec<Vec<&str>> =
        printed.lines().map(|line| line.split_whitespace().collect()).collect();
    let lengths: Vec<&str> = rows[1..rows.len() - 1].iter().map(|row| row[0]).collect();
    assert_eq!(lengths, ["32", "64", "128", "256"]);
    for row in &rows[1..rows.len() - 1] {
        let times: Vec<f64> = row.iter().filter_map(|word| word.parse().ok()).collect();
        assert!(times.len() == 3 && times[1] > 0.0 && times[2] >= 0.0, "{row:?}");
    }
    assert!(printed.contains("equal operations at n = "), "{printed}");
    let picture = Document::parse(&svg).unwrap();
    assert_eq!(lines(&picture, BLUE)[0].len(), 4);
    assert!(texts(&picture).contains(&"milliseconds"));
}

#[test]
fn parts_of_a_layer_lie_under_the_roof() {
    let picture = Picture::new("roofline");
    let args = ["roofline", "--peak", "100", "--bandwidth", "10", "--n", "1,512"];
    let (printed, svg) = picture.plot(&args);
    let bound = |part: &str| {
        let line = printed.lines().find(|line| line.starts_with(part)).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!(bound("feed-forward, n = 1 "), "memory");
    assert_eq!(bound("feed-forward, n = 512"), "operations");
    let picture = Document::parse(&svg).unwrap();
    let roof = &lines(&picture, BLUE)[0];
    // Up to the ridge, then level.
    assert!(roof.len() == 3 && roof[0].1 > roof[1].1 && roof[1].1 == roof[2].1, "{roof:?}");
    let marks = picture.descendants().filter(|node| node.has_tag_name("circle"));
    let mut marked = 0;
    for circle in marks {
        let [x, y]: [f64; 2] =
            ["cx", "cy"].map(|name| circle.attribute(name).unwrap().parse().unwrap());
        assert!((height(roof, x) - y).abs() <= 1.5, "{x} {y} {roof:?}");
        marked += 1;
    }
    // Attention at n = 1, the other two, and all three at n = 512, which differ by less than a quarter.
    assert_eq!(marked, 3);
    assert!(texts(&picture).contains(&"10.0 operations a byte"));
}

/// Sub-paths of the bands: left edge, top, width and height.
fn cells(path: &str) -> Vec<[usize; 4]> {
    let runs = path.split('M').filter(|run| !run.is_empty());
    runs.map(|run| {
        let numbers: Vec<usize> =
            run.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
        [numbers[0], numbers[1], numbers[2], numbers[3]]
    })
    .collect()
}

#[test]
fn positions_are_bands_and_a_kernel() {
    let (n, d) = (40, 16);
    let picture = Picture::new("positions");
    let (_, svg) = picture.plot(&["positions", "--n", "40", "--d-model", "16"]);
    let picture = Document::parse(&svg).unwrap();
    let bands: Vec<Node<'_, '_>> =
        picture.descendants().filter(|node| node.attribute("class") == Some("band")).collect();
    assert_eq!(bands.len(), 17);
    // Every cell has one shade: that of its value.
    let table = sinusoids(SinusoidLayout::Paper, n, d).unwrap();
    let mut shades = vec![None; n * d];
    let (width, height) = (8, 6);
    for (index, band) in bands.iter().enumerate() {
        for [left, top, wide, high] in cells(band.attribute("d").unwrap()) {
            assert_eq!(high, height);
            let feature = (top - 50) / height;
            for position in (left - 70) / width..(left - 70 + wide) / width {
                let cell = &mut shades[position * d + feature];
                assert_eq!(cell.replace(index), None);
            }
        }
    }
    for (value, shade) in table.iter().zip(&shades) {
        let middle = (shade.unwrap() as f32 - 8.0) / 8.0;
        assert!((value - middle).abs() <= 1.0 / 16.0 + 1e-6, "{value} {middle}");
    }
    // Σ cos ω_i k is largest, d/2, at k = 0, and follows its definition.
    let kernel = &lines(&picture, BLUE)[0];
    assert_eq!(kernel.len(), n);
    let defined = |k: usize| {
        (0..d / 2).map(|i| (k as f64 / 1e4f64.powf(2.0 * i as f64 / d as f64)).cos()).sum::<f64>()
    };
    let least = (0..n).map(defined).fold(f64::INFINITY, f64::min);
    let (top, bottom) = kernel.iter().fold((f64::INFINITY, 0.0f64), |(top, bottom), point| {
        (top.min(point.1), bottom.max(point.1))
    });
    assert_eq!(kernel[0].1, top);
    let scale = (bottom - top) / (defined(0) - least);
    for (k, point) in kernel.iter().enumerate() {
        let expected = top + scale * (defined(0) - defined(k));
        assert!((point.1 - expected).abs() <= 1.5, "{k}: {} {expected}", point.1);
    }
}

/// The page's pictures and numbers, where it is: the packaged crate is without.
#[test]
fn the_page_shows_what_the_commands_give() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let Ok(page) = std::fs::read_to_string(docs.join("ACCOUNTING.md")) else { return };
    let commands = page.lines().filter_map(|line| line.strip_prefix("headrow plot "));
    let mut drawn = 0;
    for command in commands {
        let Some((args, figure)) = command.split_once(" --out docs/") else { continue };
        let words: Vec<&str> = args.split(' ').collect();
        let picture = Picture::new(words[0]);
        let (_, svg) = picture.plot(&words);
        assert!(svg == std::fs::read_to_string(docs.join(figure)).unwrap(), "{figure} is another");
        drawn += 1;
    }
    assert_eq!(drawn, 3);
    let digits = page.replace(' ', "");
    for (name, d) in [("base", 512), ("big", 1024)] {
        let info = info(&["--config", name, "--vocab", "37000"]);
        for pointer in ["/total", "/encoder/layer", "/decoder/layer"] {
            let number = at(&info, &format!("/parameters{pointer}"));
            assert!(digits.contains(&format!("{number}")), "{name}{pointer}: {number}");
        }
        let words = at(&info, "/parameters/published/vocabularies");
        for word in words.as_array().unwrap() {
            assert!(digits.contains(&word.to_string()), "{word}");
        }
        assert!(digits.contains(&format!("|{}|", 37_000 * d)), "{name}");
    }
}
