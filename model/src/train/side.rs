//! One stack of a network in training, with what it reads.

use super::claims::Claims;
use super::entrance::{EntranceKept, Given};
use super::examples::Ragged;
use super::objective::Vectors;
use super::options::{Limits, longest};
use super::pass::{Back, Masks, TrainingPass, grown};
use super::stack::{Layers, Observed, Sight, Sinks, StackKept};
use crate::attention::SourceRows;
use crate::checkpoint::untrained_word;
use crate::config::{Config, Input, RelativePositions, StackConfig};
use crate::error::{Error, Result};
use crate::head::Encoded;
use crate::linear::Call;
use crate::position::{BucketRange, bucket};
use crate::session::check::{check_ids, check_length};
use crate::session::places::PlaceTables;
use crate::spectrogram::STRIDE;
use crate::transformer::Entrance;
use headrow_kernels::{Mat, MatMut, Need, Segment, Stack};

/// What both sides compute from.
#[derive(Clone, Copy)]
pub(super) struct Env<'a> {
    pub(super) call: Call<'a>,
    pub(super) parameters: &'a [f32],
    pub(super) masks: Option<Masks>,
}

/// The parts of the model that make a side.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) entrance: &'a Entrance,
    pub(super) layers: Layers<'a>,
}

/// Buffers of one side, and where its tokens stand.
#[derive(Debug)]
pub(super) struct Side {
    number: u64,
    rows: usize,
    longest: usize,
    causal: bool,
    window: Option<usize>,
    vocabulary: usize,
    types: usize,
    /// An id whose look-ups teach nothing.
    untrained: Option<u32>,
    /// Numbers of an image or a spectrogram, 0 where neither is read, and rows that it gives.
    each: (usize, usize),
    kept: StackKept,
    entrance: EntranceKept,
    tables: PlaceTables,
    heads: usize,
    /// The bucket of each column of the biases by distance.
    buckets: Vec<usize>,
    d_table: Vec<f32>,
    segments: Vec<Segment>,
    places: Vec<u32>,
    d: Vec<f32>,
}

impl Side {
    pub(super) fn new(
        parts: Parts<'_>,
        config: &Config,
        limits: &Limits,
        claims: &mut Claims,
    ) -> Result<Side> {
        let causal = matches!(parts.layers, Layers::Decoder(_));
        let stack = if causal { config.decoder()? } else { config.encoder()? };
        let (d_model, untrained) = (config.d_model, untrained_word(config));
        let rows = limits.rows;
        let longest = longest(stack, limits.max_length).min(rows).max(1);
        let (tables, buckets) = places(stack, d_model, longest, causal, claims)?;
        let distances = distances(stack, longest);
        let tokens = stack.tokens();
        Ok(Side {
            number: u64::from(causal),
            rows,
            longest,
            causal,
            window: stack.window,
            vocabulary: stack.vocabulary(),
            types: tokens.map_or(0, |tokens| tokens.token_types),
            untrained: untrained.filter(|&id| (id as usize) < stack.vocabulary()),
            each: (features(&stack.input), stack.max_length()),
            kept: StackKept::new(parts.layers, rows, d_model, claims)?,
            entrance: EntranceKept::new(parts.entrance, rows, claims)?,
            tables,
            heads: stack.heads,
            d_table: claims.zeros(distances, stack.heads)?,
            buckets,
            segments: claims.room(rows)?,
            places: claims.room(rows)?,
            d: claims.zeros(rows, d_model)?,
        })
    }

    /// Scratch of its passes.
    pub(super) fn scratch(parts: Parts<'_>, d_model: usize, limits: &Limits) -> Need {
        let Limits { rows, longest, threads, cpu, .. } = *limits;
        let layers = parts.layers.scratch(cpu, threads, rows, longest, d_model);
        layers.or(parts.entrance.training_scratch(cpu, threads, rows, d_model))
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let lists = grown(&self.segments) + grown(&self.places) + grown(&self.buckets);
        let gradients = grown(&self.d) + grown(&self.d_table);
        self.kept.bytes() + self.entrance.bytes() + self.tables.size() + lists + gradients
    }

    /// Where the sequences of a batch stand.
    pub(super) fn lay_out(&mut self, lengths: impl Iterator<Item = usize>) -> Result<()> {
        self.segments.clear();
        self.places.clear();
        for (sequence, length) in lengths.enumerate() {
            check_length(sequence, length, self.longest)?;
            let start = self.places.len();
            let rows = start..start + length;
            if rows.end > self.rows {
                let (what, maximum) = ("tokens", self.rows);
                return Err(Error::BatchTooLarge { what, actual: rows.end, maximum });
            }
            self.places.extend(0..length as u32);
            let segment = match (self.causal, self.window) {
                (true, None) => Segment::causal(rows.clone(), rows),
                (true, Some(window)) => Segment::causal(rows.clone(), rows).with_window(window),
                (false, None) => Segment::full(rows.clone(), rows),
                (false, Some(window)) => {
                    Segment::banded(rows.clone(), rows, window - 1, window - 1)
                }
            };
            self.segments.push(segment);
        }
        Ok(())
    }

    /// Whether it reads images or spectrograms.
    pub(super) fn reads_features(&self) -> bool {
        self.each.0 > 0
    }

    /// Lays out what it reads of examples: features where it reads such, else sequences of ids with their types.
    pub(super) fn lay_out_examples<'e>(
        &mut self,
        sequences: &'e Ragged,
        types: &'e [u32],
        features: &'e [f32],
    ) -> Result<Given<'e>> {
        // Sequences beside features are of the wrong kind, which the check of both finds.
        if !self.reads_features() || !sequences.is_empty() {
            self.lay_out(sequences.iter().map(<[u32]>::len))?;
            return Ok(Given::Ids(sequences.ids(), (!types.is_empty()).then_some(types)));
        }
        let (each, rows) = self.each;
        let count = features.len().div_ceil(each);
        if features.len() != count * each {
            let what = "numbers of images or spectrograms";
            return Err(Error::Lengths { what, expected: count * each, actual: features.len() });
        }
        self.lay_out(std::iter::repeat_n(rows, count))?;
        Ok(Given::Features(features))
    }

    /// That what is given is what is read, and fits the lengths.
    pub(super) fn check(&self, parts: Parts<'_>, given: Given<'_>, d_model: usize) -> Result<()> {
        let rows = self.places.len();
        let lengths = |what, expected, actual| match expected == actual {
            true => Ok(()),
            false => Err(Error::Lengths { what, expected, actual }),
        };
        match (parts.entrance, given) {
            (Entrance::Embedding(_), Given::Ids(ids, types)) => {
                lengths("ids", rows, ids.len())?;
                lengths("token types", rows, types.map_or(rows, <[u32]>::len))?;
                for (sequence, segment) in self.segments.iter().enumerate() {
                    check_ids(sequence, &ids[segment.queries.clone()], self.vocabulary)?;
                    let types = types.map(|types| &types[segment.queries.clone()]);
                    check_types(sequence, types.unwrap_or_default(), self.types)?;
                }
                Ok(())
            }
            (Entrance::Vectors, Given::Vectors(Vectors { values, seen, .. })) => {
                lengths("marks of vectors", rows, seen.map_or(rows, <[bool]>::len))?;
                lengths("numbers of vectors", rows * d_model, values.len())
            }
            // Their numbers were compared with what they are when they were laid out.
            (Entrance::Patches(_) | Entrance::Spectrogram(_), Given::Features(_)) => Ok(()),
            (entrance, given) => {
                Err(Error::WrongInput { expected: reads(entrance), actual: given.name() })
            }
        }
    }

    /// Tokens of the batch.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Which rows each sequence has.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The last states.
    pub(super) fn output(&self) -> Mat<'_> {
        self.kept.output(self.places.len())
    }

    /// The last states, and where their gradient is to be written.
    pub(super) fn output_and_gradient(&mut self) -> (Mat<'_>, MatMut<'_>) {
        let (encoded, d) = self.encoded_and_gradient();
        (encoded.hidden, d)
    }

    /// The last states as heads read them, and where their gradient is to be written.
    pub(super) fn encoded_and_gradient(&mut self) -> (Encoded<'_>, MatMut<'_>) {
        let rows = self.places.len();
        let hidden = self.kept.output(rows);
        let d_model = hidden.cols();
        let d = MatMut::new(&mut self.d[..rows * d_model], rows, d_model);
        (Encoded { hidden, segments: &self.segments }, d)
    }

    /// The gradient of what entered, after a pass back.
    pub(super) fn gradient(&self) -> &[f32] {
        let output = self.output();
        &self.d[..output.rows() * output.cols()]
    }

    /// Runs the stack over what is given.
    pub(super) fn forward(
        &mut self,
        env: Env<'_>,
        parts: Parts<'_>,
        given: Given<'_>,
        source: Option<SourceRows<'_>>,
        stack: &mut Stack<'_>,
    ) {
        let place = parts.layers.buckets().place.clone();
        let (numbers, heads, buckets) = (&env.parameters[place], self.heads, &self.buckets);
        if !numbers.is_empty()
            && let Some(table) = self.tables.relative_mut()
        {
            table.refill(|head, column| numbers[buckets[column] * heads + head]);
        }
        let rows = self.places.len();
        let Side { kept, entrance, tables, places, segments, number, .. } = self;
        let masks = env.masks.map(|masks| Masks { side: *number, ..masks });
        let pass = tables.pass(env.call, places);
        let pass = TrainingPass { pass, parameters: env.parameters, masks, keys: given.keys() };
        let (sinusoids, out) = (tables.sinusoids(), kept.entering(rows));
        parts.entrance.apply(&pass, given, sinusoids, entrance, out, stack);
        kept.forward(&pass, parts.layers, Sight { rows, segments, source }, stack);
    }

    /// Walks the stack back from the gradient of its output, which becomes that of what entered.
    #[expect(clippy::too_many_arguments, reason = "the parts, what they read, and the gradients")]
    pub(super) fn backward(
        &mut self,
        env: Env<'_>,
        parts: Parts<'_>,
        given: Given<'_>,
        source: Option<(SourceRows<'_>, MatMut<'_>)>,
        gradients: &mut [f32],
        observe: Observed<'_>,
        stack: &mut Stack<'_>,
    ) {
        let rows = self.places.len();
        let Side { kept, tables, places, segments, d_table, buckets, heads, d, .. } = self;
        let masks = env.masks.map(|masks| Masks { side: self.number, ..masks });
        let pass = tables.pass(env.call, places);
        let pass = TrainingPass { pass, parameters: env.parameters, masks, keys: given.keys() };
        let (source, d_encoded) = source.unzip();
        let sight = Sight { rows, segments, source };
        d_table.fill(0.0);
        let distances = buckets.len();
        let to = (distances > 0).then(|| MatMut::new(d_table, *heads, distances));
        let mut sinks = Sinks { gradients, d_encoded, d_table: to };
        let d_model = kept.output(rows).cols();
        let d = MatMut::new(&mut d[..rows * d_model], rows, d_model);
        kept.backward(&pass, parts.layers, sight, d, &mut sinks, observe, stack);
        let Sinks { gradients, d_table: Some(d_table), .. } = sinks else { return };
        let numbers = &mut gradients[parts.layers.buckets().place.clone()];
        for head in 0..*heads {
            let columns = d_table.as_ref().row(head).iter();
            columns.zip(&*buckets).for_each(|(d, bucket)| numbers[bucket * *heads + head] += d);
        }
    }

    /// What the entrance learns from the gradient of what entered.
    pub(super) fn entrance_backward(
        &mut self,
        env: Env<'_>,
        parts: Parts<'_>,
        given: Given<'_>,
        gradients: &mut [f32],
        stack: &mut Stack<'_>,
    ) {
        let rows = self.places.len();
        let masks = env.masks.map(|masks| Masks { side: self.number, ..masks });
        let pass = self.tables.pass(env.call, &self.places);
        let pass = TrainingPass { pass, parameters: env.parameters, masks, keys: given.keys() };
        let d_model = self.kept.output(rows).cols();
        let d = MatMut::new(&mut self.d[..rows * d_model], rows, d_model);
        let (untrained, kept) = (self.untrained, &self.entrance);
        parts.entrance.backward(&pass, given, untrained, kept, Back { d, gradients }, stack);
    }
}

/// Numbers of an image or a spectrogram; 0 of other inputs.
fn features(input: &Input) -> usize {
    match *input {
        Input::Patches { image, channels, .. } => {
            channels.saturating_mul(image).saturating_mul(image)
        }
        Input::Spectrogram { bands, frames } => bands * STRIDE * frames,
        Input::Tokens(_) | Input::Vectors => 0,
    }
}

/// What it reads, in words.
fn reads(entrance: &Entrance) -> &'static str {
    match entrance {
        Entrance::Embedding(_) => "tokens",
        Entrance::Patches(_) => "images",
        Entrance::Spectrogram(_) => "spectrograms",
        Entrance::Vectors => "vectors",
    }
}

/// Columns of the biases by distance, where they are learned.
fn distances(stack: &StackConfig, longest: usize) -> usize {
    match stack.relative {
        RelativePositions::Buckets { .. } => longest.saturating_mul(2).saturating_sub(1),
        _ => 0,
    }
}

/// The tables of positions of up to `longest` tokens, and the bucket of each of those columns.
fn places(
    stack: &StackConfig,
    d_model: usize,
    longest: usize,
    causal: bool,
    claims: &mut Claims,
) -> Result<(PlaceTables, Vec<usize>)> {
    let mut buckets = claims.room(distances(stack, longest))?;
    if claims.counts(PlaceTables::bytes(stack, d_model, longest)) {
        return Ok((PlaceTables::default(), buckets));
    }
    let mut learned = Vec::new();
    if let RelativePositions::Buckets { buckets: count, max_distance } = stack.relative {
        let range = if causal { BucketRange::Past } else { BucketRange::Both };
        let reach = longest as isize - 1;
        learned = claims.zeros(count, stack.heads)?;
        buckets.extend((-reach..=reach).map(|offset| bucket(range, count, max_distance, offset)));
    }
    Ok((PlaceTables::new(stack, d_model, &learned, longest, causal)?, buckets))
}

/// All below the number of types; a model without takes zeros.
fn check_types(sequence: usize, given: &[u32], types: usize) -> Result<()> {
    let types = types.max(1);
    match given.iter().position(|&token_type| token_type as usize >= types) {
        Some(index) => Err(Error::TokenType { sequence, index, token_type: given[index], types }),
        None => Ok(()),
    }
}
