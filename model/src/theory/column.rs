//! The mathematician's Transformer: Block_N ∘ … ∘ Block_1 on X ∈ ℝ^{d×n}.
//!
//! Block = FF ∘ Attention with
//!
//! - Attention(X) = X + Σ_{h=1}^{H} W_hᴼ (W_hⱽ X) Softmax\[(W_hᴷ X)ᵀ (W_hꟴ X)\], W_hꟴ, W_hᴷ, W_hⱽ ∈ ℝ^{m×d}, W_hᴼ ∈ ℝ^{d×m},
//! - FF(X) = X + W₂ ReLU(W₁X + b₁1ᵀ) + b₂1ᵀ, W₁ ∈ ℝ^{r×d}, W₂ ∈ ℝ^{d×r}, b₁ ∈ ℝ^r, b₂ ∈ ℝ^d.
//!
//! Column j of the Softmax has the weights with which token j sees all tokens; they add up to 1. What the model of "Attention Is All You
//! Need" has besides is left out: 1/√m, masks, normalisation, biases of attention.
//!
//! Two properties: Transformer(XP) = Transformer(X)P for every permutation matrix P, and a block has 4Hmd + 2rd + r + d parameters,
//! whatever n is.

use super::map::{Sealed, SequenceMap};
use super::network::{Form, Network, block_name};
use crate::error::{Error, Result};
use headrow_kernels::{Mat, MatMut};

/// d, H, m, r and N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dimensions {
    /// d: features of a token.
    pub d: usize,
    /// H: heads.
    pub heads: usize,
    /// m: the width of a head.
    pub head_width: usize,
    /// r: the hidden width of FF.
    pub hidden: usize,
    /// N: blocks.
    pub blocks: usize,
}

impl Dimensions {
    /// One block of one head: H = 1, m = d, r = 4d, N = 1.
    pub fn new(d: usize) -> Dimensions {
        Dimensions { d, heads: 1, head_width: d, hidden: d.saturating_mul(4), blocks: 1 }
    }

    /// The same with H heads of width m.
    #[must_use]
    pub fn with_heads(self, heads: usize, head_width: usize) -> Dimensions {
        Dimensions { heads, head_width, ..self }
    }

    /// The same with a hidden width of r.
    #[must_use]
    pub fn with_hidden(self, hidden: usize) -> Dimensions {
        Dimensions { hidden, ..self }
    }

    /// The same with N blocks.
    #[must_use]
    pub fn with_blocks(self, blocks: usize) -> Dimensions {
        Dimensions { blocks, ..self }
    }

    /// 4Hmd + 2rd + r + d, the parameters of a block; `None` when that is beyond any memory.
    pub fn block_parameters(&self) -> Option<usize> {
        let Dimensions { d, heads, head_width, hidden: r, .. } = *self;
        let attention = heads.checked_mul(head_width)?.checked_mul(d)?.checked_mul(4)?;
        let feed_forward = r.checked_mul(d)?.checked_mul(2)?.checked_add(r)?.checked_add(d)?;
        attention.checked_add(feed_forward)
    }

    /// Refuses what is no block, and what no memory holds.
    pub(super) fn check(&self) -> Result<()> {
        let Dimensions { d, heads, head_width, hidden, blocks } = *self;
        let named = [("d", d), ("H", heads), ("m", head_width), ("r", hidden), ("N", blocks)];
        if let Some((name, _)) = named.iter().find(|(_, value)| *value == 0) {
            return Err(Error::dimensions(*name, 0, "at least 1"));
        }
        let all = self.block_parameters().and_then(|block| block.checked_mul(blocks));
        let bytes = all.and_then(|all| all.checked_mul(size_of::<f32>()));
        match bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok()) {
            true => Ok(()),
            false => Err(Error::out_of_memory(format_args!("{self:?}"))),
        }
    }
}

/// The matrices of a head.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Wꟴ, m × d.
    pub query: Mat<'a>,
    /// Wᴷ, m × d.
    pub key: Mat<'a>,
    /// Wⱽ, m × d.
    pub value: Mat<'a>,
    /// Wᴼ, d × m.
    pub output: Mat<'a>,
}

/// The matrices of a block.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// H of them.
    pub heads: &'a [Head<'a>],
    /// W₁, r × d.
    pub w1: Mat<'a>,
    /// b₁, r.
    pub b1: &'a [f32],
    /// W₂, d × r.
    pub w2: Mat<'a>,
    /// b₂, d.
    pub b2: &'a [f32],
}

/// A composition of N blocks; see the [module](self).
///
/// Time O(N·(n·(Hmd + rd) + n²·Hm)) for n tokens.
///
/// ```
/// use headrow::Mat;
/// use headrow::theory::column::{Block, Head, Transformer};
/// use headrow::theory::{Columns, SequenceMap};
///
/// // d = 1, one head of width 1 that asks and answers the same: the mean is added; FF doubles what is above 0.
/// let (zero, one) = ([0.0], [1.0]);
/// let [zero, one] = [&zero, &one].map(|x| Mat::new(x, 1, 1));
/// let head = Head { query: zero, key: zero, value: one, output: one };
/// let block = Block { heads: &[head], w1: one, b1: &[0.0], w2: one, b2: &[0.0] };
/// let map = Transformer::from_arrays(&[block])?;
/// let x = Columns::new(1, vec![1.0, 3.0])?;
/// assert_eq!(map.forward(&x)?.values(), [6.0, 10.0]);
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Transformer(Network);

impl Transformer {
    /// Every matrix uniform in ±√(6/(rows + columns)), biases 0; those of W_1ᴼ, …, W_Hᴼ count as one matrix. The same seed gives the
    /// same numbers on every machine.
    ///
    /// # Errors
    /// [`Error::Dimensions`] when one is 0, [`Error::OutOfMemory`].
    pub fn random(dimensions: Dimensions, seed: u64) -> Result<Transformer> {
        Network::random(form(dimensions), seed).map(Transformer)
    }

    /// The Transformer with these matrices. The first block says what d, H, m and r are.
    ///
    /// # Errors
    /// [`Error::Dimensions`] naming the first matrix that is not of these.
    pub fn from_arrays(blocks: &[Block<'_>]) -> Result<Transformer> {
        let missing = |what| Error::dimensions(what, 0, "at least 1");
        let first = blocks.first().ok_or_else(|| missing("N"))?;
        let head = first.heads.first().ok_or_else(|| missing("H"))?;
        let dimensions = Dimensions::new(head.query.cols())
            .with_heads(first.heads.len(), head.query.rows())
            .with_hidden(first.w1.rows())
            .with_blocks(blocks.len());
        let mut network = Network::zeros(form(dimensions))?;
        for (index, block) in blocks.iter().enumerate() {
            set_block(&mut network, index, block)?;
        }
        Ok(Transformer(network))
    }

    /// Reads a file of [`SequenceMap::to_safetensors`]. The shapes in it say what d, H, m, r and N are.
    ///
    /// # Errors
    /// [`Error::File`] for what is no safetensors file, [`Error::Weights`] with all tensors that are missing, left over, or of a shape that
    /// does not fit the others.
    pub fn from_safetensors(bytes: &[u8]) -> Result<Transformer> {
        Network::read(bytes, false, false).map(Transformer)
    }

    /// d, H, m, r and N.
    pub fn dimensions(&self) -> Dimensions {
        self.0.dimensions()
    }
}

impl Sealed for Transformer {
    fn network(&self) -> &Network {
        &self.0
    }

    fn network_mut(&mut self) -> &mut Network {
        &mut self.0
    }
}

impl SequenceMap for Transformer {}

fn form(dimensions: Dimensions) -> Form {
    Form { dimensions, query_bias: false, positions: None }
}

/// Copies the matrices of a block to where the network has them.
fn set_block(network: &mut Network, index: usize, block: &Block<'_>) -> Result<()> {
    let Dimensions { d, heads, head_width: m, hidden: r, .. } = network.dimensions();
    let name = block_name(index);
    let of = |part: &str| format!("{name}.{part}");
    if block.heads.len() != heads {
        return Err(Error::dimensions(of("H"), block.heads.len(), heads));
    }
    for (h, head) in block.heads.iter().enumerate() {
        for (part, from) in [("query", head.query), ("key", head.key), ("value", head.value)] {
            let what = format!("{name}.attention.{part} of head {h}");
            let all = network.tensor_mut(&of(&format!("attention.{part}.weight")));
            let all = MatMut::new(all, heads * m, d);
            set(&what, from, all.rows_range(h * m..(h + 1) * m))?;
        }
        let what = format!("{name}.attention.output of head {h}");
        let all = network.tensor_mut(&of("attention.output.weight"));
        let all = MatMut::new(all, d, heads * m);
        set(&what, head.output, all.columns(h * m..(h + 1) * m))?;
    }
    let parts = [
        ("inner.weight", block.w1, [r, d]),
        ("inner.bias", Mat::from_row(block.b1), [1, r]),
        ("outer.weight", block.w2, [d, r]),
        ("outer.bias", Mat::from_row(block.b2), [1, d]),
    ];
    for (part, from, [rows, columns]) in parts {
        let what = of(&format!("feed_forward.{part}"));
        let to = network.tensor_mut(&what);
        set(&what, from, MatMut::new(to, rows, columns))?;
    }
    Ok(())
}

/// to ← from, which is called `what`.
fn set(what: &str, from: Mat<'_>, mut to: MatMut<'_>) -> Result<()> {
    match (from.rows(), from.cols()) == (to.rows(), to.cols()) {
        true => to.copy_from(from),
        false => {
            let actual = format!("{}×{}", from.rows(), from.cols());
            let expected = format!("{}×{}", to.rows(), to.cols());
            return Err(Error::dimensions(what, actual, expected));
        }
    }
    Ok(())
}
