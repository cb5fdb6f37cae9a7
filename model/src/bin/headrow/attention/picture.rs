//! Attention maps as an SVG: a grid of layers and heads, tokens on both axes.

use headrow::{AttentionMap, AttentionMaps};
use std::fmt::Write as _;

/// Points of a square, of letters, of a letter's width, and between things.
const CELL: f64 = 15.0;
const LETTERS: f64 = 11.0;
const LETTER_WIDTH: f64 = 6.7;
const GAP: f64 = 24.0;
const TITLE: f64 = 34.0;
const CAPTION: f64 = 18.0;
/// Letters of a label that are shown.
const LABEL: usize = 16;
/// A weight that would not be seen.
const FAINT: f32 = 1.0 / 256.0;

/// Maps to be drawn.
pub(super) struct Picture<'a> {
    pub(super) title: &'a str,
    pub(super) maps: &'a AttentionMaps,
}

/// Where things are.
struct Layout {
    /// Maps beside each other.
    columns: usize,
    /// A map without its labels.
    width: f64,
    height: f64,
    /// Room for the tokens that attend, at the left, and those attended to, above.
    left: f64,
    above: f64,
}

impl Layout {
    fn new(maps: &AttentionMaps) -> Layout {
        let layers = maps.maps.chunk_by(|a, b| a.layer == b.layer);
        let heads = layers.map(<[AttentionMap]>::len).max().unwrap_or(1);
        let one_layer = heads == maps.maps.len();
        // A single layer's heads make a rectangle, several layers a row each.
        let columns = if one_layer { (heads as f64).sqrt().ceil() as usize } else { heads };
        let longest = |tokens: &[String]| {
            let letters = tokens.iter().map(|token| token.chars().count().min(LABEL));
            letters.max().unwrap_or(0) as f64 * LETTER_WIDTH + 8.0
        };
        Layout {
            columns: columns.max(1),
            width: maps.keys.len() as f64 * CELL,
            height: maps.queries.len() as f64 * CELL,
            left: longest(&maps.queries),
            above: longest(&maps.keys),
        }
    }

    /// The corner of a map.
    fn corner(&self, index: usize) -> (f64, f64) {
        let (column, row) = ((index % self.columns) as f64, (index / self.columns) as f64);
        let x = GAP + self.left + column * (self.width + self.left + GAP);
        let y = TITLE + CAPTION + self.above + row * (self.height + self.above + CAPTION + GAP);
        (x, y)
    }

    fn size(&self, maps: usize) -> (f64, f64) {
        let last = maps.saturating_sub(1);
        let (right, _) = self.corner(last.min(self.columns - 1));
        let (_, bottom) = self.corner(last);
        (right + self.width + GAP, bottom + self.height + GAP)
    }
}

impl Picture<'_> {
    pub(super) fn svg(&self) -> String {
        let layout = Layout::new(self.maps);
        let (width, height) = layout.size(self.maps.maps.len());
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" \
             font-size=\"{LETTERS}\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{GAP}\" y=\"{GAP}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" \
             font-size=\"14\" font-weight=\"bold\" fill=\"#222222\">{}</text>\n",
            self.title
        );
        for (index, map) in self.maps.maps.iter().enumerate() {
            self.draw(map, &layout, layout.corner(index), &mut svg);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw(&self, map: &AttentionMap, layout: &Layout, (x, y): (f64, f64), svg: &mut String) {
        let AttentionMaps { queries, keys, .. } = self.maps;
        let caption = y - layout.above - 4.0;
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{caption:.1}\" fill=\"#555555\">layer {}, head {}</text>",
            map.layer, map.head
        );
        for (row, token) in queries.iter().enumerate() {
            let (right, base) = (x - 4.0, y + (row as f64 + 0.75) * CELL);
            let _ = writeln!(
                svg,
                "<text x=\"{right:.1}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text>",
                label(token)
            );
        }
        for (column, token) in keys.iter().enumerate() {
            let (base, bottom) = (x + (column as f64 + 0.75) * CELL, y - 4.0);
            let _ = writeln!(
                svg,
                "<text transform=\"translate({base:.1} {bottom:.1}) rotate(-90)\">{}</text>",
                label(token)
            );
        }
        let (width, height) = (layout.width, layout.height);
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"#f7f8fa\" stroke=\"#c8ccd2\"/>"
        );
        self.squares(map, (x, y), svg);
    }

    fn squares(&self, map: &AttentionMap, (x, y): (f64, f64), svg: &mut String) {
        let AttentionMaps { queries, keys, .. } = self.maps;
        for (row, weights) in map.weights.chunks_exact(keys.len().max(1)).enumerate() {
            for (column, &weight) in weights.iter().enumerate().filter(|(_, w)| **w >= FAINT) {
                let (left, top) = (x + column as f64 * CELL, y + row as f64 * CELL);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{CELL}\" height=\"{CELL}\" \
                     fill=\"{}\"><title>{} → {}: {weight:.4}</title></rect>",
                    colour(weight),
                    escaped(&queries[row]),
                    escaped(&keys[column]),
                );
            }
        }
    }
}

/// White, blue, and nearly black: the darker the heavier.
fn colour(weight: f32) -> String {
    const STOPS: [[f32; 3]; 4] =
        [[247.0, 248.0, 250.0], [128.0, 177.0, 222.0], [32.0, 96.0, 168.0], [8.0, 29.0, 68.0]];
    let place = weight.clamp(0.0, 1.0).sqrt() * 3.0;
    let below = (place as usize).min(2);
    let share = place - below as f32;
    let [r, g, b] = [0, 1, 2]
        .map(|i| (STOPS[below][i] * (1.0 - share) + STOPS[below + 1][i] * share).round() as u8);
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// A token as far as there is room.
fn label(token: &str) -> String {
    let mut shown: String = token.chars().take(LABEL).collect();
    if token.chars().nth(LABEL).is_some() {
        shown.pop();
        shown.push('…');
    }
    escaped(&shown)
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            // XML has no way to write these.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_darken_with_the_weight() {
        let light = |weight: f32| {
            let channel = |i: usize| u32::from_str_radix(&colour(weight)[i..i + 2], 16).unwrap();
            channel(1) + channel(3) + channel(5)
        };
        assert_eq!(colour(0.0), "#f7f8fa");
        assert!((0..100).all(|i| light(i as f32 / 100.0) >= light((i + 1) as f32 / 100.0)));
        assert_eq!(colour(f32::INFINITY), colour(1.0));
    }

    #[test]
    fn what_xml_reserves_is_written_otherwise() {
        assert_eq!(label("<s>&\u{7}"), "&lt;s&gt;&amp;\u{fffd}");
        assert_eq!(label("abcdefghijklmnopqrstuvw"), "abcdefghijklmno…");
    }
}
