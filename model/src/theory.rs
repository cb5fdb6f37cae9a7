//! The Transformer of the theorems: a function on matrices whose columns are tokens.
//!
//! Papers that prove things about Transformers strip them to what the proof needs. There is no embedding, no normalisation and no
//! 1/√d_k; a sequence of n tokens with d features is a matrix X ∈ ℝ^{d×n}, one token a column. A block is FF ∘ Attention with
//!
//! - Attention(X) = X + Σ_h W_hᴼ (W_hⱽ X) Softmax\[(W_hᴷ X)ᵀ (W_hꟴ X)\], where each column of the Softmax adds up to 1,
//! - FF(X) = X + W₂ ReLU(W₁X + b₁1ᵀ) + b₂1ᵀ,
//!
//! and a Transformer is a composition of blocks.
//!
//! | | file |
//! |---|---|
//! | any number and width of heads, any hidden width | [`mod@column`] |
//! | the class T^{2,1,4}, and with positions X ↦ g(X + E) | [`yun`] |
//! | X itself | `theory/columns.rs` |
//! | what all of these maps have in common | `theory/map.rs` |
//! | learning one from pairs (X, Y) | `theory/fit.rs` |
//! | permutations, and how well an equivariant map can do at best | [`symmetry`] |
//! | the layers, and the way through them and back | `theory/network.rs`, `theory/pass.rs` |
//!
//! All of it is computed by the layers of the models: a block is their multi-head attention with a scale of 1, and their feed-forward
//! network, each with its residual sum. Row tokens and column tokens are the same numbers in memory, see [`Columns`].
//!
//! ```
//! use headrow::theory::column::{Dimensions, Transformer};
//! use headrow::theory::{Columns, SequenceMap};
//!
//! // d = 3, H = 2 heads of width m = 2, r = 8, N = 2 blocks.
//! let dimensions = Dimensions::new(3).with_heads(2, 2).with_hidden(8).with_blocks(2);
//! let transformer = Transformer::random(dimensions, 1)?;
//! assert_eq!(transformer.parameters().len(), 2 * (4 * 2 * 2 * 3 + 2 * 8 * 3 + 8 + 3));
//!
//! // Transformer(XP) = Transformer(X)P, but for the rounding of sums in another order.
//! let x = Columns::from_fn(3, 4, |i, j| (i + 2 * j) as f32 / 4.0);
//! let order = [2, 0, 3, 1];
//! let before = transformer.forward(&x.permuted(&order))?;
//! let after = transformer.forward(&x)?.permuted(&order);
//! assert!(before.differences(&after).fold(0.0, f32::max) < 1e-5);
//! # Ok::<(), headrow::Error>(())
//! ```

pub mod column;
mod columns;
mod fit;
mod map;
mod network;
mod pass;
pub mod symmetry;
pub mod yun;

pub use columns::Columns;
pub use fit::Fit;
pub use map::SequenceMap;
