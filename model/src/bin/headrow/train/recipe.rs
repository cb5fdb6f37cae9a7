//! What decides the weights that a training comes to, as it stands on the command line and in `run.json`.

mod choices;
mod preset;

pub(super) use choices::{
    ActivationName, Lower, Norm, Objective, Placement, Places, ScheduleName, Sharing, TextLayout,
    Tie, TokenizerName,
};
pub(super) use preset::{Preset, Shape};

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// All that cannot change once a training has begun. What is not given comes from the preset, or from where the training is
/// resumed.
#[derive(clap::Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "What is learnt, and how")]
pub(super) struct Recipe {
    /// Files to learn from: a source, a tab and a target a line; of other objectives than seq2seq, text.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) data: Vec<PathBuf>,

    /// A file of the same kind to measure on.
    #[arg(long, value_name = "FILE")]
    pub(super) valid: Option<PathBuf>,

    /// Stop at a line that cannot be learnt from, instead of leaving it out and telling so.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub(super) strict: Option<bool>,

    /// What is put into lower case first.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(super) lowercase: Option<Lower>,

    /// Most tokens of a source and of a target; longer pairs are left out, longer texts cut into pieces. 256 if not
    /// given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub(super) max_length: Option<u32>,

    /// What the tokens are: words (what stands between spaces), bpe:SIZE (parts of words, made from the data), or a
    /// tokenizer.json. bpe:8000 if not given.
    #[arg(long, value_name = "HOW")]
    pub(super) tokenizer: Option<String>,

    /// What is predicted.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(super) objective: Option<Objective>,

    /// What a file of text is: a text a line, or one text, as a book is. Of causal models text if not given, of masked ones
    /// lines.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(super) layout: Option<TextLayout>,

    /// Begin with the weights and the tokenizer of a model's folder; its shape is that model's.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["preset", "layers", "decoder_layers", "d_model", "heads", "kv_heads", "d_ff", "norm",
        "norm_kind", "activation", "gated", "positions", "tie", "tokenizer", "objective"])]
    pub(super) init: Option<PathBuf>,

    /// Which model, unless the next options say otherwise.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(super) preset: Option<Preset>,

    /// N: layers of each stack.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) layers: Option<u16>,

    /// Layers of the decoder behind an encoder; as many as --layers if not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) decoder_layers: Option<u16>,

    /// Features of a token.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) d_model: Option<u32>,

    /// h: heads of each attention.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) heads: Option<u32>,

    /// Heads of keys and values; as many as --heads if not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) kv_heads: Option<u32>,

    /// Inner features of the feed-forward networks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) d_ff: Option<u32>,

    /// Where the layers normalise.
    #[arg(long, value_enum, value_name = "WHERE")]
    pub(super) norm: Option<Placement>,

    /// How they do.
    #[arg(long, value_enum, value_name = "HOW")]
    pub(super) norm_kind: Option<Norm>,

    /// Between the linear maps of the feed-forward networks.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(super) activation: Option<ActivationName>,

    /// Let the activation gate a second inner map.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub(super) gated: Option<bool>,

    /// How places come in. Sinusoidal if not given, of masked models learned.
    #[arg(long, value_enum, value_name = "HOW")]
    pub(super) positions: Option<Places>,

    /// Which tables of words are one: those of source, target and read-out (all), of target and read-out, or none.
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(super) tie: Option<Tie>,

    /// Most tokens of a batch, of sources and of targets each. Nothing is padded.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) batch_tokens: Option<u32>,

    /// Batches of a step. 1 if not given.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) accumulate: Option<u32>,

    /// How the rate of learning changes.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(super) schedule: Option<ScheduleName>,

    /// Steps in which the rate rises. 4000 if not given.
    #[arg(long, value_name = "STEPS")]
    pub(super) warmup: Option<u64>,

    /// Multiplies the rate. 1 if not given.
    #[arg(long, value_name = "X")]
    pub(super) rate_factor: Option<f64>,

    /// The highest rate of the schedules constant and cosine, before the factor. Without it: that of the paper's schedule,
    /// 1/√(d_model · warmup).
    #[arg(long, value_name = "X")]
    pub(super) rate: Option<f64>,

    /// The step at which a cosine schedule is down; --steps if not given.
    #[arg(long, value_name = "STEPS")]
    pub(super) cosine_steps: Option<u64>,

    /// The part of the features that is dropped.
    #[arg(long, value_name = "P")]
    pub(super) dropout: Option<f64>,

    /// The part of a label that is shared out among tokens. 0.1 if not given.
    #[arg(long, value_name = "EPS")]
    pub(super) smoothing: Option<f64>,

    /// Among which tokens it is shared out. All if not given.
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(super) smoothing_kind: Option<Sharing>,

    /// The largest norm of the gradient; without it any.
    #[arg(long, value_name = "NORM")]
    pub(super) clip: Option<f64>,

    /// What part of a matrix's weights a step of rate 1 takes away (AdamW). 0 if not given.
    #[arg(long, value_name = "X")]
    pub(super) weight_decay: Option<f64>,

    /// What decides the first weights, the order of the data, and what is dropped. 1 if not given.
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|error| Failure::Message(format!("{}: {error}", path.display())))
}

impl Recipe {
    /// The same with paths that hold wherever a training is resumed from.
    pub(super) fn absolute(mut self) -> Result<Recipe, Failure> {
        let files = self.data.iter_mut().chain(&mut self.valid).chain(&mut self.init);
        for path in files {
            *path = absolute(path)?;
        }
        if let Some(how) = &mut self.tokenizer
            && let TokenizerName::File(path) = TokenizerName::of(how)
        {
            let path = absolute(path)?.into_os_string();
            *how = path.into_string().map_err(|path| {
                Failure::Message(format!("{}: the name is not UTF-8", path.display()))
            })?;
        }
        Ok(self)
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    pub(super) fn shape(&self) -> Shape {
        self.preset.unwrap_or(Preset::Small).shape()
    }

    /// The same with everything said that has a value when it is not. What is said nowhere stays so: the shape where the
    /// training begins with a model, norms that are not held, rates that follow from others.
    /// A cosine wave ends with the training's `steps` then.
    pub(super) fn filled_in(mut self, steps: Option<u64>) -> Recipe {
        let shape = self.shape();
        if self.init.is_none() {
            self.preset.get_or_insert(Preset::Small);
            self.tokenizer.get_or_insert_with(|| "bpe:8000".to_owned());
            let objective = *self.objective.get_or_insert(Objective::Seq2seq);
            let layers = *self.layers.get_or_insert(shape.layers);
            if objective == Objective::Seq2seq {
                self.decoder_layers.get_or_insert(layers);
            }
            self.d_model.get_or_insert(shape.d_model);
            let heads = *self.heads.get_or_insert(shape.heads);
            self.kv_heads.get_or_insert(heads);
            self.d_ff.get_or_insert(shape.d_ff);
            self.norm.get_or_insert(Placement::Post);
            self.norm_kind.get_or_insert(Norm::Layer);
            self.activation.get_or_insert(ActivationName::Relu);
            self.gated.get_or_insert(false);
            self.positions.get_or_insert(match self.objective {
                Some(Objective::Masked) => Places::Learned,
                _ => Places::Sinusoidal,
            });
            self.tie.get_or_insert(Tie::All);
        }
        self.strict.get_or_insert(false);
        self.lowercase.get_or_insert(Lower::Nothing);
        self.max_length.get_or_insert(256);
        self.batch_tokens.get_or_insert(shape.batch_tokens);
        self.accumulate.get_or_insert(1);
        self.schedule.get_or_insert(ScheduleName::Paper);
        if self.schedule == Some(ScheduleName::Cosine) {
            self.cosine_steps = self.cosine_steps.or(steps);
        }
        self.warmup.get_or_insert(4000);
        self.rate_factor.get_or_insert(1.0);
        self.dropout.get_or_insert(shape.dropout);
        self.smoothing.get_or_insert(0.1);
        self.smoothing_kind.get_or_insert(Sharing::All);
        self.weight_decay.get_or_insert(0.0);
        self.seed.get_or_insert(1);
        self
    }

    /// Names an option of `self` that says something else than `begun`, the recipe that a training began with.
    pub(super) fn contradiction(&self, begun: &Recipe) -> Option<String> {
        let (said, begun) = (fields(self), fields(begun));
        let other = |(name, value): (&String, &Value)| match begun.get(name) {
            Some(old) if old == value => None,
            old => {
                let old = old.map_or("none".to_owned(), |old| old.to_string());
                Some(format!(
                    "--{}: the training began with {old}, not {value}",
                    name.replace('_', "-")
                ))
            }
        };
        said.iter().find_map(other)
    }
}

/// The fields that say something.
fn fields(recipe: &Recipe) -> Map<String, Value> {
    match serde_json::to_value(recipe) {
        Ok(Value::Object(mut fields)) => {
            fields.retain(|_, value| !value.is_null());
            fields
        }
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_is_filled_in_by_its_preset_and_read_as_it_was_written() {
        let mut recipe = Recipe { heads: Some(2), clip: Some(0.1 + 0.2), ..Recipe::default() };
        recipe.preset = Some(Preset::Base);
        let filled = recipe.clone().filled_in(None);
        assert_eq!((filled.d_model, filled.heads, filled.kv_heads), (Some(512), Some(2), Some(2)));
        assert_eq!((filled.batch_tokens, filled.dropout), (Some(25_000), Some(0.1)));
        let json = serde_json::to_string(&filled).unwrap();
        let read: Recipe = serde_json::from_str(&json).unwrap();
        assert_eq!(fields(&read), fields(&filled));
        assert_eq!(recipe.contradiction(&read), None);
        assert_eq!(Recipe::default().contradiction(&read), None);
        recipe.dropout = Some(0.2);
        let problem = recipe.contradiction(&read).unwrap();
        assert_eq!(problem, "--dropout: the training began with 0.1, not 0.2");
        let other = Recipe { rate: Some(1.0), ..Recipe::default() };
        let problem = other.contradiction(&read).unwrap();
        assert_eq!(problem, "--rate: the training began with none, not 1.0");
    }
}
