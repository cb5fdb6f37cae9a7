//! What a token may depend on, and what observers see without changing it.

use crate::general::{General, random_config};
use crate::random_models::{LONGEST, Seeded, V, begin};
use crate::{Random, SOURCE, decoders, extend, fresh, options, session, to_bits, tokens};
use headrow::{
    Batch, Chunk, Config, Input, Mat, NormPlacement, Observer, Output, Place, Positions,
    RelativePositions, Session, Side, StackConfig, Sublayer,
};
use std::sync::Arc;

fn stack(config: &Config) -> &StackConfig {
    config.decoder.as_ref().unwrap()
}

#[test]
fn a_later_token_changes_no_earlier_bit() {
    for (seed, seeded) in decoders().enumerate() {
        let (mut session, mut random) = (session(&seeded.model()), Random(seed as u64));
        let tokens = tokens(&mut random, 100);
        let expected = fresh(&mut session, &tokens, Output::AllLogits);
        for _ in 0..5 {
            let at = random.below(tokens.len());
            let mut changed = tokens.clone();
            changed[at] = (changed[at] + 1 + random.below(V - 1) as u32) % V as u32;
            let bits = fresh(&mut session, &changed, Output::AllLogits);
            assert!(bits[..at * V] == expected[..at * V], "{}: token {at}", seeded.label);
            assert!(bits[at * V..][..V] != expected[at * V..][..V], "{}", seeded.label);
        }
    }
}

#[test]
fn one_pass_gives_the_factors_that_steps_give() {
    for (seed, seeded) in decoders().enumerate() {
        let mut session = session(&seeded.model());
        let tokens = tokens(&mut Random(seed as u64), 75);
        let all = fresh(&mut session, &tokens[..74], Output::AllLogits);
        let ln_p = |row: &[u32], token: u32| {
            let row: Vec<f64> = row.iter().map(|&x| f64::from(f32::from_bits(x))).collect();
            let most = row.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = row.iter().map(|x| (x - most).exp()).sum();
            row[token as usize] - most - sum.ln()
        };
        let at_once: f64 =
            all.chunks(V).zip(&tokens[1..]).map(|(row, &next)| ln_p(row, next)).sum();
        let sequence = begin(&mut session, &SOURCE).unwrap();
        let steps = tokens.windows(2).map(|pair| {
            let row =
                extend(&mut session, &[Chunk::new(sequence, &pair[..1])], 1, Output::LastLogits);
            ln_p(&row, pair[1])
        });
        assert_eq!(steps.sum::<f64>(), at_once, "{}", seeded.label);
    }
}

/// The last word's row is NaN in every table; tied to the read-out it would reach every score.
fn poisoned() -> impl Iterator<Item = Seeded> {
    let tables =
        ["embed_in.weight", "wte.weight", "embed_tokens.weight", "shared.weight", "words.weight"];
    decoders().map(move |mut seeded| {
        let names = seeded.tensors.iter().map(|tensor| tensor.name.clone());
        let names = names.filter(|name| tables.iter().any(|table| name.ends_with(table)));
        for name in names.collect::<Vec<String>>() {
            seeded.fill_row(&name, V - 1, f32::NAN);
        }
        seeded
    })
}

#[test]
fn a_token_that_is_no_number_leaves_those_before_it_alone() {
    for (seed, (clean, seeded)) in decoders().zip(poisoned()).enumerate() {
        let mut random = Random(seed as u64);
        let (mut clean, mut session) = (session(&clean.model()), session(&seeded.model()));
        let mut tokens = tokens(&mut random, 100);
        tokens.iter_mut().for_each(|token| *token %= V as u32 - 1);
        let expected = fresh(&mut clean, &tokens, Output::AllHidden);
        let width = session.model().config().d_model;
        for at in [0, 1, 63, 64, 65, 99] {
            let mut damaged = tokens.clone();
            damaged[at] = V as u32 - 1;
            let bits = fresh(&mut session, &damaged, Output::AllHidden);
            assert!(bits[..at * width] == expected[..at * width], "{}: token {at}", seeded.label);
            let row = &bits[at * width..][..width];
            assert!(
                row.iter().all(|&x| f32::from_bits(x).is_nan()),
                "{}: token {at}",
                seeded.label
            );
        }
        // Its keys and values are in pages that others get next.
        assert!(fresh(&mut session, &tokens, Output::AllHidden) == expected, "{}", seeded.label);
        // Cut off and read on, and beside a neighbour in one pass.
        let [one, other] = [(); 2].map(|()| begin(&mut session, &SOURCE).unwrap());
        let nan = [V as u32 - 1; 3];
        let head = [Chunk::new(one, &tokens[..50]), Chunk::new(other, &nan)];
        let mut bits = extend(&mut session, &head, 53, Output::AllHidden)[..50 * width].to_vec();
        extend(&mut session, &[Chunk::new(one, &nan)], 0, Output::None);
        session.truncate(one, 50).unwrap();
        bits.extend(extend(&mut session, &[Chunk::new(one, &tokens[50..])], 50, Output::AllHidden));
        assert!(bits == expected, "{}", seeded.label);
    }
}

/// Keeps all that it is shown of one pass.
#[derive(Default)]
struct Record {
    wants_increments: bool,
    heads: Vec<usize>,
    states: Vec<Vec<f32>>,
    output: Vec<f32>,
    increments: Vec<(Place, Vec<f32>)>,
    maps: Vec<(Place, Vec<f32>, usize)>,
}

fn values(x: Mat<'_>) -> Vec<f32> {
    (0..x.rows()).flat_map(|i| x.row(i)).copied().collect()
}

impl Observer for Record {
    fn state(&mut self, side: Side, layer: usize, state: Mat<'_>) {
        assert_eq!((side, layer), (Side::Decoder, self.states.len()));
        self.states.push(values(state));
    }

    fn output(&mut self, _: Side, output: Mat<'_>) {
        self.output = values(output);
    }

    fn wants_increments(&self) -> bool {
        self.wants_increments
    }

    fn increment(&mut self, place: Place, increment: Mat<'_>) {
        self.increments.push((place, values(increment)));
    }

    fn wants_maps(&self, place: Place) -> &[usize] {
        if place.sublayer == Sublayer::SelfAttention { &self.heads } else { &[] }
    }

    fn maps(&mut self, place: Place, maps: Mat<'_>) {
        self.maps.push((place, values(maps), maps.cols()));
    }
}

fn observed(session: &mut Session, tokens: &[u32], record: &mut Record) -> Vec<u32> {
    let sequence = begin(session, &SOURCE).unwrap();
    let mut out = vec![f32::NAN; tokens.len() * session.model().config().d_model];
    let chunk = Chunk::new(sequence, tokens);
    session.extend_observed(&[chunk], Output::AllHidden, &mut out, record).unwrap();
    session.remove(sequence).unwrap();
    to_bits(&out)
}

#[test]
fn observing_changes_no_bit_and_increments_add_up_to_the_stream() {
    for (seed, seeded) in decoders().enumerate() {
        let mut session = session(&seeded.model());
        let tokens = tokens(&mut Random(seed as u64), 90);
        let expected = fresh(&mut session, &tokens, Output::AllHidden);
        let stack = stack(&seeded.config);
        let heads = (0..stack.heads).collect();
        let mut record = Record { wants_increments: true, heads, ..Record::default() };
        let bits = observed(&mut session, &tokens, &mut record);
        assert!(bits == expected, "{}", seeded.label);
        assert!(to_bits(&record.output) == expected, "{}", seeded.label);
        assert_eq!(record.states.len(), stack.layers + 1);
        let sublayers = if seeded.config.encoder.is_some() { 3 } else { 2 };
        assert_eq!(record.increments.len(), sublayers * stack.layers);
        if stack.placement == NormPlacement::Post {
            continue;
        }
        let (first, last) = (&record.states[0], &record.states[stack.layers]);
        for (i, &expected) in last.iter().enumerate() {
            let terms = record.increments.iter().map(|(_, increment)| f64::from(increment[i]));
            let terms: Vec<f64> = terms.chain([f64::from(first[i])]).collect();
            let sum: f64 = terms.iter().sum();
            // As many roundings as sums, each of half an ulp of what is there so far.
            let most: f64 = terms.iter().map(|x| x.abs()).sum();
            let bound = terms.len() as f64 * f64::from(f32::EPSILON) / 2.0 * most;
            assert!((sum - f64::from(expected)).abs() <= bound, "{}", seeded.label);
        }
    }
}

#[test]
fn rows_of_attention_maps_are_distributions_over_what_a_token_sees() {
    for (seed, seeded) in decoders().enumerate() {
        let mut session = session(&seeded.model());
        let tokens = tokens(&mut Random(seed as u64), 80);
        let stack = stack(&seeded.config);
        // The last head and one more.
        let heads = if stack.heads > 1 { vec![0, stack.heads - 1] } else { vec![0] };
        let wanted = heads.len();
        let mut record = Record { heads, ..Record::default() };
        observed(&mut session, &tokens, &mut record);
        assert_eq!(record.maps.len(), stack.layers);
        for (place, map, cols) in &record.maps {
            assert_eq!((*cols, map.len()), (80, wanted * 80 * 80));
            for (row, weights) in map.chunks(*cols).enumerate() {
                let token = row % 80;
                let first = stack.window.map_or(0, |window| (token + 1).saturating_sub(window));
                let hidden = weights[..first].iter().chain(&weights[token + 1..]);
                assert!(hidden.clone().all(|x| x.to_bits() == 0), "{}: {place:?}", seeded.label);
                let sum: f64 = weights.iter().map(|&x| f64::from(x)).sum();
                assert!((sum - 1.0).abs() < 1e-5, "{}: {sum} at {place:?}", seeded.label);
                assert!(weights.iter().all(|&x| x >= 0.0));
            }
        }
    }
}

#[test]
fn maps_of_pieces_are_those_of_the_whole() {
    for (seed, seeded) in decoders().enumerate() {
        let model = seeded.model();
        let tokens = tokens(&mut Random(seed as u64), 90);
        let record = || Record { heads: vec![0], ..Record::default() };
        let mut whole = record();
        observed(&mut session(&model), &tokens, &mut whole);
        let mut narrow = Session::new(&model, &options().with_max_tokens(SOURCE.len())).unwrap();
        let layers = stack(&seeded.config).layers;
        let sequence = begin(&mut narrow, &SOURCE).unwrap();
        for (start, end) in [(0, 37), (37, 74), (74, 90)] {
            let mut record = record();
            let chunk = Chunk::new(sequence, &tokens[start..end]);
            narrow.extend_observed(&[chunk], Output::None, &mut [], &mut record).unwrap();
            for layer in 0..layers {
                let ((_, piece, cols), (_, whole, all)) = (&record.maps[layer], &whole.maps[layer]);
                assert_eq!((*cols, piece.len()), (end, (end - start) * end));
                for (row, weights) in piece.chunks(end).enumerate() {
                    let expected = &whole[(start + row) * all..][..end];
                    assert!(to_bits(weights) == to_bits(expected), "{}", seeded.label);
                }
            }
        }
    }
    const { assert!(LONGEST > 90) };
}

/// An encoder that does not know where its tokens stand.
fn placeless(random: &mut Random) -> General {
    loop {
        let mut config = random_config(random);
        let Some(stack) = config.encoder.as_mut().filter(|_| config.decoder.is_none()) else {
            continue;
        };
        (stack.relative, stack.window) = (RelativePositions::None, None);
        match &mut stack.input {
            Input::Tokens(tokens) => tokens.positions = Positions::None,
            _ => continue,
        }
        return General::new(&config, random.next());
    }
}

#[test]
fn an_encoder_without_positions_permutes_with_its_input() {
    let mut random = Random(77);
    for round in 0..20 {
        let model = Arc::new(placeless(&mut random).model().unwrap());
        let (d, vocabulary) = (model.config().d_model, model.config().vocabulary());
        let ids: Vec<u32> = (0..30).map(|_| random.below(vocabulary) as u32).collect();
        let mut order: Vec<usize> = (0..30).collect();
        for i in (1..30).rev() {
            order.swap(i, random.below(i + 1));
        }
        let permuted: Vec<u32> = order.iter().map(|&i| ids[i]).collect();
        let mut session = session(&model);
        let (mut plain, mut moved) = (vec![0.0; 30 * d], vec![0.0; 30 * d]);
        session.encode(&Batch::one(&ids), &mut plain).unwrap();
        session.encode(&Batch::one(&permuted), &mut moved).unwrap();
        let most = plain.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for (row, &from) in moved.chunks(d).zip(&order) {
            for (x, y) in row.iter().zip(&plain[from * d..][..d]) {
                assert!((x - y).abs() <= 1e-4 * most, "round {round}: {x} and {y}");
            }
        }
    }
}
