//! What models cost by `accounting`, against files, passes, sessions and the paper's figures.
//!
//! `HEADROW_GOLDEN=DIR cargo test --release -p headrow --test accounting` counts every model folder in DIR too.

#[path = "support/general.rs"]
mod general;
#[path = "support/tiny.rs"]
mod tiny;

use general::{General, random_config, reading_tokens};
use headrow::accounting::{
    Counts, Kind, Machine, Operations, Part, Published, activations, cache, cache_per_token,
    closed_forms, crossover, trace, traffic,
};
use headrow::{
    Batch, Chunk, Config, Input, Mat, Model, Observer, Output, Place, Session, SessionOptions,
    Side, StackConfig, Sublayer, TokenInput,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tiny::Random;

/// §5.1: "about 37000 tokens".
const VOCABULARY: usize = 37_000;

fn paper(published: Published) -> (Config, Counts) {
    let config = published.config(VOCABULARY);
    let counts = Counts::of(&config).unwrap();
    (config, counts)
}

/// Table 3 has 65 and 213 million.
#[test]
fn the_papers_models_are_counted_exactly() {
    let (base, counts) = paper(Published::BASE);
    // 6·(12d² + 13d) + 6·(16d² + 19d) + v·d.
    let d = 512;
    let [encoder, decoder] = [12 * d * d + 13 * d, 16 * d * d + 19 * d];
    assert_eq!(counts.layer(Side::Encoder, 5), encoder);
    assert_eq!(counts.layer(Side::Decoder, 0), decoder);
    assert_eq!(counts.total(), 6 * (encoder + decoder) + VOCABULARY * d);
    assert_eq!(counts.total(), 63_082_496);
    assert!((63_000_000..=66_000_000).contains(&counts.total()));
    // 65 million would be as many as these vocabularies give; 213 million asks for others.
    assert_eq!(Published::BASE.vocabularies(&base, &counts), 39_769..=41_721);
    let (big, counts) = paper(Published::BIG);
    assert_eq!(counts.total(), 214_245_376);
    assert_eq!(Published::BIG.vocabularies(&big, &counts), 35_296..=36_272);
    for (published, words) in [(Published::BASE, 39_769), (Published::BIG, 36_272)] {
        let millions = |words| Counts::of(&published.config(words)).unwrap().total() as f64 / 1e6;
        let step = if published.name == "base" { words - 1 } else { words + 1 };
        assert_eq!(millions(words).round(), published.millions, "{}", published.name);
        assert_ne!(millions(step).round(), published.millions, "{}", published.name);
    }
    // Vocabularies of different sizes: a table for the source, another for target and read-out.
    let untied = Config::base(VOCABULARY, VOCABULARY + 1);
    let untied = Counts::of(&untied).unwrap();
    assert_eq!(untied.total(), 63_082_496 + (VOCABULARY + 1) * d);
}

#[test]
fn closed_forms_are_exact_for_the_papers_shape() {
    let (base, counts) = paper(Published::BASE);
    let forms = closed_forms(&base, &counts);
    assert_eq!(forms.len(), 15);
    for form in &forms {
        assert_eq!(form.value, form.exact, "{form:?}");
    }
    let of = |side, what: &str| {
        forms.iter().find(|form| form.side == side && form.what == what).unwrap().exact
    };
    let (encoder, d) = (Some(Side::Encoder), 512);
    // Two thirds of an encoder layer's matrices are the feed-forward network's, half of a decoder layer's.
    assert_eq!(3 * of(encoder, "feed-forward"), 2 * of(encoder, "a layer"));
    assert_eq!(2 * of(Some(Side::Decoder), "feed-forward"), of(Some(Side::Decoder), "a layer"));
    assert_eq!(of(encoder, "biases of feed-forward"), 5 * d);
    assert_eq!(of(None, "tables of words"), VOCABULARY * d);
    // A decoder alone has 12·N·d² beside its tables, of which there are two when they are not tied.
    let input = Input::Tokens(headrow::TokenInput::paper(1000, 64));
    let mut alone = Config::general(64);
    alone.decoder = Some(StackConfig::paper(input, 7, 64, 4, 256));
    alone.read_out.tied = false;
    let forms = closed_forms(&alone, &Counts::of(&alone).unwrap());
    let last_two: Vec<_> = forms[forms.len() - 2..].iter().map(|form| form.exact).collect();
    assert_eq!(last_two, [12 * 7 * 64 * 64, 2 * 1000 * 64]);
}

#[test]
fn every_part_of_any_config_is_counted_once() {
    let mut random = Random(5);
    for seed in 0..300 {
        let config = random_config(&mut random);
        let counts = Counts::of(&config).unwrap();
        let listed = config.tensors().unwrap();
        let sizes = listed.iter().map(|(_, shape)| shape.iter().product::<usize>());
        assert_eq!(counts.total(), sizes.sum::<usize>(), "{config:?}");
        let parts: usize = counts.parts().iter().map(|(_, numbers)| numbers).sum();
        assert_eq!(parts, counts.total());
        let stacks: usize =
            [Side::Encoder, Side::Decoder].map(|side| counts.stack(side)).iter().sum();
        let beside = |part| matches!(part, Part::Entrance(_) | Part::ReadOut | Part::Head(_));
        assert_eq!(stacks + counts.sum(|tensor| beside(tensor.part)), counts.total());
        for (side, stack) in [(Side::Encoder, &config.encoder), (Side::Decoder, &config.decoder)] {
            let Some(stack) = stack else { continue };
            let two = side == Side::Decoder && config.encoder.is_some();
            check_layer(&counts, &config, stack, side, two);
        }
        if seed % 10 == 0 {
            let model = General::new(&config, seed).model().unwrap();
            assert_eq!(model.counts(), &counts);
        }
    }
}

/// A layer's matrices by their definitions.
fn check_layer(counts: &Counts, config: &Config, stack: &StackConfig, side: Side, two: bool) {
    let d = config.d_model;
    let StackConfig { heads, kv_heads, d_k, d_v, d_ff, .. } = *stack;
    let attention = d * (heads * d_k + kv_heads * (d_k + d_v) + heads * d_v);
    let inner = if stack.gating == headrow::Gating::Gated { 3 } else { 2 };
    for layer in 0..stack.distinct_layers {
        let of = |sublayer| counts.sublayer(Place { side, layer, sublayer }, Kind::Matrix);
        assert_eq!(of(Sublayer::SelfAttention), attention);
        assert_eq!(of(Sublayer::CrossAttention), if two { attention } else { 0 });
        assert_eq!(of(Sublayer::FeedForward), inner * d * d_ff);
    }
    assert_eq!(counts.layer(side, stack.distinct_layers), 0);
}

/// Folders with a config and weights: those that lie beside the tests, and those of `HEADROW_GOLDEN`.
fn folders() -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut parents = vec![here.join("tests/fixtures"), here.join("assets")];
    parents.extend(std::env::var_os("HEADROW_GOLDEN").map(PathBuf::from));
    let inside = parents.iter().flat_map(|parent| {
        std::fs::read_dir(parent).unwrap_or_else(|error| panic!("{}: {error}", parent.display()))
    });
    let mut folders: Vec<PathBuf> = inside.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("model.safetensors").is_file());
    folders.sort();
    folders
}

/// Names and sizes of a file's tensors.
fn file_sizes(folder: &Path) -> BTreeMap<String, usize> {
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let sizes =
        file.iter().map(|(name, tensor)| (name.to_owned(), tensor.shape().iter().product()));
    sizes.collect()
}

/// What files have beside parameters: buffers, and matrices that are saved under a second name.
fn is_no_parameter(name: &str) -> bool {
    let suffixes = [
        "position_ids",
        "token_type_ids",
        "inv_freq",
        "attention.bias",
        "masked_bias",
        "attn.bias",
        "embed_tokens.weight",
        "lm_head.weight",
        "decoder.weight",
        "decoder.bias",
        "embed_positions.weight",
        "embed_positions.weights",
    ];
    suffixes.iter().any(|suffix| name.ends_with(suffix))
}

#[test]
fn counts_are_those_of_the_files() {
    let folders = folders();
    assert!(folders.len() >= 7, "{folders:?}");
    for folder in folders {
        let name = folder.display();
        let model = Model::from_dir(&folder).unwrap();
        let (counts, mut file) = (model.counts(), file_sizes(&folder));
        assert_eq!(counts, &Counts::of_dir(&folder).unwrap(), "{name}");
        assert_eq!(model.parameters(), counts.parts());
        for tensor in counts.tensors() {
            let own = file.keys().find(|own| own.ends_with(&tensor.name)).cloned();
            let size = own.and_then(|own| file.remove(&own));
            assert_eq!(size, Some(tensor.numbers()), "{name}: {}", tensor.name);
        }
        let left: Vec<&String> = file.keys().filter(|left| !is_no_parameter(left)).collect();
        assert!(left.is_empty(), "{name}: {left:?}");
        without_the_file(&model, &name.to_string());
        println!("{name}: {} parameters", counts.total());
    }
}

/// The config alone gives the same tensors, but for heads and a bias of the read-out, of which a config says little.
fn without_the_file(model: &Model, name: &str) {
    let from_config = Counts::of(model.config()).unwrap();
    let certain = |counts: &Counts| -> Vec<_> {
        let tensors = counts.tensors().iter().filter(|tensor| match tensor.part {
            Part::Head(_) => false,
            Part::ReadOut => tensor.kind != Kind::Bias,
            _ => true,
        });
        tensors.map(|tensor| (tensor.name.clone(), tensor.shape.clone(), tensor.part)).collect()
    };
    let (loaded, planned) = (certain(model.counts()), certain(&from_config));
    assert_eq!(loaded.len(), planned.len(), "{name}");
    for (loaded, planned) in loaded.iter().zip(&planned) {
        assert_eq!(loaded, planned, "{name}");
    }
}

#[test]
fn a_layer_costs_24nd2_and_4n2d_and_they_meet_at_6d() {
    for d in [64, 512, 1024, 4096] {
        let input = Input::Tokens(headrow::TokenInput::paper(100, d));
        let mut config = Config::general(d);
        config.encoder = Some(StackConfig::paper(input.clone(), 3, d, 8, 4 * d));
        for n in [1, d / 2, 6 * d - 1, 6 * d, 6 * d + 1] {
            let layer = Operations::layer(&config, Side::Encoder, n);
            let (tokens, width) = (n as f64, d as f64);
            assert_eq!(layer.linear(), 24.0 * tokens * width * width);
            assert_eq!(layer.projections * 2.0, layer.feed_forward);
            assert_eq!(layer.attention, 4.0 * tokens * tokens * width);
            assert_eq!(layer.total() * 3.0, Operations::encoder(&config, n).total());
        }
        // n ≈ d is the order of magnitude.
        assert_eq!(crossover(&config, Side::Encoder), Some(6 * d));
        assert_eq!(crossover(&config, Side::Decoder), None);
        // Where half of the scores is hidden, twice as many tokens but for the diagonal.
        let mut causal = Config::general(d);
        causal.decoder = config.encoder.clone();
        assert_eq!(crossover(&causal, Side::Decoder), Some(12 * d - 1));
        // r neighbours: r·n·d, which never meets n·d².
        causal.decoder.as_mut().unwrap().window = Some(16);
        assert_eq!(crossover(&causal, Side::Decoder), None);
        let windowed = Operations::layer(&causal, Side::Decoder, 1 << 20).attention;
        let bound = 4.0 * 16.0 * (1 << 20) as f64 * d as f64;
        assert!(windowed < bound && windowed > 0.999 * bound);
    }
}

#[test]
fn the_operations_of_the_papers_trainings_are_found_by_its_method_and_counted_by_ours() {
    let two_digits = |x: f64| format!("{x:.1e}");
    for published in [Published::BASE, Published::BIG] {
        assert_eq!(two_digits(published.by_time()), two_digits(published.operations));
        let (config, counts) = paper(published);
        // Sentences of 25 tokens: 6 operations a parameter and token are a good estimate, were it not for the words of the source.
        let counted = Operations::training(&config, 25, 25).total();
        let read_out = 6.0 * 25.0 * (VOCABULARY * config.d_model) as f64;
        let stacks = counts.stack(Side::Encoder) + counts.stack(Side::Decoder);
        let estimate = 6.0 * 25.0 * stacks as f64 + read_out;
        assert!((counted / estimate - 1.0).abs() < 0.03, "{counted} {estimate}");
        // What was computed is a part of what was sustained.
        let steps = published.steps as f64 * published.batch_tokens as f64 / 25.0;
        let share = steps * counted / published.by_time();
        assert!((0.2..0.6).contains(&share), "{share}");
    }
}

/// What an observer sees of a pass.
#[derive(Default)]
struct Shapes {
    heads: Vec<usize>,
    seen: Vec<(Side, Option<Sublayer>, [usize; 2])>,
}

impl Observer for Shapes {
    fn state(&mut self, side: Side, layer: usize, state: Mat<'_>) {
        if layer == 0 {
            self.seen.push((side, None, [state.rows(), state.cols()]));
        }
    }

    fn wants_increments(&self) -> bool {
        true
    }

    fn increment(&mut self, place: Place, f: Mat<'_>) {
        self.seen.push((place.side, Some(place.sublayer), [f.rows(), f.cols()]));
    }

    fn wants_maps(&self, _place: Place) -> &[usize] {
        &self.heads
    }

    fn maps(&mut self, place: Place, maps: Mat<'_>) {
        self.seen.push((place.side, Some(place.sublayer), [maps.rows(), maps.cols()]));
    }
}

#[test]
fn a_trace_has_the_shapes_of_a_pass() {
    let (n, m) = (7, 5);
    for seed in 0..40 {
        let config = reading_tokens(seed, 23, 16);
        let model = Arc::new(General::new(&config, seed).model().unwrap());
        let options = SessionOptions::default().with_max_tokens(16).with_max_length(16);
        let mut session = Session::new(&model, &options.with_threads(1)).unwrap();
        let mut shapes = Shapes::default();
        let ids: Vec<u32> = (2..2 + n as u32).collect();
        let sequence = match &config.encoder {
            Some(stack) => {
                let mut hidden = vec![0.0; n * config.d_model];
                shapes.heads = (0..stack.heads).collect();
                session.encode_observed(&Batch::one(&ids), &mut hidden, &mut shapes).unwrap();
                session.add_sources(&Batch::one(&ids)).unwrap()[0]
            }
            None => session.add().unwrap(),
        };
        shapes.heads = (0..config.decoder.as_ref().unwrap().heads).collect();
        let chunk = [Chunk::new(sequence, &ids[..m])];
        let mut scores = vec![0.0; m * config.vocabulary()];
        session.extend_observed(&chunk, Output::AllLogits, &mut scores, &mut shapes).unwrap();
        let traced = trace(&config, n, m);
        let read_out = traced.last().unwrap();
        assert_eq!((read_out.side, &read_out.shape[..]), (None, &[m, config.vocabulary()][..]));
        for (side, sublayer, [rows, columns]) in shapes.seen {
            let steps =
                traced.iter().filter(|step| (step.side, step.sublayer) == (Some(side), sublayer));
            let shapes: Vec<&[usize]> = steps.map(|step| &step.shape[..]).collect();
            let is_seen = |shape: &&[usize]| match **shape {
                [h, t, s] => h * t == rows && s == columns,
                [t, width] => (t, width) == (rows, columns),
                _ => false,
            };
            assert!(
                shapes.iter().any(is_seen),
                "{side:?} {sublayer:?} {rows}×{columns}: {shapes:?}"
            );
        }
    }
}

#[test]
fn memory_grows_as_a_sessions_does() {
    let mut config = Config::base(100, 100);
    for stack in [&mut config.encoder, &mut config.decoder].into_iter().flatten() {
        (stack.layers, stack.distinct_layers) = (2, 2);
    }
    let model = General::new(&config, 1).model().unwrap();
    let bound = |options: &SessionOptions| model.memory_bound(options).unwrap();
    let options = SessionOptions::default().with_threads(1).with_max_sequences(1);
    // Tokens that a decoder remembers, in whole pages.
    let of_cache = |m: usize, n: usize| {
        bound(
            &options
                .clone()
                .with_max_tokens(64)
                .with_max_length(4096)
                .with_cache_tokens(m)
                .with_source_tokens(n),
        )
    };
    let (more, fewer) = (of_cache(4096, 2048), of_cache(1024, 512));
    let (counted, bounds) = (cache(&config, 4096, 2048) - cache(&config, 1024, 512), more - fewer);
    // Lists of pages, 8 bytes each.
    assert!(bounds >= counted && bounds - counted <= counted / 1000, "{bounds} {counted}");
    assert_eq!(cache_per_token(&config), 2 * 2 * 512 * 4);
    assert_eq!(cache(&config, 1, 0), cache(&config, 2, 0));
    // States of a pass, beside a table of sinusoids and what attention packs of the keys and values of a head.
    let of_pass = |n: usize| {
        bound(&options.clone().with_max_tokens(n).with_max_length(64).with_source_tokens(64))
    };
    let live = |n: usize| activations(&config, Side::Encoder, n);
    let (counted, table) = (live(2048) - live(1024), 1024 * 512 * 4);
    let bounds = of_pass(2048) - of_pass(1024) - table;
    assert!(bounds >= counted && bounds < counted + counted / 20, "{bounds} {counted}");
}

#[test]
fn intensities_rise_with_the_tokens_and_meet_the_roof() {
    let config = Config::base(1000, 1000);
    let of = |n| traffic(&config, Side::Encoder, n);
    let one = of(1);
    // A token alone: 2 operations for each weight of 4 bytes.
    for part in [&one[0], &one[2]] {
        assert!((part.intensity() - 0.5).abs() < 0.01, "{part:?}");
    }
    for (few, many) in of(16).iter().zip(of(512)) {
        assert!(few.intensity() < many.intensity());
    }
    // 4n²d operations over 16nd bytes.
    assert_eq!(of(512)[1].intensity(), 128.0);
    let machine = Machine { operations: 1e11, bandwidth: 1e10 };
    assert_eq!(machine.ridge(), 10.0);
    assert_eq!([1.0, 10.0, 1e6].map(|x| machine.attainable(x)), [1e10, 1e11, 1e11]);
}

/// Each layer is planned and counted by itself: with a look at all the others for each it would take minutes.
#[test]
fn counts_grow_with_the_layers_alone() {
    let layers = 1 << 14;
    let mut config = Config::general(4);
    let input = Input::Tokens(TokenInput::paper(8, 4));
    config.decoder = Some(StackConfig::paper(input, layers, 4, 1, 8));
    let counts = Counts::of(&config).unwrap();
    assert_eq!(counts.stack(Side::Decoder), layers * counts.layer(Side::Decoder, layers - 1));
    // Six maps with their biases, two norms with γ and β; and the words.
    assert_eq!(counts.tensors().len(), layers * (6 * 2 + 2 * 2) + 1);
}
