//! Rotary positions: frequencies, how they are stretched for longer texts than a model was trained on, and the tables
//! of sines and cosines that the kernel looks up.

use super::{refused, room};
use crate::config::printable;
use crate::error::{Error, Result};
use headrow_kernels::{Mat, Rope, RopeLayout};
use serde_json::{Map, Value};
use std::f64::consts::PI;

/// Rotary position embedding of a checkpoint. (Su et al., "RoFormer", 2021.)
///
/// Pair i of the turning features turns by p·θ_i at position p, θ_i = base^(−2i/width) before scaling.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rotary {
    /// The longest wavelength is nearly 2π·base.
    pub base: f64,
    /// Features of a head that turn; those after them stay as they are. Even.
    pub width: usize,
    /// How features make pairs.
    pub layout: RopeLayout,
    /// How the frequencies are changed for texts longer than those of the training.
    pub scaling: RotaryScaling,
    /// The longest text that the checkpoint declares.
    pub max_position: usize,
}

/// How rotary frequencies are stretched. Names as in `rope_type`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum RotaryScaling {
    /// `default`: not at all.
    #[default]
    None,
    /// `linear`: θ_i/factor. (Chen et al., "Extending Context Window … via Positional Interpolation", 2023.)
    Linear {
        /// How much longer texts may be.
        factor: f64,
    },
    /// `dynamic`: for a text longer than [`Rotary::max_position`] the base grows, NTK-aware scaling:
    /// base·(factor·n/max_position − (factor − 1))^(width/(width − 2)).
    ///
    /// n is the number of positions that [`Rotary::tables`] is asked for: a session declares it once. (Were
    /// n the length so far, a text read in parts would meet other angles than one read at once.)
    Dynamic {
        /// How much longer texts may be.
        factor: f64,
    },
    /// `yarn`: high frequencies stay, low ones are divided by `factor`, with a ramp over the features between. (Peng
    /// et al., "YaRN", 2023.)
    Yarn {
        /// How much longer texts may be.
        factor: f64,
        /// The longest text of the training.
        original: usize,
        /// Pairs with more turns than this over the training's longest text stay: 32.
        beta_fast: f64,
        /// Pairs with fewer turns than this are divided by `factor`: 1.
        beta_slow: f64,
        /// Whether the ramp begins and ends at whole features.
        truncate: bool,
        /// Factor of all sines and cosines.
        attention_factor: f64,
    },
    /// `llama3`: as `yarn` in spirit, by wavelength: those below original/`high` stay, those above original/`low`
    /// are divided by `factor`, between them a mixture.
    Llama3 {
        /// How much longer texts may be.
        factor: f64,
        /// Wavelengths of the longest text of the training divided by this and more count as low frequencies.
        low: f64,
        /// Wavelengths of the longest text divided by this and less count as high ones.
        high: f64,
        /// The longest text of the training.
        original: usize,
    },
}

impl Rotary {
    /// θ_i = base^(−2i/width), half-split, for texts up to `max_position`.
    pub fn new(base: f64, width: usize, max_position: usize) -> Rotary {
        let (layout, scaling) = (RopeLayout::HalfSplit, RotaryScaling::None);
        Rotary { base, width, layout, scaling, max_position }
    }

    /// Reads `rope_parameters`, or `rope_scaling` and `rope_theta`, of a `config.json` for heads of `d_k` features.
    /// `place` is named by errors.
    ///
    /// # Errors
    /// When the JSON is damaged, the kind of scaling or one of its parameters is unknown, or a value is out of range.
    pub fn from_json(json: &[u8], place: &str, d_k: usize) -> Result<Rotary> {
        let config: Map<String, Value> = serde_json::from_slice(json)
            .map_err(|error| Error::file(place, format_args!("not a JSON object: {error}")))?;
        Parameters::of(&config, place)?.rotary(d_k)
    }

    /// Whether heads of `d_k` features can turn like this; `place` is named by the error.
    pub fn check(&self, d_k: usize, place: &str) -> Result<()> {
        let Rotary { base, width, scaling, max_position, .. } = *self;
        let above = |field, x: f64, least: f64| match x > least && x.is_finite() {
            true => Ok(()),
            false => {
                Err(refused(place, field, format_args!("{x}: must be finite and above {least}")))
            }
        };
        let stretch = |factor: f64| match factor >= 1.0 && factor.is_finite() {
            true => Ok(()),
            false => Err(refused(place, "factor", format_args!("{factor}: must be at least 1"))),
        };
        above("rope_theta", base, 1.0)?;
        if width == 0 || width % 2 == 1 || width > d_k {
            let problem = format!("{width} of the {d_k} features of a head cannot turn in pairs");
            return Err(refused(place, "partial_rotary_factor", problem));
        }
        above("max_position_embeddings", max_position as f64, 0.0)?;
        match scaling {
            RotaryScaling::None => Ok(()),
            RotaryScaling::Linear { factor } => stretch(factor),
            RotaryScaling::Dynamic { .. } if width == 2 => {
                Err(refused(place, "rope_type", "dynamic scaling needs more than one pair"))
            }
            RotaryScaling::Dynamic { factor } => stretch(factor),
            RotaryScaling::Yarn {
                factor,
                original,
                beta_fast,
                beta_slow,
                attention_factor,
                ..
            } => {
                stretch(factor)?;
                above("original_max_position_embeddings", original as f64, 0.0)?;
                above("beta_slow", beta_slow, 0.0)?;
                above("beta_fast", beta_fast, beta_slow)?;
                above("attention_factor", attention_factor, 0.0)
            }
            RotaryScaling::Llama3 { factor, low, high, original } => {
                stretch(factor)?;
                above("original_max_position_embeddings", original as f64, 0.0)?;
                above("low_freq_factor", low, 0.0)?;
                above("high_freq_factor", high, low)
            }
        }
    }

    /// The longest text: what the checkpoint declares, times the factor of a linear or dynamic scaling. (For the
    /// others checkpoints declare the length that is reached with them.)
    pub fn longest(&self) -> usize {
        match self.scaling {
            RotaryScaling::Linear { factor } | RotaryScaling::Dynamic { factor } => {
                let longest = self.max_position as f64 * factor.max(1.0);
                // An absurd factor makes no absurd length.
                (longest as usize).min(1 << 24).max(self.max_position)
            }
            _ => self.max_position,
        }
    }

    /// θ_i of each pair, for texts of up to `longest` tokens (which only dynamic scaling looks at).
    pub fn frequencies(&self, longest: usize) -> Vec<f64> {
        let mut thetas = Vec::new();
        self.add_frequencies(longest, &mut thetas);
        thetas
    }

    fn add_frequencies(&self, longest: usize, thetas: &mut Vec<f64>) {
        let Rotary { base, width, scaling, max_position, .. } = *self;
        let powers = |base: f64| {
            (0..width / 2).map(move |i| libm::pow(base, -((2 * i) as f64) / width as f64))
        };
        match scaling {
            RotaryScaling::None => thetas.extend(powers(base)),
            RotaryScaling::Linear { factor } => {
                thetas.extend(powers(base).map(|theta| theta / factor))
            }
            RotaryScaling::Dynamic { factor } => {
                let stretched = longest.max(max_position) as f64 / max_position as f64;
                let growth = factor * stretched - (factor - 1.0);
                let exponent = width as f64 / (width - 2) as f64;
                thetas.extend(powers(base * libm::pow(growth, exponent)));
            }
            RotaryScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, .. } => {
                // The pair (as a real number) that makes so many turns over the training's longest text.
                let pair_with = |turns: f64| {
                    let wavelength = original as f64 / turns;
                    width as f64 * libm::log(wavelength / (2.0 * PI)) / (2.0 * libm::log(base))
                };
                let (mut first, mut last) = (pair_with(beta_fast), pair_with(beta_slow));
                if truncate {
                    (first, last) = (libm::floor(first), libm::ceil(last));
                }
                (first, last) = (first.max(0.0), last.min((width - 1) as f64));
                if first == last {
                    last += 0.001;
                }
                let ramp = |i: usize| ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
                let mixed = |(i, theta): (usize, f64)| mix(theta / factor, theta, ramp(i));
                thetas.extend(powers(base).enumerate().map(mixed));
            }
            RotaryScaling::Llama3 { factor, low, high, original } => {
                let scaled = |theta: f64| {
                    let turns = original as f64 * theta / (2.0 * PI);
                    let stays = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    mix(theta, theta / factor, stays)
                };
                thetas.extend(powers(base).map(scaled));
            }
        }
    }

    /// Cosines and sines of the positions below `positions`, the longest text that is to be read; computed in f64
    /// and rounded once.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn tables(&self, positions: usize) -> Result<RotaryTables> {
        let mut thetas = room(self.width / 2, 1)?;
        self.add_frequencies(positions, &mut thetas);
        let amplitude = match self.scaling {
            RotaryScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        };
        let [mut cos, mut sin] = [room(positions, thetas.len())?, room(positions, thetas.len())?];
        for p in 0..positions {
            for theta in &thetas {
                let (s, c) = libm::sincos(p as f64 * theta);
                cos.push((c * amplitude) as f32);
                sin.push((s * amplitude) as f32);
            }
        }
        Ok(RotaryTables { cos, sin, positions, pairs: thetas.len(), layout: self.layout })
    }
}

/// share·a + (1 − share)·b, which is exactly a or b at the ends.
fn mix(a: f64, b: f64, share: f64) -> f64 {
    share * a + (1.0 - share) * b
}

/// Cosines and sines by position and pair.
#[derive(Clone, Debug)]
pub struct RotaryTables {
    cos: Vec<f32>,
    sin: Vec<f32>,
    positions: usize,
    pairs: usize,
    layout: RopeLayout,
}

impl RotaryTables {
    /// The tables as the kernel takes them.
    pub fn rope(&self) -> Rope<'_> {
        let table = |values| Mat::new(values, self.positions, self.pairs);
        Rope { cos: table(&self.cos), sin: table(&self.sin), layout: self.layout }
    }

    /// Positions that there are.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Bytes that they take.
    #[cfg(feature = "train")]
    pub(crate) fn bytes(&self) -> usize {
        (self.cos.capacity() + self.sin.capacity()) * size_of::<f32>()
    }
}

/// The rotary part of a config: an object of its own, and the fields beside it where older checkpoints have some.
#[derive(Clone, Copy)]
struct Parameters<'a> {
    own: Option<&'a Map<String, Value>>,
    /// What that object is called, for messages.
    name: &'static str,
    beside: Option<&'a Map<String, Value>>,
    place: &'a str,
}

/// What the object may hold. Another name may change the result, so it is refused.
const KNOWN: [&str; 15] = [
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
    // How the checkpoint came about, not how it computes.
    "finetuned",
];

impl<'a> Parameters<'a> {
    fn of(config: &'a Map<String, Value>, place: &'a str) -> Result<Parameters<'a>> {
        let mut parameters =
            Parameters { own: None, name: "rope_parameters", beside: Some(config), place };
        for name in ["rope_scaling", "rope_parameters"] {
            match present(Some(config), name) {
                None => {}
                Some(Value::Object(own)) if own.is_empty() => {}
                Some(Value::Object(own)) => {
                    if let Some(unknown) = own.keys().find(|key| !KNOWN.contains(&key.as_str())) {
                        return Err(unsupported(
                            place,
                            name,
                            unknown,
                            " (a parameter of rotary positions)",
                        ));
                    }
                    return Ok(Parameters { own: Some(own), name, ..parameters });
                }
                Some(_) => return Err(refused(place, name, "expected an object")),
            }
            parameters.name = name;
        }
        Ok(parameters)
    }

    /// The object alone.
    fn inside(self) -> Parameters<'a> {
        Parameters { beside: None, ..self }
    }

    /// The fields beside it alone.
    fn outside(self) -> Parameters<'a> {
        Parameters { own: None, ..self }
    }

    /// The first of the names, in the object and then beside it, that is there and not null.
    fn find(&self, names: &[&str]) -> Option<(&'a Value, String)> {
        let own = |&name: &&str| Some((present(self.own, name)?, format!("{}.{name}", self.name)));
        let beside = |&name: &&str| Some((present(self.beside, name)?, name.to_owned()));
        names.iter().find_map(own).or_else(|| names.iter().find_map(beside))
    }

    fn typed<T>(
        &self,
        names: &[&str],
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some((value, field)) = self.find(names) else { return Ok(None) };
        let wrong = || {
            let found = printable(&value.to_string());
            refused(self.place, &field, format_args!("expected {expected}, found {found}"))
        };
        read(value).ok_or_else(wrong).map(Some)
    }

    fn number(&self, names: &[&str]) -> Result<Option<f64>> {
        self.typed(names, "a number", Value::as_f64)
    }

    fn size(&self, names: &[&str]) -> Result<Option<usize>> {
        // Some checkpoints write lengths as 8192.0.
        let whole = |x: &f64| *x >= 1.0 && x.fract() == 0.0 && *x <= f64::from(u32::MAX);
        let read = |value: &Value| value.as_f64().filter(whole).map(|x| x as usize);
        self.typed(names, "a whole number from 1 up", read)
    }

    /// A number of the object, which must be there.
    fn needed(&self, name: &str) -> Result<f64> {
        let missing = || refused(self.place, &format!("{}.{name}", self.name), "missing");
        self.inside().number(&[name])?.ok_or_else(missing)
    }

    fn rotary(&self, d_k: usize) -> Result<Rotary> {
        let base = self.number(&["rope_theta", "rotary_emb_base"])?.unwrap_or(10000.0);
        let missing = || refused(self.place, "max_position_embeddings", "missing");
        let longest = self.outside().size(&["max_position_embeddings"])?.ok_or_else(missing)?;
        let width = self.width(d_k)?;
        let rotary =
            Rotary { scaling: self.scaling(longest)?, ..Rotary::new(base, width, longest) };
        rotary.check(d_k, self.place)?;
        Ok(rotary)
    }

    /// Features of a head that turn.
    fn width(&self, d_k: usize) -> Result<usize> {
        let family = self.beside.and_then(|config| config.get("model_type")?.as_str());
        let share = match self.number(&["partial_rotary_factor", "rotary_pct"])? {
            Some(share) => share,
            None if family == Some("gpt_neox") => 0.25,
            None => 1.0,
        };
        if !(share > 0.0 && share <= 1.0) {
            let problem = format_args!("{share}: must be above 0 and at most 1");
            return Err(refused(self.place, "partial_rotary_factor", problem));
        }
        Ok((d_k as f64 * share) as usize)
    }

    fn scaling(&self, max_position: usize) -> Result<RotaryScaling> {
        let word = self
            .inside()
            .typed(&["rope_type", "type"], "a word", |value| value.as_str().map(str::to_owned))?;
        match word.as_deref().unwrap_or("default") {
            "default" => Ok(RotaryScaling::None),
            "linear" => Ok(RotaryScaling::Linear { factor: self.needed("factor")? }),
            "dynamic" => Ok(RotaryScaling::Dynamic { factor: self.needed("factor")? }),
            "yarn" => self.yarn(max_position),
            "llama3" => Ok(RotaryScaling::Llama3 {
                factor: self.needed("factor")?,
                low: self.needed("low_freq_factor")?,
                high: self.needed("high_freq_factor")?,
                original: self.original(max_position)?,
            }),
            other => {
                let known = " (expected default, linear, dynamic, yarn or llama3)";
                Err(unsupported(self.place, &format!("{}.rope_type", self.name), other, known))
            }
        }
    }

    /// The longest text of the training. Beside the object it takes precedence, as in the reference implementation.
    fn original(&self, max_position: usize) -> Result<usize> {
        let name = ["original_max_position_embeddings"];
        let beside = self.outside().size(&name)?;
        Ok(beside.or(self.inside().size(&name)?).unwrap_or(max_position))
    }

    fn yarn(&self, max_position: usize) -> Result<RotaryScaling> {
        let own = self.inside();
        let original = self.original(max_position)?;
        let factor = own.number(&["factor"])?.unwrap_or(max_position as f64 / original as f64);
        // A zero counts as absent, as in the reference implementation.
        let given = |name| Ok(own.number(&[name])?.filter(|&x| x != 0.0));
        // ("YaRN", §3.4: 0.1·ln s + 1.)
        let magnitude = |m: f64| match factor > 1.0 {
            true => 0.1 * m * libm::log(factor) + 1.0,
            false => 1.0,
        };
        let inferred = match (given("mscale")?, given("mscale_all_dim")?) {
            (Some(numerator), Some(denominator)) => magnitude(numerator) / magnitude(denominator),
            _ => magnitude(1.0),
        };
        Ok(RotaryScaling::Yarn {
            factor,
            original,
            beta_fast: given("beta_fast")?.unwrap_or(32.0),
            beta_slow: given("beta_slow")?.unwrap_or(1.0),
            truncate: own.typed(&["truncate"], "true or false", Value::as_bool)?.unwrap_or(true),
            attention_factor: own.number(&["attention_factor"])?.unwrap_or(inferred),
        })
    }
}

/// The field, unless it is absent or `null`.
fn present<'a>(map: Option<&'a Map<String, Value>>, name: &str) -> Option<&'a Value> {
    map?.get(name).filter(|value| !value.is_null())
}

fn unsupported(place: &str, field: &str, value: &str, hint: &str) -> Error {
    Error::Unsupported {
        place: place.to_owned(),
        field: field.to_owned(),
        value: printable(value),
        hint: hint.to_owned(),
    }
}
