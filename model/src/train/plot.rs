//! The course of a training, and other curves, as pictures.

use super::log::LogLine;
use crate::error::{Error, Result};
use plotters::prelude::*;

const SIZE: (u32, u32) = (900, 540);
const TRAIN: [u8; 3] = [0x1f, 0x77, 0xb4];
const VALIDATION: [u8; 3] = [0xd6, 0x27, 0x28];

/// A line through points.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What the legend calls it.
    pub name: String,
    /// Red, green, blue.
    pub color: [u8; 3],
    /// (x, y), x from 0 on. A curve without points is left out.
    pub points: Vec<(f64, f64)>,
}

/// Draws the losses of training and validation over the steps as an SVG. `title` stands above.
///
/// # Errors
/// [`Error::File`] when the records have no losses at all.
pub fn loss_curve(title: &str, records: &[LogLine]) -> Result<String> {
    let curve = |name: &str, color, pick: fn(&LogLine) -> Option<(u64, f64)>| {
        let points = records.iter().filter_map(pick).map(|(step, loss)| (step as f64, loss));
        Curve { name: name.to_owned(), color, points: points.collect() }
    };
    let train = curve("training", TRAIN, |record| match record {
        LogLine::Train(record) => Some((record.step, record.loss)),
        LogLine::Validation(_) => None,
    });
    let validation = curve("validation", VALIDATION, |record| match record {
        LogLine::Validation(record) => Some((record.step, record.loss)),
        LogLine::Train(_) => None,
    });
    line_chart(title, ["step", "loss per token (nats)"], &[train, validation])
}

/// Draws curves over one pair of axes, whose names are given, as an SVG. `title` stands above. Points that are not finite are left
/// out.
///
/// ```
/// use headrow::train::{Curve, line_chart};
/// let points = (0..10).map(|x| (f64::from(x), f64::from(x * x))).collect();
/// let square = Curve { name: "x²".to_owned(), color: [0, 0, 0], points };
/// assert!(line_chart("a parabola", ["x", "y"], &[square])?.starts_with("<svg"));
/// # Ok::<(), headrow::Error>(())
/// ```
///
/// # Errors
/// [`Error::File`] when there is nothing to draw.
pub fn line_chart(title: &str, axes: [&str; 2], curves: &[Curve]) -> Result<String> {
    let finite = |curve: &Curve| -> Vec<(f64, f64)> {
        let points = curve.points.iter().copied();
        points.filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
    };
    let curves = curves.iter().map(|curve| Curve { points: finite(curve), ..curve.clone() });
    let curves: Vec<Curve> = curves.filter(|curve| !curve.points.is_empty()).collect();
    if curves.is_empty() {
        return Err(Error::file(title, "no points to draw"));
    }
    let mut svg = String::new();
    draw(&mut svg, title, axes, &curves).map_err(|error| Error::file(title, error))?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    title: &str,
    [x, y]: [&str; 2],
    curves: &[Curve],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || curves.iter().flat_map(|curve| curve.points.iter());
    let last = points().map(|point| point.0).fold(1.0, f64::max);
    let low = points().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let high = points().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max);
    // A level line needs some height too; what is never below 0 does not look as if it were.
    let margin = (0.05 * (high - low)).max(0.01);
    let floor = if low < 0.0 { low - margin } else { (low - margin).max(0.0) };
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..last, floor..high + margin)?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .label_style(("sans-serif", 13))
        .light_line_style(WHITE)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .draw()?;
    for Curve { name, color: [red, green, blue], points } in curves {
        let color = RGBColor(*red, *green, *blue);
        let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
        chart
            .draw_series(line)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::log::{TrainLine, ValidationLine};
    use super::*;

    fn train(step: u64, loss: f64) -> LogLine {
        LogLine::Train(TrainLine { step, loss, ..TrainLine::default() })
    }

    fn validation(step: u64, loss: f64) -> LogLine {
        LogLine::Validation(ValidationLine { step, loss, ..ValidationLine::default() })
    }

    /// The points of the line of this colour.
    fn polyline(svg: &str, color: &str) -> Vec<(f64, f64)> {
        let of_color = |line: &&str| line.contains("<polyline") && line.contains(color);
        let line = svg.lines().find(of_color).unwrap();
        let points = line.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let points = points.split_whitespace().map(|point| {
            let (x, y) = point.split_once(',').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        });
        points.collect()
    }

    #[test]
    fn a_curve_for_each_kind_of_loss() {
        let records = [
            train(10, 4.0),
            train(20, 3.0),
            validation(20, 3.5),
            train(30, 2.5),
            validation(30, 3.0),
        ];
        let svg = loss_curve("a < b & c", &records).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains("training") && svg.contains("validation"));
        assert!(svg.contains("a &lt; b &amp; c"), "{svg}");
        let (train, validation) = (polyline(&svg, "#1F77B4"), polyline(&svg, "#D62728"));
        assert_eq!((train.len(), validation.len()), (3, 2));
        // Later is to the right, less is lower, and the same step stands above itself.
        assert!(train.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
        assert_eq!((train[1].0, train[2].0), (validation[0].0, validation[1].0));
        assert!(validation[1].1 < train[2].1);
    }

    #[test]
    fn one_point_and_level_lines_are_drawn_and_nothing_is_refused() {
        for records in
            [vec![train(1, 2.0)], vec![validation(0, 0.0)], vec![train(1, 1.0), train(2, 1.0)]]
        {
            assert!(loss_curve("t", &records).unwrap().contains("polyline"));
        }
        assert!(matches!(loss_curve("t", &[]), Err(Error::File { .. })));
        assert!(matches!(loss_curve("t", &[train(1, f64::NAN)]), Err(Error::File { .. })));
    }

    #[test]
    fn curves_below_zero_are_drawn_where_they_are_and_gaps_are_left_out() {
        let curve = |points: &[(f64, f64)]| Curve {
            name: "c".to_owned(),
            color: [1, 2, 3],
            points: points.to_vec(),
        };
        let points = [(0.0, -2.0), (1.0, f64::INFINITY), (2.0, -1.0), (3.0, 1.0)];
        let svg = line_chart("t", ["across", "up"], &[curve(&points), curve(&[])]).unwrap();
        assert!(svg.contains("across") && svg.contains("up"));
        let heights: Vec<f64> = polyline(&svg, "#010203").iter().map(|point| point.1).collect();
        assert_eq!(heights.len(), 3);
        // Twice as far from the second to the third, but for whole pixels.
        let (first, second) = (heights[0] - heights[1], heights[1] - heights[2]);
        assert!(first > 0.0 && (second / first - 2.0).abs() < 0.02, "{heights:?}");
        assert!(line_chart("t", ["x", "y"], &[curve(&[])]).is_err());
    }
}
