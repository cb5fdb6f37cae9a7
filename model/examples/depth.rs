//! How much of the loss's gradient arrives at each layer before training, post-norm against pre-norm, with depth.
//!
//! ```text
//! cargo run --release --example depth [gradient-depth.svg]
//! ```
//!
//! Prints ‖∂L/∂z_ℓ‖, of the mean loss per token, for the residual stream z_ℓ before layer ℓ, and draws it where a file is named.

use headrow::chart::{Curve, line_chart};
use headrow::train::{Examples, Network, NetworkOptions, Objective, Parameters, replace_file};
use headrow::{Config, Input, NormPlacement, Result, Side, StackConfig, TokenInput};

const D_MODEL: usize = 64;
const HEADS: usize = 4;
const VOCABULARY: usize = 64;
/// n: tokens of a sequence.
const TOKENS: usize = 32;
const SEQUENCES: usize = 2;
/// N of the tables.
const DEPTHS: [usize; 9] = [2, 4, 6, 8, 12, 16, 24, 32, 48];
/// N that are drawn, with the colours of post-norm and of pre-norm, darker with depth.
const DRAWN: [(usize, [u8; 3], [u8; 3]); 4] = [
    (6, [0xfc, 0xae, 0x91], [0xbd, 0xd7, 0xe7]),
    (12, [0xfb, 0x6a, 0x4a], [0x6b, 0xae, 0xd6]),
    (24, [0xde, 0x2d, 0x26], [0x31, 0x82, 0xbd]),
    (48, [0xa5, 0x0f, 0x15], [0x08, 0x51, 0x9c]),
];

fn main() -> Result<()> {
    let mut curves = Vec::new();
    for (name, placement) in [("post-norm", NormPlacement::Post), ("pre-norm", NormPlacement::Pre)]
    {
        println!("{name}\n  N  before the first layer  behind the last  first / last");
        for depth in DEPTHS {
            let norms = gradient_norms(placement, depth)?;
            let (first, last) = (norms[0], norms[depth]);
            println!("{depth:3}  {first:22.3e}  {last:15.3e}  {:12.3e}", first / last);
            let Some(&(_, post, pre)) = DRAWN.iter().find(|drawn| drawn.0 == depth) else {
                continue;
            };
            let color = if placement == NormPlacement::Post { post } else { pre };
            let points = norms.iter().enumerate().map(|(layer, norm)| (layer as f64, norm.log10()));
            let name = format!("{name}, N = {depth}");
            curves.push(Curve { name, color, points: points.collect() });
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        let title = "The gradient of the residual stream before training";
        let axes = ["ℓ: before layer ℓ, or behind the last", "log₁₀ ‖∂L/∂z_ℓ‖"];
        replace_file(path, line_chart(title, axes, &curves)?.as_bytes())?;
    }
    Ok(())
}

/// ‖∂L/∂z_ℓ‖ for ℓ from 0 to N of a decoder as training begins with it, over random words.
fn gradient_norms(placement: NormPlacement, depth: usize) -> Result<Vec<f64>> {
    let input = Input::Tokens(TokenInput::paper(VOCABULARY, D_MODEL));
    let mut stack = StackConfig::paper(input, depth, D_MODEL, HEADS, 4 * D_MODEL);
    stack.placement = placement;
    stack.final_norm = placement == NormPlacement::Pre;
    let mut config = Config::general(D_MODEL);
    config.decoder = Some(stack);
    let parameters = Parameters::initialise(&config, 1)?;
    let options = NetworkOptions::default().with_max_tokens(SEQUENCES * TOKENS);
    let mut network = Network::new(&config, &options)?;
    let examples = examples();
    let mut norms = vec![0.0; depth + 1];
    let mut observe = |_: Side, layer: usize, d: headrow::Mat<'_>| {
        let squares = (0..d.rows()).flat_map(|i| d.row(i)).map(|&g| f64::from(g).powi(2));
        norms[layer] = squares.sum::<f64>().sqrt() / examples.predicted() as f64;
    };
    let mut gradients = vec![0.0; parameters.values().len()];
    let (objective, to) = (Objective::default(), &mut gradients);
    network.accumulate_observed(&parameters, &examples, &objective, None, to, &mut observe)?;
    Ok(norms)
}

/// Random words, each to be answered with the next one.
fn examples() -> Examples {
    let mut state = 1u64;
    let mut word = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % VOCABULARY as u64) as u32
    };
    let mut examples = Examples::default();
    for _ in 0..SEQUENCES {
        let words: Vec<u32> = (0..=TOKENS).map(|_| word()).collect();
        examples.targets.push(words[..TOKENS].iter().copied());
        examples.labels.extend(words[1..].iter().copied().map(Some));
    }
    examples
}
