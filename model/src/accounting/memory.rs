//! Bytes of a pass and of a cache, in f32.

use crate::config::{Config, Gating, NormPlacement, StackConfig};
use crate::observer::Side;
use headrow_kernels::attention::PAGE;

const F32: usize = size_of::<f32>();

/// Keys and values of one token in every layer of a decoder: N·h_kv·(d_k + d_v) numbers. As much again stands for each
/// token of a source beside an encoder. 0 without a decoder.
pub fn cache_per_token(config: &Config) -> usize {
    let Some(stack) = &config.decoder else { return 0 };
    let heads = stack.kv_heads.saturating_mul(stack.d_k.saturating_add(stack.d_v));
    heads.saturating_mul(F32).saturating_mul(stack.layers)
}

/// Keys and values of a decoder that remembers m tokens, and n of a source beside an encoder: in whole pages, as a
/// [`Session`](crate::Session) has them.
///
/// ```
/// use headrow::Config;
/// use headrow::accounting::{cache, cache_per_token};
///
/// let base = Config::base(37_000, 37_000);
/// // N·2d numbers of four bytes.
/// assert_eq!(cache_per_token(&base), 6 * 2 * 512 * 4);
/// // Pages of 64 tokens: two for the target, one for the source.
/// assert_eq!(cache(&base, 100, 20), 3 * 64 * cache_per_token(&base));
/// ```
pub fn cache(config: &Config, m: usize, n: usize) -> usize {
    let sources = if config.encoder.is_some() { pages(n) } else { 0 };
    pages(m).saturating_add(sources).saturating_mul(cache_per_token(config))
}

/// Tokens that fit the pages for so many.
fn pages(tokens: usize) -> usize {
    tokens.div_ceil(PAGE).saturating_mul(PAGE)
}

/// What is live at the widest moment of a pass of a stack over n tokens, beside a block of scores and packed operands: the
/// states, their sum, and either queries, keys, values and heads or the inner features. 0 without such a stack.
///
/// It is linear in n, and the same for any number of layers.
///
/// ```
/// use headrow::accounting::{activations, naive_scores};
/// use headrow::{Config, Side};
///
/// let base = Config::base(37_000, 37_000);
/// let growth = |of: fn(&Config, Side, usize) -> usize| {
///     of(&base, Side::Encoder, 2000) / of(&base, Side::Encoder, 1000)
/// };
/// assert_eq!((growth(activations), growth(naive_scores)), (2, 4));
/// ```
pub fn activations(config: &Config, side: Side, n: usize) -> usize {
    let Some(stack) = config.stack(side) else { return 0 };
    n.saturating_mul(per_token(stack, config.d_model)).saturating_mul(F32)
}

/// Numbers that are live for a token.
fn per_token(stack: &StackConfig, d_model: usize) -> usize {
    let sums = if stack.placement == NormPlacement::Post { 1 } else { 2 };
    let times = usize::saturating_mul;
    let heads = times(stack.heads, stack.d_k.saturating_add(stack.d_v));
    let shared = times(stack.kv_heads, stack.d_k.saturating_add(stack.d_v));
    let inner = if stack.gating == Gating::Gated { 3 } else { 1 };
    let widest = heads.saturating_add(shared).max(times(stack.d_ff, inner));
    times(d_model, 1 + sums).saturating_add(widest)
}

/// Scores of one layer's heads as whole matrices, h·n² numbers, which kernels that work block by block never hold.
pub fn naive_scores(config: &Config, side: Side, n: usize) -> usize {
    let heads = config.stack(side).map_or(0, |stack| stack.heads);
    n.saturating_mul(n).saturating_mul(heads).saturating_mul(F32)
}
