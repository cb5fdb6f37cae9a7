//! The way through the blocks, and back.

use super::columns::Columns;
use super::network::{Block, Network};
use crate::attention::{Pass, SelfKept};
use crate::error::{Error, Result};
use crate::feed_forward::FeedForwardKept;
use crate::linear::Call;
use crate::train::claims::Claims;
use crate::train::pass::TrainingPass;
use headrow_kernels::{
    AttentionExtent, Cpu, Mat, MatMut, Par, Scratch, Segment, Write, add_column_sums,
};

/// What a pass over some sequences leaves for the way back. Their columns stand side by side; attention sees one sequence at a time.
pub(super) struct Walk {
    cpu: Cpu,
    d: usize,
    /// Z before the first block and behind each.
    outside: Vec<Vec<f32>>,
    /// Attention(Z) within each block.
    inside: Vec<Vec<f32>>,
    kept: Vec<(SelfKept, FeedForwardKept)>,
    /// The columns of each sequence.
    segments: Vec<Segment>,
    scratch: Scratch,
    /// Columns, and those of the longest sequence, that there is room for.
    room: (usize, usize),
}

/// What the layers are told.
fn training(cpu: Cpu, parameters: &[f32]) -> TrainingPass<'_> {
    let call = Call { cpu, par: Par::SERIAL };
    let pass = Pass { call, places: &[], rope: None, relative: None };
    TrainingPass { pass, parameters, masks: None, keys: None }
}

impl Walk {
    /// For up to `columns` in all and `longest` in a sequence.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub(super) fn new(network: &Network, columns: usize, longest: usize) -> Result<Walk> {
        let (cpu, d) = (Cpu::detect(), network.dimensions().d);
        let extent = AttentionExtent { queries: longest, keys: longest };
        let blocks = network.blocks();
        // All blocks have the same widths.
        let Block { attention, feed_forward } = &blocks[0];
        let need = attention.training_scratch(cpu, 1, columns, extent);
        let need = need.or(feed_forward.training_scratch(cpu, 1, columns));
        let claims = &mut Claims::taking();
        let mut kept = Vec::new();
        for block in blocks {
            let attention = SelfKept::new(&block.attention, columns, claims)?;
            kept.push((attention, FeedForwardKept::new(&block.feed_forward, columns, claims)?));
        }
        let mut states =
            |count| (0..count).map(|_| claims.zeros(columns, d)).collect::<Result<_>>();
        let (outside, inside) = (states(blocks.len() + 1)?, states(blocks.len())?);
        let refused = || Error::out_of_memory(format_args!("{columns} columns"));
        let scratch = Scratch::try_new(need).ok_or_else(refused)?;
        let (segments, room) = (Vec::new(), (columns, longest));
        Ok(Walk { cpu, d, outside, inside, kept, segments, scratch, room })
    }

    /// Whether there is room.
    pub(super) fn fits(&self, columns: usize, longest: usize) -> bool {
        columns <= self.room.0 && longest <= self.room.1
    }

    /// The maps of all sequences, side by side.
    pub(super) fn forward<'x>(
        &mut self,
        network: &Network,
        inputs: impl Iterator<Item = &'x Columns>,
    ) -> Mat<'_> {
        self.enter(network, inputs);
        let (n, d) = (self.columns(), self.d);
        let pass = training(self.cpu, &network.values);
        let mut stack = self.scratch.stack();
        let blocks = network.blocks().iter().zip(&mut self.kept).zip(&mut self.inside);
        for (i, ((block, kept), inside)) in blocks.enumerate() {
            let [z, next] = &mut self.outside[i..i + 2] else { unreachable!("two of them") };
            let (z, mut s) = (Mat::new(z, n, d), MatMut::new(inside, n, d));
            let (attention, segments) = (&block.attention, &self.segments);
            // S = Attention(Z), Z ← FF(S): the residual sums are part of the last products.
            let to = s.reborrow();
            attention.apply(&pass, z, segments, &mut kept.0, Some(z), to, &mut stack);
            let (s, to) = (s.as_ref(), MatMut::new(next, n, d));
            block.feed_forward.apply(&pass, s, &mut kept.1, Some(s), to, &mut stack);
        }
        Mat::new(&self.outside[network.blocks().len()], n, d)
    }

    /// Adds to `gradients` those of the parameters, from the gradient D of the result of the last [`Walk::forward`]; then D is that of
    /// the inputs.
    pub(super) fn backward(&mut self, network: &Network, d: &mut [f32], gradients: &mut [f32]) {
        let (n, features) = (self.columns(), self.d);
        let pass = training(self.cpu, &network.values);
        let mut stack = self.scratch.stack();
        let mut to = MatMut::new(d, n, features);
        for (i, block) in network.blocks().iter().enumerate().rev() {
            let z = Mat::new(&self.outside[i], n, features);
            let s = Mat::new(&self.inside[i], n, features);
            let (attended, fed) = &self.kept[i];
            // D ← D + D·∂f for the sublayer Z + f(Z): the sum lets D pass.
            let (write, out) = (Write::Accumulate, to.reborrow());
            block.feed_forward.backward(&pass, s, fed, write, out, gradients, &mut stack);
            let (attention, segments, out) = (&block.attention, &self.segments, to.reborrow());
            attention
                .backward(&pass, z, segments, attended, write, out, gradients, None, &mut stack);
        }
        if let Some(place) = network.positions() {
            // E is added to each sequence; here a sequence is one row.
            let each = place.len();
            let sequences = Mat::new(d, n * features / each, each);
            add_column_sums(self.cpu, Par::SERIAL, sequences, &mut gradients[place]);
        }
    }

    /// Z ← the columns of all sequences, with E where there are positions.
    fn enter<'x>(&mut self, network: &Network, inputs: impl Iterator<Item = &'x Columns>) {
        self.segments.clear();
        let mut first = 0;
        for x in inputs {
            let columns = first..first + x.n();
            let z = &mut self.outside[0][first * self.d..columns.end * self.d];
            z.copy_from_slice(x.values());
            if let Some(place) = network.positions() {
                z.iter_mut().zip(&network.values[place]).for_each(|(z, e)| *z += e);
            }
            first = columns.end;
            self.segments.push(Segment::full(columns.clone(), columns));
        }
    }

    /// Columns of all sequences.
    fn columns(&self) -> usize {
        self.segments.last().map_or(0, |last| last.queries.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::SelfAttention;
    use crate::feed_forward::FeedForward;
    use crate::linear::Linear;
    use crate::observer::{Place, Side, Sublayer, Unobserved};
    use crate::sublayer::Sum;
    use crate::theory::SequenceMap;
    use crate::theory::column::{Dimensions, Transformer};
    use headrow_kernels::{Activation, AttentionShape, PackedB};

    /// The map of a tensor of matrices W that act from the left, as one that acts from the right: by Wᵀ, inputs × outputs.
    fn transposed(map: &Transformer, parts: &[&str], inputs: usize, bias: Option<&str>) -> Linear {
        let tensors: Vec<&[f32]> = parts.iter().map(|part| tensor(map, part)).collect();
        let outputs = tensors.iter().map(|w| w.len() / inputs).sum();
        let rows: Vec<&[f32]> = tensors.iter().flat_map(|w| w.chunks(inputs)).collect();
        let wt = (0..inputs).flat_map(|input| rows.iter().map(move |row| row[input]));
        let wt: Vec<f32> = wt.collect();
        let weight = PackedB::new(Cpu::detect(), Mat::new(&wt, inputs, outputs));
        Linear::new(weight, bias.map(|bias| tensor(map, bias).to_vec()))
    }

    fn tensor<'m>(map: &'m Transformer, part: &str) -> &'m [f32] {
        map.tensor(&format!("blocks.0.{part}")).unwrap()
    }

    /// The layers of the models, whose tokens are rows, with transposed weights: x + Concat(head₁, …)Wᴼ, then x + FFN(x).
    #[test]
    fn it_is_the_attention_of_row_tokens_with_transposed_weights() {
        const N: usize = 9;
        for (heads, m) in [(1, 3), (1, 5), (3, 2)] {
            let dimensions = Dimensions::new(5).with_heads(heads, m).with_hidden(7);
            let map = Transformer::random(dimensions, 3).unwrap();
            let [query, key, value] =
                ["query", "key", "value"].map(|part| format!("attention.{part}.weight"));
            let attention = SelfAttention {
                shape: AttentionShape::new(heads, heads, m, m).with_scale(1.0),
                qkv: transposed(&map, &[&query, &key, &value], 5, None),
                output: transposed(&map, &["attention.output.weight"], heads * m, None),
            };
            let map_of = |part: &str, inputs| {
                let [weight, bias] =
                    ["weight", "bias"].map(|of| format!("feed_forward.{part}.{of}"));
                transposed(&map, &[&weight], inputs, Some(&bias))
            };
            let feed_forward = FeedForward {
                inner: map_of("inner", 5),
                activation: Activation::Relu,
                gated: false,
                outer: map_of("outer", 7),
            };
            let x = Columns::from_fn(5, N, |i, j| ((i * 7 + j * 5) % 11) as f32 / 5.0 - 1.0);
            let cpu = Cpu::detect();
            let extent = AttentionExtent { queries: N, keys: N };
            let need = attention.scratch(cpu, 1, N, extent, false);
            let mut scratch = Scratch::new(need.or(feed_forward.scratch(cpu, 1, N)));
            let training = training(cpu, &[]);
            let place = Place { side: Side::Encoder, layer: 0, sublayer: Sublayer::FeedForward };
            let [mut s, mut y] = [(); 2].map(|()| vec![0.0; 5 * N]);
            let (residual, out) = (Some(x.as_rows()), MatMut::new(&mut s, N, 5));
            let (stack, observer) = (&mut scratch.stack(), &mut Unobserved);
            let sum = Sum { residual, out, stack, place, observer };
            attention.forward(&training, x.as_rows(), &[Segment::full(0..N, 0..N)], sum);
            let (s, out) = (Mat::new(&s, N, 5), MatMut::new(&mut y, N, 5));
            let (stack, observer) = (&mut scratch.stack(), &mut Unobserved);
            let sum = Sum { residual: Some(s), out, stack, place, observer };
            feed_forward.forward(training.call, s, sum);
            assert_eq!(map.forward(&x).unwrap().values(), y);
        }
    }
}
