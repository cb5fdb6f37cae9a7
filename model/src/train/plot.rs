//! The course of a training as a picture.

use super::log::LogLine;
use crate::chart::{Curve, line_chart};
use crate::error::Result;

const TRAIN: [u8; 3] = [0x1f, 0x77, 0xb4];
const VALIDATION: [u8; 3] = [0xd6, 0x27, 0x28];

/// Draws the losses of training and validation over the steps as an SVG. `title` stands above.
///
/// # Errors
/// [`Error::File`](crate::Error::File) when the records have no losses at all.
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

#[cfg(test)]
mod tests {
    use super::super::log::{TrainLine, ValidationLine};
    use super::*;
    use crate::chart::tests::polyline;
    use crate::error::Error;

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
}
