//! Attention maps of a text, with its tokens.

use super::TextModel;
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::generate::Callbacks;
use crate::memory::{filled, room};
use crate::observer::{Observer, Place, Side, Sublayer};
use crate::session::check::check_length;
use crate::session::{Chunk, Output, Session};
use crate::tokenizer::{Text, Tokenizer};
use headrow_kernels::Mat;

/// Which attention of a model is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttentionKind {
    /// Of an encoder's tokens to each other.
    #[default]
    Encoder,
    /// Of a decoder's tokens to those before them and themselves.
    Decoder,
    /// Of a decoder's tokens to those of the source.
    Cross,
}

/// The weights of one head.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AttentionMap {
    /// The layer, counted from 0.
    pub layer: usize,
    /// The head, counted from 0.
    pub head: usize,
    /// Queries × keys; each row sums to 1.
    pub weights: Vec<f32>,
}

/// Attention maps of one text.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AttentionMaps {
    /// Tokens that attend, as [`Tokenizer::label`] shows them: the rows of a map.
    pub queries: Vec<String>,
    /// Tokens that are attended to: its columns.
    pub keys: Vec<String>,
    /// By layer, then by head.
    pub maps: Vec<AttentionMap>,
}

impl AttentionKind {
    fn side(self) -> Side {
        match self {
            AttentionKind::Encoder => Side::Encoder,
            AttentionKind::Decoder | AttentionKind::Cross => Side::Decoder,
        }
    }

    fn sublayer(self) -> Sublayer {
        match self {
            AttentionKind::Encoder | AttentionKind::Decoder => Sublayer::SelfAttention,
            AttentionKind::Cross => Sublayer::CrossAttention,
        }
    }
}

impl TextModel {
    /// Attention maps of some layers and heads; none named: of all. Beside an encoder the second text of a pair is what the
    /// decoder reads; a single text is translated first.
    ///
    /// ```
    /// # #[cfg(feature = "embedded-model")]
    /// # {
    /// use headrow::{AttentionKind, SessionOptions, TextModel};
    ///
    /// let model = TextModel::pronouncer()?;
    /// let mut session = model.session(&SessionOptions::default())?;
    /// let (kind, layer, head) = (AttentionKind::Cross, 0, 0);
    /// let maps = model.attention(&mut session, ("c a t", "K AE T"), kind, &[layer], &[head])?;
    /// assert_eq!(maps.keys, ["c", "a", "t", "</s>"]);
    /// // Each phoneme shares its attention out among the letters and the end.
    /// let rows = maps.maps[0].weights.chunks(maps.keys.len());
    /// assert!(rows.map(|row| row.iter().sum::<f32>()).all(|sum| (sum - 1.0).abs() < 1e-5));
    /// # }
    /// # Ok::<(), headrow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::encode`] and [`Session::extend`], [`Error::NoStack`] for a kind that the model lacks,
    /// [`Error::OutOfStack`] for a layer or head beyond those there are, [`Error::OutOfMemory`] when the maps, a weight for
    /// each pair of tokens, find no room.
    pub fn attention<'a>(
        &self,
        session: &mut Session,
        text: impl Into<Text<'a>>,
        kind: AttentionKind,
        layers: &[usize],
        heads: &[usize],
    ) -> Result<AttentionMaps> {
        let config = self.model.config();
        let stack = match kind {
            AttentionKind::Encoder => config.encoder()?,
            AttentionKind::Decoder => config.decoder()?,
            AttentionKind::Cross => config.encoder().and_then(|_| config.decoder())?,
        };
        let layers = chosen("layer", layers, stack.layers)?;
        let heads = chosen("head", heads, stack.heads)?;
        let mut watch = Watch { kind, layers, heads, ..Watch::default() };
        let (queries, keys) = match (text.into(), kind) {
            (text, AttentionKind::Encoder) => self.watch_encoder(session, text, &mut watch)?,
            (text, _) => self.watch_decoder(session, text, &mut watch)?,
        };
        Ok(AttentionMaps { queries, keys, maps: watch.maps })
    }

    fn watch_encoder(
        &self,
        session: &mut Session,
        text: Text<'_>,
        watch: &mut Watch,
    ) -> Result<(Vec<String>, Vec<String>)> {
        let text = match (text, &self.model.config().decoder) {
            (Text::Pair(source, _), Some(_)) => Text::Single(source),
            (text, _) => text,
        };
        let encoding = self.source_encoding(session, text)?;
        let types = self.model.config().encoder()?.tokens().map_or(0, |tokens| tokens.token_types);
        let mut batch = Batch::one(&encoding.ids);
        if types > 1 {
            batch = batch.with_token_types(&encoding.token_types);
        }
        let mut hidden = vec![0.0; encoding.ids.len() * self.model.config().d_model];
        watch.expect(encoding.ids.len(), encoding.ids.len())?;
        session.encode_observed(&batch, &mut hidden, watch)?;
        let tokens = names(&self.source, &encoding.ids);
        Ok((tokens.clone(), tokens))
    }

    fn watch_decoder(
        &self,
        session: &mut Session,
        text: Text<'_>,
        watch: &mut Watch,
    ) -> Result<(Vec<String>, Vec<String>)> {
        let visit = session.visit();
        let session = &mut *visit.session;
        let beside_encoder = self.model.config().encoder.is_some();
        let (sequence, source, ids) = match (text, beside_encoder) {
            (text, false) => {
                let ids = self.tokenize(text)?.ids;
                (session.add()?, Vec::new(), ids)
            }
            (Text::Pair(source, target), true) => {
                let (source, target) = (self.tokenize(source)?.ids, self.target_encoding(target)?);
                let read = [self.decoder_start()?, target.ids].concat();
                (session.add_sources(&Batch::one(&source))?[0], source, read)
            }
            (Text::Single(text), true) => {
                let source = self.tokenize(text)?.ids;
                let batch = Batch::one(&source);
                let answers =
                    session.generate_from(&batch, &self.options, &mut Callbacks::new())?;
                let read = [self.decoder_start()?, answers[0].best().tokens.clone()].concat();
                (session.add_sources(&batch)?[0], source, read)
            }
        };
        let keys = if watch.kind == AttentionKind::Cross { source.len() } else { ids.len() };
        check_length(0, ids.len(), session.max_length())?;
        watch.expect(ids.len(), keys)?;
        let chunks = [Chunk::new(sequence, &ids)];
        session.extend_observed(&chunks, Output::None, &mut [], watch)?;
        let tokens = names(self.target_tokenizer(), &ids);
        Ok(match watch.kind {
            AttentionKind::Cross => (tokens, names(&self.source, &source)),
            _ => (tokens.clone(), tokens),
        })
    }
}

fn names(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| tokenizer.label(id)).collect()
}

/// Those that are named, ascending and once each; all when none is.
fn chosen(what: &'static str, named: &[usize], count: usize) -> Result<Vec<usize>> {
    if let Some(&index) = named.iter().find(|&&index| index >= count) {
        return Err(Error::OutOfStack { what, index, count });
    }
    let named = |index: &usize| named.is_empty() || named.contains(index);
    Ok((0..count).filter(named).collect())
}

/// Collects maps.
#[derive(Default)]
struct Watch {
    kind: AttentionKind,
    layers: Vec<usize>,
    heads: Vec<usize>,
    keys: usize,
    /// For each chosen layer the rows that have been seen: long texts are read in several passes.
    seen: Vec<usize>,
    maps: Vec<AttentionMap>,
}

impl Watch {
    /// Makes room.
    fn expect(&mut self, queries: usize, keys: usize) -> Result<()> {
        let count = self.layers.len() * self.heads.len();
        let refused =
            || Error::out_of_memory(format_args!("{count} attention maps of {queries}×{keys}"));
        let each = queries.checked_mul(keys).ok_or_else(refused)?;
        // Systems that promise memory they may not have refuse only a large excess: all is asked for at once before the parts.
        let all = each.checked_mul(count).and_then(room::<f32>).ok_or_else(refused)?;
        drop(all);
        self.keys = keys;
        self.seen = vec![0; self.layers.len()];
        for &layer in &self.layers {
            for &head in &self.heads {
                let weights = filled(0.0, each).ok_or_else(refused)?;
                self.maps.push(AttentionMap { layer, head, weights });
            }
        }
        Ok(())
    }
}

impl Observer for Watch {
    fn wants_maps(&self, place: Place) -> &[usize] {
        let here = place.side == self.kind.side() && place.sublayer == self.kind.sublayer();
        if here && self.layers.contains(&place.layer) { &self.heads } else { &[] }
    }

    fn maps(&mut self, place: Place, maps: Mat<'_>) {
        let Some(at) = self.layers.iter().position(|&layer| layer == place.layer) else { return };
        let (heads, rows) = (self.heads.len(), maps.rows() / self.heads.len());
        let cols = self.keys.min(maps.cols());
        for (index, map) in self.maps[at * heads..][..heads].iter_mut().enumerate() {
            let places = map.weights.chunks_exact_mut(self.keys).skip(self.seen[at]).take(rows);
            for (row, place) in places.enumerate() {
                place[..cols].copy_from_slice(&maps.row(index * rows + row)[..cols]);
            }
        }
        self.seen[at] += rows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_beyond_any_memory_are_an_error() {
        for (queries, keys) in [(1 << 40, 1 << 40), (1 << 31, 1 << 29), (usize::MAX, 1)] {
            let mut watch = Watch { layers: vec![0, 1], heads: vec![0, 2], ..Watch::default() };
            let refused = watch.expect(queries, keys);
            assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{queries}×{keys}");
            assert!(watch.maps.is_empty());
        }
        let mut watch = Watch { layers: vec![0, 1], heads: vec![0, 2], ..Watch::default() };
        watch.expect(3, 5).unwrap();
        assert_eq!(watch.maps.iter().map(|map| map.weights.len()).collect::<Vec<_>>(), [15; 4]);
    }
}
