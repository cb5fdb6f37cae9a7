//! The smallest Transformers that can do everything: the class T^{2,1,4}.
//!
//! A block has H = 2 heads of width m = 1, a hidden width of r = 4, and one number b_hꟴ per head that is added to its queries:
//!
//! - Attention(X) = X + Σ_{h=1}^{2} W_hᴼ (W_hⱽ X) Softmax\[(W_hᴷ X)ᵀ (W_hꟴ X + b_hꟴ 1ᵀ)\],
//! - FF(X) = X + W₂ ReLU(W₁X + b₁1ᵀ) + b₂1ᵀ.
//!
//! T^{2,1,4} is the set of all finite compositions of such blocks ([`FixedWidth`]). Its widths do not grow with d or n, and yet for every
//! continuous permutation-equivariant map of compact support there is a member as close to it as one likes, in any L^p with p < ∞. With
//! trainable positions, X ↦ g(X + E) for g ∈ T^{2,1,4} and E ∈ ℝ^{d×n} ([`Positional`]), that holds for every continuous map on a compact
//! set. (Yun, Bhojanapalli, Rawat, Reddi and Kumar, "Are Transformers universal approximators of sequence-to-sequence functions?", 2020,
//! theorems 2 and 3.)
//!
//! Without b_hꟴ such a block is a [`column::Transformer`](super::column::Transformer) of these widths.

use super::column::{Dimensions, Transformer};
use super::columns::Columns;
use super::map::{Sealed, SequenceMap};
use super::network::{Form, Network, block_name};
use crate::error::{Error, Result};

/// H: heads of a block.
pub const HEADS: usize = 2;
/// m: the width of a head.
pub const HEAD_WIDTH: usize = 1;
/// r: the hidden width of FF.
pub const HIDDEN: usize = 4;

/// Those of N blocks of the class on d features.
fn widths(d: usize, blocks: usize) -> Dimensions {
    Dimensions::new(d).with_heads(HEADS, HEAD_WIDTH).with_hidden(HIDDEN).with_blocks(blocks)
}

/// Refuses other widths than those of the class.
fn check(dimensions: Dimensions) -> Result<()> {
    let Dimensions { heads, head_width, hidden, .. } = dimensions;
    let named = [("H", heads, HEADS), ("m", head_width, HEAD_WIDTH), ("r", hidden, HIDDEN)];
    match named.into_iter().find(|(_, actual, expected)| actual != expected) {
        None => Ok(()),
        Some((name, actual, expected)) => {
            Err(Error::dimensions(format!("{name} of T^{{2,1,4}}"), actual, expected))
        }
    }
}

fn form(dimensions: Dimensions, positions: Option<usize>) -> Form {
    Form { dimensions, query_bias: true, positions }
}

/// Reads a member of the class, with positions or without.
fn read(bytes: &[u8], positional: bool) -> Result<Network> {
    let network = Network::read(bytes, true, positional)?;
    check(network.dimensions())?;
    Ok(network)
}

/// A member of T^{2,1,4}: a composition of blocks with two heads of width 1 and a hidden width of 4; see the [module](self).
///
/// It is permutation equivariant: g(XP) = g(X)P.
#[derive(Clone, Debug)]
pub struct FixedWidth(Network);

impl FixedWidth {
    /// N blocks on d features with random weights, as [`Transformer::random`]; the biases b_hꟴ are 0.
    ///
    /// # Errors
    /// [`Error::Dimensions`] when d or N is 0, [`Error::OutOfMemory`].
    pub fn random(d: usize, blocks: usize, seed: u64) -> Result<FixedWidth> {
        Network::random(form(widths(d, blocks), None), seed).map(FixedWidth)
    }

    /// The Transformer with b_1ꟴ and b_2ꟴ in each of its blocks.
    ///
    /// # Errors
    /// [`Error::Dimensions`] unless H = 2, m = 1 and r = 4, and there are biases for each block.
    pub fn from_column(transformer: &Transformer, biases: &[[f32; HEADS]]) -> Result<FixedWidth> {
        let dimensions = transformer.dimensions();
        check(dimensions)?;
        if biases.len() != dimensions.blocks {
            return Err(Error::dimensions("query biases", biases.len(), dimensions.blocks));
        }
        let mut network = Network::zeros(form(dimensions, None))?;
        network.take_over(transformer.network(), 0);
        for (index, biases) in biases.iter().enumerate() {
            let name = format!("{}.attention.query.bias", block_name(index));
            network.tensor_mut(&name).copy_from_slice(biases);
        }
        Ok(FixedWidth(network))
    }

    /// Reads a file of [`SequenceMap::to_safetensors`].
    ///
    /// # Errors
    /// As [`Transformer::from_safetensors`]; [`Error::Dimensions`] for other widths than those of the class.
    pub fn from_safetensors(bytes: &[u8]) -> Result<FixedWidth> {
        read(bytes, false).map(FixedWidth)
    }

    /// `next` ∘ self, which is in the class again.
    ///
    /// # Errors
    /// [`Error::Dimensions`] when the two have different d.
    pub fn then(&self, next: &FixedWidth) -> Result<FixedWidth> {
        let (Dimensions { d, blocks, .. }, after) = (self.0.dimensions(), next.0.dimensions());
        if after.d != d {
            return Err(Error::dimensions("d of what follows", after.d, d));
        }
        let mut network = Network::zeros(form(widths(d, blocks + after.blocks), None))?;
        network.take_over(&self.0, 0);
        network.take_over(&next.0, blocks);
        Ok(FixedWidth(network))
    }

    /// d: features of a token.
    pub fn d(&self) -> usize {
        self.0.dimensions().d
    }

    /// N: blocks.
    pub fn blocks(&self) -> usize {
        self.0.dimensions().blocks
    }
}

/// X ↦ g(X + E) with g ∈ T^{2,1,4} and E ∈ ℝ^{d×n}, which is trained too; see the [module](self).
///
/// It is defined for sequences of n tokens, and tells their places apart.
///
/// ```
/// use headrow::theory::yun::{FixedWidth, Positional};
/// use headrow::theory::{Columns, SequenceMap};
///
/// // A block of H = 2, m = 1, r = 4 on d features: 8d for attention with its two biases, 9d + 4 for FF.
/// let g = FixedWidth::random(3, 2, 1)?;
/// assert_eq!(g.parameters().len(), 2 * (8 * 3 + 2 + 9 * 3 + 4));
/// // g alone says the same of equal tokens, wherever they stand; with positions it does not.
/// let x = Columns::from_fn(3, 4, |_, _| 1.0);
/// let same = |y: &Columns| (1..4).all(|j| y.column(j) == y.column(0));
/// let e = Columns::from_fn(3, 4, |i, j| (i + j) as f32);
/// let f = Positional::new(&g, &e)?;
/// assert!(same(&g.forward(&x)?) && !same(&f.forward(&x)?));
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Positional(Network);

impl Positional {
    /// N blocks on ℝ^{d×n} with random weights, as [`FixedWidth::random`], and E from N(0, 1/d).
    ///
    /// # Errors
    /// [`Error::Dimensions`] when one of them is 0, [`Error::OutOfMemory`].
    pub fn random(d: usize, n: usize, blocks: usize, seed: u64) -> Result<Positional> {
        match n {
            0 => Err(Error::dimensions("n", 0, "at least 1")),
            _ => Network::random(form(widths(d, blocks), Some(n)), seed).map(Positional),
        }
    }

    /// X ↦ g(X + E).
    ///
    /// # Errors
    /// [`Error::Dimensions`] when g and E have different d.
    pub fn new(g: &FixedWidth, e: &Columns) -> Result<Positional> {
        g.0.check("E", e)?;
        let mut network = Network::zeros(form(g.0.dimensions(), Some(e.n())))?;
        network.take_over(&g.0, 0);
        network.tensor_mut("positions").copy_from_slice(e.values());
        Ok(Positional(network))
    }

    /// Reads a file of [`SequenceMap::to_safetensors`].
    ///
    /// # Errors
    /// As [`FixedWidth::from_safetensors`].
    pub fn from_safetensors(bytes: &[u8]) -> Result<Positional> {
        read(bytes, true).map(Positional)
    }

    /// d: features of a token.
    pub fn d(&self) -> usize {
        self.0.dimensions().d
    }

    /// n: tokens of a sequence.
    pub fn n(&self) -> usize {
        self.positions().n()
    }

    /// N: blocks.
    pub fn blocks(&self) -> usize {
        self.0.dimensions().blocks
    }

    /// E.
    pub fn positions(&self) -> Columns {
        let e = self.tensor("positions").unwrap_or_default();
        Columns::from_fn(self.d(), e.len() / self.d(), |i, j| e[j * self.d() + i])
    }
}

impl Sealed for FixedWidth {
    fn network(&self) -> &Network {
        &self.0
    }

    fn network_mut(&mut self) -> &mut Network {
        &mut self.0
    }
}

impl SequenceMap for FixedWidth {}

impl Sealed for Positional {
    fn network(&self) -> &Network {
        &self.0
    }

    fn network_mut(&mut self) -> &mut Network {
        &mut self.0
    }
}

impl SequenceMap for Positional {}
