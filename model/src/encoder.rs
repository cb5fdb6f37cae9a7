//! §3.1: the encoder, a stack of N equal layers of two sublayers each.

use crate::attention::{Pass, SelfAttention};
use crate::config::NormPlacement;
use crate::feed_forward::FeedForward;
use crate::observer::{Observer, Place, Side, Sublayer};
use crate::origin::Values;
use crate::sublayer::{Norm, Site, end, side_by_side, sublayer, sublayer_scratch, transformation};
use headrow_kernels::{AttentionExtent, Cpu, MatMut, Need, Segment, Stack};

/// Self-attention, then the feed-forward network.
pub(crate) struct EncoderLayer {
    pub(crate) placement: NormPlacement,
    pub(crate) attention: SelfAttention,
    pub(crate) attention_norm: Norm,
    pub(crate) feed_forward: FeedForward,
    pub(crate) feed_forward_norm: Norm,
}

impl EncoderLayer {
    /// x ← layer(x).
    fn forward(
        &self,
        pass: &Pass<'_>,
        layer: usize,
        mut x: MatMut<'_>,
        segments: &[Segment],
        stack: &mut Stack<'_>,
        observer: &mut dyn Observer,
    ) {
        let Self { placement, attention, attention_norm, feed_forward, feed_forward_norm } = self;
        let (call, placement) = (pass.call, *placement);
        let site = |sublayer, norm| Site {
            place: Place { side: Side::Encoder, layer, sublayer },
            placement,
            norm,
        };
        let first = site(Sublayer::SelfAttention, attention_norm);
        let attend = transformation(|z, sum| attention.forward(pass, z, segments, sum));
        let second = site(Sublayer::FeedForward, feed_forward_norm);
        let feed = transformation(|z, sum| feed_forward.forward(call, z, sum));
        if placement == NormPlacement::Parallel {
            return side_by_side(call, (first, attend), (second, feed), x, stack, observer);
        }
        sublayer(call, first, x.reborrow(), stack, observer, attend);
        sublayer(call, second, x, stack, observer, feed);
    }

    /// Scratch of the sublayers for up to `rows` tokens.
    fn scratch(&self, cpu: Cpu, threads: usize, rows: usize, longest: usize) -> Need {
        let extent = AttentionExtent { queries: longest, keys: longest };
        let attention = self.attention.scratch(cpu, threads, rows, extent, false);
        attention.or(self.feed_forward.scratch(cpu, threads, rows))
    }

    /// Bytes of the weights.
    fn bytes(&self) -> usize {
        let norms = self.attention_norm.bytes() + self.feed_forward_norm.bytes();
        self.attention.bytes() + self.feed_forward.bytes() + norms
    }
}

/// N layers, and under pre-norm a last normalisation.
pub(crate) struct Encoder {
    /// N.
    pub(crate) depth: usize,
    /// The layers, or fewer when neighbours share their weights.
    pub(crate) layers: Vec<EncoderLayer>,
    pub(crate) final_norm: Option<Norm>,
    /// A number per bucket of offsets and head, buckets × heads, where positions enter the scores so.
    pub(crate) buckets: Values,
}

impl Encoder {
    /// x ← encoder(x). Stops between layers when the pass is cancelled.
    pub(crate) fn forward(
        &self,
        pass: &Pass<'_>,
        mut x: MatMut<'_>,
        segments: &[Segment],
        stack: &mut Stack<'_>,
        observer: &mut dyn Observer,
    ) {
        observer.state(Side::Encoder, 0, x.as_ref());
        for index in 0..self.depth {
            #[cfg(feature = "tracing")]
            let _span = tracing::debug_span!("encoder layer", index, tokens = x.rows()).entered();
            let layer = &self.layers[index * self.layers.len() / self.depth];
            layer.forward(pass, index, x.reborrow(), segments, stack, observer);
            // What a pass that was given up has written is no state.
            if pass.call.par.is_cancelled() {
                return;
            }
            observer.state(Side::Encoder, index + 1, x.as_ref());
        }
        end(self.final_norm.as_ref(), pass.call, x.reborrow(), stack);
        observer.output(Side::Encoder, x.as_ref());
    }

    /// Bytes of the weights.
    pub(crate) fn bytes(&self) -> usize {
        let layers = self.layers.iter().map(EncoderLayer::bytes).sum::<usize>();
        layers + self.final_norm.as_ref().map_or(0, Norm::bytes) + size_of_val(&*self.buckets)
    }

    /// Scratch for up to `rows` tokens, in sequences of at most `longest`.
    pub(crate) fn scratch(
        &self,
        cpu: Cpu,
        threads: usize,
        rows: usize,
        longest: usize,
        d_model: usize,
    ) -> Need {
        let layers = self.layers.iter();
        let needs = layers.map(|layer| {
            let inner = layer.scratch(cpu, threads, rows, longest);
            sublayer_scratch(layer.placement, rows, d_model, inner)
        });
        needs.fold(Need::of::<f32>(rows * d_model), Need::or)
    }
}
