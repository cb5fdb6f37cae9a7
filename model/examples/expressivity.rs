//! What Transformers with two heads of width 1 and a hidden width of 4 can learn, without positions and with them.
//!
//! ```text
//! cargo run --release --example expressivity [-- --out expressivity.svg]
//! ```
//!
//! A map that is permutation equivariant is learned by a member of T^{2,1,4}. Two that are not are given to a member, which cannot get below the
//! error of the best equivariant map, and to one with positions, which can. Prints the mean squared errors, and draws them by step
//! where a file is named.

use headrow::Result;
use headrow::theory::symmetry::{equivariant_bound, orbit};
use headrow::theory::yun::{FixedWidth, Positional};
use headrow::theory::{Columns, Fit, SequenceMap};
use headrow::train::{AdamOptions, Curve, Schedule, line_chart, replace_file};

/// d: features of a token.
const D: usize = 2;
/// n: tokens of a sequence.
const N: usize = 4;
const STEPS: u64 = 10_000;
/// Sequences of a step.
const BATCH: usize = 32;
/// Sequences that are measured on in all their orders.
const MEASURED: usize = 16;
/// What weights begin with. With others the errors end elsewhere, but on the same side of the bound.
const SEED: u64 = 3;
/// Points of a curve.
const POINTS: u64 = 40;

/// A map to learn.
#[derive(Clone, Copy)]
struct Target {
    name: &'static str,
    f: fn(&Columns) -> Columns,
    /// N: blocks of those that learn it.
    blocks: usize,
}

const GAP: Target = Target { name: "gap", f: gap, blocks: 1 };
const ALTERNATION: Target = Target { name: "alternation", f: alternation, blocks: 1 };
const REVERSAL: Target = Target { name: "reversal", f: reversal, blocks: 4 };

/// max_k x_ik − x_ij: how far each number is below the largest of its row. Equivariant.
fn gap(x: &Columns) -> Columns {
    let largest = |i: usize| (0..x.n()).map(|j| x.column(j)[i]).fold(f32::NEG_INFINITY, f32::max);
    Columns::from_fn(x.d(), x.n(), |i, j| largest(i) - x.column(j)[i])
}

/// x_1, −x_2, x_3, −x_4: what becomes of a token depends on its place.
fn alternation(x: &Columns) -> Columns {
    Columns::from_fn(x.d(), x.n(), |i, j| if j % 2 == 0 { 1.0 } else { -1.0 } * x.column(j)[i])
}

/// x_4, x_3, x_2, x_1: where a token goes depends on its place.
fn reversal(x: &Columns) -> Columns {
    Columns::from_fn(x.d(), x.n(), |i, j| x.column(x.n() - 1 - j)[i])
}

type Pairs = Vec<(Columns, Columns)>;

fn main() -> Result<()> {
    let runs = [
        (GAP, false, [0x2c, 0xa0, 0x2c]),
        (ALTERNATION, false, [0xfc, 0xae, 0x91]),
        (ALTERNATION, true, [0xcb, 0x18, 0x1d]),
        (REVERSAL, false, [0x9e, 0xca, 0xe1]),
        (REVERSAL, true, [0x08, 0x51, 0x9c]),
    ];
    println!("map          class     blocks  parameters     bound    before     after");
    let mut curves = Vec::new();
    for (target, positional, color) in runs {
        let Target { name, blocks, .. } = target;
        let (measured, bound) = measured(target);
        let class = if positional { "g(X + E)" } else { "g(X)" };
        let (count, points) = match positional {
            true => learn(Positional::random(D, N, blocks, SEED)?, target, &measured)?,
            false => learn(FixedWidth::random(D, blocks, SEED)?, target, &measured)?,
        };
        let (before, after) = (points[0].1, points[points.len() - 1].1);
        println!(
            "{name:12} {class:8} {blocks:7} {count:11}  {bound:8.2e}  {before:8.2e}  {after:8.2e}"
        );
        let points = points.into_iter().map(|(step, error)| (step, error.log10())).collect();
        curves.push(Curve { name: format!("{name}, {class}"), color, points });
    }
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, option, path] = &arguments[..]
        && option == "--out"
    {
        let title = "T^{2,1,4} without positions and with them";
        let svg = line_chart(title, ["step", "log₁₀ of the mean squared error"], &curves)?;
        replace_file(path, svg.as_bytes())?;
    }
    Ok(())
}

/// Some sequences in all orders with what the target has for them, and the least error of an equivariant map there.
fn measured(target: Target) -> (Pairs, f64) {
    let mut random = Random(1);
    let bases: Vec<Columns> = (0..MEASURED).map(|_| random.sequence()).collect();
    let bounds = bases.iter().map(|x| equivariant_bound(target.f, x));
    let bound = bounds.sum::<f64>() / MEASURED as f64;
    let pairs = bases.iter().flat_map(orbit).map(|x| (x.clone(), (target.f)(&x)));
    (pairs.collect(), bound)
}

/// Learns from new sequences in every step. Returns how many parameters there are, and errors by step.
fn learn<M: SequenceMap>(
    map: M,
    target: Target,
    measured: &Pairs,
) -> Result<(usize, Vec<(f64, f64)>)> {
    let schedule = Schedule::Cosine { rate: 2e-2, floor: 0.0, warmup: 200, total: STEPS };
    let mut fit = Fit::new(map, schedule, AdamOptions::default())?;
    let mut random = Random(2);
    let mut points = vec![(0.0, fit.map().error(measured)?)];
    for step in 1..=STEPS {
        let inputs = (0..BATCH).map(|_| random.sequence());
        let pairs: Pairs = inputs.map(|x| (x.clone(), (target.f)(&x))).collect();
        fit.step(&pairs)?;
        if step % (STEPS / POINTS) == 0 {
            points.push((step as f64, fit.map().error(measured)?));
        }
    }
    Ok((fit.map().parameters().len(), points))
}

/// A linear congruential generator.
struct Random(u64);

impl Random {
    /// In −1 … 1.
    fn unit(&mut self) -> f32 {
        let (a, c) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(a).wrapping_add(c);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn sequence(&mut self) -> Columns {
        let values: Vec<f32> = (0..D * N).map(|_| self.unit()).collect();
        Columns::from_fn(D, N, |i, j| values[j * D + i])
    }
}
