//! §3.1: the decoder, a stack of N equal layers of three sublayers each, or of two when there is no encoder to attend to.

use crate::attention::{CrossAttention, Pass, SelfAttention};
use crate::config::NormPlacement;
use crate::feed_forward::FeedForward;
use crate::linear::Call;
use crate::observer::{Observer, Place, Side, Sublayer};
use crate::origin::Values;
use crate::sublayer::{Norm, Site, end, side_by_side, sublayer, sublayer_scratch, transformation};
use headrow_kernels::{AttentionExtent, CachedSegment, Cpu, KvCache, Mat, MatMut, Need, Stack};

/// Masked self-attention, attention to the encoder's output, then the feed-forward network.
pub(crate) struct DecoderLayer {
    pub(crate) placement: NormPlacement,
    pub(crate) attention: SelfAttention,
    pub(crate) attention_norm: Norm,
    pub(crate) cross: Option<(CrossAttention, Norm)>,
    pub(crate) feed_forward: FeedForward,
    pub(crate) feed_forward_norm: Norm,
}

/// What the tokens of a pass attend to, layer by layer.
pub(crate) struct Memory<'a> {
    /// Keys and values of what was read, a cache per layer.
    pub(crate) own: &'a mut [KvCache],
    /// Which of them each sequence has, the tokens of this pass included.
    pub(crate) segments: &'a [CachedSegment<'a>],
    /// The same of the sources; empty without an encoder.
    pub(crate) sources: &'a [KvCache],
    pub(crate) source_segments: &'a [CachedSegment<'a>],
}

impl DecoderLayer {
    /// x ← layer(x).
    fn forward(
        &self,
        pass: &Pass<'_>,
        layer: usize,
        mut x: MatMut<'_>,
        memory: &mut Memory<'_>,
        stack: &mut Stack<'_>,
        observer: &mut dyn Observer,
    ) {
        let Self { attention, cross, feed_forward, .. } = self;
        let (call, placement) = (pass.call, self.placement);
        let site = |sublayer, norm| Site {
            place: Place { side: Side::Decoder, layer, sublayer },
            placement,
            norm,
        };
        let (own, segments) = (&mut memory.own[layer], memory.segments);
        let first = site(Sublayer::SelfAttention, &self.attention_norm);
        let attend = transformation(|z, sum| attention.forward_cached(pass, z, own, segments, sum));
        let last = site(Sublayer::FeedForward, &self.feed_forward_norm);
        let feed = transformation(|z, sum| feed_forward.forward(call, z, sum));
        if placement == NormPlacement::Parallel {
            return side_by_side(call, (first, attend), (last, feed), x, stack, observer);
        }
        sublayer(call, first, x.reborrow(), stack, observer, attend);
        if let Some((cross, norm)) = cross {
            let (source, segments) = (&memory.sources[layer], memory.source_segments);
            let middle = site(Sublayer::CrossAttention, norm);
            let attend = transformation(|z, sum| cross.forward(call, z, source, segments, sum));
            sublayer(call, middle, x.reborrow(), stack, observer, attend);
        }
        sublayer(call, last, x, stack, observer, feed);
    }

    /// Scratch of the sublayers for up to `rows` tokens.
    fn scratch(&self, cpu: Cpu, threads: usize, rows: usize, extents: Extents) -> Need {
        let mut inner = self.attention.scratch(cpu, threads, rows, extents.own, true);
        if let Some((cross, _)) = &self.cross {
            inner = inner.or(cross.scratch(cpu, threads, rows, extents.source));
        }
        inner.or(self.feed_forward.scratch(cpu, threads, rows))
    }

    /// Bytes of the weights.
    fn bytes(&self) -> usize {
        let cross = self.cross.as_ref().map_or(0, |(cross, norm)| cross.bytes() + norm.bytes());
        let norms = self.attention_norm.bytes() + self.feed_forward_norm.bytes();
        self.attention.bytes() + cross + self.feed_forward.bytes() + norms
    }
}

/// The longest sequences of a session: tokens of a pass against what was read, and against a source.
#[derive(Clone, Copy)]
pub(crate) struct Extents {
    pub(crate) own: AttentionExtent,
    pub(crate) source: AttentionExtent,
}

/// N layers, and under pre-norm a last normalisation.
pub(crate) struct Decoder {
    pub(crate) layers: Vec<DecoderLayer>,
    pub(crate) final_norm: Option<Norm>,
    /// A number per bucket of offsets and head, buckets × heads, where positions enter the scores so.
    pub(crate) buckets: Values,
}

impl Decoder {
    /// x ← decoder(x): the tokens of a pass, after those that `memory` holds. Stops between layers when the
    /// pass is cancelled.
    pub(crate) fn forward(
        &self,
        pass: &Pass<'_>,
        mut x: MatMut<'_>,
        memory: &mut Memory<'_>,
        stack: &mut Stack<'_>,
        observer: &mut dyn Observer,
    ) {
        observer.state(Side::Decoder, 0, x.as_ref());
        for (index, layer) in self.layers.iter().enumerate() {
            #[cfg(feature = "tracing")]
            let _span = tracing::debug_span!("decoder layer", index, tokens = x.rows()).entered();
            layer.forward(pass, index, x.reborrow(), memory, stack, observer);
            // What a pass that was given up has written is no state.
            if pass.call.par.is_cancelled() {
                return;
            }
            observer.state(Side::Decoder, index + 1, x.as_ref());
        }
        end(self.final_norm.as_ref(), pass.call, x.reborrow(), stack);
        observer.output(Side::Decoder, x.as_ref());
    }

    /// Fills the caches of the sources: keys and values of the encoder's output for every layer.
    pub(crate) fn remember(
        &self,
        call: Call<'_>,
        encoded: Mat<'_>,
        caches: &mut [KvCache],
        segments: &[CachedSegment<'_>],
        stack: &mut Stack<'_>,
    ) {
        for (layer, cache) in self.layers.iter().zip(caches) {
            if let Some((cross, _)) = &layer.cross {
                cross.remember(call, encoded, cache, segments, stack);
            }
        }
    }

    /// Bytes of the weights.
    pub(crate) fn bytes(&self) -> usize {
        let layers = self.layers.iter().map(DecoderLayer::bytes).sum::<usize>();
        layers + self.final_norm.as_ref().map_or(0, Norm::bytes) + size_of_val(&*self.buckets)
    }

    /// Scratch of [`Decoder::remember`] for up to `rows` tokens.
    pub(crate) fn remember_scratch(&self, cpu: Cpu, threads: usize, rows: usize) -> Need {
        let crosses = self.layers.iter().filter_map(|layer| layer.cross.as_ref());
        let needs = crosses.map(|(cross, _)| cross.remember_scratch(cpu, threads, rows));
        needs.fold(Need::NONE, Need::or)
    }

    /// Scratch of [`Decoder::forward`] for up to `rows` tokens, in sequences no longer than `extents`.
    pub(crate) fn scratch(
        &self,
        cpu: Cpu,
        threads: usize,
        rows: usize,
        extents: Extents,
        d_model: usize,
    ) -> Need {
        let layers = self.layers.iter();
        let needs = layers.map(|layer| {
            let inner = layer.scratch(cpu, threads, rows, extents);
            sublayer_scratch(layer.placement, rows, d_model, inner)
        });
        needs.fold(Need::of::<f32>(rows * d_model), Need::or)
    }
}
