//! The definition of rotary position embedding, and of its gradient.

use crate::rope::{Rope, RopeLayout};
use crate::view::Mat;

/// Each pair of the turning features times the rotation matrix of its position's angle; the others as they are.
pub fn rope(rope: &Rope<'_>, positions: &[u32], heads: usize, x: Mat<'_>) -> Vec<f64> {
    turned(rope, positions, heads, x, |[x1, x2], cos, sin| {
        [x1 * cos - x2 * sin, x1 * sin + x2 * cos]
    })
}

/// Each pair of the turning features of dy times the transposed matrix.
pub fn rope_backward(rope: &Rope<'_>, positions: &[u32], heads: usize, dy: Mat<'_>) -> Vec<f64> {
    turned(rope, positions, heads, dy, |[x1, x2], cos, sin| {
        [x1 * cos + x2 * sin, -x1 * sin + x2 * cos]
    })
}

/// Every pair through `turn(pair, cos, sin)`.
fn turned(
    rope: &Rope<'_>,
    positions: &[u32],
    heads: usize,
    x: Mat<'_>,
    turn: impl Fn([f64; 2], f64, f64) -> [f64; 2],
) -> Vec<f64> {
    let (half, width) = (rope.cos.cols(), x.cols() / heads);
    let mut out = Vec::with_capacity(x.rows() * x.cols());
    for (i, &position) in positions.iter().enumerate() {
        let (cos, sin) = (rope.cos.row(position as usize), rope.sin.row(position as usize));
        let mut row: Vec<f64> = x.row(i).iter().map(|&x| f64::from(x)).collect();
        for head in row.chunks_exact_mut(width.max(1)) {
            for pair in 0..half {
                let (a, b) = match rope.layout {
                    RopeLayout::HalfSplit => (pair, pair + half),
                    RopeLayout::Interleaved => (2 * pair, 2 * pair + 1),
                };
                let (cos, sin) = (f64::from(cos[pair]), f64::from(sin[pair]));
                [head[a], head[b]] = turn([head[a], head[b]], cos, sin);
            }
        }
        out.extend(row);
    }
    out
}
