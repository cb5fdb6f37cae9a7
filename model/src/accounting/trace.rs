//! The shapes of one pass.

use crate::config::{
    Config, Gating, Input, NormPlacement, Positions, RelativePositions, StackConfig, TokenInput,
};
use crate::observer::{Side, Sublayer};

/// Something that a pass computes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The stack; `None` behind the last one.
    pub side: Option<Side>,
    /// The sublayer, in layers.
    pub sublayer: Option<Sublayer>,
    /// What it is, in the letters of the paper.
    pub what: &'static str,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How many times it is computed: the number of layers, in layers.
    pub times: usize,
}

/// What a pass computes over n tokens of a source and m of a target or text, with the shape of each, in their order. A model
/// with one stack ignores the other number.
///
/// Scores and weights are never whole in memory; they are computed a block of queries at a time.
///
/// ```
/// use headrow::Config;
/// use headrow::accounting::trace;
///
/// let steps = trace(&Config::base(37_000, 37_000), 10, 12);
/// let scores = steps.iter().find(|step| step.what.contains("Kᵀ")).unwrap();
/// assert_eq!((&scores.shape[..], scores.times), (&[8, 10, 10][..], 6));
/// assert_eq!(steps.last().unwrap().shape, [12, 37_000]);
/// ```
pub fn trace(config: &Config, n: usize, m: usize) -> Vec<Step> {
    let mut trace = Trace { d: config.d_model, steps: Vec::new() };
    if let Some(stack) = &config.encoder {
        trace.stack(Side::Encoder, stack, [n, n], None);
    }
    if let Some(stack) = &config.decoder {
        trace.stack(Side::Decoder, stack, [m, m], config.encoder.as_ref().map(|_| n));
        if let Some(tokens) = stack.tokens() {
            let what = if config.read_out.tied { "scores xEᵀ" } else { "scores xW" };
            trace.steps.push(Step {
                side: None,
                sublayer: None,
                what,
                shape: vec![m, tokens.vocabulary],
                times: 1,
            });
        }
    }
    trace.steps
}

struct Trace {
    d: usize,
    steps: Vec<Step>,
}

/// Where in a stack steps are, and how often they are there.
#[derive(Clone, Copy)]
struct At {
    side: Side,
    sublayer: Option<Sublayer>,
    times: usize,
}

impl Trace {
    fn add(&mut self, at: At, what: &'static str, shape: &[usize]) {
        let At { side, sublayer, times } = at;
        self.steps.push(Step { side: Some(side), sublayer, what, shape: shape.to_vec(), times });
    }

    fn stack(
        &mut self,
        side: Side,
        stack: &StackConfig,
        [t, s]: [usize; 2],
        source: Option<usize>,
    ) {
        let (d, once) = (self.d, At { side, sublayer: None, times: 1 });
        self.entrance(once, &stack.input, t);
        let within = |sublayer| At { side, sublayer: Some(sublayer), times: stack.layers };
        self.attention(within(Sublayer::SelfAttention), stack, [t, s]);
        if let Some(n) = source {
            self.attention(within(Sublayer::CrossAttention), stack, [t, n]);
        }
        let at = within(Sublayer::FeedForward);
        self.before(at, stack, t);
        if stack.gating == Gating::Gated {
            self.add(at, "[xW xV]", &[t, 2 * stack.d_ff]);
            self.add(at, "σ(xW) ⊙ xV", &[t, stack.d_ff]);
        } else {
            self.add(at, "σ(xW₁ + b₁)", &[t, stack.d_ff]);
        }
        self.after(at, stack, t);
        if stack.final_norm {
            self.add(once, "norm", &[t, d]);
        }
    }

    fn entrance(&mut self, at: At, input: &Input, t: usize) {
        let d = self.d;
        match input {
            Input::Tokens(tokens) => self.tokens(at, tokens, t),
            &Input::Patches { patch, channels, .. } => {
                self.add(
                    at,
                    "patches",
                    &[t.saturating_sub(1), channels.saturating_mul(patch).saturating_mul(patch)],
                );
                self.add(at, "first token and maps of the patches, + positions", &[t, d]);
            }
            &Input::Spectrogram { bands, .. } => {
                self.add(at, "spectrogram", &[bands, 2 * t]);
                self.add(at, "first convolution", &[2 * t, d]);
                self.add(at, "second convolution, + positions", &[t, d]);
            }
            Input::Vectors => self.add(at, "vectors", &[t, d]),
        }
    }

    fn tokens(&mut self, at: At, tokens: &TokenInput, t: usize) {
        let (d, width) = (self.d, tokens.width);
        self.add(at, "ids", &[t]);
        self.add(at, "rows of words", &[t, width]);
        if width != d {
            self.add(at, "mapped to d_model", &[t, d]);
        }
        let types = tokens.token_types > 0;
        let what = match (tokens.positions, types) {
            (Positions::None, false) if !tokens.norm => return,
            (Positions::None, false) => "norm",
            (Positions::None, true) => "+ types",
            (Positions::Learned { .. }, false) => "+ learned positions",
            (Positions::Learned { .. }, true) => "+ learned positions and types",
            (Positions::Sinusoidal { .. }, _) => "+ sinusoids",
        };
        self.add(at, what, &[t, tokens.sum_width(d)]);
    }

    /// What comes before a sublayer.
    fn before(&mut self, at: At, stack: &StackConfig, t: usize) {
        if stack.placement != NormPlacement::Post {
            self.add(at, "norm", &[t, self.d]);
        }
    }

    /// The map that ends a sublayer, and what follows it.
    fn after(&mut self, at: At, stack: &StackConfig, t: usize) {
        let feed_forward = at.sublayer == Some(Sublayer::FeedForward);
        let what = if feed_forward { "…W₂ + b₂" } else { "Concat(heads)Wᴼ" };
        self.add(at, what, &[t, self.d]);
        let what = match stack.placement {
            NormPlacement::Post => "norm(x + …)",
            NormPlacement::Pre | NormPlacement::Parallel => "x + …",
        };
        self.add(at, what, &[t, self.d]);
    }

    fn attention(&mut self, at: At, stack: &StackConfig, [t, s]: [usize; 2]) {
        let StackConfig { heads, kv_heads, d_k, d_v, .. } = *stack;
        self.before(at, stack, t);
        let own = at.sublayer == Some(Sublayer::SelfAttention);
        let turned = own && matches!(stack.relative, RelativePositions::Rotary(_));
        let [q, k] = if turned { ["Q, turned", "K, turned"] } else { ["Q", "K"] };
        self.add(at, q, &[heads, t, d_k]);
        self.add(at, k, &[kv_heads, s, d_k]);
        self.add(at, "V", &[kv_heads, s, d_v]);
        self.add(at, "softmax(QKᵀ/√d_k)", &[heads, t, s]);
        self.add(at, "heads side by side", &[t, heads * d_v]);
        self.after(at, stack, t);
    }
}
