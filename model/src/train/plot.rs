//! The course of a training as a picture.

use super::log::LogLine;
use crate::error::{Error, Result};
use plotters::prelude::*;

const SIZE: (u32, u32) = (900, 540);
const TRAIN: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const VALIDATION: RGBColor = RGBColor(0xd6, 0x27, 0x28);

/// Draws the losses of training and validation over the steps as an SVG. `title` stands above.
///
/// # Errors
/// [`Error::File`] when the records have no losses at all.
pub fn loss_curve(title: &str, records: &[LogLine]) -> Result<String> {
    let curve = |pick: fn(&LogLine) -> Option<(u64, f64)>| -> Vec<(f64, f64)> {
        let points = records.iter().filter_map(pick).filter(|(_, loss)| loss.is_finite());
        points.map(|(step, loss)| (step as f64, loss)).collect()
    };
    let train = curve(|record| match record {
        LogLine::Train(record) => Some((record.step, record.loss)),
        LogLine::Validation(_) => None,
    });
    let validation = curve(|record| match record {
        LogLine::Validation(record) => Some((record.step, record.loss)),
        LogLine::Train(_) => None,
    });
    if train.is_empty() && validation.is_empty() {
        return Err(Error::file("loss curve", "no losses to draw"));
    }
    let mut svg = String::new();
    draw(&mut svg, title, &[("training", TRAIN, train), ("validation", VALIDATION, validation)])
        .map_err(|error| Error::file("loss curve", error))?;
    Ok(svg)
}

type Curve = (&'static str, RGBColor, Vec<(f64, f64)>);

fn draw(svg: &mut String, title: &str, curves: &[Curve]) -> Result<(), Box<dyn std::error::Error>> {
    let points = || curves.iter().flat_map(|(_, _, points)| points.iter());
    let last = points().map(|point| point.0).fold(1.0, f64::max);
    let low = points().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let high = points().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max);
    // A level line needs some height too.
    let margin = (0.05 * (high - low)).max(0.01);
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..last, (low - margin).max(0.0)..high + margin)?;
    chart
        .configure_mesh()
        .x_desc("step")
        .y_desc("loss per token (nats)")
        .label_style(("sans-serif", 13))
        .light_line_style(WHITE)
        .x_label_formatter(&|step| format!("{step:.0}"))
        .draw()?;
    for (name, color, points) in curves.iter().filter(|(_, _, points)| !points.is_empty()) {
        let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
        let color = *color;
        chart
            .draw_series(line)?
            .label(*name)
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
        let polyline = |color: &str| {
            let line = svg
                .lines()
                .find(|line| line.contains("<polyline") && line.contains(color))
                .unwrap();
            let points = line.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
            let points = points.split_whitespace().map(|point| {
                let (x, y) = point.split_once(',').unwrap();
                (x.parse::<f64>().unwrap(), y.parse::<f64>().unwrap())
            });
            points.collect::<Vec<_>>()
        };
        let (train, validation) = (polyline("#1F77B4"), polyline("#D62728"));
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
}
