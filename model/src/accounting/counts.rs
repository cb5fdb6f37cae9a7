//! Parameters, tensor by tensor.

use crate::attention::SelfAttention;
use crate::checkpoint::{Plan, layout, plan};
use crate::config::Config;
use crate::decoder::DecoderLayer;
use crate::embedding::{Embedding, ReadOut, Words};
use crate::encoder::EncoderLayer;
use crate::error::Result;
use crate::feed_forward::FeedForward;
use crate::head::{Head, Heads, MaskedLm};
use crate::linear::Linear;
use crate::observer::{Place, Side, Sublayer};
use crate::origin::Values;
use crate::position::PositionTable;
use crate::sublayer::Norm;
use crate::transformer::{Entrance, Transformer};
use crate::weights::Checkpoint;
use std::path::Path;

/// Where in a model a tensor belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// What turns an input into the vectors that enter a stack.
    Entrance(Side),
    /// A sublayer with the norm beside it.
    Sublayer(Place),
    /// What the layers of a stack share: its last norm, the biases by offset.
    Stack(Side),
    /// From a decoder's states to scores of words.
    ReadOut,
    /// What else is computed from an encoder's states.
    Head(Head),
}

impl Part {
    /// The stack it is a part of, without what enters it.
    fn side(self) -> Option<Side> {
        match self {
            Part::Sublayer(place) => Some(place.side),
            Part::Stack(side) => Some(side),
            Part::Entrance(_) | Part::ReadOut | Part::Head(_) => None,
        }
    }
}

/// What the numbers of a tensor do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// They multiply: the matrix of a linear map.
    Matrix,
    /// A row for each word: looked up, or multiplied with states for scores of words.
    Words,
    /// They are looked up: positions, token types, biases by offset; or the first token of images.
    Table,
    /// They are added to what a linear map gives.
    Bias,
    /// γ or β of a norm.
    Norm,
}

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// Its name, without what a family may put before all names.
    pub name: String,
    /// Its shape in a file.
    pub shape: Vec<usize>,
    /// What it is a part of: the first part in the order of a pass that has it.
    pub part: Part,
    /// What its numbers do there.
    pub kind: Kind,
    /// Whether other parts have it too, as source, target and read-out may have one table of words.
    pub shared: bool,
}

impl Tensor {
    /// How many numbers it has.
    pub fn numbers(&self) -> usize {
        self.shape.iter().fold(1, |product, &n| product.saturating_mul(n))
    }
}

/// All tensors of a model. What several parts share is there once.
///
/// ```
/// use headrow::accounting::Counts;
/// use headrow::{Config, Side};
///
/// let counts = Counts::of(&Config::base(37_000, 37_000))?;
/// assert_eq!(counts.total(), 63_082_496);
/// // 4d² + 8d² of matrices, 9d of biases, 4d of norms, d = 512.
/// assert_eq!(counts.layer(Side::Encoder, 0), 12 * 512 * 512 + 13 * 512);
/// # Ok::<(), headrow::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    tensors: Vec<Tensor>,
}

impl Counts {
    /// The tensors that a config asks for; no weights are needed. Heads that a checkpoint may have or not are there when
    /// `architectures` names their class of models.
    ///
    /// # Errors
    /// As [`Config::tensors`].
    pub fn of(config: &Config) -> Result<Counts> {
        config.check_countable()?;
        let plan = layout(config, &Checkpoint::nothing())?;
        Ok(Counts::planned(&plan))
    }

    /// The tensors of a folder with `config.json` and `model.safetensors` or its shards, of which only the headers are read.
    ///
    /// # Errors
    /// As [`Model::from_dir`](crate::Model::from_dir).
    pub fn of_dir(folder: impl AsRef<Path>) -> Result<Counts> {
        let folder = folder.as_ref();
        let config = Config::from_file(folder.join("config.json"))?;
        Ok(Counts::planned(&plan(&config, &Checkpoint::open(folder)?)?))
    }

    /// Those of a checkpoint that has been loaded by this config.
    pub(crate) fn loaded(config: &Config, checkpoint: &Checkpoint<'_>) -> Result<Counts> {
        Ok(Counts::planned(&layout(config, checkpoint)?))
    }

    fn planned(plan: &Plan) -> Counts {
        let Uses(mut uses) = Uses::of(&plan.transformer);
        // The order of a pass stays among the uses of one tensor.
        uses.sort_by_key(|using| using.start);
        let tensors = plan.tensors.iter().map(|planned| {
            let start = planned.place.start;
            let first = uses.partition_point(|using| using.start < start);
            let mut users = uses[first..].iter().take_while(|using| using.start == start);
            let &Use { part, kind, .. } = users.next().expect("what was asked for is used");
            Tensor {
                name: planned.name.clone(),
                shape: planned.shape.clone(),
                part,
                kind,
                shared: users.any(|using| using.part != part),
            }
        });
        Counts { tensors: tensors.collect() }
    }

    /// The tensors, in the order in which they are read.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// All numbers.
    pub fn total(&self) -> usize {
        self.sum(|_| true)
    }

    /// The numbers of some tensors.
    pub fn sum(&self, wanted: impl Fn(&Tensor) -> bool) -> usize {
        let numbers = self.tensors.iter().filter(|tensor| wanted(tensor)).map(Tensor::numbers);
        numbers.fold(0, usize::saturating_add)
    }

    /// The numbers of a stack: its layers, its last norm, its biases by offset. What enters it is not counted.
    pub fn stack(&self, side: Side) -> usize {
        self.sum(|tensor| tensor.part.side() == Some(side))
    }

    /// The numbers of a layer, counted from 0, with its norms. Where layers share their weights, those of each group.
    pub fn layer(&self, side: Side, layer: usize) -> usize {
        self.sum(|tensor| {
            matches!(tensor.part, Part::Sublayer(place) if (place.side, place.layer) == (side, layer))
        })
    }

    /// The numbers of one sublayer of a layer that are of this kind.
    pub fn sublayer(&self, place: Place, kind: Kind) -> usize {
        self.sum(|tensor| tensor.part == Part::Sublayer(place) && tensor.kind == kind)
    }

    /// The numbers by what they are for, in the order of a pass, without what a model does not have.
    pub fn parts(&self) -> Vec<(&'static str, usize)> {
        let mut parts: Vec<(&'static str, usize)> = Vec::new();
        for tensor in &self.tensors {
            let (name, numbers) = (name_of(tensor), tensor.numbers());
            match parts.iter_mut().find(|(part, _)| *part == name) {
                Some((_, sum)) => *sum = sum.saturating_add(numbers),
                None => parts.push((name, numbers)),
            }
        }
        parts
    }
}

/// The group that a tensor is counted with.
fn name_of(tensor: &Tensor) -> &'static str {
    match (tensor.part, tensor.kind) {
        (Part::Entrance(_), _) => "embeddings",
        (Part::ReadOut, _) => "read-out",
        (Part::Head(head), _) => head.name(),
        (_, Kind::Norm) => "norms",
        (_, Kind::Table) => "position biases",
        (Part::Sublayer(Place { sublayer, .. }), _) => match sublayer {
            Sublayer::SelfAttention => "attention",
            Sublayer::CrossAttention => "cross-attention",
            Sublayer::FeedForward => "feed-forward",
        },
        (Part::Stack(_), _) => "norms",
    }
}

/// That a part has the tensor which begins at `start`.
struct Use {
    start: usize,
    part: Part,
    kind: Kind,
}

/// Every use of a tensor in the stacks, in the order of a pass.
struct Uses(Vec<Use>);

impl Uses {
    fn of(transformer: &Transformer) -> Uses {
        let mut uses = Uses(Vec::new());
        if let Some((entrance, encoder)) = &transformer.encoder {
            uses.entrance(Side::Encoder, entrance);
            for (number, layer) in encoder.layers.iter().enumerate() {
                uses.encoder_layer(number, layer);
            }
            uses.end(Side::Encoder, encoder.final_norm.as_ref(), &encoder.buckets);
        }
        if let Some((entrance, decoder)) = &transformer.decoder {
            uses.entrance(Side::Decoder, entrance);
            for (number, layer) in decoder.layers.iter().enumerate() {
                uses.decoder_layer(number, layer);
            }
            uses.end(Side::Decoder, decoder.final_norm.as_ref(), &decoder.buckets);
        }
        if let Some(read_out) = &transformer.read_out {
            uses.read_out(Part::ReadOut, read_out);
        }
        uses.heads(&transformer.heads);
        uses
    }

    fn values(&mut self, part: Part, kind: Kind, values: &Values) {
        if !values.place.is_empty() {
            self.0.push(Use { start: values.place.start, part, kind });
        }
    }

    fn linear(&mut self, part: Part, map: &Linear) {
        for piece in &map.origin.pieces {
            self.0.push(Use { start: piece.weight.start, part, kind: Kind::Matrix });
            if let Some(bias) = &piece.bias {
                self.0.push(Use { start: bias.start, part, kind: Kind::Bias });
            }
        }
    }

    fn norm(&mut self, part: Part, norm: &Norm) {
        self.values(part, Kind::Norm, &norm.gamma);
        norm.beta.iter().for_each(|beta| self.values(part, Kind::Norm, beta));
    }

    fn words(&mut self, part: Part, words: &Words) {
        // A plan packs nothing.
        if let Words::Rows(rows) = words {
            self.values(part, Kind::Words, rows);
        }
    }

    fn entrance(&mut self, side: Side, entrance: &Entrance) {
        let part = Part::Entrance(side);
        match entrance {
            Entrance::Embedding(embedding) => self.embedding(part, embedding),
            Entrance::Patches(patches) => {
                self.linear(part, &patches.projection);
                self.values(part, Kind::Table, &patches.first);
                self.values(part, Kind::Table, &patches.positions);
            }
            Entrance::Spectrogram(spectrogram) => {
                self.linear(part, &spectrogram.first);
                self.linear(part, &spectrogram.second);
                self.values(part, Kind::Table, &spectrogram.positions);
            }
            Entrance::Vectors => {}
        }
    }

    fn embedding(&mut self, part: Part, embedding: &Embedding) {
        self.words(part, &embedding.words);
        if let PositionTable::Learned(learned) = &embedding.positions {
            self.values(part, Kind::Table, &learned.table);
        }
        self.values(part, Kind::Table, &embedding.types);
        embedding.norm.iter().for_each(|norm| self.norm(part, norm));
        embedding.projection.iter().for_each(|projection| self.linear(part, projection.map()));
    }

    fn encoder_layer(&mut self, layer: usize, from: &EncoderLayer) {
        let place = |sublayer| Place { side: Side::Encoder, layer, sublayer };
        self.attention(place(Sublayer::SelfAttention), &from.attention, &from.attention_norm);
        let (network, norm) = (&from.feed_forward, &from.feed_forward_norm);
        self.feed_forward(place(Sublayer::FeedForward), network, norm);
    }

    fn decoder_layer(&mut self, layer: usize, from: &DecoderLayer) {
        let place = |sublayer| Place { side: Side::Decoder, layer, sublayer };
        self.attention(place(Sublayer::SelfAttention), &from.attention, &from.attention_norm);
        if let Some((cross, norm)) = &from.cross {
            let maps = [&cross.query, &cross.key_value, &cross.output];
            self.sublayer(place(Sublayer::CrossAttention), &maps, norm);
        }
        let (network, norm) = (&from.feed_forward, &from.feed_forward_norm);
        self.feed_forward(place(Sublayer::FeedForward), network, norm);
    }

    fn attention(&mut self, place: Place, attention: &SelfAttention, norm: &Norm) {
        self.sublayer(place, &[&attention.qkv, &attention.output], norm);
    }

    fn feed_forward(&mut self, place: Place, network: &FeedForward, norm: &Norm) {
        self.sublayer(place, &[&network.inner, &network.outer], norm);
    }

    fn sublayer(&mut self, place: Place, maps: &[&Linear], norm: &Norm) {
        let part = Part::Sublayer(place);
        maps.iter().for_each(|map| self.linear(part, map));
        self.norm(part, norm);
    }

    /// What the layers of a stack share.
    fn end(&mut self, side: Side, norm: Option<&Norm>, buckets: &Values) {
        norm.into_iter().for_each(|norm| self.norm(Part::Stack(side), norm));
        self.values(Part::Stack(side), Kind::Table, buckets);
    }

    fn read_out(&mut self, part: Part, read_out: &ReadOut) {
        self.words(part, &read_out.words);
        read_out.projection.iter().for_each(|map| self.linear(part, map));
        read_out.bias.iter().for_each(|bias| self.values(part, Kind::Bias, bias));
    }

    fn heads(&mut self, heads: &Heads) {
        let Heads { pooler, masked_lm, classifier, tagger, next_sentence } = heads;
        if let Some(MaskedLm { transform, norm, read_out, .. }) = masked_lm {
            let part = Part::Head(Head::MaskedLm);
            self.linear(part, transform);
            self.norm(part, norm);
            self.read_out(part, read_out);
        }
        let classifier = classifier
            .iter()
            .flat_map(|classifier| classifier.dense().into_iter().chain([&classifier.output]));
        let classifier = classifier.map(|map| (Head::SequenceClassifier, map));
        let single = [
            (Head::Pooler, pooler),
            (Head::TokenTagger, tagger),
            (Head::NextSentence, next_sentence),
        ];
        let single = single.into_iter().filter_map(|(head, map)| Some((head, map.as_ref()?)));
        for (head, map) in single.chain(classifier) {
            self.linear(Part::Head(head), map);
        }
    }
}
