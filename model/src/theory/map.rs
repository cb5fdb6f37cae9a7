//! What the maps of this module have in common: they are computed, counted, written and learned in the same way.

use super::columns::Columns;
use super::fit::{entries, square_error};
use super::network::Network;
use super::pass::Walk;
use crate::error::{Error, Result};
use crate::train::{Precision, to_safetensors};

/// What only this module implements.
pub trait Sealed {
    /// The blocks and their numbers.
    fn network(&self) -> &Network;

    /// The same, to be changed.
    fn network_mut(&mut self) -> &mut Network;
}

/// A map ℝ^{d×n} → ℝ^{d×n} with parameters.
///
/// It is computed on the calling thread, with the same bits on every instruction set. The n columns of a sequence see each other and those of
/// no other sequence.
pub trait SequenceMap: Sealed {
    /// Y, from X.
    ///
    /// # Errors
    /// [`Error::Dimensions`] when the map is not defined for X.
    fn forward(&self, x: &Columns) -> Result<Columns> {
        let network = self.network();
        network.check("X", x)?;
        let mut walk = Walk::new(network, x.n(), x.n())?;
        let y = walk.forward(network, std::iter::once(x));
        Columns::new(x.d(), (0..y.rows()).flat_map(|j| y.row(j)).copied().collect())
    }

    /// All numbers, one tensor behind the other. How many there are is the map's parameter count.
    fn parameters(&self) -> &[f32] {
        &self.network().values
    }

    /// All numbers, to be changed.
    fn parameters_mut(&mut self) -> &mut [f32] {
        &mut self.network_mut().values
    }

    /// Names, shapes and numbers of the tensors, row-major, in the order of [`SequenceMap::parameters`].
    fn tensors(&self) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        let Network { tensors, values, .. } = self.network();
        tensors.iter().map(|tensor| {
            (tensor.name.as_str(), tensor.shape.as_slice(), &values[tensor.place.clone()])
        })
    }

    /// The numbers of a tensor.
    fn tensor(&self, name: &str) -> Option<&[f32]> {
        self.tensors().find(|tensor| tensor.0 == name).map(|(_, _, values)| values)
    }

    /// A safetensors file in f32: for block i, counted from 0,
    ///
    /// | name | shape | |
    /// |---|---|---|
    /// | `blocks.i.attention.query.weight`, `…key.weight`, `…value.weight` | \[H·m, d\] | W_1, …, W_H one below the other |
    /// | `blocks.i.attention.query.bias` | \[H·m\] | b_1ꟴ, …, b_Hꟴ, of maps that have them |
    /// | `blocks.i.attention.output.weight` | \[d, H, m\] | W_hᴼ is `[:, h, :]` |
    /// | `blocks.i.feed_forward.inner.weight`, `….bias` | \[r, d\], \[r\] | W₁, b₁ |
    /// | `blocks.i.feed_forward.outer.weight`, `….bias` | \[d, r\], \[d\] | W₂, b₂ |
    /// | `positions` | \[n, d\] | Eᵀ, of maps that have E |
    fn to_safetensors(&self) -> Vec<u8> {
        let Network { tensors, values, .. } = self.network();
        let named = tensors.iter().map(|tensor| (&tensor.name, tensor));
        to_safetensors(named, values, Precision::F32)
    }

    /// The mean squared error over all entries: Σ‖f(X) − Y‖² / Σ dn for pairs (X, Y), the sums in f64.
    ///
    /// # Errors
    /// [`Error::Dimensions`] when the map is not defined for an X, or its Y has other dimensions. No pair at all is such an error too.
    fn error(&self, pairs: &[(Columns, Columns)]) -> Result<f64> {
        let mut walk = checked(self.network(), pairs, None)?;
        let sum = square_error(self.network(), &mut walk, pairs, &mut []);
        Ok(sum / entries(pairs) as f64)
    }

    /// [`SequenceMap::error`], and its gradient for the parameters.
    ///
    /// # Errors
    /// As there.
    fn gradient(&self, pairs: &[(Columns, Columns)]) -> Result<(f64, Vec<f32>)> {
        let mut walk = checked(self.network(), pairs, None)?;
        let mut gradient = vec![0.0; self.parameters().len()];
        let sum = square_error(self.network(), &mut walk, pairs, &mut gradient);
        let count = entries(pairs) as f64;
        let scaled = gradient.iter().map(|&g| (f64::from(g) / count) as f32);
        Ok((sum / count, scaled.collect()))
    }
}

/// Room for the pairs, `walk` if it has it, when the map is defined for them.
pub(super) fn checked(
    network: &Network,
    pairs: &[(Columns, Columns)],
    walk: Option<Walk>,
) -> Result<Walk> {
    if pairs.is_empty() {
        return Err(Error::dimensions("the number of pairs", 0, "at least 1"));
    }
    for (index, (x, y)) in pairs.iter().enumerate() {
        network.check(&format!("X of pair {index}"), x)?;
        if (x.d(), x.n()) != (y.d(), y.n()) {
            let [actual, expected] = [y, x].map(|x| format!("{}×{}", x.d(), x.n()));
            return Err(Error::dimensions(format!("Y of pair {index}"), actual, expected));
        }
    }
    let columns = pairs.iter().map(|(x, _)| x.n()).sum();
    let longest = pairs.iter().map(|(x, _)| x.n()).max().unwrap_or(0);
    let walk = walk.filter(|walk| walk.fits(columns, longest));
    walk.map_or_else(|| Walk::new(network, columns, longest), Ok)
}
