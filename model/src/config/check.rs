//! Ranges of a config's fields and relations between them, checked before anything is allocated.

use super::{Config, Input, Positions, RelativePositions, ScoreScale, StackConfig};
use crate::config::NormPlacement;
use crate::error::{Error, Result};
use crate::position::{BucketRange, check_buckets};

/// A family's word for a field of ours.
pub(crate) type Names = fn(&'static str) -> &'static str;

impl Config {
    /// Ranges of the fields and relations between them, also of a config that was changed after it was
    /// read. Against the weights they are checked when those are opened. `name` gives the word that messages have for a field.
    pub(crate) fn check_fields(&self, place: &str, name: Names) -> Result<()> {
        check_size(place, name("d_model"), self.d_model)?;
        if self.encoder.is_none() && self.decoder.is_none() {
            return Err(Error::config(place, "model_type", "neither an encoder nor a decoder"));
        }
        for (side, stack) in self.stacks() {
            let range = if side == "encoder" { BucketRange::Both } else { BucketRange::Past };
            // Of two stacks the message says which one.
            let both = self.encoder.is_some() && self.decoder.is_some();
            let place = if both { &format!("{place}: {side}") } else { place };
            stack.check(self.d_model, range, place, name)?;
        }
        self.check_decoder(place, name)?;
        if self.shares_words() {
            let sizes = self.stacks().filter_map(|(_, stack)| stack.tokens());
            let mut sizes = sizes.map(|tokens| (tokens.vocabulary, tokens.width));
            let first = sizes.next();
            if sizes.any(|other| Some(other) != first) {
                return Err(Error::config(
                    place,
                    name("shared_words"),
                    "the tables differ in size",
                ));
            }
        }
        let vocabulary = self.vocabulary();
        let starts = self.special.decoder_start.map(|id| ("decoder_start_token_id", id));
        let ends = self.special.end.iter().map(|&id| ("eos_token_id", id));
        for (field, id) in starts.into_iter().chain(ends) {
            if vocabulary > 0 && id as usize >= vocabulary {
                let problem = format!("{id} is none of the {vocabulary} tokens");
                return Err(Error::config(place, name(field), &problem));
            }
        }
        if !(self.read_out.scale.is_finite() && self.read_out.scale > 0.0) {
            return Err(Error::config(place, "read_out.scale", "must be above 0 and finite"));
        }
        Ok(())
    }

    /// What a decoder cannot have.
    fn check_decoder(&self, place: &str, name: Names) -> Result<()> {
        let Some(stack) = &self.decoder else { return Ok(()) };
        if stack.distinct_layers != stack.layers {
            let problem = "every layer of a decoder has weights of its own";
            return Err(Error::config(place, name("distinct_layers"), problem));
        }
        if stack.placement == NormPlacement::Parallel && self.encoder.is_some() {
            let problem = "side by side leaves no place for attention to the encoder";
            return Err(Error::config(place, name("placement"), problem));
        }
        match stack.tokens().map(|tokens| tokens.positions) {
            // The count would depend on where a prompt is cut.
            Some(Positions::Learned { padding: Some(_), .. }) => {
                let problem = "a decoder's positions count every token";
                Err(Error::config(place, name("padding"), problem))
            }
            _ => Ok(()),
        }
    }
}

impl StackConfig {
    fn check(&self, d_model: usize, range: BucketRange, place: &str, name: Names) -> Result<()> {
        let refused =
            |field: &'static str, problem: &str| Err(Error::config(place, name(field), problem));
        let sizes = [
            ("layers", self.layers),
            ("distinct_layers", self.distinct_layers),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("d_k", self.d_k),
            ("d_v", self.d_v),
            ("d_ff", self.d_ff),
        ];
        // Heads come before their widths, which follow from them where the file does not give them.
        if self.heads > 0 && self.d_k == d_model / self.heads && !d_model.is_multiple_of(self.heads)
        {
            let problem = format!("{} heads do not divide {d_model}", self.heads);
            return refused("heads", &problem);
        }
        for (field, size) in sizes {
            check_size(place, name(field), size)?;
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let problem = format!("{} do not divide {} heads", self.kv_heads, self.heads);
            return refused("kv_heads", &problem);
        }
        if self.distinct_layers > self.layers {
            let problem = format!("{} of {} layers", self.distinct_layers, self.layers);
            return refused("distinct_layers", &problem);
        }
        if self.distinct_layers < self.layers && self.scale == ScoreScale::PaperByLayer {
            return refused("distinct_layers", "shared layers have one factor of their scores");
        }
        if self.softcap.is_some_and(|cap| !(cap.is_finite() && cap > 0.0)) {
            return refused("softcap", "must be above 0 and finite");
        }
        if self.window == Some(0) {
            return refused("window", "must not be 0");
        }
        // Also once it is rounded to f32.
        if !(self.epsilon > 0.0 && self.epsilon.is_finite()) {
            let problem = format!("must be above 0 and finite, found {}", self.epsilon);
            return refused("epsilon", &problem);
        }
        self.check_relative(range, place, name)?;
        self.input.check(d_model, place, name)
    }

    fn check_relative(&self, range: BucketRange, place: &str, name: Names) -> Result<()> {
        match &self.relative {
            RelativePositions::Rotary(rotary) => rotary.check(self.d_k, place),
            &RelativePositions::Buckets { buckets, max_distance } => {
                check_size(place, name("buckets"), buckets)?;
                check_size(place, name("max_distance"), max_distance)?;
                check_buckets(range, buckets, max_distance, place)
            }
            RelativePositions::None | RelativePositions::Alibi => Ok(()),
        }
    }
}

impl Input {
    fn check(&self, d_model: usize, place: &str, name: Names) -> Result<()> {
        let refused = |field, problem: &str| Err(Error::config(place, name(field), problem));
        match self {
            Input::Tokens(tokens) => {
                check_size(place, name("vocabulary"), tokens.vocabulary)?;
                check_size(place, name("width"), tokens.width)?;
                if !(tokens.scale.is_finite() && tokens.scale > 0.0) {
                    return refused("scale", "must be above 0 and finite");
                }
                match tokens.positions {
                    Positions::Learned { rows, first, padding } => {
                        check_size(place, name("positions"), rows)?;
                        if rows.saturating_sub(first) == 0 {
                            let problem = format!("{rows} rows leave no position from {first} on");
                            return refused("positions", &problem);
                        }
                        if padding.is_some() && first == 0 {
                            return refused("first_position", "0 leaves no row for padding");
                        }
                        Ok(())
                    }
                    Positions::Sinusoidal { first, .. } if first > StackConfig::UNLIMITED => {
                        refused("first_position", &format!("{first} is beyond any model"))
                    }
                    Positions::Sinusoidal { layout, .. } => {
                        layout.check(tokens.sum_width(d_model), place)
                    }
                    Positions::None => Ok(()),
                }
            }
            &Input::Patches { image, patch, channels } => {
                check_size(place, "image_size", image)?;
                check_size(place, "patch_size", patch)?;
                check_size(place, "num_channels", channels)?;
                if !image.is_multiple_of(patch) {
                    return refused("patch_size", &format!("{patch} does not divide {image}"));
                }
                Ok(())
            }
            &Input::Spectrogram { bands, frames } => {
                check_size(place, "num_mel_bins", bands)?;
                check_size(place, "max_source_positions", frames)
            }
            Input::Vectors => check_size(place, name("d_model"), d_model),
        }
    }
}

/// Not 0, and small enough that ids, positions and sums of a few sizes fit their types on every machine.
fn check_size(place: &str, field: &str, size: usize) -> Result<()> {
    match size {
        0 => Err(Error::config(place, field, "must not be 0")),
        _ if size > u32::MAX as usize => {
            Err(Error::config(place, field, format!("{size} is beyond any model")))
        }
        _ => Ok(()),
    }
}
