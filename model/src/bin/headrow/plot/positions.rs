//! The sinusoids as bands of colour, and their products as a curve.

use super::write;
use crate::failure::Failure;
use headrow::chart::{Curve, line_chart};
use headrow::position::{SinusoidLayout, sinusoids};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Points of a cell.
const CELL: (usize, usize) = (8, 6);
/// Room at the left of the bands, above them, and below them for their axis.
const LEFT: usize = 70;
const ABOVE: usize = 50;
const BELOW: usize = 50;
/// Shades to each side of 0.
const SHADES: i32 = 8;
const KERNEL: [u8; 3] = [0x20, 0x60, 0xa8];
/// Most cells of a picture that one can open.
const MOST: usize = 1 << 17;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Where the SVG goes.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// d: features of a position, an even number.
    #[arg(long, value_name = "D", default_value_t = 64)]
    d_model: usize,

    /// Positions that are drawn.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..))]
    n: u32,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let (n, d) = (args.n as usize, args.d_model);
    if n.saturating_mul(d) > MOST {
        return Err(Failure::Message(format!(
            "{n} positions of {d} features: more than {MOST} cells"
        )));
    }
    // Products over k < n between n positions need twice as many.
    let table = sinusoids(SinusoidLayout::Paper, 2 * n, d)?;
    let rows: Vec<&[f32]> = table.chunks_exact(d).collect();
    let kernel =
        Curve { name: "PE(p)·PE(p + k)".to_owned(), color: KERNEL, points: kernel(&rows) };
    let title = format!("Σ cos ω_i k: the same for every p, d = {d}");
    let chart = line_chart(&title, ["k", "product"], &[kernel])?;
    write(&args.out, &picture(&rows[..n], &chart))
}

/// The mean of PE(p)·PE(p + k) over the first positions p, for each k.
fn kernel(rows: &[&[f32]]) -> Vec<(f64, f64)> {
    let n = rows.len() / 2;
    let product = |a: &[f32], b: &[f32]| {
        a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>()
    };
    let mean = |k: usize| (0..n).map(|p| product(rows[p], rows[p + k])).sum::<f64>() / n as f64;
    (0..n).map(|k| (k as f64, mean(k))).collect()
}

/// Bands above, the chart below.
fn picture(rows: &[&[f32]], chart: &str) -> String {
    let (n, d) = (rows.len(), rows[0].len());
    let bottom = ABOVE + d * CELL.1 + BELOW;
    let (width, height) = ((LEFT + n * CELL.0 + 20).max(900), bottom + 540);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"30\" font-size=\"20\">PE(p, j): red is 1, blue is −1</text>\n"
    );
    bands(rows, &mut svg);
    axes(n, d, &mut svg);
    // Writing to a string cannot fail.
    let _ = writeln!(svg, "<g transform=\"translate(0 {bottom})\">\n{}</g>", chart.trim_end());
    svg.push_str("</svg>\n");
    svg
}

/// The shade of a value in [−1, 1].
fn shade(value: f32) -> i32 {
    (value * SHADES as f32).round() as i32
}

/// A path for each shade: a row of the picture is a feature, and a run of equal shades one rectangle.
fn bands(rows: &[&[f32]], svg: &mut String) {
    for wanted in -SHADES..=SHADES {
        let mut path = String::new();
        for feature in 0..rows[0].len() {
            let shades: Vec<i32> = rows.iter().map(|row| shade(row[feature])).collect();
            let mut position = 0;
            for run in shades.chunk_by(|a, b| a == b) {
                if run[0] == wanted {
                    let (x, y) = (LEFT + position * CELL.0, ABOVE + feature * CELL.1);
                    let (width, height) = (run.len() * CELL.0, CELL.1);
                    let _ = write!(path, "M{x} {y}h{width}v{height}h-{width}z");
                }
                position += run.len();
            }
        }
        let _ = writeln!(svg, "<path class=\"band\" fill=\"{}\" d=\"{path}\"/>", colour(wanted));
    }
}

/// Blue below 0, white at 0, red above.
fn colour(shade: i32) -> String {
    let faded = 255 - (shade.abs() * 215 / SHADES);
    match shade {
        0.. => format!("#ff{faded:02x}{faded:02x}"),
        _ => format!("#{faded:02x}{faded:02x}ff"),
    }
}

fn axes(n: usize, d: usize, svg: &mut String) {
    let foot = ABOVE + d * CELL.1;
    for position in (0..n).step_by(n.div_ceil(10).max(1)) {
        let x = LEFT + position * CELL.0 + CELL.0 / 2;
        let y = foot + 16;
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{position}</text>");
    }
    for feature in (0..d).step_by(d.div_ceil(8).max(1)) {
        let (x, y) = (LEFT - 8, ABOVE + feature * CELL.1 + 10);
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{feature}</text>");
    }
    let (x, y) = (LEFT + n * CELL.0 / 2, foot + 36);
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">p: position</text>");
    let middle = ABOVE + d * CELL.1 / 2;
    let _ = writeln!(
        svg,
        "<text transform=\"translate(20 {middle}) rotate(-90)\" text-anchor=\"middle\">j: feature</text>"
    );
}
