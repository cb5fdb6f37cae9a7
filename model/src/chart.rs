//! Curves over a pair of axes, as SVG.

use crate::error::{Error, Result};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

const SIZE: (u32, u32) = (900, 540);
/// About the width of a letter beside a mark.
const LETTER: i32 = 7;

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

/// How far apart values of an axis stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scale {
    /// As their differences; the axis x begins at 0.
    #[default]
    Linear,
    /// As their ratios, on both axes. Points that are not above 0 are left out.
    Logarithmic,
}

/// A point that is pointed out.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// (x, y).
    pub point: (f64, f64),
    /// What stands beside it.
    pub text: String,
}

/// A picture of curves.
///
/// ```
/// use headrow::chart::{Chart, Curve, Mark, Scale};
///
/// let points = (1..=64).map(|n| (f64::from(n), f64::from(n * n))).collect();
/// let chart = Chart {
///     title: "n²".to_owned(),
///     axes: ["n", "pairs"].map(str::to_owned),
///     scale: Scale::Logarithmic,
///     curves: vec![Curve { name: "pairs of tokens".to_owned(), color: [0x20, 0x60, 0xa8], points }],
///     marks: vec![Mark { point: (8.0, 64.0), text: "n = 8".to_owned() }],
/// };
/// assert!(chart.svg()?.contains("n = 8"));
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// What stands above.
    pub title: String,
    /// Names of the axes x and y.
    pub axes: [String; 2],
    /// How both are scaled.
    pub scale: Scale,
    /// The lines. Points that are not finite are left out.
    pub curves: Vec<Curve>,
    /// Points on them.
    pub marks: Vec<Mark>,
}

/// Draws curves over one pair of linear axes, whose names are given, as an SVG. `title` stands above. Points that are not finite are
/// left out.
///
/// ```
/// use headrow::chart::{Curve, line_chart};
/// let points = (0..10).map(|x| (f64::from(x), f64::from(x * x))).collect();
/// let square = Curve { name: "x²".to_owned(), color: [0, 0, 0], points };
/// assert!(line_chart("a parabola", ["x", "y"], &[square])?.starts_with("<svg"));
/// # Ok::<(), headrow::Error>(())
/// ```
///
/// # Errors
/// [`Error::File`] when there is nothing to draw.
pub fn line_chart(title: &str, axes: [&str; 2], curves: &[Curve]) -> Result<String> {
    let axes = axes.map(str::to_owned);
    Chart { title: title.to_owned(), axes, curves: curves.to_vec(), ..Chart::default() }.svg()
}

impl Chart {
    /// The picture as an SVG.
    ///
    /// # Errors
    /// [`Error::File`] when there is nothing to draw.
    pub fn svg(&self) -> Result<String> {
        let mut chart = self.clone();
        chart.curves.iter_mut().for_each(|curve| curve.points.retain(|&point| self.shows(point)));
        chart.curves.retain(|curve| !curve.points.is_empty());
        chart.marks.retain(|mark| self.shows(mark.point));
        if chart.curves.is_empty() {
            return Err(Error::file(&self.title, "no points to draw"));
        }
        let mut svg = String::new();
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        chart.draw(&area).map_err(|error| Error::file(&self.title, error))?;
        drop(area);
        Ok(svg)
    }

    /// Whether there is a place for the point.
    fn shows(&self, (x, y): (f64, f64)) -> bool {
        let above = self.scale == Scale::Linear || (x > 0.0 && y > 0.0);
        x.is_finite() && y.is_finite() && above
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        let points = || self.curves.iter().flat_map(|curve| curve.points.iter());
        let range = |values: &dyn Fn(&(f64, f64)) -> f64| {
            let low = points().map(values).fold(f64::INFINITY, f64::min);
            low..points().map(values).fold(f64::NEG_INFINITY, f64::max)
        };
        let (x, y) = (range(&|point| point.0), range(&|point| point.1));
        match self.scale {
            Scale::Linear => {
                // A level line needs some height too; what is never below 0 does not look as if it were.
                let margin = (0.05 * (y.end - y.start)).max(0.01);
                let low = y.start - margin;
                let floor = if y.start < 0.0 { low } else { low.max(0.0) };
                self.draw_on(area, 0.0..x.end.max(1.0), floor..y.end + margin, |x| {
                    format!("{x:.0}")
                })
            }
            Scale::Logarithmic => {
                let wide = |Range { start, end }: Range<f64>| start..end.max(1.01 * start);
                let y = wide(0.7 * y.start..1.4 * y.end);
                self.draw_on(area, wide(x).log_scale(), y.log_scale(), power)
            }
        }
    }

    /// Draws everything over these axes. `label` writes numbers of the axis x.
    fn draw_on<X, Y>(&self, area: &Area<'_>, x: X, y: Y, label: fn(&f64) -> String) -> Drawn
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(&self.axes[0])
            .y_desc(&self.axes[1])
            .label_style(("sans-serif", 13))
            .light_line_style(WHITE)
            .x_label_formatter(&label);
        match self.scale {
            Scale::Linear => mesh.draw()?,
            Scale::Logarithmic => mesh.y_label_formatter(&power).draw()?,
        }
        for Curve { name, color: [red, green, blue], points } in &self.curves {
            let color = RGBColor(*red, *green, *blue);
            let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
            let sample =
                move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2));
            chart.draw_series(line)?.label(name).legend(sample);
        }
        for Mark { point, text } in &self.marks {
            let (x, _) = chart.backend_coord(point);
            // Beside the point, on the side where there is room.
            let fits = x + 8 + LETTER * text.chars().count() as i32 <= SIZE.0 as i32;
            let (side, gap) = if fits { (HPos::Left, 8) } else { (HPos::Right, -8) };
            let style = ("sans-serif", 13).into_text_style(area).pos(Pos::new(side, VPos::Top));
            let text = Text::new(text.clone(), (gap, 8), style);
            let mark = EmptyElement::at(*point) + Circle::new((0, 0), 5, BLACK.filled()) + text;
            chart.draw_series([mark])?;
        }
        let corner = match self.scale {
            Scale::Linear => SeriesLabelPosition::UpperRight,
            Scale::Logarithmic => SeriesLabelPosition::UpperLeft,
        };
        chart
            .configure_series_labels()
            .position(corner)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .label_font(("sans-serif", 13))
            .draw()?;
        area.present()?;
        Ok(())
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// A number of a logarithmic axis: in full while it is short, else by its exponent.
fn power(x: &f64) -> String {
    match *x {
        x if (1.0..1e5).contains(&x) => format!("{x:.0}"),
        x if (0.001..1.0).contains(&x) => format!("{x}"),
        x => format!("{x:.0e}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The points of the line of this colour.
    pub(crate) fn polyline(svg: &str, color: &str) -> Vec<(f64, f64)> {
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

    /// Equal ratios are equal distances on both axes, so that a power is a straight line.
    #[test]
    fn powers_are_straight_on_logarithmic_axes() {
        let points = (0..=6).map(|k| (10f64.powi(k), 10f64.powi(2 * k))).collect();
        let curve = Curve { name: "x²".to_owned(), color: [1, 2, 3], points };
        let mut chart =
            Chart { curves: vec![curve], scale: Scale::Logarithmic, ..Chart::default() };
        chart.curves[0].points.push((0.0, 1.0));
        chart.marks = vec![Mark { point: (1e3, 1e6), text: "here".to_owned() }];
        let svg = chart.svg().unwrap();
        let points = polyline(&svg, "#010203");
        assert_eq!(points.len(), 7);
        let steps: Vec<(f64, f64)> =
            points.windows(2).map(|pair| (pair[1].0 - pair[0].0, pair[0].1 - pair[1].1)).collect();
        let level = |a: f64, b: f64| (a - b).abs() <= 1.0 && a > 0.0;
        assert!(
            steps.iter().all(|s| level(s.0, steps[0].0) && level(s.1, steps[0].1)),
            "{steps:?}"
        );
        let circle = svg.lines().find(|line| line.contains("<circle")).unwrap();
        assert!(
            circle.contains(&format!("cx=\"{}\" cy=\"{}\"", points[3].0, points[3].1)),
            "{circle}"
        );
        assert!(svg.contains("here"));
    }
}
