//! §3.1: the encoder, a stack of N equal layers of two sublayers each.

use crate::attention::MultiHeadAttention;
use crate::feed_forward::FeedForward;
use crate::linear::{Call, take};
use crate::sublayer::{Norm, NormPlacement, sublayer, sublayer_scratch};
use headrow_kernels::{Cpu, Mat, MatMut, Need, Segment, Stack};

/// Sees the states between layers: called with ℓ and z_ℓ, `tokens × d_model`. z₀ are the embeddings.
pub(crate) type Probe<'p> = &'p mut dyn FnMut(usize, Mat<'_>);

/// Self-attention, then the feed-forward network.
pub(crate) struct EncoderLayer {
    pub(crate) placement: NormPlacement,
    pub(crate) attention: MultiHeadAttention,
    pub(crate) attention_norm: Norm,
    pub(crate) feed_forward: FeedForward,
    pub(crate) feed_forward_norm: Norm,
}

impl EncoderLayer {
    /// x ← layer(x).
    fn forward(
        &self,
        call: Call<'_>,
        mut x: MatMut<'_>,
        segments: &[Segment],
        stack: &mut Stack<'_>,
    ) {
        let Self { placement, attention, feed_forward, .. } = self;
        let attend = |z: Mat<'_>, residual: Mat<'_>, out: MatMut<'_>, stack: &mut Stack<'_>| {
            attention.forward(call, z, segments, residual, out, stack);
        };
        let feed = |z: Mat<'_>, residual: Mat<'_>, out: MatMut<'_>, stack: &mut Stack<'_>| {
            feed_forward.forward(call, z, residual, out, stack);
        };
        sublayer(*placement, &self.attention_norm, call, x.reborrow(), stack, attend);
        sublayer(*placement, &self.feed_forward_norm, call, x, stack, feed);
    }

    fn scratch(
        &self,
        cpu: Cpu,
        threads: usize,
        rows: usize,
        longest: usize,
        d_model: usize,
    ) -> Need {
        let attention = self.attention.scratch(cpu, threads, rows, longest);
        let feed_forward = self.feed_forward.scratch(cpu, threads, rows);
        sublayer_scratch(self.placement, rows, d_model, attention.or(feed_forward))
    }
}

/// N layers, and under pre-norm a last normalisation.
pub(crate) struct Encoder {
    pub(crate) layers: Vec<EncoderLayer>,
    pub(crate) final_norm: Option<Norm>,
}

impl Encoder {
    /// x ← encoder(x).
    pub(crate) fn forward(
        &self,
        call: Call<'_>,
        mut x: MatMut<'_>,
        segments: &[Segment],
        probe: Probe<'_>,
        stack: &mut Stack<'_>,
    ) {
        probe(0, x.as_ref());
        for (index, layer) in self.layers.iter().enumerate() {
            #[cfg(feature = "tracing")]
            let _span = tracing::debug_span!("layer", index, tokens = x.rows()).entered();
            layer.forward(call, x.reborrow(), segments, stack);
            probe(index + 1, x.as_ref());
        }
        if let Some(norm) = &self.final_norm {
            let (mut normed, _) = take(stack, x.rows(), x.cols());
            norm.forward(call, x.as_ref(), normed.reborrow());
            x.copy_from(normed.as_ref());
        }
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
        let needs = layers.map(|layer| layer.scratch(cpu, threads, rows, longest, d_model));
        needs.fold(Need::of::<f32>(rows * d_model), Need::or)
    }
}
