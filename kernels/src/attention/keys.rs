//! Keys and values in panels.

use crate::view::Mat;

/// Packs keys, s × d_k, into panels of `nr` keys, transposed: element p of key j lies at
/// `(j / nr)·d_k·nr + p·nr + j mod nr`. The last panel is filled up with zeros, whose scores nobody reads.
pub(super) fn pack_keys(keys: Mat<'_>, nr: usize, out: &mut [f32]) {
    let d_k = keys.cols();
    for (panel, first) in out.chunks_exact_mut((d_k * nr).max(1)).zip((0..keys.rows()).step_by(nr))
    {
        let count = nr.min(keys.rows() - first);
        if count < nr {
            panel.fill(0.0);
        }
        let mut done = 0;
        while done + 4 <= count {
            let rows = std::array::from_fn(|j| keys.row(first + done + j));
            transpose_four(rows, nr, done, panel);
            done += 4;
        }
        for j in done..count {
            for (out, &x) in panel[j..].iter_mut().step_by(nr).zip(keys.row(first + j)) {
                *out = x;
            }
        }
    }
}

/// Writes four rows as columns `at..at + 4` of a panel, four values of each at a time.
#[inline]
fn transpose_four(rows: [&[f32]; 4], nr: usize, at: usize, panel: &mut [f32]) {
    let (blocks, _) = rows[0].as_chunks::<4>();
    let whole = blocks.len() * 4;
    for p in (0..whole).step_by(4) {
        let r: [[f32; 4]; 4] = rows.map(|row| row[p..p + 4].try_into().expect("four values"));
        for i in 0..4 {
            let column = [r[0][i], r[1][i], r[2][i], r[3][i]];
            panel[(p + i) * nr + at..][..4].copy_from_slice(&column);
        }
    }
    for p in whole..rows[0].len() {
        for j in 0..4 {
            panel[p * nr + at + j] = rows[j][p];
        }
    }
}

/// Packs values, s × d_v, into panels of `nr` columns: column c of key j lies at
/// `(c / nr)·s·nr + j·nr + c mod nr`. What is beyond the last column is not written.
pub(super) fn pack_values(values: Mat<'_>, nr: usize, out: &mut [f32]) {
    let panel = values.rows() * nr;
    for j in 0..values.rows() {
        for (c, part) in values.row(j).chunks(nr).enumerate() {
            out[c * panel + j * nr..][..part.len()].copy_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_hold_every_key_and_value_once() {
        for (s, d, nr) in [(1, 1, 16), (5, 3, 4), (9, 8, 4), (17, 6, 16), (4, 0, 4), (0, 4, 4)] {
            let data: Vec<f32> = (1..=s * (d + 2)).map(|x| x as f32).collect();
            let mat = Mat::with_stride(&data, s, d, d + 2);
            let mut panels = vec![-1.0; s.next_multiple_of(nr) * d];
            pack_keys(mat, nr, &mut panels);
            for j in 0..s.next_multiple_of(nr) {
                for p in 0..d {
                    let expected = if j < s { mat.row(j)[p] } else { 0.0 };
                    assert_eq!(panels[j / nr * d * nr + p * nr + j % nr], expected);
                }
            }
            let mut panels = vec![-1.0; s * d.next_multiple_of(nr)];
            pack_values(mat, nr, &mut panels);
            for j in 0..s {
                for c in 0..d {
                    assert_eq!(panels[c / nr * s * nr + j * nr + c % nr], mat.row(j)[c]);
                }
            }
        }
    }
}
