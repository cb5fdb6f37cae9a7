//! The paper's fixed positions: a sine and a cosine for each of d_model/2 wavelengths.

use super::room;
use crate::error::{Error, Result};

/// How sines and cosines are arranged, and which wavelengths they have. θ_i is the frequency of pair i, p the
/// position, d the width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SinusoidLayout {
    /// "Attention Is All You Need", §3.5: PE(p, 2i) = sin(p·θ_i), PE(p, 2i + 1) = cos(p·θ_i) with
    /// θ_i = 10000^(−2i/d). An odd d leaves a sine without its cosine and is refused.
    #[default]
    Paper,
    /// Marian: the paper's values, all sines first and then all cosines. An odd d has one sine more.
    Marian,
    /// Tensor2Tensor, fairseq, M2M-100, OpenNMT: sines, then cosines, with θ_i = 10000^(−i/(⌊d/2⌋ − 1)), so that the
    /// longest wavelength is exactly 2π·10000. An odd d ends in a column of zeros.
    Tensor2Tensor,
}

impl SinusoidLayout {
    /// Whether there is such a table of width `d_model`; `place` is named by the error.
    pub fn check(self, d_model: usize, place: &str) -> Result<()> {
        let problem = match self {
            SinusoidLayout::Paper if d_model % 2 == 1 => {
                "an odd width leaves a sine without cosine"
            }
            // A single frequency has no ratio to the next one.
            SinusoidLayout::Tensor2Tensor if d_model < 4 => "this layout begins at a width of 4",
            _ if d_model == 0 => "must not be 0",
            _ => return Ok(()),
        };
        Err(Error::config(
            place,
            "d_model",
            format_args!("{d_model}: sinusoidal positions: {problem}"),
        ))
    }

    /// The value of column `j` at position `p`.
    fn value(self, p: f64, j: usize, d_model: usize) -> f64 {
        let sines = match self {
            SinusoidLayout::Marian => d_model.div_ceil(2),
            _ => d_model / 2,
        };
        let (pair, is_sine) = match self {
            SinusoidLayout::Paper => (j / 2, j.is_multiple_of(2)),
            _ if j < sines => (j, true),
            _ => (j - sines, false),
        };
        let exponent = match self {
            SinusoidLayout::Tensor2Tensor if pair == sines => return 0.0,
            SinusoidLayout::Tensor2Tensor => pair as f64 / (sines - 1) as f64,
            _ => 2.0 * pair as f64 / d_model as f64,
        };
        let angle = p * libm::pow(10000.0, -exponent);
        if is_sine { libm::sin(angle) } else { libm::cos(angle) }
    }
}

/// Row p is the encoding of position p, for p below `positions`: `positions` × `d_model`.
///
/// Computed in f64 and rounded once. A family that counts from another position than 0 takes its rows from there.
/// Within a pair, PE(p + k) is PE(p) turned by k·θ_i, so PE(p)·PE(p + k) = Σ cos(k·θ_i) depends on k alone.
///
/// # Errors
/// When the layout does not exist in this width ([`SinusoidLayout::check`]), or there is no memory for the table.
///
/// ```
/// use headrow::position::{SinusoidLayout, sinusoids};
///
/// let table = sinusoids(SinusoidLayout::Paper, 2, 4)?;
/// assert_eq!(table[..4], [0.0, 1.0, 0.0, 1.0]);
/// assert_eq!(table[4..], [1f64.sin() as f32, 1f64.cos() as f32, 0.01f64.sin() as f32, 0.01f64.cos() as f32]);
/// # Ok::<(), headrow::Error>(())
/// ```
pub fn sinusoids(layout: SinusoidLayout, positions: usize, d_model: usize) -> Result<Vec<f32>> {
    layout.check(d_model, "positions")?;
    let mut table = room(positions, d_model)?;
    for p in 0..positions {
        table.extend((0..d_model).map(|j| layout.value(p as f64, j, d_model) as f32));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUTS: [SinusoidLayout; 3] =
        [SinusoidLayout::Paper, SinusoidLayout::Marian, SinusoidLayout::Tensor2Tensor];

    /// (sine, cosine) of pair i in a row of even width.
    fn pair(layout: SinusoidLayout, row: &[f32], i: usize) -> (f64, f64) {
        let (sine, cosine) = match layout {
            SinusoidLayout::Paper => (2 * i, 2 * i + 1),
            _ => (i, row.len() / 2 + i),
        };
        (f64::from(row[sine]), f64::from(row[cosine]))
    }

    #[test]
    fn the_first_position_is_all_zeros_and_ones_and_the_second_has_the_frequencies() {
        for layout in LAYOUTS {
            let table = sinusoids(layout, 2, 8).unwrap();
            for i in 0..4 {
                assert_eq!(pair(layout, &table[..8], i), (0.0, 1.0));
                let exponent = match layout {
                    SinusoidLayout::Tensor2Tensor => i as f64 / 3.0,
                    _ => i as f64 / 4.0,
                };
                let theta = 10000f64.powf(-exponent);
                let (sine, cosine) = pair(layout, &table[8..], i);
                assert!((sine - theta.sin()).abs() < 1e-7 && (cosine - theta.cos()).abs() < 1e-7);
            }
        }
    }

    /// numpy.sin and torch.sin, by the definitions of Marian and M2M-100 in a width of 5 and 7.
    #[test]
    fn odd_widths_are_as_their_families_have_them() {
        let marian = sinusoids(SinusoidLayout::Marian, 4, 5).unwrap();
        let expected = [0.14112001, 0.07528529, 0.00189287, -0.9899925, 0.99716204];
        assert!(marian[15..].iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-7), "{marian:?}");
        let fairseq = sinusoids(SinusoidLayout::Tensor2Tensor, 4, 7).unwrap();
        let expected = [0.14112, 0.0299955, 0.0003, -0.9899925, 0.99955004, 0.99999994, 0.0];
        assert!(
            fairseq[21..].iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-7),
            "{fairseq:?}"
        );
    }

    #[test]
    fn a_shift_turns_every_pair_by_the_same_angle_wherever_it_starts() {
        let d = 32;
        for layout in LAYOUTS {
            let table = sinusoids(layout, 600, d).unwrap();
            let row = |p: usize| &table[p * d..][..d];
            for k in [1, 5, 100] {
                for i in 0..d / 2 {
                    // The angle of the shift, from the start of the table.
                    let (sin, cos) = pair(layout, row(k), i);
                    for p in [1, 17, 499] {
                        let ((s, c), (s2, c2)) =
                            (pair(layout, row(p), i), pair(layout, row(p + k), i));
                        assert!((s2 - (s * cos + c * sin)).abs() < 4e-7, "{layout:?} {p} {k} {i}");
                        assert!((c2 - (c * cos - s * sin)).abs() < 4e-7, "{layout:?} {p} {k} {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn products_of_rows_depend_on_their_distance_alone() {
        let d = 64;
        for layout in LAYOUTS {
            let table = sinusoids(layout, 900, d).unwrap();
            let product = |p: usize, q: usize| -> f64 {
                let rows = table[p * d..][..d].iter().zip(&table[q * d..][..d]);
                rows.map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
            };
            for k in [0, 1, 8, 300] {
                for p in [3, 77, 599] {
                    assert!((product(p, p + k) - product(0, k)).abs() < 1e-5, "{layout:?} {p} {k}");
                }
            }
            assert!((product(0, 1) - product(0, 2)).abs() > 0.1);
        }
    }

    #[test]
    fn widths_that_a_layout_lacks_are_errors() {
        let error = |layout, d| sinusoids(layout, 3, d).unwrap_err().to_string();
        assert!(error(SinusoidLayout::Paper, 7).contains("a sine without cosine"));
        assert!(error(SinusoidLayout::Paper, 0).contains("must not be 0"));
        assert!(error(SinusoidLayout::Marian, 0).contains("must not be 0"));
        assert!(error(SinusoidLayout::Tensor2Tensor, 3).contains("begins at a width of 4"));
        assert!(sinusoids(SinusoidLayout::Paper, usize::MAX, 8).is_err());
    }
}
