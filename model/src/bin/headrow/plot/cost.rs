//! Attention against the rest of a layer, by count or by the clock.

use super::measure::{Timing, time_layer};
use super::{LayerArgs, first_stack};
use crate::failure::Failure;
use crate::table::Table;
use headrow::accounting::{Operations, crossover};
use headrow::chart::{Chart, Curve, Mark, Scale};
use headrow::{Config, Side};
use std::io::Write as _;

const ATTENTION: [u8; 3] = [0x20, 0x60, 0xa8];
const REST: [u8; 3] = [0xc0, 0x4e, 0x15];
const GUIDE: [u8; 3] = [0xb0, 0xb0, 0xb0];
/// Fewest tokens that are drawn.
const FIRST: usize = 16;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    layer: LayerArgs,

    /// Time one layer with full attention on this machine instead of counting, and write the times.
    #[arg(long)]
    measure: bool,

    /// Most tokens that are timed; each length before it is half of the next.
    #[arg(long, value_name = "N", default_value_t = 4096, requires = "measure",
        value_parser = clap::value_parser!(u32).range(32..=1 << 20))]
    longest: u32,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let sizes = args.layer.load()?;
    let (side, stack) = first_stack(&sizes.config)?;
    let chart = match args.measure {
        true => {
            let (cpu, threads) = args.layer.processor()?;
            let longest = args.longest as usize;
            let (one, timings) = time_layer(&sizes.config, stack, longest, cpu, threads)?;
            let predicted = crossover(&one, Side::Encoder);
            report(&timings, predicted)?;
            measured(&sizes.name, &one, &timings)
        }
        false => counted(&sizes.name, &sizes.config, side),
    };
    args.layer.write(&chart)
}

/// The picture of operations.
fn counted(name: &str, config: &Config, side: Side) -> Chart {
    let crossing = crossover(config, side);
    let last = 4 * crossing.unwrap_or(16 * config.d_model).max(config.d_model);
    let doublings = std::iter::successors(Some(FIRST), |n| n.checked_mul(2));
    let mut lengths: Vec<usize> = doublings.take_while(|&n| n < last).chain([last]).collect();
    lengths.extend(crossing);
    lengths.sort_unstable();
    let layers = lengths.iter().map(|&n| (n as f64, Operations::layer(config, side, n)));
    let layers: Vec<(f64, Operations)> = layers.collect();
    let curve = |name: &str, color, of: fn(&Operations) -> f64| {
        let points = layers.iter().map(|(n, layer)| (*n, of(layer))).collect();
        Curve { name: name.to_owned(), color, points }
    };
    let attention = curve("attention: QKᵀ and PV", ATTENTION, |layer| layer.attention);
    let rest = curve("projections and feed-forward", REST, Operations::linear);
    let guide = n_is_d(config, &attention, &rest);
    let mark = crossing.map(|n| {
        let layer = Operations::layer(config, side, n);
        crossing_mark((n as f64, layer.linear()), config)
    });
    Chart {
        title: format!("Operations of one layer, {name}, d = {}", config.d_model),
        axes: ["n: tokens", "operations"].map(str::to_owned),
        scale: Scale::Logarithmic,
        curves: vec![attention, rest, guide],
        marks: mark.into_iter().collect(),
    }
}

/// The picture of times.
fn measured(name: &str, one: &Config, timings: &[Timing]) -> Chart {
    let curve = |name: &str, color, of: fn(&Timing) -> f64| {
        let points = timings.iter().map(|timing| (timing.n as f64, 1e3 * of(timing))).collect();
        Curve { name: name.to_owned(), color, points }
    };
    let attention = curve("attention", ATTENTION, |timing| timing.attention);
    let rest = curve("the rest of the layer", REST, |timing| timing.rest);
    let guide = n_is_d(one, &attention, &rest);
    let mark =
        measured_crossing(timings).map(|(n, seconds)| crossing_mark((n, 1e3 * seconds), one));
    Chart {
        title: format!("Time of one layer on this machine, {name}, d = {}", one.d_model),
        axes: ["n: tokens", "milliseconds"].map(str::to_owned),
        scale: Scale::Logarithmic,
        curves: vec![attention, rest, guide],
        marks: mark.into_iter().collect(),
    }
}

fn crossing_mark(point: (f64, f64), config: &Config) -> Mark {
    let n = point.0.round();
    Mark { point, text: format!("n = {n} = {:.2} d", n / config.d_model as f64) }
}

/// An upright line at n = d, from the lowest point of the curves to the highest.
fn n_is_d(config: &Config, attention: &Curve, rest: &Curve) -> Curve {
    let heights = || attention.points.iter().chain(&rest.points).map(|point| point.1);
    let low = heights().filter(|&y| y > 0.0).fold(f64::INFINITY, f64::min);
    let d = config.d_model as f64;
    let points = vec![(d, low), (d, heights().fold(0.0, f64::max))];
    Curve { name: "n = d".to_owned(), color: GUIDE, points }
}

/// Where the times are equal, between the two lengths before and behind: straight lines on logarithmic axes.
fn measured_crossing(timings: &[Timing]) -> Option<(f64, f64)> {
    let above = |timing: &Timing| (timing.attention / timing.rest).ln();
    timings.windows(2).find_map(|pair| {
        let (before, behind) = (above(&pair[0]), above(&pair[1]));
        let share = -before / (behind - before);
        let between = |of: &dyn Fn(&Timing) -> f64| {
            let (a, b) = (of(&pair[0]).ln(), of(&pair[1]).ln());
            (a + share * (b - a)).exp()
        };
        let crossed = before < 0.0 && behind >= 0.0;
        crossed.then(|| (between(&|timing| timing.n as f64), between(&|timing| timing.rest)))
    })
}

/// Writes the times, and both crossings.
fn report(timings: &[Timing], predicted: Option<usize>) -> Result<(), Failure> {
    let mut table = Table::new(["n", "attention", "rest"]);
    let milliseconds = |seconds: f64| format!("{:.3} ms", 1e3 * seconds);
    for &Timing { n, attention, rest } in timings {
        table.row([n.to_string(), milliseconds(attention), milliseconds(rest)]);
    }
    let longest = timings.last().map_or(0, |timing| timing.n);
    let measured = match measured_crossing(timings) {
        Some((n, _)) => format!("at n = {n:.0}"),
        None => format!("not up to n = {longest}"),
    };
    let predicted = predicted.map_or("never".to_owned(), |n| format!("at n = {n}"));
    let mut out = std::io::stdout().lock();
    writeln!(out, "{table}equal times {measured}, equal operations {predicted}")
        .and_then(|()| out.flush())
        .map_err(Failure::output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_lies_between_two_lengths() {
        // Attention takes n², the rest 300·n.
        let timing = |n: usize| Timing { n, attention: (n * n) as f64, rest: 300.0 * n as f64 };
        let timings = [64, 128, 256, 512].map(timing);
        let (n, seconds) = measured_crossing(&timings).unwrap();
        assert!((n - 300.0).abs() < 1e-6 && (seconds - 9e4).abs() < 1e-4, "{n} {seconds}");
        assert_eq!(measured_crossing(&timings[..3]), None);
    }
}
