//! Pictures of charts, read as what they show.
#![allow(dead_code, reason = "each test target uses a part")]

use roxmltree::{Document, Node};

/// The polylines of a picture with this colour, as points.
pub(crate) fn lines(picture: &Document<'_>, color: &str) -> Vec<Vec<(f64, f64)>> {
    let lines = picture.descendants().filter(|node| node.has_tag_name("polyline"));
    let lines = lines.filter(|line| line.attribute("stroke") == Some(color));
    lines.map(points).collect()
}

fn points(line: Node<'_, '_>) -> Vec<(f64, f64)> {
    let points = line.attribute("points").unwrap().split_whitespace().map(|point| {
        let (x, y) = point.split_once(',').unwrap();
        (x.parse().unwrap(), y.parse().unwrap())
    });
    points.collect()
}

pub(crate) fn texts<'a>(picture: &'a Document<'_>) -> Vec<&'a str> {
    picture.descendants().filter_map(|node| node.text()).map(str::trim).collect()
}

/// One axis of a chart: where its outermost labels stand, and what these say.
struct Axis {
    ends: [(f64, f64); 2],
}

impl Axis {
    /// The axis whose labels are aligned so and differ in this coordinate.
    fn of(picture: &Document<'_>, anchor: &str, coordinate: &str) -> Axis {
        let labels =
            picture.descendants().filter(|node| node.attribute("text-anchor") == Some(anchor));
        let labels = labels.filter_map(|label| {
            let number: f64 = label.text()?.trim().parse().ok()?;
            Some((label.attribute(coordinate)?.parse().ok()?, number))
        });
        let labels: Vec<(f64, f64)> = labels.collect();
        Axis { ends: [labels[0], labels[labels.len() - 1]] }
    }

    /// What a point of the picture means.
    fn number(&self, at: f64) -> f64 {
        let [(from, first), (to, last)] = self.ends;
        first + (at - from) / (to - from) * (last - first)
    }
}

/// The curve that the legend calls so, in the numbers of the axes.
pub(crate) fn curve(picture: &Document<'_>, name: &str) -> Vec<(f64, f64)> {
    let (x, y) = (Axis::of(picture, "middle", "x"), Axis::of(picture, "end", "y"));
    let mut nodes = picture.descendants();
    let label = nodes.find(|node| node.text().is_some_and(|text| text.trim() == name)).unwrap();
    let top: f64 = label.attribute("y").unwrap().parse().unwrap();
    let left: f64 = label.attribute("x").unwrap().parse().unwrap();
    // Its sample stands in the line of its name.
    let sample = picture.descendants().filter(|node| node.has_tag_name("polyline")).find(|node| {
        let line = points(*node);
        let beside = |p: &(f64, f64)| (left - 100.0..left).contains(&p.0);
        let level = |p: &(f64, f64)| (top..top + 10.0).contains(&p.1);
        line.len() == 2 && line.iter().all(|p| beside(p) && level(p))
    });
    let color = sample.unwrap().attribute("stroke").unwrap();
    let drawn = lines(picture, color).remove(0);
    drawn.into_iter().map(|(at, height)| (x.number(at), y.number(height))).collect()
}
