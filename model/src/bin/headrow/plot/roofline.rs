//! The parts of a layer under the roofs of a machine.

use super::{LayerArgs, first_stack, machine};
use crate::failure::Failure;
use crate::table::Table;
use headrow::accounting::{Machine, traffic};
use headrow::chart::{Chart, Curve, Mark, Scale};
use headrow::{Config, Side};
use std::io::Write as _;

const ROOF: [u8; 3] = [0x20, 0x60, 0xa8];
const RIDGE: [u8; 3] = [0xb0, 0xb0, 0xb0];
/// Neighbours no farther apart than this are one mark.
const NEAR: f64 = 1.25;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    layer: LayerArgs,

    /// Tokens of a sequence, several with commas.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 16, 512],
        value_parser = clap::value_parser!(u32).range(1..))]
    n: Vec<u32>,

    /// Most operations of a second, in 10⁹. Without it: as measured here in a product of packed weights.
    #[arg(long, value_name = "GFLOPS", value_parser = above_zero)]
    peak: Option<f64>,

    /// Most bytes of a second between memory and processor, in 10⁹. Without it: as measured here with copies.
    #[arg(long, value_name = "GB/S", value_parser = above_zero)]
    bandwidth: Option<f64>,
}

fn above_zero(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|&number: &f64| number > 0.0 && number.is_finite());
    number.ok_or_else(|| "expected a number above 0".to_owned())
}

/// A part of a layer over n tokens.
struct Shown {
    part: &'static str,
    n: u32,
    intensity: f64,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let sizes = args.layer.load()?;
    let (side, _) = first_stack(&sizes.config)?;
    let machine = match (args.peak, args.bandwidth) {
        (Some(peak), Some(bandwidth)) => {
            Machine { operations: 1e9 * peak, bandwidth: 1e9 * bandwidth }
        }
        (peak, bandwidth) => {
            let (cpu, threads) = args.layer.processor()?;
            let measured = machine::measure(cpu, threads);
            Machine {
                operations: peak.map_or(measured.operations, |peak| 1e9 * peak),
                bandwidth: bandwidth.map_or(measured.bandwidth, |bytes| 1e9 * bytes),
            }
        }
    };
    let parts = parts(&sizes.config, side, &args.n);
    report(&machine, &parts)?;
    args.layer.write(&chart(&sizes.name, &machine, &parts))
}

fn parts(config: &Config, side: Side, lengths: &[u32]) -> Vec<Shown> {
    let of = |&n: &u32| {
        let parts = traffic(config, side, n as usize).into_iter();
        parts.map(move |part| Shown { part: part.part, n, intensity: part.intensity() })
    };
    lengths.iter().flat_map(of).collect()
}

fn chart(name: &str, machine: &Machine, parts: &[Shown]) -> Chart {
    let ridge = machine.ridge();
    let intensities = || parts.iter().map(|part| part.intensity);
    let low = intensities().fold(ridge, f64::min) / 2.0;
    let high = intensities().fold(ridge, f64::max) * 8.0;
    let point = |x: f64| (x, machine.attainable(x) / 1e9);
    let roof = Curve {
        name: "the roof".to_owned(),
        color: ROOF,
        points: [low, ridge, high].map(point).to_vec(),
    };
    let guide = Curve {
        name: format!("{ridge:.1} operations a byte"),
        color: RIDGE,
        points: vec![(ridge, point(low).1), point(ridge)],
    };
    Chart {
        title: format!("What bounds a layer of {name}"),
        axes: ["operations per byte", "10⁹ operations per second"].map(str::to_owned),
        scale: Scale::Logarithmic,
        curves: vec![roof, guide],
        marks: marks(parts).into_iter().map(|(x, text)| Mark { point: point(x), text }).collect(),
    }
}

/// Intensities and names; parts over as many tokens that are near to each other have one mark.
fn marks(parts: &[Shown]) -> Vec<(f64, String)> {
    let mut sorted: Vec<&Shown> = parts.iter().collect();
    sorted.sort_by(|a, b| a.n.cmp(&b.n).then(a.intensity.total_cmp(&b.intensity)));
    let near = |a: &&Shown, b: &&Shown| a.n == b.n && b.intensity <= NEAR * a.intensity;
    let groups = sorted.chunk_by(near).map(|group| {
        let names: Vec<&str> = group.iter().map(|shown| shown.part).collect();
        (group[0].intensity, format!("{}: n = {}", names.join(", "), group[0].n))
    });
    groups.collect()
}

/// Writes the roofs and what lies under them.
fn report(machine: &Machine, parts: &[Shown]) -> Result<(), Failure> {
    let (peak, bandwidth) = (machine.operations / 1e9, machine.bandwidth / 1e9);
    let mut table = Table::new(["part", "operations a byte", "at most, 10⁹/s", "bound by"]);
    for Shown { part, n, intensity } in parts {
        let bound = if *intensity < machine.ridge() { "memory" } else { "operations" };
        let most = machine.attainable(*intensity) / 1e9;
        table.row([
            format!("{part}, n = {n}"),
            format!("{intensity:.2}"),
            format!("{most:.1}"),
            bound.to_owned(),
        ]);
    }
    let mut out = std::io::stdout().lock();
    write!(out, "{peak:.1}·10⁹ operations and {bandwidth:.1}·10⁹ bytes a second\n{table}")
        .and_then(|()| out.flush())
        .map_err(Failure::output)
}
