//! What an observer saw of a pass, beside what was recorded.

use super::Case;
use super::comparison::Comparison;
use super::record::Ragged;
use headrow::{Config, Family, Mat, Observer, Place, Side, StackConfig, Sublayer};
use std::collections::HashMap;

/// All states, outputs and attention maps of one pass.
pub(crate) struct Seen {
    /// All heads of the encoder and of the decoder.
    heads: [Vec<usize>; 2],
    /// Whether z_N was recorded before the last norm, as ViT's is.
    bare: bool,
    states: HashMap<(Side, usize), Vec<f32>>,
    outputs: HashMap<Side, Vec<f32>>,
    /// With their columns.
    maps: HashMap<Place, (usize, Vec<f32>)>,
}

impl Seen {
    pub(crate) fn new(config: &Config) -> Seen {
        let heads =
            |stack: &Option<StackConfig>| (0..stack.as_ref().map_or(0, |s| s.heads)).collect();
        Seen {
            heads: [heads(&config.encoder), heads(&config.decoder)],
            bare: config.family == Family::Vit,
            states: HashMap::new(),
            outputs: HashMap::new(),
            maps: HashMap::new(),
        }
    }

    fn heads(&self, side: Side) -> &[usize] {
        &self.heads[usize::from(side == Side::Decoder)]
    }

    /// z_ℓ, where z_N is what the stack gives, unless it was recorded without the last norm.
    pub(crate) fn hidden(&self, side: Side, layer: usize) -> Result<&[f32], String> {
        match self.bare || self.states.contains_key(&(side, layer + 1)) {
            true => self.state(side, layer),
            false if self.states.contains_key(&(side, layer)) => self.output(side),
            false => Err(format!("no layer {layer}")),
        }
    }

    /// z_ℓ, before a last norm.
    pub(crate) fn state(&self, side: Side, layer: usize) -> Result<&[f32], String> {
        let state = self.states.get(&(side, layer));
        state.map(Vec::as_slice).ok_or_else(|| format!("no layer {layer}"))
    }

    pub(crate) fn output(&self, side: Side) -> Result<&[f32], String> {
        self.outputs.get(&side).map(Vec::as_slice).ok_or_else(|| format!("no {side:?}"))
    }
}

fn rows(matrix: Mat<'_>) -> Vec<f32> {
    (0..matrix.rows()).flat_map(|i| matrix.row(i)).copied().collect()
}

impl Observer for Seen {
    fn state(&mut self, side: Side, layer: usize, state: Mat<'_>) {
        let first = self.states.insert((side, layer), rows(state)).is_none();
        assert!(first, "more than one pass");
    }

    fn output(&mut self, side: Side, output: Mat<'_>) {
        self.outputs.insert(side, rows(output));
    }

    fn wants_maps(&self, place: Place) -> &[usize] {
        self.heads(place.side)
    }

    fn maps(&mut self, place: Place, maps: Mat<'_>) {
        self.maps.insert(place, (maps.cols(), rows(maps)));
    }
}

impl Case<'_> {
    /// `prefix0` … `prefixN` against the states of a stack, at real tokens. `of` gives them by their layer.
    pub(crate) fn compare_states<'s>(
        &self,
        comparison: &mut Comparison,
        prefix: &str,
        tokens: &Ragged,
        of: impl Fn(usize) -> Result<&'s [f32], String>,
    ) -> Result<(), String> {
        for (layer, name) in self.record.numbered(prefix) {
            let actual = of(layer).map_err(|error| format!("{name}: {error}"))?;
            self.compare_rows(comparison, &name, actual, tokens)?;
        }
        Ok(())
    }

    /// A recorded `batch × padded × width` tensor against rows of real tokens.
    pub(crate) fn compare_rows(
        &self,
        comparison: &mut Comparison,
        name: &str,
        actual: &[f32],
        tokens: &Ragged,
    ) -> Result<(), String> {
        let (shape, expected) = self.record.floats(name)?;
        let width = shape.last().copied().unwrap_or_default();
        if expected.len() != tokens.lengths.len() * tokens.padded * width {
            return Err(format!("{name} of shape {shape:?}"));
        }
        comparison.relative(name, actual, &tokens.real(&expected, width));
        Ok(())
    }

    /// `prefix0` … against the maps of one kind of sublayer: rows of real tokens, all keys, hidden ones 0.
    pub(crate) fn compare_maps(
        &self,
        comparison: &mut Comparison,
        seen: &Seen,
        (side, sublayer): (Side, Sublayer),
        prefix: &str,
        tokens: &Ragged,
    ) -> Result<(), String> {
        for (layer, name) in self.record.numbered(prefix) {
            let (shape, recorded) = self.record.floats(&name)?;
            let heads = seen.heads(side).len();
            let &[batch, recorded_heads, queries, keys] = &shape[..] else {
                return Err(format!("{name} of shape {shape:?}"));
            };
            if (batch, recorded_heads, queries) != (tokens.lengths.len(), heads, tokens.padded) {
                return Err(format!("{name} of shape {shape:?}"));
            }
            let place = Place { side, layer, sublayer };
            let (cols, maps) = seen.maps.get(&place).ok_or(format!("{name}: no such layer"))?;
            let (mut actual, mut expected) = (Vec::new(), Vec::new());
            for (sequence, head) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
                let first = (sequence * heads + head) * queries * keys;
                expected.extend(&recorded[first..first + tokens.lengths[sequence] * keys]);
                for token in tokens.rows(sequence) {
                    let row = &maps[(head * tokens.tokens() + token) * cols..][..*cols];
                    actual.extend(row.iter().chain(std::iter::repeat(&0.0)).take(keys.max(*cols)));
                }
            }
            comparison.relative(&name, &actual, &expected);
        }
        Ok(())
    }
}
