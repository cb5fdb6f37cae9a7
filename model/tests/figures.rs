//! The pictures of the pages, read point by point: they show what the pages say of them.

#[path = "support/picture.rs"]
mod picture;

use picture::curve;
use roxmltree::Document;
use std::path::{Path, PathBuf};

/// The folder of the pages, where it is: the packaged crate is without.
fn docs() -> Option<PathBuf> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    docs.is_dir().then_some(docs)
}

/// What a point may be off, as a share of the whole axis.
const POINT: f64 = 1.0 / 400.0;

#[test]
fn every_picture_is_whole() {
    let Some(docs) = docs() else { return };
    let mut pictures = 0;
    for file in std::fs::read_dir(docs.join("figures")).unwrap() {
        let path = file.unwrap().path();
        let svg = std::fs::read_to_string(&path).unwrap();
        let picture = Document::parse(&svg).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert!(picture.root_element().has_tag_name("svg"), "{path:?}");
        pictures += 1;
    }
    assert!(pictures >= 7, "{pictures}");
}

/// T^{2,1,4} without positions ends on the bound of equivariant maps, and never gets below it; with positions far below.
#[test]
fn errors_by_step_end_where_the_page_says() {
    let Some(docs) = docs() else { return };
    let svg = std::fs::read_to_string(docs.join("figures/expressivity.svg")).unwrap();
    let picture = Document::parse(&svg).unwrap();
    let page = std::fs::read_to_string(docs.join("THEORY.md")).unwrap();
    let rows = page.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let rows = rows.filter(|row| row.len() == 10 && ["g(X)", "g(X + E)"].contains(&row[3]));
    let mut drawn = 0;
    for row in rows {
        let (name, equivariant, class) = (row[1], row[2] == "yes", row[3]);
        let [bound, before, after] = [6, 7, 8].map(|at| row[at].parse::<f64>().unwrap());
        let errors = curve(&picture, &format!("{name}, {class}"));
        let steps = errors.iter().enumerate();
        assert_eq!(errors.len(), 41);
        for (i, &(step, _)) in steps {
            assert!((step - 250.0 * i as f64).abs() < 10_000.0 * POINT, "{name} {class}: {step}");
        }
        // Powers of ten from 0.5 to −13, and two digits of the page.
        let near = |error: f64, said: f64| (error - said.log10()).abs() < 14.0 * POINT + 0.02;
        assert!(
            near(errors[0].1, before) && near(errors[40].1, after),
            "{name} {class}: {errors:?}"
        );
        let least = errors.iter().map(|error| error.1).fold(f64::INFINITY, f64::min);
        match (equivariant, class) {
            (false, "g(X)") => assert!(near(least, bound), "{name}: {least}"),
            (false, _) => assert!(least < bound.log10() - 2.0, "{name}: {least}"),
            (true, _) => assert!(least < -9.0, "{name}: {least}"),
        }
        drawn += 1;
    }
    assert_eq!(drawn, 5);
}

/// The number on a page behind these words, which stand there once.
fn number(page: &str, words: &str) -> f64 {
    let parts: Vec<&str> = page.split(words).collect();
    let [_, behind] = parts[..] else { panic!("{words:?} stands there {} times", parts.len() - 1) };
    let end = behind.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(behind.len());
    behind[..end].parse().unwrap_or_else(|_| panic!("no number behind {words:?}"))
}

/// Post-norm: as much behind the last layer at any depth. Pre-norm: less the deeper it is, as 1/√N, and as much before the first.
#[test]
fn gradients_by_depth_are_those_of_the_page() {
    let Some(docs) = docs() else { return };
    let svg = std::fs::read_to_string(docs.join("figures/gradient-depth.svg")).unwrap();
    let picture = Document::parse(&svg).unwrap();
    let page = std::fs::read_to_string(docs.join("TRAINING.md")).unwrap();
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let behind_any = number(&page, "Post-norm has ");
    let wanders = ["down to ", "it wanders, up to "].map(|words| number(&page, words).log10());
    let behind_48 = number(&page, "behind 2 layers and ");
    let least = number(&page, "it rises smoothly to ");
    let most = number(&page, &format!("it rises smoothly to {least} … "));
    let near = |x: f64, said: f64| (x - said.log10()).abs() < 1.3 * POINT + 0.02;
    for depth in [6, 12, 24, 48] {
        let [post, pre] = ["post-norm", "pre-norm"].map(|placement| {
            let norms = curve(&picture, &format!("{placement}, N = {depth}"));
            assert_eq!(norms.len(), depth + 1);
            norms.into_iter().map(|(_, norm)| norm).collect::<Vec<f64>>()
        });
        assert!(near(post[depth], behind_any), "{depth}: {}", post[depth]);
        let between = |x: f64| (wanders[0] - 0.02..=wanders[1] + 0.02).contains(&x);
        assert!(post.iter().all(|&norm| between(norm)), "{depth}: {post:?}");
        // 1/√N but for a quarter.
        let behind = behind_48 * (48.0 / depth as f64).sqrt();
        assert!((pre[depth] - behind.log10()).abs() < 0.1, "{depth}: {}", pre[depth]);
        let before = least.log10() - 0.01..=most.log10() + 0.01;
        assert!(before.contains(&pre[0]), "{depth}: {}", pre[0]);
        // Towards the first layer it rises all the way.
        assert!(pre.windows(2).all(|pair| pair[0] >= pair[1]), "{depth}: {pre:?}");
    }
}

/// What the model inside learned from: the validation's loss falls, and follows the training's.
#[test]
fn the_loss_of_letters_and_phonemes_falls() {
    let Some(docs) = docs() else { return };
    let svg = std::fs::read_to_string(docs.join("figures/g2p-loss.svg")).unwrap();
    let picture = Document::parse(&svg).unwrap();
    let [training, validation] = ["training", "validation"].map(|name| curve(&picture, name));
    assert_eq!((training.len(), validation.len()), (180, 18));
    let last = |curve: &[(f64, f64)]| curve[curve.len() - 1];
    for curve in [&training, &validation] {
        assert!((last(curve).0 - 9000.0).abs() < 9000.0 * POINT, "{curve:?}");
        assert!(curve[0].1 > last(curve).1 + 0.2, "{curve:?}");
    }
    // One point of the picture is as high as 1/75 of a unit of loss.
    assert!(validation.windows(2).all(|pair| pair[1].1 <= pair[0].1 + 0.03), "{validation:?}");
    // Trained with dropout and smoothed labels, measured without dropout.
    assert!(last(&validation).1 <= last(&training).1 + 0.05);
}
