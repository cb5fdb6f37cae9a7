//! Rotary positions: frequencies, how they are stretched for longer texts than a model was trained on, and the tables
//! of sines and cosines that the kernel looks up.

mod json;

use super::room;
use crate::error::{Error, Result};
use headrow_kernels::{Mat, Rope, RopeLayout};
use json::Parameters;
use serde_json::{Map, Value};
use std::f64::consts::PI;

/// Rotary position embedding of a checkpoint. (Su et al., "RoFormer", 2021.)
///
/// Pair i of the turning features turns by p·θ_i at position p, θ_i = base^(−2i/width) before scaling.
///
/// ```
/// use headrow::Rotary;
///
/// // Two pairs of a head's four features, which turn by p and by p/100.
/// let rotary = Rotary::new(10_000.0, 4, 512);
/// assert_eq!(rotary.frequencies(512), [1.0, 0.01]);
/// // As a checkpoint stretches it to twice as long texts.
/// let json = br#"{"max_position_embeddings": 512, "rope_theta": 10000.0,
///                 "rope_scaling": {"rope_type": "linear", "factor": 2.0}}"#;
/// let stretched = Rotary::from_json(json, "config.json", 4)?;
/// assert_eq!((stretched.frequencies(1024)[0], stretched.longest()), (0.5, 1024));
/// assert_eq!(stretched.tables(1024)?.positions(), 1024);
/// # Ok::<(), headrow::Error>(())
/// ```
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
            false => Err(Error::config(
                place,
                field,
                format_args!("{x}: must be finite and above {least}"),
            )),
        };
        let stretch = |factor: f64| match factor >= 1.0 && factor.is_finite() {
            true => Ok(()),
            false => {
                Err(Error::config(place, "factor", format_args!("{factor}: must be at least 1")))
            }
        };
        above("rope_theta", base, 1.0)?;
        if width == 0 || width % 2 == 1 || width > d_k {
            let problem = format!("{width} of the {d_k} features of a head cannot turn in pairs");
            return Err(Error::config(place, "partial_rotary_factor", problem));
        }
        above("max_position_embeddings", max_position as f64, 0.0)?;
        match scaling {
            RotaryScaling::None => Ok(()),
            RotaryScaling::Linear { factor } => stretch(factor),
            RotaryScaling::Dynamic { .. } if width == 2 => {
                Err(Error::config(place, "rope_type", "dynamic scaling needs more than one pair"))
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
